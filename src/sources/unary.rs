// SPDX-License-Identifier: Apache-2.0
//! One small gRPC client: a few unary requests at once over a new connection (RFC 9113, gRPC over
//! HTTP/2). Headers are sent literally and those of the answer are not decoded: an answer is the
//! message that came before the end of its stream, its absence is a refusal. It keeps no
//! connection and retries nothing.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::error::{Context, Error, Result};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most that answers may come to, and the window that is opened for them.
const LIMIT: u32 = 16 << 20;

/// The largest frame that a peer may send, as we do not announce another.
const FRAME_LIMIT: usize = 16 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Sends each message to the method `path`; answers in the same order, `None` where the server
/// refused.
pub(super) async fn call(
    socket: &Path,
    path: &str,
    metadata: &[(&str, &str)],
    messages: &[Vec<u8>],
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut stream = UnixStream::connect(socket).await?;
    let mut bytes = PREFACE.to_vec();
    frame(&mut bytes, SETTINGS, 0, 0, &settings());
    frame(&mut bytes, WINDOW_UPDATE, 0, 0, &LIMIT.to_be_bytes());
    let headers = headers(path, metadata);
    for (number, message) in (1..).step_by(2).zip(messages) {
        frame(&mut bytes, HEADERS, END_HEADERS, number, &headers);
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let body = [&[0], &length.to_be_bytes()[..], message].concat();
        frame(&mut bytes, DATA, END_STREAM, number, &body);
    }
    stream.write_all(&bytes).await?;
    let streams = answers(&mut stream, messages.len()).await.doing(|| "reading its answer")?;
    Ok(streams.into_iter().map(message).collect())
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(body);
}

/// No header table, no pushes, a wide window.
fn settings() -> Vec<u8> {
    let pairs: [(u16, u32); 3] = [(1, 0), (2, 0), (4, LIMIT)];
    pairs
        .iter()
        .flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect()
}

/// A header block of literals that enter no table.
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
        block.push(0);
        for word in [name, value] {
            length(&mut block, word.len());
            block.extend_from_slice(word.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of 7 bits (RFC 7541, 5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else {
        block.push(u8::try_from(length).unwrap_or(0));
        return;
    };
    block.push(127);
    while rest >= 128 {
        block.push(u8::try_from(rest & 127).unwrap_or(0) | 128);
        rest >>= 7;
    }
    block.push(u8::try_from(rest).unwrap_or(0));
}

/// What each stream brought, once all have ended.
async fn answers(stream: &mut UnixStream, count: usize) -> Result<Vec<Vec<u8>>> {
    let mut bodies = vec![Vec::new(); count];
    let mut is_open = vec![true; count];
    let mut total = 0;
    while is_open.contains(&true) {
        let mut head = [0_u8; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, number @ ..] = head;
        let size = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        total += size;
        if size > FRAME_LIMIT || total > usize::try_from(LIMIT).unwrap_or(0) {
            return Err(Error::new("it says more than was asked for"));
        }
        let mut body = vec![0_u8; size];
        stream.read_exact(&mut body).await?;
        let number = u32::from_be_bytes(number) & 0x7fff_ffff;
        let at = usize::try_from(number / 2).unwrap_or(usize::MAX);
        match kind {
            DATA => {
                if let Some(answer) = bodies.get_mut(at) {
                    answer.extend_from_slice(unpadded(&body, flags)?);
                }
            }
            SETTINGS | PING if flags & ACK == 0 => {
                let mut reply = Vec::new();
                let echo = if kind == PING { body.as_slice() } else { &[] };
                frame(&mut reply, kind, ACK, 0, echo);
                stream.write_all(&reply).await?;
            }
            GOAWAY if body.get(4..8) != Some(&[0; 4][..]) => {
                return Err(Error::new("it ended the connection"));
            }
            _ => {}
        }
        let ends = match kind {
            DATA | HEADERS => flags & END_STREAM != 0,
            RST_STREAM => true,
            _ => false,
        };
        if let Some(is_open) = is_open.get_mut(at).filter(|_| ends && number % 2 == 1) {
            *is_open = false;
        }
    }
    Ok(bodies)
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

/// The message of a stream: uncompressed, complete, alone.
fn message(body: Vec<u8>) -> Option<Vec<u8>> {
    let (head, message) = body.split_at_checked(5)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    let whole = head[0] == 0 && usize::try_from(length).is_ok_and(|length| length == message.len());
    whole.then(|| message.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says these bytes, whatever it is asked.
    fn told(says: &[u8], count: usize) -> Result<Vec<Option<Vec<u8>>>> {
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
    fn an_answer_in_pieces_and_a_refusal_are_told_apart() {
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
        assert_eq!(told(&says, 2).unwrap(), [Some(b"abc".to_vec()), None]);
    }

    #[test]
    fn half_a_message_and_a_compressed_one_are_no_answers() {
        for body in [&b"\0\0\0\0\x09abc"[..], b"\x01\0\0\0\x01a", b"\0\0", b""] {
            assert_eq!(told(&frames(&[(DATA, END_STREAM, 1, body)]), 1).unwrap(), [None]);
        }
    }

    #[test]
    fn a_peer_that_lies_or_leaves_is_an_error() {
        let huge = [&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat();
        let away = frames(&[(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2])]);
        let padding = frames(&[(DATA, PADDED | END_STREAM, 1, b"\x09a")]);
        for says in [huge, away, padding, Vec::new(), b"HTTP/1.1 400 Bad".to_vec()] {
            assert!(told(&says, 1).is_err(), "{says:?}");
        }
    }

    #[test]
    fn long_words_keep_their_length() {
        let mut block = Vec::new();
        length(&mut block, 1337 + 127);
        assert_eq!(block, [127, 0xb9, 0x0a]);
    }
}
