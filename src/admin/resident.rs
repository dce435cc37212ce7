// SPDX-License-Identifier: Apache-2.0
//! The daemon as an operator handles it: `stop`, `restart`, and whether it is older than the
//! files on disk. It signals no process but the one that answers on the daemon's socket, and
//! leaves a daemon that systemd runs to systemd.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::config::{self, Config, Loaded};
use crate::error::{Context, Error, Result};
use crate::{runtime, wrapper};

/// A request in flight may take this long, and the daemon finishes it first.
const END_WAIT: Duration = Duration::from_secs(100);

/// A daemon that answers.
struct Running {
    status: Value,
    pid: u32,
    process: OwnedFd,
}

impl Running {
    fn find(config: &Config) -> Result<Option<Self>> {
        if UnixStream::connect(config.daemon_socket()).is_err() {
            return Ok(None);
        }
        let status = super::ask(config, &json!({"verb": "status"}))?;
        let pid = status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.filter(|pid| *pid > 1).ok_or_else(|| Error::new("its process is unknown"))?;
        let number = rustix::process::Pid::from_raw(pid.cast_signed());
        let number = number.ok_or_else(|| Error::new("its process is unknown"))?;
        let process = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.raw_os_error()))
            .doing(|| format!("opening the daemon's process {pid}"))?;
        Ok(Some(Self { status, pid, process }))
    }

    /// Ends it in order: requests in flight are finished first.
    fn end(&self, instead: &str) -> Result<()> {
        if self.status["supervisor"] == "systemd" {
            let why = format!("systemd runs the daemon (process {})", self.pid);
            return Err(Error::new(why).hint(format!("use: {instead}")));
        }
        rustix::process::pidfd_send_signal(&self.process, rustix::process::Signal::TERM)
            .map_err(|errno| std::io::Error::from_raw_os_error(errno.raw_os_error()))
            .doing(|| format!("ending the daemon, process {}", self.pid))?;
        let wait = PollTimeout::try_from(END_WAIT).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)], wait)? {
            0 => Err(Error::new(format!("process {} has not ended yet", self.pid))
                .hint("a request is still in flight; try again")),
            _ => Ok(()),
        }
    }
}

/// `stop`.
pub(super) fn stop(config: &Config) -> Result<Value> {
    let Some(running) = Running::find(config)? else {
        return Ok(json!({"stopped": false, "pid": null}));
    };
    running.end("systemctl stop nri-runc.socket nri-runc.service")?;
    Ok(json!({"stopped": true, "pid": running.pid, "autostart": config.autostart}))
}

/// `stop` for people.
pub(super) fn show_stopped(document: &Value) -> String {
    match document["pid"].as_u64() {
        None => "the daemon is not running".to_owned(),
        Some(pid) if document["autostart"] == true => {
            format!("stopped, was process {pid}; the next container starts it again")
        }
        Some(pid) => format!("stopped, was process {pid}"),
    }
}

/// `restart`: with the configuration file and the program of the daemon that runs.
pub(super) fn restart(loaded: &Loaded) -> Result<Value> {
    let running = Running::find(&loaded.config)?;
    let status = running.as_ref().map(|running| &running.status);
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    let file = match status {
        Some(status) => path(&status["configuration"]["file"]),
        None => loaded.only.clone(),
    };
    let next = config::load(file.as_deref());
    if let Some(why) = &next.config.protection_error {
        let error = Error::new(format!("the configuration cannot be relied on: {why}"));
        return Err(error.hint("the daemon was left as it is; fix this file first"));
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
    wrapper::start_daemon(&next.config, &program, file.as_deref())?;
    let status = super::ask(&next.config, &json!({"verb": "status"}))?;
    Ok(json!({"was": running.map(|running| running.pid), "pid": status["pid"]}))
}

/// `restart` for people.
pub(super) fn show_restarted(document: &Value) -> String {
    let now = document["pid"].as_u64().unwrap_or_default();
    match document["was"].as_u64() {
        Some(was) => format!("restarted: process {now}, was {was}"),
        None => format!("started: process {now}"),
    }
}

/// What of a running daemon is older than the files on disk, each with how to restart it.
pub(super) fn outdated(config: &Config) -> Vec<(String, &'static str)> {
    if UnixStream::connect(config.daemon_socket()).is_err() {
        return Vec::new();
    }
    let status = super::ask(config, &json!({"verb": "status"})).unwrap_or_default();
    let is_systemd = status["supervisor"] == "systemd";
    let hint = if is_systemd { "systemctl restart nri-runc" } else { "nri-runc nri restart" };
    let changed = status["configuration"]["changed"].as_array().into_iter().flatten();
    let changed: Vec<&str> = changed.filter_map(Value::as_str).collect();
    let mut found = Vec::new();
    if !changed.is_empty() {
        found.push((format!("older than the configuration: {}", changed.join(", ")), hint));
    }
    found.extend(outdated_program(&status).map(|what| (what, hint)));
    found
}

fn outdated_program(status: &Value) -> Option<String> {
    let program = &status["program"];
    let path = Path::new(program["path"].as_str()?);
    let Ok(meta) = std::fs::metadata(path) else {
        return Some(format!("its program {} is missing", path.display()));
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
    Some(format!("older than its program {}", path.display()))
}
