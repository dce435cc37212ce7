// SPDX-License-Identifier: Apache-2.0
//! Settles a verb once its runtime process has exited, a `run` once its container has started: the outcome is read
//! from the runtime's state and recorded, and the Post events are sent (decisions D2, D3, D5). While the state is
//! unreadable, nothing is decided and the read is retried.

use std::rc::Rc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::argv::Verb;
use crate::daemon::lifecycle::{behind, notify, refusal, removal, rollback, state, update_outcome};
use crate::daemon::pods::own_process;
use crate::daemon::resources::updates;
use crate::daemon::runtime::state_dir::FoundInit;
use crate::daemon::runtime::{command, state_dir};
use crate::daemon::shared::lane::{Lane, Lanes, PendingVerb};
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::pidfd;
use crate::error::Result;
use crate::host::Point;
use crate::plugin::Event;
use crate::presence::{Backoff, IfThere};
use crate::state::{Container, ContainerKey, Lifecycle};

/// Time limit for a runtime's `start` to exit after the process that it started has exited.
const START_WAIT: Duration = Duration::from_secs(2);

/// Watches a runtime process until it exits, then settles its verb.
pub(crate) fn watch(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    lane: &Rc<Lane>,
    pending: Rc<PendingVerb>,
) {
    lane.pending.borrow_mut().push(Rc::clone(&pending));
    let (daemon, key, lane) = (Rc::clone(daemon), key.clone(), Rc::clone(lane));
    tokio::task::spawn_local(async move {
        if pending.verb.creates_and_starts() {
            follow_run(&daemon, &key, &pending, &lane).await;
        }
        pidfd::wait_until_exited(&pending.process).await;
        // Done before the turn is acquired, because it releases `Lane::writing`, which must not be held while a turn
        // is awaited.
        let _asked_for_again = update_outcome::note_taken(&daemon, &key, &pending);
        let mut backoff = Backoff::default();
        loop {
            let turn = lane.turn.lock().await;
            settle_exited(&daemon, &key, &lane).await;
            drop(turn);
            if !lane.pending.borrow().iter().any(|open| Rc::ptr_eq(open, &pending)) {
                break;
            }
            tokio::time::sleep(backoff.next()).await;
        }
        daemon.lanes.release(&key, lane);
    });
}

/// Number of attempts to learn an outcome, in two thirds of a second; then the next verb continues without it.
const ATTEMPTS: usize = 6;

/// Settles the verbs of this lane before the next verb; the caller holds the lane. An unknown outcome
/// is checked up to [`ATTEMPTS`] times.
pub(crate) async fn settle_before(daemon: &Rc<Daemon>, key: &ContainerKey, lane: &Lane) {
    let mut backoff = Backoff::default();
    for attempt in 1..=ATTEMPTS {
        settle_exited(daemon, key, lane).await;
        let is_open = |open: &Rc<PendingVerb>| pidfd::has_ended(&open.process);
        if attempt == ATTEMPTS || !lane.pending.borrow().iter().any(is_open) {
            return;
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

/// Settles every verb of this lane whose runtime process has exited; the caller holds the lane. A verb with an unknown
/// outcome, and all later verbs, stay open.
pub(crate) async fn settle_exited(daemon: &Rc<Daemon>, key: &ContainerKey, lane: &Lane) {
    loop {
        let next = {
            let mut pending = lane.pending.borrow_mut();
            let at = pending.iter().position(|pending| pidfd::has_ended(&pending.process));
            at.map(|at| (at, pending.remove(at)))
        };
        let Some((at, pending)) = next else { return };
        if let Err(unknown) = settle(daemon, key, &pending).await {
            let verb = pending.verb.name();
            warn!(
                "the outcome of {verb} {} is not known yet, and is checked again: {unknown}",
                key.id
            );
            let mut open = lane.pending.borrow_mut();
            let at = at.min(open.len());
            return open.insert(at, pending);
        }
    }
}

async fn settle(daemon: &Rc<Daemon>, key: &ContainerKey, pending: &PendingVerb) -> Result<()> {
    log_failure("settling a verb", daemon.host.point(Point::DaemonSettle));
    if let Some(by_wrapper) = &pending.by_wrapper
        && by_wrapper().await?
    {
        return Ok(());
    }
    let Some(record) = daemon.container(key) else { return Ok(()) };
    if record.incarnation != pending.incarnation {
        return Ok(());
    }
    debug!("the runtime of {} {} has exited", pending.verb.name(), key.id);
    let flight =
        record.pending.in_flight.clone().filter(|flight| flight.verb == pending.verb.name());
    if flight.is_some() {
        // Written to disk together with the verb's outcome.
        daemon.records.change_in_memory(key, |record| record.pending.in_flight = None);
    }
    let settled = conclude(daemon, key, &record, pending).await;
    if settled.is_err() && flight.is_some() {
        // The outcome is still unknown, and is checked again later.
        daemon.records.change_in_memory(key, |record| {
            if record.incarnation == pending.incarnation {
                record.pending.in_flight = record.pending.in_flight.take().or(flight);
            }
        });
    }
    settled
}

async fn conclude(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    record: &Container,
    pending: &PendingVerb,
) -> Result<()> {
    match pending.verb {
        Verb::Create => settle_create(daemon, key, record, pending).await,
        Verb::Start => settle_start(daemon, key, record, pending).await,
        Verb::Update => update_outcome::settle(daemon, key, pending).await,
        Verb::Delete => removal::settle(daemon, key).await,
        Verb::Run | Verb::Restore => settle_run(daemon, key, record, pending).await,
        Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => Ok(()),
        Verb::Nri | Verb::Other | Verb::None => Ok(()),
    }
}

/// Waits for the runtime process that started a short-lived container, so that the start is
/// reported before the exit. A hanging runtime delays the exit by at most [`START_WAIT`].
pub(crate) async fn wait_for_start(lane: &Lane) {
    let is_start = |pending: &&Rc<PendingVerb>| pending.verb == Verb::Start;
    let starting = lane.pending.borrow().iter().find(is_start).map(Rc::clone);
    if let Some(pending) = starting {
        let _late =
            tokio::time::timeout(START_WAIT, pidfd::wait_until_exited(&pending.process)).await;
    }
}

/// Whether the runtime process that creates this container still runs.
pub(crate) fn is_being_created(lanes: &Lanes, key: &ContainerKey) -> bool {
    let lane = lanes.container(key);
    let pending = lane.pending.borrow();
    pending.iter().any(|pending| pending.verb.creates() && !pidfd::has_ended(&pending.process))
}

/// Settles a `create`: it succeeded if the runtime has an init process, even one that has exited since; else the
/// creation is rolled back.
async fn settle_create(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    record: &Container,
    pending: &PendingVerb,
) -> Result<()> {
    let Some(init) = created_process(daemon, record, pending).await? else {
        refusal::note_refusal(daemon, key, "create", pending.log.as_ref()).await;
        state::mark_not_created(&daemon.records, key);
        rollback::roll_back(daemon, key).await;
        return Ok(());
    };
    state::mark_created(daemon, key, init)?;
    log_failure("settling a verb", daemon.host.point(Point::DaemonSettled));
    behind::note(daemon, record).await;
    own_process::learn(daemon, key).await;
    if let Some(record) = daemon.container(key) {
        updates::carry_out_deferred(daemon, key).await;
        if !record.is_sandbox {
            notify::notify(daemon, Event::PostCreateContainer, key).await;
        }
        daemon.watch_init_with(&record, Some(pending.take_start_watch(&daemon.host, key)));
    }
    Ok(())
}

/// Returns the init process after `create`; if the runtime's files are unknown and the PID file has none,
/// the one that the runtime's `state` command reports.
async fn created_process(
    daemon: &Rc<Daemon>,
    record: &Container,
    pending: &PendingVerb,
) -> Result<Option<FoundInit>> {
    match pending.init(daemon, &record.key).await? {
        None => Ok(command::state(record).await.map(|state| FoundInit::of_pid(state.pid))),
        known => Ok(known),
    }
}

/// Settles the `start` of a created container: it succeeded if `exec.fifo` is gone, even if init has exited since.
async fn settle_start(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    record: &Container,
    pending: &PendingVerb,
) -> Result<()> {
    let is_created = record.state == Lifecycle::Created;
    if !is_created || state_dir::waits_for_start(&daemon.host, key)? {
        if is_created {
            refusal::note_refusal(daemon, key, "start", pending.log.as_ref()).await;
        }
        daemon.change(key, |_| ());
        apply_waiting_updates(daemon, key).await;
        return Ok(());
    }
    state::mark_running(daemon, key, None)?;
    log_failure("settling a verb", daemon.host.point(Point::DaemonSettled));
    own_process::learn(daemon, key).await;
    updates::carry_out_deferred(daemon, key).await;
    if !record.is_sandbox {
        notify::notify(daemon, Event::PostStartContainer, key).await;
    }
    Ok(())
}

/// Applies the updates that waited for a `start` to finish, once the command has ended without starting the
/// container.
pub(crate) async fn apply_waiting_updates(daemon: &Rc<Daemon>, key: &ContainerKey) {
    if daemon.container(key).is_some_and(|record| record.state != Lifecycle::Creating) {
        updates::carry_out_deferred(daemon, key).await;
    }
}

/// Reports the start of a `run`'s container when it happens: a foreground `run` exits only after its container.
async fn follow_run(daemon: &Rc<Daemon>, key: &ContainerKey, pending: &PendingVerb, lane: &Lane) {
    let Some(record) = daemon.container(key) else { return };
    // By the time the start is seen, the runtime may have removed its state, so the process is kept.
    let (mut init, mut waits, mut pauses) = (None, false, Backoff::default());
    loop {
        let has_exited = pidfd::has_ended(&pending.process);
        // Only a runtime whose files are unknown is asked. If it no longer answers, its last answer holds: it may have
        // undone a failed start.
        let state = command::state(&record).await;
        waits = state.as_ref().map_or(waits, |state| !state.is_started());
        // An unreadable state is read again after a pause.
        let in_file = state_dir::init(&daemon.host, key).or_absent().flatten();
        init = in_file.or(state.map(|state| FoundInit::of_pid(state.pid))).or(init);
        let is_started = pending.start_watch.borrow_mut().check_started(init.is_some());
        if matches!(is_started, Ok(true)) && !waits {
            // The runtime has read its document, so the bundle's turn is no longer needed.
            drop(pending.bundle.borrow_mut().take());
            let _turn = lane.turn.lock().await;
            if running(daemon, key, pending, init).await.is_ok() {
                return;
            }
        }
        if has_exited {
            return;
        }
        // Each question starts a process, so they become rarer.
        let pause = command::has_unknown_files(&record).then(|| tokio::time::sleep(pauses.next()));
        let changes = pending.start_watch.borrow().changes();
        tokio::select! {
            () = pidfd::wait_until_exited(&pending.process) => {}
            () = async { match pause {
                Some(pause) => pause.await,
                None => changes.await,
            } } => {}
        }
    }
}

/// Settles a `run`: the foreground runtime exited, or a detached one started its container or failed.
async fn settle_run(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    record: &Container,
    pending: &PendingVerb,
) -> Result<()> {
    // Only a runtime whose files are unknown is asked.
    let state = command::state(record).await;
    let of_state = state.as_ref().map(|state| FoundInit::of_pid(state.pid));
    let init = pending.init(daemon, key).await?.or(of_state);
    let is_there = state_dir::exists(&daemon.host, key)? || state.is_some();
    let waits = state.is_some_and(|state| !state.is_started());
    let is_started = pending.start_watch.borrow_mut().check_started(init.is_some())? && !waits;
    if is_started {
        running(daemon, key, pending, init).await?;
    }
    // Without files, nothing shows any more that the container of a finished run was started.
    if !is_started && init.is_none() && record.process.started_at.is_none() {
        refusal::note_refusal(daemon, key, pending.verb.name(), pending.log.as_ref()).await;
        state::mark_not_created(&daemon.records, key);
    }
    if !is_there {
        removal::remove(daemon, key).await;
    } else if let (false, Some(init)) = (is_started, init) {
        // The runtime was killed between creation and start.
        state::mark_created(daemon, key, init)?;
        if let Some(record) = daemon.container(key) {
            behind::note(daemon, &record).await;
            own_process::learn(daemon, key).await;
            updates::carry_out_deferred(daemon, key).await;
            daemon.watch_init(&record);
        }
    }
    Ok(())
}

/// Reports a started container, unless another task has reported it.
async fn running(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    pending: &PendingVerb,
    init: Option<FoundInit>,
) -> Result<()> {
    let Some(record) = daemon.container(key) else { return Ok(()) };
    if record.incarnation != pending.incarnation || record.state != Lifecycle::Creating {
        return Ok(());
    }
    state::mark_running(daemon, key, init)?;
    behind::note(daemon, &record).await;
    own_process::learn(daemon, key).await;
    updates::carry_out_deferred(daemon, key).await;
    notify::notify(daemon, Event::PostStartContainer, key).await;
    if let Some(record) = daemon.container(key) {
        daemon.watch_init(&record);
    }
    Ok(())
}
