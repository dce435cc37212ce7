// SPDX-License-Identifier: Apache-2.0
//! Requests of the extension to a plugin, each until a moment: an `exec` waits less than any other command. It decides
//! nothing.

use std::time::Duration;

use nri_transport::PluginRequest;
use tokio::time::Instant;

use super::api::extension::ExtensionEvent;
use super::{Outcome, Plugin};

/// The shortest time-out of a request: 0 would be none to a plugin.
const SHORTEST: Duration = Duration::from_millis(1);

/// How long a notification may hold the plugin's turn: an `exec` may wait for it.
const NOTICE_WAIT: Duration = Duration::from_millis(250);

impl Plugin {
    /// The events of the extension that it subscribed to, as bits.
    pub fn extension_events(&self) -> u32 {
        self.server.extension_events()
    }

    /// Whether it subscribed to this event of the extension.
    pub fn takes(&self, event: ExtensionEvent) -> bool {
        self.extension_events() & event.bit() != 0
    }

    /// Sends a request of the extension. If `until` comes before the plugin's own time-out, it was not too slow by that
    /// limit: it is skipped or refuses by its policy, and stays connected.
    pub(crate) async fn extension<R: PluginRequest>(
        &self,
        request: &R,
        until: Instant,
    ) -> Outcome<R::Answer> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = self.timeout().min(left).max(SHORTEST);
        let late = || Outcome::Busy(format!("did not answer {} in time for the exec", R::METHOD));
        let call = self.call_within(timeout, request);
        match tokio::time::timeout_at(until, call).await {
            Ok(Outcome::TimedOut) if timeout < self.timeout() => late(),
            Ok(outcome) => outcome,
            Err(_elapsed) => late(),
        }
    }

    /// Sends a notification of the extension. One that is not answered in time costs the plugin nothing: it would
    /// lose its connection, and what it protects, because it is slow to write a log.
    pub(crate) async fn extension_notice<R: PluginRequest>(
        &self,
        request: &R,
    ) -> Outcome<R::Answer> {
        let outcome = self.call_within(self.timeout().min(NOTICE_WAIT), request).await;
        if matches!(outcome, Outcome::TimedOut) {
            return Outcome::Busy(format!("did not answer {} in time", R::METHOD));
        }
        outcome
    }
}
