// SPDX-License-Identifier: Apache-2.0
//! Removed records that `explain` still shows. The latest stay as they are. Older ones resemble
//! each other, so they are compressed together: a few hundred bytes each instead of several KB.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Map;
use tracing::error;

use crate::fnv::fnv64;
use crate::limits;
use crate::packed::PackedLines;

use super::{Container, Pod};

/// A record with an ID; a later record may have the same ID.
pub(super) trait Identified: Clone + Serialize + DeserializeOwned {
    fn id(&self) -> &str;
}

impl Identified for Container {
    fn id(&self) -> &str {
        &self.key.id
    }
}

impl Identified for Pod {
    fn id(&self) -> &str {
        &self.id
    }
}

/// Records as lines of JSON.
#[derive(Debug)]
struct Packed {
    /// The hash of each record's ID.
    ids: Vec<u64>,
    lines: PackedLines,
}

impl Packed {
    fn of<T: Identified>(records: impl Iterator<Item = T>) -> Self {
        let mut ids = Vec::with_capacity(limits::REMEMBERED_TOGETHER);
        let lines = PackedLines::of(records.map(|record| {
            ids.push(hash(record.id()));
            serde_json::to_string(&record).unwrap_or_default() + "\n"
        }));
        Self { ids, lines }
    }

    /// Returns the records whose JSON contains `text`, oldest first.
    fn containing<T: Identified>(&self, text: &str) -> Vec<T> {
        let lines = self.lines.text();
        let matching = lines.lines().filter(|line| line.contains(text));
        let read = |line| match serde_json::from_str(line) {
            Ok(record) => Some(record),
            Err(error) => {
                error!("reading a removed record: {error}");
                None
            }
        };
        matching.filter_map(read).collect()
    }
}

/// Removed records, oldest first.
#[derive(Debug)]
pub(super) struct Remembered<T> {
    packed: VecDeque<Packed>,
    /// The latest records, each with the length of its JSON.
    latest: VecDeque<(T, usize)>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { packed: VecDeque::new(), latest: VecDeque::new() }
    }
}

impl<T: Identified> Remembered<T> {
    pub(super) fn push(&mut self, record: T) {
        let size = size(&record);
        self.make_room(size, (limits::REMEMBERED, limits::REMEMBERED_BYTES));
        self.latest.push_back((record, size));
        if self.latest.len() == 2 * limits::REMEMBERED_TOGETHER {
            let oldest = self.latest.drain(..limits::REMEMBERED_TOGETHER).map(|(record, _)| record);
            self.packed.push_back(Packed::of(oldest));
        }
    }

    /// Removes the oldest records until one more of this size fits the limits. Records that were compressed
    /// together are removed together, so the number may exceed its limit by a part of such a group.
    fn make_room(&mut self, size: usize, (most, bytes): (usize, usize)) {
        let packed = self.packed.iter().map(|packed| (packed.ids.len(), packed.lines.size()));
        let all = packed.chain(self.latest.iter().map(|(_, size)| (1, *size)));
        let (mut count, mut total) =
            all.fold((0, size), |(count, total), (more, size)| (count + more, total + size));
        loop {
            let oldest = self.packed.front().map(|packed| (packed.ids.len(), packed.lines.size()));
            let oldest = oldest.or_else(|| self.latest.front().map(|(_, size)| (1, *size)));
            let Some((records, freed)) = oldest else { return };
            if count - records + 1 < most && total <= bytes {
                return;
            }
            if self.packed.pop_front().is_none() {
                self.latest.pop_front();
            }
            (count, total) = (count - records, total - freed);
        }
    }

    /// Returns the newest record of this ID that `is_meant` accepts.
    pub(super) fn newest(&self, id: &str, is_meant: impl Fn(&T) -> bool) -> Option<Cow<'_, T>> {
        let is_it = |record: &T| record.id() == id && is_meant(record);
        let mut latest = self.latest.iter().rev().map(|(record, _)| record);
        if let Some(found) = latest.find(|record| is_it(record)) {
            return Some(Cow::Borrowed(found));
        }
        let packed = self.packed.iter().rev().filter(|packed| packed.ids.contains(&hash(id)));
        let mut records = packed.flat_map(|packed| packed.containing(id).into_iter().rev());
        records.find(is_it).map(Cow::Owned)
    }

    /// Returns all records that may contain `text` in one of their strings, oldest first; the
    /// latest records are always among them.
    pub(super) fn containing<'s>(
        &'s self,
        text: &'s str,
    ) -> impl DoubleEndedIterator<Item = Cow<'s, T>> {
        let packed = self.packed.iter().flat_map(|packed| packed.containing(text));
        packed.map(Cow::Owned).chain(self.latest.iter().map(|(record, _)| Cow::Borrowed(record)))
    }
}

/// Drops the data that is only needed while the container exists or may be re-created under its ID.
pub(super) fn drop_unexplained(container: &mut Container) {
    (container.message, container.outcome.process_values, container.resources.at_creation) =
        Default::default();
    (container.resources.of_engine, container.call.variables, container.call.global_flags) =
        Default::default();
    (container.call.pid_file, container.outcome.patched, container.pending.deferred) =
        Default::default();
    if container.outcome.repeated.is_empty() {
        container.resources.overlay = Map::new();
    }
    container.outcome.changes.shrink_to_fit();
    container.outcome.skipped.shrink_to_fit();
}

fn hash(id: &str) -> u64 {
    fnv64(id.bytes())
}

/// Returns the length of a record, in bytes.
pub(super) fn size(record: &impl Serialize) -> usize {
    serde_json::to_string(record).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::container;
    use super::*;

    fn ids(remembered: &Remembered<Container>) -> Vec<String> {
        remembered.containing("").map(|one| one.key.id.clone()).collect()
    }

    fn of(ids: impl IntoIterator<Item = String>) -> Remembered<Container> {
        let mut remembered = Remembered::default();
        ids.into_iter().for_each(|id| remembered.push(container(&id)));
        remembered
    }

    #[test]
    fn the_size_of_removed_containers_records_is_limited() {
        let mut few = of(["a", "b", "c"].map(str::to_owned));
        let one = few.latest[0].1;
        few.make_room(one, (9, 4 * one));
        assert_eq!(ids(&few), ["a", "b", "c"], "the next one just fits");
        few.make_room(one + 1, (9, 4 * one));
        assert_eq!(ids(&few), ["b", "c"]);
        few.make_room(one, (2, 4 * one));
        assert_eq!(ids(&few), ["c"]);
        few.make_room(9 * one, (2, 4 * one));
        assert_eq!(ids(&few), [""; 0], "a long one has all the room");
    }

    #[test]
    fn compressed_records_are_found_like_the_latest() {
        let many = of((0..100).map(|number| format!("c{}", number % 50)));
        assert_eq!(many.packed.len(), 5);
        let all = ids(&many);
        assert_eq!((all.len(), &*all[0], &*all[99]), (100, "c0", "c49"));
        for id in ["c0", "c40", "c49"] {
            let found = many.newest(id, |_| true).unwrap();
            assert_eq!(*found, container(id));
        }
        assert!(many.newest("c4", |record| record.process.exit_code == Some(77)).is_none());
        assert!(many.newest("c", |_| true).is_none());
        let c40: Vec<_> = many.containing("c40").filter(|one| one.key.id == "c40").collect();
        assert_eq!(c40.len(), 2);
    }

    #[test]
    fn at_least_the_latest_thousand_are_kept_in_little_memory() {
        let many = of((0..3000).map(|number| format!("c{number}")));
        let all = ids(&many);
        assert!(
            (limits::REMEMBERED..limits::REMEMBERED + limits::REMEMBERED_TOGETHER)
                .contains(&all.len())
        );
        assert_eq!(all.last().unwrap(), "c2999");
        assert!(many.latest.len() < 2 * limits::REMEMBERED_TOGETHER);
    }
}
