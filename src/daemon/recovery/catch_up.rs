// SPDX-License-Identifier: Apache-2.0
//! After a restart: what an earlier daemon left on record is compared with what is there.
//!
//! First, before any plugin is at the table, every record is made true: creations that came to
//! nothing are undone, what was created, started or updated meanwhile is put down. So plugins are
//! synchronized with the truth. What has ended is then told to them in order, once those who were
//! connected are back (D14), bounded; the living are watched again.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use tracing::info;

use crate::argv::Verb;
use crate::files;
use crate::state::{Container, Key, Lifecycle};

use crate::daemon::lifecycle::exit;
use crate::daemon::lifecycle::rollback;
use crate::daemon::lifecycle::settle;
use crate::daemon::node::Node;
use crate::daemon::node::Pending;
use crate::daemon::pods::life;
use crate::daemon::resources::evict;
use crate::daemon::resources::updates;
use crate::daemon::runtime::state_dir;
use crate::daemon::verbs::delete;
use crate::daemon::verbs::update;
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::Gate;

/// Makes every record true; before any plugin is at the table.
pub(crate) async fn look_around(node: &Rc<Node>) {
    let records = in_order(node);
    if !records.is_empty() {
        info!("{} containers are on record", records.len());
    }
    for record in records {
        catch_up(node, &record.key).await;
    }
    life::drop_orphans(node);
}

/// Oldest first.
fn in_order(node: &Node) -> Vec<Rc<Container>> {
    let mut records = node.store.borrow().all_shared();
    records.sort_by_key(|record| record.incarnation);
    records
}

/// Tells of what has ended, and watches the living.
pub(crate) fn recover(node: &Rc<Node>) {
    let records = in_order(node);
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        node.plugins_are_back().await;
        for record in records {
            let lane = node.lane(&record.key);
            let turn = lane.turn.lock().await;
            let now = node.container(&record.key);
            // It may have been created anew since the daemon is back.
            if let Some(now) = now.filter(|now| now.incarnation == record.incarnation) {
                tell_the_end(&node, &now).await;
            }
            drop(turn);
            node.leave(&record.key, lane);
        }
    });
}

async fn tell_the_end(node: &Rc<Node>, record: &Container) {
    if record.state == Lifecycle::Creating {
        return; // Its runtime still works, and is watched.
    }
    if !state_dir::exists(&node.host, &record.key) {
        return delete::removed(node, &record.key).await;
    }
    if exit::has_ended(node, record) {
        exit::stopped(node, &record.key).await;
    } else {
        exit::watch(node, record);
        updates::created(node, &record.key).await;
        evict::resume(node, record);
    }
}

/// Puts down what the runtime came to while nobody looked.
pub(crate) async fn catch_up(node: &Rc<Node>, key: &Key) {
    update::resume(node, key).await;
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
        // A pid file alone may be that of an earlier container.
        let init = init.or_else(|| {
            let is_there = state_dir::exists(&node.host, key);
            is_there.then(|| state_dir::init_pid(&node.host, key, pid_file, None)).flatten()
        });
        let Some(pid) = init else { return rollback::creation(node, key).await };
        settle::note_init(node, key, pid, Lifecycle::Created);
        rollback::drop_temporary(&record);
    }
    if is_under_way || !state_dir::exists(&node.host, key) {
        return;
    }
    let waits = state_dir::waits_for_start(&node.host, key);
    let Some(record) = node.container(key) else { return };
    let is_started = record.state == Lifecycle::Created && !waits;
    if is_started || record.in_flight.is_some() || record.deleting.is_some() {
        node.change(key, |record| {
            (record.in_flight, record.deleting) = (None, None);
            if is_started {
                settle::is_running(record);
            }
        });
    }
}

/// The verbs of this container whose runtime process still works.
pub(crate) fn under_way(node: &Node, record: &Container) -> Vec<Pending> {
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

/// The process of this number, if it still works for this container.
pub(crate) fn process_of(node: &Node, key: &Key, pid: u32) -> Option<OwnedFd> {
    let process = pidfd::open(pid)?;
    // Asked after opening: from here on the descriptor cannot mean another process.
    let words = crate::procfs::command_line(&node.host, pid);
    words.iter().any(|word| word == key.id.as_bytes()).then_some(process)
}

/// A verb that an earlier daemon decided.
pub(crate) fn pending(
    node: &Node,
    record: &Container,
    (verb, pid): (Verb, u32),
    process: OwnedFd,
) -> Pending {
    let pid_file = record.pid_file.as_ref().map(std::path::PathBuf::from);
    let reads = verb.creates() && record.state == Lifecycle::Creating;
    let dir = reads.then(|| files::open_dir(Path::new(record.folder())).ok()).flatten();
    let bundle = dir.and_then(|dir| node.bundles.turn_now(dir, &record.key.id));
    Pending {
        verb,
        incarnation: record.incarnation,
        pid,
        process,
        is_recovered: true,
        // Written by now or not, the runtime's state says the same.
        pid_file_before: pid_file.as_deref().and_then(state_dir::stamp),
        pid_file,
        log: None,
        state_before: state_dir::state_stamp(&node.host, &record.key),
        gate: RefCell::new(Gate::new(state_dir::folder(&node.host, &record.key))),
        bundle: RefCell::new(bundle),
        holds: RefCell::new(None),
        is_told: Cell::new(false),
    }
}
