// SPDX-License-Identifier: Apache-2.0
//! Records a command that the wrapper refused because the daemon was unavailable, in
//! `RUN_DIR/refused/`. The next daemon logs it, counts it in `status` and shows it in `explain`.
//! The record is written after the decision, and nothing depends on it.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::argv::CommandLine;
use crate::clock;
use crate::config::Config;
use crate::error::Error;
use crate::files;
use crate::limits;
use crate::link::{NoteBytes, REFUSED_DIR, Refused, WrapperNote, WrapperRequest};
use crate::presence::{self, IfThere};

/// The container's names, as far as the wrapper knows them.
#[derive(Debug, Default)]
pub(super) struct ContainerNames {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

/// Writes the record of a refusal. At most [`limits::REFUSAL_NOTES`] are kept, because kubelet retries indefinitely.
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
    let at = clock::now();
    let mut note = WrapperNote {
        at,
        verb: call.verb.name().to_owned(),
        id: Some(call.id.as_deref().unwrap_or_default().to_string_lossy().into_owned()),
        why: error.why(),
        question: NoteBytes(question.encode()),
        of_kind: Refused {
            namespace: names.map(|names| names.namespace.clone()),
            pod: names.map(|names| names.pod.clone()),
            name: names.map(|names| names.container.clone()),
        },
    };
    let mut text = json!(note).to_string();
    if text.len() > limits::NOTE {
        note.question = NoteBytes::default();
        text = json!(note).to_string();
    }
    make_room(&dir, limits::REFUSAL_NOTES, text.len());
    // The name begins with the time, so the oldest record is the first by name.
    let name = format!("{:020}-{}.json", at, std::process::id());
    let _best_effort = files::replace(&dir.join(name), text.as_bytes());
}

/// Removes the oldest notes of this directory, so that with one more of length `next` there are at
/// most `most`, with [`limits::NOTES`] bytes in all. Returns how many it removed.
pub(super) fn make_room(dir: &Path, most: usize, next: usize) -> usize {
    make_room_in(dir, most, limits::NOTES, next)
}

fn make_room_in(dir: &Path, most: usize, bytes: usize, next: usize) -> usize {
    let entries = presence::entries(dir).or_absent().unwrap_or_default();
    let mut notes: Vec<_> = entries.iter().map(|entry| entry.path()).collect();
    notes.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    notes.sort_unstable();
    // A note that another wrapper has just removed has no length.
    let length = |note: &PathBuf| note.metadata().map_or(0, |meta| meta.len());
    let lengths: Vec<u64> = notes.iter().map(length).collect();
    let mut room = u64::try_from(bytes.saturating_sub(next)).unwrap_or(u64::MAX);
    let fits = |length: &&u64| {
        let left = room.checked_sub(**length);
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = lengths.iter().rev().take(most.saturating_sub(1)).take_while(fits).count();
    let oldest = notes.iter().take(notes.len() - kept);
    // Another wrapper may have removed it first.
    oldest.filter(|oldest| std::fs::remove_file(oldest).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder of notes of these lengths, oldest first, and one file that is not a note.
    fn folder(lengths: &[usize]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (number, length) in lengths.iter().enumerate() {
            let path = folder.path().join(format!("{number:020}-7.json"));
            files::replace(&path, &vec![b'x'; *length]).unwrap();
        }
        files::replace(&folder.path().join("dropped"), b"1").unwrap();
        folder
    }

    #[test]
    fn the_oldest_notes_are_removed_for_a_new_one() {
        for (most, bytes, next, removed) in [
            (6, 100, 50, 0),
            (5, 100, 50, 1),
            (1, 100, 50, 5),
            (6, 100, 51, 1),
            (6, 100, 61, 2),
            (6, 100, 100, 5),
            (6, 100, 101, 5),
        ] {
            let notes = folder(&[10; 5]);
            assert_eq!(make_room_in(notes.path(), most, bytes, next), removed, "{most} {next}");
            assert_eq!(presence::entries(notes.path()).unwrap().len(), 6 - removed);
            assert_eq!(notes.path().join("00000000000000000000-7.json").exists(), removed == 0);
        }
        let notes = folder(&[10, 70, 10]);
        assert_eq!(make_room_in(notes.path(), 9, 100, 40), 2, "a newer one never goes first");
        assert_eq!(make_room_in(&notes.path().join("none"), 9, 100, 40), 0);
    }
}
