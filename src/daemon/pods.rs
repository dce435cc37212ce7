// SPDX-License-Identifier: Apache-2.0
//! Pods: rebuilt from what a call shows, announced once, stopped after their members, removed.
//!
//! An engine with pods makes an infrastructure container for each: its `start` is the pod's
//! RunPodSandbox, its `delete` the pod's end. Without an engine every container is its own pod.

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::describe;
use crate::engine::{self, Engine, Role};
use crate::error::{Context, Error, Result, quoted};
use crate::plugin::{Event, api};
use crate::state::{Container, Lifecycle, Pod, PodState, SCHEMA};

use super::call::Call;
use super::node::Node;
use super::{lasting, messages};

/// A call and its bundle, understood.
pub(super) struct Seen {
    pub(super) engine: Engine,
    pub(super) role: Role,
    pub(super) pod: api::PodSandbox,
    pub(super) container: api::Container,
    /// The engine's own resources, as in the document (E of D21).
    pub(super) resources: Map<String, Value>,
    /// A path that is there as long as the pod, where no call marks its end.
    pub(super) lives_with: Option<String>,
}

/// Rebuilds pod and container from the call, the document, and what the engine keeps elsewhere.
/// A source that is missing or slow only makes the description poorer.
pub(super) async fn describe(node: &Node, call: &Call, document: &[u8]) -> Result<Seen> {
    let spec = describe::Spec::parse(document)?;
    let bundle = call.bundle.to_string_lossy();
    let [parent, grandparent] = call.callers(&node.host);
    let engine_call = engine::Call {
        id: &call.key.id,
        root: &call.key.root,
        bundle: &bundle,
        parent: &parent,
        grandparent: &grandparent,
        variables: &call.question().variables,
    };
    let told = spec.for_engine();
    let facts = node.sources.facts(&node.host, &engine_call, &told).await;
    for missing in &facts.missing {
        node.note_missing(facts.engine.name(), missing);
    }
    Ok(Seen {
        role: facts.role,
        pod: describe::pod(&facts, &spec),
        container: describe::container(&facts, &spec),
        resources: spec.resources(),
        lives_with: facts.pod.lives_with,
        engine: facts.engine,
    })
}

fn record(node: &Node, seen: &Seen, container: &Container) -> Pod {
    Pod {
        schema: SCHEMA,
        boot_id: node.store.borrow().boot_id().to_owned(),
        id: seen.pod.id.clone(),
        name: seen.pod.name.clone(),
        namespace: seen.pod.namespace.clone(),
        uid: seen.pod.uid.clone(),
        engine: seen.engine.name().to_owned(),
        evidence: seen.engine.evidence().to_vec(),
        pid: seen.pod.pid,
        lives_with: seen.lives_with.clone(),
        state: PodState::Created,
        sandbox: container.is_sandbox.then(|| container.key.clone()),
        message: messages::to_wire(&seen.pod),
    }
}

/// A sandbox is being created: its pod is known from here on, and announced at its start.
pub(super) fn sandbox_appears(node: &Node, seen: &Seen, container: &Container) -> Result<()> {
    let pod = record(node, seen, container);
    node.store.borrow_mut().put_pod(pod)
}

/// Tells the plugins of a pod that they have not heard of; a refusal fails what was asked.
pub(super) async fn announce(node: &Rc<Node>, seen: &Seen, container: &Container) -> Result<()> {
    let known = node.store.borrow().pod(&seen.pod.id).map(|pod| pod.state);
    match known {
        Some(PodState::Ready) => return Ok(()),
        Some(PodState::Created) => {}
        Some(PodState::Stopped) | None => {
            let pod = Pod { state: PodState::Ready, ..record(node, seen, container) };
            node.store.borrow_mut().put_pod(pod)?;
            return tell_ready(node, &seen.pod.id).await;
        }
    }
    run(node, &seen.pod.id).await
}

/// A container was made without us: its pod is known from here on, and runs if it does. Nobody
/// is told, for plugins see it when they are synchronized.
pub(super) fn adopt(node: &Node, seen: &Seen, container: &Container) -> Result<()> {
    let known = node.store.borrow().pod(&seen.pod.id).map(|pod| pod.state);
    if matches!(known, None | Some(PodState::Stopped)) {
        let pod = record(node, seen, container);
        node.store.borrow_mut().put_pod(pod)?;
    }
    if container.is_sandbox && container.state != Lifecycle::Running {
        return Ok(());
    }
    runs(node, &seen.pod.id)
}

/// A pod's sandbox was started without us.
pub(super) fn runs(node: &Node, id: &str) -> Result<()> {
    set_state(node, id, PodState::Ready)
}

/// RunPodSandbox; a refusal is followed by Stop and Remove to those who heard of the pod.
pub(super) async fn run(node: &Rc<Node>, id: &str) -> Result<()> {
    set_state(node, id, PodState::Ready)?;
    tell_ready(node, id).await
}

async fn tell_ready(node: &Rc<Node>, id: &str) -> Result<()> {
    lasting::follow(node, id);
    let Some(told) = node.told_pod(Event::RunPodSandbox, id) else { return Ok(()) };
    let Err(refusal) = node.relay.ask_leave(&told).await else { return Ok(()) };
    node.note_failure(&format!("pod {id}: {refusal}"), &refusal.plugin);
    end(node, id).await;
    Err(Error::new(quoted(&refusal.to_string())).hint("the pod was not started"))
}

fn set_state(node: &Node, id: &str, state: PodState) -> Result<()> {
    let mut store = node.store.borrow_mut();
    let Some(mut pod) = store.pod(id).cloned() else { return Ok(()) };
    let sandbox = pod.sandbox.as_ref().and_then(|key| store.container(key));
    if let Some(pid) = sandbox.and_then(|sandbox| sandbox.init_pid) {
        pod.pid = pid;
    }
    pod.state = state;
    store.put_pod(pod).doing(|| format!("recording pod {id}"))
}

/// Ends the pod if nothing of it is left: no sandbox and no member.
pub(super) async fn end_if_empty(node: &Rc<Node>, id: &str) {
    let is_empty = {
        let store = node.store.borrow();
        let mut members = store.containers().filter(|container| container.pod == id);
        !members.any(|container| container.state != Lifecycle::Removed)
    };
    if is_empty && !lasting::lasts(node, id) {
        end(node, id).await;
    }
}

/// StopPodSandbox and RemovePodSandbox, each once.
async fn end(node: &Rc<Node>, id: &str) {
    let Some(state) = node.store.borrow().pod(id).map(|pod| pod.state) else { return };
    if state == PodState::Ready {
        super::node::log_failure("stopping a pod", set_state(node, id, PodState::Stopped));
        tell(node, Event::StopPodSandbox, id).await;
    }
    if state != PodState::Created {
        tell(node, Event::RemovePodSandbox, id).await;
    }
    node.store.borrow_mut().forget_pod(id);
}

async fn tell(node: &Rc<Node>, event: Event, id: &str) {
    if let Some(told) = node.told_pod(event, id) {
        node.relay.tell_all(&told).await;
    }
}
