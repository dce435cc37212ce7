// SPDX-License-Identifier: Apache-2.0
//! A kernel timer for what is looked at every few seconds as long as the daemon runs. It wakes an idle daemon once; the
//! event loop's own timers wake it two or three times. Reference: timerfd_create(2).

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::pidfd;

/// Sleeps for this time; an expired timer is readable, as the descriptor of a process that has exited.
pub(crate) async fn sleep(length: Duration) {
    match started(length) {
        Ok(timer) => pidfd::ended(&timer).await,
        Err(_shortage) => tokio::time::sleep(length).await,
    }
}

fn started(length: Duration) -> nix::Result<OwnedFd> {
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
    let once = Expiration::OneShot(TimeSpec::from_duration(length));
    timer.set(once, TimerSetTimeFlags::empty())?;
    Ok(timer.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timer_expires_after_its_time() {
        let (begun, length) = (std::time::Instant::now(), Duration::from_millis(50));
        sleep(length).await;
        assert!(begun.elapsed() >= length);
    }
}
