// SPDX-License-Identifier: Apache-2.0
//! The requests that a plugin answers with more than yes, one method each.

use std::sync::atomic::Ordering;

use protobuf::Message;
use ttrpc::context;

use super::session::{UNIMPLEMENTED, call};
use super::snapshot::parts;
use super::{Event, Outcome, Plugin, api};

impl Plugin {
    /// Tells it about pods and containers, in as many parts as the protocol's limit asks for.
    ///
    /// Only plugins from v0.12 on say their version, but parts are known from v0.7 on: who does
    /// not know them is found out by its first answer.
    pub async fn synchronize(
        &self,
        pods: &[api::PodSandbox],
        containers: &[api::Container],
    ) -> Outcome<Vec<api::ContainerUpdate>> {
        let parts = parts(pods, containers);
        let last = parts.len().saturating_sub(1);
        for (index, mut part) in parts.into_iter().enumerate() {
            part.more = index < last;
            let more = part.more;
            match call!(self, synchronize, part) {
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
