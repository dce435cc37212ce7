// SPDX-License-Identifier: Apache-2.0
//! Where a container's resources are, and who may write them (D22): we, in cgroups of the
//! cgroupfs driver that hold nobody else; the runtime, where systemd manages them or where it is
//! not known. It only reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tracing::debug;

use crate::cgroup::{Cgroups, members};
use crate::runtime::RuntimeKind;
use crate::state::{Container, Lifecycle};

use crate::daemon::node::Node;
use crate::daemon::resources::error::{RefusedField, UpdateError};
use crate::daemon::resources::in_force::Block;
use crate::daemon::runtime::state_dir;
use crate::daemon::watch::pidfd;

/// How a container's resources are written.
pub(crate) enum Route {
    /// By us.
    Direct(Cgroups),
    /// By the runtime's own `update`; where the cgroups are known, they may be read.
    Runtime(Option<Cgroups>),
}

/// Whether its processes are frozen; no verb that we see tells.
pub(crate) fn is_paused(node: &Node, record: &Container) -> bool {
    let (told, _) = state_dir::cgroups(&node.host, &record.key);
    let pid = record.init_pid.filter(|_| record.state == Lifecycle::Running);
    let cgroups = pid.and_then(|pid| {
        Cgroups::find(&node.host, &*node.caches.cgroup_mounts(&node.host).ok()?, pid, &told).ok()
    });
    cgroups.is_some_and(|cgroups| cgroups.is_frozen())
}

/// Finds it.
pub(crate) fn route(node: &Node, record: &Container) -> Result<Route, UpdateError> {
    if !has_known_cgroups(record) {
        return Ok(Route::Runtime(None));
    }
    let (told, by_systemd) = state_dir::cgroups(&node.host, &record.key);
    let by_systemd = by_systemd || record.global_flags.iter().any(|f| f == "--systemd-cgroup");
    Ok(match own_cgroups(node, record, &told)? {
        Some(found) if !by_systemd && !found.is_scope() => Route::Direct(found),
        found => Route::Runtime(found),
    })
}

/// Only of these is it known that their containers are in the cgroups that are limited.
pub(crate) fn has_known_cgroups(record: &Container) -> bool {
    matches!(RuntimeKind::of_program(&record.runtime), RuntimeKind::Runc | RuntimeKind::Crun)
}

/// The container's cgroups, if nobody else is in them; `told` is what its runtime says of them.
pub(crate) fn own_cgroups(
    node: &Node,
    record: &Container,
    told: &BTreeMap<String, PathBuf>,
) -> Result<Option<Cgroups>, UpdateError> {
    let pid = record.init_pid.ok_or(UpdateError::Gone)?;
    let found = node.caches.cgroup_mounts(&node.host).and_then(|mounts| {
        let found = Cgroups::find(&node.host, &mounts, pid, told)?;
        Ok((found, node.caches.own_cgroups(&node.host, &mounts)))
    });
    // ReceivedQuestion last: what was read is of this very process if it is still there.
    pidfd::open_same(&node.host, pid, record.init_start).ok_or(UpdateError::Gone)?;
    Ok(match found {
        // A container without cgroups of its own is in somebody else's.
        Ok((found, ours)) if !ours.as_ref().is_some_and(|ours| found.holds(ours)) => Some(found),
        Ok(_) => None,
        Err(error) => {
            debug!("{}: {error}", record.key.id);
            None
        }
    })
}

/// Processors and memory nodes that the host can have: the wanted members, and the kernel's list.
const THERE: [(&str, &str); 2] =
    [("cpus", "/sys/devices/system/cpu/possible"), ("mems", "/sys/devices/system/node/possible")];

/// Whether the host has the processors and nodes of `part`. The kernel refuses others, but systemd,
/// which a runtime tells first, makes something else of them.
pub(crate) fn has_processors(node: &Node, part: &Block) -> Result<(), UpdateError> {
    for (key, list) in THERE {
        let wanted = part.get("cpu").and_then(|cpu| cpu.get(key)?.as_str()).unwrap_or_default();
        let there = std::fs::read_to_string(node.host.path(list)).unwrap_or_default();
        let (Some(all), Some(wanted)) = (members(&there), members(wanted)) else { continue };
        if let Some(missing) = wanted.difference(&all).next().filter(|_| !all.is_empty()) {
            let why = format!("there is no {missing} here, only {}", there.trim());
            return Err(UpdateError::refused_field(RefusedField::Path(format!("cpu.{key}")), why));
        }
    }
    Ok(())
}
