// SPDX-License-Identifier: Apache-2.0
//! Requests of the extension to a plugin, each with a deadline: an `exec` waits less than any other command. It decides
//! nothing.

use std::time::Duration;

use nri_transport::PluginRequest;
use tokio::time::Instant;

use super::api::extension::ExtensionEvent;
use super::{Outcome, Plugin};

/// The minimum time-out of a request: plugins treat 0 as none.
const SHORTEST: Duration = Duration::from_millis(1);

/// Time for which a notification may hold the plugin's turn: an `exec` may be waiting for it.
const NOTICE_WAIT: Duration = Duration::from_millis(250);

impl Plugin {
    /// Its subscribed events of the extension, as bits.
    pub fn extension_events(&self) -> u32 {
        self.server.extension_events()
    }

    /// Whether it subscribed to this event of the extension.
    pub fn takes(&self, event: ExtensionEvent) -> bool {
        self.extension_events() & event.bit() != 0
    }

    /// Sends a request of the extension. If `until` is before the plugin's time-out, the plugin is skipped or refuses
    /// by its policy and stays connected, because it did not exceed its time-out.
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

    /// Sends a notification of the extension. A late reply has no consequence for the plugin: it must not lose its
    /// connection, and its protection, because it writes a log slowly.
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
