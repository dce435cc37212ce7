// SPDX-License-Identifier: Apache-2.0
//! A snapshot of pods and containers, as Synchronize requests within the protocol's limits.
//!
//! Its messages stay encoded, so that thousands of containers are not decoded and encoded again for
//! each plugin that connects.

use std::sync::Arc;

use nri_transport::TTRPC_LIMIT;
use protobuf::Message;

use crate::formats::protobuf::write_varint;

use super::api;

/// One message in two parts: stored bytes, and fields with current values. Together they decode as
/// one message.
#[derive(Debug, Clone, Default)]
pub struct Encoded {
    /// Fields that do not change.
    pub kept: Arc<[u8]>,
    /// Fields that are not in `kept`.
    pub now: Vec<u8>,
}

impl Encoded {
    fn new(message: &impl Message) -> Self {
        // Encoding fails only if a required field is missing, and NRI's messages have none.
        Self { now: message.write_to_bytes().unwrap_or_default(), ..Self::default() }
    }

    fn len(&self) -> usize {
        self.kept.len() + self.now.len()
    }
}

/// The pods and containers at one time.
#[derive(Debug, Clone, Default)]
pub struct EncodedSnapshot {
    /// The pods, each a `PodSandbox`.
    pub pods: Vec<Encoded>,
    /// The containers, each a `Container`.
    pub containers: Vec<Encoded>,
}

/// Tags of the fields of a SynchronizeRequest; after the last one comes its value, true.
const PODS: u8 = 1 << 3 | 2;
const CONTAINERS: u8 = 2 << 3 | 2;
const MORE: [u8; 2] = [3 << 3, 1];

/// Bytes before each object: its tag and its length take at most this many.
const BEFORE_EACH: usize = 6;
const ROOM: usize = TTRPC_LIMIT - 1024;

impl EncodedSnapshot {
    /// Encodes these messages.
    pub fn encode(pods: &[api::PodSandbox], containers: &[api::Container]) -> Self {
        Self {
            pods: pods.iter().map(Encoded::new).collect(),
            containers: containers.iter().map(Encoded::new).collect(),
        }
    }

    /// The length of the longest of the snapshot's requests, in bytes.
    pub(crate) fn longest_request(&self) -> usize {
        let size = |object: &Encoded| object.len() + BEFORE_EACH;
        self.pods.iter().chain(&self.containers).map(size).sum::<usize>().min(ROOM)
    }

    /// Splits the snapshot into requests below the limit, each with whether another follows; every
    /// object is in exactly one.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Vec<u8>, bool)> {
        let pods = self.pods.iter().map(|pod| (PODS, pod));
        let containers = self.containers.iter().map(|container| (CONTAINERS, container));
        let size = |object: &Encoded| object.len() + BEFORE_EACH;
        let mut left: usize = self.pods.iter().chain(&self.containers).map(size).sum();
        let mut objects = pods.chain(containers).peekable();
        let mut is_over = false;
        std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let mut part = Vec::with_capacity(left.min(ROOM) + MORE.len());
            while let Some((tag, object)) =
                objects.next_if(|(_, object)| part.is_empty() || part.len() + size(object) <= ROOM)
            {
                left -= size(object);
                append(&mut part, tag, object);
            }
            is_over = objects.peek().is_none();
            if !is_over {
                part.extend_from_slice(&MORE);
            }
            Some((part, !is_over))
        })
    }
}

fn append(part: &mut Vec<u8>, tag: u8, object: &Encoded) {
    part.push(tag);
    write_varint(part, u64::try_from(object.len()).unwrap_or(u64::MAX));
    part.extend_from_slice(&object.kept);
    part.extend_from_slice(&object.now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(count: usize, size: usize) -> Vec<api::PodSandbox> {
        let pod = |index: usize| api::PodSandbox {
            id: index.to_string(),
            name: "x".repeat(size),
            ..api::PodSandbox::default()
        };
        (0..count).map(pod).collect()
    }

    fn parts(snapshot: &EncodedSnapshot) -> Vec<api::SynchronizeRequest> {
        let parts = snapshot.parts().map(|(bytes, more)| {
            let part = api::SynchronizeRequest::parse_from_bytes(&bytes).unwrap();
            assert_eq!((part.more, bytes.len() < TTRPC_LIMIT), (more, true));
            part
        });
        parts.collect()
    }

    #[test]
    fn every_object_is_in_exactly_one_part_below_the_limit() {
        let all = pods(10_000, 1000);
        let containers = [api::Container::new(), api::Container::new()];
        let parts = parts(&EncodedSnapshot::encode(&all, &containers));
        assert!(parts.len() > 1);
        let told: Vec<_> = parts.iter().flat_map(|part| part.pods.clone()).collect();
        assert!(told == all, "each once and in order");
        let told: usize = parts.iter().map(|part| part.containers.len()).sum();
        assert_eq!(told, 2);
        let last = parts.iter().map(|part| part.more).collect::<Vec<_>>().pop();
        assert_eq!(last, Some(false));
    }

    #[test]
    fn stored_bytes_and_current_fields_are_one_message() {
        let kept = api::Container { name: "web".to_owned(), ..Default::default() };
        let now = api::Container { id: "c".to_owned(), pid: 7, ..Default::default() };
        let bytes = |message: &api::Container| message.write_to_bytes().unwrap();
        let encoded = Encoded { kept: bytes(&kept).into(), now: bytes(&now) };
        let snapshot = EncodedSnapshot { containers: vec![encoded], ..EncodedSnapshot::default() };
        let whole = api::Container { name: "web".to_owned(), ..now };
        assert_eq!(parts(&snapshot)[0].containers, [whole]);
    }

    #[test]
    fn an_empty_node_is_one_part() {
        assert_eq!(parts(&EncodedSnapshot::default()), [api::SynchronizeRequest::new()]);
    }

    #[test]
    fn an_object_too_large_for_any_part_is_alone_and_last() {
        let snapshot = EncodedSnapshot::encode(&pods(3, TTRPC_LIMIT), &[]);
        let more: Vec<bool> = snapshot.parts().map(|(_, more)| more).collect();
        assert_eq!(more, [true, true, false]);
    }
}
