// SPDX-License-Identifier: Apache-2.0
//! Updates of other containers that plugins ask for. Carrying them out on cgroups is not built
//! yet: each is recorded as skipped, so that `explain` tells, and never dropped in silence.

use tracing::warn;

use crate::plugin::api;
use crate::state::Skipped;

use super::node::Node;

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
