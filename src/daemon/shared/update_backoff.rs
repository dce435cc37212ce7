// SPDX-License-Identifier: Apache-2.0
//! Pauses updates that fail repeatedly, by plugin and container, because a plugin may repeat a failed
//! update at once. This module applies no update.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

/// The first pause, which each further failure doubles, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Consecutive failures of one plugin's updates of one container.
#[derive(Debug, Clone, Copy)]
struct Failing {
    count: u32,
    until: Instant,
}

/// Repeatedly failing updates.
#[derive(Debug, Default)]
pub(crate) struct UpdateBackoff(RefCell<HashMap<(String, String), Failing>>);

impl UpdateBackoff {
    /// Returns the number of failures and the remaining pause for updates of this container by this plugin;
    /// `None` if no pause is in progress.
    pub(crate) fn pause(&self, plugin: &str, container: &str) -> Option<(u32, Duration)> {
        let failing = self.0.borrow();
        let known = failing.get(&(plugin.to_owned(), container.to_owned()))?;
        let left = known.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some((known.count, left))
    }

    /// Records the result of an update that was tried.
    pub(crate) fn note(&self, plugin: &str, container: &str, is_failed: bool) {
        let key = (plugin.to_owned(), container.to_owned());
        let mut failing = self.0.borrow_mut();
        if !is_failed {
            failing.remove(&key);
            return;
        }
        let now = Instant::now();
        if failing.len() >= limits::FAILING_UPDATES && !failing.contains_key(&key) {
            failing.retain(|_, known| known.until + LONGEST_PAUSE > now);
            if failing.len() >= limits::FAILING_UPDATES {
                return;
            }
        }
        let known = failing.entry(key).or_insert(Failing { count: 0, until: now });
        known.count = known.count.saturating_add(1);
        known.until = now + pause_after(known.count);
    }
}

/// Returns the pause after this many consecutive failures.
fn pause_after(failures: u32) -> Duration {
    match failures.checked_sub(limits::FREE_FAILURES) {
        None | Some(0) => Duration::ZERO,
        Some(more) => FIRST_PAUSE
            .saturating_mul(1_u32.checked_shl(more - 1).unwrap_or(u32::MAX))
            .min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_at_the_fourth_failure_and_have_a_bound() {
        let pauses = [1, 3, 4, 5, 10, 11, 60, u32::MAX].map(|count| pause_after(count).as_millis());
        assert_eq!(pauses, [0, 0, 100, 200, 6400, 10_000, 10_000, 10_000]);
    }

    #[test]
    fn failures_count_by_plugin_and_container_until_a_success() {
        let backoff = UpdateBackoff::default();
        (0..5).for_each(|_| backoff.note("10-a", "c1", true));
        assert!(backoff.pause("10-a", "c1").is_some_and(|(count, _)| count == 5));
        assert!(backoff.pause("10-a", "c2").is_none() && backoff.pause("10-b", "c1").is_none());
        backoff.note("10-a", "c1", false);
        assert_eq!(backoff.pause("10-a", "c1"), None);
    }

    #[test]
    fn the_number_of_remembered_failures_is_bounded() {
        let backoff = UpdateBackoff::default();
        (0..2 * limits::FAILING_UPDATES).for_each(|id| backoff.note("10-a", &id.to_string(), true));
        assert_eq!(backoff.0.borrow().len(), limits::FAILING_UPDATES);
    }
}
