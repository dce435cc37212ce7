// SPDX-License-Identifier: Apache-2.0
//! A wrapper's connection, from question to notice: heartbeats while plugins think, the verdict,
//! and what its absence afterwards means (decisions D1, D3, D8).

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;
use tracing::{debug, warn};

use crate::argv::Verb;
use crate::error::{Error, Result};
use crate::host::Point;
use crate::link::{Answer, Attached, Notice, PROTOCOL, Proceed};
use crate::plugin;
use crate::state::Key;

use crate::daemon::lifecycle::rollback;
use crate::daemon::lifecycle::settle;
use crate::daemon::node::bundle_turns::BundleTurn;
use crate::daemon::node::{Node, Pending, log_failure};
use crate::daemon::registry::recording;
use crate::daemon::request::call::Call;
use crate::daemon::runtime::error_log::RuntimeLog;
use crate::daemon::runtime::state_dir;
use crate::daemon::server::admin;
use crate::daemon::server::drain;
use crate::daemon::server::frames;
use crate::daemon::verbs::create;
use crate::daemon::verbs::delete;
use crate::daemon::verbs::hook;
use crate::daemon::verbs::start;
use crate::daemon::verbs::update;
use crate::daemon::watch::start_watch::Gate;

/// While a request is worked on, the wrapper hears of us this often.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A wrapper that has its verdict says EXEC at once, or died.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves one connection.
pub(crate) async fn serve(node: Rc<Node>, mut stream: UnixStream) {
    if let Err(error) = converse(&node, &mut stream).await {
        debug!("a connection ended: {error}");
    }
}

async fn converse(node: &Rc<Node>, stream: &mut UnixStream) -> Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        warn!("user {} may not use this daemon", peer.uid());
        return Err(Error::new("a foreign user"));
    }
    let asked = frames::read(stream).await?;
    let (protocol, version) = (PROTOCOL, env!("CARGO_PKG_VERSION").to_owned());
    if asked.question.protocol != protocol {
        let theirs = asked.question.protocol;
        node.note_failure(
            &format!("a wrapper (version {}) speaks protocol {theirs}, this is {protocol}; restart the daemon", asked.question.version),
            "",
        );
        return frames::say(stream, &Answer::Incompatible { protocol, version }).await;
    }
    if admin::is_recording(&asked.question.admin) {
        return recording::serve(node, stream).await;
    }
    if !asked.question.admin.is_empty() {
        let answer = admin::answer(node, &asked.question.admin);
        return frames::say(stream, &answer).await;
    }
    let Some(call) = Call::new(asked) else {
        return frames::say(stream, &Answer::Proceed(Proceed::default())).await;
    };
    // A delete is never kept waiting, nor what has happened.
    let may_wait = match call.question().hook {
        Some(hook) => hook.stage.may_refuse(),
        None => call.call.verb != Verb::Delete,
    };
    if node.drain.is_ending() && may_wait {
        return drain::hold(node, stream).await;
    }
    let _in_flight = drain::enter(node);
    match call.question().hook {
        Some(hook) => hook::heard(node, stream, call, hook).await,
        None => verb(node, stream, call).await,
    }
}

/// What goes with a verdict until the runtime has run.
struct Decided {
    proceed: Proceed,
    /// What the runtime makes of it changes what we know.
    is_watched: bool,
    holds: Option<update::Holds>,
}

impl Decided {
    fn watched(proceed: Proceed) -> Self {
        Self { proceed, is_watched: true, holds: None }
    }
}

async fn verb(node: &Rc<Node>, stream: &mut UnixStream, mut call: Call) -> Result<()> {
    let key = call.key.clone();
    node.count(call.verb());
    debug!("{} {} below {}", call.verb(), key.id, key.root);
    let process = call.process().ok_or_else(|| Error::new("no process descriptor came along"))?;
    let lane = node.lane(&key);
    let until = node.caller_waits_until();
    let pid_file_before = call.pid_file.as_deref().and_then(state_dir::stamp);
    let is_delete = call.call.verb == Verb::Delete;
    if frames::is_over(stream) && !is_delete {
        // We were silent for too long and it went past us: plugins must not be asked in vain.
        return Err(Error::new("the wrapper is gone"));
    }
    let decided = with_heartbeat(stream, async {
        // Before the container's own turn, which whoever has the bundle may need to give it back.
        let bundle = bundle_turn(node, &call).await?;
        let turn = lane.turn.lock();
        let turn = if is_delete {
            // Plugins may be slow to hear of earlier events; this one follows them in order.
            tokio::time::timeout(delete::PATIENCE, turn).await.ok()
        } else {
            Some(turn.await)
        };
        node.host.point(Point::DaemonAsked)?;
        if turn.is_none() {
            return Ok((Decided::watched(Proceed::default()), turn, bundle));
        }
        settle::due(node, &key, &lane).await;
        let decided = plugin::with_caller_deadline(until, decide(node, &mut call)).await;
        decided.map(|decided| (decided, turn, bundle))
    })
    .await?;
    let (decided, _turn, bundle) = match decided {
        Ok(decided) => decided,
        Err(error) => return refuse(node, stream, call.verb(), &key, &error).await,
    };
    let pending = Pending {
        pid_file_before,
        bundle: RefCell::new(bundle),
        log: RuntimeLog::of(&call),
        holds: RefCell::new(decided.holds),
        ..pending(node, &call, process)
    };
    if pending.verb.creates_and_starts() && decided.is_watched {
        pending.gate.borrow().look_out();
    }
    node.host.point(Point::DaemonVerdict)?;
    let executed = hand_over(node, stream, &key, decided.proceed).await;
    if !decided.is_watched {
        // The runtime refuses the call; what it is about is another call's.
    } else if executed || is_delete {
        // A delete goes on whether its wrapper still listens or not: what is left tells.
        settle::watch(node, &key, &lane, Rc::new(pending));
    } else if is_new(node, &key, call.call.verb) {
        rollback::creation(node, &key).await;
    } else {
        node.change(&key, |record| (record.in_flight, record.updating) = (None, None));
    }
    Ok(())
}

/// What a verb leaves open until its runtime has run.
fn pending(node: &Node, call: &Call, process: OwnedFd) -> Pending {
    let key = &call.key;
    Pending {
        verb: call.call.verb,
        incarnation: node.store.borrow().container(key).map_or(0, |record| record.incarnation),
        pid: call.question().pid,
        process,
        is_recovered: false,
        pid_file: call.pid_file.clone(),
        pid_file_before: None,
        log: None,
        state_before: state_dir::state_stamp(&node.host, key),
        gate: RefCell::new(Gate::new(state_dir::folder(&node.host, key))),
        bundle: RefCell::new(None),
        holds: RefCell::new(None),
        is_told: Cell::new(false),
    }
}

/// The right to use the bundle that came along, if one did.
async fn bundle_turn(node: &Node, call: &Call) -> Result<Option<BundleTurn>> {
    let Some(dir) = call.asked.descriptor(Attached::Bundle) else { return Ok(None) };
    node.bundles.turn(dir, &call.key.id).await.map(Some)
}

/// Says no to the wrapper, and notes it.
pub(crate) async fn refuse(
    node: &Node,
    stream: &mut UnixStream,
    verb: &str,
    key: &Key,
    error: &Error,
) -> Result<()> {
    node.note_refusal(verb, &key.id, error);
    frames::say(stream, &Answer::Refuse(error.to_string())).await
}

async fn decide(node: &Rc<Node>, call: &mut Call) -> Result<Decided> {
    let (mut update_holds, mut is_watched) = (None, true);
    let proceed = match call.call.verb {
        Verb::Create | Verb::Run | Verb::Restore => {
            let decided = create::create(node, call).await.inspect_err(|_| node.let_go())?;
            is_watched = decided.is_some();
            decided.unwrap_or_default()
        }
        Verb::Start => start::start(node, call).await?,
        Verb::Delete => delete::delete(node, call).await?,
        Verb::Update => {
            let (proceed, holds) = update::update(node, call).await?;
            update_holds = holds;
            proceed
        }
        Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => Proceed::default(),
        Verb::Nri | Verb::Other | Verb::None => Proceed::default(),
    };
    Ok(Decided { proceed, is_watched, holds: update_holds })
}

/// Whether this verb has just made the record, so that its failing undoes it.
fn is_new(node: &Node, key: &Key, verb: Verb) -> bool {
    verb.creates()
        && node.store.borrow().container(key).is_some_and(|record| record.in_flight.is_some())
}

/// Says the verdict and waits for EXEC; false when the wrapper did not come that far.
async fn hand_over(node: &Node, stream: &mut UnixStream, key: &Key, proceed: Proceed) -> bool {
    if frames::say(stream, &Answer::Proceed(proceed)).await.is_err() {
        return false;
    }
    log_failure("a verdict", node.host.point(Point::DaemonSaid));
    match tokio::time::timeout(PATIENCE, frames::notice(stream)).await {
        Ok(Ok(Notice::Exec)) => {}
        Ok(Ok(Notice::ExecFailed(_)) | Err(_)) | Err(_) => return false,
    }
    log_failure("a verdict", node.host.point(Point::DaemonExec));
    // Not written: after a crash the evidence tells, whether or not EXEC was heard.
    node.store.borrow_mut().change_in_memory(key, |record| {
        if let Some(flight) = &mut record.in_flight {
            flight.executed = true;
        }
    });
    // An exec that fails says so, or ends the connection together with the process; one that
    // succeeds ends the connection (it is CLOEXEC) and the process lives on.
    match tokio::time::timeout(PATIENCE, frames::notice(stream)).await {
        Ok(Ok(Notice::ExecFailed(why))) => {
            node.note_failure(&format!("{}: {why}", key.id), "");
            false
        }
        Ok(Ok(Notice::Exec) | Err(_)) | Err(_) => true,
    }
}

/// Works while telling the wrapper every second that we live; a wrapper that goes away meanwhile
/// is noticed by whoever talks to it next.
pub(crate) async fn with_heartbeat<T>(
    stream: &mut UnixStream,
    work: impl Future<Output = Result<T>>,
) -> Result<Result<T>> {
    tokio::pin!(work);
    loop {
        match tokio::time::timeout(HEARTBEAT, &mut work).await {
            Ok(done) => return Ok(done),
            Err(_) => {
                // The work goes on even if nobody listens: plugins were asked, and an undo
                // follows when the verdict cannot be delivered.
                let _nobody_listens = frames::say(stream, &Answer::Heartbeat).await;
            }
        }
    }
}
