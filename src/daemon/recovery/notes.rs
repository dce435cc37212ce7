// SPDX-License-Identifier: Apache-2.0
//! The notes that wrappers write to a folder of the run directory.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use tracing::warn;

use crate::error::{Context, Result};
use crate::files;
use crate::limits;
use crate::presence::{self, IfThere, MayPass};

/// The notes in this folder, oldest first. Partial files of killed wrappers are removed.
///
/// # Errors
/// Fails when they cannot all be known.
pub(crate) fn notes_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = presence::entries(folder).doing(|| format!("reading {}", folder.display()))?;
    // Their names begin with the time.
    let mut paths: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    paths.retain(|path| {
        let is_note = path.extension().is_some_and(|extension| extension == "json");
        if !is_note {
            files::remove_leftover(path);
        }
        is_note
    });
    paths.sort();
    Ok(paths)
}

/// Reads a note; `None` if it is unusable (set aside with a warning) or another task took it.
///
/// # Errors
/// Fails when it cannot be read now: it stays.
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
