// SPDX-License-Identifier: Apache-2.0
//! The output of `install` and `uninstall`: one document, or lines for people.

use serde::Serialize;

use super::FileChange;
use super::edit;
use super::engine::Engine;
use crate::admin::output::{Answer, Format};
use crate::admin::paint;
use crate::text::printable;

/// The parts of the result besides files and notes.
#[derive(Debug, Clone, Default)]
pub(super) struct ResultDetails {
    /// Whether this was a dry run, which changed nothing.
    pub(super) dry: bool,
    /// Whether the handler's entry, or its use as the default runtime, was removed.
    pub(super) removes_entry: bool,
    /// The commands by which engines reload their files: first those of engines whose NRI is
    /// switched off or on again, then the engine's own.
    pub(super) next: Vec<String>,
    /// How containers use the handler from now on.
    pub(super) usage: Vec<String>,
}

/// The result of `install` or `uninstall`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::admin) struct Outcome {
    engine: &'static str,
    verb: &'static str,
    pub(in crate::admin) changed: bool,
    dry_run: bool,
    pub(in crate::admin) files: Vec<ChangedFile>,
    pub(in crate::admin) notes: Vec<String>,
    /// The commands that make engines reload their files; empty if no file changes.
    pub(in crate::admin) next: String,
    #[serde(rename = "use")]
    usage: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::admin) struct ChangedFile {
    path: String,
    diff: String,
    removed: bool,
}

impl ChangedFile {
    /// Formats the line about a changed file.
    pub(in crate::admin) fn line(&self) -> String {
        let done = if self.removed { "removed" } else { "wrote" };
        format!("{done} {}", printable(&self.path))
    }
}

pub(super) fn outcome(
    engine: Engine,
    verb: &'static str,
    changes: &[FileChange],
    mut notes: Vec<String>,
    ResultDetails { dry, removes_entry, mut next, usage }: ResultDetails,
) -> Outcome {
    let files = changes.iter().map(|change| ChangedFile {
        path: change.path.clone(),
        diff: edit::diff(&change.path, change.now.as_deref(), change.new.as_deref()),
        removed: change.new.is_none(),
    });
    let files: Vec<ChangedFile> = files.collect();
    next.retain(|command| !command.is_empty() && !files.is_empty());
    next.dedup();
    let reloads = engine.row().daemon.as_ref().is_some_and(|daemon| daemon.reloads);
    if reloads && removes_entry && !files.is_empty() {
        notes.push(
            "a reload keeps the runtime; dockerd exits if it was the default; a restart stops \
             containers unless live-restore is set"
                .to_owned(),
        );
    }
    let (engine, changed) = (engine.name(), !files.is_empty() && !dry);
    Outcome { engine, verb, changed, dry_run: dry, files, notes, next: next.join(" && "), usage }
}

impl Answer for Outcome {
    const PAINTER: fn(&str) -> String = paint::diff;

    /// Renders the diff of a dry run and the notes; else a line per file, the notes and next steps.
    fn page(&self, _: Format) -> String {
        let Self { dry_run, files, notes, next, usage, .. } = self;
        let files = files.iter();
        let lines = files.map(|file| if *dry_run { file.diff.clone() } else { file.line() + "\n" });
        let mut text: String = lines.collect();
        if text.is_empty() {
            text.push_str("nothing to change\n");
        }
        text.extend(notes.iter().map(|note| format!("note: {}\n", printable(note))));
        if !dry_run {
            text.extend(
                Some(next).filter(|next| !next.is_empty()).map(|next| format!("next: {next}\n")),
            );
            text.extend(usage.iter().map(|how| format!("use:  {how}\n")));
        }
        text
    }
}
