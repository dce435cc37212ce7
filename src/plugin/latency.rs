// SPDX-License-Identifier: Apache-2.0
//! Counts a plugin's response times within about the last hour. This module reads no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The length of one slot, and the number of slots in an hour; one more is kept for new responses.
const SLOT: Duration = Duration::from_secs(600);
const SLOTS: u32 = 6;

/// Steps of response times within each doubling; a quantile is at most 19 % too long.
const STEPS: f64 = 4.0;

/// Response times within about the last hour.
#[derive(Debug, Default)]
pub struct AnswerTimes {
    /// The slots, oldest first.
    slots: VecDeque<Slot>,
}

/// The responses within one slot of [`SLOT`].
#[derive(Debug)]
struct Slot {
    begun: Instant,
    /// The number of requests by step of their response time, or of the time until they failed.
    counts: BTreeMap<u8, u32>,
    /// Responses that took more than half of their limit, which the steps are too coarse to show.
    above_half: u32,
}

impl Slot {
    /// Whether the 99th percentile is above half of the limit.
    fn is_slow(&self) -> bool {
        let all = total(&self.counts);
        u64::from(self.above_half) > all - rank(all, 99)
    }
}

/// A plugin's response times, compared with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of the responses took at most this time.
    pub p50: Duration,
    /// 99 of 100 responses took at most this time.
    pub p99: Duration,
    /// Responses within about the last hour, and requests without one.
    pub count: u32,
    /// Whether the 99th percentile exceeded half of the limit in each [`SLOT`] of the last hour.
    pub is_busy: bool,
}

impl AnswerTimes {
    /// Records that a response took this long under this limit; without a response, `took` is the time
    /// until the time-out or the disconnection.
    pub fn record(&mut self, took: Duration, limit: Duration, now: Instant) {
        self.drop_old(now);
        if self.slots.back().is_none_or(|slot| now.duration_since(slot.begun) >= SLOT) {
            self.slots.push_back(Slot { begun: now, counts: BTreeMap::new(), above_half: 0 });
        }
        if let Some(slot) = self.slots.back_mut() {
            let count = slot.counts.entry(step_of(took)).or_default();
            *count = count.saturating_add(1);
            slot.above_half = slot.above_half.saturating_add(u32::from(took > limit / 2));
        }
    }

    /// Returns the quantiles of the last 60 to 70 minutes; `None` if these have no response.
    pub fn quantiles(&mut self, now: Instant) -> Option<Quantiles> {
        self.drop_old(now);
        let mut all = BTreeMap::new();
        for (step, count) in self.slots.iter().flat_map(|slot| &slot.counts) {
            let sum: &mut u32 = all.entry(*step).or_default();
            *sum = sum.saturating_add(*count);
        }
        let is_whole = self.slots.len() >= usize::try_from(SLOTS).unwrap_or(usize::MAX);
        let is_busy = is_whole && self.slots.iter().all(Slot::is_slow);
        Some(Quantiles {
            p50: quantile(&all, 50)?,
            p99: quantile(&all, 99)?,
            count: all.values().fold(0, |sum, count| sum.saturating_add(*count)),
            is_busy,
        })
    }

    fn drop_old(&mut self, now: Instant) {
        let kept = SLOT * (SLOTS + 1);
        self.slots.retain(|slot| now.saturating_duration_since(slot.begun) < kept);
    }
}

fn total(counts: &BTreeMap<u8, u32>) -> u64 {
    counts.values().map(|count| u64::from(*count)).sum()
}

/// Returns the rank (by length) of the response that this percentage of responses does not exceed.
fn rank(all: u64, percent: u64) -> u64 {
    (all * percent).div_ceil(100)
}

/// Returns the time that this percentage of the responses did not exceed.
fn quantile(counts: &BTreeMap<u8, u32>, percent: u64) -> Option<Duration> {
    let wanted = rank(total(counts), percent);
    let mut seen = 0;
    let found = counts.iter().find(|(_, count)| {
        seen += u64::from(**count);
        seen >= wanted
    });
    found.map(|(step, _)| time_of(*step))
}

/// Returns the step of a duration; the first step is a microsecond.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn step_of(took: Duration) -> u8 {
    let micros = took.as_secs_f64() * 1e6;
    (micros.max(1.0).log2() * STEPS).ceil().min(f64::from(u8::MAX)) as u8
}

/// Returns the longest duration of a step.
fn time_of(step: u8) -> Duration {
    Duration::from_secs_f64((f64::from(step) / STEPS).exp2() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    /// Records one response in each of these minutes.
    fn minutes(times: &mut AnswerTimes, begun: Instant, minutes: std::ops::Range<u32>, took: u64) {
        for minute in minutes {
            let at = begun + Duration::from_secs(60) * minute;
            times.record(Duration::from_millis(took), LIMIT, at);
        }
    }

    #[test]
    fn quantiles_are_close_to_the_times_of_the_last_hour() {
        let (mut times, begun) = (AnswerTimes::default(), Instant::now());
        assert_eq!(times.quantiles(begun), None);
        for millis in 1..=1000 {
            times.record(Duration::from_millis(millis), LIMIT, begun);
        }
        let found = times.quantiles(begun).unwrap();
        assert!(found.p50 >= Duration::from_millis(500) && found.p50 < Duration::from_millis(600));
        assert!(found.p99 >= Duration::from_millis(990) && found.p99 < Duration::from_millis(1190));
        assert_eq!((found.count, found.is_busy), (1000, false));
        assert_eq!(times.quantiles(begun + SLOT * 7), None, "an hour later");
    }

    #[test]
    fn a_plugin_is_busy_only_after_an_hour_above_half_of_its_limit() {
        let begun = Instant::now();
        let at = |minute: u32| begun + Duration::from_secs(60) * minute;
        let is_busy = |times: &mut AnswerTimes, minute| {
            times.quantiles(at(minute)).is_some_and(|found| found.is_busy)
        };
        let mut times = AnswerTimes::default();
        minutes(&mut times, begun, 0..49, 1500);
        assert!(!is_busy(&mut times, 49), "not yet for an hour");
        minutes(&mut times, begun, 49..59, 1500);
        assert!(is_busy(&mut times, 59));
        for (took, wanted) in [(900, false), (1000, false), (1001, true), (1100, true)] {
            let mut close = AnswerTimes::default();
            minutes(&mut close, begun, 0..60, took);
            assert_eq!(is_busy(&mut close, 59), wanted, "{took} of 2000 ms");
        }
        minutes(&mut times, begun, 60..71, 20);
        assert!(!is_busy(&mut times, 71), "it is fast again");
        let mut pausing = AnswerTimes::default();
        minutes(&mut pausing, begun, 0..30, 1500);
        minutes(&mut pausing, begun, 50..59, 1500);
        assert!(!is_busy(&mut pausing, 59), "it was not asked in between");
    }

    #[test]
    fn a_histogram_step_exceeds_its_time_by_at_most_a_fifth() {
        for micros in [0, 1, 2, 999, 1_000, 123_456, 2_000_000, 3_600_000_000, u64::MAX] {
            let took = Duration::from_micros(micros);
            let shown = time_of(step_of(took));
            let is_close = shown <= took.mul_f64(1.2) || micros <= 1 || step_of(took) == u8::MAX;
            assert!(is_close && (shown >= took.mul_f64(0.999) || step_of(took) == u8::MAX));
        }
    }
}
