// SPDX-License-Identifier: Apache-2.0
//! What a verb's runtime process came to, once it ended: the evidence decides, the record
//! follows, the Post events go out (decisions D2, D3, D5).

use std::rc::Rc;
use std::time::Duration;

use tracing::debug;

use crate::argv::Verb;
use crate::host::Point;
use crate::plugin::Event;
use crate::state::{Container, Key, Lifecycle};

use crate::daemon::lifecycle::exit;
use crate::daemon::lifecycle::rollback;
use crate::daemon::node::{Lane, Node, Pending, log_failure, now};
use crate::daemon::recovery::bypassed;
use crate::daemon::resources::updates;
use crate::daemon::runtime::error_log;
use crate::daemon::runtime::state_dir;
use crate::daemon::verbs::delete;
use crate::daemon::verbs::update;
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::Gate;

/// How long a `start` may take longer than what it started.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watches a runtime process to its end, then settles its verb.
pub(crate) fn watch(node: &Rc<Node>, key: &Key, lane: &Rc<Lane>, pending: Rc<Pending>) {
    lane.pending.borrow_mut().push(Rc::clone(&pending));
    let (node, key, lane) = (Rc::clone(node), key.clone(), Rc::clone(lane));
    tokio::task::spawn_local(async move {
        if pending.verb.creates_and_starts() {
            follow_run(&node, &key, &pending, &lane).await;
        }
        pidfd::ended(&pending.process).await;
        // At once: others may write from here on, whoever has the turn.
        update::note_outcome(&node, &key, &pending);
        let turn = lane.turn.lock().await;
        due(&node, &key, &lane).await;
        drop(turn);
        node.leave(&key, lane);
    });
}

/// Settles every verb of this lane whose runtime process has ended; the lane is held.
pub(crate) async fn due(node: &Rc<Node>, key: &Key, lane: &Lane) {
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

async fn settle(node: &Rc<Node>, key: &Key, pending: &Pending) {
    log_failure("settling a verb", node.host.point(Point::DaemonSettle));
    if pending.is_recovered && bypassed::went_past(node, key).await {
        return;
    }
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation {
        return;
    }
    debug!("the runtime of {} {} has ended", pending.verb.name(), key.id);
    if record.in_flight.as_ref().is_some_and(|flight| flight.verb == pending.verb.name()) {
        // Written together with what the verb came to.
        node.store.borrow_mut().change_in_memory(key, |record| record.in_flight = None);
    }
    match pending.verb {
        Verb::Create => created(node, key, &record, pending).await,
        Verb::Start => started(node, key, &record, pending).await,
        Verb::Update => update::settle(node, key, pending).await,
        Verb::Delete => delete::settle(node, key).await,
        Verb::Run | Verb::Restore => ran(node, key, pending).await,
        Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => {}
        Verb::Nri | Verb::Other | Verb::None => {}
    }
}

/// A container that is over at once may have ended before the runtime process that started it:
/// that one is waited for, so that its success is told first. One that hangs keeps no end back.
pub(crate) async fn started_it(lane: &Lane) {
    let is_start = |pending: &&Rc<Pending>| pending.verb == Verb::Start;
    let starting = lane.pending.borrow().iter().find(is_start).map(Rc::clone);
    if let Some(pending) = starting {
        let _late = tokio::time::timeout(PATIENCE, pidfd::ended(&pending.process)).await;
    }
}

/// Whether the runtime process that makes this container still works.
pub(crate) fn is_being_made(node: &Node, key: &Key) -> bool {
    let lane = node.lane(key);
    let pending = lane.pending.borrow();
    pending.iter().any(|pending| pending.verb.creates() && !pidfd::has_ended(&pending.process))
}

/// `create` succeeded if there is an init process; else everything is undone.
async fn created(node: &Rc<Node>, key: &Key, record: &Container, pending: &Pending) {
    let pid_file = pending.pid_file.as_deref();
    let Some(pid) = state_dir::init_pid(&node.host, key, pid_file, pending.pid_file_before) else {
        error_log::note(node, key, "create", pending.log.as_ref());
        rollback::creation(node, key).await;
        return;
    };
    note_init(node, key, pid, Lifecycle::Created);
    log_failure("settling a verb", node.host.point(Point::DaemonSettled));
    rollback::drop_temporary(record);
    if let Some(record) = node.container(key) {
        updates::created(node, key).await;
        if !record.is_sandbox {
            node.tell(Event::PostCreateContainer, key).await;
        }
        let unused = Gate::new(state_dir::folder(&node.host, key));
        exit::watch_with(node, &record, pending.gate.replace(unused));
    }
}

/// `start` succeeded if nobody waits at the fifo any more, even if init has ended since.
async fn started(node: &Rc<Node>, key: &Key, record: &Container, pending: &Pending) {
    if record.state != Lifecycle::Created || state_dir::waits_for_start(&node.host, key) {
        if record.state == Lifecycle::Created {
            error_log::note(node, key, "start", pending.log.as_ref());
        }
        return node.change(key, |_| ());
    }
    node.change(key, is_running);
    log_failure("settling a verb", node.host.point(Point::DaemonSettled));
    if !record.is_sandbox {
        node.tell(Event::PostStartContainer, key).await;
    }
}

pub(crate) fn note_init(node: &Node, key: &Key, pid: u32, state: Lifecycle) {
    let start = pidfd::start_time(&node.host, pid);
    node.change(key, |record| {
        record.init_pid = Some(pid);
        record.init_start = start;
        if record.created_at == 0 {
            record.created_at = now();
        }
        match state {
            Lifecycle::Running => is_running(record),
            Lifecycle::Creating | Lifecycle::Created | Lifecycle::Stopped | Lifecycle::Removed => {
                record.state = state;
            }
        }
    });
}

/// A container that was started, when that is seen.
pub(crate) fn is_running(record: &mut Container) {
    record.state = Lifecycle::Running;
    if record.started_at == 0 {
        record.started_at = now();
    }
}

/// A foreground `run` lasts as long as its container: its start is looked for meanwhile.
async fn follow_run(node: &Rc<Node>, key: &Key, pending: &Pending, lane: &Lane) {
    // The runtime's state may be gone when the start is seen.
    let mut init = None;
    loop {
        let has_ended = pidfd::has_ended(&pending.process);
        init = state_dir::init_pid(&node.host, key, None, None).or(init);
        if pending.gate.borrow_mut().is_open(init.is_some()) {
            // Its document was read long since.
            drop(pending.bundle.borrow_mut().take());
            let _turn = lane.turn.lock().await;
            return running(node, key, pending, init).await;
        }
        if has_ended {
            return;
        }
        let changes = pending.gate.borrow().changes();
        tokio::select! {
            () = pidfd::ended(&pending.process) => {}
            () = changes => {}
        }
    }
}

/// The foreground runtime is gone, or a detached one has started its container, or failed.
async fn ran(node: &Rc<Node>, key: &Key, pending: &Pending) {
    let pid_file = pending.pid_file.as_deref();
    let init = state_dir::init_pid(&node.host, key, pid_file, pending.pid_file_before);
    let is_started = pending.gate.borrow_mut().is_open(init.is_some());
    if is_started {
        running(node, key, pending, init).await;
    }
    if !is_started && init.is_none() {
        error_log::note(node, key, pending.verb.name(), pending.log.as_ref());
    }
    if !state_dir::exists(&node.host, key) {
        delete::removed(node, key).await;
    } else if let (false, Some(pid)) = (is_started, init) {
        // The runtime was killed half way: a container that nobody started.
        note_init(node, key, pid, Lifecycle::Created);
        if let Some(record) = node.container(key) {
            rollback::drop_temporary(&record);
            updates::created(node, key).await;
            exit::watch(node, &record);
        }
    }
}

/// The container was started; the first to see it says so.
async fn running(node: &Rc<Node>, key: &Key, pending: &Pending, init: Option<u32>) {
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation || record.state != Lifecycle::Creating {
        return;
    }
    match init {
        Some(pid) => note_init(node, key, pid, Lifecycle::Running),
        None => node.change(key, is_running),
    }
    rollback::drop_temporary(&record);
    updates::created(node, key).await;
    node.tell(Event::PostStartContainer, key).await;
    if let Some(record) = node.container(key) {
        exit::watch(node, &record);
    }
}
