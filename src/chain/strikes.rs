// SPDX-License-Identifier: Apache-2.0
//! Counts the consecutive requests that a plugin did not answer in time, and decides whether to wait for it any longer.
//! This matters only to plugins that stay connected: by default the first time-out disconnects (`plugin/policy.rs`).

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Consecutive time-outs after which the daemon no longer waits for a connected plugin, until the plugin sends
/// something or [`RETRY_AFTER`] has passed. NRI: the reference waits its full time-out each time (BUG-48).
pub(super) const HANGING_STRIKES: u32 = 3;

/// Time for which a hanging plugin is not called. Then it is tried again, because a plugin that
/// lost a request may never send another frame by itself.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The consecutive time-outs of one plugin.
#[derive(Debug, Default)]
pub(super) struct Strikes {
    count: Cell<u32>,
    /// The number of frames that the plugin had sent at the last time-out.
    received: Cell<usize>,
    at: Cell<Option<Instant>>,
}

impl Strikes {
    /// Returns the number of time-outs.
    pub(super) fn count(&self) -> u32 {
        self.count.get()
    }

    /// Adds a time-out; `received` is the number of frames that the plugin has sent so far.
    pub(super) fn add(&self, received: usize) {
        self.resume(self.count.get() + 1, received);
    }

    /// Resets the count, because the plugin answered.
    pub(super) fn clear(&self) {
        self.count.set(0);
    }

    /// Continues from this count.
    pub(super) fn resume(&self, count: u32, received: usize) {
        self.count.set(count);
        self.received.set(received);
        self.at.set((count > 0).then(Instant::now));
    }

    /// Whether there are [`HANGING_STRIKES`] time-outs or more, the last of them within `within`.
    pub(super) fn are_too_many(&self, within: Duration) -> bool {
        let is_recent = self.at.get().is_some_and(|at| at.elapsed() < within);
        self.count.get() >= HANGING_STRIKES && is_recent
    }

    /// Whether there are [`HANGING_STRIKES`] time-outs or more. False again once the plugin sends a
    /// frame or [`RETRY_AFTER`] has passed.
    pub(super) fn are_hopeless(&self, received: usize) -> bool {
        let since = self.at.get().map_or(Duration::ZERO, |at| at.elapsed());
        is_given_up(self.count.get(), received == self.received.get(), since)
    }
}

fn is_given_up(strikes: u32, is_silent: bool, since: Duration) -> bool {
    strikes >= HANGING_STRIKES && is_silent && since < RETRY_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_three_time_outs_a_plugin_is_left_out_for_a_minute() {
        let short = Duration::from_secs(1);
        assert!(is_given_up(3, true, short) && is_given_up(9, true, short));
        assert!(!is_given_up(2, true, short), "two may be bad luck");
        assert!(!is_given_up(3, false, short), "a frame came");
        assert!(!is_given_up(3, true, RETRY_AFTER), "it is tried again");
    }
}
