// SPDX-License-Identifier: Apache-2.0
//! The undo record of a registration: each file's text before and after, and the directories that were
//! created. One JSON file per engine, readable by root only, because an engine's configuration may
//! contain secrets. It is written before the engine's files, so that an interrupted install can be
//! undone too.

use serde::{Deserialize, Serialize};

use super::edit;
use super::engine::Engine;
use super::engine_files;
use super::nri_decision::NriDecision;
use super::plan::Texts;
use super::rendered;
use super::root::Root;
use crate::error::{Error, Result};

/// Below the folder that also has the record of install.sh.
pub(super) use crate::sources::registered::FOLDER;
const SCHEMA: u32 = 1;

/// One file that was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LedgerFile {
    pub(super) path: String,
    /// `None`: it was not there.
    pub(super) before: Option<String>,
    /// `None`: it went again.
    pub(super) after: Option<String>,
}

impl LedgerFile {
    /// The file's text without our changes, given its current text `now`. The inner `None` is a file
    /// that would not exist; the outer one means that the changes cannot be separated.
    #[expect(clippy::option_option, reason = "a file that would not be there is an answer too")]
    pub(super) fn undone(&self, now: Option<&str>) -> Option<Option<String>> {
        if now == self.after.as_deref() || now == self.before.as_deref() {
            return Some(self.before.clone());
        }
        // It was removed since.
        let Some(now) = now else { return Some(None) };
        let after = self.after.as_deref()?;
        // A template that its owner has extended since stays without our addition.
        let before = self.before.clone().or_else(|| rendered::template_alone(after))?;
        edit::reverse(&before, after, now).map(Some)
    }
}

/// What was done for one engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ledger {
    pub(super) schema: u32,
    pub(super) name: String,
    pub(super) binary: String,
    pub(super) default: bool,
    /// The engine's main file, where it is not the usual one.
    pub(super) main: Option<String>,
    pub(super) files: Vec<LedgerFile>,
    pub(super) folders: Vec<String>,
    /// What was decided about the engine's own NRI.
    #[serde(default)]
    pub(super) nri: NriDecision,
    /// Other engines whose NRI was switched off, by name.
    #[serde(default)]
    pub(super) restarts: Vec<String>,
}

/// Where the record of an engine is.
pub(super) fn path(engine: Engine) -> String {
    format!("{FOLDER}/{}.json", engine.name())
}

impl Ledger {
    /// An empty record.
    pub(super) fn new(name: &str, binary: &str, default: bool, main: Option<String>) -> Self {
        Self {
            schema: SCHEMA,
            name: name.to_owned(),
            binary: binary.to_owned(),
            default,
            main,
            files: Vec::new(),
            folders: Vec::new(),
            nri: NriDecision::default(),
            restarts: Vec::new(),
        }
    }

    /// The other engines whose NRI was switched off.
    pub(super) fn others(&self) -> Vec<Engine> {
        self.restarts.iter().filter_map(|name| Engine::named(name)).collect()
    }

    /// Reads an engine's record.
    pub(super) fn load(root: &Root, engine: Engine) -> Result<Option<Self>> {
        let path = path(engine);
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

    /// Writes it down.
    pub(super) fn save(&self, root: &Root, engine: Engine) -> Result<()> {
        let path = path(engine);
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|error| Error::new(error.to_string()))?;
        engine_files::write(root, &path, &text, engine_files::PRIVATE)
    }

    /// The engine's texts without our changes; the list names files where they cannot be separated.
    pub(super) fn undone(&self, root: &Root, now: &Texts) -> Result<(Texts, Vec<String>)> {
        let (mut texts, mut unclear) = (now.clone(), Vec::new());
        for file in &self.files {
            let there = match now.get(&file.path) {
                Some(text) => Some(text.clone()),
                None => engine_files::read(root, &file.path)?,
            };
            match file.undone(there.as_deref()) {
                Some(Some(text)) => {
                    texts.insert(file.path.clone(), text);
                }
                Some(None) => {
                    texts.remove(&file.path);
                }
                None => unclear.push(file.path.clone()),
            }
        }
        Ok((texts, unclear))
    }
}
