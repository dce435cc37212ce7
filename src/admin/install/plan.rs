// SPDX-License-Identifier: Apache-2.0
//! The types that all engines share: the files to read, the requested registration, and the texts
//! to write. This module does no I/O.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::nri_decision::NriDecision;
use crate::error::{Error, Result};

/// The existing files, by path.
pub(super) type Texts = BTreeMap<String, String>;

/// Files of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineFile {
    /// One file.
    File(String),
    /// The files of a directory with this suffix, in name order.
    Folder(String, String),
}

/// The registration that the operator requests.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    /// The handler's name.
    pub(super) name: String,
    /// The path by which the engine calls nri-runc.
    pub(super) binary: String,
    /// Whether nri-runc becomes the default runtime.
    pub(super) default: bool,
    /// The engine's main file; `None` for the usual one, unless the command line names that.
    pub(super) main: Option<String>,
    /// The plugin socket of nri-runc.
    pub(super) socket: String,
    /// The decision about the engine's own NRI.
    pub(super) nri: NriDecision,
    /// Whether plugins receive the containers of the whole node, unless the operator has set that.
    pub(super) shows_node: bool,
}

/// The changes to make, with notes for the operator.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The complete new texts by path; all other files stay.
    pub(super) files: Texts,
    pub(super) notes: Vec<String>,
    /// Other engines whose NRI is switched off.
    pub(super) restarts: Vec<Engine>,
    /// Whether the engine prefers crun if its files name no runtime.
    pub(super) may_prefer_crun: bool,
    /// The current default runtime, as the engine's files name it: a path or a name.
    pub(super) runtime: Option<String>,
}

impl Plan {
    /// Adds one of nri-runc's files. Refuses if the file already exists with other content, because
    /// another program or person wrote it.
    pub(super) fn own_file(&mut self, texts: &Texts, path: &str, text: String) -> Result<()> {
        if texts.get(path).is_some_and(|there| *there != text) {
            return Err(Error::new(format!("{path} already exists with different content"))
                .hint("`install` does not overwrite it: edit it, or move it away"));
        }
        self.files.insert(path.to_owned(), text);
        Ok(())
    }

    /// Returns the planned text of a file, else its current one.
    pub(super) fn text(&self, texts: &Texts, path: &str) -> String {
        self.files.get(path).or_else(|| texts.get(path)).cloned().unwrap_or_default()
    }
}

/// Returns the error for an existing `entry` that differs in `what`.
pub(super) fn taken(path: &str, entry: &str, what: &str) -> Error {
    Error::new(format!("{path} already has {entry} with a different {what}"))
        .hint("change that entry, or register under another name with --name")
}

/// Returns the error for a file that is read later and sets the default runtime.
pub(super) fn overruled(later: &str, key: &str) -> Error {
    Error::new(format!(
        "{later} is read after the file that `install` writes and overrides its {key}"
    ))
    .hint("change it there, or install without --default")
}
