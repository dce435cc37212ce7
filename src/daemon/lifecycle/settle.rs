// SPDX-License-Identifier: Apache-2.0
//! The outcome of a verb, once its runtime process has exited: the state of the runtime decides,
//! the record follows, the Post events go out (decisions D2, D3, D5).

use std::rc::Rc;
use std::time::Duration;

use tracing::debug;

use crate::argv::Verb;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{notify, refusal, removal, rollback, state, update_outcome};
use crate::daemon::node::lane::{Lane, PendingVerb};
use crate::daemon::node::{Node, log_failure};
use crate::daemon::pods::own_process;
use crate::daemon::resources::updates;
use crate::daemon::runtime::state_dir;
use crate::daemon::watch::pidfd;
use crate::host::Point;
use crate::plugin::Event;
use crate::state::{Container, ContainerKey, Lifecycle};

/// How much longer a runtime's `start` may run than the process that it started.
const START_WAIT: Duration = Duration::from_secs(2);

/// Watches a runtime process until it exits, then settles its verb.
pub(crate) fn watch(
    node: &Rc<Node>,
    key: &ContainerKey,
    lane: &Rc<Lane>,
    pending: Rc<PendingVerb>,
) {
    lane.pending.borrow_mut().push(Rc::clone(&pending));
    let (node, key, lane) = (Rc::clone(node), key.clone(), Rc::clone(lane));
    tokio::task::spawn_local(async move {
        if pending.verb.creates_and_starts() {
            follow_run(&node, &key, &pending, &lane).await;
        }
        pidfd::ended(&pending.process).await;
        // At once: other requests may write from here on, whichever holds the turn.
        update_outcome::note_taken(&node, &key, &pending);
        let turn = lane.turn.lock().await;
        settle_exited(&node, &key, &lane).await;
        drop(turn);
        node.lanes.release(&key, lane);
    });
}

/// Settles every verb of this lane whose runtime process has exited; the caller holds the lane.
pub(crate) async fn settle_exited(node: &Rc<Node>, key: &ContainerKey, lane: &Lane) {
    loop {
        let next = {
            let mut pending = lane.pending.borrow_mut();
            let at = pending.iter().position(|pending| pidfd::has_ended(&pending.process));
            at.map(|at| pending.remove(at))
        };
        let Some(pending) = next else { return };
        settle(node, key, &pending).await;
    }
}

async fn settle(node: &Rc<Node>, key: &ContainerKey, pending: &PendingVerb) {
    log_failure("settling a verb", node.host.point(Point::DaemonSettle));
    if let Some(by_wrapper) = &pending.by_wrapper
        && by_wrapper().await
    {
        return;
    }
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation {
        return;
    }
    debug!("the runtime of {} {} has exited", pending.verb.name(), key.id);
    if record.in_flight.as_ref().is_some_and(|flight| flight.verb == pending.verb.name()) {
        // Written together with the outcome of the verb.
        node.records.change_in_memory(key, |record| record.in_flight = None);
    }
    match pending.verb {
        Verb::Create => settle_create(node, key, &record, pending).await,
        Verb::Start => settle_start(node, key, &record, pending).await,
        Verb::Update => update_outcome::settle(node, key, pending).await,
        Verb::Delete => removal::settle(node, key).await,
        Verb::Run | Verb::Restore => settle_run(node, key, pending).await,
        Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => {}
        Verb::Nri | Verb::Other | Verb::None => {}
    }
}

/// A short-lived container may exit before the runtime process that started it: this waits for the
/// runtime, so that its success is reported first. A runtime that hangs does not delay the exit.
pub(crate) async fn wait_for_start(lane: &Lane) {
    let is_start = |pending: &&Rc<PendingVerb>| pending.verb == Verb::Start;
    let starting = lane.pending.borrow().iter().find(is_start).map(Rc::clone);
    if let Some(pending) = starting {
        let _late = tokio::time::timeout(START_WAIT, pidfd::ended(&pending.process)).await;
    }
}

/// Whether the runtime process that creates this container still runs.
pub(crate) fn is_being_created(node: &Node, key: &ContainerKey) -> bool {
    let lane = node.lane(key);
    let pending = lane.pending.borrow();
    pending.iter().any(|pending| pending.verb.creates() && !pidfd::has_ended(&pending.process))
}

/// `create` succeeded if there is an init process; else the creation is rolled back.
async fn settle_create(
    node: &Rc<Node>,
    key: &ContainerKey,
    record: &Container,
    pending: &PendingVerb,
) {
    let pid_file = pending.pid_file.as_deref();
    let Some(pid) = state_dir::init_pid(&node.host, key, pid_file, pending.pid_file_before) else {
        refusal::note_refusal(node, key, "create", pending.log.as_ref());
        rollback::creation(node, key).await;
        return;
    };
    state::mark_created(node, key, pid);
    log_failure("settling a verb", node.host.point(Point::DaemonSettled));
    bundle::drop_temporary(record);
    own_process::learn(node, key).await;
    if let Some(record) = node.container(key) {
        updates::carry_out_deferred(node, key).await;
        if !record.is_sandbox {
            notify::notify(node, Event::PostCreateContainer, key).await;
        }
        node.watch_init_with(&record, Some(pending.take_start_watch(&node.host, key)));
    }
}

/// `start` succeeded if no process waits at the fifo any more, even if init has exited since.
async fn settle_start(
    node: &Rc<Node>,
    key: &ContainerKey,
    record: &Container,
    pending: &PendingVerb,
) {
    if record.state != Lifecycle::Created || state_dir::waits_for_start(&node.host, key) {
        if record.state == Lifecycle::Created {
            refusal::note_refusal(node, key, "start", pending.log.as_ref());
        }
        node.change(key, |_| ());
        return not_started(node, key).await;
    }
    state::mark_running(node, key, None);
    log_failure("settling a verb", node.host.point(Point::DaemonSettled));
    own_process::learn(node, key).await;
    updates::carry_out_deferred(node, key).await;
    if !record.is_sandbox {
        notify::notify(node, Event::PostStartContainer, key).await;
    }
}

/// A call ended that may have been a start, and the container was not started: updates that waited
/// for it are carried out.
pub(crate) async fn not_started(node: &Rc<Node>, key: &ContainerKey) {
    if node.container(key).is_some_and(|record| record.state != Lifecycle::Creating) {
        updates::carry_out_deferred(node, key).await;
    }
}

/// A foreground `run` lasts as long as its container: the daemon watches for the start meanwhile.
async fn follow_run(node: &Rc<Node>, key: &ContainerKey, pending: &PendingVerb, lane: &Lane) {
    // The runtime's state may be gone when the start is seen.
    let mut init = None;
    loop {
        let has_exited = pidfd::has_ended(&pending.process);
        init = state_dir::init_pid(&node.host, key, None, None).or(init);
        if pending.start_watch.borrow_mut().has_started(init.is_some()) {
            // The runtime has long read its document.
            drop(pending.bundle.borrow_mut().take());
            let _turn = lane.turn.lock().await;
            return running(node, key, pending, init).await;
        }
        if has_exited {
            return;
        }
        let changes = pending.start_watch.borrow().changes();
        tokio::select! {
            () = pidfd::ended(&pending.process) => {}
            () = changes => {}
        }
    }
}

/// The foreground runtime has exited, or a detached one has started its container, or failed.
async fn settle_run(node: &Rc<Node>, key: &ContainerKey, pending: &PendingVerb) {
    let pid_file = pending.pid_file.as_deref();
    let init = state_dir::init_pid(&node.host, key, pid_file, pending.pid_file_before);
    let is_started = pending.start_watch.borrow_mut().has_started(init.is_some());
    if is_started {
        running(node, key, pending, init).await;
    }
    if !is_started && init.is_none() {
        refusal::note_refusal(node, key, pending.verb.name(), pending.log.as_ref());
    }
    if !state_dir::exists(&node.host, key) {
        removal::removed(node, key).await;
    } else if let (false, Some(pid)) = (is_started, init) {
        // The runtime was killed half way: the container exists and was not started.
        state::mark_created(node, key, pid);
        if let Some(record) = node.container(key) {
            bundle::drop_temporary(&record);
            own_process::learn(node, key).await;
            updates::carry_out_deferred(node, key).await;
            node.watch_init(&record);
        }
    }
}

/// The container was started; the first caller that sees it reports it.
async fn running(node: &Rc<Node>, key: &ContainerKey, pending: &PendingVerb, init: Option<u32>) {
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation || record.state != Lifecycle::Creating {
        return;
    }
    state::mark_running(node, key, init);
    bundle::drop_temporary(&record);
    own_process::learn(node, key).await;
    updates::carry_out_deferred(node, key).await;
    notify::notify(node, Event::PostStartContainer, key).await;
    if let Some(record) = node.container(key) {
        node.watch_init(&record);
    }
}
