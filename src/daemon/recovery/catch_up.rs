// SPDX-License-Identifier: Apache-2.0
//! After a restart: compares the records of an earlier daemon with the state of the runtime.
//!
//! First, before any plugin registers, the daemon corrects every record: it rolls back creations
//! that failed, and records containers that were created, started or updated meanwhile. So plugins
//! are synchronized with the present state. Then, once the plugins that were connected are back
//! (D14), bounded, it notifies them of exits in order, and watches the living containers again.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tracing::info;

use crate::argv::Verb;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{removal, rollback, settle, state, stop, update_outcome};
use crate::daemon::node::lane::{PendingVerb, ProposedUpdate};
use crate::daemon::node::messages::Classes;
use crate::daemon::node::{Node, log_failure};
use crate::daemon::pods::{life, own_process};
use crate::daemon::recovery::bypassed;
use crate::daemon::resources::{evict, updates};
use crate::daemon::runtime::exit_status;
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::daemon::watch::pidfd;
use crate::files;
use crate::state::{Container, ContainerKey, Lifecycle, Updating};

/// Corrects every record; before any plugin registers.
pub(crate) async fn make_true(node: &Rc<Node>) {
    let records = in_order(node);
    if !records.is_empty() {
        info!("{} on record", crate::text::counted(records.len(), "container"));
    }
    for record in records {
        catch_up(node, &record.key).await;
        learn_process(node, &record.key).await;
    }
    life::drop_orphans(node);
}

/// All records, oldest first.
pub(super) fn in_order(node: &Node) -> Vec<Rc<Container>> {
    let mut records = node.records.read().all_shared();
    records.sort_by_key(|record| record.incarnation);
    records
}

/// Notifies plugins of exits, and watches the living containers.
pub(crate) fn recover(node: &Rc<Node>) {
    let records = in_order(node);
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        node.registry.wait_for_returning().await;
        for record in records {
            let lane = node.lane(&record.key);
            let turn = lane.turn.lock().await;
            let now = node.container(&record.key);
            // It may have been created again since this daemon started.
            if let Some(now) = now.filter(|now| now.incarnation == record.incarnation) {
                finish_or_watch(&node, &now).await;
            }
            drop(turn);
            node.lanes.release(&record.key, lane);
        }
    });
}

async fn finish_or_watch(node: &Rc<Node>, record: &Container) {
    if record.state == Lifecycle::Creating {
        return; // Its runtime still works, and is watched.
    }
    if !state_dir::exists(&node.host, &record.key) {
        return removal::deleted(node, &record.key).await;
    }
    let is_resumed = node.watches.init_watches.is_resumed(record);
    if !is_resumed && exit_status::has_exited(&node.host, record) {
        stop::stopped(node, &record.key).await;
    } else {
        node.watch_init(record);
        updates::created(node, &record.key).await;
        evict::resume(node, record);
    }
}

/// Records the outcome of runtime processes that exited while no daemon ran.
pub(crate) async fn catch_up(node: &Rc<Node>, key: &ContainerKey) {
    resume_update(node, key).await;
    let Some(record) = node.container(key) else { return };
    let works = under_way(node, &record);
    let is_under_way = !works.is_empty();
    for pending in works {
        // A foreground `run` works for as long as its container lives.
        settle::watch(node, key, &node.lane(key), Rc::new(pending));
    }
    if record.state == Lifecycle::Creating {
        if is_under_way {
            return;
        }
        let pid_file = record.pid_file.as_deref().map(Path::new);
        let init = state_dir::init_pid(&node.host, key, None, None);
        // A pid file alone may be an earlier container's.
        let init = init.or_else(|| {
            let is_there = state_dir::exists(&node.host, key);
            is_there.then(|| state_dir::init_pid(&node.host, key, pid_file, None)).flatten()
        });
        let Some(pid) = init else { return rollback::creation(node, key).await };
        state::mark_created(node, key, pid);
        bundle::drop_temporary(&record);
    }
    if is_under_way || !state_dir::exists(&node.host, key) {
        return;
    }
    let waits = state_dir::waits_for_start(&node.host, key);
    let Some(record) = node.container(key) else { return };
    let is_started = record.state == Lifecycle::Created && !waits;
    if is_started || record.in_flight.is_some() || record.deleting.is_some() {
        node.change(key, |record| (record.in_flight, record.deleting) = (None, None));
        if is_started {
            state::mark_running(node, key, None);
            if record.is_sandbox {
                let ready = life::started_without_daemon(node, &record.pod);
                log_failure("recording the start of a pod", ready);
            }
        }
    }
}

/// The pod of a container that an earlier daemon knew, or none, has the container's process, unless
/// that has exited since.
pub(crate) async fn learn_process(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    if exit_status::has_exited(&node.host, &record) {
        own_process::forget(node, &record);
    } else {
        own_process::learn(node, key).await;
    }
}

/// The verbs of this container whose runtime process still runs.
pub(crate) fn under_way(node: &Rc<Node>, record: &Container) -> Vec<PendingVerb> {
    let flight = record.in_flight.as_ref();
    let flight =
        flight.map(|flight| (Verb::from_word(std::ffi::OsStr::new(&flight.verb)), flight.pid));
    let deleting = record.deleting.map(|pid| (Verb::Delete, pid));
    let verbs = flight.into_iter().chain(deleting);
    let works = verbs.filter_map(|(verb, pid)| {
        let process = process_of(node, &record.key, pid)?;
        Some(pending(node, record, (verb, pid), process))
    });
    works.collect()
}

/// The process of this PID, if it still works for this container.
pub(crate) fn process_of(node: &Node, key: &ContainerKey, pid: u32) -> Option<OwnedFd> {
    let process = pidfd::open(pid)?;
    // Read after opening: from here on the descriptor cannot mean another process.
    let words = crate::procfs::command_line(&node.host, pid);
    words.iter().any(|word| word == key.id.as_bytes()).then_some(process)
}

/// A verb that an earlier daemon decided.
fn pending(
    node: &Rc<Node>,
    record: &Container,
    (verb, pid): (Verb, u32),
    process: OwnedFd,
) -> PendingVerb {
    let key = &record.key;
    let pid_file = record.pid_file.as_ref().map(PathBuf::from);
    let reads = verb.creates() && record.state == Lifecycle::Creating;
    let dir = reads.then(|| files::open_dir(Path::new(record.folder())).ok()).flatten();
    let bundle = dir.and_then(|dir| node.lanes.bundles.turn_now(dir, &key.id));
    let account = (Rc::clone(node), key.clone());
    PendingVerb {
        by_wrapper: Some(Box::new(move || {
            let (node, key) = account.clone();
            Box::pin(async move { bypassed::take_up_of(&node, &key).await })
        })),
        // Whether it is written yet or not, the runtime's state has the same PID.
        pid_file_before: pid_file.as_deref().and_then(state_dir::stamp),
        pid_file,
        bundle: RefCell::new(bundle),
        ..PendingVerb::new(&node.host, key, (verb, record.incarnation), (pid, process))
    }
}

/// Resumes an update that was under way when the last daemon died; no plugin was synchronized
/// since.
async fn resume_update(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    let Some(updating) = record.updating.clone() else { return };
    let Updating { pid, state_before, engine, overlay, owners, changes, classes } = updating;
    let (blockio, rdt) = classes;
    let classes = Classes { blockio, rdt };
    let lane = node.lane(key);
    let writing = Arc::clone(&lane.writing).lock_owned().await;
    let proposed =
        ProposedUpdate { engine, overlay, owners, changes, classes, is_told: false, writing };
    let before = state_before.map(|(inode, seconds, nanos)| Stamp(inode, seconds, nanos));
    match process_of(node, key, pid) {
        Some(process) => {
            let mut pending = pending(node, &record, (Verb::Update, pid), process);
            pending.state_before = before;
            pending.proposed = Some(proposed).into();
            settle::watch(node, key, &lane, Rc::new(pending));
        }
        None => {
            let _nobody_was_asked = update_outcome::conclude(node, &record, before, proposed);
        }
    }
}
