// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about the node: runtime, cgroups, clock, logs, containers that plugins do not see.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Daemon, Finding, finding, warning};
use crate::config::{AuditTarget, Config, Scope};
use crate::error::{Context, Error, Result};
use crate::{files, journal, runtime};

/// Earliest plausible time of the clock: 2025, in seconds since 1970.
const BEFORE: i64 = 1_735_689_600;

/// Checks the runtime that this process finds, unless a row about an engine shows a runtime, and the runtimes
/// of the configured instances, of which only faults are reported.
pub(super) fn runtimes(config: &Config, of_engines: &[Finding]) -> Vec<Finding> {
    let is_shown = of_engines.iter().any(|finding| finding.check == "real runtime");
    let own = (!is_shown).then(|| match runtime::resolve_and_try(config, None) {
        Ok(path) => finding("real runtime", true, path.display().to_string(), ""),
        Err(error) => {
            finding("real runtime", false, error.to_string(), "install runc, or set `runtime`")
        }
    });
    let instances = config.instances.keys().filter_map(|name| {
        let error = runtime::resolve_and_try(config, Some(&name.into())).err()?;
        let detail = format!("for the instance {name}: {}", error.why());
        Some(finding("real runtime", false, detail, "install it, or correct the instance's path"))
    });
    own.into_iter().chain(instances).collect()
}

/// Checks whether the cgroup file system is mounted, and shows its version.
pub(super) fn cgroups(config: &Config) -> Finding {
    let root = config.host().path("/sys/fs/cgroup");
    let unified = root.join("cgroup.controllers").exists();
    let hybrid = root.join("unified").exists();
    let hierarchies = std::fs::read_dir(&root).into_iter().flatten().flatten();
    let mut hierarchies = hierarchies.map(|entry| entry.path());
    let detail = match (unified, hybrid) {
        (true, _) => "version 2",
        (false, true) => "version 1, hybrid",
        (false, false) if hierarchies.any(|path| path.join("cgroup.procs").exists()) => "version 1",
        (false, false) => "not mounted",
    };
    finding("cgroups", detail != "not mounted", detail, "mount /sys/fs/cgroup")
}

/// Reports a clock that was never set: times in records, logs and lists would be wrong.
pub(super) fn clock(now: i64) -> Option<Finding> {
    let seconds = now / 1_000_000_000;
    (seconds < BEFORE).then(|| {
        let detail =
            format!("the system clock shows a time {seconds} s after 1970-01-01 00:00 UTC");
        finding("clock", false, detail, "set the clock")
    })
}

/// Checks the audit log, if the configuration enables it.
pub(super) fn audit(config: &Config, running: &Daemon) -> Option<Finding> {
    let target = config.audit_target?;
    let counts = running.status.as_ref().and_then(|status| status.audit.as_ref());
    let (place, tried) = match target {
        AuditTarget::File => (config.audit_path.display().to_string(), appends(&config.audit_path)),
        AuditTarget::Journal if config.host().path(journal::SOCKET).exists() => {
            ("the journal".to_owned(), Ok(()))
        }
        AuditTarget::Journal => {
            ("the journal".to_owned(), Err(Error::new("systemd is not running")))
        }
    };
    let hint = "make it writable, or set audit.path";
    if let Err(error) = tried {
        return Some(finding("audit log", false, error.why(), hint));
    }
    if let Some(failure) = counts.and_then(|counts| counts.failure.as_ref()) {
        return Some(finding("audit log", false, failure, hint));
    }
    Some(match counts.map_or(0, |counts| counts.lost) {
        0 => finding("audit log", true, place, ""),
        lost => {
            let detail = format!("{place}: {lost} lines were lost since the daemon started");
            warning("audit log", detail, "nri-runc nri audit --action lost shows when")
        }
    })
}

/// Reports a log of the daemon that cannot be written now, or that lost lines.
pub(super) fn log(running: &Daemon) -> Option<Finding> {
    let status = running.status.as_ref()?;
    let place = &status.log;
    let lost = format!("{} lines were lost since the daemon started", status.log_lines_lost);
    if let Some(failure) = &status.log_failure {
        let detail = format!("{place}: {failure}; {lost}");
        let hint = "restart the service that reads the log, or make its file writable";
        return Some(warning("log", detail, hint));
    }
    (status.log_lines_lost > 0).then(|| finding("log", true, format!("{place}: {lost}"), ""))
}

/// The name of the row about containers that plugins do not see.
pub(super) const WHOLE_NODE: &str = "whole node";

/// Reports the number of containers that the plain runtime made and that plugins do not see.
pub(super) fn unseen(config: &Config, running: &Daemon) -> Option<Finding> {
    let count = Some(running.unseen.count).filter(|count| *count > 0)?;
    let containers = crate::text::counted(count, "container");
    let detail = format!("plugins do not see {containers} that the plain runtime made");
    let hint = match config.scope {
        Scope::Handler => {
            "set nri.scope = \"node\" if plugins allocate CPUs or devices of the node"
        }
        Scope::Node => "set log.level = \"debug\": the daemon logs why",
    };
    Some(warning(WHOLE_NODE, detail, hint))
}

/// Checks whether a log's writer could append to it; does not create the log.
fn appends(path: &Path) -> Result<()> {
    let doing = || format!("opening {}", path.display());
    if path.symlink_metadata().is_err() {
        let folder = path.parent().into_iter().flat_map(Path::ancestors);
        let there = folder.into_iter().find(|folder| folder.exists());
        return there.map_or(Ok(()), files::try_write).doing(doing);
    }
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let opened = OpenOptions::new().append(true).custom_flags(flags).open(path);
    match opened.and_then(|file| file.metadata()).doing(doing)?.is_file() {
        true => files::try_write(path.parent().unwrap_or(Path::new("/"))).doing(doing),
        false => Err(Error::new("it is not a plain file")).doing(doing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_was_never_set_is_reported() {
        let row = clock(7_000_000_000).unwrap();
        assert_eq!((row.ok, row.hint.as_str()), (false, "set the clock"));
        assert_eq!(clock(crate::clock::now()), None);
    }
}
