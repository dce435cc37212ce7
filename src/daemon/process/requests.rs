// SPDX-License-Identifier: Apache-2.0
//! What an operator asks of the daemon as a whole. The connection that receives a request does not
//! know what carries it out: it waits for the answer.

use std::cell::RefCell;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A request to read the configuration again.
#[derive(Debug)]
pub(crate) struct ReloadRequest {
    /// Only say what would change.
    pub(crate) is_dry: bool,
    pub(crate) answer: oneshot::Sender<Result<Value>>,
}

/// The requests for a reload; the receiving end is taken once.
#[derive(Debug)]
pub(crate) struct ReloadRequests {
    sender: UnboundedSender<ReloadRequest>,
    receiver: RefCell<Option<UnboundedReceiver<ReloadRequest>>>,
}

impl Default for ReloadRequests {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: RefCell::new(Some(receiver)) }
    }
}

impl ReloadRequests {
    /// Asks for a reload and waits for its outcome.
    ///
    /// # Errors
    /// Fails when nothing was changed, and says why.
    pub(crate) async fn ask(&self, is_dry: bool) -> Result<Value> {
        let ending = || Error::new("the daemon is stopping");
        let (answer, outcome) = oneshot::channel();
        let request = ReloadRequest { is_dry, answer };
        self.sender.send(request).map_err(|_ended| ending())?;
        outcome.await.map_err(|_ended| ending())?
    }

    /// The receiving end; none the second time.
    pub(crate) fn receive(&self) -> Option<UnboundedReceiver<ReloadRequest>> {
        self.receiver.borrow_mut().take()
    }
}
