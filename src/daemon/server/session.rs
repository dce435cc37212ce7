// SPDX-License-Identifier: Apache-2.0
//! A connection of a wrapper, a hook or an operator: reads its request and dispatches it.

use std::os::fd::AsRawFd;
use std::rc::Rc;

use tokio::net::{UnixListener, UnixStream};
use tracing::{debug, warn};

use crate::accept;
use crate::argv::Verb;
use crate::daemon::process::requests::ReexecRequest;
use crate::daemon::request::{ReceivedQuestion, VerbRequest};
use crate::daemon::server::drain::{Drain, OpenConnection};
use crate::daemon::server::{admin, events, frames, hook, later, recording, unaccepted, verb};
use crate::daemon::shared::Daemon;
use crate::error::{Error, Result};
use crate::link::{DaemonResponse, PROTOCOL, Proceed, is_understood};

/// Serves every connection. Never ends.
pub(crate) async fn serve_all(daemon: Rc<Daemon>, drain: Rc<Drain>, listener: UnixListener) {
    loop {
        drain.until_accepting().await;
        let failed = |error: &std::io::Error| unaccepted(&daemon, "the daemon socket", error);
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
        return Err(Error::new("the peer is another user"));
    }
    let Some(asked) = read(stream).await? else { return Ok(()) };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let protocol = daemon.config().seams.protocol.unwrap_or(PROTOCOL);
    if !is_understood(protocol, asked.question.protocol) {
        let theirs = asked.question.protocol;
        daemon.report.note_failure(
            &format!(
                "a wrapper (version {}) speaks protocol {theirs}, this is {protocol}",
                asked.question.version
            ),
            "",
        );
        return frames::send(stream, &DaemonResponse::Incompatible { protocol, version }).await;
    }
    if admin::is_recording(&asked.question.admin) || admin::is_following(&asked.question.admin) {
        drop(open); // The stream has no end, and may be cut off.
        return serve_endless(daemon, stream, &asked.question.admin).await;
    }
    if admin::is_reexec(&asked.question.admin) {
        drop(open); // The next program answers on this connection.
        return reexec(daemon, stream).await;
    }
    if admin::is_stop(&asked.question.admin) {
        let document = serde_json::json!({"pid": std::process::id()});
        frames::send(stream, &DaemonResponse::Admin(document.to_string())).await?;
        // Like an operator's signal: requests in flight are finished first.
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM)?;
        return Ok(());
    }
    if !asked.question.admin.is_empty() {
        let slow = async { Ok(admin::answer_slowly(daemon, &asked.question.admin).await) };
        return match frames::with_heartbeat(stream, slow).await?? {
            Some(answer) => frames::send(stream, &answer).await,
            None => admin::serve(daemon, stream, &asked.question.admin).await,
        };
    }
    let Some(call) = VerbRequest::new(asked) else {
        return frames::send(stream, &DaemonResponse::Proceed(Proceed::default())).await;
    };
    // A delete, a kill or an exec never waits, nor does a hook that reports a past event.
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

async fn serve_endless(daemon: &Rc<Daemon>, stream: &mut UnixStream, question: &str) -> Result<()> {
    if admin::is_recording(question) {
        return recording::serve(daemon, stream).await;
    }
    events::follow(daemon, stream, question).await
}

/// Reads the request; `None` if the daemon lacks a resource for it. The wrapper is notified,
/// because it would otherwise consider the daemon dead.
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

/// Waits for the program that replaces the daemon's, which then answers; or answers why it could
/// not.
async fn reexec(daemon: &Rc<Daemon>, stream: &mut UnixStream) -> Result<()> {
    let request = ReexecRequest { descriptor: stream.as_raw_fd() };
    let asked = frames::with_heartbeat(stream, daemon.process.reexecs.ask(request)).await?;
    let answer = match asked {
        Ok(document) => DaemonResponse::Admin(document.to_string()),
        Err(error) => DaemonResponse::Refuse(error.to_string()),
    };
    frames::send(stream, &answer).await
}
