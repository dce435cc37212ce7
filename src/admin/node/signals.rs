// SPDX-License-Identifier: Apache-2.0
//! SIGTERM and SIGINT as something to wait for: the first process of a pod would not even be ended
//! by them. Nothing is interrupted in the middle of a step.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{Context, Result};

/// The signals, blocked in this process.
#[derive(Debug)]
pub(super) struct Signals {
    fd: SignalFd,
    came: Cell<bool>,
}

impl Signals {
    /// Blocks them for this thread and those that it starts.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub(super) fn block() -> Result<Self> {
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        set.thread_block().doing(|| "blocking signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&set, flags).doing(|| "waiting for signals")?;
        Ok(Self { fd, came: Cell::new(false) })
    }

    /// Whether one came.
    pub(super) fn came(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Forgets the one that came: the next is another request.
    pub(super) fn forget(&self) {
        self.came.set(false);
    }

    /// Waits that long, or until one comes; whether one came.
    pub(super) fn wait(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while !self.came.get() {
            if let Ok(Some(_signal)) = self.fd.read_signal() {
                self.came.set(true);
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let _interrupted =
                poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout);
        }
        self.came.get()
    }
}
