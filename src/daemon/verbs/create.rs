// SPDX-License-Identifier: Apache-2.0
//! Decides `create`, `run` and `restore`: describes the container, asks the plugins in order, merges and checks their
//! replies, then writes. Nothing in the bundle changes before every plugin has agreed; a refusal leaves it unchanged.

use std::rc::Rc;

use nri_adaptation::Merged;

use crate::clock::now;
use crate::daemon::lifecycle::{carry_over, removal, rollback, settle};
use crate::daemon::request::{VerbRequest, record};
use crate::daemon::resources::{classes, in_force, updates};
use crate::daemon::runtime::{command, exit_status, state_dir};
use crate::daemon::shared::Daemon;
use crate::daemon::verbs::admitted::{Adjusted, Admitted, admit, blame};
use crate::error::{Context, Result};
use crate::host::Point;
use crate::limits;
use crate::link::Proceed;
use crate::mark::{self, ProcessValue};
use crate::plugin::Event;
use crate::resolve::ResourceWriter;
use crate::spec::overlay;
use crate::spec::patch::{PatchedSpec, Resolved};
use crate::state::{Change, Container, Lifecycle};

/// Decides a `create`, `run` or `restore`. Returns `None` if the ID is taken: the runtime then
/// refuses the call with its own message, and the existing container is not touched.
pub(crate) async fn create(daemon: &Rc<Daemon>, call: &mut VerbRequest) -> Result<Option<Proceed>> {
    if let Some(old) = daemon.container(&call.key) {
        if is_alive(daemon, &old).doing(|| format!("looking for the old {}", old.key.id))? {
            return Ok(None);
        }
        // Docker and Podman restart a container under the same ID: plugins are notified of the old
        // container's end first.
        removal::remove(daemon, &old.key).await;
    }
    let is_started = call.command_line.verb.creates_and_starts();
    let record = record::blank_record(&daemon.records, call);
    let admitted = admit(daemon, call, record).await?;
    if admitted.is_sandbox() {
        let document = admitted.bundle.write_engines(daemon, &admitted.key).await?;
        return Ok(Some(Proceed { document, ..Proceed::default() }));
    }
    let decided = match decide(&admitted).await {
        Ok(document) if is_started => admitted.before_start().await.map(|()| document),
        decided => decided,
    };
    match decided {
        Ok(document) => Ok(Some(Proceed { document, ..Proceed::default() })),
        Err(error) => {
            rollback::refuse(daemon, &admitted.key, &error).await;
            Err(error)
        }
    }
}

/// Whether the runtime has this container, or is creating it now. If the runtime's files are
/// unknown, the container's process shows whether it exists.
fn is_alive(daemon: &Daemon, old: &Container) -> std::io::Result<bool> {
    match old.state {
        Lifecycle::Creating => Ok(settle::is_being_created(&daemon.lanes, &old.key)),
        Lifecycle::Created | Lifecycle::Running | Lifecycle::Stopped | Lifecycle::Removed => {
            Ok(state_dir::exists(&daemon.host, &old.key)?
                || command::has_unknown_files(old) && exit_status::lives(&daemon.host, old)?)
        }
    }
}

/// Asks the plugins, merges their replies and patches the document. Returns the name of the file to
/// put in place, if there is one.
async fn decide(admitted: &Admitted) -> Result<Option<String>> {
    let Admitted { daemon, key, bundle, .. } = admitted;
    daemon.host.point(Point::DaemonPlugins)?;
    let Adjusted { merged, patched, names } = admitted.adjust(ResourceWriter::Runtime).await?;
    bundle.refuse_link(&patched.changes).map_err(|error| blame(&merged, &error))?;
    daemon.host.point(Point::DaemonDecided)?;
    note_verdict(admitted, &merged, &patched, &names);
    daemon.host.point(Point::DaemonOthers)?;
    updates::carry_out(daemon, merged.into_others(), Event::CreateContainer, key).await;
    let Some(bytes) = patched.bytes else {
        if daemon.container(key).is_some_and(|record| has_news(&record)) {
            daemon.records.change(key, |_| ())?;
        }
        return bundle.write_engines(daemon, key).await;
    };
    daemon.host.point(Point::DaemonDocument)?;
    daemon.lane(key).written.replace(Some(bytes.clone()));
    bundle.write_beside(daemon, key, Some(bytes)).await.map(Some)
}

/// Whether the record of a container with an unchanged document has other data to write.
fn has_news(record: &Container) -> bool {
    !(record.resources.owners.is_empty()
        && record.resources.overlay.is_empty()
        && record.outcome.skipped.is_empty()
        && record.outcome.would_inject.is_empty()
        && record.outcome.gave_way.is_empty())
}

/// Returns the values that `exec` applies; `None` if the record's list of changes is enough. It is not if
/// later changes may displace entries, or if the engine's user is needed, which the list lacks.
fn values_for_exec(admitted: &Admitted, changes: &[Change]) -> Option<Vec<ProcessValue>> {
    let user = admitted.engines_user();
    let groups = mark::added_groups(user, changes.iter().map(|c| (c.field.as_str(), &c.after)));
    if changes.len() <= limits::ENDS && groups.is_none() {
        return None;
    }
    let changes = changes.iter().map(|c| (c.field.as_str(), &c.before, &c.after));
    let mut values = mark::process_values(changes);
    values.extend(groups);
    Some(values)
}

/// Records the decision: owners, changes, omissions.
fn note_verdict(admitted: &Admitted, merged: &Merged, patched: &PatchedSpec, names: &Resolved) {
    let Admitted { daemon, key, .. } = admitted;
    let owners = merged.owners.to_flat(&key.id);
    let at = now();
    let changes = patched.changes.iter().map(|change| Change {
        at,
        event: Event::CreateContainer.name().to_owned(),
        plugin: owners.get(&change.nri_field).cloned().unwrap_or_default(),
        field: change.field.clone(),
        before: change.before.clone().unwrap_or_default(),
        after: change.after.clone().unwrap_or_default(),
    });
    let changes: Vec<Change> = changes.collect();
    let process_values = values_for_exec(admitted, &changes);
    let makes_group = classes::group_to_make(daemon, &changes);
    let (changes, unlisted) = in_force::listed(changes);
    admitted.note_unknown(merged);
    let resources = merged.adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let owned = resources.and_then(|resources| overlay::overlay_of(resources, names).ok());
    let owned = owned.unwrap_or_default();
    let kept = carry_over::from_earlier(daemon, key, &owned);
    // Written to disk together with the name of the patched file; until then nothing was decided.
    daemon.records.change_in_memory(key, |record| {
        record.resources.owners = owners;
        record.outcome.changes = changes;
        record.outcome.process_values = process_values;
        record.outcome.makes_group = makes_group;
        record.outcome.skipped.extend(unlisted);
        record.resources.at_creation = owned.clone();
        record.resources.overlay = owned;
    });
    if let Some(kept) = kept {
        daemon.change(key, |record| record.pending.deferred.push(kept));
    }
}
