// SPDX-License-Identifier: Apache-2.0
//! Sends events whose replies have no content to a plugin, in a form that it understands: a method for each
//! event, or StateChange for plugins before NRI v0.12 and from the first method that a plugin lacks.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tracing::warn;

use super::turns::Rank;
use super::{Event, Outcome, Plugin, api};

impl Plugin {
    /// Sends an event whose reply has no content, by its method or as StateChange.
    pub async fn notify(
        &self,
        event: Event,
        pod: &api::PodSandbox,
        container: Option<&api::Container>,
    ) -> Outcome<()> {
        if self.speaks_state_change.load(Ordering::Relaxed) && has_older_form(event) {
            return self.state_change(event, pod, container).await;
        }
        let outcome = self.notify_by_name(event, pod, container).await;
        let is_unknown = matches!(&outcome, Outcome::Unimplemented(_));
        if is_unknown && has_older_form(event) {
            self.speaks_state_change.store(true, Ordering::Relaxed);
            return self.state_change(event, pod, container).await;
        }
        outcome
    }

    async fn state_change(
        &self,
        event: Event,
        pod: &api::PodSandbox,
        container: Option<&api::Container>,
    ) -> Outcome<()> {
        let number = event.number();
        let request = api::StateChangeEvent {
            event: protobuf::EnumOrUnknown::from_i32(number),
            pod: Some(pod.clone()).into(),
            container: container.cloned().into(),
            ..api::StateChangeEvent::default()
        };
        let rank = if event == Event::RunPodSandbox { Rank::NewPod } else { Rank::UnderWay };
        let outcome = self.call_at(rank, event.name(), &request).await;
        if matches!(outcome, Outcome::Answered(_)) {
            self.note_deprecated(event);
        }
        outcome.map(|_| ())
    }

    /// Warns once per event and connection. NRI: warnDeprecatedEvent of plugin.go.
    fn note_deprecated(&self, event: Event) {
        let mut deprecated = self.deprecated.lock().unwrap_or_else(PoisonError::into_inner);
        if deprecated.insert(event.name()) {
            let (id, event) = (self.id(), event.name());
            warn!(
                plugin = id,
                "{id} takes {event} as the deprecated StateChange: update it to NRI v0.12 or later"
            );
        }
    }

    /// Returns the events that the plugin has received as StateChange, which NRI v0.12 deprecates.
    pub(crate) fn deprecated_events(&self) -> Vec<&'static str> {
        let deprecated = self.deprecated.lock().unwrap_or_else(PoisonError::into_inner);
        deprecated.iter().copied().collect()
    }

    async fn notify_by_name(
        &self,
        event: Event,
        pod: &api::PodSandbox,
        container: Option<&api::Container>,
    ) -> Outcome<()> {
        macro_rules! with_pod {
            ($request:ident) => {{
                let pod = Some(pod.clone()).into();
                self.call(&api::$request { pod, ..Default::default() }).await.map(|_| ())
            }};
        }
        macro_rules! with_both {
            ($request:ident) => {{
                let (pod, container) = (Some(pod.clone()).into(), container.cloned().into());
                let request = api::$request { pod, container, ..Default::default() };
                self.call(&request).await.map(|_| ())
            }};
        }
        match event {
            Event::RunPodSandbox => with_pod!(RunPodSandboxRequest),
            Event::StopPodSandbox => with_pod!(StopPodSandboxRequest),
            Event::RemovePodSandbox => with_pod!(RemovePodSandboxRequest),
            Event::UpdatePodSandbox => {
                let pod = Some(pod.clone()).into();
                let request = api::UpdatePodSandboxRequest { pod, ..Default::default() };
                self.update_pod_sandbox(&request).await
            }
            Event::PostUpdatePodSandbox => with_pod!(PostUpdatePodSandboxRequest),
            Event::PostCreateContainer => with_both!(PostCreateContainerRequest),
            Event::StartContainer => with_both!(StartContainerRequest),
            Event::PostStartContainer => with_both!(PostStartContainerRequest),
            Event::PostUpdateContainer => with_both!(PostUpdateContainerRequest),
            Event::RemoveContainer => with_both!(RemoveContainerRequest),
            // The content of these replies is dropped: the event only informs the plugin.
            Event::CreateContainer => with_both!(CreateContainerRequest),
            Event::StopContainer => with_both!(StopContainerRequest),
            Event::UpdateContainer => with_both!(UpdateContainerRequest),
            Event::ValidateContainerAdjustment => Outcome::Answered(()),
        }
    }
}

/// Whether plugins before v0.12 receive this event as StateChange.
fn has_older_form(event: Event) -> bool {
    matches!(
        event,
        Event::RunPodSandbox
            | Event::StopPodSandbox
            | Event::RemovePodSandbox
            | Event::PostCreateContainer
            | Event::StartContainer
            | Event::PostStartContainer
            | Event::PostUpdateContainer
            | Event::RemoveContainer
            | Event::PostUpdatePodSandbox
    )
}
