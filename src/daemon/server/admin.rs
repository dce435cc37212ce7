// SPDX-License-Identifier: Apache-2.0
//! Answers operators with one JSON document for each admin verb, or with a stream, in a form that scripts depend on.
//! This module changes nothing itself: `recovery`, `reload` and `reexec` carry out changes, and `stop` is a signal to
//! this process.
//!
//! A node may have thousands of pods whose authors choose their labels, so the list of pods is sent
//! while it is built, and never held in memory as a whole.

use std::os::fd::AsRawFd;
use std::rc::Rc;

use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::warn;

use crate::answers::{
    AdminRequest, AuditCounts, ContainerRow, DriftAnswer, MetricsText, Noted, OutdatedPlugin,
    PodRow, PromiseRow, RefusedRecords, RequiredPlugin, Status, Stopping, TopAnswer,
};
use crate::daemon::process::requests::{ReexecRequest, ReloadRequest};
use crate::daemon::process::started_with::StartedWith;
use crate::daemon::recovery::{enabled, lost, node_scope};
use crate::daemon::registry::Registry;
use crate::daemon::resources::drift;
use crate::daemon::server::drain::OpenConnection;
use crate::daemon::server::events as event_stream;
use crate::daemon::server::{explain, exposed, frames, holdings, policy, recent, recording, rows};
use crate::daemon::shared::{Daemon, Report, events};
use crate::error::{Error, Result, quoted};
use crate::limits;
use crate::link::DaemonResponse;
use crate::plugin::NRI_VERSION;
use crate::state::{Container, Lifecycle, Skipped, Store};
use crate::text::rfc3339_nanos;

/// Pods listed in a row before other tasks get a turn.
const AT_ONCE: usize = 100;

/// Answers an admin request on its connection. `open` is dropped early for answers that need not
/// delay a re-execution.
///
/// # Errors
/// Fails when the operator's command has exited, or does not read.
pub(crate) async fn serve(
    daemon: &Rc<Daemon>,
    stream: &mut UnixStream,
    open: OpenConnection,
    text: &str,
) -> Result<()> {
    let request = match AdminRequest::parse(text) {
        Ok(request) => request,
        Err(error) => return send(stream, Err(error)).await,
    };
    let answer = match request {
        AdminRequest::Pods => return send_pods(daemon, stream, String::new(), "").await,
        AdminRequest::Top => {
            let begin = to_json(Ok(top(daemon)))?.trim_end_matches("[]}").to_owned();
            return send_pods(daemon, stream, begin, "}").await;
        }
        AdminRequest::Record => {
            drop(open); // A recording has no end, so a re-execution may cut it off.
            return recording::serve(daemon, stream).await;
        }
        AdminRequest::Events { since, follow: true } => {
            drop(open); // The event stream has no end either.
            return event_stream::follow(&daemon.stream, stream, &since).await;
        }
        AdminRequest::Stop => {
            send(stream, to_json(Ok(Stopping { pid: std::process::id() }))).await?;
            // This has the effect of an operator's signal: requests in flight are finished first.
            return Ok(nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM)?);
        }
        AdminRequest::Reexec => {
            drop(open); // The next program answers, or this one if the re-execution fails.
            let request = ReexecRequest { descriptor: stream.as_raw_fd() };
            slow(stream, daemon.process.reexecs.ask(request)).await
        }
        AdminRequest::Reload { dry_run } => {
            let request = ReloadRequest { is_dry: dry_run };
            slow(stream, daemon.process.reloads.ask(request)).await
        }
        AdminRequest::Forget { id, force } => slow(stream, lost::forget(daemon, &id, force)).await,
        AdminRequest::Drift { id } => slow(stream, drift(daemon, id.as_deref())).await,
        AdminRequest::Unseen => slow(stream, node_scope::unseen(daemon)).await,
        AdminRequest::Recent => slow(stream, recent::show_all(daemon.report.flight.calls())).await,
        AdminRequest::Status => to_json(Ok(status(daemon))),
        AdminRequest::Plugins => to_json(Ok(daemon.registry.rows())),
        AdminRequest::PluginOutput { plugin } => to_json(daemon.registry.output_of(&plugin)),
        AdminRequest::SocketMounts => to_json(Ok(exposed::socket_mounts(daemon))),
        AdminRequest::Metrics => to_json(Ok(MetricsText { text: holdings::metrics_text(daemon) })),
        AdminRequest::Explain { id } => to_json(explain::explain(daemon, &id)),
        AdminRequest::Policy { pod, plugins } => to_json(policy::policy(daemon, &pod, plugins)),
        AdminRequest::Events { since, follow: false } => {
            to_json(event_stream::read(&daemon.stream, &since))
        }
        AdminRequest::Switched { off, by } => to_json(Ok(note_switch(daemon, off, &by))),
        AdminRequest::Unknown => Err(AdminRequest::refuse_unknown(text)),
    };
    send(stream, answer).await
}

fn to_json(answer: Result<impl Serialize>) -> Result<String> {
    serde_json::to_string(&answer?).map_err(|error| Error::new(error.to_string()))
}

/// Sends heartbeats until the answer is ready: `forget` notifies plugins, `drift` reads files of all
/// containers.
async fn slow(
    stream: &mut UnixStream,
    answer: impl Future<Output = Result<impl Serialize>>,
) -> Result<String> {
    to_json(frames::with_heartbeat(stream, answer).await)
}

/// Sends an answer, or the line that refuses the request.
async fn send(stream: &mut UnixStream, answer: Result<String>) -> Result<()> {
    let refuse = |error: Error| DaemonResponse::Refuse(error.to_string());
    frames::send(stream, &answer.map_or_else(refuse, DaemonResponse::Admin)).await
}

/// Sends the list of pods, between `begin` and `end`, in parts.
async fn send_pods(
    daemon: &Daemon,
    stream: &mut UnixStream,
    begin: String,
    end: &str,
) -> Result<()> {
    let ids: Vec<String> = daemon.records.read().pods().map(|pod| pod.id.clone()).collect();
    let (mut text, mut separator, mut sent) = (begin + "[", "", Instant::now());
    for (number, id) in ids.iter().enumerate() {
        if number % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        if sent.elapsed() >= frames::HEARTBEAT {
            frames::send(stream, &DaemonResponse::Heartbeat).await?;
            sent = Instant::now();
        }
        // The pod may be gone by now.
        let Some(row) = pod_row(daemon, id) else { continue };
        text += separator;
        text += &to_json(Ok(row))?;
        separator = ",";
        if text.len() > limits::ADMIN_PART {
            text = frames::send_parts(stream, &text).await?.to_owned();
        }
    }
    frames::send(stream, &DaemonResponse::Admin(text + "]" + end)).await
}

/// Compares values that plugins and injections own with the kernel's, for the containers that match `wanted`, or all.
async fn drift(daemon: &Rc<Daemon>, wanted: Option<&str>) -> Result<DriftAnswer> {
    let keys = wanted.map(|wanted| explain::living(&daemon.records.read(), wanted)).transpose()?;
    Ok(drift::look(daemon, keys, None).await.into_answer())
}

fn status(daemon: &Daemon) -> Status {
    daemon.report.note_audit_failure();
    let started_with = daemon.process.started_with.get();
    let store = daemon.records.read();
    let report = &daemon.report;
    let requests = report.requests.borrow();
    let refused = daemon.records.refusals();
    let listed = store.containers().filter(|container| !container.is_sandbox);
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        nri_version: NRI_VERSION.to_owned(),
        pid: std::process::id(),
        run_dir: daemon.config().run_dir.clone(),
        log: crate::log::shown_by(),
        log_lines_lost: crate::log::lost(),
        log_failure: crate::log::failure(),
        configuration: started_with.map(|with| with.in_force(&daemon.config())),
        program: started_with.map(|with| with.program().clone()),
        supervisor: started_with.and_then(StartedWith::supervisor).map(str::to_owned),
        uptime_seconds: daemon.report.started.elapsed().as_secs(),
        plugins: daemon.registry.count(),
        pods: store.pods().count(),
        containers: listed.count(),
        requests: requests.iter().map(|(verb, count)| ((*verb).to_owned(), *count)).collect(),
        failures: report.failures.borrow().iter().map(|(_, failure)| failure.clone()).collect(),
        bypassed: requests.get("bypassed").copied().unwrap_or_default(),
        found: store.containers().filter(|container| container.is_found).count(),
        set_aside: store.set_aside(),
        unadjusted: unadjusted(&store),
        unwritten: store.unwritten().into_iter().map(str::to_owned).collect(),
        records_refused: refused.map(|(count, why)| RefusedRecords { count, why }),
        audit: audit(&daemon.report),
        outdated_plugins: outdated(&daemon.registry),
        absent_plugins: daemon.registry.absent(),
        missing: report.missing.borrow().values().cloned().collect(),
        contradictions: report.contradictions.borrow().iter().cloned().collect(),
        plugin_socket: daemon.registry.socket.line(),
        plugin_socket_state: daemon.registry.socket.state(&daemon.config().socket_path),
        pass_through: daemon.is_bystander(),
        disabled: holdings::switched_off(daemon).is_some(),
        disabled_by: holdings::switched_off(daemon).map(str::to_owned),
        required: required(daemon),
        promises: Some(promises(daemon)),
        refused_connections: daemon.report.connections.rows(),
    }
}

/// Returns the answer to `top`, without its pods.
fn top(daemon: &Daemon) -> TopAnswer {
    let (plugins, metrics) = (daemon.registry.rows(), &daemon.report.metrics);
    let containers = holdings::states(&daemon.records).into_iter();
    TopAnswer {
        status: status(daemon),
        calls: plugins.iter().map(|row| metrics.plugins().counts(&row.id())).collect(),
        plugins,
        containers: containers.map(|(state, count)| (state.to_owned(), count)).collect(),
        requests: metrics.requests(),
        pods: Vec::new(),
    }
}

/// Returns the containers that were created without plugins because the daemon was unavailable, and have not stopped:
/// at most `limits::UNADJUSTED`.
fn unadjusted(store: &Store) -> Vec<String> {
    let lives = |container: &&Container| {
        !matches!(container.state, Lifecycle::Stopped | Lifecycle::Removed)
    };
    let bypassed =
        |container: &&Container| container.outcome.skipped.iter().any(Skipped::is_bypassed_create);
    let containers = store.containers().filter(|container| !container.is_sandbox);
    let ids = containers.filter(lives).filter(bypassed).map(|container| container.key.id.clone());
    ids.take(limits::UNADJUSTED).collect()
}

/// Returns how many lines the audit log has written and lost, and why it cannot be written now; `None`
/// without an audit log.
fn audit(report: &Report) -> Option<AuditCounts> {
    let log = &report.audit;
    let counts = log.is_on().then(|| log.counts())?;
    let (written, lost, failure) = (counts.written(), counts.lost(), counts.failing());
    Some(AuditCounts { written, lost, failure })
}

/// Returns launched plugins that run an older program or configuration than their files.
fn outdated(registry: &Registry) -> Vec<OutdatedPlugin> {
    let outdated = registry.roster.outdated().into_iter();
    outdated.map(|(plugin, why)| OutdatedPlugin { plugin, why }).collect()
}

/// Makes the daemon catch up after plugins were disabled or enabled, and logs which user did that.
fn note_switch(daemon: &Rc<Daemon>, off: bool, who: &str) -> Noted {
    enabled::catch_up(daemon);
    let who = quoted(who);
    if off {
        warn!("plugins were disabled by {who}: every command goes straight to the runtime");
    } else {
        warn!("plugins were enabled again by {who}");
    }
    Noted {}
}

/// Returns the plugins that every container requires, and whether they are connected now.
fn required(daemon: &Daemon) -> Vec<RequiredPlugin> {
    let row =
        |plugin: String| RequiredPlugin { connected: daemon.registry.is_present(&plugin), plugin };
    holdings::required_plugins(daemon).into_iter().map(row).collect()
}

/// Returns the promises in both modes, and whether their plugins are connected now.
fn promises(daemon: &Daemon) -> Vec<PromiseRow> {
    let config = daemon.config();
    let is_there = |name: &str| !daemon.is_bystander() && daemon.registry.is_present(name);
    let rows = config.promises.iter().map(|section| PromiseRow {
        promise: section.name.clone(),
        plugin: section.plugin.clone(),
        mode: section.mode,
        connected: is_there(&section.plugin),
    });
    rows.collect()
}

fn pod_row(daemon: &Daemon, id: &str) -> Option<PodRow> {
    let store = daemon.records.read();
    let pod = store.pod(id)?;
    let members = store.of_pod(&pod.id).filter(|container| !container.is_sandbox);
    let containers = members.map(|container| ContainerRow {
        id: container.key.id.clone(),
        name: container.name.clone(),
        state: rows::state(daemon, container),
        pid: container.process.init_pid,
        found: container.is_found,
        times: rows::times(container),
    });
    // A pod is as old as its first container; an infrastructure container comes first.
    let times = store.of_pod(&pod.id).filter_map(|container| container.process.created_at);
    let created_at = times.min().unwrap_or_default();
    Some(PodRow {
        id: pod.id.clone(),
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        uid: pod.uid.clone(),
        engine: pod.engine.to_string(),
        evidence: pod.evidence.clone(),
        state: pod.state.into(),
        labels: Some(events::ruled_pod(pod).labels),
        created_at,
        created_time: rfc3339_nanos(created_at),
        containers: containers.collect(),
    })
}
