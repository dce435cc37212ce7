// SPDX-License-Identifier: Apache-2.0
//! Handles the start of a container without a wrapper's request: an OCI hook reported the container, the plain
//! runtime made it, or the start bypassed the daemon. Plugins are notified afterwards and cannot refuse.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::daemon::lifecycle::{notify, state};
use crate::daemon::pods::{life, own_process};
use crate::daemon::runtime::state_dir;
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::StartWatch;
use crate::plugin::Event;
use crate::state::{ContainerKey, Lifecycle, PodState};

/// Interval of checks while the container's state is unknown.
const UNKNOWN_CHECK: Duration = Duration::from_millis(200);

/// Marks a container running that was started without a request, and notifies plugins; they cannot refuse.
pub(crate) async fn notify_plugins(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    if record.state != Lifecycle::Created || record.pending.in_flight.is_some() {
        return;
    }
    if record.is_sandbox {
        log_failure("recording a start", state::mark_running(daemon, key, None));
        if record.by_plain_runtime {
            return life::run_plain(daemon, &record.pod).await;
        }
        let state = daemon.records.read().pod(&record.pod).map(|pod| pod.state);
        if state == Some(PodState::Created)
            && let Err(late) = life::run(daemon, &record.pod).await
        {
            let id = &key.id;
            let line = format!(
                "{id}: RunPodSandbox failed after this infrastructure container had started: {late}"
            );
            daemon.report.note_failure(&line, "");
        }
        return;
    }
    own_process::learn(daemon, key).await;
    notify::notify(daemon, Event::StartContainer, key).await;
    log_failure("recording a start", state::mark_running(daemon, key, None));
    notify::notify(daemon, Event::PostStartContainer, key).await;
}

/// Notifies plugins of the start of a container that a hook reported or the plain runtime made; returns then, or once
/// its process has ended. Does nothing for other containers: the wrapper that requests the start reports it.
///
/// `process` is the container's init process, unless that has been reaped.
pub(crate) async fn wait_and_notify(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    incarnation: u64,
    process: Option<&OwnedFd>,
    mut folder: StartWatch,
) {
    let waits = |daemon: &Daemon| {
        let record = daemon.container(key).filter(|record| record.incarnation == incarnation)?;
        let is_unasked = record.by_hook || record.by_plain_runtime;
        (is_unasked && record.state == Lifecycle::Created).then_some(())
    };
    while waits(daemon).is_some() {
        let has_ended = process.is_none_or(pidfd::has_ended);
        // If the container's folder is gone, only an event already received from it shows a start.
        let is_there = state_dir::exists(&daemon.host, key);
        let is_started = is_there.and_then(|is_there| {
            folder.check_started(is_there).map(|is_started| (is_there, is_started))
        });
        let Ok((is_there, is_started)) = is_started else {
            tokio::time::sleep(UNKNOWN_CHECK).await;
            continue;
        };
        // If the fifo was written before the watch began, only its absence shows the start, which removes
        // it. The process must still run, because a `delete` removes the fifo too, after the process has
        // ended.
        let is_released = is_there
            && matches!(state_dir::waits_for_start(&daemon.host, key), Ok(false))
            && process.is_some_and(|process| !pidfd::has_ended(process));
        if is_started || is_released {
            let lane = daemon.lane(key);
            let _turn = lane.turn.lock().await;
            if waits(daemon).is_some() {
                notify_plugins(daemon, key).await;
            }
            return;
        }
        let Some(process) = process.filter(|_| !has_ended && is_there) else { return };
        let event = folder.event();
        tokio::select! {
            () = event => {}
            () = pidfd::wait_until_exited(process) => {}
        }
    }
}
