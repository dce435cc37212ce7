// SPDX-License-Identifier: Apache-2.0
//! Encodes the CreateContainer requests of one creation. Encodes the pod once for all plugins, and the mounts,
//! usually most of a container, again only after a change. It decodes nothing.

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
    /// The mounts, as fields of the container; `None` before the first request and after a change.
    mounts: Option<Vec<u8>>,
}

impl EncodedParts {
    /// Drops the encoded parts that an adjustment changes.
    pub(crate) fn forget_changed(&mut self, adjust: &api::ContainerAdjustment) {
        if !adjust.mounts.is_empty() {
            self.mounts = None;
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
        let others = self.others(request.container.mut_or_insert_default())?;
        let mounts = self.mounts.as_deref().unwrap_or_default();
        let length = others.len() + mounts.len();
        // A field's number and length take at most 11 bytes.
        let mut bytes = Vec::with_capacity(self.pod.len() + 11 + length);
        bytes.extend_from_slice(&self.pod);
        let mut to = CodedOutputStream::vec(&mut bytes);
        to.write_tag(CONTAINER, WireType::LengthDelimited)?;
        to.write_raw_varint64(length as u64)?;
        to.write_raw_bytes(&others)?;
        to.write_raw_bytes(mounts)?;
        to.flush()?;
        drop(to);
        Ok(bytes)
    }

    /// Encodes the container with its mounts last, and leaves it unchanged.
    pub(crate) fn container(&mut self, container: &mut api::Container) -> Result<Vec<u8>> {
        let mut bytes = self.others(container)?;
        bytes.extend_from_slice(self.mounts.as_deref().unwrap_or_default());
        Ok(bytes)
    }

    /// Returns the container encoded without its mounts; encodes the mounts into `self` if they have changed.
    fn others(&mut self, container: &mut api::Container) -> Result<Vec<u8>> {
        let mounts = mem::take(&mut container.mounts);
        let others = container.write_to_bytes();
        let only = api::Container { mounts, ..Default::default() };
        let encoded = self.mounts.take().map_or_else(|| only.write_to_bytes(), Ok);
        container.mounts = only.mounts;
        self.mounts = Some(encoded?);
        others
    }
}
