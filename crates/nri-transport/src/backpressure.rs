// SPDX-License-Identifier: Apache-2.0
//! Backpressure on a plugin: how many requests and bytes it may have in flight before it must wait.
//!
//! A plugin that requests more than the daemon can do is slowed down, and the daemon's memory does
//! not grow. The plugin's replies are still read, as long as the frames before them fit into the
//! buffer; beyond that, the whole trunk waits.
//!
//! This module reads only the headers of ttRPC messages.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::frame::{REQUEST, RESPONSE, TTRPC_HEADER, TYPE, message_length, message_number};

/// Maximum number of a plugin's requests that are read and not yet answered.
pub(crate) const IN_HAND: usize = 32;
/// Maximum bytes buffered for one connection; a larger frame is buffered alone.
const ROOM: u32 = 1 << 20;
/// Bytes of a plugin's unanswered requests at which reading stops: each is in memory several times.
const REQUESTS_IN_HAND: usize = 8 << 20;
/// Bytes counted for a buffered frame in addition to its payload.
const FRAME: usize = 64;

/// A frame for one connection, and its buffer space, freed on drop.
#[derive(Debug)]
pub(crate) struct BufferedFrame {
    pub(crate) bytes: Vec<u8>,
    _room: RoomTaken,
}

impl BufferedFrame {
    pub(crate) fn new(bytes: Vec<u8>, room: RoomTaken) -> Self {
        Self { bytes, _room: room }
    }
}

/// Buffer space for a frame, freed on drop.
#[derive(Debug, Default)]
pub(crate) struct RoomTaken {
    _permit: Option<OwnedSemaphorePermit>,
}

/// The buffer space of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(ROOM).unwrap_or(1))))
    }
}

impl Room {
    /// Waits until this many bytes fit into the buffer.
    pub(crate) async fn reserve(&self, length: usize) -> RoomTaken {
        let cost = u32::try_from(length + FRAME).unwrap_or(ROOM).min(ROOM);
        let permit = Arc::clone(&self.0).acquire_many_owned(cost).await;
        RoomTaken { _permit: permit.ok() }
    }
}

/// The unanswered requests of a connection.
#[derive(Debug)]
pub(crate) struct InHand {
    limit: usize,
    /// The header of the message being read, as far as received, and the number of its remaining
    /// bytes.
    header: Vec<u8>,
    left: usize,
    /// The number and the length of each unanswered request.
    open: Vec<(u32, usize)>,
    waits: Option<Waker>,
}

impl InHand {
    /// Creates the record of a connection that may have `limit` unanswered requests.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, header: Vec::new(), left: 0, open: Vec::new(), waits: None }
    }

    /// Waits, between messages, while the open requests are too many or too long; returns how many
    /// bytes may be read.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        if self.header.len() == TTRPC_HEADER {
            return Poll::Ready(self.left);
        }
        let bytes: usize = self.open.iter().map(|(_, length)| length).sum();
        let is_full = self.open.len() >= self.limit || bytes >= REQUESTS_IN_HAND;
        if self.header.is_empty() && is_full {
            self.waits = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(TTRPC_HEADER - self.header.len())
    }

    /// Records bytes that were read: at most as many as [`Self::poll_next`] returned.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        if self.header.len() == TTRPC_HEADER {
            self.left = self.left.saturating_sub(bytes.len());
        } else {
            self.header.extend_from_slice(bytes);
            if let Some(length) = message_length(&self.header) {
                self.left = length - TTRPC_HEADER;
                if self.header[TYPE] == REQUEST {
                    self.open.push((message_number(&self.header), length));
                }
            }
        }
        if self.header.len() == TTRPC_HEADER && self.left == 0 {
            self.header.clear();
        }
    }

    /// Records a written message: if it is an answer, one request fewer is open.
    pub(crate) fn written(&mut self, message: &[u8]) {
        if message.get(TYPE) != Some(&RESPONSE) {
            return;
        }
        let number = message_number(message);
        let place = self.open.iter().position(|(open, _)| *open == number);
        if let Some(place) = place {
            self.open.swap_remove(place);
        }
        if let Some(waker) = self.waits.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, length: u8) -> [u8; TTRPC_HEADER] {
        [0, 0, 0, length, 0, 0, 0, 1, kind, 0]
    }

    fn next(hand: &mut InHand) -> Poll<usize> {
        hand.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_message_is_read_to_its_end_in_any_pieces() {
        let mut hand = InHand::new(IN_HAND);
        hand.read(&header(REQUEST, 5)[..4]);
        assert_eq!(next(&mut hand), Poll::Ready(6));
        hand.read(&header(REQUEST, 5)[4..]);
        assert_eq!(next(&mut hand), Poll::Ready(5));
        hand.read(&[0; 2]);
        assert_eq!(next(&mut hand), Poll::Ready(3));
        hand.read(&[0; 3]);
        assert_eq!(next(&mut hand), Poll::Ready(TTRPC_HEADER));
    }

    #[test]
    fn only_responses_free_room_for_more_requests_in_progress() {
        let mut hand = InHand::new(IN_HAND);
        for _request in 0..IN_HAND {
            assert_eq!(next(&mut hand), Poll::Ready(TTRPC_HEADER));
            hand.read(&header(REQUEST, 0));
        }
        assert_eq!(next(&mut hand), Poll::Pending);
        hand.written(&header(REQUEST, 0));
        assert_eq!(next(&mut hand), Poll::Pending, "a request of ours is no answer");
        hand.written(&header(RESPONSE, 0));
        assert_eq!(next(&mut hand), Poll::Ready(TTRPC_HEADER));
    }

    #[test]
    fn large_open_requests_delay_further_ones_until_answered() {
        let mut hand = InHand::new(IN_HAND);
        let large = |number: u8| [0, 0x20, 0, 0, 0, 0, 0, number, REQUEST, 0];
        let mut number = 0;
        while next(&mut hand) == Poll::Ready(TTRPC_HEADER) {
            number += 1;
            hand.read(&large(number));
            hand.read(&vec![0; 2 << 20]);
        }
        assert_eq!(usize::from(number), REQUESTS_IN_HAND >> 21);
        hand.written(&[0, 0, 0, 0, 0, 0, 0, 99, RESPONSE, 0]);
        assert_eq!(next(&mut hand), Poll::Pending, "nothing was asked under this number");
        hand.written(&[0, 0, 0, 0, 0, 0, 0, 2, RESPONSE, 0]);
        assert_eq!(next(&mut hand), Poll::Ready(TTRPC_HEADER));
    }

    #[test]
    fn received_responses_do_not_count_as_requests_in_progress() {
        let mut hand = InHand::new(IN_HAND);
        (0..1000).for_each(|_| hand.read(&header(RESPONSE, 0)));
        assert_eq!(next(&mut hand), Poll::Ready(TTRPC_HEADER));
    }

    #[tokio::test]
    async fn a_frame_reserves_space_until_dropped() {
        let room = Room::default();
        let large = BufferedFrame::new(vec![0; 4 << 20], room.reserve(4 << 20).await);
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, room.reserve(1)).await.is_err());
        drop(large);
        assert_eq!(BufferedFrame::new(vec![1], room.reserve(1).await).bytes, [1]);
    }
}
