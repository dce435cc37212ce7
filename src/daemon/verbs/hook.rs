// SPDX-License-Identifier: Apache-2.0
//! Decides OCI hooks: a runtime that no wrapper started reports its container. Plugins are asked as
//! usual, but the runtime has already read its document: only the cgroup values of an adjustment
//! can be applied, and any other change refuses the container.
//!
//! If a wrapper became this runtime, the wrapper has reported its call, and the hook (whose
//! parent is the same process) is ignored. A creation hook patches no document.

use std::rc::Rc;
use std::time::Duration;

use nri_adaptation::Merged;

use crate::argv::Verb;
use crate::daemon::lifecycle::{late_start, removal, rollback};
use crate::daemon::request::{VerbRequest, record};
use crate::daemon::resources::in_force::Block;
use crate::daemon::resources::{apply, updates};
use crate::daemon::runtime::{exit_status, state_dir};
use crate::daemon::shared::lane::Lane;
use crate::daemon::shared::{Daemon, Records};
use crate::daemon::verbs::admitted::{Adjusted, Admitted, admit, blame};
use crate::daemon::verbs::delete;
use crate::daemon::watch::pidfd;
use crate::error::{Error, Result, quoted};
use crate::link::{Hook, Stage};
use crate::plugin::Event;
use crate::resolve::ResourceWriter;
use crate::spec::overlay;
use crate::spec::patch::{PatchedSpec, Resolved, SpecChange};
use crate::state::{ContainerKey, InFlight, Lifecycle, PendingUpdate};

/// The part of config.json whose changes are applied in cgroups.
const RESOURCES: &str = "linux.resources.";

/// Interval, and maximum number, of checks before a removal whether the start and the exit are reported.
const ORDER_CHECK: Duration = Duration::from_millis(20);
const ORDER_CHECKS: usize = 10;

/// Decides a hook; returns the verb whose outcome the daemon must watch, if any.
pub(crate) async fn decide(
    daemon: &Rc<Daemon>,
    lane: &Lane,
    call: &mut VerbRequest,
    hook: Hook,
    has_turn: bool,
) -> Result<Option<Verb>> {
    if is_reported(&daemon.records, lane, call) {
        return Ok(None);
    }
    match hook.stage {
        Stage::Prestart | Stage::CreateRuntime => create(daemon, call, hook.init).await.map(Some),
        Stage::Poststart => {
            // A container that is not known to be started is watched until it starts.
            if has_turn && matches!(state_dir::waits_for_start(&daemon.host, &call.key), Ok(false))
            {
                late_start::notify_plugins(daemon, &call.key).await;
            }
            Ok(None)
        }
        Stage::Poststop => {
            if has_turn {
                delete::delete(daemon, call).await?;
            }
            Ok(daemon.container(&call.key).map(|_known| Verb::Delete))
        }
    }
}

/// Whether a wrapper, or an earlier hook, has reported this runtime process.
fn is_reported(records: &Records, lane: &Lane, call: &VerbRequest) -> bool {
    let pid = call.question().pid;
    let record = records.container(&call.key);
    let flight = record.and_then(|record| record.pending.in_flight.clone());
    flight.is_some_and(|flight| flight.pid == pid)
        || lane.pending.borrow().iter().any(|pending| pending.pid == pid)
}

/// Handles a container that a runtime is creating: the same steps as `create`, without a document
/// to write.
async fn create(daemon: &Rc<Daemon>, call: &mut VerbRequest, init: u32) -> Result<Verb> {
    let verb = if call.command_line.verb.creates() { call.command_line.verb } else { Verb::Create };
    if daemon.container(&call.key).is_some() {
        // The runtime accepted the ID, so an earlier container of this ID was removed without a call.
        removal::remove(daemon, &call.key).await;
    }
    let mut record = record::blank_record(&daemon.records, call);
    record.process.init_start = pidfd::start_time(&daemon.host, init)?;
    record.process.init_pid = Some(init);
    let (verb_name, pid) = (verb.name().to_owned(), call.question().pid);
    record.pending.in_flight = Some(InFlight { verb: verb_name, pid, executed: true });
    let admitted = admit(daemon, call, record).await?;
    if admitted.is_sandbox() {
        return Ok(verb);
    }
    let adjusted = match adjust(&admitted).await {
        Ok(()) if verb.creates_and_starts() => admitted.before_start().await,
        adjusted => adjusted,
    };
    let Err(error) = adjusted else { return Ok(verb) };
    rollback::refuse(daemon, &admitted.key, &error).await;
    Err(error)
}

/// Asks the plugins, and applies their adjustment as a whole or not at all.
async fn adjust(admitted: &Admitted) -> Result<()> {
    let Admitted { daemon, key, .. } = admitted;
    let Adjusted { merged, patched, names } = admitted.adjust(ResourceWriter::Daemon).await?;
    let part = applicable_part(admitted, &merged, &patched, &names);
    let part = part.inspect_err(|_| admitted.describe(None))?;
    admitted.note_unknown(&merged);
    let owners = merged.owners.to_flat(&key.id);
    daemon.change(key, |_| ());
    updates::carry_out(daemon, merged.into_others(), Event::CreateContainer, key).await;
    let event = Event::CreateContainer.name().to_owned();
    let requested = PendingUpdate { part, owners, event, ..PendingUpdate::default() };
    apply::at_birth(daemon, key, requested).await.map_err(|update_error| {
        let why = quoted(&update_error.to_string());
        Error::new(why).hint("nothing of the container was changed")
    })
}

/// Returns the resources of an adjustment; any other change refuses the container.
fn applicable_part(
    admitted: &Admitted,
    merged: &Merged,
    patched: &PatchedSpec,
    names: &Resolved,
) -> Result<Block> {
    let key = &admitted.key;
    let resources = merged.adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    if let Some(beyond) = beyond_cgroups(patched) {
        let owners = merged.owners.to_flat(&key.id);
        let owner = owners.get(&beyond.nri_field).map(|owner| owner.trim_start_matches('-'));
        let plugin = owner.unwrap_or("a plugin");
        let field = if beyond.nri_field.is_empty() { &beyond.field } else { &beyond.nri_field };
        let why = quoted(&format!(
            "{plugin} sets {field}, which cannot be changed from an OCI hook: config.json was already read"
        ));
        let error = Error::new(why).hint("make nri-runc the engine's runtime");
        return Err(error.by(owner.unwrap_or_default()));
    }
    let part = resources.map(|resources| overlay::overlay_of(resources, names));
    let part = part.transpose().map_err(|error| blame(merged, &error))?;
    Ok(part.unwrap_or_default())
}

/// Returns the first change that cannot be made in the container's cgroup.
pub(super) fn beyond_cgroups(patched: &PatchedSpec) -> Option<&SpecChange> {
    let is_class = |field: &str| matches!(field, "BlockioClass" | "RdtClass");
    let mut changes = patched.changes.iter();
    changes.find(|change| !change.field.starts_with(RESOURCES) || is_class(&change.nri_field))
}

/// Waits until the task that watches a short-lived container has reported its start and exit, which
/// must come before its removal.
pub(crate) async fn end_in_order(daemon: &Daemon, key: &ContainerKey) {
    for _ in 0..ORDER_CHECKS {
        match daemon.container(key) {
            Some(record)
                // The outcome of the container's creation may still be unknown.
                if record.by_hook
                    && matches!(record.state, Lifecycle::Creating | Lifecycle::Created)
                    && exit_status::has_exited(&daemon.host, &record) => {}
            Some(_) | None => return,
        }
        tokio::time::sleep(ORDER_CHECK).await;
    }
}
