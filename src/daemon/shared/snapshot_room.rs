// SPDX-License-Identifier: Apache-2.0
//! Limits the memory for snapshots that are being sent to plugins: each plugin that does not read
//! its snapshot occupies up to some 4 MiB.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::limits;

/// Bytes of one permit: few, so that a small node's snapshot does not wait for others.
const UNIT: usize = 64 << 10;

/// Memory for snapshots. A plugin that does not answer releases its share after its time-out.
#[derive(Debug)]
pub(crate) struct SnapshotRoom(Semaphore);

impl Default for SnapshotRoom {
    fn default() -> Self {
        Self(Semaphore::new(limits::SNAPSHOTS / UNIT))
    }
}

impl SnapshotRoom {
    /// Waits, in order of arrival, until `bytes` are free, or all of the memory if `bytes` is more.
    pub(crate) async fn take(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let units = (bytes / UNIT + 1).min(limits::SNAPSHOTS / UNIT);
        self.0.acquire_many(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_snapshots_wait_for_memory_and_small_ones_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let room = SnapshotRoom::default();
            let mut taken = Vec::new();
            for _ in 0..15 {
                taken.push(room.take(4 << 20).await.unwrap());
            }
            let soon = std::time::Duration::from_millis(20);
            assert!(tokio::time::timeout(soon, room.take(4 << 20)).await.is_err());
            taken.push(room.take(10_000).await.unwrap());
            taken.clear();
            assert!(
                room.take(usize::MAX).await.is_some(),
                "one that is larger than all has it all"
            );
        });
    }
}
