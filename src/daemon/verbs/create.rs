// SPDX-License-Identifier: Apache-2.0
//! `create`, `run` and `restore`: describe the container, ask the plugins in order, merge and check
//! their replies, then write. Nothing in the bundle changes before every plugin has agreed; after a
//! refusal it is as the engine wrote it.

use std::rc::Rc;

use crate::adaptation::{Merged, Updated};
use crate::clock::now;
use crate::daemon::lifecycle::{carry_over, removal, rollback, settle};
use crate::daemon::node::{Node, messages};
use crate::daemon::request::{VerbRequest, record};
use crate::daemon::resources::{in_force, updates};
use crate::daemon::runtime::state_dir;
use crate::daemon::verbs::admitted::{Admitted, admit, blame};
use crate::daemon::verbs::host_facts;
use crate::error::Result;
use crate::host::Point;
use crate::link::Proceed;
use crate::mark::process_values;
use crate::plugin::Event;
use crate::resolve::ResourceWriter;
use crate::spec::overlay;
use crate::spec::patch::{PatchedSpec, Resolved};
use crate::state::{Change, Container, Lifecycle};

/// Decides a `create`, `run` or `restore`. `None`: the ID is taken, so that the runtime refuses it
/// with its own message; the container that has the ID is not touched by this call.
pub(crate) async fn create(node: &Rc<Node>, call: &mut VerbRequest) -> Result<Option<Proceed>> {
    if let Some(old) = node.container(&call.key) {
        if is_alive(node, &old) {
            return Ok(None);
        }
        // Docker and Podman restart with the same ID: plugins are notified of the old end first.
        removal::removed(node, &old.key).await;
    }
    let is_started = call.command_line.verb.creates_and_starts();
    let record = record::blank_record(node, call);
    let admitted = admit(node, call, record).await?;
    if admitted.is_sandbox() {
        let document = admitted.bundle.write_engines(node, &admitted.key)?;
        return Ok(Some(Proceed { document, ..Proceed::default() }));
    }
    let decided = match decide(&admitted).await {
        Ok(document) if is_started => admitted.before_start().await.map(|()| document),
        decided => decided,
    };
    match decided {
        Ok(document) => Ok(Some(Proceed { document, ..Proceed::default() })),
        Err(error) => {
            rollback::refused(node, &admitted.key, &error).await;
            Err(error)
        }
    }
}

/// Whether the runtime knows this container, or is creating it now.
fn is_alive(node: &Node, old: &Container) -> bool {
    match old.state {
        Lifecycle::Creating => settle::is_being_created(node, &old.key),
        Lifecycle::Created | Lifecycle::Running | Lifecycle::Stopped | Lifecycle::Removed => {
            state_dir::exists(&node.host, &old.key)
        }
    }
}

/// Asks the plugins, merges, patches. Returns the name of the patched file, if there is one.
async fn decide(admitted: &Admitted) -> Result<Option<String>> {
    let Admitted { node, key, bundle, .. } = admitted;
    node.host.point(Point::DaemonPlugins)?;
    let merged = admitted.ask().await?;
    let writer = ResourceWriter::Runtime;
    let names = host_facts::resolve_for_runtime(node, &key.id, admitted.runtime(), &merged, writer)
        .await
        .map_err(|error| blame(&merged, &error))?;
    let facts = host_facts::host_facts(node, &merged.adjust, names).await?;
    let patched = host_facts::patch(&bundle.original.bytes, &merged.adjust, &facts)
        .await
        .map_err(|error| blame(&merged, &error))?;
    bundle.refuse_link(&patched.changes).map_err(|error| blame(&merged, &error))?;
    let document = patched.bytes.as_deref().unwrap_or(&bundle.original.bytes);
    host_facts::check_node(node, &merged, &facts.names, document)
        .map_err(|error| blame(&merged, &error))?;
    node.host.point(Point::DaemonDecided)?;
    note_verdict(admitted, &merged, &patched, &facts.names);
    node.host.point(Point::DaemonOthers)?;
    let others = Updated {
        updates: merged.updates,
        evictions: merged.evictions,
        evicted_by: merged.evicted_by,
        owners: merged.owners,
        unknown: Vec::new(),
        noted: merged.noted,
        dropped: merged.dropped,
    };
    updates::carry_out(node, others, Event::CreateContainer, key).await;
    let Some(bytes) = patched.bytes else {
        if node.container(key).is_some_and(|record| has_news(&record)) {
            node.records.change(key, |_| ())?;
        }
        return bundle.write_engines(node, key);
    };
    node.host.point(Point::DaemonDocument)?;
    bundle.write_beside(node, key, &bytes).map(Some)
}

/// Whether the record of a container with an unchanged document has data to write.
fn has_news(record: &Container) -> bool {
    !(record.owners.is_empty() && record.overlay.is_empty() && record.skipped.is_empty())
}

/// Records the decision: the container as merged, owners, changes, omissions.
fn note_verdict(admitted: &Admitted, merged: &Merged, patched: &PatchedSpec, names: &Resolved) {
    let Admitted { node, key, .. } = admitted;
    let owners = merged.owners.to_flat(&key.id);
    let at = now();
    let changes = patched.changes.iter().map(|change| Change {
        at,
        event: Event::CreateContainer.name().to_owned(),
        plugin: owners.get(&change.nri_field).cloned().unwrap_or_default(),
        field: change.field.clone(),
        before: change.before.clone().unwrap_or_default(),
        after: change.after.clone().unwrap_or_default(),
    });
    let changes: Vec<Change> = changes.collect();
    let process_values =
        process_values(changes.iter().map(|c| (c.field.as_str(), &c.before, &c.after)));
    // Later changes may push these out of the list, from which the mark is made otherwise.
    let process_values = (changes.len() > in_force::LATEST).then_some(process_values);
    let (changes, unlisted) = in_force::listed(changes);
    admitted.note_unknown(merged);
    let resources = merged.adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let owned = resources.and_then(|resources| overlay::overlay_of(resources, names).ok());
    let owned = owned.unwrap_or_default();
    let kept = carry_over::from_earlier(node, key, &owned);
    // Written together with the record of the patched file; without one, nothing was decided.
    node.records.change_in_memory(key, |record| {
        record.message = messages::merged(&merged.container);
        record.owners = owners;
        record.changes = changes;
        record.process_values = process_values;
        record.skipped.extend(unlisted);
        record.at_creation = owned.clone();
        record.overlay = owned;
    });
    if let Some(kept) = kept {
        node.change(key, |record| record.deferred.push(kept));
    }
}
