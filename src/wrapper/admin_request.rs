// SPDX-License-Identifier: Apache-2.0
//! Requests of admin verbs to the running daemon. It never starts one.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::link::{self, DaemonResponse, WrapperRequest};

use super::connection::{SILENT, check_peer, dial, receive, send_whole};

/// How long the daemon may take to respond to an admin verb.
const ADMIN_RESPONSE_WAIT: Duration = Duration::from_secs(10);

/// Sends the running daemon an admin request, a JSON document; returns its response, another one.
///
/// # Errors
/// Fails when the daemon is not there; it is never started for this.
pub(crate) fn admin(config: &Config, json: &str) -> Result<String> {
    admin_stream(config, json).map(|(json, _ended)| json)
}

/// The same for a request after whose response the daemon continues to send lines.
///
/// # Errors
/// As [`admin`].
pub(crate) fn admin_stream(config: &Config, json: &str) -> Result<(String, UnixStream)> {
    let socket = config.daemon_socket();
    let stream = match dial(&socket) {
        Err(Errno::ENOENT | Errno::ECONNREFUSED) => {
            let error = Error::new(format!("the daemon is not running at {}", socket.display()));
            return Err(error.hint(if config.autostart {
                "the first container starts it; to start it now: nri-runc nri restart"
            } else {
                "autostart is off: start its service"
            }));
        }
        dialled => check_peer(&socket, dialled)?,
    };
    let question = WrapperRequest {
        protocol: link::PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        admin: json.to_owned(),
        ..WrapperRequest::default()
    };
    send_whole(&stream, &question.encode(), &[])?;
    // Nothing is read ahead: what follows is the caller's.
    let answer = receive(&stream, Instant::now() + ADMIN_RESPONSE_WAIT, 1);
    let answer = answer.map_err(|error| match error.why() == SILENT {
        true => error.hint("to replace a daemon that hangs: nri-runc nri restart"),
        false => error,
    });
    match answer? {
        DaemonResponse::Admin(json) => Ok((json, stream)),
        DaemonResponse::Refuse(line) => Err(Error::new(line)),
        DaemonResponse::Incompatible { protocol, version } => Err(Error::new(format!(
            "the daemon (version {version}) speaks protocol {protocol}, this nri-runc {}",
            link::PROTOCOL
        ))),
        DaemonResponse::Heartbeat | DaemonResponse::Proceed(_) | DaemonResponse::Ending => {
            Err(Error::new("the daemon sent an unexpected response"))
        }
    }
}
