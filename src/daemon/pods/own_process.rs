// SPDX-License-Identifier: Apache-2.0
//! A pod without an infrastructure container, on engines without pods (D47): it has its container's
//! process, and its addresses come from that process's network namespace once the runtime has
//! created it. Engines with pods report both themselves.
//!
//! It never fails and sends no event.

use std::rc::Rc;

use crate::daemon::shared::{Daemon, messages};
use crate::engine::EngineKind;
use crate::sources;
use crate::state::{Container, ContainerKey, Lifecycle, Pod};

/// Sets the pod's process to the container's if it has none, and looks up its addresses until they
/// are known. The engine may set up the network at any time before the start.
pub(crate) async fn learn(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Some(record) = daemon.container(key).filter(|record| !record.is_sandbox) else { return };
    let Some(init) = record.init_pid else { return };
    let Some(pod) = pod_without_sandbox(daemon, &record) else { return };
    if pod.pid != 0 && pod.pid != init {
        return;
    }
    // Not written to disk: the next daemon looks it up again.
    daemon.records.change_pod_in_memory(&pod.id, |pod| pod.pid = init);
    let found = look_up(daemon, &pod, init, record.init_start).await;
    if !found.is_empty() {
        daemon.note_pod(&pod.id, |pod| set_addresses(pod, found));
    }
}

/// Looks up the addresses of a pod whose infrastructure container was started, if the engine does
/// not report them (Podman).
pub(crate) async fn learn_addresses(daemon: &Rc<Daemon>, id: &str) {
    let pod = daemon.records.read().pod(id).cloned();
    let Some(pod) = pod.filter(|pod| pod.pid != 0 && !has_pods(pod)) else { return };
    let sandbox = pod.sandbox.as_ref().and_then(|key| daemon.container(key));
    let start = sandbox.filter(|sandbox| sandbox.init_pid == Some(pod.pid));
    let Some(start) = start.map(|sandbox| sandbox.init_start) else { return };
    let found = look_up(daemon, &pod, pod.pid, start).await;
    if !found.is_empty() {
        daemon.note_pod(id, |pod| set_addresses(pod, found));
    }
}

/// Removes the pod's process when that container has exited, because its PID may be reused. The
/// oldest living member's process, if any, becomes the pod's.
pub(crate) fn forget(daemon: &Daemon, record: &Container) {
    let Some(pod) = pod_without_sandbox(daemon, record) else { return };
    if pod.pid == 0 || record.init_pid != Some(pod.pid) {
        return;
    }
    let next = {
        let store = daemon.records.read();
        let is_alive =
            |other: &&Container| matches!(other.state, Lifecycle::Created | Lifecycle::Running);
        let members = store.of_pod(&pod.id).filter(is_alive).filter(|one| one.key != record.key);
        members.min_by_key(|one| one.incarnation).and_then(|one| one.init_pid)
    };
    daemon.records.change_pod_in_memory(&pod.id, |pod| pod.pid = next.unwrap_or(0));
}

fn pod_without_sandbox(daemon: &Daemon, record: &Container) -> Option<Pod> {
    let store = daemon.records.read();
    let pod = store.pod(&record.pod)?;
    (pod.sandbox.is_none() && !has_pods(pod)).then(|| pod.clone())
}

/// Whether the engine reports process and addresses of its pods.
fn has_pods(pod: &Pod) -> bool {
    EngineKind::named(&pod.engine).is_none_or(EngineKind::has_pods)
}

async fn look_up(daemon: &Daemon, pod: &Pod, pid: u32, start: Option<u64>) -> Vec<String> {
    if !messages::pod(pod).ips.is_empty() {
        return Vec::new();
    }
    sources::addresses(&daemon.host, pid, start).await
}

fn set_addresses(pod: &mut Pod, found: Vec<String>) {
    if found.is_empty() {
        return;
    }
    let mut message = messages::pod(pod);
    message.ips = found;
    pod.message = messages::pod_to_wire(&message);
}
