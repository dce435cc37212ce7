// SPDX-License-Identifier: Apache-2.0
//! Serves a connection of a wrapper, a hook or an operator: reads its request and dispatches it.
//! Requests of other users than the daemon's are refused.

use std::rc::Rc;

use tokio::net::{UnixListener, UnixStream};
use tracing::{debug, warn};

use crate::accept;
use crate::argv::Verb;
use crate::daemon::request::{ReceivedQuestion, VerbRequest};
use crate::daemon::server::drain::{Drain, OpenConnection};
use crate::daemon::server::{admin, frames, hook, later, report_unaccepted, verb};
use crate::daemon::shared::Daemon;
use crate::error::{Error, Result};
use crate::link::{DaemonResponse, PROTOCOL, Proceed, is_understood};

/// Serves every connection. Never ends.
pub(crate) async fn serve_all(daemon: Rc<Daemon>, drain: Rc<Drain>, listener: UnixListener) {
    loop {
        drain.until_accepting().await;
        let failed = |error: &_| report_unaccepted(&daemon.report, "the daemon socket", error);
        let (stream, _) = tokio::select! {
            accepted = accept::next(async || listener.accept().await, failed) => accepted,
            () = drain.until_paused() => continue,
        };
        tokio::task::spawn_local(serve(Rc::clone(&daemon), Rc::clone(&drain), stream));
    }
}

async fn serve(daemon: Rc<Daemon>, drain: Rc<Drain>, mut stream: UnixStream) {
    let open = drain.open();
    if let Err(error) = dispatch(&daemon, &drain, &mut stream, open).await {
        debug!("a connection ended: {error}");
    }
}

async fn dispatch(
    daemon: &Rc<Daemon>,
    drain: &Rc<Drain>,
    stream: &mut UnixStream,
    open: OpenConnection,
) -> Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        warn!("user {} may not use this daemon", peer.uid());
        return Err(Error::new("the peer belongs to another user"));
    }
    let Some(asked) = read(stream).await? else { return Ok(()) };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let protocol = daemon.config().seams.protocol.unwrap_or(PROTOCOL);
    if !is_understood(protocol, asked.question.protocol) {
        let theirs = asked.question.protocol;
        daemon.report.note_failure(
            &format!(
                "a wrapper (version {}) speaks protocol {theirs}, but this daemon speaks {protocol}",
                asked.question.version
            ),
            "",
        );
        return frames::send(stream, &DaemonResponse::Incompatible { protocol, version }).await;
    }
    if !asked.question.admin.is_empty() {
        return admin::serve(daemon, stream, open, &asked.question.admin).await;
    }
    let Some(call) = VerbRequest::new(asked) else {
        return frames::send(stream, &DaemonResponse::Proceed(Proceed::default())).await;
    };
    // A delete, a kill, an exec, or a hook that reports a past event is never held.
    let may_wait = match call.question().hook {
        Some(hook) => hook.stage.may_refuse(),
        None => !matches!(call.command_line.verb, Verb::Delete | Verb::Kill | Verb::Exec),
    };
    if drain.is_ending() && may_wait {
        return drain.hold(stream).await;
    }
    let is_exec = call.question().later.as_ref().is_some_and(|later| later.waits);
    if is_exec && drain.must_end() {
        return frames::send(stream, &DaemonResponse::Ending).await;
    }
    let _in_flight = drain.enter();
    serve_call(daemon, stream, call).await
}

async fn serve_call(daemon: &Rc<Daemon>, stream: &mut UnixStream, call: VerbRequest) -> Result<()> {
    match call.question().hook {
        Some(hook) => hook::serve(daemon, stream, call, hook).await,
        None if call.question().later.is_some() => later::serve(daemon, stream, call).await,
        None => verb::serve(daemon, stream, call).await,
    }
}

/// Reads the request; `None` if the daemon lacks a resource for that. The wrapper is notified of
/// the shortage, because it would otherwise consider the daemon dead.
async fn read(stream: &mut UnixStream) -> Result<Option<ReceivedQuestion>> {
    match frames::read(stream).await {
        Ok(asked) => Ok(Some(asked)),
        Err(error) if error.is_shortage() => {
            let line = format!("the daemon could not read the request: {error}");
            warn!("{line}");
            frames::send(stream, &DaemonResponse::Unable(line)).await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
