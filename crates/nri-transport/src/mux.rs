// SPDX-License-Identifier: Apache-2.0
//! The multiplexer: two ttRPC connections over one stream, in NRI's protocol for plugins.
//!
//! A frame is `u32` connection id, `u32` length (both big-endian), payload. Two rules of the reader
//! in NRI's Go implementation shape the writer: a frame that starts a ttRPC message must not exceed
//! 4096 bytes, and two messages must never share a frame; otherwise a plugin stops answering
//! forever. So the first 4096 bytes of a message are one frame, and the rest, if any, is a second
//! one. The reader here treats frames as a plain stream of bytes, and stops reading the trunk
//! (backpressure, `backpressure.rs`) when a connection is not drained.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use crate::backpressure::{self, BufferedFrame, InHand, Room, RoomTaken};
use crate::caller::{Answers, PluginCaller, SavedAnswers};
use crate::end_reason;
use crate::frame::{
    BEFORE, FRAME_LIMIT, PLUGIN_CONNECTION, RUNTIME_CONNECTION, Trunk, into_frames, message_length,
};
use crate::outgoing::Outgoing;
use crate::stream::PluginStream;
use crate::unread::{Blob, OpenRequests, Unread};

/// The reason when the plugin closed its connection between two frames.
pub const CLOSED: &str = "it closed the connection";

/// Size of a read, in bytes, unless a larger frame has begun.
const READ_AT_ONCE: usize = 8 << 10;
/// Maximum size of a read, in bytes, for a frame of which less has arrived.
const READ_AT_MOST: usize = 256 << 10;
/// Maximum bytes that a connection may send before it has registered as a plugin. An index, a name
/// and a version need about a hundred.
const UNREGISTERED: usize = 64 << 10;

/// Splits `stream` into the plugin connection and the runtime connection.
///
/// # Errors
/// Fails when the event loop cannot register the stream.
pub fn split(stream: UnixStream) -> io::Result<(Trunk, Connection, Connection)> {
    let (trunk, outgoing, reader) = open(stream, Trunk::new(true))?;
    let (to_plugin, mut plugin) = connection(PLUGIN_CONNECTION, &outgoing);
    let requests = OpenRequests::unsaved();
    plugin.requests = Some(requests.clone());
    let (to_runtime, runtime) = connection(RUNTIME_CONNECTION, &outgoing);
    let reading = Reading::default();
    tokio::spawn(read(
        reader,
        trunk.clone(),
        Inbox::Stream(to_plugin, requests),
        to_runtime,
        reading,
    ));
    Ok((trunk, plugin, runtime))
}

/// Splits the runtime's end of a stream into a caller of the plugin and the runtime connection. The
/// plugin has not registered.
///
/// # Errors
/// Fails when the event loop cannot register the stream.
pub fn split_to_call(stream: UnixStream) -> io::Result<(Trunk, PluginCaller, Connection)> {
    start_to_call(stream, Trunk::new(false), SavedTrunk::default())
}

/// Continues with a runtime's stream that this process [saved](PluginCaller::save) before it executed the
/// current program.
///
/// # Errors
/// Fails when the event loop cannot register the stream.
pub fn continue_to_call(
    stream: UnixStream,
    saved: SavedTrunk,
) -> io::Result<(Trunk, PluginCaller, Connection)> {
    start_to_call(stream, Trunk::new(true), saved)
}

fn start_to_call(
    stream: UnixStream,
    trunk: Trunk,
    saved: SavedTrunk,
) -> io::Result<(Trunk, PluginCaller, Connection)> {
    let SavedTrunk { unread, beginning, unsent, answers, heard } = saved;
    let (trunk, outgoing, reader) = open(stream, trunk)?;
    trunk.set_frames_received(heard);
    outgoing.put_back(unsent.0);
    let (to_runtime, mut runtime) = connection(RUNTIME_CONNECTION, &outgoing);
    let reading = Reading { unread: Unread::new(unread.0), ..Reading::default() };
    runtime.requests = Some(reading.requests.clone());
    if !beginning.0.is_empty() {
        // The previous program accepted these bytes, and kept no message that is too long.
        let _short = reading.requests.came(&beginning.0);
        to_runtime.put_back(beginning.0);
    }
    let (answers, caller) = PluginCaller::new(Arc::clone(&outgoing), reading.clone(), answers);
    tokio::spawn(read(reader, trunk.clone(), Inbox::Answers(answers), to_runtime, reading));
    Ok((trunk, caller, runtime))
}

/// The state of reading a plugin's stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    pub(crate) unread: Unread,
    /// The plugin's unanswered requests.
    pub(crate) requests: OpenRequests,
    pub(crate) pause: Pause,
}

/// A pause in the reading of a plugin's requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pause(Arc<watch::Sender<bool>>);

impl Pause {
    /// Begins or ends the pause.
    pub(crate) fn set(&self, is_paused: bool) {
        self.0.send_if_modified(|was| std::mem::replace(was, is_paused) != is_paused);
    }

    /// Wakes a paused reader to check whether a call awaits its response. Each call to a plugin
    /// does this; it has no effect unless there is a pause, which is rare.
    pub(crate) fn wake(&self) {
        self.0.send_if_modified(|is_paused| *is_paused);
    }

    /// Waits for the end of the pause. Responses may come after a request, so reading continues
    /// while a call awaits one.
    async fn wait(&self, plugin: &Inbox) {
        let Inbox::Answers(answers) = plugin else { return };
        let mut paused = self.0.subscribe();
        let _ended = paused.wait_for(|is_paused| !is_paused || lock(answers).are_awaited()).await;
    }
}

/// A trunk between two calls, saved for the program that this process executes next.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedTrunk {
    /// Received bytes that are not processed yet.
    pub(crate) unread: Blob,
    /// The beginning of a message on the runtime connection.
    pub(crate) beginning: Blob,
    /// Bytes for which the plugin's socket buffer had no space.
    pub(crate) unsent: Blob,
    pub(crate) answers: SavedAnswers,
    pub(crate) heard: usize,
}

fn open(stream: UnixStream, trunk: Trunk) -> io::Result<(Trunk, Arc<Outgoing>, PluginStream)> {
    let stream = PluginStream::new(stream)?;
    let outgoing = Outgoing::start(stream.clone(), trunk.clone());
    Ok((trunk, Arc::new(outgoing), stream))
}

fn connection(id: u32, outgoing: &Arc<Outgoing>) -> (Incoming, Connection) {
    let (sender, incoming) = mpsc::unbounded_channel();
    // On the plugin connection, the calling runtime limits its concurrent requests.
    let limit = if id == RUNTIME_CONNECTION { backpressure::IN_HAND } else { usize::MAX };
    let connection = Connection {
        id,
        incoming,
        in_hand: InHand::new(limit),
        requests: None,
        rest: None,
        taken: 0,
        message: Vec::new(),
        outgoing: Arc::clone(outgoing),
    };
    (Incoming { sender, room: Room::default() }, connection)
}

/// The destination of frames of the plugin connection.
enum Inbox {
    /// To a server.
    Stream(Incoming, OpenRequests),
    /// To the callers.
    Answers(Arc<Mutex<Answers>>),
}

impl Inbox {
    /// Takes a frame of this length from the received bytes; for a server, waits first until it can
    /// be buffered. Fails with the length of a request that is too long.
    async fn take(&self, unread: &Unread, length: usize) -> Result<(), usize> {
        match self {
            Self::Stream(incoming, requests) => {
                let room = incoming.reserve(length).await;
                let payload = unread.take_frame(length);
                requests.came(&payload)?;
                incoming.put(payload, room);
            }
            Self::Answers(answers) => lock(answers).take(unread.take_frame(length)),
        }
        Ok(())
    }

    /// Takes the received part of a frame that is longer than the protocol permits, and returns
    /// whether there was any; `None` if the frame ends the connection. An overlong response is
    /// skipped, because it may be a refusal, which must not look like a broken connection.
    fn take_long(&self, unread: &Unread, id: u32, trunk: &Trunk) -> Option<bool> {
        let Self::Answers(answers) = self else { return None };
        if id != PLUGIN_CONNECTION || !trunk.is_registered() {
            return None;
        }
        let came = unread.arrived().min(READ_AT_MOST);
        if came > 0 {
            trunk.count_answer();
            lock(answers).take(unread.take_part(came));
        }
        Some(came > 0)
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The receiving end of a connection: frames that were read are put into it.
struct Incoming {
    sender: mpsc::UnboundedSender<BufferedFrame>,
    room: Room,
}

impl Incoming {
    /// Waits for space for a frame. `None` if this side has dropped the connection: its frames are
    /// dropped like those of an unknown connection.
    async fn reserve(&self, length: usize) -> Option<RoomTaken> {
        if self.sender.is_closed() { None } else { Some(self.room.reserve(length).await) }
    }

    fn put(&self, payload: Vec<u8>, room: Option<RoomTaken>) {
        if let Some(room) = room {
            let _ended = self.sender.send(BufferedFrame::new(payload, room));
        }
    }

    /// Adds bytes that another program saved; called before any frame is read.
    fn put_back(&self, bytes: Vec<u8>) {
        let _ended = self.sender.send(BufferedFrame::new(bytes, RoomTaken::default()));
    }
}

async fn read(
    reader: PluginStream,
    trunk: Trunk,
    plugin: Inbox,
    runtime: Incoming,
    reading: Reading,
) {
    let reason = tokio::select! {
        reason = read_frames(&reader, &trunk, &plugin, &runtime, &reading) => reason,
        reason = trunk.closed() => reason,
    };
    trunk.close(&reason);
    if let Inbox::Answers(answers) = plugin {
        lock(&answers).end();
    }
}

/// Returns the reason for ending a connection whose peer begins a frame or request that is too long: ttRPC
/// would skip such a request, but the next program of this process could not continue in the middle of it.
fn too_long(what: &str, length: usize) -> String {
    format!("it sent a {what} of {length} bytes, at most {FRAME_LIMIT} are read")
}

/// Reads frames until the end; returns why it ended. A message arrives as one or two frames, each
/// with a header, usually in one read.
async fn read_frames(
    reader: &PluginStream,
    trunk: &Trunk,
    plugin: &Inbox,
    runtime: &Incoming,
    Reading { unread, requests, pause }: &Reading,
) -> String {
    let (mut has_warned, mut early) = (false, 0);
    loop {
        while let Some((id, length)) = unread.header() {
            if length > FRAME_LIMIT {
                match plugin.take_long(unread, id, trunk) {
                    Some(true) => continue,
                    Some(false) => break,
                    None => return too_long("frame", length),
                }
            }
            if !unread.has_frame(length) {
                break;
            }
            let mut taken = Ok(());
            match id {
                // An empty frame is valid, and has no effect.
                _ if length == 0 => drop(unread.take_frame(length)),
                PLUGIN_CONNECTION => {
                    trunk.count_answer();
                    taken = plugin.take(unread, length).await;
                }
                RUNTIME_CONNECTION => {
                    pause.wait(plugin).await;
                    let room = runtime.reserve(length).await;
                    let payload = unread.take_frame(length);
                    taken = requests.came(&payload);
                    runtime.put(payload, room);
                }
                _ => {
                    drop(unread.take_frame(length));
                    if !has_warned {
                        tracing::warn!(
                            "a plugin sent frames for the unknown connection {id}: ignored"
                        );
                    }
                    has_warned = true;
                }
            }
            if let Err(length) = taken {
                return too_long("request", length);
            }
        }
        // A frame that only states its length gets little memory: READ_AT_MOST, or READ_AT_ONCE before the
        // plugin has registered. Later reads at most double what has arrived.
        let most =
            if trunk.is_registered() { unread.arrived().max(READ_AT_MOST) } else { READ_AT_ONCE };
        match unread.read(reader, unread.missing().clamp(READ_AT_ONCE, most)).await {
            Ok(0) if unread.is_empty() => return CLOSED.to_owned(),
            Ok(0) => return "it closed the connection in the middle of a frame".to_owned(),
            Ok(length) => {
                early += if trunk.is_registered() { 0 } else { length };
                if early > UNREGISTERED {
                    let most = UNREGISTERED;
                    return format!("it sent more than {most} bytes before it registered");
                }
            }
            Err(error) => return end_reason(&error),
        }
    }
}

/// One logical connection: a stream of bytes to ttRPC.
#[derive(Debug)]
pub struct Connection {
    id: u32,
    incoming: mpsc::UnboundedReceiver<BufferedFrame>,
    in_hand: InHand,
    /// The peer's unanswered requests; `None` if this side calls.
    requests: Option<OpenRequests>,
    /// The frame that is being read, and the number of bytes already read.
    rest: Option<BufferedFrame>,
    taken: usize,
    message: Vec<u8>,
    outgoing: Arc<Outgoing>,
}

impl Connection {
    /// Returns the peer's unanswered requests on this connection; none if this side calls.
    pub fn open_requests(&self) -> OpenRequests {
        self.requests.clone().unwrap_or_default()
    }

    /// Passes every complete ttRPC message to the trunk, in frames.
    fn flush_messages(&mut self) -> io::Result<()> {
        while let Some(length) = message_length(&self.message) {
            if self.message.len() < length {
                break;
            }
            let mut bytes = vec![0; BEFORE];
            bytes.extend(self.message.drain(..length));
            self.in_hand.written(&bytes[BEFORE..]);
            if let Some(requests) = &self.requests {
                requests.answered(&bytes[BEFORE..]);
            }
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
    use super::*;
    use crate::caller::Unanswered;
    use crate::frame::{FRAME_HEADER, REQUEST, TTRPC_HEADER, TTRPC_LIMIT, frame_header};
    use protobuf::Message as _;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    async fn each_short_message_is_sent_in_a_separate_frame() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_trunk, mut plugin, _runtime) = split(ours).unwrap();
        plugin.write_all(&[message(5), message(6)].concat()).await.unwrap();
        assert_eq!(frame(&mut theirs).await, (1, message(5)));
        assert_eq!(frame(&mut theirs).await, (1, message(6)));
    }

    #[tokio::test]
    async fn a_long_message_starts_with_a_frame_of_4096_bytes() {
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
    async fn tiny_and_empty_frames_are_joined_into_one_stream() {
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
    async fn an_unknown_connection_id_is_ignored() {
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

    /// Returns a refusal whose ttRPC message has this length, as the response to the first call, in
    /// one frame.
    fn refusal(length: usize) -> Vec<u8> {
        let body = |words: usize| {
            let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, "n".repeat(words));
            let answer = ttrpc::Response { status: Some(status).into(), ..Default::default() };
            answer.write_to_bytes().unwrap()
        };
        let around = body(length).len() - length;
        let mut bytes = message(length);
        bytes[8] = crate::frame::RESPONSE;
        bytes[TTRPC_HEADER..].copy_from_slice(&body(length - around));
        [frame_header(PLUGIN_CONNECTION, bytes.len()).to_vec(), bytes].concat()
    }

    /// Returns the result of a call if the peer responds with these bytes and ends the connection.
    async fn called(answer: Vec<u8>) -> (Result<nri_api::Empty, Unanswered>, Option<String>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (trunk, caller, _runtime) = split_to_call(ours).unwrap();
        trunk.note_registered();
        let peer = tokio::spawn(async move {
            frame(&mut theirs).await;
            theirs.write_all(&answer).await
        });
        let answered = caller.call(&nri_api::Empty::new(), Duration::from_secs(60), &[]).await;
        peer.await.unwrap().unwrap();
        (answered, Some(trunk.closed().await))
    }

    #[tokio::test]
    async fn a_refusal_of_any_frame_length_fails_the_call() {
        for length in [TTRPC_LIMIT - 1, TTRPC_LIMIT] {
            let (answered, _) = called(refusal(length)).await;
            assert!(matches!(answered, Err(Unanswered::Status(_))), "{length}");
        }
        for length in [TTRPC_LIMIT + 1, 2 * TTRPC_LIMIT, 5 * TTRPC_LIMIT] {
            let (answered, closed) = called(refusal(length)).await;
            let Err(Unanswered::Unreadable(why)) = answered else { panic!("{length}") };
            assert!(why.contains("too many for the protocol"), "{why}");
            assert_eq!(closed.as_deref(), Some(CLOSED), "the rest of it was skipped");
        }
    }

    #[tokio::test]
    async fn a_long_refusal_cut_after_its_header_is_unreadable() {
        let mut begun = refusal(2 * TTRPC_LIMIT);
        begun.truncate(FRAME_HEADER + TTRPC_HEADER);
        let (answered, closed) = called(begun.clone()).await;
        assert!(matches!(answered, Err(Unanswered::Unreadable(_))), "{answered:?}");
        assert!(closed.unwrap().contains("middle of a frame"));
        begun.truncate(FRAME_HEADER + TTRPC_HEADER - 1);
        assert_eq!(called(begun).await.0, Err(Unanswered::Closed), "it names no call yet");
    }

    #[tokio::test]
    async fn a_call_ends_with_its_connection() {
        for bytes in [Vec::new(), refusal(20)[..FRAME_HEADER + 20].to_vec()] {
            assert_eq!(called(bytes).await.0, Err(Unanswered::Closed));
        }
        assert!(matches!(called(refusal(20)).await.0, Err(Unanswered::Status(_))));
    }

    #[tokio::test]
    async fn bytes_before_a_registration_are_bounded() {
        let long = [&[0, 0, 0, 2, 0, 0x3b, 0, 0][..], &[7; 2 * UNREGISTERED]].concat();
        let small = [0, 0, 0, 2, 0, 0, 0, 1, 0].repeat(UNREGISTERED / 4);
        for bytes in [long, small] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let (trunk, _caller, _runtime) = split_to_call(ours).unwrap();
            let sent = tokio::spawn(async move { theirs.write_all(&bytes).await.is_ok() });
            let why = trunk.closed().await;
            assert!(why.contains("before it registered"), "{why}");
            drop(sent.await);
        }
    }

    #[tokio::test]
    async fn an_overlong_request_ends_the_connection_at_its_header() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (trunk, caller, _runtime) = split_to_call(ours).unwrap();
        trunk.note_registered();
        theirs.write_all(&[0, 0, 0, 2, 0, 0, 0, 10]).await.unwrap();
        theirs.write_all(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, REQUEST, 0]).await.unwrap();
        let why = trunk.closed().await;
        assert!(why.contains("a request of 4294967305 bytes, at most 4194314"), "{why}");
        assert!(caller.is_idle());
    }

    #[tokio::test]
    async fn a_registered_plugin_may_send_a_whole_frame() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (trunk, _caller, mut runtime) = split_to_call(ours).unwrap();
        trunk.note_registered();
        let mut bytes = message(1 << 20);
        bytes[8] = REQUEST;
        let sent = bytes.clone();
        tokio::spawn(async move {
            let length = u32::try_from(sent.len()).unwrap();
            theirs.write_all(&[&2_u32.to_be_bytes()[..], &length.to_be_bytes()].concat()).await?;
            theirs.write_all(&sent).await
        });
        let mut read = vec![0; bytes.len()];
        runtime.read_exact(&mut read).await.unwrap();
        assert!(read == bytes && trunk.closed_because().is_none_or(|why| why == CLOSED));
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
            // The connection stays open until the other side has read everything.
            std::future::pending::<()>().await;
        });
        // The socket's buffer is full long before this pause ends.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (_, first) = frame(&mut theirs).await;
        let (_, rest) = frame(&mut theirs).await;
        assert_eq!([first, rest].concat(), long);
        assert_eq!(frame(&mut theirs).await, (1, message(5)));
    }

    #[tokio::test]
    async fn a_partial_frame_differs_from_a_clean_end() {
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
