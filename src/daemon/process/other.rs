// SPDX-License-Identifier: Apache-2.0
//! Finds a daemon with another run directory: one of this installation, because `run_dir` was changed or a file system
//! was mounted over it, or one on the same plugin socket. Plugins are connected to that daemon, so a second one would
//! serve containers without them and is not started.
//!
//! Only a process of the host's root that holds the lock is recognized as a daemon: a process of a container may have
//! any name, file and lock. This module signals no process.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::{Config, FILE_VARIABLE, Loaded};
use crate::error::{Context, Error, Result, quoted};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::plugin::socket::listener_at;
use crate::presence::{self, IfThere};
use crate::procfs;

/// Time limit for the other daemon to restore a run directory that was removed or mounted over.
const RESTORE_WAIT: Duration = Duration::from_secs(3);

/// Interval of checks during [`RESTORE_WAIT`].
const RESTORE_CHECK: Duration = Duration::from_millis(20);

/// A daemon with another run directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OtherDaemon {
    pub(crate) pid: u32,
    /// The run directory, by the path with which that daemon opened it.
    pub(crate) run_dir: PathBuf,
    /// Whether that daemon runs this program with this configuration; else it only serves the same
    /// plugin socket.
    pub(crate) is_ours: bool,
}

impl OtherDaemon {
    /// Returns the error that names the daemon, both run directories, and the next step.
    pub(crate) fn error(&self, config: &Config) -> Error {
        let (pid, ours) = (self.pid, config.run_dir.display());
        let theirs = quoted(&self.run_dir.to_string_lossy());
        let error = Error::new(format!(
            "the daemon that serves the plugins (process {pid}) has the run directory {theirs}, \
             but this configuration has {ours}"
        ));
        error.hint(self.next_step())
    }

    /// Returns the operator's next step, after which one daemon is left, or the two are separate.
    pub(crate) fn next_step(&self) -> &'static str {
        match self.is_ours {
            true => "use: nri-runc nri restart",
            false => "it has another configuration: set another run_dir and nri.socket_path here",
        }
    }
}

/// Refuses to start a daemon beside another one that serves the plugins. Before that, calls
/// [`carry_protecting_plugins`] if the other one is of this program and configuration.
///
/// # Errors
/// Fails with a line that names that daemon, or if the list of plugins cannot be kept.
pub(crate) fn refuse_beside(loaded: &Loaded) -> Result<()> {
    let (config, deadline) = (&loaded.config, Instant::now() + RESTORE_WAIT);
    loop {
        let Some(other) = find(config, loaded.only.as_deref()) else { return Ok(()) };
        // If the other daemon restores this directory, it soon serves here; then its lock decides.
        if other.run_dir != config.run_dir || Instant::now() > deadline {
            let carried = match other.is_ours {
                true => carry_protecting_plugins(&other, config),
                false => Ok(()),
            };
            carried.doing(|| "keeping the list of plugins that protect containers")?;
            return Err(other.error(config));
        }
        std::thread::sleep(RESTORE_CHECK);
    }
}

/// Adds the plugins that the other daemon's run directory lists as protecting to the list in this run directory,
/// which a wrapper without a daemon reads. An unreadable list protects too.
fn carry_protecting_plugins(other: &OtherDaemon, config: &Config) -> Result<()> {
    let theirs = Config { run_dir: other.run_dir.clone(), ..Config::default() };
    let lines = |config: &Config| {
        let path = config.protecting_plugins();
        let list =
            presence::insist(|| files::read_own(&path, limits::OWN_FILE).if_there()).map(|list| {
                String::from_utf8_lossy(&list.unwrap_or_default())
                    .lines()
                    .map(str::to_owned)
                    .collect()
            });
        let unknown = |_error| vec![format!("list in {} cannot be read", path.display())];
        list.unwrap_or_else(unknown)
    };
    let mut union = lines(config);
    let before = union.len();
    for line in lines(&theirs) {
        if !union.contains(&line) {
            union.push(line);
        }
    }
    if union.len() == before {
        return Ok(());
    }
    let text: String = union.iter().map(|line| format!("{line}\n")).collect();
    presence::insist(|| files::replace(&config.protecting_plugins(), text.as_bytes()))?;
    Ok(())
}

/// Returns the daemon of this installation, or one that serves the same plugins, if its lock file is not `config`'s;
/// `only` is the only configuration file to read, if one was named.
pub(crate) fn find(config: &Config, only: Option<&Path>) -> Option<OtherDaemon> {
    let host = Host::default();
    let own = std::process::id();
    let processes = std::fs::read_dir("/proc").or_absent().into_iter().flatten().flatten();
    let daemons = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().filter(|pid| *pid != own)?;
        // This check comes first: reading a command line reads the process's memory, and a container's process can
        // make its reader wait.
        if !is_of_this_host(pid) {
            return None;
        }
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
    // The listener is contacted only if it may be a daemon: an engine would log each connection.
    if others.is_empty() || config.disable_connections {
        return None;
    }
    let listener = listener_at(&config.socket_path, &config.host())?.pid?;
    others.into_iter().find(|other| i32::try_from(other.pid) == Ok(listener))
}

fn folder_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Whether root runs the process, in this process's PID and user namespaces.
fn is_of_this_host(pid: u32) -> bool {
    let owner = std::fs::metadata(folder_of(pid)).or_absent().map(|meta| meta.uid());
    owner == Some(0) && shares(pid, "ns/pid") && shares(pid, "ns/user")
}

/// Whether `entry` of the process's `/proc` folder is the same file as this process's.
fn shares(pid: u32, entry: &str) -> bool {
    let place = |process: &Path| {
        let meta = std::fs::metadata(process.join(entry)).or_absent()?;
        Some((meta.dev(), meta.ino()))
    };
    place(&folder_of(pid)).is_some_and(|theirs| place(Path::new("/proc/self")) == Some(theirs))
}

/// Returns the run directory of the daemon `pid`, if its lock file differs from this configuration's.
fn locked_elsewhere(config: &Config, pid: u32) -> Option<PathBuf> {
    let process = folder_of(pid);
    // A lock of this configuration that cannot be examined must not count as another daemon's.
    let ours = std::fs::metadata(config.daemon_lock()).if_there().ok()?;
    let place = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    for entry in std::fs::read_dir(process.join("fd")).or_absent()?.flatten() {
        let Ok(path) = std::fs::read_link(entry.path()) else { continue };
        let path = path.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        let Some(run_dir) = path.strip_suffix("/daemon.lock") else { continue };
        let about = process.join("fdinfo").join(entry.file_name());
        let about = files::read_kernel(&about).or_absent();
        let is_held = about.is_some_and(|about| about.contains("FLOCK"));
        let theirs = std::fs::metadata(entry.path()).or_absent()?;
        if is_held && ours.as_ref().map(place) != Some(place(&theirs)) {
            return Some(PathBuf::from(run_dir));
        }
    }
    None
}

/// Whether the process runs a program of the same path: the same file or, after an upgrade, another
/// file in the same mount namespace.
fn is_same_program(pid: u32) -> bool {
    let program = |process: &str| {
        let path = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
        // An upgrade may have replaced the file.
        Some(path.to_string_lossy().trim_end_matches(" (deleted)").to_owned())
    };
    // The link's text is enough and comes from the kernel, while the file may be on a file server.
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
        && (shares(pid, "ns/mnt") || shares(pid, "exe"))
}

/// Returns the one configuration file that the process reads, if its command line or environment names it,
/// or it lies beside the program.
fn file_of(host: &Host, pid: u32) -> Option<PathBuf> {
    let words = procfs::command_line(host, pid).or_absent().unwrap_or_default();
    let after = words.iter().position(|word| word == b"--config").and_then(|at| words.get(at + 1));
    let by_word = after.map(|word| PathBuf::from(String::from_utf8_lossy(word).into_owned()));
    let by_variable = || procfs::variable(host, pid, FILE_VARIABLE).or_absent()?.map(PathBuf::from);
    let beside = || {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let program = program.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
        let file = PathBuf::from(format!("{program}.toml"));
        presence::exists(&file).or_absent()?.then_some(file)
    };
    by_word.or_else(by_variable).or_else(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_a_daemon_is_not_found() {
        let temp = tempfile::tempdir().unwrap();
        let run_dir = temp.path().join("run");
        let socket_path = temp.path().join("nri.sock");
        let config = Config { run_dir, socket_path, ..Config::default() };
        // This process holds the daemon's lock, with another command line than a daemon's.
        let _lock = crate::daemon::process::sockets::lock(&config).unwrap();
        assert_eq!(find(&config, Some(&temp.path().join("config.toml"))), None);
        let own = std::process::id();
        assert_eq!(locked_elsewhere(&config, own), None);
        let other = Config { run_dir: temp.path().join("other"), ..config.clone() };
        assert_eq!(locked_elsewhere(&other, own), Some(config.run_dir));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "processes of this test alone")]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn a_process_of_another_user_or_namespace_does_not_count() {
        use std::os::unix::process::CommandExt;
        use std::process::Command;
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: it needs root");
            return;
        }
        assert!(is_of_this_host(std::process::id()) && is_same_program(std::process::id()));
        let mut child = Command::new("sleep").arg("60").uid(65534).spawn().unwrap();
        assert!(!is_of_this_host(child.id()) && !is_same_program(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        // The child is in another PID namespace.
        let words = ["--pid", "--fork", "--kill-child", "sh", "-c", "echo $PPID; exec sleep 60"];
        let mut parent = Command::new("unshare")
            .args(words)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let out = parent.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", parent.id());
        let inside: u32 =
            std::fs::read_to_string(children).unwrap().trim().parse().unwrap_or_default();
        assert!(inside > 0 && !is_of_this_host(inside), "{said}");
        parent.kill().unwrap();
        parent.wait().unwrap();
    }

    #[test]
    fn protecting_plugins_of_another_daemon_are_merged_or_assumed() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { run_dir: temp.path().join("ours"), ..Config::default() };
        let run_dir = temp.path().join("theirs");
        let other = OtherDaemon { pid: 1, run_dir: run_dir.clone(), is_ours: true };
        let list = || std::fs::read_to_string(config.protecting_plugins()).unwrap();
        for dir in [&config.run_dir, &run_dir] {
            std::fs::create_dir(dir).unwrap();
        }
        files::replace(&config.protecting_plugins(), b"10-a validates adjustments\n").unwrap();
        carry_protecting_plugins(&other, &config).unwrap();
        assert_eq!(list(), "10-a validates adjustments\n", "they have no list");
        let theirs = run_dir.join("protecting-plugins");
        files::replace(&theirs, b"20-b validates adjustments\n").unwrap();
        carry_protecting_plugins(&other, &config).unwrap();
        carry_protecting_plugins(&other, &config).unwrap();
        assert_eq!(list(), "10-a validates adjustments\n20-b validates adjustments\n");
        std::fs::remove_file(&theirs).unwrap();
        std::fs::create_dir(&theirs).unwrap();
        carry_protecting_plugins(&other, &config).unwrap();
        let found = config.protections_without_daemon();
        assert!(found.len() == 3 && found[2].what.ends_with("cannot be read"), "{found:?}");
    }
}
