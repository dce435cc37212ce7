// SPDX-License-Identifier: Apache-2.0
//! Finds a container's cgroups: by its init process, and by its runtime's state if that names them.
//!
//! An init process may have moved itself into a child of the cgroup that its runtime made, as
//! systemd in a container does. The runtime's record is used if the process is in that cgroup or
//! below it; otherwise nothing is written. Reference: proc_pid_cgroup(5), proc_pid_mountinfo(5).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::error::{Context, Error, Result};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::{self, IfThere};

use super::CgroupFiles;

/// The controllers whose files are written.
const WRITTEN: [&str; 8] = ["", "blkio", "cpu", "cpuset", "devices", "hugetlb", "memory", "pids"];

/// The version of cgroups that has the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// v1 or hybrid.
    V1,
    /// v2 only.
    V2,
}

/// The mount points of cgroups on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounts {
    layout: Layout,
    /// For each controller (empty for v2), the mount's root and the mount point.
    mounts: BTreeMap<String, (PathBuf, PathBuf)>,
}

impl Mounts {
    /// Reads the mount points.
    ///
    /// # Errors
    /// Fails if cgroups are not mounted, or the mounts cannot be read.
    pub(crate) fn read(host: &Host) -> Result<Self> {
        let path = host.path("/proc/self/mountinfo");
        let text = files::read_kernel(&path).doing(|| format!("reading {}", path.display()))?;
        Self::parse(&text).ok_or_else(|| Error::new("no cgroups are mounted"))
    }

    fn parse(text: &str) -> Option<Self> {
        let (mut v1, mut v2) = (BTreeMap::new(), None);
        for line in text.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let before: Vec<&str> = before.split(' ').collect();
            let after: Vec<&str> = after.split(' ').collect();
            let ([_, _, _, root, at, ..], [kind, _, options]) = (&before[..], &after[..]) else {
                continue;
            };
            let place = (PathBuf::from(root), PathBuf::from(at));
            match *kind {
                "cgroup" => {
                    for controller in options.split(',') {
                        v1.entry(controller.to_owned()).or_insert_with(|| place.clone());
                    }
                }
                // Beside v1, cgroup2 is a mount for systemd without controllers.
                "cgroup2" if v2.is_none() => v2 = Some(place),
                _ => {}
            }
        }
        let has_controllers = ["cpu", "memory", "cpuset"].iter().any(|name| v1.contains_key(*name));
        match (has_controllers, v2) {
            (true, _) => Some(Self { layout: Layout::V1, mounts: v1 }),
            (false, Some(place)) => {
                let mounts = BTreeMap::from([(String::new(), place)]);
                Some(Self { layout: Layout::V2, mounts })
            }
            (false, None) => None,
        }
    }

    /// Whether a process is frozen, according to its present cgroup, whose state includes that of all
    /// cgroups above. Makes only six system calls, because a list may have thousands of processes.
    /// False if a file is unreadable.
    pub(crate) fn is_frozen(&self, host: &Host, pid: u32) -> bool {
        let (controller, file) = self.layout.freezer();
        let state_of = |path: &str, (root, at): &(PathBuf, PathBuf)| {
            Some(host.path(at.join(below(Path::new(path), root)?).join(file)))
        };
        let mut buffer = [0; limits::CGROUPS_OF_PROCESS];
        let read = files::read_at_once(&host.path(format!("/proc/{pid}/cgroup")), &mut buffer);
        let state = read.or_absent().and_then(|text| {
            let text = String::from_utf8_lossy(text);
            let is_meant = |(names, _): &(&str, _)| names.split(',').any(|name| name == controller);
            state_of(hierarchies(&text).find(is_meant)?.1, self.mounts.get(controller)?)
        });
        let read = state.and_then(|state| files::read_at_once(&state, &mut buffer).or_absent());
        read.is_some_and(|state| self.layout.is_frozen(&String::from_utf8_lossy(state)))
    }
}

impl Layout {
    /// Returns the controller and the file that show whether a cgroup is in fact frozen.
    fn freezer(self) -> (&'static str, &'static str) {
        match self {
            Self::V1 => ("freezer", "freezer.state"),
            Self::V2 => ("", "cgroup.events"),
        }
    }

    fn is_frozen(self, state: &str) -> bool {
        match self {
            Self::V1 => state.trim_end() != "THAWED",
            Self::V2 => state.lines().any(|line| line == "frozen 1"),
        }
    }
}

/// Returns the hierarchies in `/proc/PID/cgroup`: the names of their controllers, and the process's path.
fn hierarchies(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// A container's cgroups.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    layout: Layout,
    dirs: Arc<BTreeMap<String, PathBuf>>,
}

/// Returns the text of `/proc/PID/cgroup`.
///
/// # Errors
/// Fails when it cannot be read.
pub(crate) fn membership(host: &Host, pid: u32) -> Result<Vec<u8>> {
    let path = host.path(format!("/proc/{pid}/cgroup"));
    read(&path).doing(|| format!("reading {}", path.display()))
}

impl Cgroups {
    /// Finds the cgroups of the process `pid`; `recorded` is its runtime's record, by controller.
    ///
    /// # Errors
    /// Fails when the process is gone, is in no mounted cgroup, or has left the cgroup in which its
    /// runtime put it.
    pub(crate) fn find(
        host: &Host,
        mounts: &Mounts,
        pid: u32,
        recorded: &BTreeMap<String, PathBuf>,
    ) -> Result<Self> {
        Self::of(host, mounts, &membership(host, pid)?, recorded)
    }

    /// Returns the cgroups of a process with this [`membership`], as [`Self::find`] does.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) fn of(
        host: &Host,
        mounts: &Mounts,
        membership: &[u8],
        recorded: &BTreeMap<String, PathBuf>,
    ) -> Result<Self> {
        let text = String::from_utf8_lossy(membership);
        let mut dirs = BTreeMap::new();
        for (controllers, path) in hierarchies(&text) {
            for controller in controllers.split(',') {
                let Some((root, at)) = mounts.mounts.get(controller) else { continue };
                let Some(below) = below(Path::new(path), root) else { continue };
                let found = at.join(below);
                let dir = match recorded.get(controller) {
                    Some(recorded) if found.starts_with(recorded) && recorded.starts_with(at) => {
                        recorded.clone()
                    }
                    Some(recorded) => {
                        let (found, recorded) = (found.display(), recorded.display());
                        return Err(Error::new(format!(
                            "its process is in {found}, not {recorded}"
                        )));
                    }
                    None => found,
                };
                dirs.insert(controller.to_owned(), host.path(dir));
            }
        }
        if dirs.is_empty() {
            return Err(Error::new("its process is in no mounted cgroup"));
        }
        Ok(Self { layout: mounts.layout, dirs: dirs.into() })
    }

    /// Returns the cgroups at `path` in every hierarchy, which need not exist; `None` if the path is
    /// relative or contains `..`.
    pub(crate) fn at(host: &Host, mounts: &Mounts, path: &str) -> Option<Self> {
        let below = below(Path::new(path), Path::new("/"))?;
        let place = |(_root, at): &(PathBuf, PathBuf)| host.path(at.join(&below));
        let dirs = mounts.mounts.iter().map(|(name, mount)| (name.clone(), place(mount)));
        Some(Self { layout: mounts.layout, dirs: Arc::new(dirs.collect()) })
    }

    /// Returns the version of the cgroups.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the folder of a controller (empty for v2).
    pub(crate) fn dir(&self, controller: &str) -> Option<&Path> {
        self.dirs.get(controller).map(PathBuf::as_path)
    }

    /// Returns one of the folders, for messages.
    pub(crate) fn any_dir(&self) -> Option<&Path> {
        self.dirs.values().next().map(PathBuf::as_path)
    }

    /// Whether systemd manages the cgroups; then only systemd may write most of their files (D22).
    pub(crate) fn is_scope(&self) -> bool {
        let is_scope =
            |dir: &PathBuf| dir.extension().is_some_and(|e| e == "scope" || e == "slice");
        self.dirs.values().any(is_scope)
    }

    /// Whether a controller's folder is `other`'s, or contains it: then the limits would apply to
    /// more than the container's processes.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        WRITTEN.iter().any(|name| match (self.dirs.get(*name), other.dirs.get(*name)) {
            (Some(dir), Some(other)) => other.starts_with(dir),
            _ => false,
        })
    }

    /// Whether the cgroups still exist; true if they cannot be examined.
    pub(crate) fn exists(&self) -> bool {
        self.dirs.values().all(|dir| presence::is_dir(dir).unwrap_or(true))
    }

    /// Whether the processes are frozen, by this cgroup or by one above it.
    pub(crate) fn is_frozen(&self) -> bool {
        // False if a file is unreadable, and true for half frozen processes, because this only
        // explains a failure.
        let text = |(controller, file)| self.text(controller, file).or_absent().flatten();
        text(self.layout.freezer()).is_some_and(|state| self.layout.is_frozen(&state))
            || text(("", "cgroup.freeze")).is_some_and(|text| text == "1")
    }

    /// Returns the text of a file that is open, with one system call if it is short and open for reading.
    ///
    /// # Errors
    /// As [`CgroupFiles::text`].
    pub(super) fn text_now(
        &self,
        open: &File,
        (controller, name): (&str, &str),
    ) -> io::Result<Option<String>> {
        let mut buffer = [0; limits::CGROUPS_OF_PROCESS];
        match open.read_at(&mut buffer, 0) {
            Ok(length) if length < buffer.len() => {
                Ok(text(buffer.get(..length).unwrap_or_default().to_vec()))
            }
            Ok(_) | Err(_) => self.text(controller, name),
        }
    }
}

impl CgroupFiles for Cgroups {
    fn exists(&self, controller: &str, file: &str) -> io::Result<bool> {
        let Some(dir) = self.dir(controller) else { return Ok(false) };
        Ok(std::fs::metadata(dir.join(file)).if_there()?.is_some_and(|meta| meta.is_file()))
    }

    fn text(&self, controller: &str, file: &str) -> io::Result<Option<String>> {
        let Some(dir) = self.dir(controller) else { return Ok(None) };
        let bytes = match read(&dir.join(file)) {
            // The cgroup is being removed.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => None,
            read => read.if_there()?,
        };
        Ok(bytes.and_then(text))
    }
}

fn text(bytes: Vec<u8>) -> Option<String> {
    Some(String::from_utf8(bytes).ok()?.trim_end().to_owned())
}

/// Reads a file of one value or record, with three system calls if it is short, as nearly all are.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match files::read_at_once(path, &mut [0; limits::CGROUPS_OF_PROCESS]) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            files::read(path, limits::KERNEL_FILE)
        }
        read => read.map(<[u8]>::to_vec),
    }
}

/// Returns `path` relative to a mount's root; `None` for a path outside of it.
fn below(path: &Path, root: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(root).ok()?;
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    below.components().all(is_plain).then(|| below.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::CgroupTree;

    #[test]
    fn an_open_file_is_read_like_one_by_its_path() {
        let tree = CgroupTree::v1();
        let path = tree.host().path("/sys/fs/cgroup/cpu,cpuacct/k/c/cpu.shares");
        let open = |writes: bool| {
            std::fs::OpenOptions::new().read(!writes).write(writes).open(&path).unwrap()
        };
        let long = "7".repeat(2 * limits::CGROUPS_OF_PROCESS);
        for text in ["1024", "", &long] {
            tree.file("/sys/fs/cgroup/cpu,cpuacct/k/c/cpu.shares", &format!("{text}\n"));
            // One that is open for writing only is read by its path.
            for writes in [false, true] {
                let read = tree.cgroups().text_now(&open(writes), ("cpu", "cpu.shares")).unwrap();
                assert_eq!(read.as_deref(), Some(text));
            }
        }
        let open = open(true);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tree.cgroups().text_now(&open, ("cpu", "cpu.shares")).unwrap(), None);
    }
}
