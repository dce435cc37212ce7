// SPDX-License-Identifier: Apache-2.0
//! Carries out the updates of other containers that plugins request: in replies to Create, Update, Stop and
//! Synchronize, and unprompted.
//!
//! All updates of a request are checked before anything is written; then each container succeeds or
//! fails separately. A container that is being created or started receives its updates right
//! afterwards (D15), so that nothing changes between StartContainer and the start of its process.
//! The request does not wait for that, because a plugin may send it from inside a handler for which
//! the creation or start waits: the update is recorded, and the request succeeds. A failed update
//! never fails the event whose reply contained it: it is logged, and `explain` shows it.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use nri_adaptation::{Owners, Updated, Updates, check, unknown_fields};
use serde_json::Map;
use tracing::warn;

use crate::chain::{ChainedPlugin, unknown_field_line};
use crate::clock::now;
use crate::daemon::shared::update_backoff::UpdateBackoff;
use crate::error::quoted;
use crate::plugin::{Event, api};
use crate::state::{Container, ContainerKey, Lifecycle, PendingUpdate, Skipped};

use crate::daemon::registry::connected::ConnectedPlugin;
use crate::daemon::resources::apply::{self, CheckedUpdate};
use crate::daemon::resources::error::{Result, UpdateError};
use crate::daemon::resources::results::{Done, Results};
use crate::daemon::resources::{classes, evict, results, ruled, target};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::few_lines::FewOf;
use crate::daemon::shared::messages::Classes;
use crate::limits;

/// Maximum number of updates applied after one creation or start, including those that arrive meanwhile.
const AT_ONCE: usize = 5 * limits::DEFERRED;

/// Maximum delay of the response to a plugin whose updates are paused.
const MOST_SLOWED: Duration = Duration::from_secs(1);

/// One container's update.
struct UpdateRequest {
    id: String,
    key: Option<ContainerKey>,
    requested: PendingUpdate,
    ignores_failure: bool,
    /// The result of checking the update; `None` while the container is being created.
    found: Result<Option<(Rc<Container>, CheckedUpdate)>>,
}

/// Carries out the updates and evictions in plugins' replies to an event about `subject`.
pub(crate) async fn carry_out(
    daemon: &Rc<Daemon>,
    updated: Updated,
    event: Event,
    subject: &ContainerKey,
) {
    let Updated { updates, answered: _, evictions, evicted_by, owners, unknown, noted, dropped } =
        updated;
    note_skipped(daemon, subject, "", unknown.into_iter().map(unknown_field).collect());
    ruled::note_hits(daemon, &noted, event.name(), Some(subject));
    ruled::note_dropped(daemon, &dropped, event.name(), Some(subject));
    // Evictions first, because they free resources for the updates (D19).
    evict::carry_out(daemon, evictions, &evicted_by, Some(subject)).await;
    // The result of an engine's update includes the values that plugins replied for the same container.
    let is_done = |id: &str| event == Event::UpdateContainer && id == subject.id;
    let mut update_requests = Vec::new();
    for update in updates.iter().filter(|update| !is_done(&update.container_id)) {
        give_way(update_requests.len()).await;
        update_requests.push(inspect(daemon, update, &owners, event.name(), Some(subject)));
    }
    carry_out_all(daemon, update_requests).await;
}

/// Lets other tasks run after every 16 updates: a request may name thousands of containers.
async fn give_way(done: usize) {
    if done % 16 == 15 {
        tokio::task::yield_now().await;
    }
}

/// Carries out the updates in a newly synchronized plugin's reply.
pub(crate) async fn carry_out_at_synchronize(
    daemon: &Rc<Daemon>,
    plugin: &ConnectedPlugin,
    response: api::SynchronizeResponse,
) {
    let api::SynchronizeResponse { update, more: _, special_fields } = response;
    let request = api::UpdateContainersRequest { update, special_fields, ..Default::default() };
    if let Err(why) =
        carry_out_request(daemon, plugin, request, ("Synchronize", "SynchronizeResponse")).await
    {
        daemon
            .report
            .note_failure(&format!("updates requested by {}: {why}", plugin.id()), plugin.id());
    }
}

/// Carries out an UpdateContainers request; the response lists the failed updates.
pub(crate) async fn carry_out_unsolicited(
    daemon: &Rc<Daemon>,
    plugin: &ConnectedPlugin,
    request: api::UpdateContainersRequest,
) -> Result<api::UpdateContainersResponse, String> {
    let names = ("UpdateContainers", "UpdateContainersRequest");
    carry_out_request(daemon, plugin, request, names).await
}

/// Carries out the evictions and then the updates that one plugin requested. A field that the plugin's settings forbid
/// fails all of them before anything is written. `event` and `message` name the request to operators.
async fn carry_out_request(
    daemon: &Rc<Daemon>,
    plugin: &ConnectedPlugin,
    request: api::UpdateContainersRequest,
    (event, message): (&str, &str),
) -> Result<api::UpdateContainersResponse, String> {
    let id = plugin.id();
    let rules = daemon.registry.rules();
    let base = plugin.chained.rights().map_err(|failure| failure.text)?;
    let request = plugin.chained.accept_reply(request).map_err(|why| format!("{id} {why}"))?;
    check(&request).map_err(|what| format!("{id} asked for {what}"))?;
    let unknown = unknown_fields(&request, message);
    if !unknown.is_empty() {
        report_unknown(daemon, &plugin.chained, &request, message, &unknown);
    }
    let api::UpdateContainersRequest { update: wanted, evict, special_fields: _ } = request;
    let (mut update_requests, mut places, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let updated = wanted.iter().map(|update| update.container_id.as_str());
    let named = updated.chain(evict.iter().map(|eviction| eviction.container_id.as_str()));
    let pods = target::KnownPods { daemon, subject: None };
    let rights = &rules.rights(&base, id, None, named, &pods);
    for (place, update) in wanted.iter().enumerate() {
        let mut single = Updates::for_stop();
        single.answer(id, rights, std::slice::from_ref(update), &[]).map_err(|e| e.to_string())?;
        let Updated { updates, owners, noted, dropped, .. } = single.finish();
        ruled::note_hits(daemon, &noted, event, None);
        if let Some(request) = dropped.first() {
            ruled::note_dropped(daemon, &dropped, event, None);
            failed.extend((!request.ignores_failure).then_some(place));
            continue;
        }
        // The merge drops an update without a container ID.
        let alone = updates.first().unwrap_or(update);
        give_way(update_requests.len()).await;
        let update_request = inspect(daemon, alone, &owners, event, None);
        if let Some(key) = update_request.key.as_ref().filter(|_| !unknown.is_empty()) {
            let fields = unknown_fields(update, &format!("{message}.update")).into_iter();
            let skipped = fields.map(|field| unknown_field((id.to_owned(), field)));
            note_skipped(daemon, key, "", skipped.collect());
        }
        update_requests.push(update_request);
        places.push(place);
    }
    if !evict.is_empty() {
        let mut gone = Updates::for_stop();
        gone.answer(id, rights, &[], &evict).map_err(|e| e.to_string())?;
        let gone = gone.finish();
        ruled::note_hits(daemon, &gone.noted, event, None);
        ruled::note_dropped(daemon, &gone.dropped, event, None);
        evict::carry_out(daemon, gone.evictions, &gone.evicted_by, None).await;
    }
    slow_down(&daemon.update_backoff, &plugin.chained, &update_requests).await;
    let unmet = carry_out_all(daemon, update_requests).await;
    failed.extend(unmet.into_iter().filter_map(|index| places.get(index).copied()));
    failed.sort_unstable();
    let failed = failed.into_iter().filter_map(|place| wanted.get(place).cloned()).collect();
    Ok(api::UpdateContainersResponse { failed, ..api::UpdateContainersResponse::default() })
}

/// Logs the fields of a request that this version does not know; `status` also lists those that concern no container.
fn report_unknown(
    daemon: &Daemon,
    plugin: &ChainedPlugin,
    request: &api::UpdateContainersRequest,
    message: &str,
    unknown: &[String],
) {
    let reported = plugin.report_unknown(unknown);
    let others = api::UpdateContainersRequest {
        evict: request.evict.clone(),
        special_fields: request.special_fields.clone(),
        ..api::UpdateContainersRequest::default()
    };
    for field in unknown_fields(&others, message).iter().filter(|field| reported.contains(field)) {
        let line = unknown_field_line(plugin.id(), field);
        daemon.report.count_failure(&line, &line, plugin.id(), now());
    }
}

/// Delays the response to a plugin whose updates are all paused, so that the plugin does not repeat them at
/// once. The request may come from inside a handler, so the delay is at most half of the plugin's time-out.
async fn slow_down(backoff: &UpdateBackoff, member: &ChainedPlugin, requests: &[UpdateRequest]) {
    let id = member.id();
    let pause = |it: &UpdateRequest| Some(backoff.pause(id, &it.id)?.1);
    // No delay if any update of the request is tried.
    let all: Option<Vec<Duration>> = requests.iter().map(pause).collect();
    if let Some(longest) = all.unwrap_or_default().into_iter().max() {
        tokio::time::sleep(longest.min(MOST_SLOWED).min(member.plugin.timeout() / 2)).await;
    }
}

/// Checks one update without carrying it out.
fn inspect(
    daemon: &Daemon,
    update: &api::ContainerUpdate,
    owners: &Owners,
    event: &str,
    subject: Option<&ContainerKey>,
) -> UpdateRequest {
    let api::ContainerUpdate { container_id, linux, ignore_failure, special_fields: _ } = update;
    let owners = owners.to_flat(container_id);
    let resources = linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let part =
        resources.map(|wanted| classes::overlay_of(daemon, container_id, wanted)).transpose();
    let named = resources.map(Classes::of).unwrap_or_default();
    let key = target::find(&daemon.records, container_id, subject);
    let mut requested = PendingUpdate {
        part: Map::new(),
        blockio_class: named.blockio,
        rdt_class: named.rdt,
        owners,
        event: event.to_owned(),
    };
    let (key, found) = match (part, key) {
        (Err(error), key) => (key.ok(), Err(UpdateError::refused(quoted(&error.to_string())))),
        (Ok(_), Err(update_error)) => (None, Err(update_error)),
        (Ok(part), Ok(key)) => {
            requested.part = part.unwrap_or_default();
            let found = check_target(daemon, &key, &requested);
            (Some(key), found)
        }
    };
    let (id, ignores_failure) = (container_id.clone(), *ignore_failure);
    UpdateRequest { id, key, requested, ignores_failure, found }
}

fn check_target(
    daemon: &Daemon,
    key: &ContainerKey,
    requested: &PendingUpdate,
) -> Result<Option<(Rc<Container>, CheckedUpdate)>> {
    let record = daemon.container(key).ok_or(UpdateError::Unknown)?;
    match record.state {
        _ if record.is_sandbox => Err(UpdateError::Sandbox),
        Lifecycle::Creating => Ok(None),
        Lifecycle::Created | Lifecycle::Running => {
            let found = apply::check(daemon, &record, requested)?;
            Ok(Some((record, found)))
        }
        Lifecycle::Stopped | Lifecycle::Removed => Err(UpdateError::Gone),
    }
}

/// Carries out the updates that passed their check; returns the indexes of failed ones, except those whose failure the
/// plugins ignore.
async fn carry_out_all(daemon: &Rc<Daemon>, update_requests: Vec<UpdateRequest>) -> Vec<usize> {
    let (mut failed, mut results) = (Vec::new(), Results::default());
    for (place, mut update_request) in update_requests.into_iter().enumerate() {
        let found = std::mem::replace(&mut update_request.found, Ok(None));
        // There is one plugin, except in replies to an engine's event, where several plugins may
        // request parts of one update.
        let plugins: BTreeSet<&str> =
            update_request.requested.owners.values().map(String::as_str).collect();
        let plugin = plugins.iter().copied().collect::<Vec<_>>().join("+");
        let pause = daemon.update_backoff.pause(&plugin, &update_request.id);
        let found = match pause {
            Some((failures, left)) => Err(UpdateError::Paused(failures, left)),
            None => found,
        };
        let result = match (found, &update_request.key) {
            (Ok(found), Some(key)) => {
                if place > 0 {
                    // Other tasks run in between: a request may name thousands of containers.
                    tokio::task::yield_now().await;
                }
                apply_or_defer(daemon, key, &update_request.requested, found).await
            }
            (Ok(_), None) => Err(UpdateError::Unknown),
            (Err(update_error), _) => Err(update_error),
        };
        // A deferred update has neither succeeded nor failed yet.
        if pause.is_none() && !matches!(result, Ok(Done::Deferred)) {
            daemon.update_backoff.note(&plugin, &update_request.id, result.is_err());
        }
        results.add(&update_request.id, &update_request.requested, &result);
        let outcome = match &result {
            Ok(_) => "applied",
            Err(_) if update_request.ignores_failure => "ignored",
            Err(_) => "failed",
        };
        for plugin in plugins {
            daemon.report.metrics.plugins().count_update(plugin, outcome);
        }
        let Err(update_error) = result else { continue };
        note_unmet(daemon, &update_request, &update_error);
        if !update_request.ignores_failure {
            failed.push(place);
        }
    }
    results.send(&daemon.registry);
    failed
}

async fn apply_or_defer(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    requested: &PendingUpdate,
    found: Option<(Rc<Container>, CheckedUpdate)>,
) -> Result<Done> {
    if requested.part.is_empty() && requested.rdt_class.is_none() {
        return Ok(Done::Applied);
    }
    let record = daemon.container(key).ok_or(UpdateError::Unknown)?;
    let (state, is_starting) = (record.state, record.is_starting());
    if !is_deferred(state, is_starting, &record.pending.deferred, requested)? {
        match apply::apply(daemon, key, requested, found).await {
            Err(UpdateError::Starting) => {} // The container's start began after the check.
            applied => return applied.map(|()| Done::Applied),
        }
    }
    // Put on record, because the response to the plugin reports success.
    daemon.change(key, |record| record.pending.deferred.push(requested.clone()));
    Ok(Done::Deferred)
}

/// Whether an update must wait: for the creation, for the start, or for older updates that would
/// overwrite its values.
fn is_deferred(
    state: Lifecycle,
    is_starting: bool,
    waiting: &[PendingUpdate],
    next: &PendingUpdate,
) -> Result<bool> {
    let is_alive = matches!(state, Lifecycle::Created | Lifecycle::Running);
    let waits = state == Lifecycle::Creating || is_starting || is_alive && !waiting.is_empty();
    if !waits {
        return Ok(false);
    }
    let count = waiting.len();
    if count >= limits::DEFERRED {
        return Err(UpdateError::refused(format!(
            "{count} updates are already waiting for its creation or its start"
        )));
    }
    let bytes: usize = waiting.iter().chain([next]).map(PendingUpdate::bytes).sum();
    if bytes > limits::DEFERRED_BYTES {
        let most = limits::DEFERRED_BYTES;
        return Err(UpdateError::refused(format!(
            "with this update, {bytes} bytes of updates would wait for its creation or its start, at most \
             {most} may"
        )));
    }
    Ok(true)
}

/// Carries out the updates that were deferred until the container's creation or start had ended, even
/// if the start failed, and updates that arrive meanwhile.
pub(crate) async fn carry_out_deferred(daemon: &Rc<Daemon>, key: &ContainerKey) {
    for done in 0.. {
        let next =
            daemon.container(key).and_then(|record| record.pending.deferred.first().cloned());
        let Some(requested) = next else { return };
        let result = match done {
            ..AT_ONCE => apply::apply(daemon, key, &requested, None).await,
            _ => Err(UpdateError::Busy),
        };
        if result == Err(UpdateError::Starting) {
            return; // A start is in progress; the updates are carried out when it ends.
        }
        conclude_deferred(daemon, key, requested, result.map(|()| Done::Applied));
        daemon.change(key, |record| {
            drop(record.pending.deferred.drain(..1.min(record.pending.deferred.len())));
        });
    }
}

/// Fails the updates that waited for a creation that failed.
pub(crate) fn fail_deferred(daemon: &Daemon, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    for requested in record.pending.deferred.clone() {
        conclude_deferred(daemon, key, requested, Err(UpdateError::NotCreated));
    }
}

/// Sends plugins the result of an update that had waited, and records a failure.
fn conclude_deferred(
    daemon: &Daemon,
    key: &ContainerKey,
    requested: PendingUpdate,
    result: Result<Done>,
) {
    results::send_one(&daemon.registry, &key.id, &requested, &result);
    if let Err(update_error) = result {
        let (id, key, found) = (key.id.clone(), Some(key.clone()), Ok(None));
        let request = UpdateRequest { id, key, requested, ignores_failure: false, found };
        note_unmet(daemon, &request, &update_error);
    }
}

/// Returns the line of `explain` about a failed update, with the plugins that requested it.
fn unmet(update_request: &UpdateRequest, update_error: &UpdateError) -> Skipped {
    let plugins: BTreeSet<&str> =
        update_request.requested.owners.values().map(String::as_str).collect();
    let plugins: Vec<&str> = plugins.into_iter().collect();
    let reason =
        format!("an update requested at {} failed: {update_error}", update_request.requested.event);
    Skipped { plugin: plugins.join(","), reason }
}

/// Records in the log, in `explain` and in the audit log that an update was not carried out.
fn note_unmet(daemon: &Daemon, update_request: &UpdateRequest, update_error: &UpdateError) {
    let skipped = unmet(update_request, update_error);
    let (plugin, id) = (&skipped.plugin, &update_request.id);
    let has_line = daemon.report.few_lines.admit(FewOf::Update, plugin);
    if has_line {
        warn!(plugin, container_id = id, "{}: {plugin}: {}", quoted(id), skipped.reason);
    }
    let Some(key) = &update_request.key else {
        // The ID is not that of a single container, and a plugin may request any number of such updates.
        if has_line {
            let key = ContainerKey { root: String::new(), id: id.clone() };
            daemon.audit_skipped(&key, &update_request.requested.event, &[skipped]);
        }
        return;
    };
    note_skipped(daemon, key, "", vec![skipped]);
}

/// Returns the line of `explain` for a field that this version does not know (D23).
pub(crate) fn unknown_field((plugin, field): (String, String)) -> Skipped {
    Skipped { plugin, reason: format!("{field} is not known to this version and was not applied") }
}

/// Adds skipped values to the container's record; an identical one is listed once.
pub(crate) fn note_skipped(
    daemon: &Daemon,
    key: &ContainerKey,
    event: &str,
    mut skipped: Vec<Skipped>,
) {
    let Some(record) = daemon.container(key) else { return };
    skipped.retain(|new| {
        !record.outcome.skipped.iter().rev().take(limits::ENDS).any(|known| known == new)
    });
    if !skipped.is_empty() {
        daemon.audit_skipped(key, event, &skipped);
        daemon.change(key, |record| {
            skipped.into_iter().for_each(|new| limits::keep_ends(&mut record.outcome.skipped, new));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update_of(bytes: usize) -> PendingUpdate {
        let part = serde_json::json!({"unified": {"a": "x".repeat(bytes)}});
        PendingUpdate { part: part.as_object().cloned().unwrap(), ..Default::default() }
    }

    #[test]
    fn an_update_waits_for_creation_and_older_updates_up_to_a_limit() {
        let waiting = |count| vec![update_of(1); count];
        let is_deferred = |state, is_starting, count: usize| {
            is_deferred(state, is_starting, &waiting(count), &update_of(1))
        };
        for state in [Lifecycle::Creating, Lifecycle::Created, Lifecycle::Running] {
            let is_made = state != Lifecycle::Creating;
            assert_eq!(is_deferred(state, false, 0).ok(), Some(!is_made), "{state:?}");
            assert_eq!(is_deferred(state, true, 0).ok(), Some(true), "{state:?}");
            assert_eq!(is_deferred(state, false, 1).ok(), Some(true), "it would be overwritten");
            assert_eq!(is_deferred(state, false, limits::DEFERRED - 1).ok(), Some(true));
            let Err(UpdateError::Refused(why)) = is_deferred(state, false, limits::DEFERRED) else {
                panic!("{state:?}")
            };
            let why = why.to_string();
            assert!(why.contains("200 updates are already waiting"), "{why}");
        }
        assert_eq!(is_deferred(Lifecycle::Stopped, false, limits::DEFERRED).ok(), Some(false));
    }

    #[test]
    fn waiting_updates_are_bounded_in_bytes() {
        let around = update_of(0).bytes();
        let half = limits::DEFERRED_BYTES / 2;
        for (next, is_taken) in [(half, true), (half + 1, false), (8 * half, false)] {
            let waiting = [update_of(half - around)];
            let next = update_of(next - around);
            let taken = is_deferred(Lifecycle::Creating, false, &waiting, &next);
            assert_eq!(taken.is_ok(), is_taken, "{taken:?}");
            let at_once = is_deferred(Lifecycle::Running, false, &[], &next);
            assert_eq!(at_once.ok(), Some(false), "it does not wait");
        }
    }
}
