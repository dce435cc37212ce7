// SPDX-License-Identifier: Apache-2.0
//! Moves a running container into another group of resctrl: its threads one by one, as the kernel
//! takes them.
//!
//! A thread that starts meanwhile is in its parent's group: the tasks are read again until no new
//! one is found. No group is made, changed or removed.
//! Reference: kernel `filesystems/resctrl.rst`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::error::in_our_words;
use crate::files;
use crate::host::Host;
use crate::presence::{self, IfThere};

use super::Cgroups;

/// Rounds of looking for new threads; after these, the container forks faster than it can be moved.
const ROUNDS: usize = 20;

/// Controllers whose folder shows the container's processes, the likeliest to have one first.
const SHOWN_BY: [&str; 4] = ["pids", "memory", "cpu", ""];

/// Puts all threads of `cgroups` into the group in the folder `group`.
///
/// # Errors
/// The kernel's refusal in one line; some threads may have moved then.
pub(crate) fn enter(host: &Host, cgroups: &Cgroups, group: &Path) -> Result<(), String> {
    let path = host.path(group.join("tasks"));
    let mut options = std::fs::OpenOptions::new();
    options.append(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let said = |error: &std::io::Error| format!("{}: {}", group.display(), in_our_words(error));
    let mut tasks = options.open(path).map_err(|error| said(&error))?;
    let dir = SHOWN_BY.iter().find_map(|controller| cgroups.dir(controller));
    let dir = dir.ok_or("its processes are not shown by any cgroup")?;
    let mut moved = BTreeSet::new();
    for _round in 0..ROUNDS {
        let mut is_done = true;
        for thread in threads(host, dir).map_err(|error| said(&error))? {
            if !moved.insert(thread) {
                continue;
            }
            is_done = false;
            match tasks.write_all(format!("{thread}\n").as_bytes()) {
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(said(&error)),
                Ok(()) => {}
            }
        }
        if is_done {
            return Ok(());
        }
    }
    Err(format!("{}: its processes are made faster than they can be moved", group.display()))
}

/// The group of a process, below `resctrl`; `None` where the kernel does not show it.
pub(crate) fn group_of(host: &Host, resctrl: &Path, pid: u32) -> Option<PathBuf> {
    let text =
        files::read_kernel(&host.path(format!("/proc/{pid}/cpu_resctrl_groups"))).or_absent()?;
    let name = text.lines().find_map(|line| line.strip_prefix("res:"))?.trim().trim_matches('/');
    let is_plain = !name.contains('/') && name != "..";
    is_plain.then(|| if name.is_empty() { resctrl.to_owned() } else { resctrl.join(name) })
}

/// Every thread in a cgroup and those below it.
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
