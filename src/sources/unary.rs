// SPDX-License-Identifier: Apache-2.0
//! Sends a few unary gRPC requests at once over a new connection (RFC 9113; gRPC over HTTP/2). A
//! response is the message of its stream, or the status with which the server refused. The client
//! keeps no connection and does not retry; the caller limits the time.
//! docs/decisions/0006-a-grpc-client-of-our-own.md explains why no library is used.

use std::fmt;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::hpack;
use crate::error::{Context, Error, Result, quoted};
use crate::limits;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest frame that a server may send, in bytes, because this client announces no other size.
const FRAME_LIMIT: usize = 16 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The status of a request for a nonexistent object.
const NOT_FOUND: u32 = 5;

/// The reason why a server refused a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GrpcStatus {
    code: Option<u32>,
    message: String,
}

impl GrpcStatus {
    /// Whether the requested object does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        self.code == Some(NOT_FOUND)
    }

    /// Returns the status of a response that has neither a message nor a status.
    fn absent() -> Self {
        Self { code: None, message: String::new() }
    }

    fn of_fields(fields: &[(String, String)]) -> Option<Self> {
        let value = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let code = value("grpc-status")?.parse().ok();
        let message = value("grpc-message").map(|text| percent_decoded(text)).unwrap_or_default();
        (code != Some(0)).then_some(Self { code, message })
    }
}

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.message.as_str()) {
            (None, _) => f.write_str("the response has no complete message and no status"),
            (Some(code), "") => write!(f, "the request was refused with grpc-status {code}"),
            (Some(code), message) => {
                write!(f, "the request was refused with grpc-status {code}: {}", quoted(message))
            }
        }
    }
}

/// Decodes a `grpc-message`, in which `%` and two hexadecimal digits stand for a byte.
fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, more)) = rest.split_first() {
        let digits = more.get(..2).filter(|_| first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = more.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The message that a server sent, or why it sent none.
pub(super) type UnaryResponse = std::result::Result<Vec<u8>, GrpcStatus>;

/// The data received on a request's stream.
#[derive(Debug, Default)]
pub(super) struct ResponseStream {
    body: Vec<u8>,
    /// Header fields so far, until they are complete.
    block: Vec<u8>,
    refusal: Option<GrpcStatus>,
    has_ended: bool,
}

/// Sends each message to the method `path`; returns the responses in the same order.
///
/// # Errors
/// Fails when the connection fails, or the server sends too much or a malformed frame.
pub(super) async fn call(
    socket: &Path,
    path: &str,
    metadata: &[(&str, &str)],
    messages: &[Vec<u8>],
) -> Result<Vec<UnaryResponse>> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&requests(path, metadata, messages)).await?;
    let streams = responses(&mut stream, messages.len()).await.doing(|| "reading its answer")?;
    Ok(streams.into_iter().map(message).collect())
}

/// Returns the bytes that open a connection and send each message to the method `path`.
pub(super) fn requests(path: &str, metadata: &[(&str, &str)], messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    frame(&mut bytes, SETTINGS, 0, 0, &settings());
    frame(&mut bytes, WINDOW_UPDATE, 0, 0, &limits::CONTAINERD_ANSWER.to_be_bytes());
    let headers = headers(path, metadata);
    for (number, message) in (1..).step_by(2).zip(messages) {
        frame(&mut bytes, HEADERS, END_HEADERS, number, &headers);
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let body = [&[0], &length.to_be_bytes()[..], message].concat();
        frame(&mut bytes, DATA, END_STREAM, number, &body);
    }
    bytes
}

/// A frame that the server sent.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// Whether the frame belongs to the first request of a connection.
    pub(super) fn is_of_first(&self) -> bool {
        self.stream == 1
    }

    /// Whether the frame counts against the flow-control windows.
    pub(super) fn is_data(&self) -> bool {
        self.kind == DATA && !self.body.is_empty()
    }

    /// Returns the frames that restore the windows of the connection and of the stream.
    pub(super) fn window_again(&self) -> Vec<u8> {
        let size = u32::try_from(self.body.len()).unwrap_or(u32::MAX).to_be_bytes();
        let mut bytes = frame_of(WINDOW_UPDATE, 0, 0, &size);
        frame(&mut bytes, WINDOW_UPDATE, 0, self.stream, &size);
        bytes
    }
}

/// Reads a frame, and acknowledges it if it is SETTINGS or PING.
///
/// # Errors
/// Fails when the connection fails, the server ends it with an error, or a frame is longer than
/// [`FRAME_LIMIT`].
pub(super) async fn next_frame(stream: &mut UnixStream) -> Result<Frame> {
    let mut head = [0_u8; 9];
    stream.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, number @ ..] = head;
    let size = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
    if size > FRAME_LIMIT {
        return Err(Error::new("its answer is longer than nri-runc accepts, or compressed"));
    }
    let mut body = vec![0_u8; size];
    stream.read_exact(&mut body).await?;
    match kind {
        SETTINGS | PING if flags & ACK == 0 => {
            let echo = if kind == PING { body.as_slice() } else { &[] };
            stream.write_all(&frame_of(kind, ACK, 0, echo)).await?;
        }
        GOAWAY if body.get(4..8) != Some(&[0; 4][..]) => {
            return Err(Error::new("it closed its connection"));
        }
        _ => {}
    }
    Ok(Frame { kind, flags, stream: u32::from_be_bytes(number) & 0x7fff_ffff, body })
}

/// Returns a frame as bytes.
pub(super) fn frame_of(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, kind, flags, stream, body);
    bytes
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(body);
}

/// Returns the client's settings: no header table, no pushes, a large window.
fn settings() -> Vec<u8> {
    let pairs: [(u16, u32); 3] = [(1, 0), (2, 0), (4, limits::CONTAINERD_ANSWER)];
    pairs
        .iter()
        .flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect()
}

/// Returns a header block of literals without a table.
fn headers(path: &str, metadata: &[(&str, &str)]) -> Vec<u8> {
    let fixed = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fixed.iter().chain(metadata) {
        hpack::write_field(&mut block, name, value);
    }
    block
}

/// Returns the data of each stream, once all have ended.
async fn responses(stream: &mut UnixStream, count: usize) -> Result<Vec<ResponseStream>> {
    let mut streams: Vec<ResponseStream> = Vec::new();
    streams.resize_with(count, ResponseStream::default);
    let mut total = 0;
    while streams.iter().any(|stream| !stream.has_ended || !stream.block.is_empty()) {
        let Frame { kind, flags, stream: number, body } = next_frame(stream).await?;
        total += body.len();
        if total > usize::try_from(limits::CONTAINERD_ANSWER).unwrap_or(0) {
            return Err(Error::new("its answer is longer than nri-runc accepts, or compressed"));
        }
        let at = usize::try_from(number / 2).unwrap_or(usize::MAX);
        if let Some(stream) = streams.get_mut(at).filter(|_| number % 2 == 1) {
            stream.take(kind, flags, &body)?;
        }
    }
    Ok(streams)
}

impl ResponseStream {
    /// Whether the server has ended the stream.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the reason why the server refused the request, if it did.
    pub(super) fn refused(&self) -> Option<&GrpcStatus> {
        self.refusal.as_ref()
    }

    /// Takes the next message; `None` until it is complete.
    ///
    /// # Errors
    /// Fails if the message is longer than `limit` bytes, or compressed.
    pub(super) fn next_message(&mut self, limit: usize) -> Result<Option<Vec<u8>>> {
        let Some((head, rest)) = self.body.split_at_checked(5) else { return Ok(None) };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let length = usize::try_from(length).ok().filter(|length| *length <= limit);
        let length = length.filter(|_| head[0] == 0);
        let length = length.ok_or_else(|| {
            Error::new("its answer is longer than nri-runc accepts, or compressed")
        })?;
        if rest.len() < length {
            return Ok(None);
        }
        let message = rest[..length].to_vec();
        self.body.drain(..5 + length);
        Ok(Some(message))
    }

    /// Processes a frame of this stream.
    pub(super) fn take(&mut self, kind: u8, flags: u8, body: &[u8]) -> Result<()> {
        match kind {
            DATA => self.body.extend_from_slice(unpadded(body, flags)?),
            HEADERS => {
                let fields = unpadded(body, flags)?;
                let dependency = if flags & PRIORITY == 0 { 0 } else { 5 };
                self.block.extend_from_slice(fields.get(dependency..).unwrap_or_default());
            }
            CONTINUATION => self.block.extend_from_slice(body),
            _ => {}
        }
        if matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
            // Unreadable header fields are ignored; the message then decides.
            let fields = hpack::read_fields(&std::mem::take(&mut self.block)).unwrap_or_default();
            self.refusal = self.refusal.take().or_else(|| GrpcStatus::of_fields(&fields));
        }
        self.has_ended |= match kind {
            DATA | HEADERS => flags & END_STREAM != 0,
            RST_STREAM => true,
            _ => false,
        };
        Ok(())
    }
}

fn unpadded(body: &[u8], flags: u8) -> Result<&[u8]> {
    if flags & PADDED == 0 {
        return Ok(body);
    }
    let inner = body.split_first().and_then(|(pad, rest)| {
        rest.len().checked_sub(usize::from(*pad)).and_then(|length| rest.get(..length))
    });
    inner.ok_or_else(|| Error::new("its padding is wrong"))
}

/// Returns the only message of a stream, if it is complete and uncompressed.
fn message(stream: ResponseStream) -> UnaryResponse {
    if let Some(refusal) = stream.refusal {
        return Err(refusal);
    }
    let (head, message) = stream.body.split_at_checked(5).ok_or_else(GrpcStatus::absent)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    let whole = head[0] == 0 && usize::try_from(length).is_ok_and(|length| length == message.len());
    whole.then(|| message.to_vec()).ok_or_else(GrpcStatus::absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a server that answers any request with these bytes.
    fn told(says: &[u8], count: usize) -> Result<Vec<UnaryResponse>> {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(says).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut rest = Vec::new();
                let _until_it_closes = stream.read_to_end(&mut rest).await;
            };
            let messages = vec![b"x".to_vec(); count];
            let (answer, ()) = tokio::join!(call(&socket, "/m", &[], &messages), server);
            answer
        })
    }

    fn frames(all: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, flags, stream, body) in all {
            frame(&mut bytes, *kind, *flags, *stream, body);
        }
        bytes
    }

    #[test]
    fn frames_of_two_streams_are_assembled_into_two_results() {
        let says = frames(&[
            (SETTINGS, 0, 0, b""),
            (PING, 0, 0, b"12345678"),
            (HEADERS, END_HEADERS, 1, b"\x88"),
            (DATA, 0, 1, b"\0\0\0\0\x03a"),
            (HEADERS, END_HEADERS | END_STREAM, 3, b"\x88"),
            (DATA, PADDED, 1, b"\x02bc\0\0"),
            (GOAWAY, 0, 0, &[0; 8]),
            (HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"),
        ]);
        assert_eq!(told(&says, 2).unwrap(), [Ok(b"abc".to_vec()), Err(GrpcStatus::absent())]);
    }

    #[test]
    fn a_refusal_gives_its_status_and_message_also_in_two_frames() {
        let mut fields = b"\x88".to_vec();
        hpack::write_field(&mut fields, "grpc-status", "14");
        hpack::write_field(&mut fields, "grpc-message", "shim %E2%82%AC 5%");
        let (front, rest) = fields.split_at(9);
        let mut prioritized = vec![0; 5];
        prioritized.extend_from_slice(front);
        let says = frames(&[
            (SETTINGS, 0, 0, b""),
            (HEADERS, PRIORITY | END_STREAM, 1, &prioritized),
            (CONTINUATION, END_HEADERS, 1, rest),
        ]);
        let refusal = told(&says, 1).unwrap().remove(0).unwrap_err();
        let wanted = "the request was refused with grpc-status 14: shim € 5%";
        assert_eq!((refusal.to_string().as_str(), refusal.is_not_found()), (wanted, false));
    }

    /// This server's encoder uses Huffman codes for all texts; Go's uses them if they are shorter.
    #[test]
    fn responses_of_a_server_built_with_h2_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let responses = runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let server = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                for (code, message) in [("5", "no such container"), ("14", "a \\ and {x}: 'y'~")] {
                    let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                    let head = http::Response::builder().header("content-type", "application/grpc");
                    let head = head.header("grpc-status", code).header("grpc-message", message);
                    respond.send_response(head.body(()).unwrap(), true).unwrap();
                }
                while connection.accept().await.is_some() {}
            };
            let messages = [b"x".to_vec(), b"y".to_vec()];
            let (responses, ()) =
                tokio::join!(call(&socket, "/m", &[("a", "b")], &messages), server);
            responses.unwrap()
        });
        let refusals: Vec<GrpcStatus> =
            responses.into_iter().map(|response| response.unwrap_err()).collect();
        assert!(refusals[0].is_not_found() && !refusals[1].is_not_found());
        assert!(refusals[1].to_string().ends_with("grpc-status 14: a \\ and {x}: 'y'~"));
    }

    #[test]
    fn a_status_of_zero_does_not_refuse() {
        let mut fields = Vec::new();
        hpack::write_field(&mut fields, "grpc-status", "0");
        let says = frames(&[
            (DATA, 0, 1, b"\0\0\0\0\x01a"),
            (HEADERS, END_HEADERS | END_STREAM, 1, &fields),
        ]);
        assert_eq!(told(&says, 1).unwrap(), [Ok(b"a".to_vec())]);
    }

    #[test]
    fn partial_and_compressed_messages_are_not_answers() {
        for body in [&b"\0\0\0\0\x09abc"[..], b"\x01\0\0\0\x01a", b"\0\0", b""] {
            let responses = told(&frames(&[(DATA, END_STREAM, 1, body)]), 1).unwrap();
            assert_eq!(responses, [Err(GrpcStatus::absent())]);
        }
    }

    #[test]
    fn a_peer_that_sends_garbage_or_disconnects_is_an_error() {
        let huge = [&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat();
        let away = frames(&[(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2])]);
        let padding = frames(&[(DATA, PADDED | END_STREAM, 1, b"\x09a")]);
        for says in [huge, away, padding, Vec::new(), b"HTTP/1.1 400 Bad".to_vec()] {
            assert!(told(&says, 1).is_err(), "{says:?}");
        }
    }
}
