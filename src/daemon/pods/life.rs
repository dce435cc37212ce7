// SPDX-License-Identifier: Apache-2.0
//! The life of a pod: announced once, stopped after its members, removed.
//!
//! An engine with pods makes an infrastructure container for each: its `start` is the pod's
//! RunPodSandbox, its `delete` the pod's end. Without an engine, every container is its own pod.

use std::rc::Rc;

use crate::audit::{AuditAction, AuditEntry};
use crate::chain::Notification;
use crate::daemon::node::queues::PodNews;
use crate::daemon::node::{Node, log_failure, messages};
use crate::daemon::pods::required::Requirement;
use crate::daemon::pods::{own_process, resized};
use crate::daemon::request::describe::Description;
use crate::engine::EngineKind;
use crate::error::{Context, Result};
use crate::host::Point;
use crate::limits;
use crate::plugin::Event;
use crate::presence;
use crate::state::{Container, Lifecycle, Pod, PodState, SCHEMA, Skipped};

fn record(node: &Node, description: &Description, container: Option<&Container>) -> Pod {
    Pod {
        schema: SCHEMA,
        boot_id: node.records.read().boot_id().to_owned(),
        id: description.pod.id.clone(),
        name: description.pod.name.clone(),
        namespace: description.pod.namespace.clone(),
        uid: description.pod.uid.clone(),
        engine: description.engine.name().to_owned(),
        evidence: description.engine.evidence().to_vec(),
        pid: description.pod.pid,
        limits: resized::limits(node, description.engine.kind, &description.pod),
        lives_with: description.lives_with.clone(),
        has_unproven_namespace: description.has_unproven_namespace,
        is_doubtful: description.is_doubtful,
        is_exempt: description.is_exempt,
        state: PodState::Created,
        sandbox: container.filter(|known| known.is_sandbox).map(|known| known.key.clone()),
        message: messages::pod_to_wire(&description.pod),
        refused: Vec::new(),
        skipped: Vec::new(),
        hidden_from: Vec::new(),
        unknown: Default::default(),
    }
}

/// All changes to a pod's record go through here.
fn put(node: &Node, pod: Pod) -> Result<()> {
    node.host.point(Point::DaemonPod)?;
    node.records.put_pod(pod).map_err(|error| error.hint("nothing was changed or started"))
}

/// A sandbox is being created: its pod is known from here on, and announced at its start, unless
/// the pod was announced by a folder that promised no sandbox.
pub(crate) fn sandbox_appears(
    node: &Node,
    description: &Description,
    container: &Container,
) -> Result<()> {
    let known = node.records.read().pod(&description.pod.id).cloned();
    let is_announced =
        known.is_some_and(|pod| pod.state == PodState::Ready && pod.sandbox.is_none());
    let state = if is_announced { PodState::Ready } else { PodState::Created };
    put(node, Pod { state, ..record(node, description, Some(container)) })
}

/// A pod appeared without a call: it is announced, unless a container came first.
pub(crate) async fn arrives(node: &Rc<Node>, description: &Description) -> Result<()> {
    let pod = record(node, description, None);
    // Before the pod's turn: a container that comes first is not held up twice.
    Requirement::of_pod(node, &pod).wait().await;
    let lane = node.pod_lane(&pod.id);
    let _turn = lane.turn.lock().await;
    // Or the engine has given the pod up meanwhile.
    let document = pod.lives_with.as_ref().map(|path| presence::exists(&node.host.path(path)));
    if matches!(document, Some(Ok(false))) || node.records.read().pod(&pod.id).is_some() {
        return Ok(());
    }
    adopt_arrived(node, description)?;
    deliver_run(node, &description.pod.id).await
}

/// The same before plugins connect; they see the pod when they are synchronized.
pub(crate) fn adopt_arrived(node: &Node, description: &Description) -> Result<()> {
    put(node, Pod { state: PodState::Ready, ..record(node, description, None) })
}

/// Announces a pod that plugins do not know; a refusal fails the request.
pub(crate) async fn announce(
    node: &Rc<Node>,
    description: &Description,
    container: &Container,
) -> Result<()> {
    let lane = node.pod_lane(&description.pod.id);
    // A concurrent request waits until RunPodSandbox was delivered.
    let _turn = lane.turn.lock().await;
    let known = node.records.read().pod(&description.pod.id).map(|pod| pod.state);
    match known {
        Some(PodState::Ready) => return add_annotations(node, description),
        Some(PodState::Created) => {}
        Some(PodState::Stopped) | None => {
            let pod = Pod { state: PodState::Ready, ..record(node, description, Some(container)) };
            put(node, pod)?;
            return deliver_run(node, &description.pod.id).await;
        }
    }
    begin(node, &description.pod.id).await
}

/// Podman's `kube play` gives the annotations of the YAML to the members of a pod, not to its
/// infrastructure container: the first member that is described has them.
fn add_annotations(node: &Node, description: &Description) -> Result<()> {
    let known = node.records.read().pod(&description.pod.id).cloned();
    let known = known.filter(|pod| EngineKind::named(&pod.engine) == Some(EngineKind::Podman));
    let Some(mut pod) = known else { return Ok(()) };
    let mut message = messages::pod(&pod);
    let known = message.annotations.len();
    for (key, value) in &description.pod.annotations {
        message.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
    if message.annotations.len() == known {
        return Ok(());
    }
    pod.message = messages::pod_to_wire(&message);
    put(node, pod)
}

/// A container was made without the daemon: its pod is known from here on, and ready if the
/// container runs. Plugins are not notified; they see it when they are synchronized.
pub(crate) fn adopt(node: &Node, description: &Description, container: &Container) -> Result<()> {
    let known = node.records.read().pod(&description.pod.id).map(|pod| pod.state);
    if matches!(known, None | Some(PodState::Stopped)) {
        put(node, record(node, description, Some(container)))?;
    }
    match (container.is_sandbox, container.state) {
        (true, Lifecycle::Running) => started_without_daemon(node, &description.pod.id),
        (true, _) => Ok(()),
        (false, _) => set_state(node, &description.pod.id, PodState::Ready),
    }
}

/// A pod's sandbox was started without the daemon: plugins see the pod when they are synchronized.
/// Where one is required, RunPodSandbox goes out with the pod's first container instead.
pub(crate) fn started_without_daemon(node: &Node, id: &str) -> Result<()> {
    let known = node.records.read().pod(id).cloned();
    match known.filter(|pod| pod.state == PodState::Created) {
        Some(pod) if Requirement::of_pod(node, &pod).has_any() => Ok(()),
        Some(_) => set_state(node, id, PodState::Ready),
        None => Ok(()),
    }
}

/// RunPodSandbox; after a refusal, the plugins that know the pod receive Stop and Remove.
pub(crate) async fn run(node: &Rc<Node>, id: &str) -> Result<()> {
    let known = node.records.read().pod(id).cloned();
    if let Some(pod) = known.filter(|pod| pod.state != PodState::Ready) {
        Requirement::of_pod(node, &pod).wait().await;
    }
    let lane = node.pod_lane(id);
    let _turn = lane.turn.lock().await;
    if node.records.read().pod(id).is_some_and(|pod| pod.state == PodState::Ready) {
        return set_state(node, id, PodState::Ready); // Its PID is known now.
    }
    begin(node, id).await
}

/// The same, with the pod's lane held.
async fn begin(node: &Rc<Node>, id: &str) -> Result<()> {
    if let Err(error) = set_state(node, id, PodState::Ready) {
        forget_if_orphan(node, id);
        return Err(error);
    }
    own_process::learn_addresses(node, id).await;
    deliver_run(node, id).await
}

async fn deliver_run(node: &Rc<Node>, id: &str) -> Result<()> {
    if let Err(error) = node.host.point(Point::DaemonAnnounce) {
        forget_if_orphan(node, id);
        return Err(error);
    }
    node.tell_crio_watch(PodNews::Announced(id.to_owned()));
    resized::refresh(node, id);
    let Some(notification) = node.pod_notification(Event::RunPodSandbox, id) else { return Ok(()) };
    let Err(error) = ask(node, id, &notification).await else {
        resized::follow(node, id);
        return Ok(());
    };
    node.note_pod(id, |pod| {
        limits::keep_latest(&mut pod.refused, error.to_string(), limits::REFUSALS);
    });
    end(node, id).await;
    Err(error)
}

/// RunPodSandbox to every plugin. Before the first is asked, the record says that the required ones
/// have not answered: a daemon that dies meanwhile leaves no pod that looks answered (D40).
async fn ask(node: &Rc<Node>, id: &str, notification: &Notification) -> Result<()> {
    let Some(pod) = node.records.read().pod(id).cloned() else { return Ok(()) };
    let requirement = Requirement::of_pod(node, &pod);
    requirement.require_connected()?;
    let (unanswered, absent) = (requirement.unanswered(), requirement.absent());
    let hidden_from = node.registry.hidden_from(&notification.ruled_pod());
    let is_hidden = !hidden_from.is_empty();
    node.records.change_pod_in_memory(id, |pod| pod.hidden_from = hidden_from.clone());
    let is_noted = !unanswered.is_empty();
    if is_noted {
        put(node, Pod { skipped: unanswered, hidden_from, ..pod.clone() })?;
    }
    let (mut skipped, allowed) = node.registry.notify_until_refused(notification).await;
    let answered = requirement.require_answers(&skipped);
    skipped.extend(absent);
    for Skipped { plugin, reason } in &skipped {
        let entry = || AuditEntry::new(AuditAction::Skipped).at_event(notification.event.name());
        node.audit_pod(id, || entry().by(plugin).because(reason));
    }
    if is_noted || is_hidden || !skipped.is_empty() {
        node.note_pod(id, |pod| pod.skipped = skipped);
    }
    let all = allowed.and(answered);
    all.map_err(|refusal| refusal.into_error().hint("the pod was not started"))
}

fn set_state(node: &Node, id: &str, state: PodState) -> Result<()> {
    let Some(mut pod) = node.records.read().pod(id).cloned() else { return Ok(()) };
    let sandbox = pod.sandbox.as_ref().and_then(|key| node.container(key));
    if let Some(pid) = sandbox.and_then(|sandbox| sandbox.init_pid) {
        pod.pid = pid;
    }
    pod.state = state;
    put(node, pod).doing(|| format!("recording pod {id}"))
}

/// Ends the pod if it has neither a sandbox nor a member any more.
pub(crate) async fn end_if_empty(node: &Rc<Node>, id: &str) {
    let lane = node.pod_lane(id);
    let _turn = lane.turn.lock().await;
    let is_empty = {
        let store = node.records.read();
        store.of_pod(id).all(|container| container.state == Lifecycle::Removed)
    };
    if is_empty && !lasts(node, id) {
        end(node, id).await;
    }
}

/// StopPodSandbox, once; with the pod's lane held.
pub(crate) async fn stop(node: &Rc<Node>, id: &str) {
    let state = node.records.read().pod(id).map(|pod| pod.state);
    if state == Some(PodState::Ready) {
        log_failure("stopping a pod", node.host.point(Point::DaemonPodStop));
        node.note_pod(id, |pod| pod.state = PodState::Stopped);
        notify(node, Event::StopPodSandbox, id).await;
    }
}

/// StopPodSandbox and RemovePodSandbox, each once.
pub(crate) async fn end(node: &Rc<Node>, id: &str) {
    let Some(state) = node.records.read().pod(id).map(|pod| pod.state) else { return };
    stop(node, id).await;
    if state != PodState::Created {
        notify(node, Event::RemovePodSandbox, id).await;
    }
    log_failure("forgetting a pod", node.host.point(Point::DaemonPodForget));
    forget(node, id);
}

/// Whether a pod still exists although none of its containers does; it does while that cannot be
/// known.
fn lasts(node: &Node, id: &str) -> bool {
    let store = node.records.read();
    let path = store.pod(id).and_then(|pod| pod.lives_with.as_ref());
    path.is_some_and(|path| presence::exists(&node.host.path(path)).unwrap_or(true))
}

/// Drops pods whose daemon was killed before they had a container; before any plugin connects.
pub(crate) fn drop_orphans(node: &Node) {
    let ids: Vec<String> = node.records.read().pods().map(|pod| pod.id.clone()).collect();
    ids.iter().filter(|id| !lasts(node, id)).for_each(|id| forget_if_orphan(node, id));
}

fn forget_if_orphan(node: &Node, id: &str) {
    let is_orphan = node.records.read().of_pod(id).next().is_none();
    if is_orphan {
        forget(node, id);
    }
}

fn forget(node: &Node, id: &str) {
    node.records.forget_pod(id);
    node.note_forgotten_pod(id);
    node.watches.crio.forgotten.notify_waiters();
    node.watches.pod_cgroups.end(id);
}

async fn notify(node: &Rc<Node>, event: Event, id: &str) {
    if let Some(notification) = node.pod_notification(event, id) {
        node.registry.notify_all(&notification, &()).await;
    }
}
