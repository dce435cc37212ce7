// SPDX-License-Identifier: Apache-2.0
//! Pre-installed plugins: finding them, starting them as the reference does, ending them.
//!
//! A plugin gets its socket as descriptor 3, exactly three environment variables, and nothing
//! else; it dies with us. A file that is no plugin is skipped with one line, and never keeps
//! the others from starting.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::net::UnixStream;

use crate::error::{Context, Error, Result, in_our_words};

use super::identity::Identity;
use super::process::ProcessLog;
use super::session::{Plugin, Settings, Upcalls, handshake};

/// How long a plugin may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

/// How long the end of a plugin that failed to register is waited for, so that it can be told.
const POSTMORTEM: Duration = Duration::from_millis(500);

/// A pre-installed plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFile {
    /// The executable.
    pub path: PathBuf,
    /// Two digits.
    pub index: String,
    /// The rest of the file's name.
    pub name: String,
    /// Text of its configuration file, empty without one.
    pub config: String,
    /// Tells the executable from a later one of the same name.
    stamp: (u64, u64, i64, i64),
}

impl PluginFile {
    /// `NN-name`.
    pub fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }
}

/// A file among the plugins that cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// The file.
    pub path: PathBuf,
    /// Why, in one line.
    pub why: String,
    /// It is a plugin, but its configuration cannot be read.
    pub is_plugin: bool,
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} was skipped: {}", self.path.display(), self.why)
    }
}

/// Finds the plugins in `dir` with their configuration from `config_dir`, in name order; the
/// second value is what was skipped.
pub fn discover(dir: &Path, config_dir: &Path) -> (Vec<PluginFile>, Vec<Unusable>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let mut entries: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let mut is_plugin = false;
        match inspect(&path, config_dir, &mut is_plugin) {
            Ok(Some(file)) => found.push(file),
            Ok(None) => {}
            Err(error) => problems.push(Unusable { path, why: error.to_string(), is_plugin }),
        }
    }
    (found, problems)
}

fn inspect(path: &Path, config_dir: &Path, is_plugin: &mut bool) -> Result<Option<PluginFile>> {
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        return Ok(None);
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(Error::new("it is not executable"));
    }
    let file_name = path.file_name().and_then(|name| name.to_str());
    let Some((index, name)) = file_name.and_then(|name| name.split_once('-')) else {
        return Err(Error::new("its name is not of the form NN-name"));
    };
    let identity = Identity::checked(index, name, "").map_err(Error::new)?;
    *is_plugin = true;
    Ok(Some(PluginFile {
        path: path.to_owned(),
        config: config_text(config_dir, index, name)?,
        index: identity.index,
        name: identity.name,
        stamp: (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()),
    }))
}

fn config_text(dir: &Path, index: &str, name: &str) -> Result<String> {
    for file in [format!("{index}-{name}.conf"), format!("{name}.conf")] {
        let path = dir.join(file);
        match std::fs::read_to_string(&path) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Error::new(in_our_words(&error)))
                    .doing(|| format!("reading {}", path.display()));
            }
        }
    }
    Ok(String::new())
}

/// The process of a launched plugin and what it started; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: Option<std::process::Child>,
    log: Arc<ProcessLog>,
}

impl Child {
    fn pid(&self) -> Option<i32> {
        self.process.as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }

    /// Waits, bounded, for a process that is about to end by itself.
    async fn ends_by_itself(&self) {
        let deadline = tokio::time::Instant::now() + POSTMORTEM;
        while self.process.as_ref().is_some_and(|child| !has_exited(child))
            && tokio::time::Instant::now() < deadline
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(child) = self.process.take() else { return };
        let by_itself = has_exited(&child);
        signal(&child, Signal::SIGKILL);
        // A process may be slow even to be killed, and this thread has other things to do.
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            handle.spawn(end(child, Duration::ZERO, Arc::clone(&self.log), by_itself));
        }
    }
}

/// Signals the process and its group, which is its own.
fn signal(child: &std::process::Child, signal: Signal) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _already_gone = kill(Pid::from_raw(-pid), signal);
    }
}

/// SIGTERM, a bounded grace, SIGKILL for what is left of its group, and reaped.
async fn end(
    mut child: std::process::Child,
    grace: Duration,
    log: Arc<ProcessLog>,
    by_itself: bool,
) {
    signal(&child, Signal::SIGTERM);
    let deadline = tokio::time::Instant::now() + grace;
    while !has_exited(&child) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Not reaped yet, so the number is still its own.
    signal(&child, Signal::SIGKILL);
    loop {
        match child.try_wait() {
            Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await,
            Ok(Some(status)) => return log.note_exit(status, by_itself),
            Err(_) => return,
        }
    }
}

/// Whether the process has ended, without reaping it.
fn has_exited(child: &std::process::Child) -> bool {
    let Ok(pid) = i32::try_from(child.id()) else { return true };
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(Pid::from_raw(pid)), flags), Ok(WaitStatus::StillAlive))
}

/// Starting a pre-installed plugin.
#[derive(Debug)]
pub struct Launched;

impl Launched {
    /// Starts the plugin and shakes hands with it. Must be called on the main thread: the plugin
    /// is killed when the thread that started it ends. `log` takes what it prints and its exit.
    ///
    /// # Errors
    /// Fails when it cannot be executed or does not register; its process is ended then.
    pub async fn start(
        file: &PluginFile,
        settings: &Settings,
        upcalls: Arc<dyn Upcalls>,
        log: &Arc<ProcessLog>,
    ) -> Result<Plugin> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = spawn(file, theirs.into(), log)?;
        let pid = child.pid();
        let who = (file.index.clone(), file.name.clone(), file.config.clone());
        let stream = UnixStream::from_std(ours)?;
        let shaken = handshake(stream, Some(who), settings, upcalls).await;
        let mut plugin = match shaken {
            Ok(plugin) => plugin,
            Err(error) => return Err(postmortem(child, log, &error.to_string()).await),
        };
        plugin.set_pid(pid);
        if let Ok(mut slot) = plugin.child.lock() {
            *slot = Some(child);
        }
        Ok(plugin)
    }
}

/// Why a plugin did not register, with how its process ended and what it printed last.
async fn postmortem(child: Child, log: &Arc<ProcessLog>, why: &str) -> Error {
    child.ends_by_itself().await;
    let is_over = child.process.as_ref().is_some_and(has_exited);
    drop(child);
    log.is_over(POSTMORTEM).await;
    let mut line = why.to_owned();
    if let Some(exit) = log.exit().filter(|_| is_over) {
        line = format!("{line}; {exit}");
    }
    if let Some(words) = log.last_words().last() {
        line = format!("{line}; its last line: {words}");
    }
    Error::new(crate::error::quoted(&line))
}

#[expect(unsafe_code, clippy::disallowed_methods, reason = "the one place that starts plugins")]
fn spawn(file: &PluginFile, socket: OwnedFd, log: &Arc<ProcessLog>) -> Result<Child> {
    let number = socket.as_raw_fd();
    let (output, input) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let parent = nix::unistd::getpid();
    let mut command = std::process::Command::new(&file.path);
    command
        .env_clear()
        .env("NRI_PLUGIN_NAME", &file.name)
        .env("NRI_PLUGIN_IDX", &file.index)
        .env("NRI_PLUGIN_SOCKET", "3")
        .stdin(std::process::Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input)
        .process_group(0);
    // SAFETY: the closure runs between fork and exec and only makes system calls.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            if nix::unistd::getppid() != parent {
                // The daemon died before it could be said that we die with it.
                return Err(nix::errno::Errno::ESRCH.into());
            }
            give_as_three(number)
        });
    }
    let child = command.spawn().doing(|| format!("starting {}", file.path.display()))?;
    // The writing end is the plugin's alone: reading ends with it.
    drop(command);
    log.read_from(output);
    Ok(Child { process: Some(child), log: Arc::clone(log) })
}

#[expect(unsafe_code, reason = "dup2 onto a fixed number")]
fn give_as_three(number: i32) -> std::io::Result<()> {
    if number == 3 {
        // dup2 onto itself would leave CLOEXEC set.
        // SAFETY: plain system call on a number, in the forked child.
        let result = unsafe { nix::libc::fcntl(3, nix::libc::F_SETFD, 0) };
        return nix::errno::Errno::result(result).map(|_| ()).map_err(Into::into);
    }
    // SAFETY: plain system call on numbers, in the forked child.
    let result = unsafe { nix::libc::dup2(number, 3) };
    nix::errno::Errno::result(result).map(|_| ()).map_err(Into::into)
}

/// Ends the process of a launched plugin, in the background.
pub(super) fn stop(plugin: &Plugin) {
    let child = plugin.child.lock().ok().and_then(|mut slot| slot.take());
    if let Some(mut child) = child
        && let Some(process) = child.process.take()
    {
        let by_itself = has_exited(&process);
        tokio::spawn(end(process, GRACE, Arc::clone(&child.log), by_itself));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path, name: &str, mode: u32) {
        let path = dir.join(name);
        crate::files::replace(&path, b"#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn plugins_are_found_with_their_configuration_in_both_forms() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["20-b-c.d", "10-a"] {
            place(temp.path(), name, 0o755);
        }
        let conf = tempfile::tempdir().unwrap();
        crate::files::replace(&conf.path().join("10-a.conf"), b"exact").unwrap();
        crate::files::replace(&conf.path().join("a.conf"), b"general").unwrap();
        crate::files::replace(&conf.path().join("b-c.d.conf"), b"by name").unwrap();
        let (found, problems) = discover(temp.path(), conf.path());
        let told: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.config.as_str())).collect();
        assert_eq!(told, [("a", "exact"), ("b-c.d", "by name")]);
        assert_eq!(problems, []);
    }

    #[test]
    fn what_is_no_plugin_is_skipped_with_a_line_each() {
        let temp = tempfile::tempdir().unwrap();
        for (name, mode) in [("1-x", 0o755), ("100-x", 0o755), ("nodash", 0o755), ("10-off", 0o644)]
        {
            place(temp.path(), name, mode);
        }
        place(temp.path(), "10-a b", 0o755);
        std::os::unix::fs::symlink("/nowhere", temp.path().join("10-lost")).unwrap();
        std::fs::create_dir(temp.path().join("10-dir")).unwrap();
        let (found, problems) = discover(temp.path(), temp.path());
        assert_eq!((found.len(), problems.len()), (0, 6), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.is_plugin), "{problems:?}");
    }

    #[test]
    fn a_plugin_whose_configuration_cannot_be_read_is_told_from_no_plugin() {
        let temp = tempfile::tempdir().unwrap();
        place(temp.path(), "10-a", 0o755);
        crate::files::replace(&temp.path().join("a.conf"), b"\xff\xfe").unwrap();
        std::fs::set_permissions(temp.path().join("a.conf"), PermissionsExt::from_mode(0o755))
            .unwrap();
        let (found, problems) = discover(temp.path(), temp.path());
        let told = problems.iter().find(|problem| problem.is_plugin).map(ToString::to_string);
        assert!(found.is_empty() && told.is_some_and(|line| line.contains("a.conf")));
    }

    #[test]
    fn a_replaced_executable_is_another_plugin() {
        let temp = tempfile::tempdir().unwrap();
        place(temp.path(), "10-a", 0o755);
        let before = discover(temp.path(), temp.path());
        assert_eq!(discover(temp.path(), temp.path()), before);
        std::fs::rename(temp.path().join("10-a"), temp.path().join("old")).unwrap();
        place(temp.path(), "10-a", 0o755);
        assert_ne!(discover(temp.path(), temp.path()).0, before.0);
    }

    #[test]
    fn a_missing_folder_means_no_plugins() {
        assert_eq!(discover(Path::new("/nowhere"), Path::new("/nowhere")), (vec![], vec![]));
    }
}
