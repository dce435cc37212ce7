// SPDX-License-Identifier: Apache-2.0
//! Sends events whose replies have no content: a plugin can only accept or refuse them.

use std::rc::Rc;
use std::sync::Arc;

use protobuf::Message;

use crate::plugin::{Event, api};
use crate::rules::RuledPod;

use super::chained_plugin::{ChainedPlugin, PluginFailure, PluginReply};
use super::create::{ChainError, ChainObserver};

/// An event to send to plugins, with its pod and container.
#[derive(Debug, Clone)]
pub struct Notification {
    /// The event.
    pub event: Event,
    /// The event's pod.
    pub pod: api::PodSandbox,
    /// The event's container, shared by the sender and the plugins' queues; `None` for an event about a pod.
    pub container: Option<Arc<api::Container>>,
    /// The runtime root of that container, because IDs are unique only below one root, and the
    /// protocol has only the ID.
    pub root: String,
    /// For UpdatePodSandbox: the overhead, and the requested resources.
    pub resources: Option<(Option<api::LinuxResources>, Option<api::LinuxResources>)>,
    /// The pod's engine, and whether a tenant may have written the pod's facts; rules use both.
    pub origin: (String, bool),
    /// Whether this is the first event about the container that plugins receive, because they received no
    /// CreateContainer.
    pub is_first: bool,
}

impl Notification {
    /// Creates an event without resources.
    pub fn new(event: Event, pod: api::PodSandbox, container: Option<Arc<api::Container>>) -> Self {
        let origin = (String::new(), true);
        Self {
            event,
            pod,
            container,
            root: String::new(),
            resources: None,
            origin,
            is_first: false,
        }
    }

    /// Marks the event as the first that plugins receive about its container.
    pub fn first(self) -> Self {
        Self { is_first: true, ..self }
    }

    /// Whether the event is the first that plugins receive about its pod or container.
    pub fn begins(&self) -> bool {
        self.is_first || matches!(self.event, Event::RunPodSandbox | Event::CreateContainer)
    }

    /// Sets the runtime root of the event's container.
    pub fn below(self, root: &str) -> Self {
        Self { root: root.to_owned(), ..self }
    }

    /// Sets the engine of the event's pod, and whether a tenant may have written the pod's facts.
    pub fn of_engine(self, engine: &str, is_doubtful: bool) -> Self {
        Self { origin: (engine.to_owned(), is_doubtful), ..self }
    }

    /// Returns the approximate length of the event's request, in bytes.
    pub fn size(&self) -> u64 {
        let resources = self.resources.iter().flat_map(|(overhead, asked)| [overhead, asked]);
        let resources: u64 = resources.flatten().map(Message::compute_size).sum();
        let container = self.container.as_ref().map_or(0, |container| container.compute_size());
        self.pod.compute_size() + container + resources
    }

    /// Returns the pod as rules match it.
    pub fn ruled_pod(&self) -> RuledPod {
        let (engine, is_doubtful) = &self.origin;
        RuledPod::of(&self.pod, engine, *is_doubtful)
    }
}

/// Notifies the subscribers in turn until one refuses. Calls `observer` for skipped plugins.
///
/// # Errors
/// Fails with the first refusal, and the number of plugins asked so far.
pub async fn notify_until_refused(
    subscribers: &[Rc<ChainedPlugin>],
    notification: &Notification,
    observer: &dyn ChainObserver,
) -> Result<(), ChainError> {
    for (index, member) in subscribers.iter().enumerate() {
        match notify(member, notification).await {
            PluginReply::Answer(()) => {}
            PluginReply::Skipped(why) => observer.skipped(member.id(), &why),
            PluginReply::Refusal(failure) => return Err(ChainError { failure, asked: index + 1 }),
        }
    }
    Ok(())
}

/// Notifies every subscriber in turn of a past event, regardless of replies. Returns the failures. NRI: in
/// the reference, the remaining plugins do not receive the event after the first failure (BUG-44, BUG-47).
pub async fn notify_all(
    subscribers: &[Rc<ChainedPlugin>],
    notification: &Notification,
) -> Vec<PluginFailure> {
    let mut failures = Vec::new();
    for member in subscribers {
        if let PluginReply::Refusal(failure) = notify(member, notification).await {
            failures.push(failure);
        }
    }
    failures
}

async fn notify(member: &ChainedPlugin, notification: &Notification) -> PluginReply<()> {
    member
        .ask(notification.event, async {
            match (&notification.resources, notification.event) {
                (Some((overhead, resources)), Event::UpdatePodSandbox) => {
                    let request = api::UpdatePodSandboxRequest {
                        pod: Some(notification.pod.clone()).into(),
                        overhead_linux_resources: overhead.clone().into(),
                        linux_resources: resources.clone().into(),
                        ..api::UpdatePodSandboxRequest::default()
                    };
                    member.plugin.update_pod_sandbox(&request).await
                }
                _ => {
                    member
                        .plugin
                        .notify(
                            notification.event,
                            &notification.pod,
                            notification.container.as_deref(),
                        )
                        .await
                }
            }
        })
        .await
}
