// SPDX-License-Identifier: Apache-2.0
//! Settles an `update` once its runtime process has exited (D21): its values are in force, or the
//! previous ones are restored.

use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tracing::info;

use crate::daemon::lifecycle::notify;
use crate::daemon::resources::in_force::Block;
use crate::daemon::resources::{apply, in_force, partial, results};
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::daemon::shared::lane::{ConcludedUpdate, PendingVerb, ProposedUpdate};
use crate::daemon::shared::messages::{self, Classes};
use crate::daemon::shared::{Daemon, log_failure};
use crate::error::{Result, quoted};
use crate::host::Point;
use crate::limits;
use crate::plugin::Event;
use crate::runtime::RuntimeKind;
use crate::spec::{overlay, owned};
use crate::state::{CompactObject, Container, ContainerKey, RepeatedValue};
use crate::stream::{EventKind, NodeEvent};

/// Time limit for restoring the plugins' values after a failed update; PostUpdateContainer waits for it.
const RESTORE_WAIT: Duration = Duration::from_secs(5);

/// Records an update's values as in force if the exited runtime accepted them, which a replaced state file
/// proves. For crun, which replaces none, or if the earlier state is unknown, the cgroup files decide. Values that
/// were not accepted are reverted. A second call does nothing.
///
/// # Errors
/// Fails when the runtime's result is unknown; a later call tries again.
pub(crate) fn note_taken(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    pending: &PendingVerb,
) -> io::Result<()> {
    let Some(proposed) = pending.proposed.take() else { return Ok(()) };
    let after = match state_dir::state_stamp(&daemon.host, key) {
        Ok(after) => after,
        Err(unknown) => {
            pending.proposed.replace(Some(proposed));
            return Err(unknown);
        }
    };
    let Some(record) = daemon.container(key) else { return Ok(()) };
    if record.incarnation != pending.incarnation {
        return Ok(());
    }
    let is_replaced = is_replaced(&pending.state_before, after);
    let concluded = conclude(daemon, &record, is_replaced, proposed);
    *pending.concluded.borrow_mut() = Some(concluded);
    Ok(())
}

/// Whether there is a state file after a verb and it differs from `before`; `None` if `before` is unknown.
pub(crate) fn is_replaced(
    before: &io::Result<Option<Stamp>>,
    after: Option<Stamp>,
) -> Option<bool> {
    let Ok(before) = before else { return None };
    Some(after.is_some() && after != *before)
}

/// Records the result of an update, from the cgroup files if no state file shows it. Begins to restore the earlier
/// values if the runtime did not accept the update.
pub(crate) fn conclude(
    daemon: &Rc<Daemon>,
    record: &Container,
    is_replaced: Option<bool>,
    proposed: ProposedUpdate,
) -> ConcludedUpdate {
    let key = &record.key;
    let mut tried = proposed.engine.clone();
    overlay::put_over(&mut tried, &proposed.overlay);
    let is_crun = RuntimeKind::of_program(&record.call.runtime) == RuntimeKind::Crun;
    let by_files = is_crun || is_replaced.is_none();
    let is_taken =
        is_replaced == Some(true) || (by_files && partial::has_taken(daemon, record, &tried));
    let is_told = proposed.is_told;
    results::of_engines_update(&daemon.registry, key, &proposed.answered, is_taken);
    if !is_taken {
        // runc and crun write one file after the other, and revert nothing when they fail.
        let restoring = apply::restore(daemon, record, &tried);
        if record.pending.updating.is_some() {
            daemon.change(key, |record| record.pending.updating = None);
        }
        return ConcludedUpdate { is_told, failed: Some(tried), restoring };
    }
    log_failure("recording an update", daemon.host.point(Point::DaemonUpdated));
    let ProposedUpdate { engine, overlay, owners, changes, repeated, classes, .. } = &proposed;
    let _until_written = &proposed.writing;
    let news = log_repeated(record, repeated, overlay);
    let message = messages::with_resources(&record.message, overlay, &tried, classes);
    // kubelet repeats its values every ten seconds; a repetition writes no record.
    let is_unchanged = (engine, overlay, owners, &message)
        == (
            &record.resources.of_engine.map(),
            &record.resources.overlay,
            &record.resources.owners,
            &record.message,
        )
        && changes.iter().all(|change| change.before == change.after)
        && news.is_empty()
        && record.pending.updating.is_none();
    if !is_unchanged {
        daemon.change(key, |record| {
            record.resources.of_engine = CompactObject::from(engine);
            record.resources.overlay = overlay.clone();
            record.resources.owners = owners.clone();
            record.pending.updating = None;
            let owned = owned::values(overlay);
            let renewed: HashSet<&str> = news.iter().map(|new| new.field.as_str()).collect();
            record.outcome.repeated.retain(|known| {
                owned.contains_key(&known.field) && !renewed.contains(known.field.as_str())
            });
            record.outcome.repeated.extend(news);
            in_force::note_changes(record, changes.clone());
            record.message = message;
        });
        results::note_changed(&daemon.registry, key, &record.resources.owners, owners);
        daemon.emit(key, NodeEvent::new(EventKind::Updated));
    }
    daemon.audit_applied(key, changes);
    apply::rewrite_ignored(daemon, key);
    ConcludedUpdate { is_told, failed: None, restoring: None }
}

/// Logs the values, not yet on record, that the engine sets without effect: up to [`limits::LISTED`],
/// and the number of others. Returns all of them.
fn log_repeated(
    record: &Container,
    repeated: &[RepeatedValue],
    overlay: &Block,
) -> Vec<RepeatedValue> {
    let known = record.outcome.repeated.iter().map(|known| (known.field.as_str(), known));
    let known: HashMap<&str, &RepeatedValue> = known.collect();
    let is_known = |new: &RepeatedValue| {
        let known = known.get(new.field.as_str());
        known.is_some_and(|known| (&known.engine, &known.plugin) == (&new.engine, &new.plugin))
    };
    let news: Vec<_> = repeated.iter().filter(|new| !is_known(new)).cloned().collect();
    let before = record.resources.of_engine.map();
    let (overlay, before) = (owned::values(overlay), owned::values(&before));
    let more = news.len().saturating_sub(limits::LISTED);
    if more > 0 {
        let id = quoted(&record.key.id);
        info!("{id}: {more} more values of the engine do not take effect and are not listed");
    }
    for RepeatedValue { at: _, field, engine, plugin } in news.iter().take(limits::LISTED) {
        let stays = overlay.get(field).unwrap_or(&Value::Null);
        let is_old = before.get(field) == Some(engine);
        let (id, verb) = (quoted(&record.key.id), if is_old { "repeats" } else { "requests" });
        info!(
            plugin,
            container_id = record.key.id,
            "{id}: an update of the engine {verb} linux.resources.{field} = {engine}: {stays}, which {plugin} set, stays"
        );
    }
    news
}

/// Sends PostUpdateContainer if plugins were asked, with the updated resources, or after a failed update
/// with the resources that remain in force (D39).
///
/// # Errors
/// Fails when it is unknown whether the runtime accepted the update.
pub(crate) async fn settle(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    pending: &PendingVerb,
) -> Result<()> {
    note_taken(daemon, key, pending)?;
    let Some(concluded) = pending.concluded.take() else { return Ok(()) };
    let ConcludedUpdate { is_told, failed, restoring } = concluded;
    if !is_told {
        return Ok(());
    }
    if let Some(tried) = failed {
        if let Some(restoring) = restoring {
            let _or_late = tokio::time::timeout(RESTORE_WAIT, restoring).await;
        }
        note_left_in_force(daemon, key, &tried);
    }
    notify::notify(daemon, Event::PostUpdateContainer, key).await;
    Ok(())
}

/// Sets the container's message to the resources in force after a failed update.
fn note_left_in_force(daemon: &Daemon, key: &ContainerKey, tried: &Block) {
    let Some(record) = daemon.container(key) else { return };
    let left = partial::left_in_force(daemon, &record, tried);
    let message = messages::with_resources(
        &record.message,
        &record.resources.overlay,
        &left,
        &Classes::default(),
    );
    if message != record.message {
        daemon.change(key, |record| record.message = message);
    }
}
