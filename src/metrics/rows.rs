// SPDX-License-Identifier: Apache-2.0
//! The rows of one metric by their labels. Unlike a family of the client library, they can be
//! listed, and dropped by their first label.

use std::collections::BTreeMap;
use std::fmt::{Debug, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::Labels;

/// The rows of a metric with any number of labels.
pub(super) trait AnyRows {
    /// Registers the metric; the registry shares the rows.
    fn register(&self, registry: &mut Registry, name: &str, help: &str);

    /// Drops the rows whose first label `keeps` rejects.
    fn retain(&self, keeps: &dyn Fn(&str) -> bool);
}

/// Rows in the order of their labels. A clone shares the rows.
#[derive(Debug)]
pub(super) struct Rows<const COUNT: usize, M>(Arc<Mutex<BTreeMap<Labels<COUNT>, M>>>);

impl<const COUNT: usize, M> Default for Rows<COUNT, M> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<const COUNT: usize, M> Clone for Rows<COUNT, M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<const COUNT: usize, M> Rows<COUNT, M> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Labels<COUNT>, M>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const COUNT: usize, M> AnyRows for Rows<COUNT, M>
where
    M: EncodeMetric + TypedMetric + Debug + Send + Sync + 'static,
{
    fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.clone());
    }

    fn retain(&self, keeps: &dyn Fn(&str) -> bool) {
        self.lock().retain(|labels, _| labels.first().is_none_or(|(_, value)| keeps(value)));
    }
}

impl<const COUNT: usize> Rows<COUNT, Counter> {
    /// Sums the rows that [`Self::with`] returns.
    pub(super) fn sum(&self, wanted: [&str; COUNT]) -> u64 {
        self.with(wanted).iter().map(|(_, counter)| counter.get()).sum()
    }
}

impl<const COUNT: usize, M: Clone + Default> Rows<COUNT, M> {
    /// Returns the rows with these values of labels; an empty value matches any.
    pub(super) fn with(&self, wanted: [&str; COUNT]) -> Vec<(Labels<COUNT>, M)> {
        let has = |labels: &Labels<COUNT>| {
            labels.iter().zip(wanted).all(|((_, value), it)| it.is_empty() || value == it)
        };
        let rows = self.lock();
        let rows = rows.iter().filter(|(labels, _)| has(labels));
        rows.map(|(labels, row)| (labels.clone(), row.clone())).collect()
    }

    /// Returns the row with these labels; a new one counts from zero.
    pub(super) fn get_or_create(&self, labels: &Labels<COUNT>) -> M {
        self.lock().entry(labels.clone()).or_default().clone()
    }
}

impl<const COUNT: usize, M: EncodeMetric + TypedMetric> EncodeMetric for Rows<COUNT, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result {
        for (labels, metric) in self.lock().iter() {
            metric.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
