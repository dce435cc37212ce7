// SPDX-License-Identifier: Apache-2.0
//! Counts connections of plugins by outcome. A process with access to the socket can cause thousands of
//! refusals a second, so few of them are logged; once a minute, one more line counts the others.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::answers::RefusedConnections;
use crate::named::named;
use tokio::time::Instant;

use crate::clock::now;
use crate::limits;
use crate::log::{LineLimit, Room};
use crate::text::counted;

named! {
    /// The outcomes, with their names in `status`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum ConnectionLine {
        /// accept(2) failed, mostly because the daemon has no free descriptor.
        Unaccepted => "unaccepted",
        /// The user may not connect (`nri.allowed_uids`).
        User => "user",
        /// `[plugin.NAME] from` does not permit the process.
        Origin => "from",
        /// The name belongs to a pre-installed plugin, or may belong to one.
        File => "pre-installed",
        /// Another process has the name and keeps it (`takeover.rs`).
        Contested => "contested",
        /// The limit of connected plugins is reached.
        Full => "full",
        /// The connection ended during its handshake, for example because the process did not register or answer
        /// Configure in time, or violated the protocol.
        Unfinished => "unfinished",
        /// The connection's slot was given to another connection.
        Crowded => "crowded",
        /// The plugin registered and could not be synchronized.
        Unsynchronized => "unsynchronized",
        /// The plugin was synchronized.
        Connected => "connected",
        /// A synchronized plugin disconnected.
        Disconnected => "disconnected",
    }
}

impl ConnectionLine {
    /// Returns one line about `count` further connections.
    pub(crate) fn more(self, count: u64) -> String {
        let what = match self {
            Self::Unaccepted => "could not be accepted",
            Self::User => "refused (nri.allowed_uids)",
            Self::Origin => "refused (plugin.NAME.from)",
            Self::File => "refused (their names belong to pre-installed plugins)",
            Self::Contested => "refused (other processes have their names)",
            Self::Full => "refused (the limit of connected plugins is reached)",
            Self::Unfinished => "ended during the handshake",
            Self::Crowded => "closed before registration, to make room for others",
            Self::Unsynchronized => "could not be synchronized",
            Self::Connected => "synchronized",
            Self::Disconnected => "of plugins ended",
        };
        let count = counted(usize::try_from(count).unwrap_or(usize::MAX), "more connection");
        format!("{count} {what} within a minute; see: nri-runc nri check")
    }

    fn is_refusal(self) -> bool {
        !matches!(self, Self::Connected | Self::Disconnected)
    }
}

/// The number and the latest line of connections, by outcome.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLines {
    counted: RefCell<BTreeMap<ConnectionLine, RefusedConnections>>,
    limit: LineLimit<ConnectionLine>,
}

impl ConnectionLines {
    /// Counts a connection, whether or not it is logged.
    pub(crate) fn count(&self, kind: ConnectionLine, line: &str) {
        let mut all = self.counted.borrow_mut();
        let counted = all.entry(kind).or_default();
        kind.name().clone_into(&mut counted.why);
        counted.count += 1;
        counted.at = now();
        line.clone_into(&mut counted.last);
    }

    /// Counts a connection, and returns whether to log it.
    pub(crate) fn room(&self, kind: ConnectionLine, line: &str, at: Instant) -> Room {
        self.count(kind, line);
        self.limit.room(
            kind,
            if kind.is_refusal() { limits::REFUSED_LINES } else { limits::CONNECTION_LINES },
            at,
        )
    }

    /// Takes the line that counts suppressed connections; called once the minute is over.
    pub(crate) fn take_held_back(&self, kind: ConnectionLine) -> Option<String> {
        self.limit.take_held_back(&kind).map(|count| kind.more(count))
    }

    /// Returns the refused connections, for `status`.
    pub(crate) fn rows(&self) -> Vec<RefusedConnections> {
        let all = self.counted.borrow();
        let refused = all.iter().filter(|(kind, _)| kind.is_refusal());
        refused.map(|(_, counted)| counted.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_refusals_is_ten_lines_and_a_count_of_the_rest() {
        let (lines, begun) = (ConnectionLines::default(), Instant::now());
        let kind = ConnectionLine::Origin;
        let rooms = (0..100_000).map(|_| lines.room(kind, "10-a was refused", begun));
        assert_eq!(rooms.filter(|room| *room == Room::Line).count(), 10);
        let told = lines.take_held_back(kind).unwrap();
        assert!(told.starts_with("99990 more connections refused (plugin.NAME.from)"), "{told}");
        assert_eq!(lines.room(kind, "last", begun), Room::Line);
        assert_eq!(lines.rows()[0].count, 100_001);
        assert_eq!(lines.rows()[0].last, "last");
    }

    #[test]
    fn each_refusal_reason_has_its_own_limit_of_log_lines() {
        let (lines, begun) = (ConnectionLines::default(), Instant::now());
        for _flood in 0..1000 {
            let _room = lines.room(ConnectionLine::Crowded, "", begun);
        }
        for second in 0..100 {
            let at = begun + Duration::from_secs(second * 6);
            assert_eq!(lines.room(ConnectionLine::File, "", at), Room::Line, "{second}");
        }
        assert_eq!(lines.room(ConnectionLine::Connected, "", begun), Room::Line);
        assert_eq!(lines.rows().len(), 2, "an accepted one is not refused");
    }
}
