// SPDX-License-Identifier: Apache-2.0
//! Writes whole messages to the trunk, in the order in which they are sent.
//!
//! The sender writes a message itself, at once, because a task would have to be woken for each
//! request to each plugin. Bytes that do not fit the plugin's socket wait here, and a task writes
//! them later. Messages are not parsed here; `frame` creates the frames.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::end_reason;
use crate::frame::{FRAME_LIMIT, Trunk};
use crate::stream::PluginStream;
use crate::unread::Blob;

/// Bytes that may be queued before further senders must wait.
const LIMIT: usize = 2 * FRAME_LIMIT;
/// Polling interval while the queue is full, which is too rare to need a waker.
const FULL_POLL: Duration = Duration::from_millis(5);

/// The sending side, which both connections share; the trunk closes when both are gone.
#[derive(Debug)]
pub(crate) struct Outgoing(Arc<OutgoingState>);

#[derive(Debug)]
struct OutgoingState {
    stream: PluginStream,
    trunk: Trunk,
    waiting: Mutex<UnsentMessages>,
    has_begun_to_wait: Notify,
}

#[derive(Debug, Default)]
struct UnsentMessages {
    messages: VecDeque<Vec<u8>>,
    /// Written bytes of the first message.
    written: usize,
    bytes: usize,
}

impl Outgoing {
    pub(crate) fn start(stream: PluginStream, trunk: Trunk) -> Self {
        let waiting = Mutex::default();
        let shared =
            Arc::new(OutgoingState { stream, trunk, waiting, has_begun_to_wait: Notify::new() });
        tokio::spawn(Arc::clone(&shared).write());
        Self(shared)
    }

    /// Sends a message in frames, now or as soon as there is space.
    ///
    /// # Errors
    /// Fails when the trunk is closed; the trunk has the reason.
    pub(crate) fn send(&self, message: Vec<u8>) -> io::Result<()> {
        if self.0.trunk.is_closed() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut waiting = self.0.waiting();
        waiting.bytes += message.len();
        waiting.messages.push_back(message);
        if waiting.messages.len() == 1 {
            let written = waiting.write(&self.0.stream);
            if let Err(error) = &written {
                self.0.trunk.close(&end_reason(error));
            }
            if !waiting.messages.is_empty() {
                self.0.has_begun_to_wait.notify_one();
            }
            written?;
        }
        Ok(())
    }

    /// Whether more than [`LIMIT`] bytes are queued.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes() > LIMIT
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.0.waiting().bytes
    }

    /// Returns the bytes that are still to be written.
    pub(crate) fn save(&self) -> Blob {
        let waiting = self.0.waiting();
        let mut bytes: Vec<u8> = waiting.messages.iter().flatten().copied().collect();
        bytes.drain(..waiting.written);
        Blob(bytes)
    }

    /// Sends saved bytes of whole messages, the first of which may be partly written; called before
    /// any other message is sent.
    pub(crate) fn put_back(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            // A stream that has failed closes the trunk, which keeps the reason.
            let _closed = self.send(bytes);
        }
    }

    /// Returns the number of the stream's descriptor.
    pub(crate) fn number(&self) -> RawFd {
        self.0.stream.number()
    }

    pub(crate) fn close(&self, reason: &str) {
        self.0.trunk.close(reason);
    }

    /// Waits until a sender should check [`Self::is_full`] again.
    pub(crate) async fn wait_for_space() {
        tokio::time::sleep(FULL_POLL).await;
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.0.trunk.close("both connections were dropped");
    }
}

impl OutgoingState {
    fn waiting(&self) -> MutexGuard<'_, UnsentMessages> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes queued bytes until the trunk is closed.
    async fn write(self: Arc<Self>) {
        let reason = tokio::select! {
            error = self.write_waiting() => end_reason(&error),
            reason = self.trunk.closed() => reason,
        };
        self.trunk.close(&reason);
        // Senders must not wait for space that will never be free.
        *self.waiting() = UnsentMessages::default();
        self.stream.end();
    }

    async fn write_waiting(&self) -> io::Error {
        loop {
            self.has_begun_to_wait.notified().await;
            while !self.waiting().messages.is_empty() {
                let room = self.stream.room().await;
                if let Err(error) = room.and_then(|()| self.waiting().write(&self.stream)) {
                    return error;
                }
            }
        }
    }
}

impl UnsentMessages {
    /// Writes as much as there is space for.
    fn write(&mut self, stream: &PluginStream) -> io::Result<()> {
        while let Some(first) = self.messages.front() {
            match stream.write(first.get(self.written..).unwrap_or_default()) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.written >= first.len() {
                self.bytes -= first.len();
                self.written = 0;
                self.messages.pop_front();
            }
        }
        Ok(())
    }
}
