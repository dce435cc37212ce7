// SPDX-License-Identifier: Apache-2.0
//! Calls that wrappers ran without a daemon, where the policy was to continue (decision D9): each
//! left a note with its request. The daemon records each container that was made so and still
//! exists, so that plugins see it when they are synchronized and receive its events from then on.
//!
//! No plugin is asked about such a call and no change is made: the runtime has long run.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::argv::Verb;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{removal, state};
use crate::daemon::node::Node;
use crate::daemon::node::messages::{self, Classes};
use crate::daemon::pods::{life, resized};
use crate::daemon::recovery::{catch_up, notes, refusals};
use crate::daemon::request::describe::describe;
use crate::daemon::request::record::new_record;
use crate::daemon::request::resources::requested;
use crate::daemon::request::{ReceivedQuestion, VerbRequest};
use crate::daemon::resources::in_force::in_force;
use crate::daemon::resources::{apply, updates};
use crate::daemon::runtime::state_dir;
use crate::daemon::watch::folders::WatchedFolder;
use crate::daemon::watch::pidfd;
use crate::error::Result;
use crate::files;
use crate::link::{BYPASSED_DIR, REFUSED_DIR, WrapperRequest};
use crate::plugin::Event;
use crate::spec::overlay;
use crate::state::{Container, ContainerKey, Lifecycle, PodState, Skipped};

/// How long a runtime's `delete` is followed; after that its PID may be another process's.
const DELETION: Duration = Duration::from_secs(60);

/// The note of a wrapper that bypassed the daemon.
#[derive(Deserialize)]
struct BypassNote {
    verb: String,
    id: Option<String>,
    why: String,
    /// The frame of its request.
    #[serde(default)]
    question: Vec<u8>,
    /// The resources that an `update` requested.
    #[serde(default)]
    resources: Option<Vec<u8>>,
}

impl BypassNote {
    /// The request; `None` when it cannot be decoded.
    fn call(&self) -> Option<VerbRequest> {
        let question = WrapperRequest::decode(self.question.get(4..).unwrap_or_default()).ok()?;
        VerbRequest::new(ReceivedQuestion::alone(question))
    }
}

/// Takes over all calls that bypassed the daemon, oldest first; before any plugin registers.
pub(crate) async fn adopt(node: &Rc<Node>) {
    refusals::take_up(node);
    for path in notes(node) {
        take_up(node, &path, None).await;
    }
}

/// Takes over calls that bypass the daemon from now on: of wrappers that got no answer from it, or
/// from its predecessor.
pub(crate) fn follow(node: &Rc<Node>) -> Option<JoinHandle<()>> {
    let mut bypassed = watch_notes(node, &folder(node))?;
    let mut refused = watch_notes(node, &node.config().run_dir.join(REFUSED_DIR))?;
    let node = Rc::clone(node);
    Some(tokio::task::spawn_local(async move {
        loop {
            refusals::take_up(&node);
            for path in notes(&node) {
                let Some(call) = read(&path).and_then(|note| note.call()) else {
                    take_up(&node, &path, None).await;
                    continue;
                };
                let lane = node.lane(&call.key);
                let _turn = lane.turn.lock().await;
                take_up(&node, &path, Some(&call.key)).await;
            }
            let is_watched = tokio::select! {
                is_watched = bypassed.next_arrival() => is_watched,
                is_watched = refused.next_arrival() => is_watched,
            };
            if !is_watched {
                // Another folder may be at the path by now.
                let config = node.config().run_dir.clone();
                let Some(again) = watch_notes(&node, &folder(&node)) else { return };
                let Some(refusals) = watch_notes(&node, &config.join(REFUSED_DIR)) else { return };
                (bypassed, refused) = (again, refusals);
            }
        }
    }))
}

/// Takes over calls about this container that bypassed the daemon; the caller holds its lane.
/// Returns whether there was one.
pub(crate) async fn take_up_of(node: &Rc<Node>, key: &ContainerKey) -> bool {
    let mut has_any = false;
    for path in notes(node) {
        let call = read(&path).and_then(|note| note.call());
        if call.is_some_and(|call| call.key == *key) {
            take_up(node, &path, Some(key)).await;
            has_any = true;
        }
    }
    has_any
}

fn folder(node: &Node) -> PathBuf {
    node.config().run_dir.join(BYPASSED_DIR)
}

/// Watches a folder of notes, which is created if it does not exist.
fn watch_notes(node: &Node, folder: &Path) -> Option<WatchedFolder> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
    node.watches.folders.watch(folder)
}

fn notes(node: &Node) -> Vec<PathBuf> {
    notes::notes_in(&folder(node))
}

fn read(path: &Path) -> Option<BypassNote> {
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
}

/// Takes up one note, unless another task was faster. `key`: plugins may be registered already.
async fn take_up(node: &Rc<Node>, path: &Path, key: Option<&ContainerKey>) {
    if !path.exists() {
        return;
    }
    match read(path) {
        Some(note) => take_over(node, &note, key).await,
        None => warn!("{} cannot be read and is dropped", path.display()),
    }
    // Not before: a daemon that dies meanwhile must find the note again.
    let _taken = std::fs::remove_file(path);
}

async fn take_over(node: &Rc<Node>, note: &BypassNote, key: Option<&ContainerKey>) {
    let (verb, id) = (&note.verb, note.id.as_deref().unwrap_or_default());
    warn!("{verb} {id} ran without plugins: {}", note.why);
    node.report.count("bypassed");
    node.report.metrics.count_request(verb, "bypassed");
    if let Err(error) = adopt_call(node, note).await {
        warn!("{id} cannot be taken over: {error}");
    }
    if let Some(key) = key {
        announce(node, key).await;
    }
}

/// Notifies plugins that are registered already, as of any new container; their replies come too
/// late to be applied. Then watches the container.
async fn announce(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    catch_up::catch_up(node, key).await;
    catch_up::learn_process(node, key).await;
    if !state_dir::exists(&node.host, key) && catch_up::under_way(node, &record).is_empty() {
        return removal::deleted(node, key).await;
    }
    let Some(record) = node.container(key) else { return };
    let is_ready = node.records.read().pod(&record.pod).map(|pod| pod.state);
    if is_ready == Some(PodState::Ready)
        && let Some(notification) = node.pod_notification(Event::RunPodSandbox, &record.pod)
    {
        node.registry.notify_late(&notification).await;
        resized::follow(node, &record.pod);
    }
    if !record.is_sandbox
        && let Some(notification) = node.notification(Event::CreateContainer, key)
    {
        node.registry.notify_late(&notification).await;
    }
    if record.init_pid.is_some() {
        updates::created(node, key).await;
        node.watch_init(&record);
    }
}

async fn adopt_call(node: &Rc<Node>, note: &BypassNote) -> Result<()> {
    let question = WrapperRequest::decode(note.question.get(4..).unwrap_or_default())?;
    let Some(call) = VerbRequest::new(ReceivedQuestion::alone(question)) else { return Ok(()) };
    if call.command_line.verb.creates() {
        created(node, &call).await?;
    } else if call.command_line.verb == Verb::Start {
        started(node, &call.key)?;
    } else if call.command_line.verb == Verb::Update {
        updated(node, &call, note.resources.clone());
    } else if call.command_line.verb == Verb::Delete {
        follow_deletion(node, &call);
    }
    node.change(&call.key, |record| {
        record.skipped.push(Skipped::bypassed(&note.verb, &note.why));
    });
    Ok(())
}

/// An update bypassed the daemon: the engine's values are recorded, and the values that plugins own
/// are written again.
fn updated(node: &Rc<Node>, call: &VerbRequest, bytes: Option<Vec<u8>>) {
    let (key, pid) = (call.key.clone(), call.question().pid);
    let request = requested(call, bytes).unwrap_or_default();
    node.change(&key, |record| {
        record.updating = record.updating.take().filter(|updating| updating.pid != pid);
        overlay::put_over(&mut record.engine_resources, &request);
        let in_force = in_force(record);
        record.message = messages::with_resources(&record.message, &in_force, &Classes::default());
    });
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        if let Some(process) = catch_up::process_of(&node, &key, pid) {
            pidfd::ended(&process).await;
        }
        hold_again(&node, &key).await;
    });
}

/// The runtime may still work on a `delete` that bypassed the daemon: when it exits, the container
/// is gone or it is not.
fn follow_deletion(node: &Rc<Node>, call: &VerbRequest) {
    let Some(process) = pidfd::open(call.question().pid) else { return };
    let Some(record) = node.container(&call.key) else { return };
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        let _or_never = tokio::time::timeout(DELETION, pidfd::ended(&process)).await;
        node.registry.wait_for_returning().await;
        let lane = node.lane(&record.key);
        let turn = lane.turn.lock().await;
        let now = node.container(&record.key);
        let is_same = now.is_some_and(|now| now.incarnation == record.incarnation);
        if is_same && !state_dir::exists(&node.host, &record.key) {
            removal::deleted(&node, &record.key).await;
        }
        drop(turn);
        node.lanes.release(&record.key, lane);
    });
}

/// Writes the plugins' values again: an update that bypassed the daemon may have undone them.
async fn hold_again(node: &Rc<Node>, key: &ContainerKey) {
    let is_owned = |record: &Container| !record.overlay.is_empty();
    if !node.container(key).as_deref().is_some_and(is_owned) {
        return;
    }
    let reason = match apply::reapply(node, key).await {
        Ok(()) => "values that plugins own were written again after that update".to_owned(),
        Err(update_error) => {
            let why = format!("values that plugins own could not be restored: {update_error}");
            node.report.note_failure(&format!("update {}: {why}", key.id), "");
            why
        }
    };
    node.change(key, |record| record.skipped.push(Skipped { plugin: String::new(), reason }));
}

/// Records the container that the runtime made, if it made it and it still exists.
async fn created(node: &Rc<Node>, call: &VerbRequest) -> Result<()> {
    let init = state_dir::init_pid(&node.host, &call.key, None, None);
    let old = node.container(&call.key);
    let is_taken = |old: &Container| {
        // The predecessor of this daemon may have recorded this very call before it died.
        init.is_some() && old.init_pid == init && old.made_by != call.question().pid
    };
    if old.as_deref().is_some_and(is_taken) {
        return Ok(()); // The ID was taken, and the runtime refused.
    }
    let document = files::open_dir(&document_dir(call))
        .and_then(|dir| files::read_at(&dir, &call.question().document));
    if init.is_none() && pidfd::open(call.question().pid).is_none() {
        return Ok(()); // It failed, or was removed since.
    }
    let description = describe(node, call, &document?.bytes).await?;
    let mut record = new_record(node, call, &description);
    if let Some(flight) = &mut record.in_flight {
        flight.executed = true;
    }
    let is_under_way = !catch_up::under_way(node, &record).is_empty();
    if init.is_none() && !is_under_way {
        return Ok(());
    }
    if let Some(pid) = init.filter(|_| !is_under_way || call.command_line.verb != Verb::Create) {
        state::set_found(node, &mut record, pid);
    }
    if !is_under_way {
        record.in_flight = None;
    }
    if let Some(old) = old {
        bundle::restore(node, &old);
        state::forget(node, &call.key);
    }
    life::adopt(node, &description, &record)?;
    info!("{} was taken over: {}", call.key.id, record.state.name());
    node.records.put(record)
}

/// The directory from which the runtime read the document.
fn document_dir(call: &VerbRequest) -> PathBuf {
    match &call.command_line.config {
        Some(file) => {
            let file = Path::new(&call.question().cwd).join(file);
            file.parent().map(Path::to_owned).unwrap_or_default()
        }
        None => call.bundle.clone(),
    }
}

/// A recorded container was started without the daemon.
fn started(node: &Node, key: &ContainerKey) -> Result<()> {
    let Some(record) = node.container(key) else { return Ok(()) };
    let is_there = state_dir::exists(&node.host, key);
    if record.state != Lifecycle::Created || !is_there {
        return Ok(());
    }
    if state_dir::waits_for_start(&node.host, key) {
        return Ok(()); // The runtime failed.
    }
    node.change(key, |record| record.in_flight = None);
    state::mark_running(node, key, None);
    if record.is_sandbox { life::started_without_daemon(node, &record.pod) } else { Ok(()) }
}
