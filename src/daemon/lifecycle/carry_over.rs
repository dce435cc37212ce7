// SPDX-License-Identifier: Apache-2.0
//! Handles containers that the engine creates again under the same ID, as Docker and Podman do on
//! restart: values that plugins set after the old container's creation also apply to the new one.
//!
//! Replies of plugins to the new creation take precedence. Values that the engine has changed since belong
//! to the engine (D21), and those of plugins that are not connected are dropped. If the old container has values to
//! carry over, its record survives a restart of the daemon. This module only decides; `updates.rs` applies.

use crate::plugin::Event;
use crate::spec::{overlay, owned};
use crate::state::{Container, ContainerKey, PendingUpdate};

use crate::daemon::resources::in_force::Block;
use crate::daemon::shared::messages::{self, Classes};
use crate::daemon::shared::{Daemon, Records, log_failure};

/// The event that `explain` names for values taken from the earlier container.
const EVENT: &str = "restart under the same id";

/// Keeps the record of a container that is about to be removed, if plugins set values after its creation and the
/// container may be re-created; else drops the kept record of an earlier container, if this one was created.
pub(crate) fn keep_values(records: &Records, record: &Container) {
    let is_later = record.resources.overlay != record.resources.at_creation || is_moved(record);
    if !record.was_made() {
        return; // The kept values of an earlier container stay.
    }
    let may_return = !record.engine.behaviour().uses_ids_once;
    if is_later && !record.is_sandbox && may_return {
        log_failure("keeping plugin-owned values", records.keep_for_successor(record));
    } else {
        records.drop_kept(&record.key);
    }
}

/// Returns the values to apply once the container is created; `answered` are those that plugins set in this creation.
pub(crate) fn from_earlier(
    daemon: &Daemon,
    key: &ContainerKey,
    answered: &Block,
) -> Option<PendingUpdate> {
    let store = daemon.records.read();
    let new = store.container(key)?;
    let old = store.newest_gone(key, Container::was_made)?;
    // With another bundle, engine or pod, this is an unrelated container that reuses the ID.
    let is_same =
        old.call.bundle == new.call.bundle && old.engine == new.engine && old.pod == new.pod;
    if !is_same || new.is_sandbox || old.resources.owners.is_empty() {
        return None;
    }
    let (engine, asked) = (old.resources.of_engine.map(), new.resources.of_engine.map());
    let kept = overlay::merge_update(&engine, &old.resources.overlay, &asked, false).overlay;
    let is_there = |plugin: &str| daemon.registry.find(plugin).is_some();
    let (at_creation, answered) =
        (owned::values(&old.resources.at_creation), owned::values(answered));
    let part = owned::keep_owned(&kept, |field| {
        let is_of_creation = at_creation.get(&field.path) == Some(&field.value);
        let is_answered = answered.contains_key(&field.path);
        let owner = owned::owner(field, &kept, &old.resources.owners);
        !is_of_creation && !is_answered && owner.is_some_and(is_there)
    });
    let mut owners = old.resources.owners.clone();
    owners.retain(|name, plugin| owned::is_resource(name) && is_there(plugin));
    owned::retain(&mut owners, &part);
    let Classes { blockio, rdt } = Classes::of(&messages::resources(&old));
    let rdt = rdt.filter(|_| is_moved(&old));
    let mover =
        old.resources.owners.get("RdtClass").filter(|plugin| rdt.is_some() && is_there(plugin));
    owners.extend(mover.map(|plugin| ("RdtClass".to_owned(), plugin.clone())));
    let rdt_class = rdt.filter(|_| mover.is_some());
    if part.is_empty() && rdt_class.is_none() {
        return None;
    }
    let blockio_class = blockio.filter(|_| part.contains_key("blockIO"));
    Some(PendingUpdate { part, blockio_class, rdt_class, owners, event: EVENT.to_owned() })
}

/// Whether the container entered its RDT group after its creation.
fn is_moved(old: &Container) -> bool {
    old.outcome.changes.iter().any(|change| {
        change.field == crate::daemon::resources::classes::FIELD
            && change.event != Event::CreateContainer.name()
    })
}
