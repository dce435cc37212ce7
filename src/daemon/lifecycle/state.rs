// SPDX-License-Identifier: Apache-2.0
//! Changes a container's state: created, running, stopped, removed. The function for each change also sends the event
//! to other programs, and writes the audit log once a creation has succeeded. Its caller notifies plugins: of a
//! removal before, of other changes afterwards, so that they receive each event once.

use std::io;
use std::rc::Rc;

use crate::clock::now;
use crate::daemon::runtime::state_dir::FoundInit;
use crate::daemon::runtime::{exit_status, state_dir};
use crate::daemon::shared::{Daemon, Records, log_failure};
use crate::host::{Host, Point};
use crate::presence::IfThere;
use crate::state::{Container, ContainerKey, Lifecycle};
use crate::stream::{EventKind, NodeEvent};

/// Records that the runtime has created the container, with its init process.
///
/// # Errors
/// Fails when the start time of that process cannot be read; then nothing changes.
pub(crate) fn mark_created(daemon: &Daemon, key: &ContainerKey, init: FoundInit) -> io::Result<()> {
    let start = init.started(&daemon.host)?;
    daemon.change(key, |record| {
        set_init(record, init.pid, start);
        record.state = Lifecycle::Created;
    });
    audit_creation(daemon, key);
    emit(daemon, key, NodeEvent::new(EventKind::Created));
    Ok(())
}

/// Records that the container's process was started; `init` is given if it was not known before.
///
/// # Errors
/// Fails when the start time of `init` cannot be read; then nothing changes.
pub(crate) fn mark_running(
    daemon: &Daemon,
    key: &ContainerKey,
    init: Option<FoundInit>,
) -> io::Result<()> {
    let start = init.map(|init| init.started(&daemon.host)).transpose()?.flatten();
    let was_creating =
        daemon.container(key).is_some_and(|record| record.state == Lifecycle::Creating);
    daemon.change(key, |record| {
        if let Some(init) = init {
            set_init(record, init.pid, start);
        }
        record.state = Lifecycle::Running;
        record.process.started_at.get_or_insert_with(now);
    });
    if was_creating {
        audit_creation(daemon, key);
        emit(daemon, key, NodeEvent::new(EventKind::Created));
    }
    emit(daemon, key, NodeEvent::new(EventKind::Started));
    Ok(())
}

/// Writes the plugins' changes to the audit log once they are in force; written earlier, the entry
/// could be about a container whose creation then fails.
fn audit_creation(daemon: &Daemon, key: &ContainerKey) {
    if let Some(record) = daemon.container(key) {
        daemon.audit_applied(key, &record.outcome.changes);
    }
}

/// Sends the container's event to other programs. Nothing is sent for an infrastructure container, which has only its
/// pod's events, nor for a container without a process, such as a refused one.
fn emit(daemon: &Daemon, key: &ContainerKey, event: NodeEvent) {
    let is_it = |record: &Rc<Container>| !record.is_sandbox && record.process.init_pid.is_some();
    if daemon.container(key).filter(is_it).is_some() {
        daemon.emit(key, event);
    }
}

fn set_init(record: &mut Container, pid: u32, start: Option<u64>) {
    record.process.init_pid = Some(pid);
    record.process.init_start = start;
    record.process.created_at.get_or_insert_with(now);
}

/// The exit code of a container that the runtime did not create, as engines report it.
const NOT_CREATED: i32 = 128;

/// Records that the runtime refused to create the container. The engine still has it, and reports an immediate exit.
pub(crate) fn mark_not_created(records: &Records, key: &ContainerKey) {
    records.change_in_memory(key, |record| {
        if record.process.created_at.is_none() {
            record.process.created_at = Some(now());
            record.process.exit_code = Some(NOT_CREATED);
        }
    });
}

/// Records that the container's process has exited; false if nothing changed.
pub(crate) async fn mark_stopped(daemon: &Daemon, key: &ContainerKey) -> bool {
    let to_stop = || {
        let is_over = |state| matches!(state, Lifecycle::Stopped | Lifecycle::Removed);
        daemon.container(key).filter(|record| !is_over(record.state))
    };
    let Some(record) = to_stop() else { return false };
    log_failure("recording an exit", daemon.host.point(Point::DaemonStop));
    let code = exit_code(daemon, &record).await;
    // Another task may have recorded the exit meanwhile.
    let is_same = |now: &Rc<Container>| now.incarnation == record.incarnation;
    let Some(record) = to_stop().filter(is_same) else { return false };
    let (reason, message) = exit_status::status(&daemon.host, &record, code);
    daemon.change(key, |record| {
        record.state = Lifecycle::Stopped;
        record.process.status_reason = reason;
        record.process.status_message = message;
        if record.process.init_pid.is_some() || record.process.created_at.is_some() {
            record.process.finished_at = Some(now());
            record.process.exit_code = code;
        }
    });
    emit(daemon, key, NodeEvent { exit_code: Some(code), ..NodeEvent::new(EventKind::Exited) });
    true
}

/// Returns the exit code that the engine wrote, if known.
pub(super) async fn written_code(daemon: &Daemon, record: &Container) -> Option<i32> {
    daemon.written_exit_code(record).await.or_absent().flatten()
}

/// Returns the exit code on record, else the one in the engine's exit file, in containerd's events, or in the engine's
/// own record of the container.
async fn exit_code(daemon: &Daemon, record: &Container) -> Option<i32> {
    match record.process.exit_code {
        Some(code) => Some(code),
        None => {
            let written = written_code(daemon, record).await;
            match written.or_else(|| daemon.caches.exit_codes.published(record)) {
                Some(code) => Some(code),
                None => daemon.recorded_exit_code(record).await.or_absent().flatten(),
            }
        }
    }
}

/// Records an exit status that became known after plugins were notified of the exit.
pub(crate) async fn learn_exit_status(daemon: &Daemon, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    let is_settled = record.process.exit_code.is_some()
        && !matches!(record.process.status_reason.as_str(), "" | exit_status::UNKNOWN);
    if record.process.init_pid.is_none() || is_settled {
        return;
    }
    let Some(code) = exit_code(daemon, &record).await else { return };
    let (reason, message) = exit_status::status(&daemon.host, &record, Some(code));
    daemon.change(key, |record| {
        record.process.exit_code = Some(code);
        record.process.status_reason = reason;
        record.process.status_message = message;
    });
}

/// Records that the runtime has deleted the container while its engine keeps it; the stored copy of the engine's
/// document is no longer needed.
pub(crate) fn mark_deleted(daemon: &Daemon, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    log_failure("recording a delete", daemon.host.point(Point::DaemonDeleted));
    daemon.change(key, |record| {
        record.is_deleted = true;
        (record.pending.deleting, record.pending.in_flight, record.pending.updating) =
            (None, None, None);
        record.outcome.patched = None;
    });
    if let Some(patched) = &record.outcome.patched {
        daemon.records.read().drop_pristine(&patched.pristine);
    }
}

/// Removes the container's record; `explain` shows it for a while.
pub(crate) fn forget(daemon: &Daemon, key: &ContainerKey) {
    log_failure("forgetting a container", daemon.host.point(Point::DaemonForget));
    let exit_code = Some(daemon.container(key).and_then(|record| record.process.exit_code));
    emit(daemon, key, NodeEvent { exit_code, ..NodeEvent::new(EventKind::Removed) });
    leave_out(daemon, key);
}

/// Removes the container's record without reporting a removal.
pub(crate) fn leave_out(daemon: &Daemon, key: &ContainerKey) {
    if let Some(record) = daemon.container(key) {
        daemon.caches.forget_cgroups(record.incarnation);
    }
    daemon.records.forget(key);
    daemon.note_forgotten(key);
}

/// Sends the past events of a container that the runtime made without the daemon.
pub(crate) fn emit_found(daemon: &Daemon, record: &Container) {
    emit(daemon, &record.key, NodeEvent::new(EventKind::Created));
    if record.state == Lifecycle::Running {
        emit(daemon, &record.key, NodeEvent::new(EventKind::Started));
    }
}

/// Fills in the current state of a container that the runtime made without the daemon. Missing times are set to the
/// start of its process or, if that is unknown, to now.
///
/// # Errors
/// Fails when the runtime's state or the start time of the process cannot be read.
pub(crate) fn set_found(host: &Host, record: &mut Container, init: FoundInit) -> io::Result<()> {
    record.process.init_pid = Some(init.pid);
    record.process.init_start = init.started(host)?;
    record.state = if exit_status::has_exited(host, record) {
        Lifecycle::Stopped
    } else if state_dir::waits_for_start(host, &record.key)? {
        Lifecycle::Created
    } else {
        Lifecycle::Running
    };
    let since = state_dir::time_of_ticks(host, record.process.init_start);
    let created_at = *record.process.created_at.get_or_insert_with(|| since.unwrap_or_else(now));
    if record.state != Lifecycle::Created {
        record.process.started_at.get_or_insert(created_at);
    }
    Ok(())
}
