// SPDX-License-Identifier: Apache-2.0
//! The record of a command that the wrapper refused because the daemon was unavailable, in
//! `RUN_DIR/refused/`. The next daemon logs it, counts it in `status` and shows it in `explain`. It
//! is written after the decision, and nothing depends on it.

use std::path::Path;

use crate::argv::CommandLine;
use crate::clock;
use crate::config::Config;
use crate::error::Error;
use crate::files;
use crate::limits;
use crate::link::{REFUSED_DIR, WrapperRequest};
use crate::presence::{self, IfThere};

/// The container's names, as far as the wrapper determined them.
#[derive(Debug, Default)]
pub(super) struct ContainerNames {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

/// Writes the record. The newest [`limits::REFUSAL_NOTES`] are kept, because kubelet retries indefinitely.
pub(super) fn write_record(
    config: &Config,
    call: &CommandLine,
    question: &WrapperRequest,
    names: Option<&ContainerNames>,
    error: &Error,
) {
    let dir = config.run_dir.join(REFUSED_DIR);
    if files::make_private_dir(&dir).is_err() {
        return; // The engine receives the error; the record cannot be written.
    }
    make_room(&dir, limits::REFUSAL_NOTES);
    let at = clock::now();
    let record = serde_json::json!({
        "at": at,
        "verb": call.verb.name(),
        "id": call.id.as_deref().unwrap_or_default().to_string_lossy(),
        "why": error.why(),
        "namespace": names.map(|names| &names.namespace),
        "pod": names.map(|names| &names.pod),
        "name": names.map(|names| &names.container),
        "question": question.encode(),
    });
    // The name begins with the time, so the oldest record is the first by name.
    let name = format!("{:020}-{}.json", at, std::process::id());
    let _best_effort = files::replace(&dir.join(name), record.to_string().as_bytes());
}

/// Removes the oldest notes of this directory, so that there are at most `most` with the next one;
/// returns how many it removed.
pub(super) fn make_room(dir: &Path, most: usize) -> usize {
    let entries = presence::entries(dir).or_absent().unwrap_or_default();
    let mut notes: Vec<_> = entries.iter().map(|entry| entry.path()).collect();
    notes.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    notes.sort_unstable();
    let too_many = (notes.len() + 1).saturating_sub(most);
    let oldest = notes.iter().take(too_many);
    // Another wrapper may have been faster.
    oldest.filter(|oldest| std::fs::remove_file(oldest).is_ok()).count()
}
