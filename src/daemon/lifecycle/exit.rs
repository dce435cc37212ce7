// SPDX-License-Identifier: Apache-2.0
//! A container's process ends: StopContainer, exactly once, whether the pidfd said so or a
//! `delete` saw it first. It never polls.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::host::Point;
use crate::plugin::Event;
use crate::state::{Container, Key, Lifecycle};

use crate::daemon::lifecycle::settle;
use crate::daemon::node::{Node, log_failure, now};
use crate::daemon::pods::crio_removed;
use crate::daemon::runtime::exit_status;
use crate::daemon::runtime::state_dir;
use crate::daemon::verbs::hook;
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::Gate;

/// Whether the init process of a container is known to have ended.
pub(crate) fn has_ended(node: &Node, record: &Container) -> bool {
    let Some(pid) = record.init_pid else { return false };
    match pidfd::open_same(&node.host, pid, record.init_start) {
        Some(process) => pidfd::has_ended(&process),
        None => true,
    }
}

/// Marks a container stopped and tells the plugins; the second time nothing happens.
pub(crate) async fn stopped(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    if matches!(record.state, Lifecycle::Stopped | Lifecycle::Removed) {
        return;
    }
    node.let_go();
    // Marked before it is told: whoever comes meanwhile must not tell it again.
    log_failure("noting an end", node.host.point(Point::DaemonStop));
    let code = record.exit_code.or_else(|| exit_status::code(node, &record));
    let (reason, message) = exit_status::status(node, &record, code);
    node.change(key, |record| {
        record.state = Lifecycle::Stopped;
        record.status_reason = reason;
        record.status_message = message;
        if record.init_pid.is_some() {
            record.finished_at = now();
            record.exit_code = code;
        }
    });
    log_failure("telling an end", node.host.point(Point::DaemonStopped));
    if !record.is_sandbox {
        node.tell(Event::StopContainer, key).await;
        crio_removed::member_ended(node, &record.pod);
    }
}

/// Before a removal is told: what became known only after the end was.
pub(crate) fn learn_late(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    if record.init_pid.is_none() || !record.status_reason.is_empty() {
        return;
    }
    let Some(code) = record.exit_code.or_else(|| exit_status::code(node, &record)) else { return };
    let (reason, message) = exit_status::status(node, &record, Some(code));
    node.change(key, |record| {
        record.exit_code = Some(code);
        record.status_reason = reason;
        record.status_message = message;
    });
}

/// Watches an init process to its end.
pub(crate) fn watch(node: &Rc<Node>, record: &Container) {
    watch_with(node, record, Gate::new(state_dir::folder(&node.host, &record.key)));
}

/// The same with the container's folder as it was watched since the creation.
pub(crate) fn watch_with(node: &Rc<Node>, record: &Container, folder: Gate) {
    let Some(pid) = record.init_pid else { return };
    let process = pidfd::open_same(&node.host, pid, record.init_start);
    let (node, key, incarnation) = (Rc::clone(node), record.key.clone(), record.incarnation);
    tokio::task::spawn_local(async move {
        // Boxed, all but the waiting: what calls plugins is large, and there may be thousands of us.
        // Also of a process that has been reaped: it may have been started before.
        Box::pin(hook::until_started(&node, &key, incarnation, process.as_ref(), folder)).await;
        let process = match process {
            Some(process) => {
                let process = pidfd::ended_alone(process).await;
                node.let_go();
                Some(process)
            }
            None => None,
        };
        Box::pin(ended(&node, &key, incarnation, process)).await;
    });
}

async fn ended(node: &Rc<Node>, key: &Key, incarnation: u64, process: Option<OwnedFd>) {
    if let Some(record) = node.container(key).filter(|record| !record.is_sandbox) {
        let code = exit_status::known(node, &record, process.as_ref()).await;
        // A `delete` may have told the end meanwhile; the removal is still to be told.
        node.store.borrow_mut().change_in_memory(key, |record| {
            if record.incarnation == incarnation {
                record.exit_code = record.exit_code.or(code);
            }
        });
    }
    let lane = node.lane(key);
    settle::started_it(&lane).await;
    let _turn = lane.turn.lock().await;
    // The runtime process of `start` may have been reaped together with a short-lived init.
    settle::due(node, key, &lane).await;
    if node.container(key).is_some_and(|record| record.incarnation == incarnation) {
        stopped(node, key).await;
    }
}
