// SPDX-License-Identifier: Apache-2.0
//! Finds the plugins that subscribed to events of nri-runc's extension of NRI, and how they handle each `exec`. It
//! sends nothing.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::chain::Member;
use crate::config::OnFailure;
use crate::plugin::api::extension::ExtensionEvent;
use crate::state::ContainerKey;

use super::Registry;
use super::connected::{ConnectedPlugin, Subject};
use super::subscribers::Subscribers;

/// How all plugins together handle execs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PluginExecs {
    /// At least one plugin must be asked.
    pub(crate) asks: bool,
    /// At least one plugin protects execs: if it cannot be asked, they are refused.
    pub(crate) protects: bool,
    /// At least one plugin is notified.
    pub(crate) notes: bool,
}

/// Whether plugins that handled execs for the previous program or daemon may still return.
#[derive(Debug, Default)]
pub(crate) struct FormerExecs {
    /// Whether plugins of the previous program have yet to be registered again.
    pub(crate) are_resuming: Cell<bool>,
    /// Deadline for plugins that protected execs to return after a restart.
    expected: Cell<Option<Instant>>,
}

impl FormerExecs {
    /// Records that plugins that protected execs may return within this time.
    pub(crate) fn expect(&self, within: Duration) {
        self.expected.set(Instant::now().checked_add(within));
    }

    /// Whether plugins that protected execs may still return.
    pub(crate) fn are_expected(&self) -> bool {
        !self.left().is_zero()
    }

    /// Returns the remaining time for plugins that protected execs to return.
    pub(crate) fn left(&self) -> Duration {
        let until = self.expected.get();
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

impl Registry {
    /// Returns the synchronized plugins that know a container and subscribed to an event of the extension, in order.
    pub(crate) fn extended(&self, event: ExtensionEvent, key: &ContainerKey) -> Subscribers {
        let subject = Subject::Container(Rc::new(key.clone()));
        let connected = self.connected.borrow();
        let takes = |plugin: &&Rc<ConnectedPlugin>| {
            plugin.is_synchronized() && plugin.connection().takes(event) && plugin.knows(&subject)
        };
        connected.iter().filter(takes).collect()
    }

    /// Returns how the synchronized plugins, and those that protected execs and may still return, handle execs.
    pub(crate) fn exec_interest(&self) -> PluginExecs {
        let is_expected = self.returning.execs.are_expected();
        let mut wanted = PluginExecs { asks: is_expected, protects: is_expected, notes: false };
        for member in self.synchronized() {
            let plugin = &member.plugin;
            let (asked, validates) = (
                plugin.takes(ExtensionEvent::EXEC_CONTAINER),
                plugin.takes(ExtensionEvent::VALIDATE_EXEC),
            );
            wanted.asks |= asked || validates;
            wanted.protects |=
                validates || asked && member.policy().on_failure == OnFailure::Refuse;
            wanted.notes |= plugin.takes(ExtensionEvent::POST_EXEC);
        }
        wanted
    }
}
