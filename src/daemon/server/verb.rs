// SPDX-License-Identifier: Apache-2.0
//! Serves the connection of a wrapper that runs a verb: its turn, the verdict, and the handling of
//! a wrapper that does not confirm the verdict (decisions D1, D3, D8).

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tracing::debug;

use crate::argv::Verb;
use crate::daemon::lifecycle::{rollback, settle};
use crate::daemon::recovery::bypassed;
use crate::daemon::request::VerbRequest;
use crate::daemon::runtime::error_log::RuntimeLog;
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::daemon::server::frames;
use crate::daemon::shared::bundle_turns::BundleTurn;
use crate::daemon::shared::lane::{Lane, Lanes, PendingVerb, ProposedUpdate};
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::verbs::delete::DELETE_WAIT;
use crate::daemon::verbs::kill::KILL_WAIT;
use crate::daemon::verbs::{create, delete, kill, start, update};
use crate::daemon::watch::pidfd;
use crate::error::{Error, Result};
use crate::host::Point;
use crate::link::{Attached, DaemonResponse, Notice, Proceed};
use crate::plugin;
use crate::sources;
use crate::state::ContainerKey;
use crate::trace::{self, TraceContext};

/// Time limit for a wrapper to confirm its verdict with EXEC. A living wrapper confirms at once.
const EXEC_WAIT: Duration = Duration::from_secs(10);

/// A verdict, and the data to settle its verb once the runtime has exited.
struct Decided {
    proceed: Proceed,
    /// Whether the runtime's outcome changes the records.
    is_watched: bool,
    proposed: Option<ProposedUpdate>,
}

impl Decided {
    fn watched(proceed: Proceed) -> Self {
        Self { proceed, is_watched: true, proposed: None }
    }
}

pub(super) async fn serve(
    daemon: &Rc<Daemon>,
    stream: &mut UnixStream,
    call: VerbRequest,
) -> Result<()> {
    let (key, verb) = (call.key.clone(), call.command_line.verb);
    let look = root_answers(daemon, &key);
    match frames::with_heartbeat(stream, look).await {
        Ok(()) => answer(daemon, stream, call).await,
        // An update is refused too: without the daemon it would overwrite the plugins' values.
        Err(error) if verb.creates() || verb == Verb::Update => {
            refuse(daemon, stream, call.verb(), &key, &error).await
        }
        Err(_hangs) => {
            // The runtime uses the same file system, and reports the failure itself.
            let _outcome_is_not_known = hand_over(daemon, stream, &key, Proceed::default()).await;
            Ok(())
        }
    }
}

async fn answer(daemon: &Rc<Daemon>, stream: &mut UnixStream, mut call: VerbRequest) -> Result<()> {
    let key = call.key.clone();
    let begun = Instant::now();
    daemon.report.count(call.verb());
    debug!("{} {} below {}", call.verb(), key.id, key.root);
    let process =
        call.process().ok_or_else(|| Error::new("the request has no process descriptor"))?;
    let lane = daemon.lane(&key);
    let until = daemon.caller_waits_until();
    let verb = call.command_line.verb;
    let is_delete = verb == Verb::Delete;
    if frames::is_closed(stream) && !is_delete {
        // The wrapper gave up waiting and bypassed the daemon: asking plugins would have no effect.
        return Err(Error::new("the wrapper has closed its connection"));
    }
    let decided = frames::with_heartbeat(stream, async {
        // Acquired before the container's turn: the verb that has the bundle's turn may need the
        // container's turn before it can release the bundle's.
        let bundle = bundle_turn(&daemon.lanes, &call).await?;
        let turn = lane.turn.lock();
        let turn = match turn_wait(verb) {
            Some(wait) => tokio::time::timeout(wait, turn).await.ok(),
            None => Some(turn.await),
        };
        let before = files_before(daemon, &call).await;
        daemon.host.point(Point::DaemonAsked)?;
        if turn.is_none() {
            let decided = Decided { is_watched: is_delete, ..Decided::watched(Proceed::default()) };
            return Ok((decided, turn, bundle, before));
        }
        settle::settle_before(daemon, &key, &lane).await;
        let caller = TraceContext::of_variables(&call.question().variables);
        let decided = trace::within(caller, decide(daemon, &mut call));
        let decided = plugin::with_caller_deadline(until, decided).await;
        decided.map(|decided| (decided, turn, bundle, before))
    })
    .await;
    daemon.report.metrics.observe_request(call.verb(), begun.elapsed());
    let (decided, _turn, bundle, (pid_file_before, log)) = match decided {
        Ok(decided) => decided,
        Err(error) => return refuse(daemon, stream, call.verb(), &key, &error).await,
    };
    daemon.report.metrics.count_request(call.verb(), "proceeded");
    let incarnation = daemon.container(&key).map_or(0, |record| record.incarnation);
    let pending = PendingVerb {
        pid_file: call.pid_file.clone(),
        pid_file_before,
        bundle: RefCell::new(bundle),
        log,
        proposed: RefCell::new(decided.proposed),
        ..PendingVerb::new(&daemon.host, &key, (verb, incarnation), (call.question().pid, process))
    };
    if verb.creates_and_starts() && decided.is_watched {
        pending.start_watch.borrow().watch_in_background();
    }
    daemon.host.point(Point::DaemonVerdict)?;
    let confirmed = hand_over(daemon, stream, &key, decided.proceed).await;
    // Not watched: a `kill`, or a call that the runtime refuses because the ID belongs to another
    // call's container.
    if decided.is_watched {
        settle_verdict(daemon, &key, &lane, confirmed, pending).await;
    }
    Ok(())
}

/// Checks that the file system of the runtime's root responds, because its files are read on the
/// event loop afterwards. A root in memory needs no check.
async fn root_answers(daemon: &Daemon, key: &ContainerKey) -> Result<()> {
    if sources::is_quick(&key.root) {
        return Ok(());
    }
    let (host, of) = (daemon.host.clone(), key.clone());
    let look = move || {
        let _answers = state_dir::exists(&host, &of);
        Ok(())
    };
    daemon.off_loop(&key.root, look).await
}

/// Watches the runtime carry out a verdict, or reverts the verdict if its wrapper failed or is gone.
async fn settle_verdict(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    lane: &Rc<Lane>,
    confirmed: Confirmed,
    mut pending: PendingVerb,
) {
    let is_creation = pending.verb.creates();
    let goes_on = match confirmed {
        Confirmed::Executed => true,
        // A start or delete may run although its wrapper seems gone, or without the daemon: the
        // runtime's state shows the outcome.
        _ if matches!(pending.verb, Verb::Start | Verb::Delete) => true,
        Confirmed::Failed => false,
        Confirmed::Unknown => !pidfd::has_ended(&pending.process),
    };
    if goes_on && is_creation && matches!(confirmed, Confirmed::Unknown) {
        // The wrapper may continue without the daemon, and leave a note.
        let account = (Rc::clone(daemon), key.clone());
        pending.by_wrapper = Some(Box::new(move || {
            let (daemon, key) = account.clone();
            Box::pin(async move { bypassed::take_up_of(&daemon, &key).await })
        }));
    }
    if goes_on {
        settle::watch(daemon, key, lane, Rc::new(pending));
    } else if is_new(daemon, key, pending.verb) {
        rollback::roll_back(daemon, key).await;
    } else {
        let pid = pending.pid;
        daemon.change(key, |record| {
            // The fields may belong to another call that is in progress.
            record.pending.in_flight.take_if(|flight| flight.pid == pid);
            record.pending.updating.take_if(|updating| updating.pid == pid);
        });
        settle::apply_waiting_updates(daemon, key).await;
    }
}

/// Returns the longest wait for the container's turn, for verbs that must not wait for plugins that
/// handle earlier events slowly. The events of these verbs are still sent after the earlier ones.
fn turn_wait(verb: Verb) -> Option<Duration> {
    let waits = [(Verb::Delete, DELETE_WAIT), (Verb::Kill, KILL_WAIT)];
    waits.into_iter().find(|(short, _)| *short == verb).map(|(_, wait)| wait)
}

/// Acquires the turn of the request's bundle, if it has one.
async fn bundle_turn(lanes: &Lanes, call: &VerbRequest) -> Result<Option<BundleTurn>> {
    let Some(dir) = call.received.descriptor(Attached::Bundle) else { return Ok(None) };
    lanes.bundles.turn(dir, &call.key.id).await.map(Some)
}

/// Returns the stamp of the call's PID file, and its log with the present length, before the
/// runtime runs. Engines keep both files in the bundle.
pub(super) async fn files_before(
    daemon: &Daemon,
    call: &VerbRequest,
) -> (io::Result<Option<Stamp>>, Option<RuntimeLog>) {
    let (pid_file, log) = (call.pid_file.clone(), call.command_line.log.clone());
    if pid_file.is_none() && log.is_none() {
        return (Ok(None), None);
    }
    let (folder, cwd) = (call.bundle.to_string_lossy(), call.question().cwd.clone());
    let paths = [pid_file.as_ref().map(|path| path.as_os_str()), log.as_deref()];
    let are_in_memory =
        paths.into_iter().flatten().all(|path| sources::is_quick(&path.to_string_lossy()));
    let look = move || {
        let stamp = state_dir::pid_file_stamp(pid_file.as_deref());
        Ok((stamp, RuntimeLog::open(log.as_deref(), &cwd)))
    };
    let no_answer = |error: Error| (Err(io::Error::other(error.to_string())), None);
    let looked = if are_in_memory { look() } else { daemon.off_loop(&folder, look).await };
    looked.unwrap_or_else(no_answer)
}

/// Sends the wrapper a refusal, and records it.
pub(super) async fn refuse(
    daemon: &Daemon,
    stream: &mut UnixStream,
    verb: &str,
    key: &ContainerKey,
    error: &Error,
) -> Result<()> {
    daemon.report.metrics.count_request(verb, "refused");
    daemon.report.note_refusal(verb, &key.id, error);
    daemon.audit_refusal(key, verb, error);
    frames::send(stream, &DaemonResponse::Refuse(error.to_string())).await
}

async fn decide(daemon: &Rc<Daemon>, call: &mut VerbRequest) -> Result<Decided> {
    let (mut proposed, mut is_watched) = (None, true);
    let proceed = match call.command_line.verb {
        Verb::Create | Verb::Run | Verb::Restore => {
            let decided = create::create(daemon, call)
                .await
                .inspect_err(|_| daemon.process.release_monitor())?;
            is_watched = decided.is_some();
            decided.unwrap_or_default()
        }
        Verb::Start => start::start(daemon, call).await?,
        Verb::Delete => delete::delete(daemon, call).await?,
        Verb::Update => {
            let (proceed, update) = update::update(daemon, call).await?;
            proposed = update;
            proceed
        }
        Verb::Kill => {
            kill::kill(daemon, call).await;
            is_watched = false;
            Proceed::default()
        }
        Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => Proceed::default(),
        Verb::Nri | Verb::Other | Verb::None => Proceed::default(),
    };
    Ok(Decided { proceed, is_watched, proposed })
}

/// Whether this verb created the record, so that its failure removes the record.
fn is_new(daemon: &Daemon, key: &ContainerKey, verb: Verb) -> bool {
    verb.creates()
        && daemon
            .records
            .read()
            .container(key)
            .is_some_and(|record| record.pending.in_flight.is_some())
}

/// The wrapper's report about its verdict.
enum Confirmed {
    /// The wrapper is about to become the runtime.
    Executed,
    /// The wrapper could not become the runtime, and has restored everything.
    Failed,
    /// The report is missing or unreadable: the wrapper's process shows whether it continues.
    Unknown,
}

/// Sends the verdict, and waits until the wrapper has become the runtime or reports a failure.
async fn hand_over(
    daemon: &Daemon,
    stream: &mut UnixStream,
    key: &ContainerKey,
    proceed: Proceed,
) -> Confirmed {
    if frames::send(stream, &DaemonResponse::Proceed(proceed)).await.is_err() {
        return Confirmed::Unknown;
    }
    log_failure("sending a verdict", daemon.host.point(Point::DaemonSaid));
    match tokio::time::timeout(EXEC_WAIT, frames::notice(stream)).await {
        Ok(Ok(Notice::Exec)) => {}
        Ok(Ok(Notice::ExecFailed(_))) => return Confirmed::Failed,
        Ok(Err(_)) | Err(_) => return Confirmed::Unknown,
    }
    log_failure("sending a verdict", daemon.host.point(Point::DaemonExec));
    // Not written to disk: after a crash the runtime's state decides, whether EXEC arrived or not.
    daemon.records.change_in_memory(key, |record| {
        if let Some(flight) = &mut record.pending.in_flight {
            flight.executed = true;
        }
    });
    // If execve(2) fails, the wrapper sends a notice, or the connection ends together with the
    // process. If it succeeds, the connection ends (it is CLOEXEC) and the process continues.
    match tokio::time::timeout(EXEC_WAIT, frames::notice(stream)).await {
        Ok(Ok(Notice::ExecFailed(why))) => {
            daemon.report.note_failure(&format!("{}: {why}", key.id), "");
            Confirmed::Failed
        }
        Ok(Ok(Notice::Exec) | Err(_)) | Err(_) => Confirmed::Executed,
    }
}
