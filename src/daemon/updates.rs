// SPDX-License-Identifier: Apache-2.0
//! Updates of other containers that plugins ask for. Carrying them out on cgroups is not built
//! yet: each is recorded as skipped, so that `explain` tells, and never dropped in silence.

use std::rc::Rc;

use serde_json::{Map, Value};
use tracing::warn;

use crate::adaptation::Updated;
use crate::plugin::api;
use crate::spec::overlay;
use crate::state::{Change, Container, Key, Skipped};

use super::node::Node;

/// How many changes a record keeps: a plugin may set a value a thousand times a second.
const CHANGES: usize = 200;

/// Carries out what plugins answered about other containers than `subject`.
pub(super) async fn carry_out(
    node: &Rc<Node>,
    updated: Updated,
    event: &str,
    subject: Option<&Key>,
) {
    let others = updated.updates.into_iter();
    let others: Vec<_> =
        others.filter(|other| subject.is_none_or(|key| key.id != other.container_id)).collect();
    apply_to_others(node, &others, event);
}

/// Records what was asked for the containers in `updates`.
pub(super) fn apply_to_others(node: &Node, updates: &[api::ContainerUpdate], event: &str) {
    for update in updates {
        let key = {
            let store = node.store.borrow();
            let mut known = store.containers();
            known.find(|known| known.key.id == update.container_id).map(|known| known.key.clone())
        };
        let reason = format!(
            "an update of it asked for at {event} was not carried out: absent in this version"
        );
        warn!("{}: {reason}", update.container_id);
        if let Some(key) = key {
            let plugin = String::new();
            node.change(&key, |record| record.skipped.push(Skipped { plugin, reason }));
        }
    }
}

/// The resources of a container as they are: the engine's, and over them what plugins own.
pub(super) fn in_force(record: &Container) -> Map<String, Value> {
    let mut resources = record.engine_resources.clone();
    overlay::put_over(&mut resources, &record.overlay);
    resources
}

/// Adds to what `explain` tells. A plugin that sets the same field again and again leaves one
/// line: what it was before, and what it is now.
pub(super) fn note_changes(record: &mut Container, changes: Vec<Change>) {
    for change in changes {
        let same = |known: &&mut Change| {
            (&known.event, &known.plugin, &known.field)
                == (&change.event, &change.plugin, &change.field)
        };
        match record.changes.iter_mut().rev().take(CHANGES).find(same) {
            Some(known) => (known.at, known.after) = (change.at, change.after),
            None => record.changes.push(change),
        }
    }
}
