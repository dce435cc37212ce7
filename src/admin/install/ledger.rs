// SPDX-License-Identifier: Apache-2.0
//! The undo record of a registration: each file's text before and after, and the directories that
//! were created. One JSON file per engine, in `/var/lib/nri-runc/engines` or the user's
//! configuration folder, readable by its owner only, because an engine's configuration may contain
//! secrets. The record is written before the engine's files, so that an interrupted install can be
//! undone too. An unchanged file is restored whole, an edited one by `revert.rs`.

use serde::{Deserialize, Serialize};

use super::containerd;
use super::engine::Engine;
use super::engine_files;
use super::nri_decision::NriDecision;
use super::plan::Texts;
use super::revert::{EditedValue, Reverted, Written};
use super::root::Root;
use crate::error::{Error, Result};
use crate::named::Named;

pub(super) const SCHEMA: u32 = 1;

/// One file that was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LedgerFile {
    pub(super) path: String,
    /// The text before; `None` if the file did not exist.
    pub(super) before: Option<String>,
    /// The text after; `None` if the file was removed.
    pub(super) after: Option<String>,
}

impl LedgerFile {
    /// Returns the file's text without nri-runc's values, given its current text `now`.
    ///
    /// # Errors
    /// Fails as [`Written::revert`] does.
    fn revert(&self, ledger: &Ledger, texts: &Texts, now: Option<&str>) -> Result<Reverted> {
        if now == self.after.as_deref() || now == self.before.as_deref() {
            return Ok(Reverted { text: self.before.clone(), ..Reverted::default() });
        }
        // The file is missing now, or `install` removed it.
        let (Some(now), Some(written)) = (now, self.written(ledger, texts)) else {
            return Ok(Reverted { text: now.map(str::to_owned), ..Reverted::default() });
        };
        written.revert(now)
    }

    /// Returns the change that `install` made to this file; `None` if `install` removed it.
    fn written<'w>(&'w self, ledger: &'w Ledger, texts: &'w Texts) -> Option<Written<'w>> {
        let copied = containerd::copied_from(ledger, &self.path).and_then(|path| texts.get(path));
        Some(Written {
            path: &self.path,
            before: self.before.as_deref().or(copied.map(String::as_str)),
            after: self.after.as_deref()?,
            name: &ledger.name,
            binary: &ledger.binary,
        })
    }
}

/// An engine's files without nri-runc's values.
#[derive(Debug, Default)]
pub(super) struct Undone {
    /// The texts by path; a file that would not exist is left out.
    pub(super) texts: Texts,
    /// Values of nri-runc that were edited since, each with its file.
    pub(super) edited: Vec<(String, EditedValue)>,
    /// Files that cannot be reverted: the error, and the values that `install` set there. `texts` has
    /// such a file's current text.
    pub(super) unclear: Vec<(Error, Vec<String>)>,
}

/// The record of one engine's registration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ledger {
    pub(super) schema: u32,
    pub(super) name: String,
    pub(super) binary: String,
    pub(super) default: bool,
    /// The engine's main file; `None` for the usual one, unless the command line named that.
    pub(super) main: Option<String>,
    pub(super) files: Vec<LedgerFile>,
    pub(super) folders: Vec<String>,
    /// The decision about the engine's NRI.
    #[serde(default)]
    pub(super) nri: NriDecision,
    /// Other engines whose NRI was switched off, by name.
    #[serde(default)]
    pub(super) restarts: Vec<String>,
}

/// Returns the path of an engine's record.
pub(super) fn path(root: &Root, engine: Engine) -> String {
    format!("{}/{}.json", root.records(), engine.name())
}

impl Ledger {
    /// Returns the other engines whose NRI was switched off.
    pub(super) fn others(&self) -> Vec<Engine> {
        self.restarts.iter().filter_map(|name| Engine::named(name)).collect()
    }

    pub(super) fn load(root: &Root, engine: Engine) -> Result<Option<Self>> {
        let path = path(root, engine);
        let Some(text) = engine_files::read(root, &path)? else { return Ok(None) };
        let ledger: Self = serde_json::from_str(&text).map_err(|error| {
            Error::new(format!("{path} is not a valid undo record: {error}"))
                .hint("undo the registration manually and remove this file")
        })?;
        if ledger.schema != SCHEMA {
            return Err(Error::new(format!("{path} has schema {}, not {SCHEMA}", ledger.schema))
                .hint("uninstall with the nri-runc version that wrote it"));
        }
        Ok(Some(ledger))
    }

    pub(super) fn save(&self, root: &Root, engine: Engine) -> Result<()> {
        let path = path(root, engine);
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|error| Error::new(error.to_string()))?;
        engine_files::write(root, &path, &text, engine_files::PRIVATE)
    }

    /// Returns the engine's texts without nri-runc's values.
    pub(super) fn undone(&self, root: &Root, now: &Texts) -> Result<Undone> {
        let mut undone = Undone { texts: now.clone(), ..Undone::default() };
        for file in &self.files {
            let there = match now.get(&file.path) {
                Some(text) => Some(text.clone()),
                None => engine_files::read(root, &file.path)?,
            };
            let reverted = match file.revert(self, now, there.as_deref()) {
                Ok(reverted) => reverted,
                Err(error) => {
                    let names = file.written(self, now).map(|written| written.names());
                    undone.unclear.push((error, names.unwrap_or_default()));
                    Reverted { text: there, ..Reverted::default() }
                }
            };
            match reverted.text {
                Some(text) => undone.texts.insert(file.path.clone(), text),
                None => undone.texts.remove(&file.path),
            };
            let edited = reverted.edited.into_iter().map(|value| (file.path.clone(), value));
            undone.edited.extend(edited);
        }
        Ok(undone)
    }
}

/// Returns the folders that registrations with other engines created.
pub(super) fn folders_of_others(root: &Root, engine: Engine) -> Vec<String> {
    let others = Engine::ALL.iter().filter(|other| **other != engine);
    let ledgers = others.filter_map(|other| Ledger::load(root, *other).ok().flatten());
    ledgers.flat_map(|ledger| ledger.folders).collect()
}
