// SPDX-License-Identifier: Apache-2.0
//! The bytes of a plugin's stream: frames of the multiplexer, headers of ttRPC messages, limits,
//! and whether the stream is still open. It reads and writes no stream.
//!
//! A frame is `u32` connection id, `u32` length (both big-endian), payload.
//! Reference: NRI `pkg/net/multiplex/mux.go`; the ttRPC protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

/// Connection id of the plugin service: the runtime calls, the plugin answers.
pub(crate) const PLUGIN_CONNECTION: u32 = 1;
/// Connection id of the runtime service: the plugin calls, the runtime answers.
pub(crate) const RUNTIME_CONNECTION: u32 = 2;

/// Maximum payload of one frame, in bytes: ttRPC header and the largest ttRPC message. A longer frame of responses is
/// read in parts, and `caller.rs` refuses its message.
pub(crate) const FRAME_LIMIT: usize = TTRPC_HEADER + TTRPC_LIMIT;
/// Maximum length of a ttRPC message without its header, in bytes.
pub const TTRPC_LIMIT: usize = 4 << 20;
/// Bytes in the buffer with which NRI's Go implementation reads the beginning of a message.
const FIRST_FRAME: usize = 4096;
/// Bytes of connection ID and length.
pub(crate) const FRAME_HEADER: usize = 8;

/// Bytes before a message that becomes frames: space for the headers of two.
pub(crate) const BEFORE: usize = 2 * FRAME_HEADER;

/// Length of the header of a ttRPC message: length, stream, type, flags.
pub(crate) const TTRPC_HEADER: usize = 10;
/// Offset of the message type in the header of a ttRPC message.
pub(crate) const TYPE: usize = 8;
/// Message type of a request.
pub(crate) const REQUEST: u8 = 1;
/// Message type of a response.
pub(crate) const RESPONSE: u8 = 2;

/// Returns the length with header of the message that begins here, once its header has arrived.
pub(crate) fn message_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..TTRPC_HEADER)?;
    let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    Some(TTRPC_HEADER + usize::try_from(length).unwrap_or(usize::MAX - TTRPC_HEADER))
}

/// Returns the stream ID of this ttRPC message, which numbers its call; 0 until the ID has arrived.
pub(crate) fn message_number(message: &[u8]) -> u32 {
    message.get(4..8).map_or(0, |bytes| bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
}

/// The stream that carries both connections: open, or closed for a reason.
#[derive(Debug, Clone)]
pub struct Trunk {
    reason: watch::Sender<Option<String>>,
    received: Arc<AtomicUsize>,
    is_registered: Arc<AtomicBool>,
}

impl Trunk {
    /// Creates an open trunk. Little is read until the peer `is_registered`.
    pub(crate) fn new(is_registered: bool) -> Self {
        Self {
            reason: watch::Sender::new(None),
            received: Arc::default(),
            is_registered: Arc::new(AtomicBool::new(is_registered)),
        }
    }

    /// Records that the plugin has registered, which lifts the limit for unregistered plugins.
    pub(crate) fn note_registered(&self) {
        self.is_registered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    /// Counts one frame of a response.
    pub(crate) fn count_answer(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the number of response frames that the previous program received.
    pub(crate) fn set_frames_received(&self, received: usize) {
        self.received.store(received, Ordering::Relaxed);
    }

    /// Closes both connections; the first reason is kept.
    pub fn close(&self, reason: &str) {
        self.reason.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(reason.to_owned());
            }
            first
        });
    }

    /// Returns the number of response frames received, late ones included.
    pub fn frames_received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether the trunk is closed.
    pub fn is_closed(&self) -> bool {
        self.reason.borrow().is_some()
    }

    /// Returns why the trunk was closed, if it is closed.
    pub fn closed_because(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Waits until the trunk is closed; returns the reason.
    pub async fn closed(&self) -> String {
        let mut changes = self.reason.subscribe();
        match changes.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        }
    }
}

/// Converts one message to one or two frames in place: `bytes` has [`BEFORE`] unused bytes before
/// the message. Of a long message, only the first frame's bytes are moved.
pub(crate) fn into_frames(id: u32, bytes: &mut Vec<u8>) {
    let end = BEFORE + FIRST_FRAME;
    let Some(rest) = bytes.len().checked_sub(end).filter(|rest| *rest > 0) else {
        bytes.drain(..FRAME_HEADER);
        let header = frame_header(id, bytes.len() - FRAME_HEADER);
        return bytes[..FRAME_HEADER].copy_from_slice(&header);
    };
    bytes.copy_within(BEFORE..end, FRAME_HEADER);
    bytes[..FRAME_HEADER].copy_from_slice(&frame_header(id, FIRST_FRAME));
    bytes[end - FRAME_HEADER..end].copy_from_slice(&frame_header(id, rest));
}

pub(crate) fn frame_header(id: u32, length: usize) -> [u8; FRAME_HEADER] {
    let [i0, i1, i2, i3] = id.to_be_bytes();
    let [l0, l1, l2, l3] = u32::try_from(length).unwrap_or(0).to_be_bytes();
    [i0, i1, i2, i3, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_frame_of_4096_bytes_or_two() {
        for length in [0, 10, FIRST_FRAME - 1, FIRST_FRAME, FIRST_FRAME + 1, 3 * FIRST_FRAME] {
            let message: Vec<u8> = (0..=250).cycle().take(length).collect();
            let mut bytes = [&[0; BEFORE], &message[..]].concat();
            into_frames(7, &mut bytes);
            let (first, rest) = message.split_at(length.min(FIRST_FRAME));
            let mut expected = [&frame_header(7, first.len()), first].concat();
            if !rest.is_empty() {
                expected.extend([&frame_header(7, rest.len()), rest].concat());
            }
            assert!(bytes == expected, "{length}");
        }
    }
}
