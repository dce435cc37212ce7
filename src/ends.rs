// SPDX-License-Identifier: Apache-2.0
//! The signals that end the daemon and a replay.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Context, Result};

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    /// Replaces the default actions of both signals, so that [`wait`](Self::wait) receives them.
    ///
    /// # Errors
    /// Fails when the kernel refuses to register them.
    pub(crate) fn new() -> Result<Self> {
        let wait = |kind| signal(kind).doing(|| "waiting for signals");
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: wait(terminate)?, interrupt: wait(interrupt)? })
    }

    /// Waits for the next signal.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
