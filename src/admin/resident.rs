// SPDX-License-Identifier: Apache-2.0
//! `stop`, `restart`, and whether the running daemon is older than the files on disk. It signals only
//! the process that answers on the daemon's socket or, if none answers, the one that holds the
//! daemon's lock. A daemon that systemd manages is left to systemd.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::config::{self, Config, Loaded};
use crate::error::{Context, Error, Result};
use crate::host::Host;
use crate::{daemon, procfs, runtime, wrapper};

use super::progress;

/// A request in flight may take this long, and the daemon finishes it first.
const END_WAIT: Duration = Duration::from_secs(100);

/// Plugins that connect and requests in flight are finished before the daemon is replaced.
const REEXEC_WAIT: Duration = Duration::from_secs(60);

/// How long a daemon that hangs may take to end in order before it is killed.
const HANG_WAIT: Duration = Duration::from_secs(5);

/// The daemon's process.
struct RunningDaemon {
    /// What it answers; of one that does not, as much of it as its process shows.
    status: Value,
    pid: u32,
    process: OwnedFd,
    /// It listens and answers nothing.
    hangs: bool,
}

impl RunningDaemon {
    fn find(loaded: &Loaded) -> Result<Option<Self>> {
        let config = &loaded.config;
        if !wrapper::is_listening(config) {
            return Self::elsewhere(loaded);
        }
        let error = match super::ask(config, &json!({"verb": "status"})) {
            Ok(status) => {
                let pid = status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
                let pid = pid.filter(|pid| *pid > 1);
                let pid = pid.ok_or_else(unknown_process)?;
                return Ok(Some(Self { status, pid, process: open(pid)?, hangs: false }));
            }
            Err(error) => error,
        };
        // It is of another version, or hangs: asked twice, for it may be killed.
        let hangs = wrapper::is_silent(config);
        let Some(pid) = holder(&config.daemon_lock()) else { return Err(error) };
        let process = open(pid)?;
        // The number may have been given to another process before it was opened.
        if holder(&config.daemon_lock()) != Some(pid) {
            return Err(error);
        }
        Ok(Some(Self { status: shown_by_process(pid), pid, process, hangs }))
    }

    /// The daemon of this installation that has another run directory than the configuration.
    fn elsewhere(loaded: &Loaded) -> Result<Option<Self>> {
        let find = || daemon::other::find(&loaded.config, loaded.only.as_deref());
        let Some(other) = find() else { return Ok(None) };
        if !other.is_ours {
            return Err(other.error(&loaded.config));
        }
        let pid = other.pid;
        let process = open(pid)?;
        // The number may have been given to another process before it was opened.
        if find() != Some(other) {
            return Ok(None);
        }
        Ok(Some(Self { status: shown_by_process(pid), pid, process, hangs: false }))
    }

    /// Ends it in order: requests in flight are finished first. One that hangs is killed if need
    /// be; whether it was.
    fn end(&self, instead: &str) -> Result<bool> {
        if self.status["supervisor"] == "systemd" {
            let why = format!("systemd runs the daemon (process {})", self.pid);
            return Err(Error::new(why).hint(format!("use: {instead}")));
        }
        self.signal(Signal::TERM)?;
        if self.has_ended(if self.hangs { HANG_WAIT } else { END_WAIT })? {
            return Ok(false);
        }
        if self.hangs {
            self.signal(Signal::KILL)?;
            if self.has_ended(HANG_WAIT)? {
                return Ok(true);
            }
        }
        let error = Error::new(format!("process {} has not exited yet", self.pid));
        Err(error.hint(if self.hangs {
            "it was killed but is blocked in the kernel, usually on disk I/O"
        } else {
            "a request is still in flight; try again"
        }))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match rustix::process::pidfd_send_signal(&self.process, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(std::io::Error::from_raw_os_error(errno.raw_os_error()))
                .doing(|| format!("stopping the daemon, process {}", self.pid)),
        }
    }

    fn has_ended(&self, within: Duration) -> Result<bool> {
        let wait = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        Ok(poll(&mut [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)], wait)? > 0)
    }
}

fn unknown_process() -> Error {
    let error = Error::new("the daemon does not say which process it is");
    error.hint("end it with systemctl, or by the process ID in the log")
}

fn open(pid: u32) -> Result<OwnedFd> {
    procfs::open(pid).doing(|| format!("opening the daemon's process {pid}"))
}

/// The process that holds the lock on this file, as proc_locks(5) shows it.
fn holder(lock: &Path) -> Option<u32> {
    let meta = std::fs::metadata(lock).ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, "WRITE", pid, place, ..] if *place == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// What a daemon that does not answer was started with.
fn shown_by_process(pid: u32) -> Value {
    let host = Host::default();
    let value = |name: &str| {
        procfs::variable(&host, pid, name).map(|value| value.to_string_lossy().into_owned())
    };
    json!({
        "supervisor": value("NOTIFY_SOCKET").map(|_socket| "systemd"),
        "configuration": {"file": value(config::FILE_VARIABLE)},
        "program": {"path": std::fs::read_link(format!("/proc/{pid}/exe")).ok()},
    })
}

/// `stop`.
pub(super) fn stop(loaded: &Loaded) -> Result<Value> {
    let config = &loaded.config;
    let Some(running) = RunningDaemon::find(loaded)? else {
        return Ok(json!({"stopped": false, "pid": null}));
    };
    let killed = running.end("systemctl stop nri-runc.socket nri-runc.service")?;
    let pid = running.pid;
    Ok(json!({"stopped": true, "pid": pid, "killed": killed, "autostart": config.autostart}))
}

/// `stop` for people.
pub(super) fn show_stopped(document: &Value) -> String {
    let how = if document["killed"] == true { "killed, as it did not respond" } else { "stopped" };
    match document["pid"].as_u64() {
        None => "the daemon is not running".to_owned(),
        Some(pid) if document["autostart"] == true => {
            format!("{how} (process {pid}); the next container starts the daemon again")
        }
        Some(pid) => format!("{how} (process {pid})"),
    }
}

/// `restart`: with the configuration file and the program of the daemon that runs.
pub(super) fn restart(loaded: &Loaded) -> Result<Value> {
    let running = RunningDaemon::find(loaded)?;
    let status = running.as_ref().map(|running| &running.status);
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    let file = match status {
        Some(status) if status["pid"].is_u64() => path(&status["configuration"]["file"]),
        Some(status) => path(&status["configuration"]["file"]).or_else(|| loaded.only.clone()),
        None => loaded.only.clone(),
    };
    let next = runtime::verify(config::load(file.as_deref()));
    if let Some(problem) = next.refusal() {
        let error = Error::new(format!("the configuration has an error: {}", problem.text));
        return Err(error.hint("fix this file first; the daemon keeps running"));
    }
    if running.is_none() && !next.config.autostart {
        let error = Error::new("the daemon is not running, and autostart is off");
        return Err(error.hint("use: systemctl start nri-runc"));
    }
    if let Some(running) = &running {
        running.end("systemctl restart nri-runc")?;
    }
    let program = status.and_then(|status| path(&status["program"]["path"]));
    let program = program.filter(|program| program.is_file());
    let program = program.unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
    // It forks, and only one thread may do that.
    progress::clear();
    wrapper::start_daemon(&next.config, &program, file.as_deref())?;
    let status = super::ask(&next.config, &json!({"verb": "status"}))?;
    Ok(json!({"was": running.map(|running| running.pid), "pid": status["pid"]}))
}

/// `restart` for people.
pub(super) fn show_restarted(document: &Value) -> String {
    let now = document["pid"].as_u64().unwrap_or_default();
    match document["was"].as_u64() {
        Some(was) => format!("restarted: process {now} (was {was})"),
        None => format!("started: process {now}"),
    }
}

/// `reexec`: the running daemon becomes the program that now lies at its path. Without a daemon
/// there is nothing to do.
pub(super) fn reexec(config: &Config) -> Result<Value> {
    if !wrapper::is_listening(config) {
        return Ok(json!({"reexecuted": false, "pid": null}));
    }
    let answer =
        wrapper::admin_within(config, &json!({"verb": "reexec"}).to_string(), REEXEC_WAIT)?;
    let mut document: Value =
        serde_json::from_str(&answer).map_err(|error| Error::new(error.to_string()))?;
    document["reexecuted"] = true.into();
    Ok(document)
}

/// `reexec` for people.
pub(super) fn show_reexecuted(document: &Value) -> String {
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| document[name].as_u64().unwrap_or_default();
    if document["pid"].is_null() {
        return "the daemon is not running".to_owned();
    }
    format!(
        "re-executed: process {} runs version {} (was {}); {} plugins stayed connected, requests were held for {} ms",
        number("pid"),
        text("version"),
        text("was_version"),
        number("plugins"),
        number("held_ms")
    )
}

/// What of a daemon with this status is older than the files on disk, each with how to restart it.
pub(super) fn outdated(status: &Value) -> Vec<(String, &'static str)> {
    let is_systemd = status["supervisor"] == "systemd";
    let hint = if is_systemd { "systemctl restart nri-runc" } else { "nri-runc nri restart" };
    let changed = status["configuration"]["changed"].as_array().into_iter().flatten();
    let changed: Vec<&str> = changed.filter_map(Value::as_str).collect();
    let mut found = Vec::new();
    if !changed.is_empty() {
        // A daemon of an earlier version applies nothing but the log level.
        let restarts = status["configuration"]["restart_needed"].as_array();
        let is_live = restarts.is_some_and(Vec::is_empty);
        found.push((
            format!("older than the configuration files; changed: {}", changed.join(", ")),
            if is_live { "nri-runc nri reload" } else { hint },
        ));
    }
    found.extend(outdated_program(status).map(|what| (what, hint)));
    found
}

fn outdated_program(status: &Value) -> Option<String> {
    let program = &status["program"];
    let path = Path::new(program["path"].as_str()?);
    let Ok(meta) = std::fs::metadata(path) else {
        return Some(format!("its executable {} is missing", path.display()));
    };
    let modified = json!([meta.mtime(), meta.mtime_nsec()]);
    let is_same = program["device"] == meta.dev()
        && program["inode"] == meta.ino()
        && program["size"] == meta.len()
        && program["modified"] == modified;
    let own = PathBuf::from(format!("/proc/{}/exe", status["pid"]));
    // The same bytes installed once more are no other program.
    if is_same || runtime::has_same_bytes(&own, path) {
        return None;
    }
    Some(format!("older than its executable {}", path.display()))
}
