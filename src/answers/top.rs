// SPDX-License-Identifier: Apache-2.0
//! The data for `top`: the current state, and counts since the daemon's start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{PluginRow, PodRow, Status};

/// The daemon at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TopAnswer {
    pub(crate) status: Status,
    pub(crate) plugins: Vec<PluginRow>,
    /// The number of containers in each state.
    pub(crate) containers: BTreeMap<String, usize>,
    pub(crate) requests: Vec<RequestCounts>,
    /// The counts of the plugins, in the order of `plugins`.
    pub(crate) calls: Vec<PluginCounts>,
    pub(crate) pods: Vec<PodRow>,
}

/// The runtime commands of one verb.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct RequestCounts {
    pub(crate) verb: String,
    pub(crate) proceeded: u64,
    pub(crate) refused: u64,
    pub(crate) bypassed: u64,
    /// The times for which the daemon held these commands.
    pub(crate) held: Observations,
}

/// The requests to one plugin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PluginCounts {
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) skips: u64,
    pub(crate) refusals: u64,
    /// The plugin's response times.
    pub(crate) latency: Observations,
    /// The times for which requests waited for the plugin's turn.
    pub(crate) queue: Observations,
}

/// Durations in seconds, counted in buckets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Observations {
    pub(crate) sum: f64,
    /// Upper bounds, each with the number of durations above the previous bound and up to this one;
    /// the last bound is `f64::MAX`.
    pub(crate) buckets: Vec<(f64, u64)>,
}

impl Observations {
    /// Creates empty observations with these bounds.
    pub(crate) fn within(bounds: &[f64]) -> Self {
        let buckets = bounds.iter().chain([&f64::MAX]).map(|bound| (*bound, 0));
        Self { sum: 0.0, buckets: buckets.collect() }
    }

    pub(crate) fn add(&mut self, seconds: f64) {
        self.sum += seconds;
        let bucket = self.buckets.iter_mut().find(|(bound, _)| seconds <= *bound);
        bucket.into_iter().for_each(|(_, count)| *count += 1);
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Adds the durations of `other`.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.sum += other.sum;
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(own, its)| own.1 += its.1);
        self
    }

    /// Returns the durations that were added since the earlier sample `before`; all of them if `before` has
    /// more durations, because the daemon has then restarted.
    pub(crate) fn since(&self, before: &Self) -> Self {
        if self.count() < before.count() {
            return self.clone();
        }
        let mut grown = self.clone();
        grown.sum -= before.sum;
        let both = grown.buckets.iter_mut().zip(&before.buckets);
        both.for_each(|(now, was)| now.1 = now.1.saturating_sub(was.1));
        grown
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum / count as f64)
    }

    /// Computes a quantile as PromQL's `histogram_quantile`: linear within a bucket, and the last
    /// finite bound for higher values. `None` without durations.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = quantile * self.count() as f64;
        let (mut below, mut counted) = (0.0, 0.0);
        for (bound, count) in self.buckets.iter().filter(|_| rank > 0.0) {
            let count = *count as f64;
            if counted + count >= rank {
                let is_last = *bound == f64::MAX;
                return Some(if is_last {
                    below
                } else {
                    below + (bound - below) * (rank - counted) / count
                });
            }
            (below, counted) = (*bound, counted + count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(buckets: &[(f64, u64)]) -> Observations {
        Observations { sum: 0.0, buckets: buckets.to_vec() }
    }

    #[test]
    fn durations_are_counted_between_two_samples() {
        let mut before = Observations::within(&[0.005, 0.01]);
        (0..4).for_each(|_| before.add(0.001));
        let mut now = before.clone();
        (0..10).for_each(|_| now.add(0.002));
        let seen = now.since(&before);
        assert_eq!(seen.count(), 10);
        assert!(seen.mean().is_some_and(|mean| (mean - 0.002).abs() < 1e-9), "{seen:?}");
        assert!(seen.quantile(0.99).is_some_and(|p99| (p99 - 0.00495).abs() < 1e-9), "{seen:?}");
        let none = now.since(&now);
        assert_eq!((none.mean(), none.quantile(0.99)), (None, None));
        assert_eq!(before.since(&now), before, "another daemon counts from zero");
        assert_eq!(before.clone().and(&before).count(), 8);
    }

    #[test]
    fn a_quantile_above_all_bounds_is_the_last_bound() {
        assert_eq!(of(&[(0.1, 0), (f64::MAX, 3)]).quantile(0.99), Some(0.1));
        assert_eq!(of(&[]).quantile(0.99), None);
        let mut late = Observations::within(&[0.1]);
        late.add(60.0);
        assert_eq!(late.buckets, [(0.1, 0), (f64::MAX, 1)]);
    }
}
