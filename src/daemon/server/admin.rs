// SPDX-License-Identifier: Apache-2.0
//! Answers operators with one JSON document for each admin verb, or with a stream, in a form that scripts depend on.
//! This module changes nothing itself; `recovery` and `reload` carry out changes.
//!
//! A node may have thousands of pods whose authors choose their labels, so the list of pods is sent
//! while it is built, and never held in memory as a whole.

use std::os::fd::AsRawFd;
use std::rc::Rc;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::warn;

use crate::answers::{
    AuditCounts, ContainerRow, DriftAnswer, MetricsText, OutdatedPlugin, PodRow, PromiseRow,
    RefusedRecords, RequiredPlugin, Status, TopAnswer, Unseen,
};
use crate::config::RuleMode;
use crate::daemon::process::requests::{ReexecRequest, ReloadRequest};
use crate::daemon::process::started_with::StartedWith;
use crate::daemon::recovery::{enabled, lost, node_scope};
use crate::daemon::resources::drift;
use crate::daemon::server::drain::OpenConnection;
use crate::daemon::server::events as event_stream;
use crate::daemon::server::{explain, exposed, frames, holdings, policy, recent, recording, rows};
use crate::daemon::shared::{Daemon, events};
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
    question: &str,
) -> Result<()> {
    let question: Value = serde_json::from_str(question).unwrap_or_default();
    let answer = match question["verb"].as_str().unwrap_or_default() {
        "pods" => return send_pods(daemon, stream, String::new(), "").await,
        "top" => {
            let text = text(&top(daemon))?;
            let begin = text.trim_end_matches("[]}").to_owned();
            return send_pods(daemon, stream, begin, "}").await;
        }
        "record" => {
            drop(open); // A recording has no end, so a re-execution may cut it off.
            return recording::serve(daemon, stream).await;
        }
        "events" if question["follow"] == true => {
            drop(open); // The event stream has no end either.
            return event_stream::follow(daemon, stream, &question["since"]).await;
        }
        "reexec" => {
            drop(open); // The next program answers, or this one if the re-execution fails.
            let request = ReexecRequest { descriptor: stream.as_raw_fd() };
            let asked = frames::with_heartbeat(stream, daemon.process.reexecs.ask(request)).await;
            asked.map_err(|error| error.to_string())
        }
        "stop" => {
            let document = json!({"pid": std::process::id()});
            frames::send(stream, &DaemonResponse::Admin(document.to_string())).await?;
            // This has the effect of an operator's signal: requests in flight are finished first.
            return Ok(nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM)?);
        }
        verb => {
            let answer = async { Ok(answer(daemon, verb, &question).await) };
            frames::with_heartbeat(stream, answer).await?
        }
    };
    let document = answer.map(|document| DaemonResponse::Admin(document.to_string()));
    frames::send(stream, &document.unwrap_or_else(DaemonResponse::Refuse)).await
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
        text += &self::text(&row)?;
        separator = ",";
        if text.len() > limits::ADMIN_PART {
            text = frames::send_parts(stream, &text).await?.to_owned();
        }
    }
    frames::send(stream, &DaemonResponse::Admin(text + "]" + end)).await
}

/// Converts a document to text.
///
/// # Errors
/// Never fails: every member has a JSON form.
fn text(document: &impl Serialize) -> Result<String> {
    serde_json::to_string(document).map_err(|error| Error::new(error.to_string()))
}

/// Returns the document that answers `verb`, or the line that refuses it. This may take long: `forget`
/// notifies plugins, and `drift` reads files of all containers.
async fn answer(
    daemon: &Rc<Daemon>,
    verb: &str,
    question: &Value,
) -> std::result::Result<Value, String> {
    let given = |what: &str| question[what].as_str().unwrap_or_default();
    let document = match verb {
        "status" => Ok(json!(status(daemon))),
        "plugins" => Ok(json!(daemon.registry.rows())),
        "plugin_output" => return Ok(json!(daemon.registry.output_of(given("plugin"))?)),
        "socket_mounts" => Ok(json!(exposed::socket_mounts(daemon))),
        "unseen" => node_scope::unseen(daemon).await.map(|count| json!(Unseen { count })),
        "reload" => reload(daemon, question["dry_run"] == true).await,
        "recent" => {
            let calls = daemon.report.flight.calls();
            let shown = tokio::task::spawn_blocking(move || recent::show_all(&calls)).await;
            Ok(shown.unwrap_or_default())
        }
        "metrics" => Ok(json!(MetricsText { text: holdings::metrics_text(daemon) })),
        "explain" => return Ok(json!(explain::explain(daemon, given("id"))?)),
        "policy" => return Ok(json!(policy::policy(daemon, given("pod"), &question["plugins"])?)),
        "events" => event_stream::read(daemon, &question["since"]),
        "switched" => {
            enabled::catch_up(daemon);
            Ok(log_switch(question["off"] == true, given("by")))
        }
        "forget" if question["id"].is_string() => {
            let forgotten = lost::forget(daemon, given("id"), question["force"] == true).await;
            forgotten.map(|forgotten| json!(forgotten))
        }
        "drift" => drift(daemon, question["id"].as_str()).await.map(|answer| json!(answer)),
        other => {
            let unknown = format!("the daemon does not know the verb {other}");
            return Err(unknown);
        }
    };
    document.map_err(|error| error.to_string())
}

/// Compares values that plugins own with the kernel's, for the containers that match `wanted`, or for all.
async fn drift(daemon: &Rc<Daemon>, wanted: Option<&str>) -> Result<DriftAnswer> {
    let keys = wanted.map(|wanted| explain::living(daemon, wanted)).transpose()?;
    Ok(drift::look(daemon, keys, None).await.into_answer())
}

async fn reload(daemon: &Daemon, is_dry: bool) -> Result<Value> {
    daemon.process.reloads.ask(ReloadRequest { is_dry }).await
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
        audit: audit(daemon),
        outdated_plugins: outdated(daemon),
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
    let containers = holdings::states(daemon).into_iter();
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
fn audit(daemon: &Daemon) -> Option<AuditCounts> {
    let log = &daemon.report.audit;
    let counts = log.is_on().then(|| log.counts())?;
    let (written, lost, failure) = (counts.written(), counts.lost(), counts.failing());
    Some(AuditCounts { written, lost, failure })
}

/// Returns launched plugins that run an older program or configuration than their files.
fn outdated(daemon: &Daemon) -> Vec<OutdatedPlugin> {
    let outdated = daemon.registry.roster.outdated().into_iter();
    outdated.map(|(plugin, why)| OutdatedPlugin { plugin, why }).collect()
}

/// Logs that plugins were disabled or enabled, and by which user.
fn log_switch(off: bool, who: &str) -> Value {
    let who = quoted(who);
    if off {
        warn!("plugins were disabled by {who}: every command goes straight to the runtime");
    } else {
        warn!("plugins were enabled again by {who}");
    }
    json!({})
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
        mode: RuleMode::of(section.refuses()),
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
