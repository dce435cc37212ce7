// SPDX-License-Identifier: Apache-2.0
//! Answers `explain`: finds the container that an operator means, and shows the changes that plugins and injections
//! made to it. It reads the records of existing and removed containers, and changes nothing.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::answers::{
    ContainerExplained, Dated, Explanation, InjectionNote, MatchRow, Repetition, SeveralMatches,
    WayGiven,
};
use crate::daemon::registry::Registry;
use crate::daemon::server::{explain_pod, recent, rows};
use crate::daemon::shared::{Daemon, events};
use crate::error::{Error, Result};
use crate::rules::exec_rows;
use crate::spec::owned;
use crate::state::{Change, Container, ContainerKey, GaveWay, Lifecycle, Store, WouldInject};
use crate::text::{first_of, short_id};

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

/// Returns the last non-empty part of `wanted` between slashes, for a search of removed records: each record that
/// `wanted` matches contains this text.
pub(super) fn searched(wanted: &str) -> &str {
    wanted.rsplit('/').find(|part| !part.is_empty()).unwrap_or(wanted)
}

/// Explains the container or pod that matches. If it is not clear which of several containers is meant, lists them
/// under `matches`.
///
/// # Errors
/// Fails with one line if none matches, or only several pods do.
pub(crate) fn explain(daemon: &Daemon, wanted: &str) -> Result<Explanation> {
    let store = daemon.records.read();
    // An infrastructure container is explained as its pod, or as itself if it is removed and its pod is unknown.
    let is_shown = |container: &Container| {
        let is_gone = container.state == Lifecycle::Removed;
        !container.is_sandbox || is_gone && store.newest_pod(&container.pod).is_none()
    };
    let gone: Vec<_> = store.gone(searched(wanted)).collect();
    let all = store.containers().chain(gone.iter().map(Cow::as_ref));
    let ranked = all.filter_map(|container| Some((rank(&store, container, wanted)?, container)));
    let ranked: Vec<(Match, &Container)> =
        ranked.filter(|(_, container)| is_shown(container)).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    if best != Some(Match::Id)
        && let Some(pod) = explain_pod::explain(&daemon.report, &store, wanted, best.is_none())
    {
        return pod.map(|pod| Explanation::Pod(Box::new(pod)));
    }
    let Some(best) = best else {
        let error = Error::new(format!("no container or pod matches {wanted}"));
        return Err(error.hint("see: nri-runc nri pods"));
    };
    let found = ranked.into_iter().filter(|(rank, _)| *rank == best);
    let found = newest_of_each(found.map(|(_, container)| container).collect());
    let living: Vec<&&Container> =
        found.iter().filter(|container| container.state != Lifecycle::Removed).collect();
    // If a name was reused, the operator means the living container.
    let meant = match (found.as_slice(), living.as_slice()) {
        ([one], _) => one,
        (_, [one]) if best != Match::Prefix => *one,
        // An engine retries a refused or ended container under its name, so the operator means the
        // last attempt.
        ([newest, ..], []) if best != Match::Prefix && have_one_name(&store, &found) => *newest,
        _ => return Ok(Explanation::Several(ambiguous(daemon, wanted, &found))),
    };
    let others = found.iter().filter(|other| other.key != meant.key);
    let earlier = others.map(|other| row(daemon, other)).collect();
    let explained = ContainerExplained { earlier, ..explained(daemon, meant) };
    Ok(Explanation::Container(Box::new(explained)))
}

/// Returns the best matches among the containers on record; several if `wanted` names a pod or is ambiguous.
///
/// # Errors
/// Fails if none matches.
pub(super) fn living(store: &Store, wanted: &str) -> Result<Vec<ContainerKey>> {
    let all = store.containers().filter(|container| !container.is_sandbox);
    let ranked = all.filter_map(|container| Some((rank(store, container, wanted)?, container)));
    let ranked: Vec<(Match, &Container)> = ranked.collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min().ok_or_else(|| {
        Error::new(format!("no container matches {wanted}")).hint("see: nri-runc nri pods")
    })?;
    Ok(ranked.iter().filter(|(rank, _)| *rank == best).map(|(_, it)| it.key.clone()).collect())
}

fn rank(store: &Store, container: &Container, wanted: &str) -> Option<Match> {
    let Container { key, name, .. } = container;
    if wanted.is_empty() {
        return None;
    }
    if key.id == wanted {
        return Some(Match::Id);
    }
    let (namespace, pod) = pod_of(store, container);
    let rest = wanted.strip_prefix(namespace.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let is_named = |rest: &str| {
        rest == name || rest == key.id || rest == pod || rest == format!("{pod}/{name}")
    };
    if wanted == name || rest.is_some_and(is_named) {
        return Some(Match::Name);
    }
    key.id.starts_with(wanted).then_some(Match::Prefix)
}

/// Whether the containers have the same name, in pods of the same name and namespace.
fn have_one_name(store: &Store, found: &[&Container]) -> bool {
    let mut names = found.iter().map(|container| (pod_of(store, container), &container.name));
    let first = names.next();
    names.all(|name| Some(name) == first)
}

/// Returns the containers, newest first; of those with the same ID under the same runtime root, only the newest.
fn newest_of_each(mut found: Vec<&Container>) -> Vec<&Container> {
    found.sort_by_key(|container| std::cmp::Reverse(container.incarnation));
    let mut seen = BTreeSet::new();
    found.retain(|container| seen.insert(&container.key));
    found
}

fn ambiguous(daemon: &Daemon, wanted: &str, found: &[&Container]) -> SeveralMatches {
    let matches: Vec<MatchRow> = found.iter().map(|container| row(daemon, container)).collect();
    let name = |container: &&Container| {
        let (namespace, pod) = pod_of(&daemon.records.read(), container);
        let parts = [namespace, pod, container.name.clone()];
        let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        parts.retain(|part| !part.is_empty());
        // A container on an engine without pods has a pod of the same name.
        parts.dedup();
        format!("{} ({})", parts.join("/"), short_id(&container.key.id))
    };
    let names: Vec<String> = found.iter().map(name).collect();
    let (count, names) = (matches.len(), first_of(&names));
    let error = format!("\"{wanted}\" is ambiguous: {count} containers match: {names}");
    SeveralMatches { error, matches }
}

/// Returns a container's row in a list to choose from.
fn row(daemon: &Daemon, container: &Container) -> MatchRow {
    let (namespace, pod) = pod_of(&daemon.records.read(), container);
    MatchRow {
        id: container.key.id.clone(),
        root: container.key.root.clone(),
        name: container.name.clone(),
        namespace,
        pod,
        state: rows::state(daemon, container),
        engine: container.engine.to_string(),
        times: rows::times(container),
    }
}

/// Returns the namespace and name of the container's pod. For a removed pod they come from the container's record; if
/// that has none, as those of older daemons, the name is the pod's ID.
fn pod_of(store: &Store, container: &Container) -> (String, String) {
    match store.pod(&container.pod) {
        Some(pod) => (pod.namespace.clone(), pod.name.clone()),
        None if container.pod_name.is_empty() => (String::new(), container.pod.clone()),
        None => (container.pod_namespace.clone(), container.pod_name.clone()),
    }
}

fn explained(daemon: &Daemon, container: &Container) -> ContainerExplained {
    let (namespace, pod) = pod_of(&daemon.records.read(), container);
    // A plugin that was skipped for the pod may handle the pod's containers differently, so it is shown too.
    let store = daemon.records.read();
    let mut skipped = container.outcome.skipped.clone();
    let of_pod = store.newest_pod(&container.pod);
    skipped.extend(of_pod.iter().flat_map(|pod| pod.skipped.iter().cloned()));
    let known = container.clone();
    ContainerExplained {
        namespace,
        pod,
        state: rows::state(daemon, container),
        status_reason: Some(known.process.status_reason).filter(|reason| !reason.is_empty()),
        changes: changes(&daemon.registry, container),
        times: recent::times(&daemon.report, &container.pod, &known.key.id),
        skipped,
        exec_rules: exec_rows(
            &daemon.config().exec_rules,
            &events::ruled_pod_of(&store, container),
        ),
        would_inject: would_inject(container),
        gave_way: gave_way(container),
        promises: rows::promises(&container.outcome.promises),
        repeated: repeated(container),
        life: rows::times(container),
        id: known.key.id,
        root: known.key.root,
        name: known.name,
        exit_code: known.process.exit_code,
        engine: known.engine.into(),
        evidence: known.evidence,
        runtime: known.call.runtime,
        bundle: known.call.bundle,
        found: known.is_found,
        owners: known.resources.owners,
        changed_behind: known.outcome.changed_behind,
        refused: known.outcome.refused,
        would_refuse: known.outcome.would_refuse.into_iter().map(Dated).collect(),
        exec_changes: known.outcome.exec_changes.into_iter().map(Dated).collect(),
        hidden_from: known.outcome.hidden_from,
        earlier: Vec::new(),
    }
}

/// Returns the fields that injections in audit mode would have set.
fn would_inject(container: &Container) -> Vec<Dated<InjectionNote>> {
    let rows =
        container.outcome.would_inject.iter().cloned().map(|WouldInject { at, plugin, field }| {
            Dated(InjectionNote { at, event: "CreateContainer".to_owned(), plugin, field })
        });
    rows.collect()
}

/// Returns the fields in which injections gave way to values of the container or of plugins.
fn gave_way(container: &Container) -> Vec<WayGiven> {
    let rows = container.outcome.gave_way.iter().cloned().map(|GaveWay { plugin, field, to }| {
        let to = Some(to).filter(|to| !to.is_empty());
        WayGiven { plugin, field, to }
    });
    rows.collect()
}

/// Returns values that the engine requested while the values of plugins and injections stayed in force.
fn repeated(container: &Container) -> Vec<Dated<Repetition>> {
    let owned = owned::values(&container.resources.overlay);
    let rows = container.outcome.repeated.iter().filter_map(|repeated| {
        Some(Dated(Repetition {
            at: repeated.at,
            plugin: repeated.plugin.clone(),
            field: format!("linux.resources.{}", repeated.field),
            engine: repeated.engine.clone(),
            value: owned.get(&repeated.field)?.clone(),
        }))
    });
    rows.collect()
}

/// Returns the changes in order of time, and those of one event in the order of the chain. Omits changes
/// to the value that the field already had.
fn changes(registry: &Registry, container: &Container) -> Vec<Dated<Change>> {
    let changes = container.outcome.changes.iter().filter(|change| change.before != change.after);
    let mut changes: Vec<_> = changes.cloned().map(Dated).collect();
    // The sort is stable, so changes of one index stay in the record's order.
    let injections = registry.injections();
    changes.sort_by_key(|Dated(change)| {
        // An injection comes before the plugins of its index.
        let of_plugin = || (change.plugin.get(..2).unwrap_or_default().to_owned(), true);
        let place = injections.index_of(&change.plugin).map(|index| (index.to_owned(), false));
        (change.at, place.unwrap_or_else(of_plugin))
    });
    changes
}
