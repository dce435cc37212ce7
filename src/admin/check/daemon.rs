// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about the daemon: whether it responds and understands this program's requests, or
//! whether one could start. To see that, this program is run as a daemon until it has opened the run
//! directory; later failures of a start show only in the last line that an exited daemon logged.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::plugins::RECENT_NANOS;
use super::{Daemon, Finding, finding, warning};
use crate::admin::{resident, systemd};
use crate::answers::Failure;
use crate::config::{Config, Loaded};
use crate::daemon::other;
use crate::error::{Error, Result};
use crate::last_words;
use crate::plugin::socket::listener_at;
use crate::runtime::{self, bounded};
use crate::wrapper;

/// Time limit of a trial start, and of each program that is tried.
const TRIAL_WAIT: Duration = Duration::from_secs(5);

/// Checks whether the daemon responds, or could start; `can_serve`: whether it could serve in the run directory.
pub(super) fn row(loaded: &Loaded, running: &Daemon, can_serve: Result<()>) -> Finding {
    let config = &loaded.config;
    let socket = config.daemon_socket();
    if let Some(problem) = &running.problem {
        let detail = format!("listening at {}, but {problem}", socket.display());
        return finding("daemon", false, detail, &remedy(config));
    }
    if running.is_listening {
        let detail = format!("listening at {}", socket.display());
        return finding("daemon", true, detail, "");
    }
    if let Some(other) = other::find(config, loaded.only.as_deref()) {
        let detail = format!("{}; containers' requests do not reach it", other.error(config).why());
        return finding("daemon", false, detail, other.next_step());
    }
    if let Some(words) = last_words::read(&config.run_dir) {
        let detail = format!("not running; the last one ended with: {words}");
        return finding("daemon", false, detail, "nri-runc nri restart");
    }
    if !config.autostart {
        return finding("daemon", false, "not running; autostart is off", "start the service");
    }
    match can_serve.and_then(|()| trial(loaded)) {
        Ok(()) => finding("daemon", true, "not running; the first container starts it", ""),
        Err(error) => {
            let detail = format!("not running, and none can start: {}", error.why());
            let hint = Some(error.next_step()).filter(|hint| !hint.is_empty());
            finding("daemon", false, detail, hint.unwrap_or("install another version of nri-runc"))
        }
    }
}

/// Returns the remedy for a process that listens on the daemon's socket and does not respond.
fn remedy(config: &Config) -> String {
    let listener = listener_at(&config.daemon_socket(), &config.host());
    let listener = listener.and_then(|listener| listener.pid).filter(|pid| *pid > 0);
    match (resident::holder(&config.daemon_lock()), listener) {
        // systemd itself listens on the socket of a unit that fails to start.
        (None, Some(1)) => systemd::command("status nri-runc"),
        (None, Some(pid)) => format!("kill {pid}"),
        (Some(_), _) | (None, None) => "nri-runc nri restart".to_owned(),
    }
}

/// Runs this program as a daemon that exits once it has opened the run directory.
fn trial(loaded: &Loaded) -> Result<()> {
    let file = loaded.only.as_deref().map(Path::to_string_lossy);
    let mut words = vec!["nri"];
    words.extend(file.iter().flat_map(|file| ["--config", file]));
    words.extend(["daemon", "--trial"]);
    succeeds("/proc/self/exe", &words)
}

fn succeeds(program: impl AsRef<OsStr>, words: &[&str]) -> Result<()> {
    let said = bounded::run(program, words, TRIAL_WAIT)?;
    if said.status.success() {
        return Ok(());
    }
    let words = last_words::of_output(&said.stderr);
    Err(Error::new(words.unwrap_or_else(|| said.status.to_string())))
}

/// Checks the programs that engines call: one that cannot be executed fails every container, and
/// one of a different version is a warning.
pub(super) fn programs(programs: &[PathBuf]) -> Vec<Finding> {
    let own = Path::new("/proc/self/exe");
    let others = programs.iter().filter(|path| !runtime::has_same_bytes(own, path));
    let rows = others.map(|path| match succeeds(path, &["nri", "daemon", "--probe-state"]) {
        Ok(()) => {
            let detail = format!("{} has a different version than this program", path.display());
            warning("program", detail, "use one version of nri-runc for all")
        }
        Err(error) => {
            let detail = format!("{} does not run: {}", path.display(), error.why());
            finding("program", false, detail, &format!("install nri-runc at {}", path.display()))
        }
    });
    rows.collect()
}

/// Reports a running daemon that does not understand this program's requests. A wrapper first makes an older
/// daemon re-execute; if that does not help, or the daemon is newer, the wrapper proceeds as without a daemon.
pub(super) fn protocol(config: &Config, running: &Daemon) -> Option<Finding> {
    let status = running.status.as_ref()?;
    let (theirs, own) = wrapper::other_protocol(config)?;
    let version = &status.version;
    let program = status.program.as_ref().map(|program| program.path.to_string_lossy());
    let program = program.unwrap_or("the daemon's path".into());
    let detail =
        format!("version {version} speaks protocol {theirs}, but this nri-runc speaks {own}");
    let hint = match theirs < own {
        true => format!("install this version at {program}, then: nri-runc nri reexec"),
        false => "install the daemon's version wherever an engine calls nri-runc".to_owned(),
    };
    Some(finding("daemon", false, detail, &hint))
}

/// Reports the daemon's recent failures, other than refused commands.
pub(super) fn failures(running: &Daemon, now: i64) -> Option<Finding> {
    let is_recent = |at: i64| now.saturating_sub(at) < RECENT_NANOS;
    let all = running.status.as_ref()?.failures.iter();
    let recent: Vec<&Failure> =
        all.filter(|failure| !failure.refused && is_recent(failure.at)).collect();
    let last = &recent.last()?.what;
    let detail = format!("{} in the last ten minutes; the last: {last}", recent.len());
    Some(warning("failures", detail, "nri-runc nri status"))
}
