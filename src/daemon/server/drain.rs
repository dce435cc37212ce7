// SPDX-License-Identifier: Apache-2.0
//! How a daemon ends: requests in flight are answered first, within the time of their callers.
//! New ones wait meanwhile, and are sent to the next daemon when this one is about to exit.
//! A second signal ends it at once.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::error::Result;
use crate::link::Answer;

use crate::daemon::node::Node;
use crate::daemon::server::frames;
use crate::daemon::server::session;

/// How long a daemon that has nothing else to do waits for those that it sends to the next one.
const FAREWELL: Duration = Duration::from_secs(1);

/// The requests of a daemon that may be ending.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    is_ending: Cell<bool>,
    is_over: Cell<bool>,
    in_flight: Cell<usize>,
    held: Cell<usize>,
    changed: Notify,
}

/// A request that is being answered.
pub(crate) struct InFlight(Rc<Node>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let drain = &self.0.drain;
        drain.in_flight.set(drain.in_flight.get() - 1);
        drain.changed.notify_waiters();
    }
}

/// Counts a request as long as the answer to it is under way.
pub(crate) fn enter(node: &Rc<Node>) -> InFlight {
    node.drain.in_flight.set(node.drain.in_flight.get() + 1);
    InFlight(Rc::clone(node))
}

impl Drain {
    /// Whether new requests have to wait.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so(self) {
                return;
            }
            changed.await;
        }
    }
}

/// Keeps a new request waiting until this daemon is about to exit, then sends it to the next one.
pub(crate) async fn hold(node: &Node, stream: &mut UnixStream) -> Result<()> {
    let drain = &node.drain;
    drain.held.set(drain.held.get() + 1);
    let over = async {
        drain.until(|drain| drain.is_over.get()).await;
        Ok(())
    };
    let waited = session::with_heartbeat(stream, over).await;
    let said = frames::say(stream, &Answer::Ending).await;
    drain.held.set(drain.held.get() - 1);
    drain.changed.notify_waiters();
    waited.and(said)
}

/// Waits until every request in flight is answered, a caller's time at most.
pub(crate) async fn drain(node: &Node) {
    node.ending.set(true);
    node.drain.is_ending.set(true);
    let count = || node.drain.in_flight.get();
    if count() > 0 {
        info!(
            "stopping: completing {} requests first; a second signal stops the daemon at once",
            count()
        );
    }
    tokio::select! {
        () = node.drain.until(|drain| drain.in_flight.get() == 0) => {}
        _ = crate::daemon::until_told_to_end() => warn!("stopping at once: {} requests got no response", count()),
        () = tokio::time::sleep(node.config.debug_create_cap) => {
            warn!("stopping: {} requests got no response in time", count());
        }
    }
}

/// Sends those who wait to the next daemon; its socket is ours no more.
pub(crate) async fn release(node: &Node) {
    node.drain.is_over.set(true);
    node.drain.changed.notify_waiters();
    let all = node.drain.until(|drain| drain.held.get() == 0);
    let _whoever_does_not_listen = tokio::time::timeout(FAREWELL, all).await;
}
