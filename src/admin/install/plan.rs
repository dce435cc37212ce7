// SPDX-License-Identifier: Apache-2.0
//! What all engines have in common: the files to read, the registration that the operator asks for, and
//! the texts that would be written. Pure.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::nri_decision::NriDecision;
use crate::error::{Error, Result};

/// The files that are there, by path.
pub(super) type Texts = BTreeMap<String, String>;

/// Files of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineFile {
    /// One file.
    File(String),
    /// The files of a directory with this suffix, in name order.
    Folder(String, String),
}

/// The registration that the operator asks for.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    /// The handler's name.
    pub(super) name: String,
    /// Our program, as the engine is to call it.
    pub(super) binary: String,
    /// Make nri-runc the default runtime.
    pub(super) default: bool,
    /// The engine's main file, where it is not the usual one.
    pub(super) main: Option<String>,
    /// Where our plugins connect.
    pub(super) socket: String,
    /// What becomes of the engine's own NRI.
    pub(super) nri: NriDecision,
}

/// What would be written, with notes for the operator.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The complete new texts by path; all other files stay.
    pub(super) files: Texts,
    /// Notes for the operator.
    pub(super) notes: Vec<String>,
    /// Other engines whose files are changed too.
    pub(super) restarts: Vec<Engine>,
    /// The default runtime so far, as the engine's files give it: a path or a name.
    pub(super) runtime: Option<String>,
}

impl Plan {
    /// Puts the text of one of our own files in: one that already exists with different content was
    /// written by somebody else.
    pub(super) fn own_file(&mut self, texts: &Texts, path: &str, text: String) -> Result<()> {
        if texts.get(path).is_some_and(|there| *there != text) {
            return Err(Error::new(format!("{path} already exists with different content"))
                .hint("`install` does not overwrite it: edit it, or move it away"));
        }
        self.files.insert(path.to_owned(), text);
        Ok(())
    }

    /// The text of a file as far as it is planned.
    pub(super) fn text(&self, texts: &Texts, path: &str) -> String {
        self.files.get(path).or_else(|| texts.get(path)).cloned().unwrap_or_default()
    }
}

/// An entry of that name exists already with different content.
pub(super) fn taken(path: &str, entry: &str, what: &str) -> Error {
    Error::new(format!("{path} already has {entry} with a different {what}"))
        .hint("change that entry, or register under another name with --name")
}

/// A later file of the engine overrides the default runtime.
pub(super) fn overruled(later: &str, key: &str) -> Error {
    Error::new(format!("{later} is read after the file that `install` writes, and sets {key}"))
        .hint("change it there, or install without --default")
}
