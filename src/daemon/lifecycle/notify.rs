// SPDX-License-Identifier: Apache-2.0
//! The daemon notifies plugins of a container's events, and carries out the updates of other
//! containers that they reply.

use std::rc::Rc;

use crate::daemon::node::Node;
use crate::daemon::resources::{target, updates};
use crate::error::Result;
use crate::limits;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Notifies every plugin that knows the container of an event that has happened.
pub(crate) async fn notify(node: &Rc<Node>, event: Event, key: &ContainerKey) {
    let Some(notification) = node.notification(event, key) else { return };
    let pods = target::KnownPods { node, subject: Some(key) };
    if let Some(updated) = node.registry.notify_all(&notification, &pods).await {
        updates::carry_out(node, updated, event, key).await;
    }
}

/// StartContainer; `hint` says which action the refusal prevented.
///
/// # Errors
/// Fails with the refusing plugin.
pub(crate) async fn ask_to_start(node: &Rc<Node>, key: &ContainerKey, hint: &str) -> Result<()> {
    let Some(notification) = node.notification(Event::StartContainer, key) else { return Ok(()) };
    let (skipped, allowed) = node.registry.notify_until_refused(&notification).await;
    if !skipped.is_empty() {
        node.audit_skipped(key, Event::StartContainer.name(), &skipped);
        node.change(key, |record| {
            skipped.into_iter().for_each(|new| limits::keep_ends(&mut record.skipped, new));
        });
    }
    let Err(refusal) = allowed else { return Ok(()) };
    Err(refusal.into_error().hint(hint))
}
