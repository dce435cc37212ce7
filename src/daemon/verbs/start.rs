// SPDX-License-Identifier: Apache-2.0
//! Decides `start`: sends RunPodSandbox for a sandbox's pod, or StartContainer for a container. A
//! refusal prevents the start.

use std::rc::Rc;
use std::time::Duration;

use crate::clock::now;
use crate::daemon::lifecycle::notify;
use crate::daemon::pods::{life, own_process};
use crate::daemon::request::VerbRequest;
use crate::daemon::resources::updates;
use crate::daemon::shared::Daemon;
use crate::error::Result;
use crate::host::Point;
use crate::link::Proceed;
use crate::state::{InFlight, Lifecycle, START};

/// Longest wait of a `start` for an update of its container that is being written.
const WRITE_WAIT: Duration = Duration::from_secs(3);

pub(crate) async fn start(daemon: &Rc<Daemon>, call: &VerbRequest) -> Result<Proceed> {
    let Some(record) = daemon.container(&call.key) else { return Ok(Proceed::default()) };
    if record.state != Lifecycle::Created {
        return Ok(Proceed::default()); // The runtime refuses the call with its own message.
    }
    daemon.host.point(Point::DaemonRecord)?;
    let flight = InFlight { verb: START.to_owned(), pid: call.question().pid, executed: false };
    // Not written to disk: after a crash the runtime's state shows whether the container was started.
    daemon.records.change_in_memory(&call.key, |record| record.pending.in_flight = Some(flight));
    // An earlier update is written first. Updates that plugins request from here on wait until
    // after the start, so that nothing changes between StartContainer and the start of the process.
    let lane = daemon.lane(&call.key);
    drop(tokio::time::timeout(WRITE_WAIT, lane.writing.lock()).await);
    let allowed = if record.is_sandbox {
        life::run(daemon, &record.pod).await
    } else {
        own_process::learn(daemon, &call.key).await;
        notify::ask_to_start(daemon, &call.key, "the container was not started").await
    };
    if let Err(error) = allowed {
        daemon.change(&call.key, |record| {
            record.pending.in_flight = None;
            record.refuse(error.to_string(), now());
        });
        updates::carry_out_deferred(daemon, &call.key).await;
        return Err(error);
    }
    Ok(Proceed::default())
}
