// SPDX-License-Identifier: Apache-2.0
//! Determines the resources in force of a container, and records their changes.

use crate::limits;
use crate::spec::{overlay, owned};
use crate::state::{Change, Container, Skipped};

pub(crate) use crate::spec::Block;

/// Returns the resources in force of a container: the engine's, overlaid with those that plugins own.
pub(crate) fn in_force(record: &Container) -> Block {
    let mut resources = record.resources.of_engine.map();
    overlay::put_over(&mut resources, &record.resources.overlay);
    resources
}

/// Returns the resources that the runtime receives together with a plugin's update. For a container made without
/// nri-runc, these are only plugins' values: the engine's later values are unknown and must not be reverted.
pub(super) fn known_for_sure(record: &Container) -> Block {
    if record.by_plain_runtime { record.resources.overlay.clone() } else { in_force(record) }
}

/// Returns the resources that revert `part`, and the members of `part` that no value can restore. For a container made
/// without nri-runc, the engine's later values are unknown, so only plugins' values are restored.
pub(super) fn before(record: &Container, part: &Block) -> (Block, Vec<String>) {
    if !record.by_plain_runtime {
        return owned::undone(part, &in_force(record));
    }
    let tried = owned::values(part);
    let known = owned::values(&record.resources.overlay);
    let mut left: Vec<String> =
        tried.keys().filter(|path| !known.contains_key(*path)).cloned().collect();
    left.sort();
    (owned::keep_owned(&record.resources.overlay, |field| tried.contains_key(&field.path)), left)
}

/// Adds changes for `explain`. If a plugin sets the same field repeatedly at one kind of event, one
/// line has the value before the first change, and the current value.
pub(crate) fn note_changes(record: &mut Container, changes: Vec<Change>) {
    for change in changes {
        let same = |known: &&mut Change| {
            (&known.event, &known.plugin, &known.field)
                == (&change.event, &change.plugin, &change.field)
        };
        match record.outcome.changes.iter_mut().rev().take(limits::ENDS).find(same) {
            Some(known) => (known.at, known.after) = (change.at, change.after),
            None => limits::keep_ends(&mut record.outcome.changes, change),
        }
    }
}

/// Returns the first `limits::CHANGES` changes, and a note with the number of the others, if any.
pub(crate) fn listed(mut changes: Vec<Change>) -> (Vec<Change>, Option<Skipped>) {
    let more = changes.len().saturating_sub(limits::CHANGES);
    changes.truncate(limits::CHANGES);
    let reason = format!("{more} more changes were applied and are not listed");
    let note = Skipped { plugin: String::new(), reason };
    (changes, (more > 0).then_some(note))
}
