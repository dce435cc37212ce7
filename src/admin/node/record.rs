// SPDX-License-Identifier: Apache-2.0
//! The record of the files that `node` put on a node, so that exactly those are removed, and of whether
//! the engine must still reload its files. The record is written before the files that it names.

use serde::{Deserialize, Serialize};

use crate::admin::install::NodeEngine;
use crate::error::{Error, Result};
use crate::files;

/// Path of the record, beside the records of `install`.
const PATH: &str = "/var/lib/nri-runc/node.json";
const SCHEMA: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PutFile {
    path: String,
    /// Fingerprints of the file's last content and, while it is being replaced, of its previous
    /// content.
    fingerprints: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    schema: u32,
    /// Whether the engine's files may have been changed without the engine having reloaded them.
    pub(super) is_restart_pending: bool,
    files: Vec<PutFile>,
    folders: Vec<String>,
}

impl NodeRecord {
    /// Reads the record; an empty one if it is missing.
    ///
    /// # Errors
    /// Fails when it exists and cannot be read, is invalid, or has another schema.
    pub(super) fn load(on: &NodeEngine) -> Result<Self> {
        let Some(bytes) = on.read(PATH)? else {
            return Ok(Self { schema: SCHEMA, ..Self::default() });
        };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| {
            Error::new(format!("{PATH} is not a valid record: {error}"))
                .hint("remove that file, then the program and the configuration of nri-runc from the node")
        })?;
        if record.schema != SCHEMA {
            return Err(Error::new(format!("{PATH} has schema {}, not {SCHEMA}", record.schema))
                .hint("use the nri-runc version that wrote it"));
        }
        Ok(record)
    }

    /// Writes the record.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub(super) fn save(&mut self, on: &NodeEngine) -> Result<()> {
        self.note_folders(on, PATH);
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|error| Error::new(error.to_string()))?;
        on.put_text(PATH, Some(&text), true)
    }

    fn note_folders(&mut self, on: &NodeEngine, path: &str) {
        let mut missing = on.missing_folders(path);
        missing.retain(|folder| !self.folders.contains(folder));
        self.folders.extend(missing);
    }

    /// Whether `node` put this file there with these bytes.
    pub(super) fn knows(&self, path: &str, bytes: &[u8]) -> bool {
        let fingerprint = files::fingerprint(bytes);
        let mut known = self.files.iter().filter(|file| file.path == path);
        known.any(|file| file.fingerprints.contains(&fingerprint))
    }

    /// Records a file that is about to be written: from now on, [`Self::knows`] accepts both its
    /// old and its new bytes.
    ///
    /// # Errors
    /// Fails as [`NodeRecord::save`] does.
    pub(super) fn begin(&mut self, on: &NodeEngine, path: &str, bytes: &[u8]) -> Result<()> {
        self.note_folders(on, path);
        let new = files::fingerprint(bytes);
        match self.files.iter_mut().find(|file| file.path == path) {
            Some(file) => {
                file.fingerprints.retain(|known| *known != new);
                file.fingerprints.push(new);
                let older = file.fingerprints.len().saturating_sub(2);
                file.fingerprints.drain(..older);
            }
            None => {
                self.files.push(PutFile { path: path.to_owned(), fingerprints: vec![new] });
            }
        }
        self.save(on)
    }

    /// Removes a file of `node` unless it was edited after `node` wrote it; returns whether it is gone.
    ///
    /// # Errors
    /// Fails when the file cannot be read or removed.
    pub(super) fn remove(&mut self, on: &NodeEngine, path: &str) -> Result<bool> {
        let Some(bytes) = on.read(path)? else {
            self.files.retain(|file| file.path != path);
            return Ok(true);
        };
        if !self.knows(path, &bytes) {
            return Ok(false);
        }
        on.put_text(path, None, false)?;
        self.files.retain(|file| file.path != path);
        Ok(true)
    }

    /// Returns the paths of the files that `node` put there.
    pub(super) fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// Removes the record itself, and those directories that `node` created that are empty.
    ///
    /// # Errors
    /// Fails when the record cannot be removed.
    pub(super) fn end(self, on: &NodeEngine) -> Result<()> {
        on.put_text(PATH, None, false)?;
        on.remove_folders(&self.folders);
        Ok(())
    }
}
