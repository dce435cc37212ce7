// SPDX-License-Identifier: Apache-2.0
//! Determines whether the daemon is idle: no request is unfinished, no lane is held, no plugin is asked, and launched
//! plugins are the only child processes. Then the records and what `saved.rs` saves are the complete state.

use std::io;
use std::path::Path;

use crate::answers::PluginState;
use crate::daemon::server::drain::Drain;
use crate::daemon::shared::Daemon;
use crate::files;
use crate::presence::{self, IfThere};
use crate::state::Lifecycle;

/// Whether the daemon is idle.
pub(super) fn is_quiet(daemon: &Daemon, drain: &Drain) -> bool {
    drain.is_idle()
        && daemon.process.activity.is_none()
        && daemon.watches.inits.is_empty()
        && daemon.watches.crio.news.is_empty()
        && !has_unsettled_plugins(daemon)
        && daemon.registry.connected().iter().all(|plugin| plugin.connection().is_idle())
        && daemon.lanes.are_quiet(|key| {
            daemon.container(key).is_some_and(|record| record.state != Lifecycle::Creating)
        })
        && daemon.records.read().unwritten().is_empty()
        && !has_other_children(daemon)
}

/// Whether a plugin is still connecting or being synchronized, or a lost or replaced connection is not removed yet.
pub(super) fn has_unsettled_plugins(daemon: &Daemon) -> bool {
    daemon.registry.roster.has_unregistered()
        || daemon.registry.has_replaced()
        || daemon
            .registry
            .connected()
            .iter()
            .any(|plugin| plugin.state() != PluginState::Synchronized)
}

/// Whether this process has other children: a runtime that the daemon started, or a plugin that is
/// starting or ending.
fn has_other_children(daemon: &Daemon) -> bool {
    // If the children cannot be listed, the daemon is treated as busy.
    let Ok(children) = children() else { return true };
    let plugins: Vec<i32> = daemon
        .registry
        .connected()
        .iter()
        .filter(|plugin| plugin.is_launched())
        .filter_map(|plugin| plugin.pid())
        .collect();
    let pids = children.iter().flat_map(|pids| pids.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).any(|pid: i32| !plugins.contains(&pid))
}

/// Returns the children of this process: each thread lists the children that it started.
fn children() -> io::Result<Vec<String>> {
    let mut children = Vec::new();
    for thread in presence::entries(Path::new("/proc/self/task"))? {
        children.extend(files::read_kernel(&thread.path().join("children")).if_there()?);
    }
    Ok(children)
}
