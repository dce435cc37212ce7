// SPDX-License-Identifier: Apache-2.0
//! Blocks signals and waits for them together with a descriptor: so a command that must clean up is not
//! interrupted in the middle of a step. As the first process of a PID namespace, it would ignore an
//! unhandled SIGTERM.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{Context, Result};

/// Signals that are blocked in this process.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals for this thread and the threads that it starts.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub(super) fn block(signals: impl IntoIterator<Item = Signal>) -> Result<Self> {
        let signals = SigSet::from_iter(signals);
        signals.thread_block().doing(|| "blocking signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&signals, flags).map(Self).doing(|| "waiting for signals")
    }

    /// Returns the next pending signal, which is then no longer pending.
    pub(super) fn take(&self) -> Option<Signal> {
        let signal = self.0.read_signal().ok().flatten()?;
        i32::try_from(signal.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
    }

    /// Waits for a signal or an event of `other`, at most `within`, without limit if that is `None`. Returns
    /// whether `other` has an event.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub(super) fn wait(
        &self,
        other: Option<(BorrowedFd<'_>, PollFlags)>,
        within: Option<Duration>,
    ) -> Result<bool> {
        let timeout = within.map_or(PollTimeout::NONE, |within| {
            PollTimeout::try_from(within.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        fds.extend(other.map(|(fd, events)| PollFd::new(fd, events)));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(fds.get(1).and_then(PollFd::revents).is_some_and(|events| !events.is_empty()))
    }
}
