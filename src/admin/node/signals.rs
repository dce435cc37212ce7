// SPDX-License-Identifier: Apache-2.0
//! SIGTERM and SIGINT, which end the pod. A signal that arrived stays recorded until [`EndSignals::forget`].

use std::cell::Cell;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::admin::signals::Signals;
use crate::error::Result;

/// The two signals, and whether one of them arrived.
#[derive(Debug)]
pub(super) struct EndSignals {
    signals: Signals,
    came: Cell<bool>,
}

impl EndSignals {
    /// Blocks both signals for this thread and the threads that it starts.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub(super) fn block() -> Result<Self> {
        let signals = Signals::block([Signal::SIGTERM, Signal::SIGINT])?;
        Ok(Self { signals, came: Cell::new(false) })
    }

    /// Whether a signal has arrived since the last [`Self::forget`].
    pub(super) fn came(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Clears the recorded signal, so that [`Self::came`] is true again only after another one.
    pub(super) fn forget(&self) {
        self.came.set(false);
    }

    /// Waits for `within` or a signal; returns whether one has arrived since the last [`Self::forget`].
    pub(super) fn wait(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while !self.came.get() {
            if self.signals.take().is_some() {
                self.came.set(true);
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let _or_look_again = self.signals.wait(None, Some(left));
        }
        self.came.get()
    }
}
