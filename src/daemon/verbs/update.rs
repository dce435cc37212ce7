// SPDX-License-Identifier: Apache-2.0
//! Decides `update` (decisions D21, D66): plugins are asked about the values that the engine changes, and the runtime
//! receives the engine's values overlaid with those that plugins and injections own. kubelet's CPU manager repeats
//! every cpuset every ten seconds, and would otherwise revert a plugin's cpuset within seconds. But a person may also
//! request the engine's values again. So if plugins own values, plugins are asked about a repetition too, as with an
//! engine's own NRI; values that they do not set again stay theirs.
//!
//! A refusal changes nothing of this container. The turn to write is not held while plugins are asked;
//! afterwards it is, until the runtime has exited, so that no other request writes this container's resources.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nri_adaptation::Updated;
use serde_json::Value;

use crate::argv;
use crate::chain::{self, ChainError, RuleScope};
use crate::clock::now;
use crate::daemon::registry::Skips;
use crate::daemon::request::{VerbRequest, resources as requests};
use crate::daemon::resources::error::{RefusedField, UpdateError};
use crate::daemon::resources::ignored::{ignored, leave_out_idle};
use crate::daemon::resources::in_force::{Block, in_force};
use crate::daemon::resources::{apply, classes, target, updates};
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::lane::ProposedUpdate;
use crate::daemon::shared::messages::{self, Classes};
use crate::describe;
use crate::error::{Context, Error, Result, quoted};
use crate::link::{Attached, Proceed};
use crate::plugin::{Event, api};
use crate::presence::IfThere;
use crate::runtime::RuntimeKind;
use crate::spec::overlay::{self, UpdateOutcome};
use crate::spec::owned;
use crate::state::{Change, Container, ContainerKey, PendingUpdate, RepeatedValue, Updating};

/// Longest wait of an update for another writer of the same container's resources: less than the wrapper's
/// time-out (D8).
const WRITE_WAIT: Duration = Duration::from_secs(20);

/// The plugins' replies for the updated container itself.
#[derive(Debug, Default)]
struct AnsweredUpdate {
    /// The values that the plugins own from now on.
    part: Block,
    owners: BTreeMap<String, String>,
    classes: Classes,
    is_told: bool,
}

/// Decides an `update`. The second value takes effect once the runtime has accepted the update.
pub(crate) async fn update(
    daemon: &Rc<Daemon>,
    call: &mut VerbRequest,
) -> Result<(Proceed, Option<ProposedUpdate>)> {
    let Some(record) = daemon.container(&call.key) else { return Ok((Proceed::default(), None)) };
    if record.is_sandbox {
        return Ok((Proceed::default(), None));
    }
    let bytes = call.received.take(Attached::Resources).map(requests::read).transpose();
    let bytes = bytes.doing(|| "reading the requested resources")?;
    let Some(request) = requests::requested(call, bytes, &record.call.runtime)? else {
        return Ok((Proceed::default(), None));
    };
    let refuse = |error: &Error| note_refusal(daemon, &call.key, error);
    let answer = match EnginesQuestion::of(&record, &request) {
        Some(question) => ask(daemon, &record, question).await.inspect_err(refuse)?,
        None => AnsweredUpdate::default(),
    };
    let lane = daemon.lane(&call.key);
    let writing = tokio::time::timeout(WRITE_WAIT, Arc::clone(&lane.writing).lock_owned())
        .await
        .map_err(|_late| {
            Error::new("another update of this container takes too long")
                .hint("its resources are unchanged")
        })?;
    // Another update may have changed the record while plugins were asked.
    let Some(record) = daemon.container(&call.key) else { return Ok((Proceed::default(), None)) };
    let mut merged = merge(&record, &request, &answer).inspect_err(refuse)?;
    leave_out_idle(&daemon.host, &mut merged.to_runtime, &merged.engine);
    let is_plugin_owned = !record.resources.overlay.is_empty() || !answer.part.is_empty();
    let proceed = if is_plugin_owned {
        proceed(call, &merged.to_runtime)?
    } else {
        Proceed::default() // No plugin owns a value, so the engine's request is passed on unchanged.
    };
    let mut changes = changes(&record, &merged, &answer.part, &answer.owners);
    let known = Classes::of(&messages::resources(&record)).rdt;
    let (name, classes) = (Event::UpdateContainer.name(), answer.classes);
    changes.extend(classes::change(known, classes.rdt.as_ref(), name, &answer.owners));
    let UpdateOutcome { to_runtime: _, engine, overlay } = merged;
    let (is_told, mut owners) = (answer.is_told, record.resources.owners.clone());
    owned::retain(&mut owners, &overlay);
    owners.extend(answer.owners.clone());
    let answered = answer.owners;
    let repeated = repeated(&request, &overlay, &answer.part, &owners);
    let proposed = ProposedUpdate {
        engine,
        overlay,
        owners,
        answered,
        changes,
        repeated,
        classes,
        is_told,
        writing,
    };
    remember(daemon, call.question().pid, &record, &proposed);
    Ok((proceed, Some(proposed)))
}

/// The question to plugins about an engine's update.
enum EnginesQuestion {
    /// The engine changes these values.
    Changed(Block),
    /// The engine repeats its values, and plugins own some of them (D66).
    Repeated(Block),
}

impl EnginesQuestion {
    /// Returns `None` if the engine repeats its values and no plugin owns any.
    fn of(record: &Container, request: &Block) -> Option<Self> {
        let engine = record.resources.of_engine.map();
        let delta = overlay::delta(request, &engine);
        if !delta.is_empty() {
            return Some(Self::Changed(overlay::with_period(delta, request)));
        }
        let repeated = || Self::Repeated(overlay::repeated(&engine));
        (!record.resources.overlay.is_empty()).then(repeated)
    }

    fn resources(&self) -> api::LinuxResources {
        let (Self::Changed(block) | Self::Repeated(block)) = self;
        describe::resources_from_json(block)
    }
}

/// Returns the requested values that do not take effect, because a plugin owns the field and no plugin has
/// set it this time.
fn repeated(
    request: &Block,
    overlay: &Block,
    answered: &Block,
    owners: &BTreeMap<String, String>,
) -> Vec<RepeatedValue> {
    let answered = owned::values(answered);
    let at = now();
    let all = overlay::not_in_force(request, overlay).into_iter();
    let repeated = all.filter(|(member, _)| !answered.contains_key(&member.path));
    let repeated = repeated.map(|(member, engine)| RepeatedValue {
        at,
        plugin: owned::owner(&member, overlay, owners).unwrap_or_default().to_owned(),
        field: member.path,
        engine,
    });
    repeated.collect()
}

/// Records a refusal for `explain`, once: an engine may repeat a request every ten seconds.
fn note_refusal(daemon: &Daemon, key: &ContainerKey, error: &Error) {
    let why = error.to_string();
    let is_news = |record: &Rc<Container>| record.outcome.refused.last() != Some(&why);
    if !daemon.container(key).as_ref().is_some_and(is_news) {
        return;
    }
    daemon.change(key, |record| record.refuse(why, now()));
}

/// Records the update before the runtime runs: if this daemon dies meanwhile, the next daemon
/// checks whether the runtime accepted it.
fn remember(daemon: &Daemon, pid: u32, record: &Container, proposed: &ProposedUpdate) {
    let ProposedUpdate { engine, overlay, owners, changes, classes, .. } = proposed;
    if *engine == record.resources.of_engine.map() && *overlay == record.resources.overlay {
        return;
    }
    // Without the stamp, the next daemon compares the cgroup files.
    let stamp = state_dir::state_stamp(&daemon.host, &record.key).or_absent().flatten();
    let updating = Updating {
        pid,
        state_before: stamp.map(|Stamp(inode, seconds, nanoseconds)| (inode, seconds, nanoseconds)),
        engine: engine.clone(),
        overlay: overlay.clone(),
        owners: owners.clone(),
        changes: changes.clone(),
        classes: (classes.blockio.clone(), classes.rdt.clone()),
    };
    daemon.change(&record.key, |record| record.pending.updating = Some(Box::new(updating)));
}

/// Sends UpdateContainer through the chain, and carries out the updates of other containers in the replies.
async fn ask(
    daemon: &Rc<Daemon>,
    record: &Container,
    question: EnginesQuestion,
) -> Result<AnsweredUpdate> {
    let key = &record.key;
    daemon.registry.wait_for_returning().await;
    let Some(notification) = daemon.notification(Event::UpdateContainer, key) else {
        return Ok(AnsweredUpdate::default());
    };
    let subscribers = daemon.registry.record_and_select(&notification);
    let (rules, pod) = (daemon.registry.rules(), notification.ruled_pod());
    let request = api::UpdateContainerRequest {
        pod: Some(notification.pod).into(),
        container: notification.container.map(Arc::unwrap_or_clone).into(),
        linux_resources: Some(question.resources()).into(),
        ..api::UpdateContainerRequest::default()
    };
    daemon.registry.recorders.record_request(Event::UpdateContainer.name(), &request, None);
    let skips = Skips::default();
    let pods = target::KnownPods { daemon, subject: Some(key) };
    let scope = RuleScope { rules: &rules, subject: Some((&key.id, &pod)), pods: &pods };
    let asked = chain::update(&subscribers, request, scope, &skips).await;
    // A skipped plugin is listed once, because kubelet repeats its request every ten seconds.
    updates::note_skipped(daemon, key, Event::UpdateContainer.name(), skips.0.into_inner());
    let updated = match asked {
        Ok(updated) => updated,
        Err(ChainError { failure, asked: _ }) => {
            if let Some(note) = &failure.against {
                daemon.report.metrics.plugins().count_rule(&note.rule, "refused");
            }
            return Err(failure.into_error().hint("its resources are unchanged"));
        }
    };
    let answer = own(daemon, record, &question, &updated)?;
    updates::carry_out(daemon, updated, Event::UpdateContainer, key).await;
    Ok(AnsweredUpdate { is_told: true, ..answer })
}

/// Returns the plugins' part of the update of the container itself.
fn own(
    daemon: &Daemon,
    record: &Container,
    question: &EnginesQuestion,
    updated: &Updated,
) -> Result<AnsweredUpdate> {
    let key = &record.key;
    let owners = updated.owners.to_flat(&key.id);
    let own = updated.updates.iter().find(|update| update.container_id == key.id);
    let resources = match question {
        EnginesQuestion::Changed(_) => {
            own.and_then(|update| update.linux.as_ref()?.resources.as_ref())
        }
        // Only the values of this reply: if a plugin's memory limit were combined with the engine's
        // old values, the swap limit would stay unchanged.
        EnginesQuestion::Repeated(_) => updated.answered.as_ref(),
    };
    let Some(resources) = resources else { return Ok(AnsweredUpdate::default()) };
    let wanted = classes::overlay_of(daemon, &key.id, resources).map_err(|error| {
        let owner = error.field().and_then(|field| owners.get(field));
        let text = owner.map_or_else(|| error.to_string(), |owner| format!("{owner}: {error}"));
        Error::new(quoted(&text)).hint("its resources are unchanged")
    })?;
    let part = owned::part(&wanted, &owners);
    let classes = Classes::of(resources);
    let requested = PendingUpdate {
        part: part.clone(),
        blockio_class: classes.blockio.clone(),
        rdt_class: classes.rdt.clone(),
        ..PendingUpdate::default()
    };
    if let Err(UpdateError::Refused(refusal)) = apply::check(daemon, record, &requested) {
        let owner = match &refusal.field {
            Some(RefusedField::Path(path)) => owned::fields(&part)
                .into_iter()
                .find(|field| field.path == *path)
                .and_then(|field| owned::owner(&field, &part, &owners)),
            Some(RefusedField::Class(name)) => owners.get(*name).map(String::as_str),
            None => None,
        };
        let why = refusal.to_string();
        let why = owner.map_or_else(|| why.clone(), |owner| format!("{owner}: {why}"));
        return Err(Error::new(quoted(&why)).hint("its resources are unchanged"));
    }
    Ok(AnsweredUpdate { part, owners, classes, is_told: true })
}

/// Overlays the engine's values with the plugins' earlier values, and those with the plugins'
/// current replies. Fails if memory with swap is then below memory alone.
fn merge(record: &Container, request: &Block, answer: &AnsweredUpdate) -> Result<UpdateOutcome> {
    // crun applies exactly the device rules that it receives, and drops all others.
    let is_crun = RuntimeKind::of_program(&record.call.runtime) == RuntimeKind::Crun;
    let strips_devices = is_crun && !answer.part.contains_key("devices");
    let engine = record.resources.of_engine.map();
    let mut merged =
        overlay::merge_update(&engine, &record.resources.overlay, request, strips_devices);
    // The engine cannot reset values that the runtime's update does not apply, so the plugins'
    // values stay in force.
    let unheeded = ignored(record, &record.resources.overlay);
    overlay::put_over(&mut merged.overlay, &unheeded);
    overlay::put_over(&mut merged.to_runtime, &unheeded);
    overlay::put_over(&mut merged.overlay, &answer.part);
    overlay::put_over(&mut merged.to_runtime, &answer.part);
    let number = |key| merged.to_runtime.get("memory")?.get(key)?.as_i64();
    if let (Some(limit), Some(swap)) = (number("limit"), number("swap"))
        && answer.part.contains_key("memory")
        && (1..limit).contains(&swap)
    {
        let names = ["MemSwapLimit", "MemLimit"];
        let owner = names.iter().find_map(|name| answer.owners.get(*name));
        let owner = owner.map(String::as_str).unwrap_or_default();
        let why = format!("{owner}: memory with swap, {swap}, is below memory alone, {limit}");
        return Err(Error::new(why).hint("its resources are unchanged"));
    }
    Ok(merged)
}

/// Passes the complete resources to the runtime on standard input.
fn proceed(call: &VerbRequest, resources: &Block) -> Result<Proceed> {
    let stdin =
        serde_json::to_vec(resources).map_err(|error| Error::new(quoted(&error.to_string())))?;
    let by_stdin = call.command_line.resources.as_ref().is_some_and(|r| r.value == "-")
        && call.command_line.resource_flags.is_empty();
    let argv =
        (!by_stdin).then(|| argv::for_update_by_stdin(&call.question().argv, &call.command_line));
    Ok(Proceed { stdin: Some(stdin), argv, document: None })
}

/// Returns the changes for `explain`: fields that plugins set, and fields that the engine took back.
fn changes(
    record: &Container,
    merged: &UpdateOutcome,
    part: &Block,
    owners: &BTreeMap<String, String>,
) -> Vec<Change> {
    let (before, at) = (owned::values(&in_force(record)), now());
    let kept = owned::values(&merged.overlay);
    let given = owned::values(&merged.to_runtime);
    let change = |event: &str, plugin: &str, path: &str, after: Value| Change {
        at,
        event: event.to_owned(),
        plugin: plugin.to_owned(),
        field: format!("linux.resources.{path}"),
        before: before.get(path).cloned().unwrap_or_default(),
        after,
    };
    let set = owned::fields(part).into_iter().map(|field| {
        let owner = owned::owner(&field, part, owners).unwrap_or_default();
        change(Event::UpdateContainer.name(), owner, &field.path, field.value.clone())
    });
    let released = owned::fields(&record.resources.overlay).into_iter().filter_map(|field| {
        let is_kept = kept.contains_key(&field.path);
        let after = given.get(&field.path).cloned().unwrap_or_default();
        (!is_kept).then(|| change("update by the engine", "", &field.path, after))
    });
    set.chain(released).collect()
}
