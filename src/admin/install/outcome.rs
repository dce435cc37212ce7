// SPDX-License-Identifier: Apache-2.0
//! The output of `install` and `uninstall`: one document, or lines for people.

use serde_json::{Value, json};

use super::FileChange;
use super::edit;
use super::engine::Engine;
use crate::text::printable;

/// The parts of the result other than files and notes.
#[derive(Debug, Clone, Default)]
pub(super) struct ResultDetails {
    /// Nothing was changed.
    pub(super) dry: bool,
    /// An entry was removed from the engine's configuration.
    pub(super) removes_entry: bool,
    /// The commands by which engines reload their files: first those whose NRI is switched off or
    /// on again, then the engine itself.
    pub(super) next: Vec<String>,
    /// How containers use the handler from now on.
    pub(super) usage: Vec<String>,
}

/// The document that `--json` prints.
pub(super) fn result_document(
    engine: Engine,
    verb: &str,
    changes: &[FileChange],
    mut notes: Vec<String>,
    ResultDetails { dry, removes_entry, mut next, usage }: ResultDetails,
) -> Value {
    let files = changes.iter().map(|change| {
        let diff = edit::diff(&change.path, change.now.as_deref(), change.new.as_deref());
        json!({"path": change.path, "diff": diff, "removed": change.new.is_none()})
    });
    let files: Vec<Value> = files.collect();
    next.retain(|command| !command.is_empty() && !files.is_empty());
    next.dedup();
    if engine == Engine::Docker && removes_entry && !files.is_empty() {
        notes.push(
            "a reload keeps the runtime; dockerd exits if it was the default; a restart stops \
             containers unless live-restore is set"
                .to_owned(),
        );
    }
    json!({
        "engine": engine.name(), "verb": verb, "changed": !files.is_empty() && !dry,
        "dry_run": dry, "files": files, "notes": notes, "next": next.join(" && "), "use": usage,
    })
}

/// Renders the document for people: the diff of a dry run, else one line per file.
pub(in crate::admin) fn show(document: &Value) -> String {
    let mut text = String::new();
    let is_dry = document["dry_run"] == true;
    for file in document["files"].as_array().into_iter().flatten() {
        let path = printable(file["path"].as_str().unwrap_or_default());
        if is_dry {
            text.push_str(file["diff"].as_str().unwrap_or_default());
        } else {
            let done = if file["removed"] == true { "removed" } else { "wrote" };
            text.push_str(&format!("{done} {path}\n"));
        }
    }
    if text.is_empty() {
        text.push_str("nothing to change\n");
    }
    for note in document["notes"].as_array().into_iter().flatten() {
        text.push_str(&format!("note: {}\n", printable(note.as_str().unwrap_or_default())));
    }
    match document["next"].as_str() {
        Some(next) if !next.is_empty() && !is_dry => text.push_str(&format!("next: {next}\n")),
        Some(_) | None => {}
    }
    for how in document["use"].as_array().into_iter().flatten().filter(|_| !is_dry) {
        text.push_str(&format!("use:  {}\n", how.as_str().unwrap_or_default()));
    }
    text
}
