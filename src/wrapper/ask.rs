// SPDX-License-Identifier: Apache-2.0
//! One round trip to the daemon: the question with its descriptors, heartbeats, the answer.
//!
//! Every wait is bounded (D8): three seconds of silence, and a hard cap for each verb. It never
//! decides what a missing daemon means; that is `bypass.rs`.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, getsockopt, send,
    sendmsg, setsockopt, socket as open, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::argv::Verb;
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::link::{self, Answer, Attached, Notice, Proceed, Question};

use super::Wrapper;
use super::awaken;

/// Silence after which the daemon is taken for dead.
const SILENCE: Duration = Duration::from_secs(3);

/// How long the next daemon may take to come when one has ended in good order, and the pauses.
const NEXT_DAEMON: Duration = Duration::from_secs(5);
const BEFORE_NEXT_DAEMON: Duration = Duration::from_millis(50);

const TOO_LONG: &str = "the daemon took too long";
const SILENT: &str = "the daemon fell silent";
const ENDED: &str = "the daemon ended during the call";

/// How the daemon was reached.
pub(super) enum Asked {
    /// It answered; the conversation goes on with `EXEC`.
    Proceed(Proceed, Conversation),
    /// It could not be reached, fell silent, died, or speaks another protocol.
    Away(String),
}

/// An open connection after a verdict.
pub(super) struct Conversation(UnixStream);

/// Why no verdict came.
enum Failure {
    /// The daemon was about to exit: the next one is to be asked.
    Ending,
    /// No daemon takes the question; why.
    Unreachable(String),
    /// The policy for a missing daemon decides.
    Away(String),
    /// Fail the verb.
    Refused(Error),
}

impl Conversation {
    /// Asks about this wrapper's verb.
    pub(super) fn open(
        wrapper: &Wrapper<'_>,
        document: &str,
        attached: &[(Attached, &OwnedFd)],
    ) -> Result<Asked> {
        let cap = match wrapper.call.verb {
            Verb::Delete => Duration::from_secs(4),
            Verb::Update => Duration::from_secs(30),
            Verb::Create | Verb::Run | Verb::Restore => wrapper.config.debug_create_cap,
            Verb::Start => Duration::from_secs(90),
            Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => SILENCE,
            Verb::Nri | Verb::Other | Verb::None => SILENCE,
        };
        let deadline = Instant::now() + cap;
        // Until when the next daemon may be on its way, once one has sent us there.
        let mut next_by = Instant::now();
        loop {
            match Self::converse(wrapper, document, attached, deadline) {
                Ok((proceed, conversation)) => return Ok(Asked::Proceed(proceed, conversation)),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Ending) => next_by = deadline.min(Instant::now() + NEXT_DAEMON),
                Err(Failure::Unreachable(_)) if Instant::now() < next_by => {}
                Err(Failure::Unreachable(why) | Failure::Away(why)) => return Ok(Asked::Away(why)),
            }
            std::thread::sleep(BEFORE_NEXT_DAEMON);
        }
    }

    fn converse(
        wrapper: &Wrapper<'_>,
        document: &str,
        attached: &[(Attached, &OwnedFd)],
        deadline: Instant,
    ) -> std::result::Result<(Proceed, Self), Failure> {
        let away = |error: Error| Failure::Away(error.to_string());
        let unreachable = |error: Error| Failure::Unreachable(error.to_string());
        let stream = reach(wrapper.config, deadline).map_err(unreachable)?;
        let process = awaken::own_pidfd().map_err(away)?;
        let mut descriptors: Vec<(Attached, &OwnedFd)> = vec![(Attached::Process, &process)];
        descriptors.extend_from_slice(attached);
        let question = question(wrapper, document, &descriptors);
        let fds: Vec<RawFd> = descriptors.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        send_whole(&stream, &question.encode(), &fds).map_err(away)?;
        match wait(&stream, deadline, 1024).map_err(away)? {
            Answer::Proceed(proceed) => Ok((proceed, Self(stream))),
            Answer::Refuse(line) => Err(Failure::Refused(Error::new(line))),
            Answer::Incompatible { protocol, version } => Err(Failure::Away(format!(
                "the daemon (version {version}) speaks protocol {protocol}, this is {}; restart it",
                link::PROTOCOL
            ))),
            Answer::Ending => Err(Failure::Ending),
            Answer::Heartbeat | Answer::Admin(_) => {
                Err(Failure::Away("the daemon answered something else".to_owned()))
            }
        }
    }

    /// Everything is in place, the runtime comes next.
    pub(super) fn say_exec(&mut self) -> Result<()> {
        send_whole(&self.0, &Notice::Exec.encode(), &[]).doing(|| "telling the daemon")
    }

    /// The runtime could not be executed and everything was put back.
    pub(super) fn say_exec_failed(&mut self, error: &Error) {
        let notice = Notice::ExecFailed(error.to_string());
        let _daemon_sees_us_end = send_whole(&self.0, &notice.encode(), &[]);
    }
}

/// What this wrapper asks, or would have asked.
pub(super) fn question(
    wrapper: &Wrapper<'_>,
    document: &str,
    with: &[(Attached, &OwnedFd)],
) -> Question {
    let variables = link::ENGINE_VARIABLES
        .iter()
        .filter_map(|name| std::env::var_os(name).map(|value| ((*name).to_owned(), value)));
    Question {
        protocol: link::PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: wrapper.argv.to_vec(),
        cwd: std::env::current_dir().map(OsString::from).unwrap_or_default(),
        parent_pid: nix::unistd::getppid().as_raw().cast_unsigned(),
        pid: std::process::id(),
        runtime: wrapper.runtime.clone().into_os_string(),
        variables: variables.collect(),
        document: document.to_owned(),
        descriptors: with.iter().map(|(what, _)| *what).collect(),
        admin: String::new(),
        hook: None,
    }
}

/// A connection to the daemon, which is started first if it is not there and may be. Starting it
/// counts towards the verb's cap.
pub(super) fn reach(config: &Config, deadline: Instant) -> Result<UnixStream> {
    let socket = config.daemon_socket();
    match dial(&socket) {
        // A daemon that listens and does not answer is there: another one could not be started.
        Err(Errno::ENOENT | Errno::ECONNREFUSED) if config.autostart => {
            awaken::awaken(config, deadline)?;
            connect(&socket)
        }
        dialled => checked(&socket, dialled),
    }
}

fn connect(socket: &Path) -> Result<UnixStream> {
    checked(socket, dial(socket))
}

/// Connects, and bounds this and every send: a daemon that does not accept fills its queue, and
/// then a plain `connect` would wait for ever.
pub(super) fn dial(socket: &Path) -> std::result::Result<UnixStream, Errno> {
    let fd = open(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let silence = TimeVal::seconds(i64::try_from(SILENCE.as_secs()).unwrap_or(1));
    setsockopt(&fd, sockopt::SendTimeout, &silence)?;
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(socket)?)?;
    Ok(UnixStream::from(fd))
}

/// The daemon runs as we do; a socket of anybody else is not ours.
fn checked(socket: &Path, dialled: std::result::Result<UnixStream, Errno>) -> Result<UnixStream> {
    let doing = || format!("reaching the daemon at {}", socket.display());
    let stream = match dialled {
        Err(Errno::EAGAIN) => return Err(Error::new("it does not take calls")).doing(doing),
        dialled => dialled.doing(doing)?,
    };
    let peer = getsockopt(&stream, sockopt::PeerCredentials)?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        return Err(Error::new(format!("the daemon's socket belongs to user {}", peer.uid())));
    }
    Ok(stream)
}

/// Sends a frame, its descriptors with the first byte. Not `write`: the other side may be gone,
/// and SIGPIPE, whose disposition we leave as it came, would end us.
pub(super) fn send_whole(stream: &UnixStream, frame: &[u8], fds: &[RawFd]) -> Result<()> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &rights[..0] } else { &rights[..] };
    let slices = [IoSlice::new(frame)];
    let fd = stream.as_fd().as_raw_fd();
    let mut sent = sendmsg::<()>(fd, &slices, control, MsgFlags::MSG_NOSIGNAL, None)?;
    while sent < frame.len() {
        sent += send(fd, &frame[sent..], MsgFlags::MSG_NOSIGNAL)?;
    }
    Ok(())
}

/// Reads answers until one is no heartbeat, up to `ahead` bytes at once.
pub(super) fn wait(stream: &UnixStream, deadline: Instant, ahead: usize) -> Result<Answer> {
    let mut reader = BufReader::with_capacity(ahead, stream);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(TOO_LONG));
        }
        stream.set_read_timeout(Some(left.min(SILENCE)))?;
        // Only where the daemon was given the time for a heartbeat, it has fallen silent.
        let silence = if left < SILENCE { TOO_LONG } else { SILENT };
        let frame = read_answer(&mut reader, silence)?;
        match Answer::decode(&frame)? {
            Answer::Heartbeat => {}
            answer @ (Answer::Proceed(_) | Answer::Refuse(_)) => return Ok(answer),
            answer @ (Answer::Incompatible { .. } | Answer::Admin(_) | Answer::Ending) => {
                return Ok(answer);
            }
        }
    }
}

fn read_answer(reader: &mut BufReader<&UnixStream>, silence: &str) -> Result<Vec<u8>> {
    match reader.fill_buf() {
        Ok([]) => Err(Error::new(ENDED)),
        Ok(_) => link::read_frame(reader),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(Error::new(silence))
        }
        // It was killed before it had read all of the question.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(Error::new(ENDED)),
        Err(error) => Err(error.into()),
    }
}

/// Whether anybody listens on the daemon's socket, also one that takes no calls.
pub fn is_listening(config: &Config) -> bool {
    !matches!(dial(&config.daemon_socket()), Err(Errno::ENOENT | Errno::ECONNREFUSED))
}

/// Whether the daemon listens and gives no answer of any kind within three seconds.
pub fn is_silent(config: &Config) -> bool {
    let stream = match dial(&config.daemon_socket()) {
        Ok(stream) => stream,
        Err(errno) => return errno == Errno::EAGAIN,
    };
    let question =
        Question { protocol: link::PROTOCOL, admin: "{}".to_owned(), ..Question::default() };
    if send_whole(&stream, &question.encode(), &[]).is_err() {
        return false; // It has ended.
    }
    let wait = PollTimeout::try_from(SILENCE).unwrap_or(PollTimeout::MAX);
    poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], wait) == Ok(0)
}

/// Asks the running daemon an admin question, a JSON document; answers with one.
///
/// # Errors
/// Fails when the daemon is not there; it is never started for this.
pub fn admin(config: &Config, json: &str) -> Result<String> {
    admin_stream(config, json).map(|(json, _ended)| json)
}

/// The same for a question after whose answer the daemon goes on to send lines.
///
/// # Errors
/// As [`admin`].
pub fn admin_stream(config: &Config, json: &str) -> Result<(String, UnixStream)> {
    let socket = config.daemon_socket();
    let stream = match dial(&socket) {
        Err(Errno::ENOENT | Errno::ECONNREFUSED) => {
            let error = Error::new(format!("the daemon is not running at {}", socket.display()));
            return Err(error.hint(if config.autostart {
                "it starts with the first container, or by: nri-runc nri daemon"
            } else {
                "start its service: autostart is off"
            }));
        }
        dialled => checked(&socket, dialled)?,
    };
    let question = Question {
        protocol: link::PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        admin: json.to_owned(),
        ..Question::default()
    };
    send_whole(&stream, &question.encode(), &[])?;
    // Nothing is read ahead: what follows is the caller's.
    let answer = wait(&stream, Instant::now() + Duration::from_secs(10), 1);
    let answer = answer.map_err(|error| match error.why() == SILENT {
        true => error.hint("a daemon that hangs is ended by: nri-runc nri restart"),
        false => error,
    });
    match answer? {
        Answer::Admin(json) => Ok((json, stream)),
        Answer::Refuse(line) => Err(Error::new(line)),
        Answer::Incompatible { protocol, version } => Err(Error::new(format!(
            "the daemon (version {version}) speaks protocol {protocol}, this is {}",
            link::PROTOCOL
        ))),
        Answer::Heartbeat | Answer::Proceed(_) | Answer::Ending => {
            Err(Error::new("the daemon answered something else"))
        }
    }
}
