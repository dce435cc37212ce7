// SPDX-License-Identifier: Apache-2.0
//! Receives the signals that end the daemon, make it reload its configuration, or make it execute
//! the program at its path.

use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::ends::Ends;
use crate::error::{Context, Result};

/// Every signal that the daemon waits for.
const AWAITED: [Number; 4] = [Number::SIGTERM, Number::SIGINT, Number::SIGHUP, Number::SIGUSR2];

/// The awaited signals, once handlers are registered; before that these signals would end the process.
#[derive(Debug)]
pub(crate) struct Signals {
    /// SIGHUP.
    pub(crate) hangups: Signal,
    /// SIGUSR2.
    pub(crate) reexecs: Signal,
    /// SIGTERM and SIGINT.
    pub(crate) ends: Ends,
}

impl Signals {
    /// Starts waiting for all signals; signals that arrived since [`block`] are delivered at once.
    ///
    /// # Errors
    /// Fails when the kernel refuses to register them.
    pub(crate) fn new() -> Result<Self> {
        let wait = |kind| signal(kind).doing(|| "waiting for signals");
        let signals = Self {
            hangups: wait(SignalKind::hangup())?,
            reexecs: wait(SignalKind::user_defined2())?,
            ends: Ends::new()?,
        };
        awaited().thread_unblock().doing(|| "waiting for signals")?;
        Ok(signals)
    }
}

fn awaited() -> SigSet {
    AWAITED.into_iter().collect()
}

/// Signals that stay blocked for the next program; a drop delivers them to this program, because
/// the next was not executed.
#[derive(Debug)]
pub(crate) struct BlockedSignals(());

/// Blocks the awaited signals, so that the next program receives them: this program's handlers do
/// not survive execve(2).
///
/// # Errors
/// Fails when the kernel refuses.
pub(crate) fn block() -> Result<BlockedSignals> {
    awaited().thread_block().doing(|| "blocking signals")?;
    Ok(BlockedSignals(()))
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let _delivered = awaited().thread_unblock();
    }
}
