// SPDX-License-Identifier: Apache-2.0
//! The notes that wrappers write to a folder of the run directory.

use std::path::{Path, PathBuf};

use crate::files;

/// The notes in this folder, oldest first. Partial files of killed wrappers are removed.
pub(crate) fn notes_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Their names begin with the time.
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let is_note = path.extension().is_some_and(|extension| extension == "json");
        if !is_note {
            files::remove_leftover(path);
        }
        is_note
    });
    paths.sort();
    paths
}
