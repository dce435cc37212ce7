// SPDX-License-Identifier: Apache-2.0
//! Bytes received from a plugin and not processed yet, in a form that can be saved at any time for the
//! program that this process executes next. Of messages, only the headers are read.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::frame::{
    FRAME_HEADER, FRAME_LIMIT, REQUEST, RESPONSE, TYPE, frame_header, message_length,
};
use crate::stream::PluginStream;

/// Bytes of memory that a connection keeps for the next message after a longer one.
const KEPT: usize = 256 << 10;

/// Bytes that serialize as text (base64).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Self).map_err(de::Error::custom)
    }
}

/// Bytes read from the stream: an incomplete frame, or frames that wait for space or for the end of a pause.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Arc<Mutex<UnreadBytes>>);

#[derive(Debug, Default)]
struct UnreadBytes {
    /// Received bytes from `done` to `end`, and space for the next read.
    bytes: Vec<u8>,
    /// The number of processed bytes.
    done: usize,
    end: usize,
}

impl Unread {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self(Arc::new(Mutex::new(UnreadBytes { bytes, done: 0, end })))
    }

    fn lock(&self) -> MutexGuard<'_, UnreadBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns connection and length of the first unprocessed frame, once its header has arrived.
    pub(crate) fn header(&self) -> Option<(u32, usize)> {
        let unread = self.lock();
        let header = unread.unprocessed().first_chunk::<FRAME_HEADER>()?;
        let [i0, i1, i2, i3, l0, l1, l2, l3] = *header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Some((u32::from_be_bytes([i0, i1, i2, i3]), length))
    }

    /// Whether the first frame, of this length, has arrived completely.
    pub(crate) fn has_frame(&self, length: usize) -> bool {
        self.lock().unprocessed().len() >= FRAME_HEADER + length
    }

    /// Returns the number of received bytes of the first frame and after it, without its header.
    pub(crate) fn arrived(&self) -> usize {
        self.lock().unprocessed().len().saturating_sub(FRAME_HEADER)
    }

    /// Removes the first frame, which has arrived completely, and returns it without its header.
    pub(crate) fn take_frame(&self, length: usize) -> Vec<u8> {
        self.lock().take_frame(length)
    }

    /// Removes and returns the first `length` bytes, which have arrived, of a longer frame; the
    /// rest remains as a frame.
    pub(crate) fn take_part(&self, length: usize) -> Vec<u8> {
        let Some((id, whole)) = self.header() else { return Vec::new() };
        let mut unread = self.lock();
        let part = unread.unprocessed()[FRAME_HEADER..][..length].to_vec();
        unread.done += length;
        // The header of the rest replaces bytes that were taken.
        let (done, rest) = (unread.done, frame_header(id, whole.saturating_sub(length)));
        unread.bytes[done..done + FRAME_HEADER].copy_from_slice(&rest);
        part
    }

    /// Returns how many bytes of the first frame, or of its header, are missing.
    pub(crate) fn missing(&self) -> usize {
        let length = self.header().map_or(0, |(_, length)| length);
        (FRAME_HEADER + length).saturating_sub(self.lock().unprocessed().len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().unprocessed().is_empty()
    }

    /// Reads at most `room` bytes from the stream; returns their number, 0 at the stream's end.
    pub(crate) async fn read(&self, stream: &PluginStream, room: usize) -> io::Result<usize> {
        poll_fn(|context| {
            let mut unread = self.lock();
            let read = ready!(stream.poll_read(context, unread.room(room)));
            unread.end += *read.as_ref().unwrap_or(&0);
            Poll::Ready(read)
        })
        .await
    }

    /// Returns the unprocessed bytes.
    pub(crate) fn save(&self) -> Blob {
        Blob(self.lock().unprocessed().to_vec())
    }
}

impl UnreadBytes {
    fn unprocessed(&self) -> &[u8] {
        &self.bytes[self.done..self.end]
    }

    /// Returns space for the next `room` bytes. Memory that was in use before is not zeroed again.
    fn room(&mut self, room: usize) -> &mut [u8] {
        if self.done > 0 {
            self.bytes.copy_within(self.done..self.end, 0);
            (self.done, self.end) = (0, self.end - self.done);
        }
        let needed = self.end + room;
        if needed <= KEPT {
            self.bytes.truncate(KEPT);
            self.bytes.shrink_to(KEPT);
        }
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        &mut self.bytes[self.end..needed]
    }

    fn take_frame(&mut self, length: usize) -> Vec<u8> {
        let start = self.done + FRAME_HEADER;
        self.done = start + length;
        if self.done < self.end {
            return self.bytes[start..self.done].to_vec();
        }
        let end = std::mem::take(&mut self.end);
        self.done = 0;
        if length <= KEPT {
            return self.bytes[start..end].to_vec();
        }
        // The memory of a long frame is passed on with it, so that it is in memory only once.
        let mut frame = std::mem::take(&mut self.bytes);
        frame.truncate(end);
        frame.drain(..start);
        frame.shrink_to_fit();
        frame
    }
}

/// The unanswered requests of a connection's peer, and the beginning of the next one.
#[derive(Debug, Clone, Default)]
pub struct OpenRequests(Arc<Mutex<OpenMessages>>);

#[derive(Debug, Default)]
struct OpenMessages {
    beginning: Vec<u8>,
    /// Whether only headers are kept, because nothing saves the beginning of a message. Then a
    /// request is counted once its header has arrived, not once it is complete.
    keeps_headers_only: bool,
    left: usize,
    unanswered: usize,
}

impl OpenRequests {
    /// Creates a count of the requests of a connection that is never saved for another program.
    pub(crate) fn unsaved() -> Self {
        Self(Arc::new(Mutex::new(OpenMessages {
            keeps_headers_only: true,
            ..OpenMessages::default()
        })))
    }

    fn lock(&self) -> MutexGuard<'_, OpenMessages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records received bytes of the connection.
    ///
    /// # Errors
    /// Fails with the length of a message that is longer than the protocol permits: none of it is
    /// kept.
    pub(crate) fn came(&self, bytes: &[u8]) -> Result<(), usize> {
        let mut open = self.lock();
        let (rest, bytes) = bytes.split_at(open.left.min(bytes.len()));
        open.left -= rest.len();
        open.beginning.extend_from_slice(bytes);
        let mut done = 0;
        while let Some(length) = message_length(&open.beginning[done..]) {
            if length > FRAME_LIMIT {
                open.beginning = Vec::new();
                return Err(length);
            }
            let came = open.beginning.len() - done;
            if came < length && !open.keeps_headers_only {
                break;
            }
            let is_request = open.beginning[done + TYPE] == REQUEST;
            open.unanswered += usize::from(is_request);
            open.left = length.saturating_sub(came);
            done += length.min(came);
        }
        open.beginning.drain(..done);
        open.beginning.shrink_to(KEPT);
        Ok(())
    }

    /// Records a written message: if it is an answer, one request fewer is open.
    pub(crate) fn answered(&self, message: &[u8]) {
        if message.get(TYPE) == Some(&RESPONSE) {
            let mut open = self.lock();
            open.unanswered = open.unanswered.saturating_sub(1);
        }
    }

    /// Returns the number of unanswered requests.
    pub fn count(&self) -> usize {
        self.lock().unanswered
    }

    /// Returns the beginning of a message, to which no answer can refer yet.
    pub(crate) fn save(&self) -> Blob {
        Blob(self.lock().beginning.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::TTRPC_HEADER;

    fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        [&id.to_be_bytes()[..], &length.to_be_bytes(), payload].concat()
    }

    impl Unread {
        fn put(&self, bytes: &[u8]) {
            let mut unread = self.lock();
            unread.room(bytes.len()).copy_from_slice(bytes);
            unread.end += bytes.len();
        }
    }

    fn message(kind: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, length, 0, 0, 0, 1, kind, 0];
        bytes.resize(TTRPC_HEADER + usize::from(length), 7);
        bytes
    }

    #[test]
    fn frames_are_found_in_any_chunks_and_the_rest_is_kept() {
        let stream = [frame(1, b"abc"), frame(2, b""), frame(9, &[7; 300])].concat();
        for size in [1, 3, 8, 11, 500] {
            let (unread, mut found) = (Unread::default(), Vec::new());
            for piece in stream.chunks(size) {
                unread.put(piece);
                while let Some((id, length)) = unread.header().filter(|(_, l)| unread.has_frame(*l))
                {
                    found.push((id, unread.take_frame(length)));
                }
                // Another program continues from here.
                let Blob(kept) = unread.save();
                assert_eq!(Unread::new(kept).missing(), unread.missing());
            }
            assert_eq!(found, [(1, b"abc".to_vec()), (2, Vec::new()), (9, vec![7; 300])]);
            assert!(unread.is_empty());
        }
    }

    #[test]
    fn a_long_frame_is_read_in_parts_and_its_rest_is_a_frame() {
        let unread = Unread::default();
        unread.put(&[frame(1, b"abcdefghijkl"), frame(2, b"xyz")].concat());
        assert_eq!(unread.take_part(2), b"ab");
        assert_eq!(Unread::new(unread.save().0).header(), Some((1, 10)));
        assert_eq!(unread.take_part(9), b"cdefghijk");
        assert_eq!((unread.header(), unread.take_frame(1)), (Some((1, 1)), b"l".to_vec()));
        assert_eq!((unread.header(), unread.take_frame(3)), (Some((2, 3)), b"xyz".to_vec()));
        // A part may be all that has arrived.
        unread.put(&frame(1, b"abcd")[..FRAME_HEADER + 3]);
        assert_eq!((unread.take_part(3), unread.header()), (b"abc".to_vec(), Some((1, 1))));
        assert!(!unread.is_empty() && unread.missing() == 1);
    }

    #[test]
    fn a_request_is_open_until_it_is_answered() {
        let requests = OpenRequests::default();
        let stream = [message(REQUEST, 5), message(REQUEST, 9)].concat();
        requests.came(&stream[..20]).unwrap();
        assert_eq!((requests.count(), requests.save().0), (1, stream[15..20].to_vec()));
        requests.came(&stream[20..]).unwrap();
        assert_eq!((requests.count(), requests.save()), (2, Blob::default()));
        requests.answered(&message(REQUEST, 0));
        requests.answered(&message(RESPONSE, 0));
        assert_eq!(requests.count(), 1);
    }

    #[test]
    fn an_unsaved_request_is_open_as_soon_as_its_header_arrives() {
        let (requests, long) = (OpenRequests::unsaved(), vec![7; 4 << 20]);
        let header =
            [&u32::try_from(long.len()).unwrap().to_be_bytes()[..], &[0, 0, 0, 1, REQUEST, 0]]
                .concat();
        let stream = [header, long, message(RESPONSE, 3), message(REQUEST, 5)].concat();
        for size in [1 << 20, 4097, 64 << 10] {
            let before = requests.count();
            for piece in stream.chunks(size) {
                requests.came(piece).unwrap();
                assert!(requests.save().0.len() < TTRPC_HEADER);
            }
            assert_eq!(requests.count(), before + 2);
        }
    }

    #[test]
    fn an_overlong_message_is_dropped_completely() {
        let requests = OpenRequests::default();
        let header = |length: usize| {
            [&u32::try_from(length).unwrap().to_be_bytes()[..], &[0, 0, 0, 1, REQUEST, 0]].concat()
        };
        let most = FRAME_LIMIT - TTRPC_HEADER;
        requests.came(&header(most)).unwrap();
        assert_eq!(requests.save().0.len(), TTRPC_HEADER);
        requests.came(&vec![7; most]).unwrap();
        assert_eq!((requests.count(), requests.save()), (1, Blob::default()));
        assert_eq!(requests.came(&header(most + 1)[..3]), Ok(()));
        assert_eq!(requests.came(&header(most + 1)[3..]), Err(FRAME_LIMIT + 1));
        assert_eq!((requests.count(), requests.lock().beginning.capacity()), (1, 0));
    }

    #[test]
    fn the_memory_of_a_long_message_is_freed() {
        let (unread, requests) = (Unread::default(), OpenRequests::default());
        let long = vec![7; 4 << 20];
        unread.put(&frame(1, &long));
        assert!(unread.take_frame(long.len()) == long);
        assert!(unread.lock().bytes.capacity() <= KEPT);
        // The beginning of another frame is kept without the memory of the long one.
        unread.put(&[frame(1, &long), frame(2, b"abc")[..9].to_vec()].concat());
        assert!(unread.take_frame(long.len()) == long);
        unread.put(b"bc");
        assert_eq!(unread.take_frame(3), b"abc");
        let header = [&u32::try_from(long.len()).unwrap().to_be_bytes()[..], &[0; 6]].concat();
        requests.came(&[header, long].concat()).unwrap();
        assert!(unread.lock().bytes.capacity() <= KEPT);
        assert!(requests.lock().beginning.capacity() <= KEPT);
    }

    #[test]
    fn bytes_are_read_back_from_text_and_other_text_is_refused() {
        let blob = Blob((0..=255).collect());
        let text = serde_json::to_string(&blob).unwrap();
        assert_eq!(serde_json::from_str::<Blob>(&text).unwrap(), blob);
        assert!(serde_json::from_str::<Blob>("\"%\"").is_err());
    }
}
