// SPDX-License-Identifier: Apache-2.0
//! The requests that a plugin answers with more than yes, one method each.

use std::sync::atomic::Ordering;

use protobuf::Message;
use ttrpc::context;

use super::session::{UNIMPLEMENTED, call};
use super::{Event, Outcome, Plugin, Snapshot, api};

impl Plugin {
    /// Tells it about pods and containers that nobody has encoded yet.
    pub async fn synchronize(
        &self,
        pods: &[api::PodSandbox],
        containers: &[api::Container],
    ) -> Outcome<Vec<api::ContainerUpdate>> {
        self.tell(&Snapshot::of(pods, containers)).await
    }

    /// Tells it about pods and containers, in as many parts as the protocol's limit asks for.
    ///
    /// Only plugins from v0.12 on say their version, but parts are known from v0.7 on: who does
    /// not know them is found out by its first answer.
    pub async fn tell(&self, snapshot: &Snapshot) -> Outcome<Vec<api::ContainerUpdate>> {
        for (part, more) in snapshot.parts() {
            match self.tell_part(part).await {
                Outcome::Answered(answer) if more && !answer.more => {
                    return Outcome::Refused("it does not take a snapshot in parts".to_owned());
                }
                Outcome::Answered(answer) if !more => {
                    self.is_ready.store(true, Ordering::Release);
                    return Outcome::Answered(answer.update);
                }
                Outcome::Answered(_) => {}
                Outcome::Refused(why) => return Outcome::Refused(why),
                Outcome::TimedOut => return Outcome::TimedOut,
                Outcome::Gone(why) => return Outcome::Gone(why),
                Outcome::Left => return Outcome::Left,
            }
        }
        Outcome::Refused("there was nothing to say".to_owned())
    }

    /// Synchronize with a request that is encoded already.
    async fn tell_part(&self, payload: Vec<u8>) -> Outcome<api::SynchronizeResponse> {
        // Never closed; without a turn the plugin would merely be asked out of turn.
        let _turn = self.turns.acquire().await;
        if self.is_gone() {
            return Outcome::Left;
        }
        let size = payload.len() as u64;
        let request = ttrpc::Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: "Synchronize".to_owned(),
            timeout_nano: context::with_duration(self.timeout).timeout_nano,
            payload,
            ..ttrpc::Request::default()
        };
        let answer = async {
            let answer = self.line.request(request).await?;
            api::SynchronizeResponse::parse_from_bytes(&answer.payload)
                .map_err(|error| ttrpc::Error::Others(error.to_string()))
        };
        self.outcome(size, answer).await
    }

    /// CreateContainer.
    pub async fn create_container(
        &self,
        request: api::CreateContainerRequest,
    ) -> Outcome<api::CreateContainerResponse> {
        call!(self, create_container, request)
    }

    /// StopContainer.
    pub async fn stop_container(
        &self,
        request: api::StopContainerRequest,
    ) -> Outcome<api::StopContainerResponse> {
        call!(self, stop_container, request)
    }

    /// UpdateContainer.
    pub async fn update_container(
        &self,
        request: api::UpdateContainerRequest,
    ) -> Outcome<api::UpdateContainerResponse> {
        call!(self, update_container, request)
    }

    /// ValidateContainerAdjustment. A plugin that asked for no event by name and does not know
    /// this one is no validator.
    pub async fn validate(
        &self,
        request: api::ValidateContainerAdjustmentRequest,
    ) -> Outcome<api::ValidateContainerAdjustmentResponse> {
        let outcome = call!(self, validate_container_adjustment, request);
        if self.never_meant(Event::ValidateContainerAdjustment, &outcome) {
            return Outcome::Answered(api::ValidateContainerAdjustmentResponse::default());
        }
        outcome
    }

    /// UpdatePodSandbox, which has no older form.
    pub async fn update_pod_sandbox(&self, request: api::UpdatePodSandboxRequest) -> Outcome<()> {
        let outcome = call!(self, update_pod_sandbox, request);
        if self.never_meant(Event::UpdatePodSandbox, &outcome) {
            return Outcome::Answered(());
        }
        outcome.map(|_| ())
    }

    /// Whether it does not know an event that it did not ask for by name; it is not told again.
    fn never_meant<T>(&self, event: Event, outcome: &Outcome<T>) -> bool {
        let unknown = matches!(outcome, Outcome::Refused(why) if why.starts_with(UNIMPLEMENTED));
        unknown && self.drop_unasked_event(event)
    }
}
