// SPDX-License-Identifier: Apache-2.0
//! The requests that a plugin answers with more than yes, one method each.

use std::sync::atomic::Ordering;

use super::caller::SynchronizePart;
use super::{EncodedSnapshot, Event, Outcome, Plugin, api};

impl Plugin {
    /// Tells it about pods and containers that nobody has encoded yet.
    pub async fn synchronize(
        &self,
        pods: &[api::PodSandbox],
        containers: &[api::Container],
    ) -> Outcome<Vec<api::ContainerUpdate>> {
        self.tell(&EncodedSnapshot::of(pods, containers)).await
    }

    /// Tells it about pods and containers, in as many parts as the protocol's limit asks for.
    ///
    /// Only plugins from v0.12 on say their version, but parts are known from v0.7 on: who does
    /// not know them is found out by its first answer.
    pub async fn tell(&self, snapshot: &EncodedSnapshot) -> Outcome<Vec<api::ContainerUpdate>> {
        for (part, more) in snapshot.parts() {
            match self.call(&SynchronizePart(part)).await {
                Outcome::Answered(answer) if more && !answer.more => {
                    return Outcome::Refused("it does not take a snapshot in parts".to_owned());
                }
                Outcome::Answered(answer) if !more => {
                    self.is_ready.store(true, Ordering::Release);
                    return Outcome::Answered(answer.update);
                }
                Outcome::Answered(_) => {}
                Outcome::Refused(why) => return Outcome::Refused(why),
                Outcome::Unimplemented(why) => return Outcome::Unimplemented(why),
                Outcome::TimedOut => return Outcome::TimedOut,
                Outcome::Gone(why) => return Outcome::Gone(why),
                Outcome::NotConnected => return Outcome::NotConnected,
                Outcome::Busy(why) => return Outcome::Busy(why),
            }
        }
        Outcome::Refused("there was nothing to say".to_owned())
    }

    /// CreateContainer.
    pub async fn create_container(
        &self,
        request: &api::CreateContainerRequest,
    ) -> Outcome<api::CreateContainerResponse> {
        self.call(request).await
    }

    /// StopContainer.
    pub async fn stop_container(
        &self,
        request: &api::StopContainerRequest,
    ) -> Outcome<api::StopContainerResponse> {
        self.call(request).await
    }

    /// UpdateContainer.
    pub async fn update_container(
        &self,
        request: &api::UpdateContainerRequest,
    ) -> Outcome<api::UpdateContainerResponse> {
        self.call(request).await
    }

    /// ValidateContainerAdjustment. A plugin that asked for no event by name and does not know
    /// this one is no validator.
    pub async fn validate(
        &self,
        request: &api::ValidateContainerAdjustmentRequest,
    ) -> Outcome<api::ValidateContainerAdjustmentResponse> {
        let outcome = self.call(request).await;
        if self.never_meant(Event::ValidateContainerAdjustment, &outcome) {
            return Outcome::Answered(api::ValidateContainerAdjustmentResponse::default());
        }
        outcome
    }

    /// UpdatePodSandbox, which has no older form.
    pub async fn update_pod_sandbox(&self, request: &api::UpdatePodSandboxRequest) -> Outcome<()> {
        let outcome = self.call(request).await;
        if self.never_meant(Event::UpdatePodSandbox, &outcome) {
            return Outcome::Answered(());
        }
        outcome.map(|_| ())
    }

    /// Whether it does not know an event that it did not ask for by name; it is not told again.
    fn never_meant<T>(&self, event: Event, outcome: &Outcome<T>) -> bool {
        matches!(outcome, Outcome::Unimplemented(_)) && self.drop_unasked_event(event)
    }
}
