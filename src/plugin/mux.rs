// SPDX-License-Identifier: Apache-2.0
//! The multiplexer: two ttRPC connections over one stream, as NRI plugins speak it.
//!
//! A frame is `u32` connection id, `u32` length (both big-endian), payload. Two rules of the
//! reference's reader shape the writer: a frame that starts a ttRPC message must not exceed
//! 4096 bytes, and two messages must never share a frame; a plugin that is sent anything else
//! stops answering for ever. So a message goes out as one frame of at most 4096 bytes, or as
//! that and one with the rest. The reader takes frames as a plain stream of bytes and stops
//! reading the trunk (back-pressure, `backpressure.rs`) when a connection is not drained.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufReader, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::backpressure::{self, BufferedFrame, InHand, Room};
use super::caller::{Answers, PluginCaller};
use super::frame::{FRAME_HEADER, into_frames, message_length};
use super::outgoing::Outgoing;
use super::stream::PluginStream;

pub(crate) use super::frame::{FRAME_LIMIT, PLUGIN_CONNECTION, RUNTIME_CONNECTION, Trunk};

/// Splits `stream` into the plugin connection and the runtime connection.
///
/// # Errors
/// Fails when the event loop cannot watch it.
pub fn split(stream: UnixStream) -> io::Result<(Trunk, Connection, Connection)> {
    let (trunk, outgoing, reader) = open(stream)?;
    let (to_plugin, plugin) = connection(PLUGIN_CONNECTION, &outgoing);
    let (to_runtime, runtime) = connection(RUNTIME_CONNECTION, &outgoing);
    tokio::spawn(read(reader, trunk.clone(), Inbox::Stream(to_plugin), to_runtime));
    Ok((trunk, plugin, runtime))
}

/// The same for a runtime, which calls over the plugin connection.
pub(super) fn split_to_call(stream: UnixStream) -> io::Result<(Trunk, PluginCaller, Connection)> {
    let (trunk, outgoing, reader) = open(stream)?;
    let (answers, caller) = PluginCaller::new(Arc::clone(&outgoing));
    let (to_runtime, runtime) = connection(RUNTIME_CONNECTION, &outgoing);
    tokio::spawn(read(reader, trunk.clone(), Inbox::Answers(answers), to_runtime));
    Ok((trunk, caller, runtime))
}

fn open(stream: UnixStream) -> io::Result<(Trunk, Arc<Outgoing>, PluginStream)> {
    let trunk = Trunk::new();
    let stream = PluginStream::new(stream)?;
    let outgoing = Outgoing::start(stream.clone(), trunk.clone());
    Ok((trunk, Arc::new(outgoing), stream))
}

fn connection(id: u32, outgoing: &Arc<Outgoing>) -> (Incoming, Connection) {
    let (sender, incoming) = mpsc::unbounded_channel();
    // The caller bounds how many requests a plugin gets at once.
    let limit = if id == RUNTIME_CONNECTION { backpressure::IN_HAND } else { usize::MAX };
    let connection = Connection {
        id,
        incoming,
        in_hand: InHand::new(limit),
        rest: None,
        taken: 0,
        message: Vec::new(),
        outgoing: Arc::clone(outgoing),
    };
    (Incoming { sender, room: Room::default() }, connection)
}

/// Where the frames of the plugin connection go.
enum Inbox {
    /// To a server.
    Stream(Incoming),
    /// To the callers.
    Answers(Answers),
}

impl Inbox {
    async fn take(&mut self, payload: Vec<u8>) {
        match self {
            Self::Stream(incoming) => incoming.send(payload).await,
            Self::Answers(answers) => answers.take(payload),
        }
    }
}

/// The near end of a connection: frames that were read go in.
struct Incoming {
    sender: mpsc::UnboundedSender<BufferedFrame>,
    room: Room,
}

impl Incoming {
    /// Waits for room. Frames for a connection that ended here are dropped like unknown ones.
    async fn send(&self, payload: Vec<u8>) {
        if !self.sender.is_closed() {
            let _ended = self.sender.send(self.room.take(payload).await);
        }
    }
}

async fn read(reader: PluginStream, trunk: Trunk, mut plugin: Inbox, runtime: Incoming) {
    // A message comes as two frames, each with a header: mostly one read for all four.
    let mut reader = BufReader::new(reader);
    let reason = tokio::select! {
        reason = read_frames(&mut reader, &trunk, &mut plugin, &runtime) => reason,
        reason = trunk.closed() => reason,
    };
    trunk.close(&reason);
}

/// Reads frames until the end; returns why it ended.
async fn read_frames(
    reader: &mut BufReader<PluginStream>,
    trunk: &Trunk,
    plugin: &mut Inbox,
    runtime: &Incoming,
) -> String {
    let mut has_warned = false;
    loop {
        let mut header = [0_u8; FRAME_HEADER];
        match reader.read(&mut header[..1]).await {
            Ok(0) => return "it closed the connection".to_owned(),
            Ok(_) => {}
            Err(error) => return crate::error::in_our_words(&error),
        }
        if reader.read_exact(&mut header[1..]).await.is_err() {
            return "it closed the connection in the middle of a frame".to_owned();
        }
        let [i0, i1, i2, i3, l0, l1, l2, l3] = header;
        let id = u32::from_be_bytes([i0, i1, i2, i3]);
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > FRAME_LIMIT {
            return format!("it sent a frame of {length} bytes, at most {FRAME_LIMIT} are read");
        }
        let mut payload = vec![0_u8; length];
        if reader.read_exact(&mut payload).await.is_err() {
            return "it closed the connection in the middle of a frame".to_owned();
        }
        match id {
            _ if length == 0 => {} // Legal, and no end of anything.
            PLUGIN_CONNECTION => {
                trunk.count_answer();
                plugin.take(payload).await;
            }
            RUNTIME_CONNECTION => runtime.send(payload).await,
            _ => {
                if !has_warned {
                    tracing::warn!("a plugin sent frames for the unknown connection {id}: ignored");
                }
                has_warned = true;
            }
        }
    }
}

/// One logical connection: a stream of bytes to ttRPC.
#[derive(Debug)]
pub struct Connection {
    id: u32,
    incoming: mpsc::UnboundedReceiver<BufferedFrame>,
    in_hand: InHand,
    /// The frame that is being taken, and how much of it was.
    rest: Option<BufferedFrame>,
    taken: usize,
    message: Vec<u8>,
    outgoing: Arc<Outgoing>,
}

impl Connection {
    /// Hands every complete ttRPC message over to the trunk, in frames.
    fn flush_messages(&mut self) -> io::Result<()> {
        while let Some(length) = message_length(&self.message) {
            if self.message.len() < length {
                break;
            }
            let mut bytes = vec![0; FRAME_HEADER];
            bytes.extend(self.message.drain(..length));
            self.in_hand.written(&bytes[FRAME_HEADER..]);
            into_frames(self.id, &mut bytes);
            self.outgoing.send(bytes)?;
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let allowed = ready!(this.in_hand.poll_next(context));
        let frame = match this.rest.take() {
            Some(frame) => frame,
            None => match ready!(this.incoming.poll_recv(context)) {
                Some(frame) => frame,
                None => return Poll::Ready(Ok(())),
            },
        };
        let left = &frame.bytes[this.taken..];
        let bytes = &left[..allowed.min(buffer.remaining()).min(left.len())];
        buffer.put_slice(bytes);
        this.in_hand.read(bytes);
        if bytes.len() < left.len() {
            this.taken += bytes.len();
            this.rest = Some(frame);
        } else {
            this.taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.outgoing.is_full() {
            let waker = context.waker().clone();
            tokio::spawn(async move {
                Outgoing::wait_for_space().await;
                waker.wake();
            });
            return Poll::Pending;
        }
        self.message.extend_from_slice(bytes);
        Poll::Ready(self.flush_messages().map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::TTRPC_HEADER;
    use super::*;
    use tokio::io::AsyncWriteExt;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0, 0, 1, 1, 0]);
        bytes.resize(TTRPC_HEADER + length, 7);
        bytes
    }

    async fn frame(stream: &mut UnixStream) -> (u32, Vec<u8>) {
        let id = stream.read_u32().await.unwrap();
        let length = usize::try_from(stream.read_u32().await.unwrap()).unwrap();
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        (id, payload)
    }

    #[tokio::test]
    async fn a_short_message_is_one_frame_and_two_never_share_one() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_trunk, mut plugin, _runtime) = split(ours).unwrap();
        plugin.write_all(&[message(5), message(6)].concat()).await.unwrap();
        assert_eq!(frame(&mut theirs).await, (1, message(5)));
        assert_eq!(frame(&mut theirs).await, (1, message(6)));
    }

    #[tokio::test]
    async fn a_long_message_starts_with_a_frame_of_4096_bytes_however_it_is_written() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_trunk, _plugin, mut runtime) = split(ours).unwrap();
        let long = message(10_000);
        for piece in long.chunks(999) {
            runtime.write_all(piece).await.unwrap();
        }
        let (id, first) = frame(&mut theirs).await;
        let (_, rest) = frame(&mut theirs).await;
        assert_eq!((id, first.len()), (2, 4096));
        assert_eq!([first, rest].concat(), long);
    }

    #[tokio::test]
    async fn many_tiny_frames_and_empty_ones_are_one_stream() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_trunk, mut plugin, _runtime) = split(ours).unwrap();
        for byte in b"abc" {
            theirs.write_all(&[0, 0, 0, 1, 0, 0, 0, 0]).await.unwrap();
            theirs.write_all(&[0, 0, 0, 1, 0, 0, 0, 1, *byte]).await.unwrap();
        }
        let mut read = [0; 3];
        plugin.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"abc");
    }

    #[tokio::test]
    async fn an_unknown_connection_is_ignored_and_disturbs_nobody() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (trunk, mut plugin, _runtime) = split(ours).unwrap();
        theirs.write_all(&[0, 0, 0, 9, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2]).await.unwrap();
        assert_eq!(plugin.read_u8().await.unwrap(), 2);
        assert_eq!(trunk.closed_because(), None);
    }

    #[tokio::test]
    async fn an_oversized_frame_closes_the_trunk_with_a_reason() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (trunk, _plugin, _runtime) = split(ours).unwrap();
        theirs.write_all(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
        assert!(trunk.closed().await.contains("4294967295 bytes"));
    }

    #[tokio::test]
    async fn a_plugin_that_reads_slowly_gets_everything_in_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_trunk, mut plugin, _runtime) = split(ours).unwrap();
        let long = message(3 << 20);
        let sent = long.clone();
        tokio::spawn(async move {
            plugin.write_all(&sent).await.unwrap();
            plugin.write_all(&message(5)).await.unwrap();
            // It stays open until the other side has read everything.
            std::future::pending::<()>().await;
        });
        // The socket's buffer is full long before.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let (_, first) = frame(&mut theirs).await;
        let (_, rest) = frame(&mut theirs).await;
        assert_eq!([first, rest].concat(), long);
        assert_eq!(frame(&mut theirs).await, (1, message(5)));
    }

    #[tokio::test]
    async fn a_half_frame_and_a_clean_end_are_told_apart() {
        for (bytes, wanted) in
            [(&[][..], "closed the connection"), (&[0, 0, 0], "middle of a frame")]
        {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let (trunk, mut plugin, _runtime) = split(ours).unwrap();
            theirs.write_all(bytes).await.unwrap();
            drop(theirs);
            assert!(trunk.closed().await.ends_with(wanted));
            assert_eq!(plugin.read(&mut [0; 1]).await.unwrap(), 0);
        }
    }
}
