// SPDX-License-Identifier: Apache-2.0
//! Pre-installed plugins: finding them, starting them as the reference does, ending them.
//!
//! A plugin gets its socket as descriptor 3, exactly three environment variables, and nothing
//! else; it dies with us. A file that is no plugin is skipped with one line, and never keeps
//! the others from starting.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;

use crate::error::{Context, Error, Result, in_our_words};

use super::session::{Plugin, Settings, Upcalls, handshake};

/// How long a plugin may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

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
}

/// Finds the plugins in `dir` with their configuration from `config_dir`, in name order; the
/// second value says, one line each, what was skipped.
pub fn discover(dir: &Path, config_dir: &Path) -> (Vec<PluginFile>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let mut entries: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        match inspect(&path, config_dir) {
            Ok(Some(file)) => found.push(file),
            Ok(None) => {}
            Err(error) => problems.push(format!("{} was skipped: {error}", path.display())),
        }
    }
    (found, problems)
}

fn inspect(path: &Path, config_dir: &Path) -> Result<Option<PluginFile>> {
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
    if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::new("its name does not begin with two digits"));
    }
    let config = config_text(config_dir, index, name)?;
    Ok(Some(PluginFile {
        path: path.to_owned(),
        index: index.to_owned(),
        name: name.to_owned(),
        config,
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

/// The process of a launched plugin; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Starting a pre-installed plugin.
#[derive(Debug)]
pub struct Launched;

impl Launched {
    /// Starts the plugin and shakes hands with it. Must be called on the main thread: the plugin
    /// is killed when the thread that started it ends.
    ///
    /// # Errors
    /// Fails when it cannot be executed or does not register; its process is ended then.
    pub async fn start(
        file: &PluginFile,
        settings: &Settings,
        upcalls: Arc<dyn Upcalls>,
    ) -> Result<Plugin> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = spawn(file, theirs.into())?;
        let pid = i32::try_from(child.0.id()).ok();
        let who = (file.index.clone(), file.name.clone(), file.config.clone());
        let stream = UnixStream::from_std(ours)?;
        let shaken = handshake(stream, Some(who), settings, upcalls).await;
        let mut plugin = shaken.map_err(|error| Error::new(error.to_string()))?;
        plugin.set_pid(pid);
        if let Ok(mut slot) = plugin.child.lock() {
            *slot = Some(child);
        }
        Ok(plugin)
    }
}

#[expect(unsafe_code, clippy::disallowed_methods, reason = "the one place that starts plugins")]
fn spawn(file: &PluginFile, socket: OwnedFd) -> Result<Child> {
    let number = socket.as_raw_fd();
    let mut command = std::process::Command::new(&file.path);
    command
        .env_clear()
        .env("NRI_PLUGIN_NAME", &file.name)
        .env("NRI_PLUGIN_IDX", &file.index)
        .env("NRI_PLUGIN_SOCKET", "3")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .process_group(0);
    // SAFETY: the closure runs between fork and exec and only makes system calls.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            give_as_three(number)
        });
    }
    let child = command.spawn().doing(|| format!("starting {}", file.path.display()))?;
    Ok(Child(child))
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

/// Ends the process of a launched plugin: SIGTERM, a bounded grace, SIGKILL.
pub(super) fn stop(plugin: &Plugin) {
    let child = plugin.child.lock().ok().and_then(|mut slot| slot.take());
    let Some(mut child) = child else { return };
    let pid = i32::try_from(child.0.id()).unwrap_or(0);
    let _already_gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
    tokio::spawn(async move {
        let deadline = tokio::time::Instant::now() + GRACE;
        while tokio::time::Instant::now() < deadline {
            if !matches!(child.0.try_wait(), Ok(None)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(child);
    });
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
        assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn what_is_no_plugin_is_skipped_with_a_line_each() {
        let temp = tempfile::tempdir().unwrap();
        for (name, mode) in [("1-x", 0o755), ("100-x", 0o755), ("nodash", 0o755), ("10-off", 0o644)]
        {
            place(temp.path(), name, mode);
        }
        std::fs::create_dir(temp.path().join("10-dir")).unwrap();
        let (found, problems) = discover(temp.path(), temp.path());
        assert_eq!((found.len(), problems.len()), (0, 4), "{problems:?}");
    }

    #[test]
    fn a_missing_folder_means_no_plugins() {
        assert_eq!(discover(Path::new("/nowhere"), Path::new("/nowhere")), (vec![], vec![]));
    }
}
