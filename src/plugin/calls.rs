// SPDX-License-Identifier: Apache-2.0
//! Sends Synchronize, UpdatePodSandbox, and the events whose replies have content, one method each.

use std::time::Instant;

use nri_transport::{PluginRequest, RequestSubject};
use protobuf::{CodedOutputStream, UnknownFields, UnknownValue, UnknownValueRef};

use super::session::SyncProgress;
use super::{EncodedSnapshot, Event, Outcome, Plugin, api};

/// An encoded CreateContainerRequest, and the request from which its pod and container are read.
#[derive(Debug)]
pub(crate) struct EncodedCreation<'a>(
    pub(crate) Vec<u8>,
    pub(crate) &'a api::CreateContainerRequest,
);

impl PluginRequest for EncodedCreation<'_> {
    const METHOD: &'static str = api::CreateContainerRequest::METHOD;
    type Answer = api::CreateContainerResponse;

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&self, to: &mut CodedOutputStream<'_>) -> protobuf::Result<()> {
        to.write_raw_bytes(&self.0)
    }

    fn subject(&self) -> Option<RequestSubject<'_>> {
        self.1.subject()
    }
}

impl Plugin {
    /// Encodes these pods and containers, and sends them in Synchronize.
    pub async fn synchronize(
        &self,
        pods: &[api::PodSandbox],
        containers: &[api::Container],
    ) -> Outcome<api::SynchronizeResponse> {
        self.synchronize_encoded(&EncodedSnapshot::encode(pods, containers)).await
    }

    /// Sends Synchronize in as many parts as the protocol's limit requires. Returns the reply to the last part, with
    /// the unknown fields of the earlier ones.
    ///
    /// Plugins support parts since v0.7 but report their version only since v0.12, so the first reply shows whether a
    /// plugin supports them.
    pub async fn synchronize_encoded(
        &self,
        snapshot: &EncodedSnapshot,
    ) -> Outcome<api::SynchronizeResponse> {
        let (mut earlier, begun) = (UnknownFields::new(), Instant::now());
        let _progress = ProgressShown(self);
        for (answered, part) in snapshot.parts().enumerate() {
            let whole = self.sync_timeout();
            let limit = whole.unwrap_or_else(|| self.timeout());
            self.set_sync_progress(Some(SyncProgress { begun, limit, answered }));
            let left = whole.map_or(limit, |whole| whole.saturating_sub(begun.elapsed()));
            let said = self.call_within(left, &part).await;
            let Outcome::Answered(mut answer) = said else { return said };
            if !part.more {
                self.server.mark_synchronized();
                add_unknown(answer.special_fields.mut_unknown_fields(), &earlier);
                self.record_wishes("Synchronize", answer.update.len(), 0);
                return Outcome::Answered(answer);
            }
            if !answer.more {
                return Outcome::Refused("it does not take a snapshot in parts".to_owned());
            }
            add_unknown(&mut earlier, answer.special_fields.unknown_fields());
        }
        Outcome::Refused("the snapshot is empty".to_owned())
    }

    /// Sends CreateContainer, encoded or not.
    pub async fn create_container(
        &self,
        request: &impl PluginRequest<Answer = api::CreateContainerResponse>,
    ) -> Outcome<api::CreateContainerResponse> {
        let outcome = self.call(request).await;
        if let Outcome::Answered(answer) = &outcome {
            let (updates, evictions) = (answer.update.len(), answer.evict.len());
            self.record_wishes(Event::CreateContainer.name(), updates, evictions);
        }
        outcome
    }

    /// Sends StopContainer.
    pub async fn stop_container(
        &self,
        request: &api::StopContainerRequest,
    ) -> Outcome<api::StopContainerResponse> {
        let outcome = self.call(request).await;
        if let Outcome::Answered(answer) = &outcome {
            self.record_wishes(Event::StopContainer.name(), answer.update.len(), 0);
        }
        outcome
    }

    /// Sends UpdateContainer.
    pub async fn update_container(
        &self,
        request: &api::UpdateContainerRequest,
    ) -> Outcome<api::UpdateContainerResponse> {
        let outcome = self.call(request).await;
        if let Outcome::Answered(answer) = &outcome {
            let (updates, evictions) = (answer.update.len(), answer.evict.len());
            self.record_wishes(Event::UpdateContainer.name(), updates, evictions);
        }
        outcome
    }

    /// Sends ValidateContainerAdjustment. A plugin that does not implement it and did not subscribe
    /// to it by name accepts the adjustment, and is unsubscribed.
    pub async fn validate(
        &self,
        request: &api::ValidateContainerAdjustmentRequest,
    ) -> Outcome<api::ValidateContainerAdjustmentResponse> {
        let outcome = self.call(request).await;
        if self.drops_unimplemented(Event::ValidateContainerAdjustment, &outcome) {
            return Outcome::Answered(api::ValidateContainerAdjustmentResponse::default());
        }
        outcome
    }

    /// Sends UpdatePodSandbox, which cannot be sent as StateChange.
    pub async fn update_pod_sandbox(&self, request: &api::UpdatePodSandboxRequest) -> Outcome<()> {
        let outcome = self.call(request).await;
        if self.drops_unimplemented(Event::UpdatePodSandbox, &outcome) {
            return Outcome::Answered(());
        }
        outcome.map(|_| ())
    }

    fn record_wishes(&self, operation: &'static str, updates: usize, evictions: usize) {
        if let Some(meter) = &self.meter {
            meter.record_wishes(self.id(), operation, updates, evictions);
        }
    }

    /// Unsubscribes the plugin from an event that it does not implement and did not subscribe to by
    /// name; returns whether it was unsubscribed.
    fn drops_unimplemented<T>(&self, event: Event, outcome: &Outcome<T>) -> bool {
        matches!(outcome, Outcome::Unimplemented(_)) && self.drop_unasked_event(event)
    }
}

/// Clears the plugin's progress when Synchronize ends or is abandoned.
struct ProgressShown<'p>(&'p Plugin);

impl Drop for ProgressShown<'_> {
    fn drop(&mut self) {
        self.0.set_sync_progress(None);
    }
}

fn add_unknown(to: &mut UnknownFields, from: &UnknownFields) {
    for (number, value) in from.iter() {
        let value = match value {
            UnknownValueRef::Fixed32(value) => UnknownValue::Fixed32(value),
            UnknownValueRef::Fixed64(value) => UnknownValue::Fixed64(value),
            UnknownValueRef::Varint(value) => UnknownValue::Varint(value),
            UnknownValueRef::LengthDelimited(bytes) => {
                UnknownValue::LengthDelimited(bytes.to_vec())
            }
        };
        to.add_value(number, value);
    }
}
