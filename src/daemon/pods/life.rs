// SPDX-License-Identifier: Apache-2.0
//! Handles the life of a pod: it is announced once, stopped after its members, and removed.
//!
//! Most engines with pods make an infrastructure container for each: its `start` causes the pod's
//! RunPodSandbox. The pod ends with its last container. On engines without pods, every container is its own pod.

use std::rc::Rc;

use crate::audit::{AuditAction, AuditEntry};
use crate::chain::Notification;
use crate::daemon::pods::required::Requirement;
use crate::daemon::pods::{own_process, promises, resized};
use crate::daemon::request::describe::Description;
use crate::daemon::shared::queues::PodNews;
use crate::daemon::shared::{Daemon, Records, log_failure, messages};
use crate::error::{Context, Result};
use crate::host::Point;
use crate::limits;
use crate::plugin::Event;
use crate::presence;
use crate::state::{Container, Lifecycle, Pod, PodState, Promise, SCHEMA, Skipped};
use crate::stream::{EventKind, NodeEvent};

fn record(daemon: &Daemon, description: &Description, container: Option<&Container>) -> Pod {
    Pod {
        schema: SCHEMA,
        boot_id: daemon.records.read().boot_id().to_owned(),
        id: description.pod.id.clone(),
        name: description.pod.name.clone(),
        namespace: description.pod.namespace.clone(),
        uid: description.pod.uid.clone(),
        engine: description.engine.kind.into(),
        evidence: description.engine.evidence().to_vec(),
        pid: description.pod.pid,
        limits: resized::limits(daemon, description.engine.kind, &description.pod),
        lives_with: description.lives_with.clone(),
        has_unproven_namespace: description.has_unproven_namespace,
        is_doubtful: description.is_doubtful,
        is_exempt: description.is_exempt,
        state: PodState::Created,
        sandbox: container.filter(|known| known.is_sandbox).map(|known| known.key.clone()),
        message: messages::pod_to_wire(&description.pod),
        ..Pod::default()
    }
}

/// Writes a pod's record, new or changed, to disk.
fn put(daemon: &Daemon, pod: Pod) -> Result<()> {
    daemon.host.point(Point::DaemonPod)?;
    daemon.records.put_pod(pod).map_err(|error| error.hint("nothing was changed or started"))
}

/// Records the pod of a sandbox that is being created; the pod is announced when the sandbox starts, unless its
/// folder announced it earlier.
pub(crate) fn sandbox_appears(
    daemon: &Daemon,
    description: &Description,
    container: &Container,
) -> Result<()> {
    let known = daemon.records.read().pod(&description.pod.id).cloned();
    let is_announced =
        known.is_some_and(|pod| pod.state == PodState::Ready && pod.sandbox.is_none());
    let state = if is_announced { PodState::Ready } else { PodState::Created };
    put(daemon, Pod { state, ..record(daemon, description, Some(container)) })
}

/// Announces a pod that appeared without a runtime call, unless one of its containers came first or the engine has
/// removed the pod.
pub(crate) async fn arrives(daemon: &Rc<Daemon>, description: &Description) -> Result<()> {
    let mut pod = record(daemon, description, None);
    promises::add_to_pod(daemon, &mut pod).await;
    // Done before the pod's turn is acquired: otherwise a container created meanwhile would wait for the turn, and
    // then for the plugins.
    Requirement::of_pod(daemon, &pod).wait().await;
    let lane = daemon.pod_lane(&pod.id);
    let _turn = lane.turn.lock().await;
    let is_given_up = match &pod.lives_with {
        Some(document) => {
            matches!(daemon.look(&daemon.host.path(document), presence::exists).await, Ok(false))
        }
        None => false,
    };
    if is_given_up || daemon.records.read().pod(&pod.id).is_some() {
        return Ok(());
    }
    put(daemon, Pod { state: PodState::Ready, ..pod })?;
    deliver_run(daemon, &description.pod.id).await
}

/// Records a pod that appeared without a runtime call, before plugins connect: they receive it by Synchronize.
pub(crate) fn adopt_arrived(daemon: &Daemon, description: &Description) -> Result<()> {
    put(daemon, Pod { state: PodState::Ready, ..record(daemon, description, None) })
}

/// Announces the pod of a container that is being created, unless it was announced before; a refusal fails the create.
pub(crate) async fn announce(
    daemon: &Rc<Daemon>,
    description: &Description,
    container: &Container,
) -> Result<()> {
    let lane = daemon.pod_lane(&description.pod.id);
    // A concurrent request waits until RunPodSandbox was delivered.
    let _turn = lane.turn.lock().await;
    let known = daemon.records.read().pod(&description.pod.id).map(|pod| pod.state);
    match known {
        Some(PodState::Ready) => return add_annotations(daemon, description),
        Some(PodState::Created) => learn_promises(daemon, &description.pod.id).await,
        Some(PodState::Stopped) | None => {
            let mut pod =
                Pod { state: PodState::Ready, ..record(daemon, description, Some(container)) };
            promises::add_to_pod(daemon, &mut pod).await;
            put(daemon, pod)?;
            return deliver_run(daemon, &description.pod.id).await;
        }
    }
    begin(daemon, &description.pod.id).await
}

/// Adds a member's annotations to its pod on record, without replacing any: Podman's `kube play` puts the
/// YAML's annotations on the pod's members, not on its infrastructure container.
fn add_annotations(daemon: &Daemon, description: &Description) -> Result<()> {
    let known = daemon.records.read().pod(&description.pod.id).cloned();
    let known = known.filter(|pod| pod.engine.behaviour().annotates_members);
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
    put(daemon, pod)
}

/// Records the pod of a container that was made without the daemon; as ready, unless the container is a sandbox that
/// does not run, or a sandbox that nri-runc made and whose pod may require a plugin. Sends no event.
pub(crate) fn adopt(
    daemon: &Daemon,
    description: &Description,
    container: &Container,
) -> Result<()> {
    let known = daemon.records.read().pod(&description.pod.id).map(|pod| pod.state);
    if matches!(known, None | Some(PodState::Stopped)) {
        put(daemon, record(daemon, description, Some(container)))?;
    }
    match (container.is_sandbox, container.state) {
        (true, Lifecycle::Running) if container.by_plain_runtime => {
            set_state(daemon, &description.pod.id, PodState::Ready)
        }
        (true, Lifecycle::Running) => started_without_daemon(daemon, &description.pod.id),
        (true, _) => Ok(()),
        (false, _) => set_state(daemon, &description.pod.id, PodState::Ready),
    }
}

/// Records that a pod's sandbox was started without the daemon: plugins receive the pod by Synchronize, or the caller
/// announces it. A pod that may require a plugin is announced with its first container instead, unless the plain
/// runtime made its sandbox.
pub(crate) fn started_without_daemon(daemon: &Daemon, id: &str) -> Result<()> {
    let known = daemon.records.read().pod(id).cloned();
    match known.filter(|pod| pod.state == PodState::Created) {
        Some(pod) if !is_plain(daemon, &pod) && Requirement::of_pod(daemon, &pod).has_any() => {
            Ok(())
        }
        Some(_) => set_state(daemon, id, PodState::Ready),
        None => Ok(()),
    }
}

/// Whether the plain runtime made the pod's sandbox; then its required plugins cannot block the pod.
fn is_plain(daemon: &Daemon, pod: &Pod) -> bool {
    let sandbox = pod.sandbox.as_ref().and_then(|key| daemon.container(key));
    sandbox.is_some_and(|sandbox| sandbox.by_plain_runtime)
}

/// Announces a pod that the plain runtime has started: plugins cannot refuse it.
pub(crate) async fn run_plain(daemon: &Rc<Daemon>, id: &str) {
    let was_ready = is_ready(&daemon.records, id);
    log_failure("recording the start of a pod", started_without_daemon(daemon, id));
    announce_plain(daemon, id, was_ready).await;
}

/// Whether the pod is on record as running.
pub(crate) fn is_ready(records: &Records, id: &str) -> bool {
    records.read().pod(id).is_some_and(|pod| pod.state == PodState::Ready)
}

/// Announces a running pod to the plugins that do not know it. `was_ready`: the pod was already on
/// record as running, and other programs have received its `PodRunning`.
pub(crate) async fn announce_plain(daemon: &Rc<Daemon>, id: &str, was_ready: bool) {
    let notification = daemon.pod_notification(Event::RunPodSandbox, id);
    if let Some(notification) = notification.filter(|_| is_ready(&daemon.records, id)) {
        if !was_ready {
            daemon.emit_pod(id, NodeEvent::new(EventKind::PodRunning));
        }
        daemon.registry.notify_late(&notification).await;
        if !daemon.watches.pod_cgroups.has(id) {
            resized::follow(daemon, id);
        }
    }
}

/// Sends RunPodSandbox, unless the pod was announced before. After a refusal, the plugins that know the
/// pod receive StopPodSandbox and RemovePodSandbox.
pub(crate) async fn run(daemon: &Rc<Daemon>, id: &str) -> Result<()> {
    let known = daemon.records.read().pod(id).cloned();
    if known.is_some_and(|pod| pod.state != PodState::Ready) {
        learn_promises(daemon, id).await;
        let known = daemon.records.read().pod(id).cloned();
        if let Some(pod) = known {
            Requirement::of_pod(daemon, &pod).wait().await;
        }
    }
    let lane = daemon.pod_lane(id);
    let _turn = lane.turn.lock().await;
    if daemon.records.read().pod(id).is_some_and(|pod| pod.state == PodState::Ready) {
        return set_state(daemon, id, PodState::Ready); // The PID has become known since the announcement.
    }
    begin(daemon, id).await
}

/// Adds the promises about a pod to its record in memory; the next change of the pod's state writes them to disk.
async fn learn_promises(daemon: &Daemon, id: &str) {
    let Some(mut known) = daemon.records.read().pod(id).cloned() else { return };
    promises::add_to_pod(daemon, &mut known).await;
    daemon.records.change_pod_in_memory(id, |pod| {
        (pod.promises, pod.allocations) = (known.promises.clone(), known.allocations.clone());
    });
}

/// Records the pod as ready, and announces it; the caller holds the pod's lane.
async fn begin(daemon: &Rc<Daemon>, id: &str) -> Result<()> {
    if let Err(error) = set_state(daemon, id, PodState::Ready) {
        forget_if_orphan(daemon, id);
        return Err(error);
    }
    own_process::learn_addresses(daemon, id).await;
    deliver_run(daemon, id).await
}

async fn deliver_run(daemon: &Rc<Daemon>, id: &str) -> Result<()> {
    if let Err(error) = daemon.host.point(Point::DaemonAnnounce) {
        forget_if_orphan(daemon, id);
        return Err(error);
    }
    // A pod that was refused before is already on record, and its folder is already watched.
    if daemon.records.read().pod(id).is_none_or(|pod| pod.refused.is_empty()) {
        daemon.notify_crio_watch(PodNews::Announced(id.to_owned()));
    }
    // The watch begins before plugins are asked, because plugins may write the limits themselves.
    let limit_watch = resized::watch(daemon, id);
    resized::refresh(daemon, id);
    let Some(notification) = daemon.pod_notification(Event::RunPodSandbox, id) else {
        return Ok(());
    };
    let Err(error) = ask(daemon, id, &notification).await else {
        daemon.emit_pod(id, NodeEvent::new(EventKind::PodRunning));
        resized::follow_with(daemon, id, limit_watch);
        return Ok(());
    };
    daemon.note_pod(id, |pod| {
        limits::keep_latest(&mut pod.refused, error.to_string(), limits::REFUSALS);
    });
    end_refused(daemon, id).await;
    Err(error)
}

/// Sends StopPodSandbox and RemovePodSandbox of a refused pod. If the engine keeps the pod (its
/// folder exists), the record stays, as not announced, so that each create asks the plugins again.
/// Without the record a later daemon would treat the folder as an announced pod.
async fn end_refused(daemon: &Rc<Daemon>, id: &str) {
    let lasts = lasts(daemon, id).await;
    if mark_stopped(daemon, id) {
        notify(daemon, Event::StopPodSandbox, id).await;
    }
    notify(daemon, Event::RemovePodSandbox, id).await;
    if lasts {
        daemon.note_pod(id, |pod| pod.state = PodState::Created);
    } else {
        log_failure("forgetting a pod", daemon.host.point(Point::DaemonPodForget));
        forget(daemon, id);
    }
}

/// Sends RunPodSandbox to the plugins in turn until one refuses; refuses also if a required plugin is missing or does
/// not answer. Before the plugins are asked, the record lists the required ones as not asked, so that no pod looks
/// answered if the daemon dies meanwhile (D40).
async fn ask(daemon: &Rc<Daemon>, id: &str, notification: &Notification) -> Result<()> {
    let Some(pod) = daemon.records.read().pod(id).cloned() else { return Ok(()) };
    let requirement = Requirement::of_pod(daemon, &pod);
    requirement.require_connected().inspect_err(|error| {
        if !error.rule().is_empty() {
            daemon.report.metrics.plugins().count_promise(error.rule(), Promise::REFUSED);
        }
    })?;
    let (unanswered, absent) = (requirement.unanswered(), requirement.absent());
    let hidden_from = daemon.registry.hidden_from(&notification.ruled_pod());
    let is_hidden = !hidden_from.is_empty();
    daemon.records.change_pod_in_memory(id, |pod| pod.hidden_from = hidden_from.clone());
    let is_noted = !unanswered.is_empty();
    if is_noted {
        put(daemon, Pod { skipped: unanswered, hidden_from, ..pod.clone() })?;
    }
    let (mut skipped, allowed) = daemon.registry.notify_until_refused(notification).await;
    let answered = requirement.require_answers(&skipped);
    skipped.extend(absent);
    for Skipped { plugin, reason } in &skipped {
        let entry = || AuditEntry::new(AuditAction::Skipped).at_event(notification.event.name());
        daemon.audit_pod(id, || entry().by(plugin).because(reason));
    }
    if is_noted || is_hidden || !skipped.is_empty() {
        daemon.note_pod(id, |pod| pod.skipped = skipped);
    }
    let all = allowed.and(answered);
    let hint = match pod.lives_with {
        Some(_) => "the engine has the pod; its next create sends RunPodSandbox again",
        None => "the pod was not started",
    };
    all.map_err(|refusal| refusal.into_error().hint(hint))
}

fn set_state(daemon: &Daemon, id: &str, state: PodState) -> Result<()> {
    let Some(mut pod) = daemon.records.read().pod(id).cloned() else { return Ok(()) };
    let sandbox = pod.sandbox.as_ref().and_then(|key| daemon.container(key));
    if let Some(pid) = sandbox.and_then(|sandbox| sandbox.process.init_pid) {
        pod.pid = pid;
    }
    pod.state = state;
    put(daemon, pod).doing(|| format!("recording pod {id}"))
}

/// Ends the pod if it has no container left and the engine has no folder of it.
pub(crate) async fn end_if_empty(daemon: &Rc<Daemon>, id: &str) {
    let lane = daemon.pod_lane(id);
    let _turn = lane.turn.lock().await;
    let is_empty = {
        let store = daemon.records.read();
        store.of_pod(id).all(|container| container.state == Lifecycle::Removed)
    };
    if is_empty && !lasts(daemon, id).await {
        end(daemon, id).await;
    }
}

/// Sends StopPodSandbox, once, if the pod was announced; the caller holds the pod's lane.
pub(crate) async fn stop(daemon: &Rc<Daemon>, id: &str) {
    if mark_stopped(daemon, id) {
        daemon.emit_pod(id, NodeEvent::new(EventKind::PodStopped));
        notify(daemon, Event::StopPodSandbox, id).await;
    }
}

/// Records that the pod has stopped; false if it was not ready.
fn mark_stopped(daemon: &Daemon, id: &str) -> bool {
    let is_ready = is_ready(&daemon.records, id);
    if is_ready {
        log_failure("stopping a pod", daemon.host.point(Point::DaemonPodStop));
        daemon.note_pod(id, |pod| pod.state = PodState::Stopped);
    }
    is_ready
}

/// Ends the pod: sends StopPodSandbox and RemovePodSandbox, each once, if it was announced, and drops the record.
pub(crate) async fn end(daemon: &Rc<Daemon>, id: &str) {
    let Some(state) = daemon.records.read().pod(id).map(|pod| pod.state) else { return };
    stop(daemon, id).await;
    if state != PodState::Created {
        daemon.emit_pod(id, NodeEvent::new(EventKind::PodRemoved));
        notify(daemon, Event::RemovePodSandbox, id).await;
    }
    log_failure("forgetting a pod", daemon.host.point(Point::DaemonPodForget));
    forget(daemon, id);
}

/// Whether the engine still has the pod's folder, true while that is unknown; false for a pod that has none.
async fn lasts(daemon: &Daemon, id: &str) -> bool {
    let path = daemon.records.read().pod(id).and_then(|pod| pod.lives_with.clone());
    let Some(path) = path else { return false };
    daemon.look(&daemon.host.path(path), presence::exists).await.unwrap_or(true)
}

/// Drops the records of pods that have neither a container nor an engine's folder; runs before any plugin connects.
pub(crate) async fn drop_orphans(daemon: &Daemon) {
    let ids: Vec<String> = daemon.records.read().pods().map(|pod| pod.id.clone()).collect();
    for id in &ids {
        if !lasts(daemon, id).await {
            forget_if_orphan(daemon, id);
        }
    }
}

/// Drops the record of a pod without containers, without notifying plugins.
pub(crate) fn forget_if_orphan(daemon: &Daemon, id: &str) {
    let is_orphan = daemon.records.read().of_pod(id).next().is_none();
    if is_orphan {
        forget(daemon, id);
    }
}

fn forget(daemon: &Daemon, id: &str) {
    daemon.records.forget_pod(id);
    daemon.note_forgotten_pod(id);
    daemon.watches.crio.forgotten.notify_waiters();
    daemon.watches.pod_cgroups.end(id);
}

async fn notify(daemon: &Rc<Daemon>, event: Event, id: &str) {
    if let Some(notification) = daemon.pod_notification(event, id) {
        daemon.registry.notify_all(&notification, &()).await;
    }
}
