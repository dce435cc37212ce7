// SPDX-License-Identifier: Apache-2.0
//! Tagged fields: one byte tag, `u32` little-endian length, bytes. The frames between wrapper and
//! daemon and the files of marks consist of them. A reader skips unknown tags, so that later
//! versions can add fields. No I/O.

use crate::error::{Error, Result};

/// Appends a field.
pub(crate) fn put(bytes: &mut Vec<u8>, tag: u8, value: &[u8]) {
    bytes.push(tag);
    bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(value);
}

/// Returns the fields in order. The last item is an error if a field is truncated.
pub(crate) fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8])>> {
    std::iter::from_fn(move || {
        let (&tag, rest) = bytes.split_first()?;
        let parsed = rest.split_first_chunk().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
        });
        let Some((value, rest)) = parsed else {
            bytes = &[];
            return Some(Err(Error::new("a field of the message is truncated")));
        };
        bytes = rest;
        Some(Ok((tag, value)))
    })
}
