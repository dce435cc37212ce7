// SPDX-License-Identifier: Apache-2.0
//! Watches init processes by descriptor, without polling: first for the start, if no wrapper
//! reports it, then for the exit.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use tracing::warn;

use crate::daemon::lifecycle::state::written_code;
use crate::daemon::lifecycle::{late_start, settle, stop, task_exits};
use crate::daemon::shared::queues::InitProcess;
use crate::daemon::shared::{Daemon, Records};
use crate::daemon::watch::pidfd;
use crate::error::in_our_words;
use crate::presence::Backoff;
use crate::state::{Container, ContainerKey};

/// Watches every init process that other modules queue. Never ends.
pub(crate) async fn watch_all(daemon: Rc<Daemon>) {
    let Some(mut inits) = daemon.watches.inits.receive() else { return };
    while let Some(init) = inits.recv().await {
        tokio::task::spawn_local(watch(Rc::clone(&daemon), init));
    }
}

async fn watch(daemon: Rc<Daemon>, init: InitProcess) {
    let InitProcess { key, incarnation, process, folder } = init;
    let process = match process {
        Ok(process) => process,
        Err(unknown) => match find(&daemon, &key, incarnation, unknown).await {
            Some(process) => process,
            None => return,
        },
    };
    if let (Some(process), Some(record)) = (&process, daemon.container(&key))
        && daemon.caches.exit_codes.needs_source(process)
    {
        task_exits::follow(&daemon, &record);
    }
    // The descriptor stays open until the exit is recorded, because a re-execution passes it on.
    daemon.watches.init_watches.begin(&key, incarnation, process.as_ref());
    // Boxed, except for the wait: futures that call plugins are large, and there may be thousands.
    // A reaped process is checked too, because its container may have been started before it was reaped.
    Box::pin(late_start::wait_and_notify(&daemon, &key, incarnation, process.as_ref(), folder))
        .await;
    let process = match process {
        Some(process) => {
            let process = pidfd::ended_alone(process).await;
            daemon.process.release_monitor();
            Some(process)
        }
        None => None,
    };
    Box::pin(handle_exit(&daemon, &key, incarnation, process.as_ref())).await;
    daemon.watches.init_watches.end(incarnation);
}

/// Looks for the init process until the kernel reports whether it exists; `None` if another task
/// has handled the container's end meanwhile.
async fn find(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    incarnation: u64,
    mut unknown: io::Error,
) -> Option<Option<OwnedFd>> {
    let mut backoff = Backoff::default();
    loop {
        let why = in_our_words(&unknown);
        warn!("it is not known yet whether {} is running; checking again: {why}", key.id);
        tokio::time::sleep(backoff.next()).await;
        let record = daemon.container(key).filter(|record| record.incarnation == incarnation)?;
        match pidfd::open_same(&daemon.host, record.process.init_pid?, record.process.init_start) {
            Ok(process) => return Some(process),
            Err(still) => unknown = still,
        }
    }
}

fn note_code(records: &Records, of: &Container, code: Option<i32>) {
    records.change_in_memory(&of.key, |record| {
        if record.incarnation == of.incarnation {
            record.process.exit_code = record.process.exit_code.or(code);
        }
    });
}

async fn handle_exit(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    incarnation: u64,
    process: Option<&OwnedFd>,
) {
    if let Some(record) = daemon.container(key).filter(|record| !record.is_sandbox) {
        let written = async || written_code(daemon, &record).await;
        let code = daemon.caches.exit_codes.wait(&record, process, written).await;
        // A `delete` may have reported the exit before; the code is recorded for the removal, which
        // is still to be reported.
        note_code(&daemon.records, &record, code);
    }
    let lane = daemon.lane(key);
    settle::wait_for_start(&lane).await;
    let _turn = lane.turn.lock().await;
    // The runtime process of `start` and a short-lived init may have been reaped together, so the
    // start is settled first.
    settle::settle_exited(daemon, key, &lane).await;
    if daemon.container(key).is_some_and(|record| record.incarnation == incarnation) {
        stop::notify_once(daemon, key).await;
    }
}
