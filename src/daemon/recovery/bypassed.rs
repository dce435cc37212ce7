// SPDX-License-Identifier: Apache-2.0
//! What wrappers did while no daemon could be asked, and policy was to go on (decision D9): each
//! left a note with its question. What has come of it and is still there is put on record, so
//! that plugins see it when they are synchronized and hear of it from then on.
//!
//! No plugin is asked about it and nothing of it is changed: the runtime has run long since.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::argv::Verb;
use crate::error::Result;
use crate::files;
use crate::link::{Question, REFUSED_DIR};
use crate::plugin::Event;
use crate::state::{Container, Key, Lifecycle, PodState, Skipped};

use crate::daemon::lifecycle::exit;
use crate::daemon::lifecycle::rollback;
use crate::daemon::node::Node;
use crate::daemon::pods::life;
use crate::daemon::recovery::catch_up;
use crate::daemon::recovery::refusals;
use crate::daemon::request::call::Call;
use crate::daemon::resources::apply;
use crate::daemon::resources::updates;
use crate::daemon::runtime::state_dir;
use crate::daemon::server::frames::Asked;
use crate::daemon::verbs::create;
use crate::daemon::verbs::update;
use crate::daemon::watch::folders;
use crate::daemon::watch::pidfd;

/// How long a runtime's `delete` is followed; by then its process id may be another's.
const DELETION: Duration = Duration::from_secs(60);

/// What a wrapper left behind.
#[derive(Deserialize)]
struct Note {
    verb: String,
    id: Option<String>,
    why: String,
    /// The frame of its question.
    #[serde(default)]
    question: Vec<u8>,
    /// What an `update` asked for.
    #[serde(default)]
    resources: Option<Vec<u8>>,
}

impl Note {
    /// Whose question it was; `None` when it cannot be understood.
    fn call(&self) -> Option<Call> {
        let question = Question::decode(self.question.get(4..).unwrap_or_default()).ok()?;
        Call::new(Asked::alone(question))
    }
}

/// Takes over what went past us, oldest first; before any plugin is at the table.
pub(crate) async fn adopt(node: &Rc<Node>) {
    refusals::take_up(node);
    for path in notes(node) {
        take_up(node, &path, None).await;
    }
}

/// Takes over what goes past us from now on: wrappers that found us silent, or that our
/// predecessor left without an answer.
pub(crate) fn follow(node: &Rc<Node>) -> Option<JoinHandle<()>> {
    let events = watch_folders(&[folder(node), node.config.run_dir.join(REFUSED_DIR)])?;
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
            pidfd::readable(&events).await;
            folders::take_in(&events);
        }
    }))
}

/// Whether a call about this container, whose lane is held, went past us; it is taken over then.
pub(crate) async fn went_past(node: &Rc<Node>, key: &Key) -> bool {
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
    node.config.run_dir.join("bypassed")
}

fn watch_folders(folders: &[PathBuf]) -> Option<OwnedFd> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    for folder in folders {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        inotify::add_watch(&events, folder, WatchFlags::MOVED_TO | WatchFlags::ONLYDIR).ok()?;
    }
    Some(events)
}

fn notes(node: &Node) -> Vec<PathBuf> {
    notes_in(&folder(node))
}

/// The notes in this folder, oldest first. What a wrapper was killed over is removed.
pub(crate) fn notes_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Their names begin with the time.
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let is_note = path.extension().is_some_and(|extension| extension == "json");
        if !is_note {
            files::remove_leftover(path);
        }
        is_note
    });
    paths.sort();
    paths
}

fn read(path: &Path) -> Option<Note> {
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
}

/// Takes up one note, unless somebody was faster. `key`: plugins may be at the table.
async fn take_up(node: &Rc<Node>, path: &Path, key: Option<&Key>) {
    if !path.exists() {
        return;
    }
    match read(path) {
        Some(note) => take_over(node, &note, key).await,
        None => warn!("{} cannot be read and is dropped", path.display()),
    }
    // Only now: a daemon that dies before finds it again.
    let _taken = std::fs::remove_file(path);
}

async fn take_over(node: &Rc<Node>, note: &Note, key: Option<&Key>) {
    let (verb, id) = (&note.verb, note.id.as_deref().unwrap_or_default());
    warn!("{verb} {id} ran without plugins: {}", note.why);
    node.count("bypassed");
    if let Err(error) = one(node, note).await {
        warn!("{id} cannot be taken over: {error}");
    }
    if let Some(key) = key {
        announce(node, key).await;
    }
}

/// Plugins that are at the table already hear of it as of anything new, their answers come too
/// late; and it is watched.
async fn announce(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    catch_up::catch_up(node, key).await;
    if !state_dir::exists(&node.host, key) && catch_up::under_way(node, &record).is_empty() {
        return crate::daemon::verbs::delete::removed(node, key).await;
    }
    let Some(record) = node.container(key) else { return };
    let is_ready = node.store.borrow().pod(&record.pod).map(|pod| pod.state);
    if is_ready == Some(PodState::Ready)
        && let Some(told) = node.told_pod(Event::RunPodSandbox, &record.pod)
    {
        node.relay.tell_newcomers(&told).await;
    }
    if !record.is_sandbox
        && let Some(told) = node.told(Event::CreateContainer, key)
    {
        node.relay.tell_newcomers(&told).await;
    }
    if record.init_pid.is_some() {
        updates::created(node, key).await;
        exit::watch(node, &record);
    }
}

async fn one(node: &Rc<Node>, note: &Note) -> Result<()> {
    let question = Question::decode(note.question.get(4..).unwrap_or_default())?;
    let Some(mut call) = Call::new(Asked::alone(question)) else { return Ok(()) };
    if call.call.verb.creates() {
        created(node, &call).await?;
    } else if call.call.verb == Verb::Start {
        started(node, &call.key)?;
    } else if call.call.verb == Verb::Update {
        update::went_past(node, &mut call, note.resources.clone())?;
    } else if call.call.verb == Verb::Delete {
        follow_deletion(node, &call);
    }
    node.change(&call.key, |record| {
        let reason = format!("{} bypassed the daemon: {}", note.verb, note.why);
        record.skipped.push(Skipped { plugin: String::new(), reason });
    });
    Ok(())
}

/// The runtime may still be at work on a `delete` that it was asked for without us: when it ends,
/// the container is gone or it is not.
fn follow_deletion(node: &Rc<Node>, call: &Call) {
    let Some(process) = pidfd::open(call.question().pid) else { return };
    let Some(record) = node.container(&call.key) else { return };
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        let _or_never = tokio::time::timeout(DELETION, pidfd::ended(&process)).await;
        node.plugins_are_back().await;
        let lane = node.lane(&record.key);
        let turn = lane.turn.lock().await;
        let now = node.container(&record.key);
        let is_same = now.is_some_and(|now| now.incarnation == record.incarnation);
        if is_same && !state_dir::exists(&node.host, &record.key) {
            crate::daemon::verbs::delete::removed(&node, &record.key).await;
        }
        drop(turn);
        node.leave(&record.key, lane);
    });
}

/// An update that passed us may have undone what plugins own.
pub(crate) async fn hold_again(node: &Rc<Node>, key: &Key) {
    let is_owned = |record: &Container| !record.overlay.is_empty();
    if !node.container(key).as_deref().is_some_and(is_owned) {
        return;
    }
    let reason = match apply::reapply(node, key).await {
        Ok(()) => "what plugins own was written again after that update".to_owned(),
        Err(unmet) => {
            let why = format!("values that plugins own could not be restored: {unmet}");
            node.note_failure(&format!("update {}: {why}", key.id), "");
            why
        }
    };
    node.change(key, |record| record.skipped.push(Skipped { plugin: String::new(), reason }));
}

/// Puts on record what the runtime made, if it made it and it is still there.
async fn created(node: &Node, call: &Call) -> Result<()> {
    let init = state_dir::init_pid(&node.host, &call.key, None, None);
    let old = node.container(&call.key);
    let is_taken = |old: &Container| {
        // Our predecessor may have put this very call on record, and died over it.
        init.is_some() && old.init_pid == init && old.made_by != call.question().pid
    };
    if old.as_deref().is_some_and(is_taken) {
        return Ok(()); // The id was taken, and the runtime refused.
    }
    let document = files::open_dir(&document_dir(call))
        .and_then(|dir| files::read_at(&dir, &call.question().document));
    if init.is_none() && pidfd::open(call.question().pid).is_none() {
        return Ok(()); // It failed, or has come and gone.
    }
    let seen = life::describe(node, call, &document?.bytes).await?;
    let mut record = create::new_record(node, call, &seen);
    if let Some(flight) = &mut record.in_flight {
        flight.executed = true;
    }
    let is_under_way = !catch_up::under_way(node, &record).is_empty();
    if init.is_none() && !is_under_way {
        return Ok(());
    }
    if let Some(pid) = init.filter(|_| !is_under_way || call.call.verb != Verb::Create) {
        note_init(node, &mut record, pid);
    }
    if !is_under_way {
        record.in_flight = None;
    }
    if let Some(old) = old {
        rollback::restore_document(node, &old);
        node.store.borrow_mut().forget(&call.key);
    }
    life::adopt(node, &seen, &record)?;
    info!("{} was taken over: {}", call.key.id, record.state.name());
    node.store.borrow_mut().put(record)
}

/// Where the runtime read the document.
fn document_dir(call: &Call) -> PathBuf {
    match &call.call.config {
        Some(file) => {
            let file = Path::new(&call.question().cwd).join(file);
            file.parent().map(Path::to_owned).unwrap_or_default()
        }
        None => call.bundle.clone(),
    }
}

pub(crate) fn note_init(node: &Node, record: &mut Container, pid: u32) {
    record.init_pid = Some(pid);
    let start = state_dir::init_start(&node.host, &record.key);
    record.init_start = start.or_else(|| pidfd::start_time(&node.host, pid));
    record.state = if exit::has_ended(node, record) {
        Lifecycle::Stopped
    } else if state_dir::waits_for_start(&node.host, &record.key) {
        Lifecycle::Created
    } else {
        Lifecycle::Running
    };
}

/// A container that we know was started.
fn started(node: &Node, key: &Key) -> Result<()> {
    let Some(record) = node.container(key) else { return Ok(()) };
    let is_there = state_dir::exists(&node.host, key);
    if record.state != Lifecycle::Created || !is_there {
        return Ok(());
    }
    if state_dir::waits_for_start(&node.host, key) {
        return Ok(()); // The runtime failed.
    }
    node.change(key, |record| {
        record.state = Lifecycle::Running;
        record.in_flight = None;
    });
    if record.is_sandbox { life::runs(node, &record.pod) } else { Ok(()) }
}
