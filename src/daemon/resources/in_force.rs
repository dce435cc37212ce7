// SPDX-License-Identifier: Apache-2.0
//! The resources in force of a container, and the record of their changes.

use serde_json::{Map, Value};

use crate::spec::overlay;
use crate::state::{Change, Container, Skipped};

/// A block of OCI resources.
pub(crate) type Block = Map<String, Value>;

/// How many changes and omissions of a record are searched for one of the same kind.
pub(crate) const LATEST: usize = 200;
/// The resources in force of a container: the engine's, and over them the plugins'.
pub(crate) fn in_force(record: &Container) -> Map<String, Value> {
    let mut resources = record.engine_resources.clone();
    overlay::put_over(&mut resources, &record.overlay);
    resources
}

/// Adds changes for `explain`. A plugin that sets the same field repeatedly has one line: the value
/// before, and the value now.
pub(crate) fn note_changes(record: &mut Container, changes: Vec<Change>) {
    for change in changes {
        let same = |known: &&mut Change| {
            (&known.event, &known.plugin, &known.field)
                == (&change.event, &change.plugin, &change.field)
        };
        match record.changes.iter_mut().rev().take(LATEST).find(same) {
            Some(known) => (known.at, known.after) = (change.at, change.after),
            None => keep_ends(&mut record.changes, change),
        }
    }
}

/// How many changes of one creation are kept for `explain`.
const LISTED: usize = 2000;

/// The first of many changes, and a note of how many more there are.
pub(crate) fn listed(mut changes: Vec<Change>) -> (Vec<Change>, Option<Skipped>) {
    let more = changes.len().saturating_sub(LISTED);
    changes.truncate(LISTED);
    let reason = format!("{more} more changes were applied and are not listed");
    let note = Skipped { plugin: String::new(), reason };
    (changes, (more > 0).then_some(note))
}

/// Adds to a bounded list: its beginning and its end are kept.
pub(super) fn keep_ends<T>(list: &mut Vec<T>, next: T) {
    if list.len() >= 2 * LATEST {
        list.remove(LATEST);
    }
    list.push(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_beginning_and_its_end() {
        let mut list = Vec::new();
        (0..1000).for_each(|number| keep_ends(&mut list, number));
        let (first, last) = list.split_at(LATEST);
        assert_eq!((first[0], first[LATEST - 1]), (0, LATEST - 1));
        assert_eq!((last[0], last.last()), (1000 - LATEST, Some(&999)));
    }
}
