// SPDX-License-Identifier: Apache-2.0
//! Refuses resources for which this host's cgroups have no setting: runtimes drop some of them
//! (runc's swappiness on cgroup v2) and refuse others without the plugin's name.
//!
//! The planner of updates (`src/cgroup`) decides about most of them, with the files that a new
//! cgroup would have, so that creates and updates agree. If no existing cgroup shows whether a
//! setting exists, it is accepted; if a file cannot be read, it is refused. This module writes
//! nothing.

use std::io;
use std::path::{Path, PathBuf};

use oci_document::SpecDocument;
use serde_json::{Map, Value};

use super::invalid;
use crate::cgroup::{self, Around, CgroupFiles, Layout, Unfit};
use crate::error::in_our_words;
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::plugin::api;
use crate::presence::{self, IfThere};
use crate::spec::overlay::overlay_of;
use crate::spec::owned;
use crate::spec::patch::{PatchError, Resolved, Result};

/// The first kernel version without a limit of kernel memory, which later ones refuse or ignore.
const NO_KERNEL_LIMIT: (u32, u32) = (5, 16);

/// Refuses settings that a new cgroup of this host lacks. `root` is the mount point of cgroups;
/// `document` is the container's document, which names its cgroup.
pub(super) fn check(
    resources: &api::LinuxResources,
    resolved: &Resolved,
    (root, layout): (PathBuf, Layout),
    document: &[u8],
    host: &Host,
) -> Result<()> {
    // The patch refuses values that no runtime accepts.
    let mut wanted = overlay_of(resources, resolved).unwrap_or_default();
    // Device rules are not values of a file, and every runtime applies them to a new cgroup.
    wanted.remove("devices");
    let files = NewCgroup { root, layout };
    let after = with_a_limit(&wanted);
    let around = Around { before: &Map::new(), tried: None, after: &after };
    if let Err(Unfit::Refused { field, why }) = cgroup::plan(layout, &wanted, around, &files) {
        return Err(refused(&field, &why));
    }
    let is_asked = |section: &str, key: &str| {
        let value = wanted.get(section).and_then(|section| section.get(key)?.as_i64());
        value.is_some_and(|value| value > 0)
    };
    if layout == Layout::V1 && is_asked("memory", "kernel") && has_no_kernel_limit(host) {
        return Err(refused("memory.kernel", "the kernel has no such limit since Linux 5.16"));
    }
    check_weights(&wanted, layout, host)?;
    let is_real_time = layout == Layout::V1 && is_asked("cpu", "realtimeRuntime");
    let unknown = |error| unknown("cpu.rt_runtime_us", &error);
    if is_real_time
        && let Some(above) = files.above(document).map_err(unknown)?
        && !has_real_time(&above).map_err(unknown)?
    {
        let why = "the cgroup above the container's has no real-time budget (cpu.rt_runtime_us)";
        return Err(refused("cpu.realtimeRuntime", why));
    }
    Ok(())
}

/// Checks the weights of single disks: only BFQ supports them, unless v1 has CFQ's files.
fn check_weights(wanted: &Map<String, Value>, layout: Layout, host: &Host) -> Result<()> {
    let weights = wanted.get("blockIO").and_then(|io| io.get("weightDevice")?.as_array());
    let Some(weights) = weights.filter(|weights| !weights.is_empty()) else { return Ok(()) };
    let cfq = host.path("/sys/fs/cgroup/blkio/blkio.weight");
    if layout == Layout::V1
        && presence::exists(&cfq).map_err(|error| unknown("blkio.weight", &error))?
    {
        return Ok(());
    }
    for disk in weights {
        let (major, minor) = (&disk["major"], &disk["minor"]);
        let queue = host.path(format!("/sys/dev/block/{major}:{minor}/queue/scheduler"));
        let schedulers = files::read_kernel(&queue).if_there();
        let schedulers = schedulers.map_err(|error| unknown("queue/scheduler", &error))?;
        if schedulers.is_some_and(|schedulers| !schedulers.contains("[bfq]")) {
            let why = format!("the disk {major}:{minor} does not use the I/O scheduler BFQ");
            return Err(refused("blockIO.weightDevice", &why));
        }
    }
    Ok(())
}

fn unknown(file: &str, error: &io::Error) -> PatchError {
    refused("cgroup", &format!("{file} cannot be read: {}", in_our_words(error)))
}

fn refused(path: &str, why: &str) -> PatchError {
    let (section, key) = path.split_once('.').unwrap_or((path, ""));
    let field = match path.strip_prefix("unified") {
        Some(key) => format!("CgroupsUnified{key}"),
        None => owned::name(section, key),
    };
    invalid(&field, &format!("on this node {why}"))
}

/// Adds a memory limit to a memory section without one, so that its limit of memory with swap can be planned. An
/// earlier check ensures that the container will have a memory limit; its value does not matter here.
fn with_a_limit(wanted: &Map<String, Value>) -> Map<String, Value> {
    let mut after = wanted.clone();
    if let Some(Value::Object(memory)) = after.get_mut("memory") {
        memory.entry("limit").or_insert_with(|| Value::from(1));
    }
    after
}

fn has_no_kernel_limit(host: &Host) -> bool {
    // If the release is unreadable, the limit is accepted; a later kernel refuses or ignores it.
    let release = files::read_kernel(&host.path("/proc/sys/kernel/osrelease")).or_absent();
    let release = release.unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= NO_KERNEL_LIMIT,
        _ => false,
    }
}

/// Whether a cgroup has time for real-time processes; a cgroup that does not exist yet will have none.
fn has_real_time(dir: &Path) -> io::Result<bool> {
    let budget = files::read_kernel(&dir.join("cpu.rt_runtime_us")).if_there()?;
    let budget = budget.unwrap_or_default();
    Ok(budget.trim().parse::<i64>().is_ok_and(|budget| budget != 0))
}

/// The files of the next new cgroup, according to existing cgroups.
struct NewCgroup {
    root: PathBuf,
    layout: Layout,
}

impl NewCgroup {
    /// Returns the folder of a controller; a hierarchy of several controllers is named after all, such as
    /// `cpu,cpuacct`.
    fn controller(&self, name: &str) -> io::Result<Option<PathBuf>> {
        let dir = self.root.join(name);
        if self.layout == Layout::V2 || presence::is_dir(&dir)? {
            return Ok(Some(self.root.clone()).filter(|_| name.is_empty()).or(Some(dir)));
        }
        let entries = presence::entries(&self.root)?;
        let mut dirs = entries.iter().map(std::fs::DirEntry::path);
        Ok(dirs.find(|dir| {
            let names = dir.file_name().unwrap_or_default().to_string_lossy();
            names.split(',').any(|one| one == name)
        }))
    }

    /// Returns the parent of the container's cgroup, for CPU time; `None` if the document names no absolute path, or
    /// there is no `cpu` controller.
    fn above(&self, document: &[u8]) -> io::Result<Option<PathBuf>> {
        let Some(path) = parent_of_cgroup(document) else { return Ok(None) };
        Ok(self.controller("cpu")?.map(|dir| dir.join(path)))
    }
}

fn parent_of_cgroup(document: &[u8]) -> Option<PathBuf> {
    let path = cgroups_path(document)?;
    Path::new(path.strip_prefix('/')?).parent().map(Path::to_owned)
}

/// Returns the container's cgroup, as its document names it.
pub(super) fn cgroups_path(document: &[u8]) -> Option<String> {
    let mut document = SpecDocument::parse(document).ok()?;
    let path = document.root().object("linux").ok()?.value("cgroupsPath").ok()??;
    path.as_str().map(str::to_owned)
}

impl CgroupFiles for NewCgroup {
    fn exists(&self, controller: &str, file: &str) -> io::Result<bool> {
        let Some(dir) = self.controller(controller)? else {
            // A mount point without any of these controllers shows nothing about new cgroups.
            for one in ["cpu", "memory", "cpuset"] {
                if self.controller(one)?.is_some() {
                    return Ok(false);
                }
            }
            return Ok(true);
        };
        // Some files of v2 come with a controller, which runtimes enable when needed.
        let of = file.split('.').next().unwrap_or_default();
        if self.layout == Layout::V2 && !has_word(&dir.join("cgroup.subtree_control"), of)? {
            return Ok(true);
        }
        let (mut has_children, mut left) = (false, limits::PRESENT_CGROUPS);
        for entry in presence::entries(&dir)? {
            // Several cgroups are examined, because a threaded one lacks some of the files.
            if left > 0 && presence::is_dir(&entry.path())? {
                (has_children, left) = (true, left - 1);
                if presence::exists(&entry.path().join(file))? {
                    return Ok(true);
                }
            }
        }
        Ok(!has_children || presence::exists(&dir.join(file))?)
    }

    fn text(&self, controller: &str, file: &str) -> io::Result<Option<String>> {
        // A new cgroup inherits this setting.
        let is_inherited = file == "memory.use_hierarchy";
        match self.controller(controller)?.filter(|_| is_inherited) {
            Some(dir) => files::read_kernel(&dir.join(file)).if_there(),
            None => Ok(None),
        }
    }
}

fn has_word(path: &Path, wanted: &str) -> io::Result<bool> {
    let words = files::read_kernel(path).if_there()?.unwrap_or_default();
    Ok(words.split_ascii_whitespace().any(|word| word == wanted))
}
