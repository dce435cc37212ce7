// SPDX-License-Identifier: Apache-2.0
//! Serves a hook's connection: its turn, the response, and the watch of the runtime that called the hook.

use std::rc::Rc;

use tokio::net::UnixStream;

use crate::daemon::lifecycle::settle;
use crate::daemon::request::VerbRequest;
use crate::daemon::server::{frames, verb};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::lane::PendingVerb;
use crate::daemon::verbs::delete::DELETE_WAIT;
use crate::daemon::verbs::hook;
use crate::error::{Error, Result};
use crate::host::Point;
use crate::link::{DaemonResponse, Hook, Proceed, Stage};
use crate::plugin;

pub(super) async fn serve(
    daemon: &Rc<Daemon>,
    stream: &mut UnixStream,
    mut call: VerbRequest,
    question: Hook,
) -> Result<()> {
    daemon.report.count("hook");
    let key = call.key.clone();
    let process =
        call.process().ok_or_else(|| Error::new("the request has no process descriptor"))?;
    let lane = daemon.lane(&key);
    let until = daemon.caller_waits_until();
    let decided = frames::with_heartbeat(stream, async {
        if question.stage == Stage::Poststop {
            hook::end_in_order(daemon, &key).await;
        }
        let turn = lane.turn.lock();
        let turn = if question.stage.may_refuse() {
            Some(turn.await)
        } else {
            tokio::time::timeout(DELETE_WAIT, turn).await.ok()
        };
        daemon.host.point(Point::DaemonAsked)?;
        if turn.is_some() {
            settle::settle_exited(daemon, &key, &lane).await;
        }
        let decided = hook::decide(daemon, &lane, &mut call, question, turn.is_some());
        plugin::with_caller_deadline(until, decided).await.map(|verb| (verb, turn))
    })
    .await;
    let (verb, _turn) = match decided {
        Ok(decided) => decided,
        Err(error) => return verb::refuse(daemon, stream, "create", &key, &error).await,
    };
    if let Some(verb) = verb {
        let incarnation = daemon.container(&key).map_or(0, |record| record.incarnation);
        let (pid_file_before, log) = verb::files_before(daemon, &call).await;
        let pending = PendingVerb {
            pid_file: call.pid_file.clone(),
            pid_file_before,
            log,
            ..PendingVerb::new(
                &daemon.host,
                &key,
                (verb, incarnation),
                (call.question().pid, process),
            )
        };
        // Checked now, because `exec.fifo` exists while the runtime waits for this hook. Later, a
        // missing fifo may mean that the container is being deleted.
        let _too_early = pending.start_watch.borrow_mut().check_started(false);
        if verb.creates_and_starts() {
            pending.start_watch.borrow().watch_in_background();
        }
        settle::watch(daemon, &key, &lane, Rc::new(pending));
    }
    // The runtime is watched even if the hook has exited.
    frames::send(stream, &DaemonResponse::Proceed(Proceed::default())).await
}
