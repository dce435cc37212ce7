// SPDX-License-Identifier: Apache-2.0
//! Counts the evictions of the last minute.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The period over which evictions are counted.
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct EvictionRate(RefCell<VecDeque<Instant>>);

impl EvictionRate {
    /// Counts one more eviction and returns true, unless that exceeds the limit per minute.
    pub(crate) fn admit(&self, limit: u32) -> bool {
        let mut evicted = self.0.borrow_mut();
        evicted.retain(|at| at.elapsed() < WINDOW);
        let is_admitted = evicted.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        if is_admitted {
            evicted.push_back(Instant::now());
        }
        is_admitted
    }
}
