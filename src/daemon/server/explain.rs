// SPDX-License-Identifier: Apache-2.0
//! `explain`: finds the container that an operator means, and shows the plugins' changes to it. It
//! reads records, also of removed containers, and changes nothing.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::daemon::server::{explain_pod, recent, rows};
use crate::daemon::shared::{Daemon, events};
use crate::error::Error;
use crate::rules::exec_rows;
use crate::spec::owned;
use crate::state::{Container, ContainerKey, Lifecycle};
use crate::text::{first_of, rfc3339_nanos, short_id};

/// How an argument matches a container, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    /// By its whole ID.
    Id,
    /// By its name, NAMESPACE/NAME, NAMESPACE/ID, NAMESPACE/POD or NAMESPACE/POD/NAME.
    Name,
    /// By a prefix of its ID.
    Prefix,
}

/// Explains the container that matches; if several do, lists them under `matches`.
///
/// # Errors
/// One line if none matches.
pub(crate) fn explain(daemon: &Daemon, wanted: &str) -> Result<Value, String> {
    let store = daemon.records.read();
    // An infrastructure container is explained as its pod, or as itself if it never had a pod.
    let is_shown = |container: &&Container| {
        let is_gone = container.state == Lifecycle::Removed;
        !container.is_sandbox || is_gone && explain_pod::newest(&store, &container.pod).is_none()
    };
    let all = store.containers().chain(store.gone()).filter(is_shown);
    let ranked = all.filter_map(|container| Some((rank(daemon, container, wanted)?, container)));
    let ranked: Vec<(Match, &Container)> = ranked.collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    if best != Some(Match::Id)
        && let Some(pod) = explain_pod::explain(daemon, &store, wanted, best.is_none())
    {
        return pod;
    }
    let Some(best) = best else {
        let error = Error::new(format!("no container or pod {wanted} is known"));
        return Err(error.hint("see: nri-runc nri pods").to_string());
    };
    let found = ranked.into_iter().filter(|(rank, _)| *rank == best);
    let found = newest_of_each(found.map(|(_, container)| container).collect());
    let living: Vec<&&Container> =
        found.iter().filter(|container| container.state != Lifecycle::Removed).collect();
    // Of a reused name, the living container is meant.
    let meant = match (found.as_slice(), living.as_slice()) {
        ([one], _) => one,
        (_, [one]) if best != Match::Prefix => *one,
        // A refused or ended container is retried under its name, so the last attempt is meant.
        ([newest, ..], []) if best != Match::Prefix && have_one_name(daemon, &found) => *newest,
        _ => return Ok(ambiguous(daemon, wanted, &found)),
    };
    let mut document = explained(daemon, meant);
    let others = found.iter().filter(|other| other.key != meant.key);
    document["earlier"] = others.map(|other| row(daemon, other)).collect();
    Ok(document)
}

/// The containers that match and are not removed: all of a pod, or all with the prefix.
///
/// # Errors
/// Fails if none matches.
pub(super) fn living(daemon: &Daemon, wanted: &str) -> Result<Vec<ContainerKey>, Error> {
    let store = daemon.records.read();
    let all = store.containers().filter(|container| !container.is_sandbox);
    let ranked = all.filter_map(|container| Some((rank(daemon, container, wanted)?, container)));
    let ranked: Vec<(Match, &Container)> = ranked.collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min().ok_or_else(|| {
        Error::new(format!("no container or pod has the ID {wanted}"))
            .hint("see: nri-runc nri pods")
    })?;
    Ok(ranked.iter().filter(|(rank, _)| *rank == best).map(|(_, it)| it.key.clone()).collect())
}

fn rank(daemon: &Daemon, container: &Container, wanted: &str) -> Option<Match> {
    let Container { key, name, .. } = container;
    if wanted.is_empty() {
        return None;
    }
    if key.id == wanted {
        return Some(Match::Id);
    }
    let (namespace, pod) = pod_of(daemon, container);
    let rest = wanted.strip_prefix(namespace.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let is_named = |rest: &str| {
        rest == name || rest == key.id || rest == pod || rest == format!("{pod}/{name}")
    };
    if wanted == name || rest.is_some_and(is_named) {
        return Some(Match::Name);
    }
    key.id.starts_with(wanted).then_some(Match::Prefix)
}

/// Whether they differ only in their IDs.
fn have_one_name(daemon: &Daemon, found: &[&Container]) -> bool {
    let mut names = found.iter().map(|container| (pod_of(daemon, container), &container.name));
    let first = names.next();
    names.all(|name| Some(name) == first)
}

/// Newest first; of several containers with one ID below one root, only the youngest.
fn newest_of_each(mut found: Vec<&Container>) -> Vec<&Container> {
    found.sort_by_key(|container| std::cmp::Reverse(container.incarnation));
    let mut seen = BTreeSet::new();
    found.retain(|container| seen.insert(&container.key));
    found
}

fn ambiguous(daemon: &Daemon, wanted: &str, found: &[&Container]) -> Value {
    let matches: Vec<Value> = found.iter().map(|container| row(daemon, container)).collect();
    let name = |container: &&Container| {
        let (namespace, pod) = pod_of(daemon, container);
        let parts = [namespace, pod, container.name.clone()];
        let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        parts.retain(|part| !part.is_empty());
        // A container without a pod has a pod of the same name.
        parts.dedup();
        format!("{} ({})", parts.join("/"), short_id(&container.key.id))
    };
    let names: Vec<String> = found.iter().map(name).collect();
    let (count, names) = (matches.len(), first_of(&names));
    let error = format!("\"{wanted}\" is ambiguous: {count} containers match: {names}");
    json!({"error": error, "matches": matches})
}

/// A container's row in a list to choose from.
fn row(daemon: &Daemon, container: &Container) -> Value {
    let (namespace, pod) = pod_of(daemon, container);
    let mut row = json!({
        "id": container.key.id,
        "root": container.key.root,
        "name": container.name,
        "namespace": namespace,
        "pod": pod,
        "state": rows::state(daemon, container),
        "engine": container.engine,
    });
    rows::add_times(&mut row, container);
    row
}

/// Namespace and name of its pod, which may be removed; records of older daemons have neither.
fn pod_of(daemon: &Daemon, container: &Container) -> (String, String) {
    match daemon.records.read().pod(&container.pod) {
        Some(pod) => (pod.namespace.clone(), pod.name.clone()),
        None if container.pod_name.is_empty() => (String::new(), container.pod.clone()),
        None => (container.pod_namespace.clone(), container.pod_name.clone()),
    }
}

fn explained(daemon: &Daemon, container: &Container) -> Value {
    let (namespace, pod) = pod_of(daemon, container);
    // A plugin that did not know the pod did not know its containers either.
    let store = daemon.records.read();
    let mut skipped = container.skipped.clone();
    let of_pod = explain_pod::newest(&store, &container.pod);
    skipped.extend(of_pod.iter().flat_map(|pod| pod.skipped.iter().cloned()));
    let mut document = json!({
        "id": container.key.id,
        "root": container.key.root,
        "namespace": namespace,
        "pod": pod,
        "name": container.name,
        "state": rows::state(daemon, container),
        "exit_code": container.exit_code,
        "status_reason": Some(&container.status_reason).filter(|reason| !reason.is_empty()),
        "engine": container.engine,
        "evidence": container.evidence,
        "runtime": container.runtime,
        "bundle": container.bundle,
        "found": container.is_found,
        "owners": container.owners,
        "changes": changes(daemon, container),
        "changed_behind": container.changed_behind,
        "times": recent::times(daemon, &container.pod, &container.key.id),
        "refused": container.refused,
        "skipped": skipped,
        "would_refuse": would_refuse(container),
        "exec_rules": exec_rows(
            &daemon.config().exec_rules,
            &events::ruled_pod_of(&store, container),
        ),
        "would_inject": would_inject(container),
        "gave_way": gave_way(container),
        "exec_changes": exec_changes(container),
        "promises": rows::promises(&container.promises),
        "repeated": repeated(container),
        "hidden_from": rows::hidden_from(&container.hidden_from),
    });
    rows::add_times(&mut document, container);
    document
}

/// The changes that a rule in audit mode would have refused.
fn would_refuse(container: &Container) -> Value {
    let rows = container.would_refuse.iter().map(|hit| {
        json!({
            "at": hit.at,
            "time": rfc3339_nanos(hit.at),
            "event": hit.event,
            "plugin": hit.plugin,
            "field": hit.field,
            "rule": hit.rule,
        })
    });
    rows.collect()
}

/// The values that injections in audit mode would have set.
fn would_inject(container: &Container) -> Value {
    let rows = container.would_inject.iter().map(|would| {
        json!({
            "at": would.at,
            "time": rfc3339_nanos(would.at),
            "event": "CreateContainer",
            "plugin": would.plugin,
            "field": would.field,
        })
    });
    rows.collect()
}

/// The fields that injections left to the container, or to plugins.
/// The processes of `exec` that plugins changed.
fn exec_changes(container: &Container) -> Value {
    let rows = container.exec_changes.iter().map(|change| {
        json!({
            "at": change.at,
            "time": rfc3339_nanos(change.at),
            "program": change.program,
            "owners": change.owners,
        })
    });
    rows.collect()
}

fn gave_way(container: &Container) -> Value {
    let rows = container.gave_way.iter().map(|gave_way| {
        let to = (!gave_way.to.is_empty()).then_some(&gave_way.to);
        json!({"plugin": gave_way.plugin, "field": gave_way.field, "to": to})
    });
    rows.collect()
}

/// Values that the engine repeats while a plugin's stay.
fn repeated(container: &Container) -> Value {
    let owned = owned::values(&container.overlay);
    let rows = container.repeated.iter().filter_map(|repeated| {
        let value = owned.get(&repeated.field)?;
        Some(json!({
            "at": repeated.at,
            "time": rfc3339_nanos(repeated.at),
            "plugin": repeated.plugin,
            "field": format!("linux.resources.{}", repeated.field),
            "engine": repeated.engine,
            "value": value,
        }))
    });
    rows.collect()
}

/// In order of time, and within one event in the order of the chain. A plugin that set the present
/// value has changed nothing.
fn changes(daemon: &Daemon, container: &Container) -> Value {
    let changes = container.changes.iter().filter(|change| change.before != change.after);
    let mut changes: Vec<_> = changes.collect();
    // Within one index the order is the record's.
    let injections = daemon.registry.injections();
    changes.sort_by_key(|change| {
        // An injection comes before the plugins of its index.
        let of_plugin = || (change.plugin.get(..2).unwrap_or_default(), true);
        let place = injections.index_of(&change.plugin).map(|index| (index, false));
        (change.at, place.unwrap_or_else(of_plugin))
    });
    let rows = changes.into_iter().map(|change| {
        let mut row = Map::new();
        row.insert("at".to_owned(), change.at.into());
        row.insert("time".to_owned(), rfc3339_nanos(change.at).into());
        row.insert("event".to_owned(), change.event.clone().into());
        row.insert("plugin".to_owned(), change.plugin.clone().into());
        row.insert("field".to_owned(), change.field.clone().into());
        row.insert("before".to_owned(), change.before.clone());
        row.insert("after".to_owned(), change.after.clone());
        Value::Object(row)
    });
    rows.collect()
}
