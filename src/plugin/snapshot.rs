// SPDX-License-Identifier: Apache-2.0
//! Splits a snapshot of pods and containers into Synchronize requests within the protocol's limits.
//!
//! The snapshot's messages stay encoded, so that thousands of containers are not decoded and
//! encoded again for each plugin that connects.

use std::sync::Arc;

use nri_transport::{PluginRequest, TTRPC_LIMIT};
use protobuf::rt::{WireType, compute_raw_varint64_size};
use protobuf::{CodedOutputStream, Message};

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

    /// Returns the number of bytes that the message takes in a request, with its tag and length.
    fn size(&self) -> usize {
        let length = compute_raw_varint64_size(self.len() as u64);
        1 + usize::try_from(length).unwrap_or_default() + self.len()
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

/// Bytes of a snapshot that fit one request.
const ROOM: usize = TTRPC_LIMIT - 1024;

/// Bytes of each request of a snapshot that does not fit one. The daemon copies so few between two turns of other
/// tasks, and both sides copy and decode them while they are in the processor's cache.
const PART: usize = 256 << 10;

impl EncodedSnapshot {
    /// Encodes these messages.
    pub fn encode(pods: &[api::PodSandbox], containers: &[api::Container]) -> Self {
        Self {
            pods: pods.iter().map(Encoded::new).collect(),
            containers: containers.iter().map(Encoded::new).collect(),
        }
    }

    /// Returns the maximum length of a request of this snapshot.
    pub(crate) fn longest_request(&self) -> usize {
        let (whole, longest) =
            self.sizes().fold((0, 0), |(sum, max), size| (sum + size, size.max(max)));
        whole.min(longest.max(limit(whole)))
    }

    fn sizes(&self) -> impl Iterator<Item = usize> {
        self.pods.iter().chain(&self.containers).map(Encoded::size)
    }

    /// Splits the snapshot into requests; every object is in exactly one. An object that is longer than the others'
    /// limit is alone in its request.
    pub(super) fn parts(&self) -> impl Iterator<Item = SnapshotPart<'_>> {
        let (mut pods, mut containers) = (self.pods.as_slice(), self.containers.as_slice());
        let limit = limit(self.sizes().sum());
        let mut is_over = false;
        std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let mut size = 0;
            let mut part =
                SnapshotPart { pods: fitting(&mut pods, &mut size, limit), ..Default::default() };
            if pods.is_empty() {
                part.containers = fitting(&mut containers, &mut size, limit);
            }
            is_over = pods.is_empty() && containers.is_empty();
            Some(SnapshotPart { more: !is_over, ..part })
        })
    }
}

/// Returns the maximum length of a request of several objects, in a snapshot of `whole` bytes.
fn limit(whole: usize) -> usize {
    // A plugin need not understand a snapshot in parts if one request suffices.
    if whole <= ROOM { ROOM } else { PART }
}

/// Takes from `left` the objects that still fit a request of `size` bytes below `limit`: at least one if `size` is
/// zero.
fn fitting<'s>(left: &mut &'s [Encoded], size: &mut usize, limit: usize) -> &'s [Encoded] {
    let fits = |object: &&Encoded| {
        let grown = *size + object.size();
        let fits = *size == 0 || grown <= limit;
        *size = if fits { grown } else { *size };
        fits
    };
    let (now, later) = left.split_at(left.iter().take_while(fits).count());
    *left = later;
    now
}

/// One request of a snapshot. Its objects are copied only into the message that is sent.
#[derive(Debug, Default)]
pub(super) struct SnapshotPart<'s> {
    pods: &'s [Encoded],
    containers: &'s [Encoded],
    /// Whether another part follows.
    pub(super) more: bool,
}

impl PluginRequest for SnapshotPart<'_> {
    const METHOD: &'static str = "Synchronize";
    type Answer = api::SynchronizeResponse;

    fn size(&self) -> u64 {
        let objects: usize = self.pods.iter().chain(self.containers).map(Encoded::size).sum();
        let more = if self.more { 2 } else { 0 };
        objects as u64 + more
    }

    fn write(&self, to: &mut CodedOutputStream<'_>) -> protobuf::Result<()> {
        // The fields of a SynchronizeRequest: 1 has the pods, 2 the containers, 3 says that more follow.
        for (field, objects) in [(1, self.pods), (2, self.containers)] {
            for object in objects {
                to.write_tag(field, WireType::LengthDelimited)?;
                to.write_raw_varint64(object.len() as u64)?;
                to.write_raw_bytes(&object.kept)?;
                to.write_raw_bytes(&object.now)?;
            }
        }
        if self.more { to.write_bool(3, true) } else { Ok(()) }
    }
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

    fn bytes(part: &SnapshotPart<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut to = CodedOutputStream::vec(&mut bytes);
        part.write(&mut to).and_then(|()| to.flush()).unwrap();
        drop(to);
        assert_eq!(bytes.len() as u64, part.size());
        bytes
    }

    fn parts(snapshot: &EncodedSnapshot) -> Vec<api::SynchronizeRequest> {
        let parts = snapshot.parts().map(|part| {
            let bytes = bytes(&part);
            let read = api::SynchronizeRequest::parse_from_bytes(&bytes).unwrap();
            assert_eq!((read.more, bytes.len() < TTRPC_LIMIT), (part.more, true));
            read
        });
        parts.collect()
    }

    #[test]
    fn every_object_is_in_exactly_one_part_below_the_limit() {
        let all = pods(10_000, 1000);
        let containers = [api::Container::new(), api::Container::new()];
        let parts = parts(&EncodedSnapshot::encode(&all, &containers));
        assert!(parts.len() > all.len() * 1000 / PART, "each is short");
        let told: Vec<_> = parts.iter().flat_map(|part| part.pods.clone()).collect();
        assert!(told == all, "each once and in order");
        let told: usize = parts.iter().map(|part| part.containers.len()).sum();
        assert_eq!(told, 2);
        let last = parts.iter().map(|part| part.more).collect::<Vec<_>>().pop();
        assert_eq!(last, Some(false));
    }

    #[test]
    fn the_longest_request_covers_objects_above_a_part() {
        let longest = |snapshot: &EncodedSnapshot| {
            let parts: usize = snapshot.parts().map(|part| bytes(&part).len()).max().unwrap();
            assert!(parts <= snapshot.longest_request() + 2, "{parts}");
            snapshot.longest_request()
        };
        let small = EncodedSnapshot::encode(&pods(3, 100), &[]);
        assert!(longest(&small) < 400);
        assert_eq!(longest(&EncodedSnapshot::encode(&pods(10_000, 1000), &[])), PART);
        assert!(longest(&EncodedSnapshot::encode(&pods(5, 4 * PART), &[])) > 4 * PART);
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
    fn a_snapshot_of_an_empty_node_is_one_part() {
        assert_eq!(parts(&EncodedSnapshot::default()), [api::SynchronizeRequest::new()]);
    }

    #[test]
    fn an_object_too_large_for_any_part_is_alone_and_last() {
        let snapshot = EncodedSnapshot::encode(&pods(3, TTRPC_LIMIT), &[]);
        let more: Vec<bool> = snapshot.parts().map(|part| part.more).collect();
        assert_eq!(more, [true, true, false]);
    }
}
