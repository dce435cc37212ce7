// SPDX-License-Identifier: Apache-2.0
//! Limits log lines that other processes can cause in any number. For each place in the program,
//! and for each plugin at that place, the first lines of a minute are logged, and one more line
//! has the number of the rest. [`LineLimit`] limits lines by any other kind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::take;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::limits;
use crate::text::counted;

/// The period over which lines are counted.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// Whether a line may be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Line,
    /// The line is suppressed, and counted in a later line.
    HeldBack {
        /// Whether it is the first suppressed line: the caller must then log the count after
        /// [`WINDOW`].
        is_first: bool,
    },
}

/// Counts lines by their kind.
#[derive(Debug)]
pub(crate) struct LineLimit<K>(RefCell<BTreeMap<K, Counted>>);

impl<K> Default for LineLimit<K> {
    fn default() -> Self {
        Self::new()
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

impl<K> LineLimit<K> {
    const fn new() -> Self {
        Self(RefCell::new(BTreeMap::new()))
    }
}

impl<K: Ord> LineLimit<K> {
    /// Counts one line; returns whether it is among the first `most` of its kind within [`WINDOW`].
    pub(crate) fn room(&self, kind: K, most: usize, at: Instant) -> Room {
        let mut all = self.0.borrow_mut();
        // Kinds may contain plugins' names, so old kinds are dropped.
        all.retain(|_, counted| !counted.is_over(at));
        let counted = all.entry(kind).or_insert(Counted { since: at, lines: 0, held_back: 0 });
        if counted.lines < most {
            counted.lines += 1;
            return Room::Line;
        }
        counted.held_back += 1;
        Room::HeldBack { is_first: counted.held_back == 1 }
    }

    fn kinds(&self) -> usize {
        self.0.borrow().len()
    }

    /// Takes the number of suppressed lines, and starts to log this kind again; called once the
    /// minute is over.
    pub(crate) fn take_held_back(&self, kind: &K) -> Option<u64> {
        let counted = self.0.borrow_mut().remove(kind)?;
        (counted.held_back > 0).then_some(counted.held_back)
    }
}

/// The file whose lines are limited elsewhere: the output of plugins.
const BOUNDED: &str = "src/plugin/process.rs";

/// A file and line of the program, and the plugin that the log line is about, if any.
type Kind = (&'static str, u32, String);

/// The lines of the last minute, and the first suppressed line of each kind.
struct Places {
    limit: LineLimit<Kind>,
    held_back: Vec<(Kind, String)>,
}

static PLACES: Mutex<Places> =
    Mutex::new(Places { limit: LineLimit::new(), held_back: Vec::new() });

/// Notified when lines of a kind are suppressed.
static HELD_BACK: Notify = Notify::const_new();

/// The layer that suppresses lines; it never suppresses debug lines.
pub(super) struct FewOfEachPlace;

impl<S: Subscriber> Layer<S> for FewOfEachPlace {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let meta = event.metadata();
        let (Some(file), Some(line)) = (meta.file(), meta.line()) else { return true };
        if *meta.level() > Level::INFO || file.ends_with(BOUNDED) {
            return true;
        }
        let mut said = Said::default();
        event.record(&mut said);
        let mut take_room = |plugin: &str, most| {
            let kind = (file, line, plugin.to_owned());
            let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
            if !plugin.is_empty() && places.limit.kinds() >= limits::LOG_KINDS {
                return true;
            }
            let room = places.limit.room(kind.clone(), most, Instant::now());
            if room == (Room::HeldBack { is_first: true }) {
                places.held_back.push((kind, take(&mut said.message)));
                HELD_BACK.notify_one();
            }
            room == Room::Line
        };
        (said.plugin.is_empty() || take_room(&said.plugin, limits::LOG_LINES_OF_PLUGIN))
            && take_room("", limits::LOG_LINES)
    }
}

#[derive(Default)]
struct Said {
    message: String,
    plugin: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "plugin" => self.plugin = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "plugin" {
            value.clone_into(&mut self.plugin);
        }
    }
}

/// Logs the number of suppressed lines, in one line for each kind and minute. Never ends.
pub(crate) async fn count_held_back() {
    loop {
        HELD_BACK.notified().await;
        tokio::time::sleep(WINDOW).await;
        log_counts();
    }
}

fn log_counts() {
    let counts = {
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let held_back = take(&mut places.held_back).into_iter();
        let counts = held_back.map(|(kind, first)| (places.limit.take_held_back(&kind), first));
        counts.collect::<Vec<_>>()
    };
    for (count, first) in counts {
        let count = usize::try_from(count.unwrap_or_default()).unwrap_or(usize::MAX);
        warn!("{} like this one within a minute: {first}", counted(count, "more line"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn the_first_lines_of_a_minute_are_logged_the_others_counted() {
        let (lines, begun) = (LineLimit::default(), Instant::now());
        let rooms: Vec<Room> = (0..1000).map(|_| lines.room("a", 20, begun)).collect();
        assert_eq!(rooms.iter().filter(|room| **room == Room::Line).count(), 20);
        let firsts = rooms.iter().filter(|room| **room == Room::HeldBack { is_first: true });
        assert_eq!(firsts.count(), 1);
        assert_eq!(lines.room("b", 20, begun), Room::Line, "another kind has lines still");
        // The task that logs the count may run late; until it has run, no line of the kind is
        // logged.
        assert_ne!(lines.room("a", 20, begun + WINDOW * 2), Room::Line);
        assert_eq!(lines.take_held_back(&"a"), Some(981));
        assert_eq!(lines.take_held_back(&"a"), None);
        assert_eq!(lines.room("a", 20, begun + WINDOW * 2), Room::Line);
    }

    #[test]
    fn counts_of_log_lines_are_dropped_after_a_minute() {
        let (lines, begun) = (LineLimit::default(), Instant::now());
        for number in 0..1000 {
            assert_eq!(lines.room(number, 1, begun), Room::Line);
        }
        assert_eq!(lines.room(0, 1, begun + WINDOW), Room::Line);
        assert_eq!(lines.0.borrow().len(), 1);
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Written {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut said = Said::default();
            event.record(&mut said);
            self.0.lock().unwrap().push(said.message);
        }
    }

    #[test]
    fn lines_are_limited_per_place_and_per_plugin_and_counted() {
        let written = Written::default();
        let subscriber = tracing_subscriber::registry().with(written.clone()).with(FewOfEachPlace);
        let lines = || take(&mut *written.0.lock().unwrap());
        tracing::subscriber::with_default(subscriber, || {
            let flood = |plugin: &str| (0..500).for_each(|number| warn!(plugin, "line {number}"));
            flood("10-a");
            assert_eq!(lines().len(), limits::LOG_LINES_OF_PLUGIN);
            // A plugin can invent any number of names, so the number of kinds is limited too.
            (0..100).for_each(|name| flood(&name.to_string()));
            assert_eq!(lines().len(), limits::LOG_LINES - limits::LOG_LINES_OF_PLUGIN);
            (0..500).for_each(|number| tracing::debug!("detail {number}"));
            assert_eq!(lines().len(), 500, "an operator asked for these");
            warn!("another place");
            log_counts();
            let lines = lines();
            assert_eq!(lines[0], "another place");
            assert_eq!(lines[1], "440 more lines like this one within a minute: line 60");
            assert!(lines.iter().any(|line| line.ends_with("minute: line 0")), "{lines:?}");
        });
    }
}
