// SPDX-License-Identifier: Apache-2.0
//! Passes an operator's reload and re-execution requests to the task that executes them. The
//! connection that receives a request only waits for the response.

use std::cell::RefCell;
use std::os::fd::RawFd;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A request that is answered once.
#[derive(Debug)]
pub(crate) struct Request<T, A> {
    pub(crate) what: T,
    pub(crate) answer: oneshot::Sender<Result<A>>,
}

/// A request to reload the configuration.
#[derive(Debug)]
pub(crate) struct ReloadRequest {
    /// Whether to report only the changes that a reload would make.
    pub(crate) is_dry: bool,
}

/// A request to execute the program that now lies at the daemon's path.
#[derive(Debug)]
pub(crate) struct ReexecRequest {
    /// The caller's connection: the next program answers on it.
    pub(crate) descriptor: RawFd,
}

/// Requests of one kind; the receiving end is taken once.
#[derive(Debug)]
pub(crate) struct Requests<T, A> {
    sender: UnboundedSender<Request<T, A>>,
    receiver: RefCell<Option<UnboundedReceiver<Request<T, A>>>>,
}

impl<T, A> Default for Requests<T, A> {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: RefCell::new(Some(receiver)) }
    }
}

impl<T, A> Requests<T, A> {
    /// Sends a request and waits for its outcome.
    ///
    /// # Errors
    /// Fails when nothing was changed, with the reason, or when the daemon is stopping.
    pub(crate) async fn ask(&self, what: T) -> Result<A> {
        let ending = || Error::new("the daemon is stopping");
        let (answer, outcome) = oneshot::channel();
        self.sender.send(Request { what, answer }).map_err(|_ended| ending())?;
        outcome.await.map_err(|_ended| ending())?
    }

    /// Returns the receiving end; `None` on a second call.
    pub(crate) fn receive(&self) -> Option<UnboundedReceiver<Request<T, A>>> {
        self.receiver.borrow_mut().take()
    }
}
