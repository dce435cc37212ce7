// SPDX-License-Identifier: Apache-2.0
//! Another daemon of this installation whose run directory is not the one of the configuration any
//! more: `run_dir` was changed, or another file system was mounted over it. Plugins are connected to
//! that one, so a second daemon would serve containers without them and is not started beside it.
//!
//! A process is known as a daemon by the lock that it holds. Nothing here signals it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::{Config, FILE_VARIABLE, Loaded};
use crate::error::{Error, Result};
use crate::files;
use crate::host::Host;
use crate::plugin::socket::listener_at;
use crate::presence::IfThere;
use crate::procfs;

/// How long the other daemon may take to restore a run directory that was removed, or mounted over.
const RESTORE_WAIT: Duration = Duration::from_secs(3);

/// How often it is looked at meanwhile.
const RESTORE_CHECK: Duration = Duration::from_millis(20);

/// A daemon with another run directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OtherDaemon {
    pub(crate) pid: u32,
    /// Its run directory, by the path at which it opened it.
    pub(crate) run_dir: PathBuf,
    /// Whether it runs this program with this configuration; else it only serves the same plugin
    /// socket.
    pub(crate) is_ours: bool,
}

impl OtherDaemon {
    /// Says which daemon it is, and what it has in place of `config`, with the next step.
    pub(crate) fn error(&self, config: &Config) -> Error {
        let (pid, theirs, ours) = (self.pid, self.run_dir.display(), config.run_dir.display());
        let error = Error::new(format!(
            "the daemon that serves the plugins (process {pid}) has the run directory {theirs}, this configuration {ours}"
        ));
        error.hint(self.next_step())
    }

    /// What makes the plugins' daemon and this configuration one again, or two.
    pub(crate) fn next_step(&self) -> &'static str {
        match self.is_ours {
            true => "use: nri-runc nri restart",
            false => "it has another configuration: set another run_dir and nri.socket_path here",
        }
    }
}

/// Refuses to start a daemon beside another one that serves the plugins.
///
/// # Errors
/// Names that daemon.
pub(crate) fn refuse_beside(loaded: &Loaded) -> Result<()> {
    let (config, deadline) = (&loaded.config, Instant::now() + RESTORE_WAIT);
    loop {
        let Some(other) = find(config, loaded.only.as_deref()) else { return Ok(()) };
        // One that restores the very directory serves there in a moment: then its lock decides.
        if other.run_dir != config.run_dir || Instant::now() > deadline {
            carry_protecting_plugins(&other, config);
            return Err(other.error(config));
        }
        std::thread::sleep(RESTORE_CHECK);
    }
}

/// The plugins that protect containers by their own declaration are in the other's run directory; the
/// wrapper that decides without a daemon looks in this one.
fn carry_protecting_plugins(other: &OtherDaemon, config: &Config) {
    let theirs = Config { run_dir: other.run_dir.clone(), ..Config::default() };
    if let Ok(list) = files::read_small(&theirs.protecting_plugins()) {
        let _best_effort = files::replace(&config.protecting_plugins(), &list);
    }
}

/// The daemon of this installation, or the one that serves the same plugins, if it has another run
/// directory than `config`; `only` is the configuration file that was named.
pub(crate) fn find(config: &Config, only: Option<&Path>) -> Option<OtherDaemon> {
    let host = Host::default();
    let own = std::process::id();
    let daemons = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().filter(|pid| *pid != own)?;
        let words = procfs::command_line(&host, pid).or_absent()?;
        let is_daemon = words.get(1).is_some_and(|word| word == b"nri")
            && words.iter().any(|word| word == b"daemon");
        let run_dir = is_daemon.then(|| locked_elsewhere(config, pid)).flatten()?;
        let is_ours = is_same_program(pid) && file_of(&host, pid).as_deref() == only;
        Some(OtherDaemon { pid, run_dir, is_ours })
    });
    let (ours, others): (Vec<_>, Vec<_>) = daemons.partition(|other| other.is_ours);
    if let Some(other) = ours.into_iter().next() {
        return Some(other);
    }
    // An engine that listens there logs each connection: it is asked only if it may be a daemon.
    if others.is_empty() || config.disable_connections {
        return None;
    }
    let listener = listener_at(&config.socket_path, &config.host())?.pid?;
    others.into_iter().find(|other| i32::try_from(other.pid) == Ok(listener))
}

/// The run directory of the daemon `pid`, if its lock is another file than the one in ours.
fn locked_elsewhere(config: &Config, pid: u32) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let ours = std::fs::metadata(config.daemon_lock()).ok();
    let place = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    for entry in std::fs::read_dir(process.join("fd")).ok()?.flatten() {
        let Ok(path) = std::fs::read_link(entry.path()) else { continue };
        let path = path.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        let Some(run_dir) = path.strip_suffix("/daemon.lock") else { continue };
        let about = process.join("fdinfo").join(entry.file_name());
        let is_held = std::fs::read_to_string(about).is_ok_and(|about| about.contains("FLOCK"));
        let theirs = std::fs::metadata(entry.path()).ok()?;
        if is_held && ours.as_ref().map(place) != Some(place(&theirs)) {
            return Some(PathBuf::from(run_dir));
        }
    }
    None
}

fn is_same_program(pid: u32) -> bool {
    let program = |process: &str| {
        let path = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
        // An upgrade has replaced the file.
        Some(path.to_string_lossy().trim_end_matches(" (deleted)").to_owned())
    };
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
}

/// The configuration file that the daemon was told to read alone.
fn file_of(host: &Host, pid: u32) -> Option<PathBuf> {
    let words = procfs::command_line(host, pid).or_absent().unwrap_or_default();
    let after = words.iter().position(|word| word == b"--config").and_then(|at| words.get(at + 1));
    let by_word = after.map(|word| PathBuf::from(String::from_utf8_lossy(word).into_owned()));
    let by_variable = || procfs::variable(host, pid, FILE_VARIABLE).or_absent()?.map(PathBuf::from);
    let beside = || {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let program = program.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        Some(PathBuf::from(format!("{program}.toml"))).filter(|file| file.exists())
    };
    by_word.or_else(by_variable).or_else(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_no_daemon_is_not_found() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path().join("run");
        let socket_path = temp.path().join("nri.sock");
        let config = Config { run_dir, socket_path, ..Config::default() };
        // Its lock is open, and held, in a process whose command line is another.
        let _lock = crate::daemon::process::sockets::lock(&config).unwrap();
        assert_eq!(find(&config, Some(&temp.path().join("config.toml"))), None);
        let own = std::process::id();
        assert_eq!(locked_elsewhere(&config, own), None);
        let other = Config { run_dir: temp.path().join("other"), ..config.clone() };
        assert_eq!(locked_elsewhere(&other, own), Some(config.run_dir));
    }
}
