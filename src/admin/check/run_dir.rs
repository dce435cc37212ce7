// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about the run directory, which is opened as a wrapper does it, and written as the
//! daemon does it; about locks that keep a daemon from starting; about the notes of wrappers that found
//! no daemon; and about containers that were created without plugins.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::de::IgnoredAny;

use super::{Daemon, Finding, finding, warning};
use crate::admin::resident::holder;
use crate::config::Config;
use crate::error::{Context, Error, Result, quoted};
use crate::files;
use crate::host::Host;
use crate::journal;
use crate::limits;
use crate::link::{BYPASSED_DIR, DROPPED_NOTES, REFUSED_DIR, WrapperNote};
use crate::presence::IfThere;
use crate::procfs;
use crate::text::{age, counted, short_id};
use nix::sys::socket::UnixAddr;
use nix::unistd::{AccessFlags, access};

/// Minimum free bytes in the run directory, enough for the records and documents of some containers.
const ROOM: u64 = 1 << 20;
/// Minimum free inodes in the run directory.
const ROOM_FILES: u64 = 64;

/// Time for which a lock may be held before it is reported: a process that starts the daemon holds
/// the start lock for a moment, as does a daemon that starts or exits.
const LOCK_WAIT: Duration = Duration::from_millis(1500);
/// Interval of looks at the locks.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Returns the rows. `can_serve`: whether a daemon could serve in the run directory.
pub(super) fn rows(config: &Config, running: &Daemon, can_serve: &Result<()>) -> Vec<Finding> {
    let mut rows = vec![directory(config, can_serve)];
    rows.extend(locked(config, running));
    let bypassed = "ran without plugins, because the daemon was away";
    rows.extend(notes(config, BYPASSED_DIR, "bypassed", bypassed));
    let refused = "refused, because the daemon was away";
    rows.extend(notes(config, REFUSED_DIR, "refusals", refused));
    rows.extend(unadjusted(running));
    rows
}

fn directory(config: &Config, can_serve: &Result<()>) -> Finding {
    let dir = &config.run_dir;
    if let Err(error) = usable(config, can_serve) {
        let otherwise = format!("make {} usable, or set run_dir to another folder", dir.display());
        let hint = Some(error.next_step()).filter(|hint| !hint.is_empty()).unwrap_or(&otherwise);
        let lost =
            format!("meanwhile a command that bypasses the daemon is {}", noted_elsewhere(config));
        return finding("run directory", false, format!("{}; {lost}", error.why()), hint);
    }
    match short_of(dir) {
        None => finding("run directory", true, dir.display().to_string(), ""),
        Some(what) => {
            let detail = format!("{} has {what}", dir.display());
            warning("run directory", detail, &format!("free space in {}", dir.display()))
        }
    }
}

/// Says where a wrapper records a bypass if it cannot use the run directory.
fn noted_elsewhere(config: &Config) -> &'static str {
    let host = config.host();
    match (host.path(journal::SOCKET).exists(), host.path("/dev/log").exists()) {
        (true, _) => "recorded only in the journal",
        (false, true) => "recorded only in syslog",
        (false, false) => "recorded nowhere",
    }
}

/// Checks that the wrapper and the daemon can use the run directory.
fn usable(config: &Config, can_serve: &Result<()>) -> Result<()> {
    UnixAddr::new(&config.daemon_socket()).map_err(|_long| {
        Error::new(format!("{} is too long for a socket", config.daemon_socket().display()))
            .hint("set a shorter run_dir")
    })?;
    can_serve.clone()?;
    parts_are_usable(config)
}

fn parts_are_usable(config: &Config) -> Result<()> {
    let dir = &config.run_dir;
    let state = dir.join("state");
    for folder in [dir.join(BYPASSED_DIR), dir.join(REFUSED_DIR), state.clone()] {
        let Ok(there) = folder.symlink_metadata() else { continue };
        files::refuse_shared_dir(&folder, &there)?;
        files::try_write(&folder)?;
    }
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(there) = path.symlink_metadata() else { continue };
        if there.is_dir() {
            files::refuse_shared_dir(&path, &there)?;
            access(&path, AccessFlags::W_OK).doing(|| format!("writing to {}", path.display()))?;
        }
    }
    let socket = config.daemon_socket();
    if socket.symlink_metadata().is_ok_and(|there| there.is_dir()) {
        let why = format!("{} is a folder, not a socket", socket.display());
        return Err(Error::new(why).hint(format!("rm -r {}", socket.display())));
    }
    [dir.join("start.lock"), config.daemon_lock()].iter().try_for_each(|lock| opens(lock))
}

/// Checks that a lock file, if it exists, can be opened for writing.
fn opens(lock: &Path) -> Result<()> {
    let Ok(there) = lock.symlink_metadata() else { return Ok(()) };
    let shown = lock.display();
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let opened = OpenOptions::new().write(true).custom_flags(flags).open(lock);
    let opened = opened.map_err(Error::from).and_then(|_file| match there.file_type() {
        kind if kind.is_fifo() || kind.is_socket() => Err(Error::new("it is not a plain file")),
        _ => Ok(()),
    });
    opened.map_err(|error| error.doing(format!("opening {shown}")).hint(format!("rm -r {shown}")))
}

/// Says how much space, or how many inodes, are left, if that is less than the minimum.
fn short_of(dir: &Path) -> Option<String> {
    let there = rustix::fs::statvfs(dir).ok()?;
    let room = there.f_bavail.saturating_mul(there.f_frsize);
    if room < ROOM {
        return Some(format!("{} KiB left", room >> 10));
    }
    // Some file systems have no inode limit.
    let is_counted = there.f_files > 0 && there.f_favail < ROOM_FILES;
    is_counted.then(|| format!("room for {} files left", there.f_favail))
}

/// Reports a process that keeps a daemon from starting.
fn locked(config: &Config, running: &Daemon) -> Option<Finding> {
    if running.is_listening {
        return None;
    }
    let (start, daemon) = (config.run_dir.join("start.lock"), config.daemon_lock());
    let begun = SystemTime::now();
    let held = || {
        let held = |lock: &Path| holder(lock).map(|pid| (lock.to_owned(), pid));
        held(&start).or_else(|| held(&daemon))
    };
    let (mut lock, mut pid) = held()?;
    while begun.elapsed().is_ok_and(|waited| waited < LOCK_WAIT) {
        std::thread::sleep(LOCK_PAUSE);
        (lock, pid) = held()?;
    }
    let words = procfs::command_line(&Host::default(), pid).or_absent().unwrap_or_default();
    let words: Vec<String> =
        words.iter().map(|word| quoted(&String::from_utf8_lossy(word))).collect();
    let detail = format!(
        "process {pid} ({}) holds the lock {} but does not accept connections: no daemon can start",
        words.join(" "),
        lock.display()
    );
    let is_daemon = lock == daemon && words.iter().any(|word| word == "daemon");
    let hint = if is_daemon { "nri-runc nri restart".to_owned() } else { format!("kill {pid}") };
    Some(finding("daemon", false, detail, &hint))
}

/// Reports the notes that wrappers left in this subdirectory of the run directory.
fn notes(config: &Config, folder: &str, check: &str, what: &str) -> Option<Finding> {
    let entries = std::fs::read_dir(config.run_dir.join(folder)).into_iter().flatten().flatten();
    let notes = entries.map(|entry| entry.path());
    let mut notes: Vec<PathBuf> = notes
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    notes.sort_unstable();
    let last = files::read_own(notes.last()?, limits::OWN_FILE).unwrap_or_default();
    let last: WrapperNote<IgnoredAny> = serde_json::from_slice(&last).unwrap_or_default();
    let ago = age(last.at, SystemTime::now());
    let dropped = files::read_count(&config.run_dir.join(folder).join(DROPPED_NOTES));
    let detail = format!(
        "{} {what}; the last, {ago} ago: {} {}: {}",
        counted(notes.len() + dropped.unwrap_or(0), "command"),
        quoted(&last.verb),
        short_id(&quoted(last.id.as_deref().unwrap_or_default())),
        quoted(&last.why)
    );
    let lost = dropped.map(|count| {
        format!("; {count} of them left no note: their updates of resources stay unknown")
    });
    // The next daemon reads the notes and recovers the containers.
    Some(finding(check, false, detail + &lost.unwrap_or_default(), "nri-runc nri restart"))
}

/// Reports containers that were created without plugins and have not stopped.
fn unadjusted(running: &Daemon) -> Option<Finding> {
    let ids = running.status.as_ref()?.unadjusted.iter();
    let ids: Vec<&str> = ids.map(|id| short_id(id)).collect();
    if ids.is_empty() {
        return None;
    }
    // The daemon names at most [`limits::UNADJUSTED`].
    let at_least = if ids.len() < limits::UNADJUSTED { "" } else { "at least " };
    let detail = format!(
        "{at_least}{} created without plugins, because the daemon was away: {}",
        counted(ids.len(), "container"),
        crate::text::first_of(&ids)
    );
    Some(warning("bypassed", detail, "recreate them if plugins have to adjust them"))
}
