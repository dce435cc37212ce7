// SPDX-License-Identifier: Apache-2.0
//! `start`, as the daemon lives it: for a sandbox its pod's RunPodSandbox, for a container
//! StartContainer. A refusal prevents the start.

use std::rc::Rc;

use crate::error::{Error, Result, quoted};
use crate::host::Point;
use crate::link::Proceed;
use crate::plugin::Event;
use crate::state::{InFlight, Lifecycle};

use crate::daemon::node::{Node, now};
use crate::daemon::pods::life;
use crate::daemon::request::call::Call;

/// Decides a `start`.
pub(crate) async fn start(node: &Rc<Node>, call: &Call) -> Result<Proceed> {
    let Some(record) = node.container(&call.key) else { return Ok(Proceed::default()) };
    if record.state != Lifecycle::Created {
        return Ok(Proceed::default()); // The runtime knows what to say about it.
    }
    node.host.point(Point::DaemonRecord)?;
    let flight = InFlight { verb: "start".to_owned(), pid: call.question().pid, executed: false };
    // Not written: after a crash the evidence tells whether it was started.
    node.store.borrow_mut().change_in_memory(&call.key, |record| record.in_flight = Some(flight));
    let allowed = if record.is_sandbox {
        life::run(node, &record.pod).await
    } else {
        notify_until_refused(node, call).await
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

async fn notify_until_refused(node: &Rc<Node>, call: &Call) -> Result<()> {
    let Some(told) = node.told(Event::StartContainer, &call.key) else { return Ok(()) };
    let (skipped, allowed) = node.relay.notify_until_refused(&told).await;
    if !skipped.is_empty() {
        node.change(&call.key, |record| record.skipped.extend(skipped));
    }
    let Err(refusal) = allowed else { return Ok(()) };
    let hint = "the container was not started";
    Err(Error::new(quoted(&refusal.to_string())).hint(hint).by(refusal.plugin))
}
