// SPDX-License-Identifier: Apache-2.0
//! What all engines have in common: which files they read, what is wished, and what would be
//! written. Pure: a plan is made from texts, and nobody has to follow it.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// The files that are there, by path.
pub(super) type Texts = BTreeMap<String, String>;

/// Files of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// One file.
    File(String),
    /// The files of a folder whose names end so, in the order of their names.
    Folder(String, String),
}

/// What the operator wants.
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
}

/// What would be written, and what to know about it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Whole new texts by path; what is not named stays.
    pub(super) files: Texts,
    /// Things to know.
    pub(super) notes: Vec<String>,
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

    /// Says that the engine keeps its own NRI on the socket that ours wants.
    pub(super) fn clash(&mut self, who: &str, registration: &Registration, set: &str) {
        self.notes.push(format!(
            "{who} serves NRI itself on {}: plugins would connect to it, or run twice; set {set}, or set \
             nri.socket_path and nri.plugin_path in /etc/nri-runc/config.toml",
            registration.socket
        ));
    }

    /// Says that the engine's containers had another runtime behind them.
    pub(super) fn other_runtime(&mut self, runtime: &str) {
        self.notes.push(format!(
            "containers used {runtime} so far: to keep using it, set runtime = \"{runtime}\" in \
             /etc/nri-runc/config.toml"
        ));
    }
}

/// An entry of our name that is there already, and is not what we would write.
pub(super) fn taken(path: &str, entry: &str, what: &str) -> Error {
    Error::new(format!("{path} already has {entry} with a different {what}"))
        .hint("change that entry, or register under another name with --name")
}

/// A later file of the engine has the last word about its default.
pub(super) fn overruled(later: &str, key: &str) -> Error {
    Error::new(format!("{later} is read after the file that `install` writes, and sets {key}"))
        .hint("change it there, or install without --default")
}
