// SPDX-License-Identifier: Apache-2.0
//! Encodes the CreateContainer requests of one creation. Encodes the pod and the labels once for all plugins, and
//! the mounts, usually most of a container, again only after a change. It decodes nothing.

use std::mem;

use protobuf::rt::WireType;
use protobuf::{CodedOutputStream, Message, Result};

use nri_api as api;

/// The number of the container's field in CreateContainerRequest.
const CONTAINER: u32 = 2;

#[derive(Debug, Clone, Default)]
pub(crate) struct EncodedParts {
    /// The pod, as a field of the request; empty before the first request.
    pod: Vec<u8>,
    /// The labels and mounts, as fields of the container; `None` before the first request and after
    /// a change.
    lasting: Option<Vec<u8>>,
}

impl EncodedParts {
    /// Drops the encoded parts that an adjustment changes. No adjustment has labels.
    pub(crate) fn forget_changed(&mut self, adjust: &api::ContainerAdjustment) {
        if !adjust.mounts.is_empty() {
            self.lasting = None;
        }
    }

    /// Encodes the request, and leaves it unchanged.
    pub(crate) fn request(&mut self, request: &mut api::CreateContainerRequest) -> Result<Vec<u8>> {
        if self.pod.is_empty() {
            let pod = request.pod.take().into();
            let only = api::CreateContainerRequest { pod, ..Default::default() };
            let encoded = only.write_to_bytes();
            request.pod = only.pod;
            self.pod = encoded?;
        }
        let Self { pod, lasting } = self;
        divided(lasting, request.container.mut_or_insert_default(), |others, lasting| {
            let length = others.compute_size() + lasting.len() as u64;
            // A field's number and length take at most 11 bytes.
            let mut bytes =
                Vec::with_capacity(pod.len() + usize::try_from(length).unwrap_or(0) + 11);
            bytes.extend_from_slice(pod);
            let mut to = CodedOutputStream::vec(&mut bytes);
            to.write_tag(CONTAINER, WireType::LengthDelimited)?;
            to.write_raw_varint64(length)?;
            others.write_to_with_cached_sizes(&mut to)?;
            to.write_raw_bytes(lasting)?;
            to.flush()?;
            drop(to);
            Ok(bytes)
        })
    }

    /// Encodes the container with its labels and mounts last, and leaves it unchanged.
    pub(crate) fn container(&mut self, container: &mut api::Container) -> Result<Vec<u8>> {
        divided(&mut self.lasting, container, |others, lasting| {
            let mut bytes = others.write_to_bytes()?;
            bytes.extend_from_slice(lasting);
            Ok(bytes)
        })
    }
}

/// Calls `write` with the container without its labels and mounts, and with these encoded.
fn divided(
    lasting: &mut Option<Vec<u8>>,
    container: &mut api::Container,
    write: impl FnOnce(&api::Container, &[u8]) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let (labels, mounts) = (mem::take(&mut container.labels), mem::take(&mut container.mounts));
    let only = api::Container { labels, mounts, ..Default::default() };
    let encoded = lasting.take().map_or_else(|| only.write_to_bytes(), Ok);
    let written = encoded.and_then(|encoded| write(container, lasting.insert(encoded)));
    (container.labels, container.mounts) = (only.labels, only.mounts);
    written
}
