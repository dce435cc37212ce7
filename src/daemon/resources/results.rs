// SPDX-License-Identifier: Apache-2.0
//! Sends the results of updates (applied, failed, waiting, or no longer in force) to the plugins that requested them
//! and subscribed to results (D50). This module never waits for a plugin, and changes no record.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::daemon::registry::Registry;
use crate::daemon::resources::error::{RefusedField, Result, UpdateError};
use crate::daemon::shared::Records;
use crate::plugin::Event;
use crate::plugin::api::extension::{
    ExtensionEvent, UpdateOutcome, UpdateResult, UpdateResultsRequest,
};
use crate::state::{ContainerKey, PendingUpdate};

/// The name that a result shows in place of a plugin if the engine changed the value.
pub(crate) const ENGINE: &str = "engine";

/// Results of one request, by receiving plugin.
#[derive(Default)]
pub(super) struct Results(BTreeMap<String, Vec<UpdateResult>>);

/// The result of an update that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    Applied,
    Deferred,
}

impl Results {
    /// Adds the result of one update, for each plugin that requested it.
    pub(super) fn add(&mut self, id: &str, requested: &PendingUpdate, result: &Result<Done>) {
        let plugins: BTreeSet<&String> = requested.owners.values().collect();
        for plugin in plugins {
            let mut told = UpdateResult {
                container_id: id.to_owned(),
                event: requested.event.clone(),
                outcome: outcome(result).into(),
                ..UpdateResult::default()
            };
            if let Err(error) = result {
                told.reason = error.to_string();
                told.field = field(error).unwrap_or_default();
            }
            self.0.entry(plugin.trim_start_matches('-').to_owned()).or_default().push(told);
        }
    }

    /// Sends the results to the plugins that subscribed.
    pub(super) fn send(self, registry: &Registry) {
        for (plugin, results) in self.0 {
            let Some(found) = registry.find(&plugin) else { continue };
            if !found.connection().takes(ExtensionEvent::UPDATE_RESULTS) {
                continue;
            }
            let member = Rc::clone(&found.chained);
            tokio::task::spawn_local(async move {
                let request = UpdateResultsRequest { results, ..UpdateResultsRequest::default() };
                member.notify_by_extension(&request).await;
            });
        }
    }
}

fn outcome(result: &Result<Done>) -> UpdateOutcome {
    match result {
        Ok(Done::Applied) => UpdateOutcome::UPDATE_APPLIED,
        Ok(Done::Deferred) => UpdateOutcome::UPDATE_DEFERRED,
        Err(_) => UpdateOutcome::UPDATE_FAILED,
    }
}

fn field(error: &UpdateError) -> Option<String> {
    let UpdateError::Refused(refusal) = error else { return None };
    match refusal.field.as_ref()? {
        RefusedField::Path(path) => Some(path.clone()),
        RefusedField::Class(name) => Some((*name).to_owned()),
    }
}

pub(super) fn send_one(
    registry: &Registry,
    id: &str,
    requested: &PendingUpdate,
    result: &Result<Done>,
) {
    let mut results = Results::default();
    results.add(id, requested, result);
    results.send(registry);
}

/// Notifies plugins whether the runtime accepted the values that they set in their replies to an engine's update of
/// this container (`is_taken`); `answered` maps fields to plugins.
pub(crate) fn of_engines_update(
    registry: &Registry,
    key: &ContainerKey,
    answered: &BTreeMap<String, String>,
    is_taken: bool,
) {
    let (owners, event) = (answered.clone(), Event::UpdateContainer.name().to_owned());
    let requested = PendingUpdate { owners, event, ..PendingUpdate::default() };
    let why = || UpdateError::refused("the runtime did not accept the engine's update");
    let result = if is_taken { Ok(Done::Applied) } else { Err(why()) };
    send_one(registry, &key.id, &requested, &result);
}

/// Returns the fields of `next` that have owners now, each with that owner.
pub(super) fn owned_by_others(
    records: &Records,
    key: &ContainerKey,
    next: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let Some(record) = records.container(key) else { return BTreeMap::new() };
    let known = next.keys().filter_map(|field| record.resources.owners.get_key_value(field));
    known.map(|(field, owner)| (field.clone(), owner.clone())).collect()
}

/// Notifies plugins that fields which they owned (`before`) have other owners from now on. `after`:
/// the new owners; a field without one is the engine's.
pub(crate) fn note_changed(
    registry: &Registry,
    key: &ContainerKey,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) {
    let mut results = Results::default();
    for (field, owner) in before {
        let now = after.get(field);
        if now == Some(owner) {
            continue;
        }
        let changed = UpdateResult {
            container_id: key.id.clone(),
            outcome: UpdateOutcome::UPDATE_CHANGED.into(),
            field: field.clone(),
            changed_by: now.map_or(ENGINE, |now| now.trim_start_matches('-')).to_owned(),
            ..UpdateResult::default()
        };
        results.0.entry(owner.trim_start_matches('-').to_owned()).or_default().push(changed);
    }
    results.send(registry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plugin_gets_its_results_with_field_and_reason() {
        let owners = [("CPUShares", "10-a"), ("MemoryLimit", "20-b")];
        let owners = owners.map(|(field, plugin)| (field.to_owned(), plugin.to_owned()));
        let requested = PendingUpdate {
            owners: owners.into(),
            event: "StopContainer".to_owned(),
            ..PendingUpdate::default()
        };
        let mut results = Results::default();
        results.add("c1", &requested, &Ok(Done::Applied));
        let path = RefusedField::Path("cpu.shares".to_owned());
        results.add("c2", &requested, &Err(UpdateError::refused_field(path, "too few")));
        results.add("c3", &requested, &Err(UpdateError::Unknown));
        let of_a = &results.0["10-a"];
        assert_eq!((results.0.len(), of_a.len()), (2, 3));
        assert_eq!(of_a[0].outcome, UpdateOutcome::UPDATE_APPLIED.into());
        assert_eq!(
            (of_a[1].field.as_str(), of_a[1].reason.as_str()),
            ("cpu.shares", "cpu.shares: too few")
        );
        assert_eq!((of_a[2].field.as_str(), of_a[2].event.as_str()), ("", "StopContainer"));
    }
}
