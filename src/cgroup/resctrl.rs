// SPDX-License-Identifier: Apache-2.0
//! Moves a running container into another group of resctrl, thread by thread as the kernel
//! requires, and removes a group that a runtime made for a container whose creation failed.
//!
//! A thread that starts meanwhile is in its parent's group, so the tasks are read again until none
//! is new. This module never creates or changes a group, and removes none that has threads.
//! Reference: kernel `filesystems/resctrl.rst`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::error::{in_our_words, quoted};
use crate::files;
use crate::host::Host;
use crate::presence::{self, IfThere};

use super::Cgroups;

/// Maximum rounds of searching for new threads; a container with new ones in each round forks
/// faster than it can be moved.
const ROUNDS: usize = 20;

/// Controllers whose folders show the container's processes, the likeliest first.
const SHOWN_BY: [&str; 4] = ["pids", "memory", "cpu", ""];

/// A resctrl group; the default group has an empty name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    name: String,
    monitoring: Option<String>,
}

impl Group {
    /// Returns the group of this name, without a monitoring group.
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), monitoring: None }
    }

    /// Returns the group's folders, in the order in which a thread enters them.
    fn folders(&self, resctrl: &Path) -> Vec<PathBuf> {
        let group = resctrl.join(&self.name);
        let monitoring = self.monitoring.as_ref();
        let monitoring = monitoring.map(|name| group.join("mon_groups").join(name));
        std::iter::once(group).chain(monitoring).collect()
    }
}

/// Puts all threads of `cgroups` into a group.
///
/// # Errors
/// Fails with the reason in one line; some threads may have moved.
pub(crate) fn enter(
    host: &Host,
    cgroups: &Cgroups,
    resctrl: &Path,
    group: &Group,
) -> Result<(), String> {
    let dir = SHOWN_BY.iter().find_map(|controller| cgroups.dir(controller));
    let dir = dir.ok_or("its processes are not shown by any cgroup")?;
    group.folders(resctrl).iter().try_for_each(|folder| enter_one(host, dir, (resctrl, folder)))
}

fn enter_one(host: &Host, dir: &Path, (resctrl, group): (&Path, &Path)) -> Result<(), String> {
    let path = host.path(group.join("tasks"));
    let mut options = std::fs::OpenOptions::new();
    options.append(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let said = |error: &std::io::Error| format!("{}: {}", group.display(), in_our_words(error));
    let mut tasks = options.open(path).map_err(|error| said(&error))?;
    let mut moved = BTreeSet::new();
    for _round in 0..ROUNDS {
        let mut is_done = true;
        for thread in threads(host, dir).map_err(|error| said(&error))? {
            if !moved.insert(thread) {
                continue;
            }
            is_done = false;
            match tasks.write_all(format!("{thread}\n").as_bytes()) {
                // The thread has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(said(&error) + &status(host, resctrl)),
                Ok(()) => {}
            }
        }
        if is_done {
            return Ok(());
        }
    }
    Err(format!("{}: its processes are created faster than they can be moved", group.display()))
}

/// Returns the kernel's reason for refusing the last command, to be appended; empty if it gives none.
fn status(host: &Host, resctrl: &Path) -> String {
    let text = files::read_kernel(&host.path(resctrl.join("info/last_cmd_status"))).or_absent();
    match text.as_deref().unwrap_or_default().trim() {
        "" | "ok" => String::new(),
        reason => format!(", last_cmd_status: {}", quoted(reason)),
    }
}

/// Whether the kernel reports that no group has this name.
pub(crate) fn is_missing(host: &Host, resctrl: &Path, name: &str) -> bool {
    matches!(presence::is_dir(&host.path(resctrl.join(name))), Ok(false))
}

/// Removes a group without threads, processors and monitoring groups; does nothing if it does not
/// exist.
///
/// # Errors
/// Fails with the reason in one line if the group still exists.
pub(crate) fn remove_unused(host: &Host, resctrl: &Path, name: &str) -> Result<(), String> {
    let dir = host.path(resctrl.join(name));
    let said = |error: std::io::Error| {
        let words = in_our_words(&error);
        format!("{}: {words}{}", resctrl.join(name).display(), status(host, resctrl))
    };
    for file in ["tasks", "cpus_list"] {
        let text = files::read_kernel(&dir.join(file)).if_there().map_err(said)?;
        if text.is_some_and(|text| !text.trim().is_empty()) {
            return Err(format!("{} is in use", resctrl.join(name).display()));
        }
    }
    if !presence::entries(&dir.join("mon_groups")).map_err(said)?.is_empty() {
        return Err(format!("{} is in use", resctrl.join(name).display()));
    }
    std::fs::remove_dir(dir).if_there().map(|_gone| ()).map_err(said)
}

/// Returns the group of a process; `None` if the kernel does not show it.
pub(crate) fn group_of(host: &Host, pid: u32) -> Option<Group> {
    let text =
        files::read_kernel(&host.path(format!("/proc/{pid}/cpu_resctrl_groups"))).or_absent()?;
    let named = |key: &str| {
        let name = text.lines().find_map(|line| line.strip_prefix(key))?;
        let name = name.trim().trim_matches('/');
        (!name.contains('/') && name != "..").then(|| name.to_owned())
    };
    let monitoring = named("mon:").filter(|name| !name.is_empty());
    Some(Group { name: named("res:")?, monitoring })
}

/// Returns every thread in a cgroup and those below it.
fn threads(host: &Host, dir: &Path) -> std::io::Result<Vec<u32>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let text = files::read_kernel(&dir.join("cgroup.procs")).if_there()?;
        let text = text.unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.trim().parse::<u32>().ok()) {
            let tasks = presence::entries(&host.path(format!("/proc/{pid}/task")))?.into_iter();
            found.extend(tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()));
        }
        for below in presence::entries(&dir)? {
            if below.file_type().if_there()?.is_some_and(|kind| kind.is_dir()) {
                dirs.push(below.path());
            }
        }
    }
    Ok(found)
}
