// SPDX-License-Identifier: Apache-2.0
//! What a verb's runtime process came to, once it ended: the evidence decides, the record
//! follows, the Post events go out (decisions D2, D3, D5).

use std::rc::Rc;
use std::time::Duration;

use tracing::debug;

use crate::host::Point;
use crate::plugin::Event;
use crate::state::{Container, Key, Lifecycle};

use super::node::{Lane, Node, Pending, log_failure};
use super::{delete, evidence, exit, undo, update, watch};

/// Watches a runtime process to its end, then settles its verb.
pub(super) fn watch(node: &Rc<Node>, key: &Key, lane: &Rc<Lane>, pending: Rc<Pending>) {
    lane.pending.borrow_mut().push(Rc::clone(&pending));
    let (node, key, lane) = (Rc::clone(node), key.clone(), Rc::clone(lane));
    tokio::task::spawn_local(async move {
        if pending.verb == "run" {
            follow_run(&node, &key, &pending, &lane).await;
        }
        watch::ended(&pending.process).await;
        // At once: others may write from here on, whoever has the turn.
        update::note_outcome(&node, &key, &pending);
        let _turn = lane.turn.lock().await;
        due(&node, &key, &lane).await;
    });
}

/// Settles every verb of this lane whose runtime process has ended; the lane is held.
pub(super) async fn due(node: &Rc<Node>, key: &Key, lane: &Lane) {
    loop {
        let next = {
            let mut pending = lane.pending.borrow_mut();
            let at = pending.iter().position(|pending| watch::has_ended(&pending.process));
            at.map(|at| pending.remove(at))
        };
        let Some(pending) = next else { return };
        settle(node, key, &pending).await;
    }
}

async fn settle(node: &Rc<Node>, key: &Key, pending: &Pending) {
    log_failure("settling a verb", node.host.point(Point::DaemonSettle));
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation {
        return;
    }
    debug!("the runtime of {} {} has ended", pending.verb, key.id);
    node.change(key, |record| record.in_flight = None);
    match pending.verb {
        "create" => created(node, key, &record, pending).await,
        "start" => started(node, key, &record).await,
        "update" => update::settle(node, key, pending).await,
        "delete" => delete::settle(node, key).await,
        // The foreground runtime is gone, or a detached one has started its container.
        "run" if evidence::exists(&node.host, key) => {
            seen_running(node, key, pending).await;
        }
        "run" => delete::removed(node, key).await,
        _ => {}
    }
}

/// `create` succeeded if there is an init process; else everything is undone.
async fn created(node: &Rc<Node>, key: &Key, record: &Container, pending: &Pending) {
    let pid_file = pending.pid_file.as_deref();
    let Some(pid) = evidence::init_pid(&node.host, key, pid_file, pending.pid_file_before) else {
        undo::creation(node, key).await;
        return;
    };
    note_init(node, key, pid, Lifecycle::Created);
    undo::drop_temporary(record);
    if let Some(record) = node.container(key) {
        if !record.is_sandbox {
            node.tell(Event::PostCreateContainer, key).await;
        }
        exit::watch(node, &record);
    }
}

/// `start` succeeded if nobody waits at the fifo any more, even if init has ended since.
async fn started(node: &Rc<Node>, key: &Key, record: &Container) {
    if record.state != Lifecycle::Created || evidence::waits_for_start(&node.host, key) {
        return;
    }
    node.change(key, |record| record.state = Lifecycle::Running);
    if !record.is_sandbox {
        node.tell(Event::PostStartContainer, key).await;
    }
}

fn note_init(node: &Node, key: &Key, pid: u32, state: Lifecycle) {
    let start = watch::start_time(&node.host, pid);
    node.change(key, |record| {
        record.init_pid = Some(pid);
        record.init_start = start;
        record.state = state;
    });
}

/// A foreground `run` lasts as long as its container: its init is looked for meanwhile.
async fn follow_run(node: &Rc<Node>, key: &Key, pending: &Pending, lane: &Lane) {
    let mut pause = Duration::from_millis(2);
    while !watch::has_ended(&pending.process) {
        let is_started = !evidence::waits_for_start(&node.host, key);
        let pid = evidence::init_pid(&node.host, key, None, None);
        if is_started && pid.is_some() {
            let _turn = lane.turn.lock().await;
            seen_running(node, key, pending).await;
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

async fn seen_running(node: &Rc<Node>, key: &Key, pending: &Pending) {
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation || record.state != Lifecycle::Creating {
        return;
    }
    let pid_file = pending.pid_file.as_deref();
    let Some(pid) = evidence::init_pid(&node.host, key, pid_file, pending.pid_file_before) else {
        return;
    };
    note_init(node, key, pid, Lifecycle::Running);
    undo::drop_temporary(&record);
    node.tell(Event::PostStartContainer, key).await;
    if let Some(record) = node.container(key) {
        exit::watch(node, &record);
    }
}
