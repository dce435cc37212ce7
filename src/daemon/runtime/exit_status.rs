// SPDX-License-Identifier: Apache-2.0
//! Finds the exit code of a container's process, and the reason of its exit if known. The wrapper became the runtime's
//! `create`, which exits long before that process. The sources are the kernel (since 6.15, once the process is reaped),
//! the engine's monitor (containerd's shim since 2.4 writes the bundle's `exit.json`, conmon a file in the engine's
//! exit folder), containerd's events (`lifecycle/task_exits.rs`), Podman's database and conmon's second file in CRI-O's
//! storage. This module only reads.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::engine::{ExitPlace, LastingExit, libpod};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::IfThere;
use crate::sources::TaskExit;
use crate::state::{Container, EVICTION, Lifecycle};

use crate::daemon::runtime::state_dir;
use crate::daemon::watch::pidfd::{self, ProcessExit};

/// Maximum wait for the exit code.
const EXIT_CODE_WAIT: Duration = Duration::from_millis(50);
/// Interval of checks during [`EXIT_CODE_WAIT`].
const EXIT_CODE_CHECK: Duration = Duration::from_millis(5);

/// containerd's name for the reason of an exit whose code is unknown: NRI's code is then 0, which
/// must not look like success.
pub(crate) const UNKNOWN: &str = "Unknown";
/// containerd's name for the reason of an exit for lack of memory.
const OOM_KILLED: &str = "OOMKilled";

/// The code of a process that SIGKILL ended.
const KILLED: i32 = 128 + 9;

/// The file to which an engine writes a container's exit code. It may be in the bundle, so reading it may block.
#[derive(Debug, Clone)]
pub(crate) struct ExitFile {
    path: PathBuf,
    /// The init process that a shim's file must name.
    pid: Option<u32>,
    is_shims: bool,
}

impl ExitFile {
    /// Returns the file of this container, if its engine writes one.
    pub(crate) fn of(host: &Host, record: &Container) -> Option<Self> {
        let path = host.path(place(record)?);
        Some(Self { path, pid: record.process.init_pid, is_shims: is_shim(record) })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the exit code, if the engine wrote one for this process.
    ///
    /// # Errors
    /// Fails when the file cannot be read.
    pub(crate) fn read(&self) -> io::Result<Option<i32>> {
        let text = files::read_text(&self.path, limits::CONTAINER_FILE).if_there()?;
        Ok(text.and_then(|text| self.code_in(&text)))
    }

    fn code_in(&self, text: &str) -> Option<i32> {
        if !self.is_shims {
            return text.trim().parse().ok();
        }
        let exit: serde_json::Value = serde_json::from_str(text).ok()?;
        let is_this = exit["Pid"].as_u64() == self.pid.map(u64::from);
        is_this.then(|| exit["Status"].as_i64()?.try_into().ok()).flatten()
    }
}

/// The engine's lasting record of an exit. Podman and CRI-O remove the monitor's file as soon as
/// they have read it.
#[derive(Debug)]
pub(crate) enum ExitRecord {
    /// Podman's databases.
    Databases { id: String, files: Vec<PathBuf> },
    /// conmon's second file, below the graph root of CRI-O's storage; the bundle's document names
    /// the root file system there.
    SecondFile { bundle: String, host: Host },
}

impl ExitRecord {
    /// Returns the record of this container, if its engine has one.
    pub(crate) fn of(host: &Host, record: &Container) -> Option<Self> {
        match record.engine.behaviour().lasting_exit? {
            LastingExit::Databases => {
                // The bundle is three folders below the graph root.
                let graph_root = Path::new(&record.call.bundle).ancestors().nth(3)?.to_str()?;
                let files = libpod::files(graph_root).map(|file| host.path(file)).to_vec();
                Some(Self::Databases { id: record.key.id.clone(), files })
            }
            LastingExit::SecondFile => {
                Some(Self::SecondFile { bundle: record.call.bundle.clone(), host: host.clone() })
            }
        }
    }

    /// Returns the folder that [`read`](Self::read) reads first.
    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::Databases { files, .. } => {
                files.first().and_then(|file| file.parent()).unwrap_or(Path::new("/"))
            }
            Self::SecondFile { bundle, .. } => Path::new(bundle),
        }
    }

    /// Returns the exit code, if the engine has recorded one.
    ///
    /// # Errors
    /// Fails when the record cannot be read.
    pub(crate) fn read(&self) -> io::Result<Option<i32>> {
        match self {
            Self::Databases { id, files } => {
                for file in files {
                    let bytes = files::read(file, limits::CONTAINER_FILE).if_there()?;
                    let code = bytes.and_then(|bytes| libpod::exit_code(&bytes, id));
                    if code.is_some() {
                        return Ok(code);
                    }
                }
                Ok(None)
            }
            Self::SecondFile { bundle, host } => {
                let document = host.path(Path::new(bundle).join("config.json"));
                let document = files::read(&document, limits::CONTAINER_FILE).if_there()?;
                let Some(file) = document.and_then(|document| second_file(bundle, &document))
                else {
                    return Ok(None);
                };
                let text = files::read_text(&host.path(file), limits::CONTAINER_FILE).if_there()?;
                Ok(text.and_then(|text| text.trim().parse().ok()))
            }
        }
    }
}

/// Returns conmon's second file: the bundle is `RUN-ROOT/DRIVER-containers/ID/userdata`, the root file system is below
/// `GRAPH-ROOT/DRIVER`, and the file in `GRAPH-ROOT/DRIVER-containers/ID/userdata`.
fn second_file(bundle: &str, document: &[u8]) -> Option<PathBuf> {
    let document: serde_json::Value = serde_json::from_slice(document).ok()?;
    let below_home = Path::new(bundle).strip_prefix(Path::new(bundle).ancestors().nth(3)?).ok()?;
    let (home, container) = below_home.to_str()?.split_once('/')?;
    let driver = home.strip_suffix("-containers")?;
    let mut above = Path::new(document["root"]["path"].as_str()?).ancestors();
    let images = above.find(|folder| folder.ends_with(driver))?;
    Some(images.with_file_name(home).join(container).join("exit"))
}

/// Exit codes that containerd published, and the monitors that write none.
#[derive(Debug, Default)]
pub(crate) struct ExitCodes {
    /// Engine and runtime root of the monitors that write no exit code.
    mute_monitors: RefCell<BTreeSet<(String, String)>>,
    /// Sockets of the containerds whose exits are followed.
    sources: RefCell<BTreeSet<String>>,
    /// The latest exits that the followed containerds published, oldest first; at most `limits::TASK_EXITS`.
    published: RefCell<VecDeque<TaskExit>>,
    /// Whether to behave, for tests, as on a kernel before Linux 6.15.
    is_kernel_mute: Cell<bool>,
}

impl ExitCodes {
    /// Behaves as on a kernel that reports no exit codes, for tests.
    pub(crate) fn mute_kernel(&self, is_mute: bool) {
        self.is_kernel_mute.set(is_mute);
    }

    /// Returns the kernel's report about the end of this process.
    fn ending(&self, process: &OwnedFd) -> ProcessExit {
        if self.is_kernel_mute.get() { ProcessExit::Unsaid } else { pidfd::ending(process) }
    }

    /// Whether the kernel will not report the exit code of this process.
    pub(crate) fn needs_source(&self, process: &OwnedFd) -> bool {
        self.ending(process) == ProcessExit::Unsaid
    }

    /// Records that exits of the containerd at this socket are followed. Returns false if they
    /// already are, or too many containerds are followed.
    pub(crate) fn begin_source(&self, socket: &str) -> bool {
        let mut sources = self.sources.borrow_mut();
        sources.len() < limits::TASK_EXIT_SOURCES && sources.insert(socket.to_owned())
    }

    /// Records that exits of the containerd at this socket are no longer followed.
    pub(crate) fn end_source(&self, socket: &str) {
        self.sources.borrow_mut().remove(socket);
    }

    /// Keeps an exit that a containerd published.
    pub(crate) fn note_exit(&self, exit: TaskExit) {
        let mut published = self.published.borrow_mut();
        if published.len() >= limits::TASK_EXITS {
            published.pop_front();
        }
        published.push_back(exit);
    }

    /// Returns the exit code that containerd published for this process, if any.
    pub(crate) fn published(&self, record: &Container) -> Option<i32> {
        let published = self.published.borrow();
        let is_its = |exit: &&TaskExit| {
            exit.id == record.key.id && Some(exit.pid) == record.process.init_pid
        };
        published.iter().rev().find(is_its).map(|exit| exit.code)
    }

    /// Waits for the exit code from the kernel or the engine, at most [`EXIT_CODE_WAIT`] and one read,
    /// because StopContainer is sent afterwards. Returns at once if neither will report it. `written`
    /// reads the engine's code.
    pub(crate) async fn wait(
        &self,
        record: &Container,
        process: Option<&OwnedFd>,
        written: impl AsyncFn() -> Option<i32>,
    ) -> Option<i32> {
        let deadline = tokio::time::Instant::now() + EXIT_CODE_WAIT;
        let is_mute =
            self.mute_monitors.borrow().contains(&monitor(record)) || place(record).is_none();
        loop {
            // The engine's code takes precedence, because its users see that code.
            if let Some(code) = written().await {
                return Some(code);
            }
            let ending = process.map_or(ProcessExit::Unsaid, |process| self.ending(process));
            if let ProcessExit::Code(code) = ending {
                return Some(code);
            }
            if let Some(code) = self.published(record) {
                return Some(code);
            }
            let is_published = is_shim(record) && !self.sources.borrow().is_empty();
            let is_hopeless = ending == ProcessExit::Unsaid && is_mute && !is_published;
            if is_hopeless || tokio::time::Instant::now() >= deadline {
                return None;
            }
            tokio::time::sleep(EXIT_CODE_CHECK).await;
        }
    }

    /// Records, when an exited container is deleted, whether its monitor writes exit codes. The
    /// monitor has reaped the process long ago, so if the code is missing now, and the engine does
    /// not remove it early, this monitor writes none for later containers either.
    pub(crate) fn note_monitor(&self, record: &Container, has_code: bool) {
        let mut mute = self.mute_monitors.borrow_mut();
        if has_code {
            mute.remove(&monitor(record));
        } else if !removes_file_early(record) {
            mute.insert(monitor(record));
        }
    }
}

/// Whether a container's init process is known to have exited; false if it cannot be examined.
pub(crate) fn has_exited(host: &Host, record: &Container) -> bool {
    let Some(pid) = record.process.init_pid else { return false };
    matches!(pidfd::runs(host, pid, record.process.init_start), Ok(false))
}

/// Whether the init process on record lives; false if its start time is unknown: another process may have its PID.
///
/// # Errors
/// Fails when the process cannot be examined.
pub(crate) fn lives(host: &Host, record: &Container) -> io::Result<bool> {
    let (Some(pid), start @ Some(_)) = (record.process.init_pid, record.process.init_start) else {
        return Ok(false);
    };
    pidfd::runs(host, pid, start)
}

/// Returns the reason why the container stopped, in CRI engines' words, and a message for operators. The message may be
/// empty; both are empty if the container was created and no process, exit code or lack of memory is on record.
pub(crate) fn status(host: &Host, record: &Container, code: Option<i32>) -> (String, String) {
    let only = |reason: &str| (reason.to_owned(), String::new());
    let eviction = record.outcome.changes.iter().find(|change| change.event == EVICTION);
    if let Some(eviction) = eviction {
        let why = eviction.after.as_str().unwrap_or_default();
        return ("Evicted".to_owned(), format!("by {}: {why}", eviction.plugin));
    }
    if record.state == Lifecycle::Creating {
        let why = record.outcome.refused.last().cloned();
        let why = why.unwrap_or_else(|| "the runtime did not create it".to_owned());
        return ("CreateContainerError".to_owned(), why);
    }
    match code {
        Some(0) => only("Completed"),
        // Only a process that SIGKILL ended can have been killed for lack of memory.
        Some(KILLED) | None if lacked_memory(host, record) => only(OOM_KILLED),
        Some(_) => only("Error"),
        None if record.process.init_pid.is_some() => {
            (UNKNOWN.to_owned(), "its exit code is not known".to_owned())
        }
        None => only(""),
    }
}

/// Whether the kernel killed a process of the container for lack of memory: the container's cgroup
/// counts such kills until the runtime deletes the container.
fn lacked_memory(host: &Host, record: &Container) -> bool {
    // systemd removes a scope with its last process, so a reason that was recorded stays.
    if record.process.status_reason == OOM_KILLED {
        return true;
    }
    let Ok(Some(recorded)) = state_dir::cgroups(host, &record.key) else { return false };
    let files = [("", "memory.events"), ("memory", "memory.oom_control")];
    files.into_iter().any(|(controller, file)| {
        let Some(dir) = recorded.paths.get(controller) else { return false };
        let text = files::read_kernel(&host.path(dir.join(file))).or_absent().unwrap_or_default();
        let counts = text.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        counts.into_iter().any(|count| count.trim() != "0")
    })
}

/// Returns the key of a monitor: its engine and runtime root.
fn monitor(record: &Container) -> (String, String) {
    (record.engine.to_string(), record.key.root.clone())
}

/// Whether the engine removes the exit file, once it has read it, before the runtime deletes the container.
fn removes_file_early(record: &Container) -> bool {
    record.engine.behaviour().lasting_exit.is_some()
}

fn is_shim(record: &Container) -> bool {
    record.engine.behaviour().has_shim
}

/// Whether the container's engine has a location for exit codes.
pub(crate) fn has_file(record: &Container) -> bool {
    place(record).is_some()
}

fn place(record: &Container) -> Option<String> {
    let id = &record.key.id;
    match record.engine.behaviour().exit_place {
        ExitPlace::Bundle => Some(format!("{}/exit.json", record.call.bundle)),
        ExitPlace::Folder(folder) => Some(format!("{folder}/{id}")),
        ExitPlace::Nowhere => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    fn record(root: &str, bundle: &str) -> Container {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "", "key": {"root": root, "id": "c"}, "incarnation": 1,
            "runtime": "", "global_flags": [], "bundle": bundle, "is_sandbox": false,
            "pod": "", "name": "", "state": "running", "pid_file": null, "init_pid": 7,
            "init_start": 1, "engine": "containerd", "evidence": [], "variables": [],
            "message": "", "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null,
            "changes": [], "refused": [], "skipped": [], "in_flight": null
        });
        serde_json::from_value(json).unwrap()
    }

    /// Returns the number of checks of the engine's file, and their total time.
    async fn looks(codes: &ExitCodes, record: &Container) -> (usize, Duration) {
        let (begun, looks) = (Instant::now(), Cell::new(0));
        let file = ExitFile::of(&Host::default(), record).unwrap();
        let written = async || {
            looks.set(looks.get() + 1);
            file.read().unwrap()
        };
        assert_eq!(codes.wait(record, None, written).await, None);
        (looks.get(), begun.elapsed())
    }

    async fn is_waited_for(codes: &ExitCodes, record: &Container) -> bool {
        looks(codes, record).await.1 >= EXIT_CODE_WAIT
    }

    #[tokio::test]
    async fn a_published_exit_applies_only_to_its_process() {
        let codes = ExitCodes::default();
        let here = record("/run/one", "/none");
        codes.note_monitor(&here, false);
        assert!(codes.begin_source("/s") && !codes.begin_source("/s"));
        for (id, pid, code) in [("c", 6, 1), ("d", 7, 2)] {
            codes.note_exit(TaskExit { id: id.to_owned(), pid, code });
        }
        assert!(is_waited_for(&codes, &here).await, "neither is its own");
        codes.note_exit(TaskExit { id: "c".to_owned(), pid: 7, code: 137 });
        let code = codes.wait(&here, None, async || None).await;
        assert_eq!(code, Some(137));
        codes.end_source("/s");
        for pid in 0..u32::try_from(limits::TASK_EXITS).unwrap() {
            codes.note_exit(TaskExit { id: "e".to_owned(), pid, code: 0 });
        }
        assert_eq!(codes.published(&here), None, "the oldest went");
        assert_eq!(looks(&codes, &here).await.0, 1, "no source, no wait");
    }

    #[test]
    fn conmons_second_exit_file_is_in_the_storage_of_the_root_path() {
        let of = |bundle, root| {
            let document = serde_json::json!({"root": {"path": root}}).to_string();
            second_file(bundle, document.as_bytes())
        };
        let bundle = "/run/c/overlay-containers/7f/userdata";
        let wanted = |path| Some(PathBuf::from(path));
        let file = wanted("/srv/graph/overlay-containers/7f/userdata/exit");
        assert_eq!(of(bundle, "/srv/graph/overlay/5e/merged"), file);
        let file = wanted("/srv/vfs-containers/7f/userdata/exit");
        assert_eq!(of("/run/vfs-containers/7f/userdata", "/srv/vfs/dir/5e"), file);
        assert_eq!(of(bundle, "/srv/graph/vfs/dir/5e"), None, "another driver");
        assert_eq!(of("/run/bundle", "/srv/graph/overlay/5e/merged"), None);
    }

    #[tokio::test]
    async fn a_monitor_that_writes_no_exit_file_is_checked_only_once() {
        let temp = tempfile::tempdir().unwrap();
        let codes = ExitCodes::default();
        let here = record("/run/one", &temp.path().display().to_string());
        assert!(is_waited_for(&codes, &here).await);
        assert!(is_waited_for(&codes, &here).await, "one that was slow is waited for again");
        codes.note_monitor(&here, false);
        assert_eq!(looks(&codes, &here).await.0, 1, "it writes none");
        let other = record("/run/other", &here.call.bundle);
        assert!(is_waited_for(&codes, &other).await, "another may");
        // A newer version of containerd's shim writes the file.
        let exit = temp.path().join("exit.json");
        files::replace(&exit, b"{\"Pid\": 7, \"Status\": 3}").unwrap();
        let file = ExitFile::of(&Host::default(), &here).unwrap();
        assert_eq!(file.read().unwrap(), Some(3));
        codes.note_monitor(&here, true);
        std::fs::remove_file(exit).unwrap();
        assert!(is_waited_for(&codes, &here).await);
    }
}
