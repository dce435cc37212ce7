// SPDX-License-Identifier: Apache-2.0
//! The end of a daemon: it answers requests in flight first, within the time of their callers. New
//! requests wait meanwhile, and are sent to the next daemon when this one is about to exit. A
//! second signal ends it at once.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::daemon::node::Node;
use crate::daemon::process::signals;
use crate::daemon::server::frames;
use crate::error::Result;
use crate::link::DaemonResponse;

/// How long an idle daemon waits until the held wrappers have received `Ending`.
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
pub(crate) struct RequestInFlight(Rc<Drain>);

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.changed.notify_waiters();
    }
}

impl Drain {
    /// Counts a request until its answer is sent.
    pub(super) fn enter(self: &Rc<Self>) -> RequestInFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        RequestInFlight(Rc::clone(self))
    }

    /// Whether new requests have to wait.
    pub(super) fn is_ending(&self) -> bool {
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

    /// Keeps a new request waiting until this daemon is about to exit, then sends it to the next
    /// one.
    pub(super) async fn hold(&self, stream: &mut UnixStream) -> Result<()> {
        self.held.set(self.held.get() + 1);
        let over = async {
            self.until(|drain| drain.is_over.get()).await;
            Ok(())
        };
        let waited = frames::with_heartbeat(stream, over).await;
        let sent = frames::send(stream, &DaemonResponse::Ending).await;
        self.held.set(self.held.get() - 1);
        self.changed.notify_waiters();
        waited.and(sent)
    }

    /// Waits until every request in flight is answered, a caller's time at most.
    pub(crate) async fn drain(&self, node: &Node) {
        node.process.is_ending.set(true);
        self.is_ending.set(true);
        let count = || self.in_flight.get();
        if count() > 0 {
            info!(
                "stopping: completing {} requests first; a second signal stops the daemon at once",
                count()
            );
        }
        tokio::select! {
            () = self.until(|drain| drain.in_flight.get() == 0) => {}
            _ = signals::until_told_to_end() => {
                warn!("stopping at once: {} requests got no response", count());
            }
            () = tokio::time::sleep(node.config().debug_create_cap) => {
                warn!("stopping: {} requests got no response in time", count());
            }
        }
    }

    /// Sends the held requests to the next daemon; the socket is no longer this one's.
    pub(crate) async fn release(&self) {
        self.is_over.set(true);
        self.changed.notify_waiters();
        let all = self.until(|drain| drain.held.get() == 0);
        let _a_wrapper_that_does_not_read = tokio::time::timeout(FAREWELL, all).await;
    }
}
