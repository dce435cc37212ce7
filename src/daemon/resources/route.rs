// SPDX-License-Identifier: Apache-2.0
//! The writer of a container's resources (D22): the daemon, in cgroups of the cgroupfs driver with
//! no other container's processes; the runtime, where systemd manages the cgroups or the driver is
//! not known. This module only reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tracing::debug;

use crate::cgroup::{Cgroups, members};
use crate::error::Error;
use crate::files;
use crate::presence::IfThere;
use crate::runtime::RuntimeKind;
use crate::state::Container;

use crate::daemon::resources::error::{RefusedField, UpdateError};
use crate::daemon::resources::in_force::Block;
use crate::daemon::runtime::state_dir;
use crate::daemon::shared::Daemon;
use crate::daemon::watch::pidfd;

/// How a container's resources are written.
pub(crate) enum Route {
    /// By the daemon.
    Direct(Cgroups),
    /// By the runtime's own `update`; where the cgroups are known, they may be read.
    Runtime(Option<Cgroups>),
}

/// Finds the route of a container.
pub(crate) fn route(daemon: &Daemon, record: &Container) -> Result<Route, UpdateError> {
    if !has_known_cgroups(record) {
        return Ok(Route::Runtime(None));
    }
    let state = state_dir::cgroups(&daemon.host, &record.key);
    let (paths, by_systemd) = state.map_err(|unknown| not_known(unknown.into()))?;
    let by_systemd = by_systemd || record.global_flags.iter().any(|f| f == "--systemd-cgroup");
    // The engine's later updates of a plain runtime's container do not pass by here: its own state has to
    // know what plugins set (D65).
    let is_direct = !by_systemd && !record.by_plain_runtime;
    Ok(match own_cgroups(daemon, record, &paths)? {
        Some(found) if is_direct && !found.is_scope() => Route::Direct(found),
        found => Route::Runtime(found),
    })
}

/// Whether the runtime is known to put containers into the cgroups that it limits.
pub(crate) fn has_known_cgroups(record: &Container) -> bool {
    matches!(RuntimeKind::of_program(&record.runtime), RuntimeKind::Runc | RuntimeKind::Crun)
}

/// The container's cgroups, if no other process is in them; `paths` are from its runtime's state.
pub(crate) fn own_cgroups(
    daemon: &Daemon,
    record: &Container,
    paths: &BTreeMap<String, PathBuf>,
) -> Result<Option<Cgroups>, UpdateError> {
    let pid = record.init_pid.ok_or(UpdateError::Gone)?;
    let found = daemon.caches.cgroup_mounts(&daemon.host).and_then(|mounts| {
        let found = Cgroups::find(&daemon.host, &mounts, pid, paths)?;
        Ok((found, daemon.caches.own_cgroups(&daemon.host, &mounts)?))
    });
    // Opened last: if the process still exists, the paths were this very process's.
    let process = pidfd::open_same(&daemon.host, pid, record.init_start);
    process.map_err(|unknown| not_known(unknown.into()))?.ok_or(UpdateError::Gone)?;
    Ok(match found {
        // A container that has no cgroups for itself is in those of another process.
        Ok((found, ours)) if !ours.as_ref().is_some_and(|ours| found.holds(ours)) => Some(found),
        Ok(_) => None,
        Err(error) if error.may_pass() => return Err(not_known(error)),
        Err(error) => {
            debug!("{}: {error}", record.key.id);
            None
        }
    })
}

/// The error for cgroups whose place cannot be known.
fn not_known(error: Error) -> UpdateError {
    UpdateError::refused(error.doing("finding its cgroups"))
}

/// CPUs and memory nodes that the host can have: the requested members, and the kernel's list.
const THERE: [(&str, &str); 2] =
    [("cpus", "/sys/devices/system/cpu/possible"), ("mems", "/sys/devices/system/node/possible")];

/// Checks that the host has the CPUs and nodes of `part`. The kernel refuses others, but systemd,
/// which a runtime informs first, interprets them differently.
pub(crate) fn has_processors(daemon: &Daemon, part: &Block) -> Result<(), UpdateError> {
    for (key, list) in THERE {
        let wanted = part.get("cpu").and_then(|cpu| cpu.get(key)?.as_str()).unwrap_or_default();
        let there = files::read_kernel(&daemon.host.path(list)).if_there();
        let there = there.map_err(|unknown| not_known(unknown.into()))?.unwrap_or_default();
        let (Some(all), Some(wanted)) = (members(&there), members(wanted)) else { continue };
        if let Some(missing) = wanted.difference(&all).next().filter(|_| !all.is_empty()) {
            let why = format!("the host has no {missing}, only {}", there.trim());
            return Err(UpdateError::refused_field(RefusedField::Path(format!("cpu.{key}")), why));
        }
    }
    Ok(())
}
