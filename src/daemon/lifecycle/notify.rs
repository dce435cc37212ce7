// SPDX-License-Identifier: Apache-2.0
//! Notifies plugins of a container's events, asks them whether it may start, and applies the updates of other
//! containers in their replies to StopContainer.

use std::rc::Rc;

use crate::daemon::resources::{target, updates};
use crate::daemon::shared::Daemon;
use crate::error::Result;
use crate::limits;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Sends a past event of the container to every plugin that knows the container and is subscribed.
pub(crate) async fn notify(daemon: &Rc<Daemon>, event: Event, key: &ContainerKey) {
    let Some(notification) = daemon.notification_for_plugins(event, key) else { return };
    let pods = target::KnownPods { daemon, subject: Some(key) };
    if let Some(updated) = daemon.registry.notify_all(&notification, &pods).await {
        updates::carry_out(daemon, updated, event, key).await;
    }
}

/// Sends StartContainer; `hint` is added to the error of a refusal.
///
/// # Errors
/// Fails with the first refusal, which names the plugin.
pub(crate) async fn ask_to_start(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    hint: &str,
) -> Result<()> {
    let notification = daemon.notification_for_plugins(Event::StartContainer, key);
    let Some(notification) = notification else { return Ok(()) };
    let (skipped, allowed) = daemon.registry.notify_until_refused(&notification).await;
    if !skipped.is_empty() {
        daemon.audit_skipped(key, Event::StartContainer.name(), &skipped);
        daemon.change(key, |record| {
            skipped.into_iter().for_each(|new| limits::keep_ends(&mut record.outcome.skipped, new));
        });
    }
    let Err(refusal) = allowed else { return Ok(()) };
    Err(refusal.into_error().hint(hint))
}
