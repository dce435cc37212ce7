// SPDX-License-Identifier: Apache-2.0
//! Sends admin verbs to the running daemon. This module never starts a daemon.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde_json::json;

use crate::answers::{AdminRequest, UNKNOWN_VERB};
use crate::config::Config;
use crate::error::{DaemonSeen, Error, Result};
use crate::link::{DaemonResponse, WrapperRequest};

use super::connection::{check_peer, dial, exited, receive, send_whole};
use super::request::link_protocol;

/// Time limit for the daemon's response.
const ADMIN_RESPONSE_WAIT: Duration = Duration::from_secs(10);

/// Time limit for a response that takes long; the daemon sends heartbeats meanwhile.
const SLOW_RESPONSE_WAIT: Duration = Duration::from_secs(60);

/// Returns the time limit of a request. `forget` notifies plugins, `drift` reads files of all
/// containers, and a re-execution finishes requests in flight first; `node` waits as long for a reload.
fn time_limit(request: &AdminRequest) -> Duration {
    use AdminRequest::{Drift, Forget, Reexec, Reload};
    let is_slow = matches!(request, Forget { .. } | Drift { .. } | Reexec | Reload { .. });
    if is_slow { SLOW_RESPONSE_WAIT } else { ADMIN_RESPONSE_WAIT }
}

/// Sends the running daemon a request and returns its response (JSON).
///
/// # Errors
/// Fails when no daemon listens (none is started), or it refuses or does not answer in time.
pub(crate) fn admin(config: &Config, request: &AdminRequest) -> Result<String> {
    admin_stream(config, request).map(|(json, _ended)| json)
}

/// Like [`admin`], for a request that the daemon answers with a response and then with lines. Asks in
/// the daemon's version of the protocol: requests and answers have the same form in every version,
/// except that since 0.1.0 answers above 1 MiB come in parts.
///
/// # Errors
/// As [`admin`].
pub(crate) fn admin_stream(
    config: &Config,
    request: &AdminRequest,
) -> Result<(String, UnixStream)> {
    let (own, wait) = (link_protocol(config), time_limit(request));
    match ask(config, own, request, wait)? {
        (Reply::Answer(answer), stream) => Ok((answer, stream)),
        (Reply::Speaks(protocol), _) => match ask(config, protocol, request, wait)? {
            (Reply::Answer(answer), stream) => Ok((answer, stream)),
            (Reply::Speaks(other), _) => Err(Error::new(format!(
                "the daemon speaks protocol {other}, but this nri-runc speaks {own}"
            ))),
        },
    }
}

/// Makes a daemon that speaks the older `protocol` execute the program that now lies at the daemon's path.
///
/// # Errors
/// Fails when the daemon refuses, or does not answer in time.
pub(super) fn replace_daemon(config: &Config, protocol: u32, deadline: Instant) -> Result<()> {
    let wait = deadline.saturating_duration_since(Instant::now()).min(SLOW_RESPONSE_WAIT);
    match ask(config, protocol, &AdminRequest::Reexec, wait) {
        Ok(_) => Ok(()),
        // Another wrapper made the same request earlier, and the new program does not serve this connection.
        Err(error) if error.daemon() == DaemonSeen::Exited => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a request failed because no daemon listens, or the daemon exited during the request.
pub(crate) fn has_ended(error: &Error) -> bool {
    matches!(error.daemon(), DaemonSeen::Exited | DaemonSeen::Absent)
}

/// Returns the protocols of the daemon and of this program, if the daemon does not know this program's.
pub(crate) fn other_protocol(config: &Config) -> Option<(u32, u32)> {
    let own = link_protocol(config);
    match ask(config, own, &AdminRequest::Status, ADMIN_RESPONSE_WAIT).ok()? {
        (Reply::Speaks(theirs), _) => Some((theirs, own)),
        (Reply::Answer(_), _) => None,
    }
}

enum Reply {
    Answer(String),
    /// The daemon speaks this version of the protocol.
    Speaks(u32),
}

fn ask(
    config: &Config,
    protocol: u32,
    request: &AdminRequest,
    wait: Duration,
) -> Result<(Reply, UnixStream)> {
    let socket = config.daemon_socket();
    let stream = match dial(&socket) {
        Err(Errno::ENOENT | Errno::ECONNREFUSED) => {
            let error = Error::new(format!("the daemon is not running at {}", socket.display()));
            let error = error.seen(DaemonSeen::Absent);
            return Err(error.hint(if config.autostart {
                "the first container starts it; to start it now: nri-runc nri restart"
            } else {
                "autostart is off: start its service"
            }));
        }
        dialled => check_peer(&socket, dialled)?,
    };
    let question = WrapperRequest {
        protocol,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        admin: json!(request).to_string(),
        ..WrapperRequest::default()
    };
    send_whole(&stream, &question.encode(), &[]).map_err(|error| match error.is_hangup() {
        true => exited(),
        false => error.doing(format!("asking the daemon at {}", socket.display())),
    })?;
    let mut parts = String::new();
    match receive_whole(&stream, config, wait.max(config.debug_silence), &mut parts)? {
        DaemonResponse::Admin(rest) => Ok((Reply::Answer(parts + &rest), stream)),
        DaemonResponse::Refuse(line) if line.starts_with(UNKNOWN_VERB) => {
            Err(Error::new(line).hint("it is older than this program: nri-runc nri reexec"))
        }
        DaemonResponse::Refuse(line) => Err(Error::new(line)),
        DaemonResponse::Incompatible { protocol, .. } => Ok((Reply::Speaks(protocol), stream)),
        DaemonResponse::Ending => Err(exited()),
        DaemonResponse::Heartbeat
        | DaemonResponse::Proceed(_)
        | DaemonResponse::AdminPart(_)
        | DaemonResponse::Unable(_) => Err(Error::new("the daemon sent an unexpected response")),
    }
}

/// Reads the response; a long one comes in parts, and the time limit applies to each part.
fn receive_whole(
    stream: &UnixStream,
    config: &Config,
    wait: Duration,
    parts: &mut String,
) -> Result<DaemonResponse> {
    loop {
        // Nothing is read ahead, because the caller reads the lines that follow.
        let answer = receive(stream, config, Instant::now() + wait, 1);
        let answer = answer.map_err(|error| match error.daemon() {
            DaemonSeen::Silent => {
                error.hint("to replace a daemon that hangs: nri-runc nri restart")
            }
            DaemonSeen::Unknown | DaemonSeen::Absent | DaemonSeen::Exited => error,
        });
        let answer = answer?;
        let DaemonResponse::AdminPart(part) = answer else { return Ok(answer) };
        parts.push_str(&part);
    }
}
