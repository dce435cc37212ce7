// SPDX-License-Identifier: Apache-2.0
//! Completes requests in flight and holds new ones while the daemon ends or is re-executed. When it is
//! about to exit, the daemon tells the wrappers of held requests to ask the next daemon. A second signal
//! ends it at once.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::daemon::server::frames;
use crate::daemon::shared::Daemon;
use crate::ends::Ends;
use crate::error::Result;
use crate::link::DaemonResponse;

/// Time limit for the wrappers of held requests to receive `Ending`.
const FAREWELL: Duration = Duration::from_secs(1);

/// Time for which execs are still served while creates are held.
const EXECS_WAIT: Duration = Duration::from_secs(2);

/// The requests in flight, and those that are held while the daemon is ending.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Time since which the daemon is ending, or about to execute another program.
    ending_since: Cell<Option<Instant>>,
    is_over: Cell<bool>,
    in_flight: Cell<usize>,
    held: Cell<usize>,
    /// Connections whose request is being read or answered.
    open: Cell<usize>,
    is_paused: Cell<bool>,
    changed: Notify,
}

/// A connection that must be answered, or held, before the daemon executes another program.
pub(crate) struct OpenConnection(Rc<Drain>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.changed.notify_waiters();
    }
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
    /// Counts a request until the returned value is dropped.
    pub(super) fn enter(self: &Rc<Self>) -> RequestInFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        RequestInFlight(Rc::clone(self))
    }

    /// Counts a connection until the returned value is dropped.
    pub(super) fn open(self: &Rc<Self>) -> OpenConnection {
        self.open.set(self.open.get() + 1);
        OpenConnection(Rc::clone(self))
    }

    /// Waits while connections must stay in the socket's queue.
    pub(super) async fn until_accepting(&self) {
        self.until(|drain| !drain.is_paused.get()).await;
    }

    /// Waits until connections must stay in the socket's queue.
    pub(super) async fn until_paused(&self) {
        self.until(|drain| drain.is_paused.get()).await;
    }

    /// Holds new requests, except those that must not wait.
    pub(crate) fn hold_new(&self) {
        self.is_over.set(false);
        self.begin_to_end();
    }

    /// Whether no request is in flight, and every open connection has a held request.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.get() == 0 && self.open.get() == self.held.get()
    }

    /// Tells the callers of held requests to reconnect, but accepts no connection until
    /// [`go_on`](Self::go_on) or [`accept_again`](Self::accept_again).
    pub(crate) async fn send_back(&self) {
        self.is_paused.set(true);
        self.release().await;
    }

    /// Accepts connections again, and holds their requests.
    pub(crate) fn accept_again(&self) {
        self.is_over.set(false);
        self.is_paused.set(false);
        self.changed.notify_waiters();
    }

    /// Resumes serving requests.
    pub(crate) fn go_on(&self) {
        self.ending_since.set(None);
        self.is_over.set(true);
        self.is_paused.set(false);
        self.changed.notify_waiters();
    }

    /// Whether new requests must wait.
    pub(super) fn is_ending(&self) -> bool {
        self.ending_since.get().is_some()
    }

    /// Whether creates have been held so long that an `exec` must wait for the next daemon too: probes
    /// call `exec` continuously, and each one waits for plugins.
    pub(super) fn must_end(&self) -> bool {
        self.ending_since.get().is_some_and(|since| since.elapsed() > EXECS_WAIT)
    }

    fn begin_to_end(&self) {
        if self.ending_since.get().is_none() {
            self.ending_since.set(Some(Instant::now()));
        }
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

    /// Holds a new request until the daemon is about to exit, or serves again; then tells the wrapper to reconnect.
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

    /// Holds new requests, and waits until every request in flight is answered, a second signal
    /// arrives, or a caller's time limit has passed.
    pub(crate) async fn drain(&self, daemon: &Daemon, ends: &mut Ends) {
        daemon.process.is_ending.set(true);
        self.begin_to_end();
        let count = || self.in_flight.get();
        if count() > 0 {
            info!(
                "stopping: completing {} requests first; a second signal stops the daemon at once",
                count()
            );
        }
        tokio::select! {
            () = self.until(|drain| drain.in_flight.get() == 0) => {}
            () = ends.wait() => {
                warn!("stopping at once: {} requests got no response", count());
            }
            () = tokio::time::sleep(daemon.config().debug_create_cap) => {
                warn!("stopping: {} requests got no response in time", count());
            }
        }
    }

    /// Tells the wrappers of held requests to reconnect. A daemon that ends must have removed its socket's file before.
    pub(crate) async fn release(&self) {
        self.is_over.set(true);
        self.changed.notify_waiters();
        let all = self.until(|drain| drain.held.get() == 0);
        let _a_wrapper_that_does_not_read = tokio::time::timeout(FAREWELL, all).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn execs_are_refused_after_a_long_drain_until_it_is_cancelled() {
        let drain = Drain::default();
        assert!(!drain.must_end() && !drain.is_ending());
        drain.hold_new();
        assert!(!drain.must_end() && drain.is_ending());
        drain.ending_since.set(Instant::now().checked_sub(EXECS_WAIT + EXECS_WAIT));
        // A second request to end must not restart the time.
        drain.begin_to_end();
        assert!(drain.must_end());
        drain.go_on();
        assert!(!drain.must_end() && !drain.is_ending());
    }
}
