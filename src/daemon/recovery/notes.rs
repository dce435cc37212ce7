// SPDX-License-Identifier: Apache-2.0
//! Reads the notes that wrappers write to folders of the run directory.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use tracing::warn;

use crate::daemon::shared::{Daemon, log_failure};
use crate::error::{Context, Result};
use crate::files;
use crate::limits;
use crate::link::{BYPASSED_DIR, DROPPED_NOTES};
use crate::presence::{self, IfThere, MayPass};

/// Returns the notes in this folder, oldest first. Partial files of killed wrappers are removed.
///
/// # Errors
/// Fails when the list may be incomplete.
pub(crate) fn notes_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = presence::entries(folder).doing(|| format!("reading {}", folder.display()))?;
    // The names begin with the time of the note.
    let mut paths: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    paths.retain(|path| {
        let is_note = path.extension().is_some_and(|extension| extension == "json");
        if !is_note {
            remove_leftover(path);
        }
        is_note
    });
    paths.sort();
    Ok(paths)
}

/// Removes the file if it is a temporary one of [`files::replace`] whose process is gone.
fn remove_leftover(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = name.strip_prefix('.').and_then(|name| name.rsplit_once('.'));
    let Some(pid) = pid.and_then(|(_, pid)| pid.parse::<i32>().ok()) else { return };
    let process = nix::unistd::Pid::from_raw(pid);
    let is_ours = pid == nix::unistd::getpid().as_raw();
    if !is_ours && nix::sys::signal::kill(process, None) == Err(nix::errno::Errno::ESRCH) {
        let _gone = std::fs::remove_file(path);
    }
}

/// Reads a note. Returns `None` if it is unusable (then it is renamed or removed, with a warning), or
/// another task took it.
///
/// # Errors
/// Fails when the note cannot be read now; it stays.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match files::read_own(path, limits::OWN_FILE).if_there() {
        Err(error) if !error.may_pass() => {
            warn!("{} cannot be read and is dropped", path.display());
            let _set_aside = std::fs::rename(path, path.with_extension("unusable"));
            return Ok(None);
        }
        bytes => bytes.doing(|| format!("reading {}", path.display()))?,
    };
    let Some(bytes) = bytes else { return Ok(None) };
    let note = serde_json::from_slice(&bytes);
    if note.is_err() {
        warn!("{} cannot be read and is dropped", path.display());
        let _gone = std::fs::remove_file(path);
    }
    Ok(note.ok())
}

/// The reason that `explain` shows for a container that was found without a note.
const NO_NOTE: &str =
    "the daemon was away, and its note was not kept, as notes have a limit of number and bytes";

/// Reports missing notes, and requests a search for their containers (`enabled.rs`); returns whether any are
/// missing. Wrappers count the notes that they remove or do not write because the number and size of notes are
/// limited. The search finds the containers that the runtimes' state shows, but no updates of resources.
pub(crate) fn report_dropped(daemon: &Daemon) -> bool {
    let file = daemon.config().run_dir.join(BYPASSED_DIR).join(DROPPED_NOTES);
    let Some(count) = files::read_count(&file) else { return false };
    let line = format!(
        "{count} commands ran without plugins and left no note, as notes have a limit of number and bytes: existing containers are recorded, and updates of resources among these commands stay unknown"
    );
    daemon.report.note_failure(&line, "");
    daemon.report.count_bypassed(u64::try_from(count).unwrap_or(u64::MAX));
    // The request to search is written first, so that a daemon that ends now does not lose it.
    let due = files::replace(&daemon.config().was_disabled_file(), NO_NOTE.as_bytes());
    log_failure("noting that containers are to be searched for", due);
    let _counted = std::fs::remove_file(file);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_half_written_files_of_dead_processes_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dead = i32::MAX;
        let living = std::process::id();
        for name in [format!(".a.{dead}"), format!(".a.{living}"), "a".into(), ".a.b".into()] {
            files::replace(&temp.path().join(&name), b"").unwrap();
            remove_leftover(&temp.path().join(&name));
            assert_eq!(temp.path().join(&name).exists(), !name.ends_with(&dead.to_string()));
        }
    }
}
