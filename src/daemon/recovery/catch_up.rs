// SPDX-License-Identifier: Apache-2.0
//! Compares, after a restart, the records of an earlier daemon with the state of the runtime.
//!
//! First, before any plugin registers, the daemon corrects every record: it rolls back creations that failed, and
//! records containers that were created, started or updated meanwhile. So plugins are synchronized with the current
//! state. Then, once the previously connected plugins are back (D14) or a time limit has passed, it notifies them of
//! exits in order, and watches the living containers again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tracing::{debug, info, warn};

use crate::argv::Verb;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{removal, rollback, settle, state, stop, update_outcome};
use crate::daemon::pods::life;
use crate::daemon::pods::own_process::{self, Unaddressed};
use crate::daemon::recovery::bypassed;
use crate::daemon::resources::{evict, updates};
use crate::daemon::runtime::exit_status;
use crate::daemon::runtime::state_dir::{self, FoundInit, Stamp};
use crate::daemon::shared::lane::{PendingVerb, ProposedUpdate};
use crate::daemon::shared::messages::Classes;
use crate::daemon::shared::queues::InitProcess;
use crate::daemon::shared::{Daemon, Records, log_failure};
use crate::daemon::watch::pidfd;
use crate::error::{Context, Error, Result};
use crate::files;
use crate::host::Host;
use crate::presence::{Backoff, IfThere};
use crate::procfs;
use crate::state::{Container, ContainerKey, Lifecycle, Updating};

/// Corrects every record, before any plugin registers. Returns the containers whose state is unknown, for [`recover`].
pub(crate) async fn make_true(daemon: &Rc<Daemon>) -> Vec<ContainerKey> {
    let records = in_order(&daemon.records);
    if !records.is_empty() {
        info!("{} on record", crate::text::counted(records.len(), "container"));
    }
    let (mut unknown, mut unaddressed) = (Vec::new(), Vec::new());
    for record in records {
        if let Err(why) = catch_up(daemon, &record.key).await {
            warn!("the state of {} is not known yet, and is checked again: {why}", record.key.id);
            unknown.push(record.key.clone());
        }
        unaddressed.extend(process_of_pod(daemon, &record.key));
    }
    life::drop_orphans(daemon).await;
    own_process::look_up_all(daemon, unaddressed);
    unknown
}

/// Returns all records, oldest first.
pub(super) fn in_order(records: &Records) -> Vec<Rc<Container>> {
    let mut records = records.read().all_shared();
    records.sort_by_key(|record| record.incarnation);
    records
}

/// Notifies plugins of exits, and watches the living containers. `unknown`: records that are not corrected yet.
pub(crate) fn recover(daemon: &Rc<Daemon>, unknown: &[ContainerKey]) {
    let records = in_order(&daemon.records);
    let records = records.into_iter().map(|record| {
        let is_known = !unknown.contains(&record.key);
        (record, is_known)
    });
    let (daemon, records) = (Rc::clone(daemon), records.collect::<Vec<_>>());
    tokio::task::spawn_local(async move {
        daemon.registry.wait_for_returning().await;
        for (record, is_known) in records {
            if recover_one(&daemon, &record, is_known).await.is_err() {
                tokio::task::spawn_local(ask_again(Rc::clone(&daemon), record));
            }
        }
    });
}

/// Retries the recovery of a container until its state is known.
async fn ask_again(daemon: Rc<Daemon>, record: Rc<Container>) {
    let mut backoff = Backoff::default();
    loop {
        tokio::time::sleep(backoff.next()).await;
        match recover_one(&daemon, &record, false).await {
            Ok(()) => return,
            Err(why) => debug!("the state of {} is still not known: {why}", record.key.id),
        }
    }
}

async fn recover_one(daemon: &Rc<Daemon>, record: &Container, is_known: bool) -> Result<()> {
    let lane = daemon.lane(&record.key);
    let turn = lane.turn.lock().await;
    let is_same = |now: &Rc<Container>| now.incarnation == record.incarnation;
    // The container may have been created again since this daemon started.
    let recovered = match daemon.container(&record.key).filter(is_same) {
        None => Ok(()),
        Some(now) if is_known => finish_or_watch(daemon, &now).await,
        Some(_) => match catch_up(daemon, &record.key).await {
            Ok(()) => match daemon.container(&record.key).filter(is_same) {
                Some(now) => finish_or_watch(daemon, &now).await,
                None => Ok(()),
            },
            unknown => unknown,
        },
    };
    drop(turn);
    daemon.lanes.release(&record.key, lane);
    recovered
}

async fn finish_or_watch(daemon: &Rc<Daemon>, record: &Container) -> Result<()> {
    if record.state == Lifecycle::Creating {
        return Ok(()); // The runtime is still creating it, and is watched.
    }
    if !state_dir::exists(&daemon.host, &record.key)? {
        removal::handle_delete(daemon, &record.key).await;
        return Ok(());
    }
    let is_resumed = daemon.watches.init_watches.is_resumed(record);
    let init = daemon.init_process(record, None);
    if !is_resumed && init.as_ref().is_some_and(InitProcess::has_exited) {
        stop::notify_once(daemon, &record.key).await;
    } else {
        init.into_iter().for_each(|init| daemon.watches.inits.send(init));
        updates::carry_out_deferred(daemon, &record.key).await;
        evict::resume(daemon, record);
    }
    Ok(())
}

/// Records the outcome of each runtime process that exited while no daemon watched it, and watches each that still
/// runs.
///
/// # Errors
/// Fails when an outcome is not known yet, for instance because the runtime's state is unreadable.
pub(crate) async fn catch_up(daemon: &Rc<Daemon>, key: &ContainerKey) -> Result<()> {
    resume_update(daemon, key).await?;
    let Some(record) = daemon.container(key) else { return Ok(()) };
    let works = under_way(daemon, &record).await?;
    let is_under_way = !works.is_empty();
    for pending in works {
        // Watched, not awaited, because a foreground `run` lasts as long as its container.
        settle::watch(daemon, key, &daemon.lane(key), Rc::new(pending));
    }
    if record.state == Lifecycle::Creating {
        if is_under_way {
            return Ok(());
        }
        let mut init = state_dir::init(&daemon.host, key)?;
        // Without the runtime's state, the PID file may be an earlier container's.
        if let Some(file) = &record.call.pid_file
            && init.is_none()
            && state_dir::exists(&daemon.host, key)?
        {
            let pid = daemon.pid_in_file(Path::new(file), None).await?;
            init = pid.map(FoundInit::of_pid);
        }
        let Some(init) = init else {
            if record.pending.in_flight.as_ref().is_some_and(|flight| flight.executed) {
                state::mark_not_created(&daemon.records, key);
            }
            rollback::roll_back(daemon, key).await;
            return Ok(());
        };
        state::mark_created(daemon, key, init)?;
        drop(bundle::drop_temporary(daemon, &record).await);
    }
    let Some(record) = daemon.container(key) else { return Ok(()) };
    let is_settled = record.pending.in_flight.is_none() && record.pending.deleting.is_none();
    if is_under_way || (is_settled && record.state != Lifecycle::Created) {
        return Ok(());
    }
    if !state_dir::exists(&daemon.host, key)? {
        return Ok(());
    }
    let waits = state_dir::waits_for_start(&daemon.host, key)?;
    let is_started = record.state == Lifecycle::Created && !waits;
    if is_started || !is_settled {
        daemon.change(key, |record| {
            (record.pending.in_flight, record.pending.deleting) = (None, None);
        });
        if is_started {
            state::mark_running(daemon, key, None)?;
            if record.is_sandbox {
                let ready = life::started_without_daemon(daemon, &record.pod);
                log_failure("recording the start of a pod", ready);
            }
        }
    }
    Ok(())
}

/// Sets the pod's process to this container's, if the pod has none and the container runs, and
/// looks up the pod's addresses.
pub(crate) async fn learn_process(daemon: &Rc<Daemon>, key: &ContainerKey) {
    if let Some(pod) = process_of_pod(daemon, key) {
        own_process::look_up(daemon, &pod).await;
    }
}

/// Sets the pod's process to this container's, if the pod has none and the container runs. Returns
/// the pod if its addresses are unknown. If the container has exited, its process is no longer the pod's.
fn process_of_pod(daemon: &Daemon, key: &ContainerKey) -> Option<Unaddressed> {
    let record = daemon.container(key)?;
    if exit_status::has_exited(&daemon.host, &record) {
        own_process::forget(&daemon.records, &record);
        return None;
    }
    own_process::take(daemon, key)
}

/// Returns the verbs of this container whose runtime process still runs, except an `update`.
///
/// # Errors
/// Fails when a process cannot be examined, or is executing another program now.
pub(crate) async fn under_way(daemon: &Rc<Daemon>, record: &Container) -> Result<Vec<PendingVerb>> {
    let flight = record.pending.in_flight.as_ref();
    let flight =
        flight.map(|flight| (Verb::from_word(std::ffi::OsStr::new(&flight.verb)), flight.pid));
    let deleting = record.pending.deleting.map(|pid| (Verb::Delete, pid));
    let verbs = flight.into_iter().chain(deleting);
    let mut works = Vec::new();
    for (verb, pid) in verbs {
        if let Some(process) = process_of(&daemon.host, &record.key, pid)? {
            works.push(pending(daemon, record, (verb, pid), process).await);
        }
    }
    Ok(works)
}

/// Returns the process of this PID if its command line still names this container.
///
/// # Errors
/// Fails when it cannot be examined, or is executing another program now.
pub(crate) fn process_of(host: &Host, key: &ContainerKey, pid: u32) -> Result<Option<OwnedFd>> {
    let Some(process) = pidfd::open(pid)? else { return Ok(None) };
    // The command line is read after the open, because the descriptor then keeps the PID from being reused.
    let is_same = names(host, &process, pid, &key.id)?;
    Ok(is_same.then_some(process))
}

/// Whether the command line of a process names this container.
fn names(host: &Host, process: &OwnedFd, pid: u32, id: &str) -> Result<bool> {
    // If a container's process has reused the PID, reading its memory (the command line) could hang.
    if !procfs::is_of_this_host(host, pid) {
        return Ok(false);
    }
    let words = procfs::command_line(host, pid)?;
    // A wrapper executes the runtime once it has its response or has written its note. During
    // execve(2) a process has a program but no command line yet.
    if words.is_empty() && procfs::has_program(host, pid)? && !pidfd::has_ended(process) {
        let unknown = Err(std::io::Error::from(rustix::io::Errno::AGAIN));
        return unknown
            .doing(|| format!("waiting for process {pid}, which is executing another program"));
    }
    Ok(words.iter().any(|word| word == id.as_bytes()))
}

/// Returns a pending verb that an earlier daemon permitted or that bypassed it; `process` is its runtime process.
async fn pending(
    daemon: &Rc<Daemon>,
    record: &Container,
    (verb, pid): (Verb, u32),
    process: OwnedFd,
) -> PendingVerb {
    let key = &record.key;
    let pid_file = record.call.pid_file.as_ref().map(PathBuf::from);
    let reads = verb.creates() && record.state == Lifecycle::Creating;
    let (folder, file) = (record.folder().to_owned(), pid_file.clone());
    let look = move || {
        let dir = reads.then(|| files::open_dir(Path::new(&folder)).or_absent()).flatten();
        Ok((dir, state_dir::pid_file_stamp(file.as_deref())))
    };
    let no_answer = |error: Error| (None, Err(std::io::Error::other(error.to_string())));
    let looked = daemon.off_loop(record.folder(), look).await;
    let (dir, pid_file_before) = looked.unwrap_or_else(no_answer);
    let bundle = dir.and_then(|dir| daemon.lanes.bundles.turn_now(dir, &key.id));
    let account = (Rc::clone(daemon), key.clone());
    PendingVerb {
        by_wrapper: Some(Box::new(move || {
            let (daemon, key) = account.clone();
            Box::pin(async move { bypassed::take_up_of(&daemon, &key).await })
        })),
        // The present stamp, not that before the verb. If the runtime has already written the file,
        // its state has the same PID.
        pid_file_before,
        pid_file,
        bundle: RefCell::new(bundle),
        ..PendingVerb::new(&daemon.host, key, (verb, record.incarnation), (pid, process))
    }
}

/// Resumes an update that was in progress when the last daemon died; plugins are not notified of its outcome.
async fn resume_update(daemon: &Rc<Daemon>, key: &ContainerKey) -> Result<()> {
    let Some(record) = daemon.container(key) else { return Ok(()) };
    let Some(pid) = record.pending.updating.as_ref().map(|updating| updating.pid) else {
        return Ok(());
    };
    let lane = daemon.lane(key);
    if lane.pending.borrow().iter().any(|open| open.verb == Verb::Update && open.pid == pid) {
        return Ok(()); // Already resumed by an earlier attempt that failed at another verb.
    }
    let writing = Arc::clone(&lane.writing).lock_owned().await;
    // The update may have been concluded meanwhile, so its record is read again.
    let Some(record) = daemon.container(key) else { return Ok(()) };
    let updating = record.pending.updating.clone().filter(|updating| updating.pid == pid);
    let Some(updating) = updating else { return Ok(()) };
    let Updating { pid, state_before, engine, overlay, owners, changes, classes } = *updating;
    let (blockio, rdt) = classes;
    let classes = Classes { blockio, rdt };
    let repeated = Vec::new();
    let is_told = false;
    // The previous daemon's replies are lost.
    let answered = BTreeMap::new();
    let proposed = ProposedUpdate {
        engine,
        overlay,
        owners,
        answered,
        changes,
        repeated,
        classes,
        is_told,
        writing,
    };
    let before = state_before.map(|(inode, seconds, nanos)| Some(Stamp(inode, seconds, nanos)));
    // Without the state file's earlier stamp, the cgroup files decide.
    let before = before.ok_or_else(|| std::io::ErrorKind::Other.into());
    match process_of(&daemon.host, key, pid)? {
        Some(process) => {
            let mut pending = pending(daemon, &record, (Verb::Update, pid), process).await;
            pending.state_before = before;
            pending.proposed = Some(proposed).into();
            settle::watch(daemon, key, &lane, Rc::new(pending));
        }
        None => {
            let after = state_dir::state_stamp(&daemon.host, key)?;
            let is_replaced = update_outcome::is_replaced(&before, after);
            let _nobody_was_asked =
                update_outcome::conclude(daemon, &record, is_replaced, proposed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this command line names the container `c1`.
    fn names_c1(command_line: &str, has_program: bool) -> Result<bool> {
        names_c1_in(command_line, has_program, "pid:[1]")
    }

    /// Like [`names_c1`], for a process in the PID namespace `namespace`; the daemon is in `pid:[1]`.
    fn names_c1_in(command_line: &str, has_program: bool, namespace: &str) -> Result<bool> {
        let (temp, pid) = (tempfile::tempdir().unwrap(), std::process::id());
        let dir = temp.path().join(format!("proc/{pid}"));
        std::fs::create_dir_all(&dir).unwrap();
        files::replace(&dir.join("cmdline"), command_line.as_bytes()).unwrap();
        if has_program {
            std::os::unix::fs::symlink("/usr/bin/runc", dir.join("exe")).unwrap();
        }
        for (process, namespace) in [("self", "pid:[1]"), (&pid.to_string(), namespace)] {
            let dir = temp.path().join(format!("proc/{process}/ns"));
            std::fs::create_dir_all(&dir).unwrap();
            std::os::unix::fs::symlink(namespace, dir.join("pid")).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        names(&host, &pidfd::open(pid).unwrap().unwrap(), pid, "c1")
    }

    #[test]
    fn a_process_belongs_to_the_container_on_its_command_line() {
        assert!(names_c1("runc\0start\0c1\0", true).unwrap());
        assert!(!names_c1("runc\0start\0c11\0", true).unwrap());
    }

    #[test]
    fn a_container_process_with_a_reused_pid_is_not_read() {
        assert!(!names_c1_in("runc\0start\0c1\0", true, "pid:[2]").unwrap());
    }

    #[test]
    fn a_process_during_execve_is_read_again() {
        assert!(names_c1("", true).unwrap_err().may_pass());
        assert!(!names_c1("", false).unwrap(), "a kernel thread, or one that has ended");
    }
}
