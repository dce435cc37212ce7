// SPDX-License-Identifier: Apache-2.0
//! Finds the process that listens on the plugin socket. If it is an engine, the engine's own NRI is
//! on, even if the configuration files disable it. This module connects to that socket, sends
//! nothing there, and never removes it.

use super::root::Root;
use crate::config::Config;
use crate::plugin::socket::{SocketListener, listener_at};

/// Returns the listener on the configured socket, unless it is the daemon or its PID is unknown.
pub(super) fn find(
    root: &Root,
    config: &Config,
    daemon_pid: impl FnOnce() -> Option<i64>,
) -> Option<SocketListener> {
    let (path, _held_open) = root.socket(&config.socket_path.to_string_lossy()).ok()?;
    let listener = listener_at(&path, &root.processes())?;
    let pid = listener.pid?;
    (daemon_pid() != Some(i64::from(pid))).then_some(listener)
}

/// Asks a running daemon for its process ID.
pub(super) fn daemon_pid(config: &Config) -> Option<i64> {
    Some(super::super::ask_status(config).ok()?.pid.into())
}

/// Returns the note about an unexpected listener.
pub(super) fn describe(listener: &SocketListener, config: &Config) -> String {
    let remedy = match listener.engine {
        Some(_) => "restart it if its NRI has been switched off since it started",
        None => "stop it, or set nri.socket_path and nri.plugin_path in /etc/nri-runc/config.toml",
    };
    format!(
        "{listener} listens on {}: plugins connect to it, and nri-runc does not take that socket; {remedy}",
        config.socket_path.display()
    )
}
