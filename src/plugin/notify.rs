// SPDX-License-Identifier: Apache-2.0
//! Telling a plugin what happened, in the form that it understands: a method for each event, or
//! StateChange for plugins before NRI v0.12, found out once for each connection.

use std::sync::atomic::Ordering;

use protobuf::Message;
use ttrpc::context;

use super::session::{UNIMPLEMENTED, call};
use super::{Event, Outcome, Plugin, api};

impl Plugin {
    /// Any event whose answer says nothing but yes; plugins before v0.12 get it as StateChange.
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
        let is_unknown = matches!(&outcome, Outcome::Refused(why) if is_unimplemented(why));
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
        call!(self, state_change, request).map(|_| ())
    }

    async fn notify_by_name(
        &self,
        event: Event,
        pod: &api::PodSandbox,
        container: Option<&api::Container>,
    ) -> Outcome<()> {
        macro_rules! with_pod {
            ($method:ident, $request:ident) => {
                call!(
                    self,
                    $method,
                    api::$request { pod: Some(pod.clone()).into(), ..api::$request::default() }
                )
                .map(|_| ())
            };
        }
        macro_rules! with_both {
            ($method:ident, $request:ident) => {
                call!(
                    self,
                    $method,
                    api::$request {
                        pod: Some(pod.clone()).into(),
                        container: container.cloned().into(),
                        ..api::$request::default()
                    }
                )
                .map(|_| ())
            };
        }
        match event {
            Event::RunPodSandbox => with_pod!(run_pod_sandbox, RunPodSandboxRequest),
            Event::StopPodSandbox => with_pod!(stop_pod_sandbox, StopPodSandboxRequest),
            Event::RemovePodSandbox => with_pod!(remove_pod_sandbox, RemovePodSandboxRequest),
            Event::UpdatePodSandbox => {
                let pod = Some(pod.clone()).into();
                let request = api::UpdatePodSandboxRequest { pod, ..Default::default() };
                self.update_pod_sandbox(request).await
            }
            Event::PostUpdatePodSandbox => {
                with_pod!(post_update_pod_sandbox, PostUpdatePodSandboxRequest)
            }
            Event::PostCreateContainer => {
                with_both!(post_create_container, PostCreateContainerRequest)
            }
            Event::StartContainer => with_both!(start_container, StartContainerRequest),
            Event::PostStartContainer => {
                with_both!(post_start_container, PostStartContainerRequest)
            }
            Event::PostUpdateContainer => {
                with_both!(post_update_container, PostUpdateContainerRequest)
            }
            Event::RemoveContainer => with_both!(remove_container, RemoveContainerRequest),
            // These have answers; a late CreateContainer is told for its news only.
            Event::CreateContainer => with_both!(create_container, CreateContainerRequest),
            Event::StopContainer => with_both!(stop_container, StopContainerRequest),
            Event::UpdateContainer => with_both!(update_container, UpdateContainerRequest),
            Event::ValidateContainerAdjustment => Outcome::Answered(()),
        }
    }
}

/// Events that plugins before v0.12 take as StateChange.
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

fn is_unimplemented(why: &str) -> bool {
    why.starts_with(UNIMPLEMENTED)
}
