// SPDX-License-Identifier: Apache-2.0
//! Provides a kernel timer for checks every few seconds as long as the daemon runs. It wakes an idle daemon once;
//! the event loop's own timers wake it two or three times. Reference: timerfd_create(2).

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

use super::pidfd;

/// A task's timer; its descriptor serves the task's whole life. `None` if no descriptor was left.
#[derive(Debug)]
pub(crate) struct Timer(Option<OwnedFd>);

impl Timer {
    pub(crate) fn new() -> Self {
        Self(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).ok())
    }

    /// Sleeps for this time. An expired timer is readable, like the descriptor of a process that
    /// has exited.
    pub(crate) async fn sleep(&self, length: Duration) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: length.as_secs().cast_signed(),
            tv_nsec: length.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: zero, it_value: value };
        match &self.0 {
            Some(timer) if timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).is_ok() => {
                pidfd::wait_until_exited(timer).await;
            }
            Some(_) | None => tokio::time::sleep(length).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timer_expires_after_its_time_and_again() {
        let (timer, length) = (Timer::new(), Duration::from_millis(50));
        for _time in 0..2 {
            let begun = std::time::Instant::now();
            timer.sleep(length).await;
            assert!(begun.elapsed() >= length);
        }
    }
}
