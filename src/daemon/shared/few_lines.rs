// SPDX-License-Identifier: Apache-2.0
//! Limits log lines about events that a plugin or a listener can cause in any number: a few lines a minute
//! for each kind of event and plugin or listener, and one more line with the number of the suppressed ones.

use std::rc::Rc;

use tokio::time::Instant;
use tracing::warn;

use crate::limits;
use crate::log::{LineLimit, Room, WINDOW};
use crate::text::counted;

/// The kind of event that a line is about.
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
    /// A value that differs from the one that its owner set.
    Drift,
}

impl FewOf {
    /// Returns the line about `count` suppressed events; it begins with the plugin or listener.
    fn more(self, name: &str, count: u64) -> String {
        let (noun, what) = match self {
            Self::Unaccepted => ("more connection", "could not be accepted"),
            Self::Update => ("more update", "failed"),
            Self::Eviction => ("more eviction", "failed"),
            Self::WouldRefuse => ("more request", "would be refused by rules in audit mode"),
            Self::Drift => ("more value", "differed from what was set"),
        };
        let count = counted(usize::try_from(count).unwrap_or(usize::MAX), noun);
        format!("{name}: {count} {what} within a minute")
    }
}

/// Limits the lines about each plugin's requests and about each listener.
#[derive(Debug, Clone, Default)]
pub(crate) struct FewLines(Rc<LineLimit<(FewOf, String)>>);

impl FewLines {
    /// Counts an event, and returns whether to log it. The first suppressed event schedules the line about all of them.
    pub(crate) fn admit(&self, of: FewOf, name: &str) -> bool {
        let kind = (of, name.to_owned());
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
    fn log_lines_are_limited_per_plugin_and_the_rest_counted() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let few = FewLines::default();
            let lines = (0..100).filter(|_| few.admit(FewOf::Update, "10-a")).count();
            assert_eq!(lines, limits::LISTED);
            assert!(few.admit(FewOf::Update, "10-b") && few.admit(FewOf::Eviction, "10-a"));
            let kind = (FewOf::Update, "10-a".to_owned());
            let line = few.0.take_held_back(&kind).map(|count| kind.0.more(&kind.1, count));
            assert_eq!(line.as_deref(), Some("10-a: 80 more updates failed within a minute"));
            let one = FewOf::Update.more("10-a", 1);
            assert_eq!(one, "10-a: 1 more update failed within a minute");
        });
    }
}
