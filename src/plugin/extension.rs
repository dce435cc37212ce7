// SPDX-License-Identifier: Apache-2.0
//! Sends a plugin requests of nri-runc's extension of the protocol, each with a deadline: an `exec`
//! waits less than other commands. This module decides nothing.

use std::time::Duration;

use nri_transport::PluginRequest;
use tokio::time::Instant;

use super::api::extension::ExtensionEvent;
use super::{Outcome, Plugin};

/// Time for which a notification may keep the plugin busy, because an `exec` may be waiting for its turn.
const NOTICE_WAIT: Duration = Duration::from_millis(250);

impl Plugin {
    /// Returns the events of the extension to which the plugin is subscribed, as bits.
    pub fn extension_events(&self) -> u32 {
        self.server.extension_events()
    }

    /// Whether the plugin is subscribed to this event of the extension.
    pub fn takes(&self, event: ExtensionEvent) -> bool {
        self.extension_events() & event.bit() != 0
    }

    /// Sends a request of the extension. If `until` is before the plugin's time-out and passes, the
    /// plugin's failure policy applies, but the plugin stays connected, because it did not exceed
    /// its time-out.
    pub(crate) async fn extension<R: PluginRequest>(
        &self,
        request: &R,
        until: Instant,
    ) -> Outcome<R::Answer> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = self.timeout().min(left);
        let late = || Outcome::Busy(format!("did not answer {} in time for the exec", R::METHOD));
        let call = self.call_within(timeout, request);
        match tokio::time::timeout_at(until, call).await {
            Ok(Outcome::TimedOut) if timeout < self.timeout() => late(),
            Ok(outcome) => outcome,
            Err(_elapsed) => late(),
        }
    }

    /// Sends a notification of the extension. A late reply is a failure, but not a strike: a plugin
    /// that writes a log slowly must not lose its connection, and with it the protection that it gives.
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
