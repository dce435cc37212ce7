// SPDX-License-Identifier: Apache-2.0
//! Connects to the daemon, sends frames with descriptors, and receives heartbeats and responses.
//!
//! Every wait is bounded (D8). This module starts no daemon, and decides nothing if none runs.

use std::io::{BufRead, BufReader, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, getsockopt, sendmsg,
    setsockopt, socket as open, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::config::{Config, SILENCE};
use crate::error::{Context, DaemonSeen, Error, Result};
use crate::link::{self, DaemonResponse, WrapperRequest};
use crate::presence::IfThere;

/// Time limit for the daemon's re-execution, in which the new program reads its records on a
/// machine that may be busy.
const REEXEC_WAIT: Duration = Duration::from_secs(30);

/// Returns the error for a daemon that exited before its response.
pub(super) fn exited() -> Error {
    Error::new("the daemon exited during the request").seen(DaemonSeen::Exited)
}

fn took_too_long() -> Error {
    Error::new("the daemon took too long")
}

pub(super) fn connect(socket: &Path) -> Result<UnixStream> {
    check_peer(socket, dial(socket))
}

/// Connects, with a time limit for the connection and every send. If the daemon does not accept,
/// its queue fills up, and a plain `connect` would then block forever.
pub(super) fn dial(socket: &Path) -> std::result::Result<UnixStream, Errno> {
    dial_within(socket, SILENCE)
}

/// Like [`dial`], with another time limit.
pub(super) fn dial_within(socket: &Path, wait: Duration) -> std::result::Result<UnixStream, Errno> {
    let fd = open(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Zero would mean no limit.
    let wait = TimeVal::milliseconds(i64::try_from(wait.as_millis()).unwrap_or(1).max(1));
    setsockopt(&fd, sockopt::SendTimeout, &wait)?;
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(socket)?)?;
    Ok(UnixStream::from(fd))
}

/// Like [`dial`], without waiting: a full queue of the daemon fails the connection, and a full
/// buffer the send.
pub(super) fn dial_at_once(socket: &Path) -> std::result::Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = open(AddressFamily::Unix, SockType::Stream, flags, None)?;
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(socket)?)?;
    Ok(UnixStream::from(fd))
}

/// Refuses a socket of another user: the daemon runs as the same user as this process.
pub(super) fn check_peer(
    socket: &Path,
    dialled: std::result::Result<UnixStream, Errno>,
) -> Result<UnixStream> {
    let doing = || format!("reaching the daemon at {}", socket.display());
    let stream = match dialled {
        Err(Errno::EAGAIN) => {
            return Err(Error::new("it does not accept connections")).doing(doing);
        }
        dialled => dialled.doing(doing)?,
    };
    let peer = getsockopt(&stream, sockopt::PeerCredentials)?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        return Err(Error::new(format!("the daemon's socket belongs to user {}", peer.uid())));
    }
    Ok(stream)
}

/// Sends a frame, with its descriptors on the first byte. `write` would raise SIGPIPE if the peer
/// has exited, and whether that ends this process depends on the engine.
pub(super) fn send_whole(stream: &UnixStream, frame: &[u8], fds: &[RawFd]) -> Result<()> {
    let mut sent = send_part(stream, frame, fds, MsgFlags::MSG_NOSIGNAL)?;
    while sent < frame.len() {
        sent += send_part(stream, &frame[sent..], &[], MsgFlags::MSG_NOSIGNAL)?;
    }
    Ok(())
}

/// Like [`send_whole`], with a deadline, because the socket's own time-out starts again with each
/// piece that a slow reader reads.
pub(super) fn send_until(
    stream: &UnixStream,
    frame: &[u8],
    fds: &[RawFd],
    until: Instant,
) -> Result<()> {
    let (flags, mut sent) = (MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT, 0);
    while sent < frame.len() {
        let fds = if sent == 0 { fds } else { &[] };
        match send_part(stream, &frame[sent..], fds, flags) {
            Ok(more) => sent += more,
            Err(Errno::EAGAIN) => {
                let left = until.saturating_duration_since(Instant::now()).min(SILENCE);
                let millis = u16::try_from(left.as_millis()).unwrap_or(u16::MAX);
                let mut writable = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut writable, PollTimeout::from(millis)) {
                    Ok(0) => return Err(took_too_long()),
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(errno) => return Err(errno.into()),
        }
        if sent < frame.len() && Instant::now() >= until {
            return Err(took_too_long());
        }
    }
    Ok(())
}

fn send_part(
    stream: &UnixStream,
    part: &[u8],
    fds: &[RawFd],
    flags: MsgFlags,
) -> std::result::Result<usize, Errno> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &rights[..0] } else { &rights[..] };
    sendmsg::<()>(stream.as_fd().as_raw_fd(), &[IoSlice::new(part)], control, flags, None)
}

/// Reads messages until one is not a heartbeat, through a buffer of `ahead` bytes.
///
/// # Errors
/// Fails at the deadline, or earlier if the daemon exits, cannot handle the request, or sends no
/// heartbeat and is not re-executing.
pub(super) fn receive(
    stream: &UnixStream,
    config: &Config,
    deadline: Instant,
    ahead: usize,
) -> Result<DaemonResponse> {
    let mut reader = BufReader::with_capacity(ahead, stream);
    let silence = config.debug_silence;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(took_too_long());
        }
        stream.set_read_timeout(Some(left.min(silence)))?;
        // If less time was left than a heartbeat takes, the daemon was slow, not unresponsive.
        let frame = match read_answer(&mut reader) {
            Err(error) if error.daemon() == DaemonSeen::Silent && left < silence => {
                return Err(took_too_long());
            }
            Err(error) if error.daemon() == DaemonSeen::Silent && is_becoming_another(config) => {
                continue;
            }
            frame => frame?,
        };
        match DaemonResponse::decode(&frame)? {
            DaemonResponse::Heartbeat => {}
            DaemonResponse::Unable(why) => return Err(Error::new(why)),
            answer @ (DaemonResponse::Proceed(_) | DaemonResponse::Refuse(_)) => return Ok(answer),
            answer @ (DaemonResponse::Incompatible { .. }
            | DaemonResponse::Admin(_)
            | DaemonResponse::AdminPart(_)
            | DaemonResponse::Ending) => {
                return Ok(answer);
            }
        }
    }
}

/// Whether the daemon is re-executing and its new program will serve this connection. The wait for
/// a daemon that hangs during the re-execution is limited.
fn is_becoming_another(config: &Config) -> bool {
    let text = crate::files::read_own_text(&config.reexec_file(), crate::limits::OWN_FILE);
    let text = text.or_absent().unwrap_or_default();
    // The monotonic clock cannot be set. A file of an earlier boot may have a later time than now.
    let begun = text.trim().parse().ok();
    let since = begun.and_then(|begun| crate::clock::monotonic().checked_sub(begun));
    since.is_some_and(|nanos| Duration::from_nanos(nanos) < REEXEC_WAIT)
}

fn read_answer(reader: &mut BufReader<&UnixStream>) -> Result<Vec<u8>> {
    match reader.fill_buf() {
        Ok([]) => Err(exited()),
        Ok(_) => link::read_frame(reader),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(Error::new("the daemon stopped responding").seen(DaemonSeen::Silent))
        }
        // The daemon was killed before it had read the whole request.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(exited()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a process listens, or may listen, on the daemon's socket, even one that accepts no connections.
pub(crate) fn is_listening(config: &Config) -> bool {
    !matches!(dial(&config.daemon_socket()), Err(Errno::ENOENT | Errno::ECONNREFUSED))
}

/// Whether the daemon listens, but accepts no connection or sends nothing within three seconds.
pub(crate) fn is_silent(config: &Config) -> bool {
    let stream = match dial(&config.daemon_socket()) {
        Ok(stream) => stream,
        Err(errno) => return errno == Errno::EAGAIN,
    };
    let question = WrapperRequest {
        protocol: link::PROTOCOL,
        admin: "{}".to_owned(),
        ..WrapperRequest::default()
    };
    if send_whole(&stream, &question.encode(), &[]).is_err() {
        return false; // The daemon has exited.
    }
    let wait = PollTimeout::try_from(SILENCE).unwrap_or(PollTimeout::MAX);
    poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], wait) == Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_daemon_that_reads_slowly_does_not_extend_the_time_limit() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut few = [0; 512];
            while theirs.read(&mut few).is_ok_and(|read| read > 0) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // At the reader's pace the frame would take minutes.
        let frame = vec![0; 16 << 20];
        let until = Instant::now() + Duration::from_millis(200);
        let error = send_until(&ours, &frame, &[], until).unwrap_err();
        drop(ours);
        assert!(error.to_string().contains("took too long") || error.is_hangup(), "{error}");
        reader.join().unwrap();
    }

    #[test]
    fn a_long_frame_arrives_whole_in_its_time() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all.len()
        });
        send_until(&ours, &vec![7; 3 << 20], &[], Instant::now() + SILENCE).unwrap();
        drop(ours);
        assert_eq!(reader.join().unwrap(), 3 << 20);
    }
}
