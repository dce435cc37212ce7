// SPDX-License-Identifier: Apache-2.0
//! After a restart: what an earlier daemon left on record is compared with what is there.
//! Creations that came to nothing are undone, containers that ended meanwhile are stopped, the
//! living are watched again.
//!
//! Events of what happened meanwhile wait for the plugins that were connected (D14), bounded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tracing::info;

use crate::argv::Verb;
use crate::state::{Container, Lifecycle};

use super::gate::Gate;
use super::node::Node;
use super::node::Pending;
use super::{delete, evict, evidence, exit, settle, undo, updates, watch};

/// Compares every record with the world.
pub(super) async fn recover(node: &Rc<Node>) {
    let records: Vec<Container> = node.store.borrow().containers().cloned().collect();
    if records.is_empty() {
        return;
    }
    info!("{} containers are on record", records.len());
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        node.plugins_are_back().await;
        for record in records {
            let lane = node.lane(&record.key);
            let _turn = lane.turn.lock().await;
            one(&node, &record).await;
        }
    });
}

async fn one(node: &Rc<Node>, before: &Container) {
    let key = &before.key;
    let Some(record) = node.container(key) else { return };
    if record.incarnation != before.incarnation {
        return; // It was created anew since the daemon is back.
    }
    let under_way = under_way(node, &record);
    let is_under_way = under_way.is_some();
    if let Some(pending) = under_way {
        // Its runtime still works, a foreground `run` for as long as its container lives.
        settle::watch(node, key, &node.lane(key), Rc::new(pending));
    }
    if record.state == Lifecycle::Creating {
        if is_under_way {
            return;
        }
        let pid_file = record.pid_file.as_deref().map(std::path::Path::new);
        let Some(pid) = evidence::init_pid(&node.host, key, pid_file, None) else {
            return undo::creation(node, key).await;
        };
        let start = watch::start_time(&node.host, pid);
        node.change(key, |record| {
            record.init_pid = Some(pid);
            record.init_start = start;
            record.state = Lifecycle::Created;
            record.in_flight = None;
        });
        undo::drop_temporary(&record);
    }
    if !evidence::exists(&node.host, key) {
        return delete::removed(node, key).await;
    }
    let Some(record) = node.container(key) else { return };
    let is_started = record.state == Lifecycle::Created && !is_under_way;
    if is_started && !evidence::waits_for_start(&node.host, key) {
        node.change(key, |record| record.state = Lifecycle::Running);
    }
    if exit::has_ended(node, &record) {
        exit::stopped(node, key).await;
    } else {
        exit::watch(node, &record);
        updates::created(node, key).await;
        evict::resume(node, &record);
    }
}

/// The verb of this container whose runtime process still works, if there is one.
pub(super) fn under_way(node: &Node, record: &Container) -> Option<Pending> {
    let flight = record.in_flight.as_ref()?;
    let process = watch::open(flight.pid)?;
    // Asked after opening: from here on the descriptor cannot mean another process.
    let words = watch::command_line(&node.host, flight.pid);
    if !words.iter().any(|word| word == record.key.id.as_bytes()) {
        return None;
    }
    let pid_file = record.pid_file.as_ref().map(std::path::PathBuf::from);
    Some(Pending {
        verb: Verb::of_word(std::ffi::OsStr::new(&flight.verb)),
        incarnation: record.incarnation,
        pid: flight.pid,
        process,
        // Written by now or not, the runtime's state says the same.
        pid_file_before: pid_file.as_deref().and_then(evidence::stamp),
        pid_file,
        state_before: evidence::state_stamp(&node.host, &record.key),
        gate: RefCell::new(Gate::new(evidence::folder(&node.host, &record.key))),
        holds: RefCell::new(None),
        is_told: Cell::new(false),
    })
}
