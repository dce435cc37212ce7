// SPDX-License-Identifier: Apache-2.0
//! A verb's connection: its turn, the verdict, and what the wrapper's silence afterwards means
//! (decisions D1, D3, D8).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;
use tracing::debug;

use crate::argv::Verb;
use crate::daemon::lifecycle::{rollback, settle};
use crate::daemon::node::bundle_turns::BundleTurn;
use crate::daemon::node::lane::{Holds, Pending};
use crate::daemon::node::{Node, log_failure};
use crate::daemon::request::Call;
use crate::daemon::runtime::error_log::RuntimeLog;
use crate::daemon::runtime::state_dir;
use crate::daemon::server::frames;
use crate::daemon::verbs::delete::DELETE_WAIT;
use crate::daemon::verbs::{create, delete, start, update};
use crate::error::{Error, Result};
use crate::host::Point;
use crate::link::{Attached, DaemonResponse, Notice, Proceed};
use crate::plugin;
use crate::state::Key;

/// How long a wrapper that has its verdict may take to say EXEC: it does so at once, or died.
const EXEC_WAIT: Duration = Duration::from_secs(10);

/// What goes with a verdict until the runtime has run.
struct Decided {
    proceed: Proceed,
    /// What the runtime makes of it changes what we know.
    is_watched: bool,
    holds: Option<Holds>,
}

impl Decided {
    fn watched(proceed: Proceed) -> Self {
        Self { proceed, is_watched: true, holds: None }
    }
}

pub(super) async fn serve(node: &Rc<Node>, stream: &mut UnixStream, mut call: Call) -> Result<()> {
    let key = call.key.clone();
    node.report.count(call.verb());
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
    let decided = frames::with_heartbeat(stream, async {
        // Before the container's own turn, which whoever has the bundle may need to give it back.
        let bundle = bundle_turn(node, &call).await?;
        let turn = lane.turn.lock();
        let turn = if is_delete {
            // Plugins may be slow to hear of earlier events; this one follows them in order.
            tokio::time::timeout(DELETE_WAIT, turn).await.ok()
        } else {
            Some(turn.await)
        };
        node.host.point(Point::DaemonAsked)?;
        if turn.is_none() {
            return Ok((Decided::watched(Proceed::default()), turn, bundle));
        }
        settle::settle_exited(node, &key, &lane).await;
        let decided = plugin::with_caller_deadline(until, decide(node, &mut call)).await;
        decided.map(|decided| (decided, turn, bundle))
    })
    .await?;
    let (decided, _turn, bundle) = match decided {
        Ok(decided) => decided,
        Err(error) => return refuse(node, stream, call.verb(), &key, &error).await,
    };
    let incarnation = node.container(&key).map_or(0, |record| record.incarnation);
    let verb = call.call.verb;
    let pending = Pending {
        pid_file: call.pid_file.clone(),
        pid_file_before,
        bundle: RefCell::new(bundle),
        log: RuntimeLog::open(call.call.log.as_deref(), &call.question().cwd),
        holds: RefCell::new(decided.holds),
        ..Pending::new(&node.host, &key, (verb, incarnation), (call.question().pid, process))
    };
    if verb.creates_and_starts() && decided.is_watched {
        pending.gate.borrow().look_out();
    }
    node.host.point(Point::DaemonVerdict)?;
    let executed = hand_over(node, stream, &key, decided.proceed).await;
    if !decided.is_watched {
        // The runtime refuses the call; what it is about is another call's.
    } else if executed || is_delete {
        // A delete goes on whether its wrapper still listens or not: what is left tells.
        settle::watch(node, &key, &lane, Rc::new(pending));
    } else if is_new(node, &key, verb) {
        rollback::creation(node, &key).await;
    } else {
        node.change(&key, |record| (record.in_flight, record.updating) = (None, None));
    }
    Ok(())
}

/// The right to use the bundle that came along, if one did.
async fn bundle_turn(node: &Node, call: &Call) -> Result<Option<BundleTurn>> {
    let Some(dir) = call.asked.descriptor(Attached::Bundle) else { return Ok(None) };
    node.lanes.bundles.turn(dir, &call.key.id).await.map(Some)
}

/// Says no to the wrapper, and notes it.
pub(super) async fn refuse(
    node: &Node,
    stream: &mut UnixStream,
    verb: &str,
    key: &Key,
    error: &Error,
) -> Result<()> {
    node.report.note_refusal(verb, &key.id, error);
    frames::say(stream, &DaemonResponse::Refuse(error.to_string())).await
}

async fn decide(node: &Rc<Node>, call: &mut Call) -> Result<Decided> {
    let (mut update_holds, mut is_watched) = (None, true);
    let proceed = match call.call.verb {
        Verb::Create | Verb::Run | Verb::Restore => {
            let decided =
                create::create(node, call).await.inspect_err(|_| node.process.release_monitor())?;
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
        && node.records.read().container(key).is_some_and(|record| record.in_flight.is_some())
}

/// Says the verdict and waits for EXEC; false when the wrapper did not come that far.
async fn hand_over(node: &Node, stream: &mut UnixStream, key: &Key, proceed: Proceed) -> bool {
    if frames::say(stream, &DaemonResponse::Proceed(proceed)).await.is_err() {
        return false;
    }
    log_failure("a verdict", node.host.point(Point::DaemonSaid));
    match tokio::time::timeout(EXEC_WAIT, frames::notice(stream)).await {
        Ok(Ok(Notice::Exec)) => {}
        Ok(Ok(Notice::ExecFailed(_)) | Err(_)) | Err(_) => return false,
    }
    log_failure("a verdict", node.host.point(Point::DaemonExec));
    // Not written: after a crash the evidence tells, whether or not EXEC was heard.
    node.records.change_in_memory(key, |record| {
        if let Some(flight) = &mut record.in_flight {
            flight.executed = true;
        }
    });
    // An exec that fails says so, or ends the connection together with the process; one that
    // succeeds ends the connection (it is CLOEXEC) and the process lives on.
    match tokio::time::timeout(EXEC_WAIT, frames::notice(stream)).await {
        Ok(Ok(Notice::ExecFailed(why))) => {
            node.report.note_failure(&format!("{}: {why}", key.id), "");
            false
        }
        Ok(Ok(Notice::Exec) | Err(_)) | Err(_) => true,
    }
}
