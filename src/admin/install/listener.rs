// SPDX-License-Identifier: Apache-2.0
//! The process that currently listens on the plugin socket: an engine's own NRI shows there whatever its
//! configuration says. It connects, sends nothing, and never removes a socket.

use serde_json::json;

use super::root::Root;
use crate::config::Config;
use crate::plugin::socket::listener_at;

/// What to know about it, where it is another process than the daemon.
pub(super) fn describe(root: &Root, config: &Config) -> Option<String> {
    let (path, _held_open) = root.socket(&config.socket_path.to_string_lossy()).ok()?;
    let listener = listener_at(&path, &root.processes())?;
    let pid = listener.pid?;
    let status = super::super::ask(config, &json!({"verb": "status"})).unwrap_or_default();
    if status["pid"].as_i64() == Some(i64::from(pid)) {
        return None;
    }
    let who = if listener.name.is_empty() { "that process" } else { &listener.name };
    Some(format!(
        "{listener} listens on {}: plugins connect to it, and nri-runc does not take that socket; \
         disable its NRI and restart {who}, or set nri.socket_path and nri.plugin_path in \
         /etc/nri-runc/config.toml",
        config.socket_path.display()
    ))
}
