// SPDX-License-Identifier: Apache-2.0
//! `start`: for a sandbox its pod's RunPodSandbox, for a container StartContainer. A refusal
//! prevents the start.

use std::rc::Rc;

use crate::clock::now;
use crate::daemon::lifecycle::notify;
use crate::daemon::node::Node;
use crate::daemon::pods::{life, own_process};
use crate::daemon::request::VerbRequest;
use crate::error::Result;
use crate::host::Point;
use crate::link::Proceed;
use crate::state::{InFlight, Lifecycle};

/// Decides a `start`.
pub(crate) async fn start(node: &Rc<Node>, call: &VerbRequest) -> Result<Proceed> {
    let Some(record) = node.container(&call.key) else { return Ok(Proceed::default()) };
    if record.state != Lifecycle::Created {
        return Ok(Proceed::default()); // The runtime refuses it with its own message.
    }
    node.host.point(Point::DaemonRecord)?;
    let flight = InFlight { verb: "start".to_owned(), pid: call.question().pid, executed: false };
    // Not written: after a crash the runtime's state shows whether it was started.
    node.records.change_in_memory(&call.key, |record| record.in_flight = Some(flight));
    let allowed = if record.is_sandbox {
        life::run(node, &record.pod).await
    } else {
        own_process::learn(node, &call.key).await;
        notify::ask_to_start(node, &call.key, "the container was not started").await
    };
    if let Err(error) = allowed {
        node.change(&call.key, |record| {
            record.in_flight = None;
            record.refuse(error.to_string(), now());
        });
        return Err(error);
    }
    Ok(Proceed::default())
}
