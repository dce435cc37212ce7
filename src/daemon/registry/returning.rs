// SPDX-License-Identifier: Apache-2.0
//! Keeps the plugins for which requests wait, after a daemon start (D14) or a disconnection (D41), and waits for them.
//! `connections` decides which plugins are expected after a start.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::daemon::registry::extension::FormerExecs;
use crate::daemon::watch::pidfd;

/// Interval of checks whether the processes of expected plugins have exited.
const EXIT_CHECK: Duration = Duration::from_millis(200);

/// A plugin for which requests wait.
#[derive(Debug, Default)]
pub(crate) struct ExpectedPlugin {
    process: Option<OwnedFd>,
    /// Whether the plugin is connecting, to replace a disconnected plugin (D41).
    is_successor: bool,
}

impl ExpectedPlugin {
    /// Expects a previously connected plugin. If nothing would restart the plugin, `process` is its
    /// process, whose exit ends the wait.
    pub(crate) fn again(process: Option<OwnedFd>) -> Self {
        Self { process, is_successor: false }
    }

    /// Whether the plugin's process has exited and nothing restarts it.
    fn is_gone_for_good(&self) -> bool {
        self.process.as_ref().is_some_and(pidfd::has_ended)
    }
}

/// The plugins for which requests wait, and until when.
#[derive(Debug, Default)]
pub(crate) struct ReturningPlugins {
    /// Plugins that handled execs and were connected before this program started.
    pub(crate) execs: FormerExecs,
    expected: RefCell<BTreeMap<String, ExpectedPlugin>>,
    until: Cell<Option<Instant>>,
    /// The deadline of the last logged wait.
    logged: Cell<Option<Instant>>,
    /// Required plugins for which a wait was logged since a plugin was last synchronized.
    awaited: RefCell<BTreeSet<String>>,
    arrived: Notify,
}

impl ReturningPlugins {
    /// Makes requests wait for these plugins, and no others, from now on, up to `at_most`.
    pub(crate) fn expect_all(&self, expected: BTreeMap<String, ExpectedPlugin>, at_most: Duration) {
        if !expected.is_empty() {
            self.until.set(Some(Instant::now() + at_most));
        }
        *self.expected.borrow_mut() = expected;
    }

    /// Like [`expect_more`](Self::expect_more), for the plugin `id`.
    pub(crate) fn expect(&self, id: &str, at_most: Duration) {
        self.expect_more(BTreeMap::from([(id.to_owned(), ExpectedPlugin::default())]), at_most);
    }

    /// Makes requests wait for these plugins, besides those for which they wait now, and sets the deadline of all anew.
    pub(crate) fn expect_more(&self, more: BTreeMap<String, ExpectedPlugin>, at_most: Duration) {
        if more.is_empty() {
            return;
        }
        let mut expected = self.expected.borrow_mut();
        if self.until.get().is_none() {
            expected.clear();
        }
        expected.extend(more);
        self.until.set(Some(Instant::now() + at_most));
    }

    /// Makes requests wait for a connecting plugin that replaces a disconnected one.
    pub(super) fn expect_successor(&self, id: &str, at_most: Duration) {
        self.expect(id, at_most);
        let mut expected = self.expected.borrow_mut();
        expected.insert(id.to_owned(), ExpectedPlugin { process: None, is_successor: true });
    }

    /// Whether requests wait for `id` now.
    pub(super) fn expects(&self, id: &str) -> bool {
        let is_waiting = self.until.get().is_some_and(|until| Instant::now() < until);
        is_waiting && self.expected.borrow().contains_key(id)
    }

    /// Ends the wait for a successor that failed.
    pub(super) fn drop_successor(&self, id: &str) {
        if self.expected.borrow().get(id).is_some_and(|expected| expected.is_successor) {
            self.expect_no_longer(id);
        }
    }

    /// Ends the wait for a plugin that does not return.
    pub(crate) fn expect_no_longer(&self, id: &str) {
        if self.expected.borrow_mut().remove(id).is_some() {
            self.arrived.notify_waiters();
        }
    }

    /// Ends the wait for all plugins.
    pub(crate) fn expect_none(&self) {
        self.expected.borrow_mut().clear();
        self.until.set(None);
    }

    /// Records that a plugin was synchronized.
    pub(crate) fn note_arrival(&self) {
        self.awaited.borrow_mut().clear();
        self.arrived.notify_waiters();
    }

    /// Completes when a plugin is synchronized after this call, or is no longer expected.
    pub(crate) fn arrival(&self) -> Notified<'_> {
        self.arrived.notified()
    }

    /// Records a wait for these required plugins; returns whether to log it: false if a wait for each
    /// was logged since a plugin was last synchronized.
    pub(crate) fn note_wait(&self, names: &[String]) -> bool {
        let mut awaited = self.awaited.borrow_mut();
        let known = awaited.len();
        awaited.extend(names.iter().cloned());
        awaited.len() > known
    }

    /// Waits, up to the deadline, until every expected plugin that may still return is present; returns the late ones.
    pub(super) async fn wait(&self, is_present: impl Fn(&str) -> bool) -> Vec<String> {
        let Some(until) = self.until.get() else { return Vec::new() };
        let begun = Instant::now();
        let mut logs = false;
        let late = loop {
            let arrived = self.arrived.notified();
            let late = self.late(&is_present);
            let now = Instant::now();
            if late.is_empty() || now >= until {
                break late;
            }
            if self.logged.replace(Some(until)) != Some(until) {
                logs = true;
                let seconds = (until - now).as_secs_f32();
                info!("requests wait up to {seconds:.1} s for {}", late.join(", "));
            }
            // Repeated at intervals, because the exit of an expected process also ends the wait.
            let _either = tokio::time::timeout_at(until.min(now + EXIT_CHECK), arrived).await;
        };
        if self.until.get() == Some(until) {
            self.until.set(None);
        }
        let waited = begun.elapsed().as_secs_f32();
        match (logs, late.is_empty()) {
            (true, true) => info!("requests continue after {waited:.1} s"),
            (true, false) => {
                warn!("requests continue after {waited:.1} s without {}", late.join(", "));
            }
            (false, _) => {}
        }
        late
    }

    /// Returns expected plugins that did not return in time and may still return; none while requests still wait.
    pub(super) fn absent(&self, is_present: impl Fn(&str) -> bool) -> Vec<String> {
        let is_waiting = self.until.get().is_some_and(|until| Instant::now() < until);
        if is_waiting { Vec::new() } else { self.late(is_present) }
    }

    /// Returns expected plugins that are not present and may still return.
    fn late(&self, is_present: impl Fn(&str) -> bool) -> Vec<String> {
        let expected = self.expected.borrow();
        let late = expected
            .iter()
            .filter(|(name, expected)| !is_present(name) && !expected.is_gone_for_good());
        late.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn a_wait_ends_once_a_plugin_cannot_return() {
        let returning = ReturningPlugins::default();
        returning.expect("10-a", LONG);
        returning.expect("20-b", LONG);
        let gone = async {
            tokio::task::yield_now().await;
            returning.expect_no_longer("30-unknown");
            returning.expect_no_longer("10-a");
        };
        let (late, ()) = tokio::join!(returning.wait(|id| id == "20-b"), gone);
        assert_eq!(late, [""; 0]);
        assert!(!returning.expects("10-a"));
    }

    #[tokio::test]
    async fn a_wait_returns_the_plugins_that_are_still_absent() {
        let returning = ReturningPlugins::default();
        returning.expect("10-a", Duration::ZERO);
        returning.expect_no_longer("20-b");
        assert_eq!(returning.wait(|_| false).await, ["10-a"]);
        assert_eq!(returning.absent(|_| false), ["10-a"]);
    }
}
