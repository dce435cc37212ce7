// SPDX-License-Identifier: Apache-2.0
//! `update`, as the daemon lives it (decision D21): what the engine really changes is offered to
//! the plugins, and what the runtime gets is the engine's word with everything that plugins own
//! laid over it. kubelet's CPU manager repeats every cpuset every ten seconds; without this it
//! would undo a plugin's within seconds.
//!
//! A refusal changes nothing. No lock is held while plugins are asked; from their answer to the
//! end of the runtime nobody else writes this container's resources.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::OwnedMutexGuard;

use crate::adaptation::Updated;
use crate::argv::{self, Verb};
use crate::chain::{self, ChainError};
use crate::describe;
use crate::error::{Context, Error, Result, quoted};
use crate::host::Point;
use crate::link::{Attached, Proceed};
use crate::plugin::{Event, api};
use crate::runtime::RuntimeKind;
use crate::spec::overlay::{self, UpdateOutcome};
use crate::spec::{flags, owned};
use crate::state::{Change, Container, Key, Updating, Wish};

use crate::daemon::node::messages;
use crate::daemon::node::{Node, Pending, log_failure, now};
use crate::daemon::registry::relay::Skips;
use crate::daemon::request::call::Call;
use crate::daemon::resources::apply;
use crate::daemon::resources::apply::{RefusedField, Unmet};
use crate::daemon::resources::classes::{self, Classes};
use crate::daemon::resources::updates;
use crate::daemon::runtime::state_dir;
use crate::daemon::runtime::state_dir::Stamp;

/// A block of OCI resources.
pub(crate) type Block = Map<String, Value>;

/// The most that is read of a request, in bytes.
const LIMIT: u64 = 16 << 20;

/// How long an update waits for another one of the same container: less than the wrapper's
/// patience (D8).
const PATIENCE: Duration = Duration::from_secs(20);

/// How many refusals of one container are remembered.
const REFUSALS: usize = 20;

/// What holds once the runtime took an update, and the right to write meanwhile.
#[derive(Debug)]
pub(crate) struct Holds {
    engine: Block,
    overlay: Block,
    owners: BTreeMap<String, String>,
    changes: Vec<Change>,
    classes: Classes,
    /// Whether plugins were asked, and so hear of its success.
    is_told: bool,
    _writing: OwnedMutexGuard<()>,
}

/// What the plugins answered about the updated container itself.
#[derive(Debug, Default)]
struct Answer {
    /// What they own from now on.
    part: Block,
    owners: BTreeMap<String, String>,
    classes: Classes,
    is_told: bool,
}

/// Decides an `update`; the second value holds once the runtime took it.
pub(crate) async fn update(node: &Rc<Node>, call: &mut Call) -> Result<(Proceed, Option<Holds>)> {
    let Some(record) = node.container(&call.key) else { return Ok((Proceed::default(), None)) };
    if record.is_sandbox {
        return Ok((Proceed::default(), None));
    }
    let bytes = call.asked.take(Attached::Resources).map(read).transpose();
    let Some(request) = request(call, bytes.doing(|| "reading the requested resources")?)? else {
        return Ok((Proceed::default(), None));
    };
    let delta = overlay::delta(&request, &record.engine_resources);
    // An engine that only repeats itself asks for nothing.
    let refuse = |error: &Error| note_refusal(node, &call.key, error);
    let answer = if delta.is_empty() {
        Answer::default()
    } else {
        ask(node, &record, &delta).await.inspect_err(refuse)?
    };
    let lane = node.lane(&call.key);
    let writing = tokio::time::timeout(PATIENCE, std::sync::Arc::clone(&lane.writing).lock_owned())
        .await
        .map_err(|_late| {
            Error::new("another update of this container takes too long")
                .hint("nothing was changed")
        })?;
    // Only now: whoever wrote while the plugins were asked has changed the record.
    let Some(record) = node.container(&call.key) else { return Ok((Proceed::default(), None)) };
    let merged = merge(&record, &request, &answer).inspect_err(refuse)?;
    let is_ours = !record.overlay.is_empty() || !answer.part.is_empty();
    let proceed = if is_ours {
        proceed(call, &merged.to_runtime)?
    } else {
        Proceed::default() // No plugin owns anything: the engine's words pass as they are.
    };
    let mut changes = changes(&record, &merged, &answer.part, &answer.owners);
    let known = Classes::of(&messages::resources(&record)).rdt;
    let (name, classes) = (Event::UpdateContainer.name(), answer.classes);
    changes.extend(classes::change(known, classes.rdt.as_ref(), name, &answer.owners));
    let UpdateOutcome { to_runtime: _, engine, overlay } = merged;
    let (is_told, mut owners) = (answer.is_told, record.owners.clone());
    owned::retain(&mut owners, &overlay);
    owners.extend(answer.owners);
    let holds = Holds { engine, overlay, owners, changes, classes, is_told, _writing: writing };
    remember(node, call.question().pid, &record, &holds);
    Ok((proceed, Some(holds)))
}

/// For `explain`. An engine may ask for the same every ten seconds: that is said once.
fn note_refusal(node: &Node, key: &Key, error: &Error) {
    let why = error.to_string();
    let Some(record) = node.container(key).filter(|record| record.refused.last() != Some(&why))
    else {
        return;
    };
    let too_many = (record.refused.len() + 1).saturating_sub(REFUSALS);
    node.change(key, |record| {
        record.refused.drain(..too_many);
        record.refuse(why, now());
    });
}

/// On record before the runtime runs: a daemon that dies meanwhile leaves the next one to see
/// whether it holds.
fn remember(node: &Node, pid: u32, record: &Container, holds: &Holds) {
    let Holds { engine, overlay, owners, changes, classes, is_told: _, _writing } = holds;
    if *engine == record.engine_resources && *overlay == record.overlay {
        return;
    }
    let stamp = state_dir::state_stamp(&node.host, &record.key);
    let updating = Updating {
        pid,
        state_before: stamp.map(|Stamp(inode, seconds, nanoseconds)| (inode, seconds, nanoseconds)),
        engine: engine.clone(),
        overlay: overlay.clone(),
        owners: owners.clone(),
        changes: changes.clone(),
        classes: (classes.blockio.clone(), classes.rdt.clone()),
    };
    node.change(&record.key, |record| record.updating = Some(updating));
}

/// An update that was under way when the last daemon died; plugins were not synchronized since.
pub(crate) async fn resume(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    let Some(updating) = record.updating.clone() else { return };
    let Updating { pid, state_before, engine, overlay, owners, changes, classes } = updating;
    let (blockio, rdt) = classes;
    let classes = Classes { blockio, rdt };
    let lane = node.lane(key);
    let writing = std::sync::Arc::clone(&lane.writing).lock_owned().await;
    let holds =
        Holds { engine, overlay, owners, changes, classes, is_told: false, _writing: writing };
    let before = state_before.map(|(a, b, c)| Stamp(a, b, c));
    match crate::daemon::recovery::catch_up::process_of(node, key, pid) {
        Some(process) => {
            let mut pending = crate::daemon::recovery::catch_up::pending(
                node,
                &record,
                (Verb::Update, pid),
                process,
            );
            pending.state_before = before;
            pending.holds = Some(holds).into();
            crate::daemon::lifecycle::settle::watch(node, key, &lane, Rc::new(pending));
        }
        None => {
            conclude(node, &record, before, holds);
        }
    }
}

/// An update went past us: the engine has its own say, and what plugins own is written again.
pub(crate) fn went_past(node: &Rc<Node>, call: &mut Call, bytes: Option<Vec<u8>>) -> Result<()> {
    let (key, pid) = (call.key.clone(), call.question().pid);
    let request = request(call, bytes)?.unwrap_or_default();
    node.change(&key, |record| {
        record.updating = record.updating.take().filter(|updating| updating.pid != pid);
        overlay::put_over(&mut record.engine_resources, &request);
        let in_force = updates::in_force(record);
        record.message = messages::with_resources(&record.message, &in_force, &Classes::default());
    });
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        if let Some(process) = crate::daemon::recovery::catch_up::process_of(&node, &key, pid) {
            crate::daemon::watch::pidfd::ended(&process).await;
        }
        crate::daemon::recovery::bypassed::hold_again(&node, &key).await;
    });
    Ok(())
}

/// UpdateContainer through the chain; updates of other containers are carried out.
async fn ask(node: &Rc<Node>, record: &Container, delta: &Block) -> Result<Answer> {
    let key = &record.key;
    node.plugins_are_back().await;
    let Some(told) = node.told(Event::UpdateContainer, key) else { return Ok(Answer::default()) };
    let audience = node.relay.audience(&told);
    let request = api::UpdateContainerRequest {
        pod: Some(told.pod).into(),
        container: told.container.into(),
        linux_resources: Some(describe::resources_from_json(delta)).into(),
        ..api::UpdateContainerRequest::default()
    };
    node.relay.recorders.request(Event::UpdateContainer, &request);
    let skips = Skips::default();
    let asked = chain::update(&audience, request, &skips).await;
    let skipped = skips.0.into_inner();
    if !skipped.is_empty() {
        node.change(key, |record| record.skipped.extend(skipped));
    }
    let updated = match asked {
        Ok(updated) => updated,
        Err(ChainError { failure, asked: _ }) => {
            let why = quoted(&failure.text);
            return Err(Error::new(why).hint("its resources are unchanged").by(failure.plugin));
        }
    };
    let answer = own(node, record, &updated)?;
    updates::carry_out(node, updated, Event::UpdateContainer.name(), key).await;
    Ok(Answer { is_told: true, ..answer })
}

/// The plugins' part of the update of the container itself.
fn own(node: &Node, record: &Container, updated: &Updated) -> Result<Answer> {
    let key = &record.key;
    let owners = updated.owners.to_flat(&key.id);
    let own = updated.updates.iter().find(|update| update.container_id == key.id);
    let resources = own.and_then(|update| update.linux.as_ref()?.resources.as_ref());
    let Some(resources) = resources else { return Ok(Answer::default()) };
    let wanted = classes::overlay_of(node, &key.id, resources).map_err(|error| {
        let owner = error.field().and_then(|field| owners.get(field));
        let text = owner.map_or_else(|| error.to_string(), |owner| format!("{owner}: {error}"));
        Error::new(quoted(&text)).hint("its resources are unchanged")
    })?;
    let part = owned::part(&wanted, &owners);
    let classes = Classes::of(resources);
    let wish = Wish {
        part: part.clone(),
        blockio_class: classes.blockio.clone(),
        rdt_class: classes.rdt.clone(),
        ..Wish::default()
    };
    if let Err(Unmet::Refused(refusal)) = apply::check(node, record, &wish) {
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
    Ok(Answer { part, owners, classes, is_told: true })
}

/// The engine's word, over it what plugins own of old, over it what they answered now.
fn merge(record: &Container, request: &Block, answer: &Answer) -> Result<UpdateOutcome> {
    // crun applies the device rules that it finds, and only those.
    let is_crun = RuntimeKind::of_program(&record.runtime) == RuntimeKind::Crun;
    let strips_devices = is_crun && !answer.part.contains_key("devices");
    let engine = &record.engine_resources;
    let mut merged = overlay::merge_update(engine, &record.overlay, request, strips_devices);
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

/// The runtime gets a document of ours, by standard input.
fn proceed(call: &Call, resources: &Block) -> Result<Proceed> {
    let stdin =
        serde_json::to_vec(resources).map_err(|error| Error::new(quoted(&error.to_string())))?;
    let by_stdin = call.call.resources.as_ref().is_some_and(|r| r.value == "-")
        && call.call.resource_flags.is_empty();
    let argv = (!by_stdin).then(|| argv::for_update_by_stdin(&call.question().argv, &call.call));
    Ok(Proceed { stdin: Some(stdin), argv, document: None })
}

/// What `explain` tells of it: fields that plugins set, and those that the engine took back.
fn changes(
    record: &Container,
    merged: &UpdateOutcome,
    part: &Block,
    owners: &BTreeMap<String, String>,
) -> Vec<Change> {
    let (before, at) = (owned::values(&updates::in_force(record)), now());
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
        change("UpdateContainer", owner, &field.path, field.value.clone())
    });
    let released = owned::fields(&record.overlay).into_iter().filter_map(|field| {
        let is_kept = kept.contains_key(&field.path);
        let after = given.get(&field.path).cloned().unwrap_or_default();
        (!is_kept).then(|| change("update by the engine", "", &field.path, after))
    });
    set.chain(released).collect()
}

/// What the engine asks for, from standard input, a file, or flags; `None` when it cannot be
/// understood, so that the runtime says what is wrong with it.
fn request(call: &Call, bytes: Option<Vec<u8>>) -> Result<Option<Block>> {
    let words: Vec<(&str, String)> = call
        .call
        .resource_flags
        .iter()
        .map(|flag| (flag.name, flag.value.to_string_lossy().into_owned()))
        .collect();
    let pairs: Vec<(&str, &str)> =
        words.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let Ok(mut request) = flags::resources_from_flags(&pairs) else { return Ok(None) };
    let Some(bytes) = bytes else {
        return Ok(call.call.resources.is_none().then_some(request));
    };
    // The runtime takes the first JSON value and ignores the rest.
    let mut values = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    let Some(Ok(Value::Object(block))) = values.next() else { return Ok(None) };
    // runc: a file or standard input replaces all flags but those of RDT.
    request = block;
    Ok(Some(request))
}

fn read(fd: OwnedFd) -> Result<Vec<u8>> {
    let mut file = std::fs::File::from(fd);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The runtime of an `update` has ended: if it took the update, its values hold from now on.
/// A replaced state file says so. crun keeps none; there the cgroup files tell. The second call
/// does nothing.
pub(crate) fn note_outcome(node: &Rc<Node>, key: &Key, pending: &Pending) {
    let Some(holds) = pending.holds.borrow_mut().take() else { return };
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation {
        return;
    }
    pending.is_told.set(conclude(node, &record, pending.state_before, holds));
}

/// Returns whether plugins are to hear of it.
fn conclude(node: &Rc<Node>, record: &Container, before: Option<Stamp>, holds: Holds) -> bool {
    let key = &record.key;
    let after = state_dir::state_stamp(&node.host, key);
    let is_replaced = after.is_some() && after != before;
    let mut tried = holds.engine.clone();
    overlay::put_over(&mut tried, &holds.overlay);
    let is_crun = RuntimeKind::of_program(&record.runtime) == RuntimeKind::Crun;
    let is_taken = is_replaced || (is_crun && apply::has_taken(node, record, &tried));
    if !is_taken {
        // Both write file by file, and do not put back what they wrote before they failed.
        apply::restore(node, record, &tried);
        if record.updating.is_some() {
            node.change(key, |record| record.updating = None);
        }
        return false;
    }
    log_failure("recording an update", node.host.point(Point::DaemonUpdated));
    let Holds { engine, overlay, owners, changes, classes, is_told, _writing } = holds;
    node.change(key, |record| {
        record.engine_resources = engine;
        record.overlay = overlay;
        record.owners = owners;
        record.updating = None;
        updates::note_changes(record, changes);
        record.message =
            messages::with_resources(&record.message, &updates::in_force(record), &classes);
    });
    apply::rewrite_ignored(node, key);
    is_told
}

/// Tells those who were asked that the update was done.
pub(crate) async fn settle(node: &Rc<Node>, key: &Key, pending: &Pending) {
    note_outcome(node, key, pending);
    if pending.is_told.take() {
        node.tell(Event::PostUpdateContainer, key).await;
    }
}
