// SPDX-License-Identifier: Apache-2.0
//! Handles one wrapper's connection asynchronously: receives the request with its descriptors, sends heartbeats and
//! the response, and receives notices. Sizes and times are bounded; a peer that violates the protocol ends only its
//! connection.

use std::convert::Infallible;
use std::io::{ErrorKind, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::daemon::request::ReceivedQuestion;
use crate::error::{Context, Error, Result};
use crate::limits::{self, FRAME};
use crate::link::{DaemonResponse, Notice, PROTOCOL, WrapperRequest};

/// Time limit for a connection to send its request.
const QUESTION_WAIT: Duration = Duration::from_secs(5);

/// Time limit for a peer to read one frame of a response.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Interval of heartbeats to a wrapper while its request is handled.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Maximum descriptors of one message (the kernel's SCM_MAX_FD). All are received, so that an
/// unexpected one can be closed.
const DESCRIPTORS: usize = 253;

pub(crate) async fn read(stream: &mut UnixStream) -> Result<ReceivedQuestion> {
    let read = tokio::time::timeout(QUESTION_WAIT, read_request(stream)).await;
    read.map_err(|_gone| Error::new("the request did not arrive in time"))?
}

async fn read_request(stream: &mut UnixStream) -> Result<ReceivedQuestion> {
    let (first, fds, is_cut_off) = loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || receive(stream)) {
            Ok(received) => break received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    };
    if first.is_empty() {
        return Err(Error::new("the connection ended before a request"));
    }
    let mut bytes = first;
    while bytes.len() < 4 {
        bytes.push(stream.read_u8().await?);
    }
    let length = length_of(&bytes)?;
    let mut rest = bytes.split_off(4);
    if rest.len() > length {
        return Err(Error::new("the peer sent more than one request"));
    }
    let have = rest.len();
    rest.resize(length, 0);
    stream.read_exact(&mut rest[have..]).await?;
    let question = WrapperRequest::decode(&rest)?;
    if is_cut_off && question.descriptors.len() != fds.len() {
        // The kernel had no descriptor number left for the rest.
        return Err(nix::errno::Errno::EMFILE.into());
    }
    // A wrapper with a newer protocol may attach descriptors unknown to this version; it receives a
    // response that names this version.
    if question.protocol <= PROTOCOL && question.descriptors.len() != fds.len() {
        let (announced, received) = (question.descriptors.len(), fds.len());
        return Err(Error::new(format!(
            "the request announced {announced} descriptors, but {received} arrived"
        )));
    }
    let descriptors = question.descriptors.iter().copied().zip(fds).collect();
    Ok(ReceivedQuestion::new(question, descriptors))
}

fn length_of(bytes: &[u8]) -> Result<usize> {
    let mut length = [0_u8; 4];
    length.copy_from_slice(&bytes[..4]);
    match u32::from_le_bytes(length) {
        length @ 1..=FRAME => Ok(usize::try_from(length).unwrap_or(0)),
        length => {
            Err(Error::new(format!("a frame has {length} bytes, but must have 1 to {FRAME}")))
        }
    }
}

/// Receives the first bytes, the descriptors (owned, so that they are closed later), and whether
/// descriptors are missing.
fn receive(stream: &UnixStream) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>, bool)> {
    let mut buffer = vec![0_u8; 16 << 10];
    let mut control = cmsg_space!([i32; DESCRIPTORS]);
    let mut slices = [IoSliceMut::new(&mut buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    let (length, is_cut_off) = (message.bytes, message.flags.contains(MsgFlags::MSG_CTRUNC));
    buffer.truncate(length);
    Ok((buffer, installed(&control), is_cut_off))
}

/// Returns the descriptors in the kernel's one control message. If some are missing, nix's parser would
/// return none, and the others would stay open forever.
fn installed(control: &[u8]) -> Vec<OwnedFd> {
    const LENGTH: usize = size_of::<usize>();
    const NUMBER: usize = size_of::<i32>();
    const HEADER: usize = LENGTH + 2 * NUMBER;
    let number = |bytes: &[u8]| bytes.try_into().map_or(-1, i32::from_ne_bytes);
    let field = |at: usize| control.get(at..at + NUMBER).map_or(-1, number);
    let length = control.first_chunk::<LENGTH>().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
    let kind = (field(LENGTH), field(LENGTH + NUMBER));
    let numbers = control.get(HEADER..length).unwrap_or_default();
    let is_rights = kind == (nix::libc::SOL_SOCKET, nix::libc::SCM_RIGHTS);
    let numbers = numbers.chunks_exact(NUMBER).filter(|_| is_rights);
    numbers.map(|bytes| own(number(bytes))).collect()
}

#[expect(unsafe_code, reason = "descriptors arrive as numbers")]
fn own(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just installed this descriptor for this process, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Whether the wrapper has closed its end, because it gave up or died.
pub(crate) fn is_closed(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let ready = poll(&mut fds, PollTimeout::ZERO).is_ok();
    ready && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

/// Sends `answer`; success does not mean that the wrapper reads it, which only its notice shows. A long
/// document for an operator is sent in parts. A verdict that exceeds a frame becomes a refusal: plugins
/// choose the verdict's length, and a wrapper that could not read it would bypass all of them.
pub(crate) async fn send(stream: &mut UnixStream, answer: &DaemonResponse) -> Result<()> {
    let mut frame = if let DaemonResponse::Admin(json) = answer {
        let rest = send_parts(stream, json).await?;
        DaemonResponse::Admin(rest.to_owned()).encode()
    } else {
        answer.encode()
    };
    if frame.len() > usize::try_from(FRAME).unwrap_or(usize::MAX) {
        let length = frame.len();
        let why = format!("the plugins' values have {length} bytes, at most {FRAME} are sent");
        frame = DaemonResponse::Refuse(why).encode();
    }
    send_frame(stream, &frame).await
}

/// Sends an operator's document in parts of full length; returns the rest, which is at most one part.
pub(crate) async fn send_parts<'d>(stream: &mut UnixStream, document: &'d str) -> Result<&'d str> {
    let mut rest = document;
    while rest.len() > limits::ADMIN_PART {
        let (part, after) = limits::split(rest, limits::ADMIN_PART);
        send_frame(stream, &DaemonResponse::AdminPart(part.to_owned()).encode()).await?;
        rest = after;
    }
    Ok(rest)
}

/// Sends one frame. Fails if the peer does not read it in time, because a re-execution waits for open
/// connections.
async fn send_frame(stream: &mut UnixStream, frame: &[u8]) -> Result<()> {
    let sent = tokio::time::timeout(ANSWER_WAIT, stream.write_all(frame)).await;
    let sent = sent.map_err(|_late| Error::new("the peer does not read the response"))?;
    sent.doing(|| "sending an answer")
}

/// Waits for the notice after a verdict; the end of the connection is an error.
pub(crate) async fn notice(stream: &mut UnixStream) -> Result<Notice> {
    let length = stream.read_u32_le().await?;
    let most = 64 << 10;
    if length == 0 || length > most {
        return Err(Error::new(format!("a notice has {length} bytes, but must have 1 to {most}")));
    }
    let mut frame = vec![0_u8; usize::try_from(length).unwrap_or(0)];
    stream.read_exact(&mut frame).await?;
    Notice::decode(&frame)
}

async fn send_heartbeats(stream: &mut UnixStream) -> Infallible {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if send(stream, &DaemonResponse::Heartbeat).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Sends the wrapper heartbeats until `work` is done. A wrapper that disconnects meanwhile is
/// noticed when the response is sent.
pub(crate) async fn with_heartbeat<T>(
    stream: &mut UnixStream,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    // The work continues if the wrapper is gone: plugins may have been asked, and a rollback follows
    // when the verdict cannot be delivered. A socket accepts all of a heartbeat's few bytes or none,
    // so stopping the heartbeats never leaves a part of one.
    tokio::select! {
        biased;
        done = work => done,
        never = send_heartbeats(stream) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bounded = tokio::time::timeout(ANSWER_WAIT / 2, test).await;
            bounded.expect("it waits for a peer that does not read")
        })
    }

    /// Returns a stream with a full buffer, and its other end, which is not read.
    async fn full() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.writable().await.unwrap();
        while ours.try_write(&[0; 4096]).is_ok() {}
        (ours, theirs)
    }

    #[test]
    fn work_continues_while_a_wrapper_reads_no_heartbeat() {
        run(async {
            let (mut ours, _unread) = full().await;
            let work = async {
                tokio::time::sleep(HEARTBEAT * 2).await;
                Ok("done")
            };
            assert_eq!(with_heartbeat(&mut ours, work).await.unwrap(), "done");
        });
    }

    #[test]
    fn a_waiting_wrapper_receives_heartbeats() {
        run(async {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let mut beat = [0; 5];
            let read = async { theirs.read_exact(&mut beat).await.map_err(Into::into) };
            with_heartbeat(&mut ours, read).await.unwrap();
            let frame = beat.get(4..).unwrap();
            assert!(matches!(DaemonResponse::decode(frame), Ok(DaemonResponse::Heartbeat)));
        });
    }
}
