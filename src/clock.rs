// SPDX-License-Identifier: Apache-2.0
//! The time of day, as records and messages store it, and the monotonic clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the Unix time in nanoseconds.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the monotonic clock in nanoseconds; all processes of this host share it until a reboot.
pub(crate) fn monotonic() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let now = now.map(std::time::Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
