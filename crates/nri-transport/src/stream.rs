// SPDX-License-Identifier: Apache-2.0
//! A plugin's stream, for reading and writing bytes.
//!
//! The event loop watches it only for reading. tokio's own stream is also watched for writing, so
//! each message that a plugin reads would wake the daemon needlessly, once for each request to each
//! plugin. This one waits for space only after a write found none. It does not parse frames.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// One end of a stream; clones are the same stream.
#[derive(Debug, Clone)]
pub(crate) struct PluginStream(Arc<AsyncFd<StdStream>>);

impl PluginStream {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        Ok(Self(Arc::new(register_with_loop(stream.into_std()?, Interest::READABLE)?)))
    }

    /// Writes as much as there is space for.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_ref().write(bytes)
    }

    /// Reads as much as has arrived and fits the buffer; 0 at the end.
    pub(crate) fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let Ok(read) = guard.try_io(|stream| stream.get_ref().read(buffer)) else { continue };
            let length = read?;
            // A short read took everything: another read would only return EAGAIN.
            if 0 < length && length < buffer.len() {
                guard.clear_ready();
            }
            return Poll::Ready(Ok(length));
        }
    }

    /// Waits until the socket has space for a write.
    pub(crate) async fn room(&self) -> io::Result<()> {
        let room = register_with_loop(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        let _there_is = room.writable().await?;
        Ok(())
    }

    /// Returns the number of the descriptor, which stays open as long as this stream exists.
    pub(crate) fn number(&self) -> RawFd {
        self.0.get_ref().as_raw_fd()
    }

    /// Ends writing. A peer that is gone already is not an error.
    pub(crate) fn end(&self) {
        let _peer_is_gone = self.0.get_ref().shutdown(Shutdown::Write);
    }
}

#[expect(unsafe_code, reason = "registering a descriptor with the event loop")]
fn register_with_loop(stream: StdStream, interest: Interest) -> io::Result<AsyncFd<StdStream>> {
    // SAFETY: a stream's descriptor is open for as long as it lives, and AsyncFd owns it.
    let watched = unsafe { AsyncFd::register_with_interest(stream, interest) };
    watched.map_err(|refused| io::Error::other(refused.to_string()))
}
