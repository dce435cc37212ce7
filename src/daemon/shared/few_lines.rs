// SPDX-License-Identifier: Apache-2.0
//! Lines that others can cause in any number: a few within a minute have one, and one more line counts
//! the rest.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::limits;

/// The time in which lines are counted.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// Whether there is room for a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Line,
    /// It is one of those that a later line counts.
    HeldBack {
        /// The first one: that later line is to be written once [`WINDOW`] is over.
        is_first: bool,
    },
}

/// Counts lines by their kind.
#[derive(Debug)]
pub(crate) struct LineLimit<K>(RefCell<BTreeMap<K, Counted>>);

impl<K> Default for LineLimit<K> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

#[derive(Debug)]
struct Counted {
    since: Instant,
    lines: usize,
    held_back: u64,
}

impl Counted {
    fn is_over(&self, at: Instant) -> bool {
        self.held_back == 0 && at.saturating_duration_since(self.since) >= WINDOW
    }
}

impl<K: Ord> LineLimit<K> {
    /// Counts one; whether it is among the first `most` of its kind.
    pub(crate) fn room(&self, kind: K, most: usize, at: Instant) -> Room {
        let mut all = self.0.borrow_mut();
        // Kinds may have the names of plugins: those of long ago are dropped.
        all.retain(|_, counted| !counted.is_over(at));
        let counted = all.entry(kind).or_insert(Counted { since: at, lines: 0, held_back: 0 });
        if counted.lines < most {
            counted.lines += 1;
            return Room::Line;
        }
        counted.held_back += 1;
        Room::HeldBack { is_first: counted.held_back == 1 }
    }

    /// How many had none, once it is time: the next one has a line again.
    pub(crate) fn take_held_back(&self, kind: &K) -> Option<u64> {
        let counted = self.0.borrow_mut().remove(kind)?;
        (counted.held_back > 0).then_some(counted.held_back)
    }
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FewOf {
    /// accept(2) failed.
    Unaccepted,
    /// An update that a plugin requested.
    Update,
    /// An eviction that a plugin requested.
    Eviction,
    /// A request that a rule in audit mode would refuse.
    WouldRefuse,
}

impl FewOf {
    /// What happened to the others, in one line about `whose`.
    fn more(self, whose: &str, count: u64) -> String {
        let what = match self {
            Self::Unaccepted => "connections could not be accepted",
            Self::Update => "updates failed",
            Self::Eviction => "evictions failed",
            Self::WouldRefuse => "requests would be refused by rules in audit mode",
        };
        format!("{whose}: {count} more {what} within a minute")
    }
}

/// The lines about what plugins request, and about listeners, each by its name.
#[derive(Debug, Clone, Default)]
pub(crate) struct FewLines(Rc<LineLimit<(FewOf, String)>>);

impl FewLines {
    /// Whether this one has a line. The first one that has none has the rest counted in a line later.
    pub(crate) fn has_room(&self, of: FewOf, whose: &str) -> bool {
        let kind = (of, whose.to_owned());
        let room = self.0.room(kind.clone(), limits::LISTED, Instant::now());
        if room == (Room::HeldBack { is_first: true }) {
            let lines = Rc::clone(&self.0);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(WINDOW).await;
                if let Some(count) = lines.take_held_back(&kind) {
                    warn!("{}", of.more(&kind.1, count));
                }
            });
        }
        room == Room::Line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_minute_have_lines_and_the_others_a_number() {
        let (lines, begun) = (LineLimit::default(), Instant::now());
        let rooms: Vec<Room> = (0..1000).map(|_| lines.room("a", 20, begun)).collect();
        assert_eq!(rooms.iter().filter(|room| **room == Room::Line).count(), 20);
        let firsts = rooms.iter().filter(|room| **room == Room::HeldBack { is_first: true });
        assert_eq!(firsts.count(), 1);
        assert_eq!(lines.room("b", 20, begun), Room::Line, "another kind has lines still");
        // The task that writes the number may run late: until then none has a line.
        assert_ne!(lines.room("a", 20, begun + WINDOW * 2), Room::Line);
        assert_eq!(lines.take_held_back(&"a"), Some(981));
        assert_eq!(lines.take_held_back(&"a"), None);
        assert_eq!(lines.room("a", 20, begun + WINDOW * 2), Room::Line);
    }

    #[test]
    fn kinds_of_a_minute_ago_are_forgotten() {
        let (lines, begun) = (LineLimit::default(), Instant::now());
        for number in 0..1000 {
            assert_eq!(lines.room(number, 1, begun), Room::Line);
        }
        assert_eq!(lines.room(0, 1, begun + WINDOW), Room::Line);
        assert_eq!(lines.0.borrow().len(), 1);
    }

    #[test]
    fn lines_of_one_plugin_take_none_from_another_and_the_rest_is_counted() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let few = FewLines::default();
            let lines = (0..100).filter(|_| few.has_room(FewOf::Update, "10-a")).count();
            assert_eq!(lines, limits::LISTED);
            assert!(few.has_room(FewOf::Update, "10-b") && few.has_room(FewOf::Eviction, "10-a"));
            let kind = (FewOf::Update, "10-a".to_owned());
            let line = few.0.take_held_back(&kind).map(|count| kind.0.more(&kind.1, count));
            assert_eq!(line.as_deref(), Some("10-a: 80 more updates failed within a minute"));
        });
    }
}
