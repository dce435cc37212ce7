// SPDX-License-Identifier: Apache-2.0
//! Makes one request to the daemon: the command with its descriptors, heartbeats, the verdict.
//!
//! Every wait is bounded (D8): three seconds without a heartbeat, and a limit for each verb. If no
//! daemon answers, `bypass.rs` decides.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::argv::Verb;
use crate::config::{Config, SILENCE};
use crate::error::{Context, Error, Result};
use crate::host::Point;
use crate::link::{self, Attached, DaemonResponse, Notice, Proceed, WrapperRequest};
use crate::presence;

use super::connection::{
    check_peer, connect, dial, dial_at_once, dial_within, receive, send_until, send_whole,
};
use super::invocation::Invocation;
use super::{admin_request, launch};

/// Time limits of these verbs for the daemon's verdict (D8).
const DELETE_CAP: Duration = Duration::from_secs(4);
const UPDATE_CAP: Duration = Duration::from_secs(30);
const START_CAP: Duration = Duration::from_secs(90);

/// Time limit for the next daemon to listen after an orderly shutdown.
const NEXT_DAEMON_WAIT: Duration = Duration::from_secs(5);

/// Pause between two attempts to reach the next daemon.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Size of the buffer for a response, in bytes; the rest of a longer frame is read directly.
pub(super) const READ_AHEAD: usize = 1024;

/// The outcome of a request to the daemon.
pub(super) enum DaemonVerdict {
    /// The daemon permits the command; the wrapper sends `EXEC` next.
    Proceed(Proceed, DaemonSession),
    /// No verdict, for this reason: the daemon is unreachable, too slow, has exited, or speaks another protocol.
    Away(String),
}

/// An open connection after a verdict.
pub(super) struct DaemonSession(UnixStream);

/// Why there is no verdict.
enum NoVerdict {
    /// The daemon was about to exit: the wrapper must ask the next one.
    Ending,
    /// No daemon accepts the request, for this reason.
    Unreachable(String),
    /// The operator's policy for a missing daemon applies, for this reason.
    Away(String),
    /// The daemon speaks this older protocol.
    Older(u32, String),
    /// The daemon refused the command.
    Refused(Error),
}

impl DaemonSession {
    /// Sends the request and waits for the verdict.
    pub(super) fn open(
        invocation: &Invocation<'_>,
        document: &str,
        attached: &[(Attached, &OwnedFd)],
    ) -> Result<DaemonVerdict> {
        let cap = match invocation.call.verb {
            Verb::Delete => DELETE_CAP,
            Verb::Update => UPDATE_CAP,
            Verb::Create | Verb::Run | Verb::Restore => invocation.config.debug_create_cap,
            Verb::Start => START_CAP,
            Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => SILENCE,
            Verb::Nri | Verb::Other | Verb::None => SILENCE,
        };
        let deadline = Instant::now() + cap;
        // Once a daemon has announced its exit, time until which the next one may be starting.
        let mut next_by = Instant::now();
        let mut has_asked = false;
        loop {
            match Self::converse(invocation, document, attached, deadline) {
                Ok((proceed, session)) => return Ok(DaemonVerdict::Proceed(proceed, session)),
                Err(NoVerdict::Refused(error)) => return Err(error),
                Err(NoVerdict::Ending) => next_by = deadline.min(Instant::now() + NEXT_DAEMON_WAIT),
                Err(NoVerdict::Unreachable(_)) if Instant::now() < next_by => {}
                // Tried once, because the program at its path may be as old as the daemon.
                Err(NoVerdict::Older(protocol, _)) if !has_asked => {
                    has_asked = true;
                    if let Err(error) =
                        admin_request::replace_daemon(invocation.config, protocol, deadline)
                    {
                        return Ok(DaemonVerdict::Away(error.to_string()));
                    }
                    next_by = deadline.min(Instant::now() + NEXT_DAEMON_WAIT);
                    continue;
                }
                Err(
                    NoVerdict::Unreachable(why) | NoVerdict::Away(why) | NoVerdict::Older(_, why),
                ) => {
                    return Ok(DaemonVerdict::Away(why));
                }
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
    }

    fn converse(
        invocation: &Invocation<'_>,
        document: &str,
        attached: &[(Attached, &OwnedFd)],
        deadline: Instant,
    ) -> std::result::Result<(Proceed, Self), NoVerdict> {
        let unreachable = |error: Error| NoVerdict::Unreachable(error.to_string());
        let stream = reach(invocation.config, deadline).map_err(unreachable)?;
        Self::ask(stream, invocation, document, attached, deadline)
    }

    /// Notifies the running daemon of the command and waits for its verdict; starts no daemon.
    ///
    /// # Errors
    /// Fails when the daemon refuses the command.
    pub(super) fn notify(invocation: &Invocation<'_>, deadline: Instant) -> Result<DaemonVerdict> {
        let socket = invocation.config.daemon_socket();
        let left = deadline.saturating_duration_since(Instant::now());
        let stream = match check_peer(&socket, dial_within(&socket, left)) {
            Ok(stream) => stream,
            Err(error) => return Ok(DaemonVerdict::Away(error.to_string())),
        };
        match Self::ask(stream, invocation, "", &[], deadline) {
            Ok((proceed, session)) => Ok(DaemonVerdict::Proceed(proceed, session)),
            Err(NoVerdict::Refused(error)) => Err(error),
            Err(NoVerdict::Ending) => Ok(DaemonVerdict::Away("the daemon is about to exit".into())),
            Err(NoVerdict::Unreachable(why) | NoVerdict::Away(why) | NoVerdict::Older(_, why)) => {
                Ok(DaemonVerdict::Away(why))
            }
        }
    }

    /// Sends the request to the running daemon, without waiting for the connection or the response.
    ///
    /// # Errors
    /// Fails when no daemon can accept it at once.
    pub(super) fn tell(invocation: &Invocation<'_>) -> Result<()> {
        let socket = invocation.config.daemon_socket();
        let stream = check_peer(&socket, dial_at_once(&socket))?;
        let process = own_pidfd()?;
        let question = build_question(invocation, "", &[(Attached::Process, &process)]);
        send_whole(&stream, &question.encode(), &[process.as_raw_fd()])
    }

    fn ask(
        stream: UnixStream,
        invocation: &Invocation<'_>,
        document: &str,
        attached: &[(Attached, &OwnedFd)],
        deadline: Instant,
    ) -> std::result::Result<(Proceed, Self), NoVerdict> {
        let away = |error: Error| NoVerdict::Away(error.to_string());
        let process = presence::insist(own_pidfd).map_err(away)?;
        let mut descriptors: Vec<(Attached, &OwnedFd)> = vec![(Attached::Process, &process)];
        descriptors.extend_from_slice(attached);
        let question = build_question(invocation, document, &descriptors);
        let fds: Vec<RawFd> = descriptors.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        send_until(&stream, &question.encode(), &fds, deadline).map_err(away)?;
        match receive(&stream, invocation.config, deadline, READ_AHEAD).map_err(away)? {
            DaemonResponse::Proceed(proceed) => Ok((proceed, Self(stream))),
            DaemonResponse::Refuse(line) => Err(NoVerdict::Refused(Error::new(line))),
            DaemonResponse::Incompatible { protocol, version } => {
                let own = link_protocol(invocation.config);
                let why = format!(
                    "the daemon (version {version}) speaks protocol {protocol}, but this nri-runc speaks {own}"
                );
                if protocol < own {
                    return Err(NoVerdict::Older(protocol, why));
                }
                Err(NoVerdict::Away(why))
            }
            DaemonResponse::Ending => Err(NoVerdict::Ending),
            DaemonResponse::Heartbeat
            | DaemonResponse::Admin(_)
            | DaemonResponse::AdminPart(_)
            | DaemonResponse::Unable(_) => {
                Err(NoVerdict::Away("the daemon sent an unexpected response".to_owned()))
            }
        }
    }

    /// Notifies the daemon that everything is in place and the runtime is executed next.
    pub(super) fn notify_exec(&mut self) -> Result<()> {
        send_whole(&self.0, &Notice::Exec.encode(), &[]).doing(|| "notifying the daemon")
    }

    /// Notifies the daemon that the runtime could not be executed and everything was restored.
    pub(super) fn notify_exec_failed(&mut self, error: &Error) {
        let notice = Notice::ExecFailed(error.to_string());
        let _daemon_sees_us_end = send_whole(&self.0, &notice.encode(), &[]);
    }
}

/// Builds this process's request, also for the record of one that could not be sent.
pub(super) fn build_question(
    invocation: &Invocation<'_>,
    document: &str,
    with: &[(Attached, &OwnedFd)],
) -> WrapperRequest {
    let variables = link::ENGINE_VARIABLES
        .iter()
        .filter_map(|name| std::env::var_os(name).map(|value| ((*name).to_owned(), value)));
    WrapperRequest {
        protocol: link_protocol(invocation.config),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: invocation.request_argv().to_vec(),
        cwd: std::env::current_dir().map(OsString::from).unwrap_or_default(),
        parent_pid: nix::unistd::getppid().as_raw().cast_unsigned(),
        pid: std::process::id(),
        runtime: invocation.runtime.clone().into_os_string(),
        variables: variables.collect(),
        document: document.to_owned(),
        descriptors: with.iter().map(|(what, _)| *what).collect(),
        admin: String::new(),
        hook: None,
        later: invocation.later.clone(),
    }
}

/// Returns the version of the protocol that this process speaks.
pub(super) fn link_protocol(config: &Config) -> u32 {
    config.seams.protocol.unwrap_or(link::PROTOCOL)
}

/// Connects to the daemon, and starts it first if necessary and permitted. The start counts towards
/// the verb's time limit.
pub(super) fn reach(config: &Config, deadline: Instant) -> Result<UnixStream> {
    let socket = config.daemon_socket();
    // A shortage of this process or the host shows nothing about the daemon, so the connection is retried.
    let dialled = presence::insist(|| match dial(&socket) {
        Err(errno) if presence::is_shortage(errno as i32) => Err(std::io::Error::from(errno)),
        dialled => Ok(dialled),
    });
    match dialled? {
        // A daemon that listens without answering runs, so another one could not be started.
        Err(Errno::ENOENT | Errno::ECONNREFUSED) if config.autostart => {
            launch::launch(config, deadline)?;
            connect(&socket)
        }
        dialled => check_peer(&socket, dialled),
    }
}

/// Opens a pidfd of this process, which still refers to the process after `execve` (D2).
fn own_pidfd() -> Result<OwnedFd> {
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(rustix::process::getpid(), flags)
        .map_err(|errno| std::io::Error::from_raw_os_error(errno.raw_os_error()))
        .doing(|| "opening a descriptor of this process")
}

impl Invocation<'_> {
    /// Makes one request to the daemon, and starts it first if necessary and permitted.
    pub(super) fn ask(
        &self,
        document: &str,
        attached: &[(Attached, &OwnedFd)],
    ) -> Result<DaemonVerdict> {
        self.host.point(Point::WrapperAsk)?;
        DaemonSession::open(self, document, attached)
    }
}
