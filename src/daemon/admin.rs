// SPDX-License-Identifier: Apache-2.0
//! What the daemon tells operators: one JSON document for each admin verb, in the shapes that
//! others script against. It changes nothing.

use std::rc::Rc;

use serde_json::{Value, json};

use crate::link::Answer;
use crate::state::Container;

use super::identity::Contradiction;
use super::node::Node;
use super::plugins::NRI_VERSION;
use super::reload::StartedWith;
use super::{roster, route};

/// Answers an admin question.
pub(super) fn answer(node: &Rc<Node>, question: &str) -> Answer {
    let question: Value = serde_json::from_str(question).unwrap_or_default();
    let verb = question["verb"].as_str().unwrap_or_default();
    let document = match verb {
        "status" => status(node),
        "plugins" => roster::shown(&node.relay),
        "pods" => pods(node),
        "explain" => match explain(node, question["id"].as_str().unwrap_or_default()) {
            Ok(document) => document,
            Err(line) => return Answer::Refuse(line),
        },
        other => return Answer::Refuse(format!("the daemon does not know the admin verb {other}")),
    };
    Answer::Admin(document.to_string())
}

/// Whether the question wants a recording, which goes on and on.
pub(super) fn is_recording(question: &str) -> bool {
    let question: Value = serde_json::from_str(question).unwrap_or_default();
    question["verb"] == "record"
}

fn status(node: &Node) -> Value {
    let started_with = node.started_with.get();
    let store = node.store.borrow();
    let failures = node.failures.borrow();
    let failures: Vec<Value> = failures
        .iter()
        .map(|note| json!({"at": note.at, "what": note.what, "plugin": note.plugin}))
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "nri_version": NRI_VERSION,
        "pid": std::process::id(),
        "run_dir": node.config.run_dir,
        "configuration": started_with.map(StartedWith::to_json),
        "program": started_with.map(StartedWith::program),
        "supervisor": started_with.and_then(StartedWith::supervisor),
        "uptime_seconds": node.started.elapsed().as_secs(),
        "plugins": node.relay.guests().len(),
        "pods": store.pods().count(),
        "containers": store.containers().filter(|container| !container.is_sandbox).count(),
        "requests": *node.requests.borrow(),
        "failures": failures,
        "bypassed": node.requests.borrow().get("bypassed").copied().unwrap_or_default(),
        "found": store.containers().filter(|container| container.is_found).count(),
        "set_aside": store.set_aside(),
        "unwritten": store.unwritten(),
        "missing": missing(node),
        "contradictions": contradictions(node),
        "plugin_socket": node.plugin_socket.line(),
        "plugin_socket_state": node.plugin_socket.to_json(&node.config.socket_path),
        "pass_through": node.is_bystander(),
    })
}

/// What of the engines could not be read.
fn missing(node: &Node) -> Value {
    let missing = node.missing.borrow();
    let rows = missing.iter().map(|((engine, what), note)| {
        json!({"engine": engine, "what": what, "count": note.count, "at": note.at, "id": note.id})
    });
    rows.collect()
}

/// What tenants claimed of who they are, and was not believed.
fn contradictions(node: &Node) -> Value {
    let notes = node.contradictions.borrow();
    let row = |note: &Contradiction| json!({"at": note.at, "id": note.id, "engine": note.engine, "what": note.what});
    notes.iter().map(row).collect()
}

fn pods(node: &Node) -> Value {
    let store = node.store.borrow();
    let rows = store.pods().map(|pod| {
        let members = store.of_pod(&pod.id).filter(|container| !container.is_sandbox);
        let containers: Vec<Value> = members
            .map(|container| {
                json!({
                    "id": container.key.id,
                    "name": container.name,
                    "state": state(node, container),
                    "pid": container.init_pid,
                    "found": container.is_found,
                })
            })
            .collect();
        json!({
            "id": pod.id,
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "engine": pod.engine,
            "evidence": pod.evidence,
            "state": pod.state.name(),
            "containers": containers,
        })
    });
    Value::Array(rows.collect())
}

fn state(node: &Node, container: &Container) -> &'static str {
    if route::is_paused(node, container) { "paused" } else { container.state.name() }
}

/// Who changed what: by id, a prefix of one, or pod-namespace/pod-name/container-name; on engines
/// without pods by name alone. The youngest of several containers of one id is meant.
fn explain(node: &Node, wanted: &str) -> Result<Value, String> {
    let store = node.store.borrow();
    let living = store.containers().filter(|container| !container.is_sandbox);
    let mut found: Vec<&Container> =
        living.chain(store.gone()).filter(|container| is_meant(node, container, wanted)).collect();
    found.sort_by_key(|container| container.incarnation);
    if let Some(exact) = found.iter().rev().find(|container| container.key.id == wanted) {
        return Ok(explained(node, exact));
    }
    let mut ids: Vec<&str> = found.iter().map(|container| container.key.id.as_str()).collect();
    ids.dedup();
    match (found.last(), ids.len()) {
        (Some(container), 1) => Ok(explained(node, container)),
        (Some(_), _) => Err(format!("\"{wanted}\" is ambiguous: {}", ids.join(", "))),
        (None, _) => Err(format!("no container {wanted} is known (see: nri-runc nri pods)")),
    }
}

fn is_meant(node: &Node, container: &Container, wanted: &str) -> bool {
    if wanted.is_empty() {
        return false;
    }
    if container.key.id.starts_with(wanted) {
        return true;
    }
    let (namespace, name) = pod_of(node, container);
    wanted == format!("{namespace}/{name}/{}", container.name)
        || namespace.is_empty() && wanted == container.name
}

/// Namespace and name of its pod, which may be gone; records of older daemons have neither.
fn pod_of(node: &Node, container: &Container) -> (String, String) {
    match node.store.borrow().pod(&container.pod) {
        Some(pod) => (pod.namespace.clone(), pod.name.clone()),
        None if container.pod_name.is_empty() => (String::new(), container.pod.clone()),
        None => (container.pod_namespace.clone(), container.pod_name.clone()),
    }
}

fn explained(node: &Node, container: &Container) -> Value {
    let (_namespace, pod) = pod_of(node, container);
    json!({
        "id": container.key.id,
        "pod": pod,
        "name": container.name,
        "state": state(node, container),
        "engine": container.engine,
        "evidence": container.evidence,
        "runtime": container.runtime,
        "bundle": container.bundle,
        "found": container.is_found,
        "owners": container.owners,
        "changes": container.changes,
        "refused": container.refused,
        "skipped": container.skipped,
    })
}
