// SPDX-License-Identifier: Apache-2.0
//! Finds whether the daemon or the runtime writes a container's resources (D22). The daemon does if the runtime is runc
//! or crun, the cgroupfs driver made cgroups for this container alone, and the container was made through nri-runc.
//! This module only reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tracing::debug;

use crate::cgroup::{self, Cgroups, members};
use crate::error::{self, Error};
use crate::files;
use crate::host::Host;
use crate::presence::IfThere;
use crate::runtime::RuntimeKind;
use crate::state::Container;

use crate::daemon::resources::error::{RefusedField, Result, UpdateError};
use crate::daemon::resources::in_force::Block;
use crate::daemon::runtime::exit_status;
use crate::daemon::shared::Daemon;
use crate::daemon::shared::caches::CachedCgroups;
use crate::daemon::watch::pidfd;

/// How a container's resources are written.
pub(crate) enum Route {
    /// By the daemon.
    Direct(Cgroups),
    /// By the runtime's `update`; the daemon may read the cgroups, if known, and write values that `update` ignores.
    Runtime(Option<Cgroups>),
}

/// Finds the route of a container. Fails if its process has exited, or its cgroups cannot be found now.
pub(crate) fn route(daemon: &Daemon, record: &Container) -> Result<Route> {
    if !has_known_cgroups(record) {
        let has_exited = exit_status::has_exited(&daemon.host, record);
        return if has_exited { Err(UpdateError::Gone) } else { Ok(Route::Runtime(None)) };
    }
    let known = daemon.caches.container_cgroups(&daemon.host, record);
    let known = known.map_err(|unknown| not_known(unknown.into()))?;
    let by_systemd = known.recorded.by_systemd
        || record.call.global_flags.iter().any(|f| f == "--systemd-cgroup");
    // The engine's later updates of a container made without nri-runc bypass it, so the runtime's state must include
    // the plugins' values (D65).
    let is_direct = !by_systemd && !record.by_plain_runtime;
    Ok(match cgroups_now(daemon, record, &known)? {
        Some(found) if is_direct && !found.is_scope() => Route::Direct(found),
        found => Route::Runtime(found),
    })
}

/// Whether the runtime is known to put containers into the cgroups that it limits.
pub(crate) fn has_known_cgroups(record: &Container) -> bool {
    matches!(RuntimeKind::of_program(&record.call.runtime), RuntimeKind::Runc | RuntimeKind::Crun)
}

/// Returns the container's cgroups like [`own_cgroups`], without searching for them again if its process has not moved.
fn cgroups_now(
    daemon: &Daemon,
    record: &Container,
    known: &CachedCgroups,
) -> Result<Option<Cgroups>> {
    let process = InitOf::new(record)?;
    let membership = cgroup::membership(&daemon.host, process.pid);
    if let (Ok(now), Some((before, cgroups))) = (&membership, &*known.latest.borrow())
        && now == before
    {
        return process.exists(&daemon.host).map(|()| Some(cgroups.clone()));
    }
    let now = membership.as_ref().ok().cloned();
    let found = own_cgroups_of(daemon, &process, membership, &known.recorded.paths)?;
    known.latest.replace(now.zip(found.clone()));
    Ok(found)
}

/// Returns the container's cgroups; `None` if they are unknown, or the container has none of its own. `paths` are from
/// the runtime's state.
pub(crate) fn own_cgroups(
    daemon: &Daemon,
    record: &Container,
    paths: &BTreeMap<String, PathBuf>,
) -> Result<Option<Cgroups>> {
    let process = InitOf::new(record)?;
    let membership = cgroup::membership(&daemon.host, process.pid);
    own_cgroups_of(daemon, &process, membership, paths)
}

fn own_cgroups_of(
    daemon: &Daemon,
    process: &InitOf,
    membership: error::Result<Vec<u8>>,
    paths: &BTreeMap<String, PathBuf>,
) -> Result<Option<Cgroups>> {
    let mounts = daemon.caches.cgroup_mounts(&daemon.host);
    let known = mounts.and_then(|mounts| {
        let ours = daemon.caches.own_cgroups(&daemon.host, &mounts)?;
        Ok((mounts, ours))
    });
    match known {
        Ok((mounts, ours)) => {
            let found = membership.and_then(|it| Cgroups::of(&daemon.host, &mounts, &it, paths));
            process.own_cgroups(&daemon.host, found, ours.as_deref())
        }
        Err(error) => process.exists(&daemon.host).and(if error.may_pass() {
            Err(not_known(error))
        } else {
            debug!("{}: {error}", process.id);
            Ok(None)
        }),
    }
}

/// A container's init process.
#[derive(Debug, Clone)]
pub(crate) struct InitOf {
    id: String,
    pub(crate) pid: u32,
    start: Option<u64>,
}

impl InitOf {
    pub(crate) fn new(record: &Container) -> Result<Self> {
        let pid = record.process.init_pid.ok_or(UpdateError::Gone)?;
        Ok(Self { id: record.key.id.clone(), pid, start: record.process.init_start })
    }

    /// Fails unless the process is known to run. Call this after reading its files: it proves that they belong to
    /// this process.
    pub(crate) fn exists(&self, host: &Host) -> Result<()> {
        let runs = pidfd::runs(host, self.pid, self.start);
        let runs = runs.map_err(|unknown| not_known(unknown.into()))?;
        if runs { Ok(()) } else { Err(UpdateError::Gone) }
    }

    /// Returns the process's cgroups, as found; `None` if they are unknown, or contain the daemon's (`ours`).
    pub(crate) fn own_cgroups(
        &self,
        host: &Host,
        found: error::Result<Cgroups>,
        ours: Option<&Cgroups>,
    ) -> Result<Option<Cgroups>> {
        self.exists(host)?;
        match found {
            // A container that shares cgroups with the daemon has none of its own.
            Ok(found) if !ours.is_some_and(|ours| found.holds(ours)) => Ok(Some(found)),
            Ok(_) => Ok(None),
            Err(error) if error.may_pass() => Err(not_known(error)),
            Err(error) => {
                debug!("{}: {error}", self.id);
                Ok(None)
            }
        }
    }
}

/// Returns the error for cgroups that cannot be found now.
fn not_known(error: Error) -> UpdateError {
    UpdateError::refused(error.doing("finding its cgroups"))
}

/// The fields for CPUs and memory nodes, each with the kernel's list of possible ones.
const THERE: [(&str, &str); 2] =
    [("cpus", "/sys/devices/system/cpu/possible"), ("mems", "/sys/devices/system/node/possible")];

/// Checks that the host has the CPUs and nodes of `part`. The kernel refuses missing ones, but a
/// runtime may pass them to systemd first, which interprets them differently.
pub(crate) fn has_processors(host: &Host, part: &Block) -> Result<()> {
    for (key, list) in THERE {
        let wanted = part.get("cpu").and_then(|cpu| cpu.get(key)?.as_str()).unwrap_or_default();
        let there = files::read_kernel(&host.path(list)).if_there();
        let there = there.map_err(|unknown| not_known(unknown.into()))?.unwrap_or_default();
        let (Some(all), Some(wanted)) = (members(&there), members(wanted)) else { continue };
        if let Some(missing) = wanted.difference(&all).next().filter(|_| !all.is_empty()) {
            let why = format!("the host has no {missing}, only {}", there.trim());
            return Err(UpdateError::refused_field(RefusedField::Path(format!("cpu.{key}")), why));
        }
    }
    Ok(())
}

/// Returns the cgroups of a container whose values are written directly.
pub(super) fn written_directly(daemon: &Daemon, record: &Container) -> Result<Cgroups> {
    match route(daemon, record)? {
        Route::Direct(cgroups) => Ok(cgroups),
        Route::Runtime(_) => Err(UpdateError::refused("the runtime manages its cgroups")),
    }
}
