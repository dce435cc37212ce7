// SPDX-License-Identifier: Apache-2.0
//! OCI hooks, as the daemon lives them: what a runtime does without a wrapper before it. Plugins
//! hear of the container as ever; of an adjustment only what a cgroup can still take is done, for
//! the runtime has read its document, and anything else refuses the container.
//!
//! Of a runtime that became what it is through the wrapper nothing is told again: it is the very
//! same process. Nothing in the bundle is written here.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;

use crate::adaptation::{Merged, Updated};
use crate::argv::Verb;
use crate::engine::Role;
use crate::error::{Error, Result, quoted};
use crate::host::Point;
use crate::link::{Answer, Hook, Proceed, Stage};
use crate::plugin::{self, Event};
use crate::spec::overlay;
use crate::state::{Container, InFlight, Key, Lifecycle, PodState, Wish};

use crate::daemon::lifecycle::exit;
use crate::daemon::lifecycle::rollback;
use crate::daemon::lifecycle::settle;
use crate::daemon::node::messages;
use crate::daemon::node::{Lane, Node, Pending, now};
use crate::daemon::pods::life;
use crate::daemon::request::call::Call;
use crate::daemon::resources::apply;
use crate::daemon::resources::updates;
use crate::daemon::runtime::error_log::RuntimeLog;
use crate::daemon::runtime::state_dir;
use crate::daemon::server::frames;
use crate::daemon::server::session;
use crate::daemon::verbs::create::{self, Bundle};
use crate::daemon::verbs::delete;
use crate::daemon::verbs::host_facts;
use crate::daemon::verbs::require;
use crate::daemon::verbs::update::Block;
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::Gate;

/// What lies here in config.json is set in cgroups.
const RESOURCES: &str = "linux.resources.";

/// How often, and how many times, a container's end is given time to be told in order.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSES: usize = 10;

/// Serves a hook: answers, and watches what the runtime that called it comes to.
pub(crate) async fn heard(
    node: &Rc<Node>,
    stream: &mut UnixStream,
    mut call: Call,
    hook: Hook,
) -> Result<()> {
    node.count("hook");
    let key = call.key.clone();
    let process = call.process().ok_or_else(|| Error::new("no process descriptor came along"))?;
    let lane = node.lane(&key);
    let until = node.caller_waits_until();
    let decided = session::with_heartbeat(stream, async {
        if hook.stage == Stage::Poststop {
            end_in_order(node, &key).await;
        }
        let turn = lane.turn.lock();
        let turn = if hook.stage.may_refuse() {
            Some(turn.await)
        } else {
            tokio::time::timeout(delete::PATIENCE, turn).await.ok()
        };
        node.host.point(Point::DaemonAsked)?;
        if turn.is_some() {
            settle::due(node, &key, &lane).await;
        }
        let decided = decide(node, &lane, &mut call, hook, turn.is_some());
        plugin::with_caller_deadline(until, decided).await.map(|verb| (verb, turn))
    })
    .await?;
    let (verb, _turn) = match decided {
        Ok(decided) => decided,
        Err(error) => return session::refuse(node, stream, "create", &key, &error).await,
    };
    if let Some(verb) = verb {
        let pending = pending(node, &call, verb, process);
        // The fifo is there while the runtime waits for this hook. Seen later, a missing fifo may
        // be that of a container which is being deleted.
        let _too_early = pending.gate.borrow_mut().is_open(false);
        if verb.creates_and_starts() {
            pending.gate.borrow().look_out();
        }
        settle::watch(node, &key, &lane, Rc::new(pending));
    }
    // Whether it is still there to hear it or not: the runtime is watched.
    frames::say(stream, &Answer::Proceed(Proceed::default())).await
}

/// The verb whose outcome is to be waited for, if there is one.
async fn decide(
    node: &Rc<Node>,
    lane: &Lane,
    call: &mut Call,
    hook: Hook,
    has_turn: bool,
) -> Result<Option<Verb>> {
    if is_told(node, lane, call) {
        return Ok(None);
    }
    match hook.stage {
        Stage::Prestart | Stage::CreateRuntime => created(node, call, hook.init).await.map(Some),
        Stage::Poststart => {
            if has_turn && !state_dir::waits_for_start(&node.host, &call.key) {
                started(node, &call.key).await;
            }
            Ok(None)
        }
        Stage::Poststop => {
            if has_turn {
                delete::delete(node, call).await?;
            }
            Ok(node.container(&call.key).map(|_known| Verb::Delete))
        }
    }
}

/// Whether a wrapper, or an earlier hook, told of what this runtime process does.
fn is_told(node: &Node, lane: &Lane, call: &Call) -> bool {
    let pid = call.question().pid;
    let record = node.container(&call.key);
    let flight = record.and_then(|record| record.in_flight.clone());
    flight.is_some_and(|flight| flight.pid == pid)
        || lane.pending.borrow().iter().any(|pending| pending.pid == pid)
}

fn pending(node: &Node, call: &Call, verb: Verb, process: OwnedFd) -> Pending {
    Pending {
        verb,
        incarnation: node.container(&call.key).map_or(0, |record| record.incarnation),
        pid: call.question().pid,
        process,
        is_recovered: false,
        pid_file: call.pid_file.clone(),
        pid_file_before: call.pid_file.as_deref().and_then(state_dir::stamp),
        log: RuntimeLog::of(call),
        state_before: state_dir::state_stamp(&node.host, &call.key),
        gate: RefCell::new(Gate::new(state_dir::folder(&node.host, &call.key))),
        bundle: RefCell::new(None),
        holds: RefCell::new(None),
        is_told: Cell::new(false),
    }
}

/// A runtime is making a container: the story of `create`, without a document to write.
async fn created(node: &Rc<Node>, call: &mut Call, init: u32) -> Result<Verb> {
    let verb = if call.call.verb.creates() { call.call.verb } else { Verb::Create };
    if node.container(&call.key).is_some() {
        // The runtime took the id, so whoever had it is gone behind our back.
        exit::stopped(node, &call.key).await;
        delete::removed(node, &call.key).await;
    }
    let mut record = create::blank_record(node, call);
    record.init_start = pidfd::start_time(&node.host, init);
    record.init_pid = Some(init);
    let (verb_name, pid) = (verb.name().to_owned(), call.question().pid);
    record.in_flight = Some(InFlight { verb: verb_name, pid, executed: true });
    let admitted = admit(node, call, &mut record).await;
    let (bundle, seen) = admitted.inspect_err(|why| create::keep_refused(node, record, why))?;
    if seen.role == Role::Sandbox {
        return Ok(verb);
    }
    let adjusted = match adjust(node, call, &seen, &bundle).await {
        Ok(()) if verb.creates_and_starts() => create::before_start(node, call).await,
        adjusted => adjusted,
    };
    let Err(error) = adjusted else { return Ok(verb) };
    node.change(&call.key, |record| record.refuse(error.to_string(), now()));
    rollback::creation(node, &call.key).await;
    Err(error)
}

/// Everything before the plugins are asked, as `create` does it.
async fn admit(
    node: &Rc<Node>,
    call: &mut Call,
    record: &mut Container,
) -> Result<(Bundle, life::Seen)> {
    let bundle = create::open_bundle(node, call)?;
    let seen = life::describe(node, call, &bundle.original.bytes).await?;
    create::fill_in(node, record, &seen);
    if seen.role == Role::Sandbox {
        node.host.point(Point::DaemonRecord)?;
        life::sandbox_appears(node, &seen, record)?;
        node.store.borrow_mut().put(record.clone())?;
        return Ok((bundle, seen));
    }
    node.plugins_are_back().await;
    require::require_plugins(node, &seen)?;
    life::announce(node, &seen, record).await?;
    node.host.point(Point::DaemonRecord)?;
    node.store.borrow_mut().put(record.clone())?;
    Ok((bundle, seen))
}

/// Asks the plugins, and does what can be done now: all of it, or nothing.
async fn adjust(node: &Rc<Node>, call: &Call, seen: &life::Seen, bundle: &Bundle) -> Result<()> {
    let mut merged = create::ask(node, call, seen).await?;
    let part = within_reach(node, call, bundle, &merged).await?;
    create::note_unknown(node, call, &merged);
    let owners = merged.owners.to_flat(&call.key.id);
    let message = messages::to_wire(&merged.container);
    node.change(&call.key, |record| record.message = message);
    let others = Updated {
        updates: std::mem::take(&mut merged.updates),
        evictions: std::mem::take(&mut merged.evictions),
        evicted_by: std::mem::take(&mut merged.evicted_by),
        owners: merged.owners,
        unknown: Vec::new(),
    };
    updates::carry_out(node, others, Event::CreateContainer.name(), &call.key).await;
    let event = Event::CreateContainer.name().to_owned();
    let wish = Wish { part, owners, event, ..Wish::default() };
    apply::at_birth(node, &call.key, wish).await.map_err(|unmet| {
        let why = quoted(&unmet.to_string());
        Error::new(why).hint("nothing of the container was changed")
    })
}

/// The resources of an adjustment; what else it would change refuses the container.
async fn within_reach(
    node: &Rc<Node>,
    call: &Call,
    bundle: &Bundle,
    merged: &Merged,
) -> Result<Block> {
    let blame = |error: &_| create::blame(merged, error);
    let names = host_facts::resolve_for_runtime(node, call, merged).await.map_err(|e| blame(&e))?;
    let facts = host_facts::host_facts(node, &merged.adjust, names).await?;
    let patched = host_facts::patch(&bundle.original.bytes, &merged.adjust, &facts).await;
    let patched = patched.map_err(|e| blame(&e))?;
    host_facts::check_node(node, merged, &facts.names).map_err(|e| blame(&e))?;
    let resources = merged.adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let is_class = |field: &str| matches!(field, "BlockioClass" | "RdtClass");
    let beyond = patched
        .changes
        .iter()
        .find(|change| !change.field.starts_with(RESOURCES) || is_class(&change.nri_field));
    if let Some(beyond) = beyond {
        let owners = merged.owners.to_flat(&call.key.id);
        let owner = owners.get(&beyond.nri_field).map(|owner| owner.trim_start_matches('-'));
        let plugin = owner.unwrap_or("a plugin");
        let field = if beyond.nri_field.is_empty() { &beyond.field } else { &beyond.nri_field };
        let why = quoted(&format!(
            "{plugin} sets {field}, which a hook cannot: the runtime has read config.json"
        ));
        let error = Error::new(why).hint("make nri-runc the engine's runtime");
        return Err(error.by(owner.unwrap_or_default()));
    }
    let part = resources.map(|resources| overlay::overlay_of(resources, &facts.names));
    let part = part.transpose().map_err(|e| blame(&e))?;
    Ok(part.unwrap_or_default())
}

/// A container was started and nobody told: plugins hear of it afterwards, and cannot refuse.
async fn started(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    if record.state != Lifecycle::Created || record.in_flight.is_some() {
        return;
    }
    if record.is_sandbox {
        node.change(key, settle::is_running);
        let state = node.store.borrow().pod(&record.pod).map(|pod| pod.state);
        if state == Some(PodState::Created)
            && let Err(late) = life::run(node, &record.pod).await
        {
            node.note_failure(&format!("{}: it runs already: {late}", key.id), "");
        }
        return;
    }
    node.tell(Event::StartContainer, key).await;
    node.change(key, settle::is_running);
    node.tell(Event::PostStartContainer, key).await;
}

/// Looks for the start of a container that a hook told of, until it is seen or its process ends.
/// Of any other container the start is told by whoever asks for it.
///
/// `process`: its init process, unless that has been reaped.
pub(crate) async fn until_started(
    node: &Rc<Node>,
    key: &Key,
    incarnation: u64,
    process: Option<&OwnedFd>,
    mut folder: Gate,
) {
    let waits = |node: &Node| {
        let record = node.container(key).filter(|record| record.incarnation == incarnation)?;
        (record.by_hook && record.state == Lifecycle::Created).then_some(())
    };
    while waits(node).is_some() {
        let has_ended = process.is_none_or(pidfd::has_ended);
        // Without its folder only what was seen in it counts.
        if folder.is_open(state_dir::exists(&node.host, key)) {
            let lane = node.lane(key);
            let _turn = lane.turn.lock().await;
            if waits(node).is_some() {
                started(node, key).await;
            }
            return;
        }
        let Some(process) = process.filter(|_| !has_ended && state_dir::exists(&node.host, key))
        else {
            return;
        };
        let event = folder.event();
        tokio::select! {
            () = event => {}
            () = pidfd::ended(process) => {}
        }
    }
}

/// The start and the end of a container that was over at once are told by whoever watches it;
/// its removal must not come before them.
async fn end_in_order(node: &Node, key: &Key) {
    for _ in 0..PAUSES {
        match node.container(key) {
            Some(record)
                // Its creation may have to be settled yet.
                if record.by_hook
                    && matches!(record.state, Lifecycle::Creating | Lifecycle::Created)
                    && exit::has_ended(node, &record) => {}
            Some(_) | None => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}
