// SPDX-License-Identifier: Apache-2.0
//! Pods: rebuilt from what a call shows, announced once, stopped after their members, removed.
//!
//! An engine with pods makes an infrastructure container for each: its `start` is the pod's
//! RunPodSandbox, its `delete` the pod's end. Without an engine every container is its own pod.

use std::path::Path;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::describe;
use crate::engine::EngineKind;
use crate::engine::{self, DetectedEngine, Role};
use crate::error::{Context, Error, Result, quoted};
use crate::host::Point;
use crate::plugin::{Event, api};
use crate::state::{Container, Lifecycle, Pod, PodState, SCHEMA};

use crate::daemon::node::messages;
use crate::daemon::node::{Node, log_failure};
use crate::daemon::pods::crio_added;
use crate::daemon::pods::crio_removed;
use crate::daemon::request::call::Call;
use crate::daemon::request::identity;

/// A call and its bundle, understood.
pub(crate) struct Seen {
    pub(crate) engine: DetectedEngine,
    pub(crate) role: Role,
    pub(crate) pod: api::PodSandbox,
    pub(crate) container: api::Container,
    /// The engine's own resources, as in the document (E of D21).
    pub(crate) resources: Map<String, Value>,
    /// A path that is there as long as the pod, where no call marks its end.
    pub(crate) lives_with: Option<String>,
    /// Whether the pod is in an exempt namespace, by a word that counts.
    pub(crate) is_exempt: bool,
    /// Whether somebody who is not believed may have written the namespace.
    pub(crate) has_unproven_namespace: bool,
    /// What a tenant claims otherwise.
    pub(crate) contradictions: Vec<String>,
}

/// Rebuilds pod and container from the call, the document, and what the engine keeps elsewhere.
/// A source that is missing or slow only makes the description poorer.
pub(crate) async fn describe(node: &Node, call: &Call, document: &[u8]) -> Result<Seen> {
    let spec = describe::Spec::parse(document)?;
    let bundle = call.bundle.to_string_lossy();
    let [parent, grandparent] = call.callers(&node.host);
    let engine_call = engine::CallerInfo {
        id: &call.key.id,
        root: &call.key.root,
        bundle: &bundle,
        parent: &parent,
        grandparent: &grandparent,
        variables: &call.question().variables,
    };
    let told = spec.for_engine();
    let mut facts = node.sources.facts(&node.host, &engine_call, &told).await;
    for missing in &facts.missing {
        node.note_missing(facts.engine.name(), missing, &call.key.id);
    }
    let is_exempt = identity::judge(node, &mut facts);
    identity::note(node, &call.key.id, &facts);
    Ok(Seen {
        is_exempt,
        has_unproven_namespace: facts.has_unproven_namespace(),
        role: facts.role,
        pod: describe::pod(&facts, &spec),
        container: describe::container(&facts, &spec),
        resources: spec.resources(),
        lives_with: facts.pod.lives_with,
        contradictions: facts.contradictions,
        engine: facts.engine,
    })
}

/// The same from the document of an infrastructure container that is not there; `None` where it is
/// something else.
pub(crate) async fn describe_folder(
    node: &Node,
    folder: &Path,
    id: &str,
    document: &[u8],
) -> Result<Option<Seen>> {
    let spec = describe::Spec::parse(document)?;
    let bundle = folder.to_string_lossy();
    let nobody = engine::CallerInfo {
        id,
        root: "",
        bundle: &bundle,
        parent: &[],
        grandparent: &[],
        variables: &[],
    };
    let told = spec.for_engine();
    if !engine::is_pod_without_runtime(&nobody, &told) {
        return Ok(None);
    }
    let mut facts = node.sources.facts(&node.host, &nobody, &told).await;
    let is_exempt = identity::judge(node, &mut facts);
    identity::note(node, id, &facts);
    Ok(Some(Seen {
        is_exempt,
        has_unproven_namespace: facts.has_unproven_namespace(),
        role: facts.role,
        pod: describe::pod(&facts, &spec),
        container: api::Container::default(),
        resources: Map::new(),
        lives_with: Some(folder.join("config.json").to_string_lossy().into_owned()),
        contradictions: facts.contradictions,
        engine: facts.engine,
    }))
}

fn record(node: &Node, seen: &Seen, container: Option<&Container>) -> Pod {
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
        has_unproven_namespace: seen.has_unproven_namespace,
        state: PodState::Created,
        sandbox: container.filter(|known| known.is_sandbox).map(|known| known.key.clone()),
        message: messages::pod_to_wire(&seen.pod),
        refused: Vec::new(),
        skipped: Vec::new(),
        unknown: Default::default(),
    }
}

/// All changes to a pod's record go through here.
fn put(node: &Node, pod: Pod) -> Result<()> {
    node.host.point(Point::DaemonPod)?;
    let written = node.store.borrow_mut().put_pod(pod);
    written.map_err(|error| error.hint("nothing was changed or started"))
}

/// A sandbox is being created: its pod is known from here on, and announced at its start, unless a
/// folder that promised that there would be none has announced it.
pub(crate) fn sandbox_appears(node: &Node, seen: &Seen, container: &Container) -> Result<()> {
    let known = node.store.borrow().pod(&seen.pod.id).cloned();
    let is_told = known.is_some_and(|pod| pod.state == PodState::Ready && pod.sandbox.is_none());
    let state = if is_told { PodState::Ready } else { PodState::Created };
    put(node, Pod { state, ..record(node, seen, Some(container)) })
}

/// A pod came without a call: it is announced, unless a container has come before.
pub(crate) async fn arrives(node: &Rc<Node>, seen: &Seen) -> Result<()> {
    let lane = node.pod_lane(&seen.pod.id);
    let _turn = lane.turn.lock().await;
    if node.store.borrow().pod(&seen.pod.id).is_some() {
        return Ok(());
    }
    adopt_arrived(node, seen)?;
    tell_ready(node, &seen.pod.id).await
}

/// The same before plugins come, who see it when they are synchronized.
pub(crate) fn adopt_arrived(node: &Node, seen: &Seen) -> Result<()> {
    put(node, Pod { state: PodState::Ready, ..record(node, seen, None) })
}

/// Tells the plugins of a pod that they have not heard of; a refusal fails what was asked.
pub(crate) async fn announce(node: &Rc<Node>, seen: &Seen, container: &Container) -> Result<()> {
    let lane = node.pod_lane(&seen.pod.id);
    // A concurrent request waits until RunPodSandbox was delivered.
    let _turn = lane.turn.lock().await;
    let known = node.store.borrow().pod(&seen.pod.id).map(|pod| pod.state);
    match known {
        Some(PodState::Ready) => return learn(node, seen),
        Some(PodState::Created) => {}
        Some(PodState::Stopped) | None => {
            let pod = Pod { state: PodState::Ready, ..record(node, seen, Some(container)) };
            put(node, pod)?;
            return tell_ready(node, &seen.pod.id).await;
        }
    }
    begin(node, &seen.pod.id).await
}

/// Podman's `kube play` gives the annotations of the YAML to the members of a pod, not to its
/// infrastructure container: the first member that is seen tells them.
fn learn(node: &Node, seen: &Seen) -> Result<()> {
    let known = node.store.borrow().pod(&seen.pod.id).cloned();
    let known = known.filter(|pod| EngineKind::named(&pod.engine) == Some(EngineKind::Podman));
    let Some(mut pod) = known else { return Ok(()) };
    let mut message = messages::pod(&pod);
    let known = message.annotations.len();
    for (key, value) in &seen.pod.annotations {
        message.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
    if message.annotations.len() == known {
        return Ok(());
    }
    pod.message = messages::pod_to_wire(&message);
    put(node, pod)
}

/// A container was made without us: its pod is known from here on, and runs if it does. Nobody
/// is told, for plugins see it when they are synchronized.
pub(crate) fn adopt(node: &Node, seen: &Seen, container: &Container) -> Result<()> {
    let known = node.store.borrow().pod(&seen.pod.id).map(|pod| pod.state);
    if matches!(known, None | Some(PodState::Stopped)) {
        put(node, record(node, seen, Some(container)))?;
    }
    if container.is_sandbox && container.state != Lifecycle::Running {
        return Ok(());
    }
    runs(node, &seen.pod.id)
}

/// A pod's sandbox was started without us.
pub(crate) fn runs(node: &Node, id: &str) -> Result<()> {
    set_state(node, id, PodState::Ready)
}

/// RunPodSandbox; a refusal is followed by Stop and Remove to those who heard of the pod.
pub(crate) async fn run(node: &Rc<Node>, id: &str) -> Result<()> {
    let lane = node.pod_lane(id);
    let _turn = lane.turn.lock().await;
    if node.store.borrow().pod(id).is_some_and(|pod| pod.state == PodState::Ready) {
        return set_state(node, id, PodState::Ready); // Its process is known now.
    }
    begin(node, id).await
}

/// The same, with the pod's lane held.
async fn begin(node: &Rc<Node>, id: &str) -> Result<()> {
    if let Err(error) = set_state(node, id, PodState::Ready) {
        forget_if_orphan(node, id);
        return Err(error);
    }
    tell_ready(node, id).await
}

async fn tell_ready(node: &Rc<Node>, id: &str) -> Result<()> {
    if let Err(error) = node.host.point(Point::DaemonAnnounce) {
        forget_if_orphan(node, id);
        return Err(error);
    }
    crio_removed::follow(node, id);
    let document = node.store.borrow().pod(id).and_then(|pod| pod.lives_with.clone());
    if let Some(document) = document {
        crio_added::learn(node, &document);
    }
    let Some(told) = node.told_pod(Event::RunPodSandbox, id) else { return Ok(()) };
    let (skipped, allowed) = node.relay.notify_until_refused(&told).await;
    let error = allowed.err().map(|refusal| {
        let why = quoted(&refusal.to_string());
        Error::new(why).hint("the pod was not started").by(refusal.plugin)
    });
    if error.is_some() || !skipped.is_empty() {
        node.note_pod(id, |pod| {
            pod.skipped.extend(skipped);
            pod.refused.extend(error.iter().map(ToString::to_string));
        });
    }
    let Some(error) = error else { return Ok(()) };
    end(node, id).await;
    Err(error)
}

fn set_state(node: &Node, id: &str, state: PodState) -> Result<()> {
    let Some(mut pod) = node.store.borrow().pod(id).cloned() else { return Ok(()) };
    let sandbox = pod.sandbox.as_ref().and_then(|key| node.container(key));
    if let Some(pid) = sandbox.and_then(|sandbox| sandbox.init_pid) {
        pod.pid = pid;
    }
    pod.state = state;
    put(node, pod).doing(|| format!("recording pod {id}"))
}

/// Ends the pod if nothing of it is left: no sandbox and no member.
pub(crate) async fn end_if_empty(node: &Rc<Node>, id: &str) {
    let lane = node.pod_lane(id);
    let _turn = lane.turn.lock().await;
    let is_empty = {
        let store = node.store.borrow();
        store.of_pod(id).all(|container| container.state == Lifecycle::Removed)
    };
    if is_empty && !crio_removed::lasts(node, id) {
        end(node, id).await;
    }
}

/// StopPodSandbox, once; with the pod's lane held.
pub(crate) async fn stop(node: &Rc<Node>, id: &str) {
    let state = node.store.borrow().pod(id).map(|pod| pod.state);
    if state == Some(PodState::Ready) {
        log_failure("stopping a pod", node.host.point(Point::DaemonPodStop));
        node.note_pod(id, |pod| pod.state = PodState::Stopped);
        tell(node, Event::StopPodSandbox, id).await;
    }
}

/// StopPodSandbox and RemovePodSandbox, each once.
pub(crate) async fn end(node: &Rc<Node>, id: &str) {
    let Some(state) = node.store.borrow().pod(id).map(|pod| pod.state) else { return };
    stop(node, id).await;
    if state != PodState::Created {
        tell(node, Event::RemovePodSandbox, id).await;
    }
    log_failure("forgetting a pod", node.host.point(Point::DaemonPodForget));
    node.store.borrow_mut().forget_pod(id);
    node.pod_forgotten.notify_waiters();
}

/// Drops pods that we were killed over before they had a container; before any plugin is there.
pub(crate) fn drop_orphans(node: &Node) {
    let ids: Vec<String> = node.store.borrow().pods().map(|pod| pod.id.clone()).collect();
    ids.iter()
        .filter(|id| !crio_removed::lasts(node, id))
        .for_each(|id| forget_if_orphan(node, id));
}

fn forget_if_orphan(node: &Node, id: &str) {
    let mut store = node.store.borrow_mut();
    if store.of_pod(id).next().is_none() {
        store.forget_pod(id);
    }
}

async fn tell(node: &Rc<Node>, event: Event, id: &str) {
    if let Some(told) = node.told_pod(event, id) {
        node.relay.notify_all(&told).await;
    }
}
