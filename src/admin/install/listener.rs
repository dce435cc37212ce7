// SPDX-License-Identifier: Apache-2.0
//! Who listens, now, on the socket that plugins connect to: an engine's own NRI shows there
//! whatever its configuration says. It connects, says nothing, and never removes a socket.

use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::json;

use crate::config::Config;
use crate::files;
use crate::host::Host;

/// What to know about it, where it is somebody else.
pub(super) fn note(host: &Host, config: &Config) -> Option<String> {
    let stream = UnixStream::connect(host.path(&config.socket_path)).ok()?;
    let pid = getsockopt(&stream, PeerCredentials).ok()?.pid();
    let status = super::super::ask(config, &json!({"verb": "status"})).unwrap_or_default();
    if status["pid"].as_i64() == Some(i64::from(pid)) {
        return None;
    }
    let name = files::read_small(&host.path(format!("/proc/{pid}/comm"))).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim().to_owned();
    let who = if name.is_empty() { "somebody".to_owned() } else { name };
    Some(format!(
        "{who} (process {pid}) listens on {} now: plugins connect to that, and nri-runc leaves it \
         alone; switch it off there and start {who} anew, or set nri.socket_path and nri.plugin_path \
         in /etc/nri-runc/config.toml",
        config.socket_path.display()
    ))
}
