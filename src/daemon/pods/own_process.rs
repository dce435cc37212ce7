// SPDX-License-Identifier: Apache-2.0
//! Describes a pod without an infrastructure container, on engines without pods (D47): its process is its container's,
//! and its addresses come from that process's network namespace once the runtime has created the container, or for
//! Podman's pods from their infrastructure container. containerd's CRI and CRI-O report both themselves.
//!
//! This module never fails and sends no event.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use crate::daemon::shared::{Daemon, Records, messages};
use crate::sources;
use crate::state::{Container, ContainerKey, Lifecycle, Pod};

/// A pod whose addresses are unknown: its ID, its process, and when that started.
pub(crate) struct Unaddressed {
    pod: String,
    process: (u32, Option<u64>),
}

/// Sets the pod's process to the container's if it has none, and looks up its addresses if they are unknown.
/// Called at several steps, because the engine may set up the network at any time before the start.
pub(crate) async fn learn(daemon: &Rc<Daemon>, key: &ContainerKey) {
    if let Some(pod) = take(daemon, key) {
        look_up(daemon, &pod).await;
    }
}

/// Sets the pod's process to the container's if it has none. Returns the pod if the container's
/// process is the pod's and the addresses are unknown.
pub(crate) fn take(daemon: &Daemon, key: &ContainerKey) -> Option<Unaddressed> {
    let record = daemon.container(key).filter(|record| !record.is_sandbox)?;
    let init = record.process.init_pid?;
    let facts = |pod: &Pod| (pod.pid, messages::has_addresses(pod));
    let (pid, is_addressed) = of_pod_without_sandbox(&daemon.records, &record, facts)?;
    if pid != 0 && pid != init {
        return None;
    }
    if pid == 0 {
        // Not written to disk: the next daemon looks the process up again.
        daemon.records.change_pod_in_memory(&record.pod, |pod| pod.pid = init);
    }
    let process = (init, record.process.init_start);
    (!is_addressed).then(|| Unaddressed { pod: record.pod.clone(), process })
}

/// Looks up the addresses of a pod whose infrastructure container was started, if the engine does
/// not report them (Podman).
pub(crate) async fn learn_addresses(daemon: &Rc<Daemon>, id: &str) {
    let wanted = {
        let store = daemon.records.read();
        let wanted =
            |pod: &&Pod| pod.pid != 0 && !reports_its_pods(pod) && !messages::has_addresses(pod);
        store.pod(id).filter(wanted).map(|pod| (pod.pid, pod.sandbox.clone()))
    };
    let Some((pid, Some(sandbox))) = wanted else { return };
    let sandbox =
        daemon.container(&sandbox).filter(|sandbox| sandbox.process.init_pid == Some(pid));
    let Some(start) = sandbox.map(|sandbox| sandbox.process.init_start) else { return };
    look_up(daemon, &Unaddressed { pod: id.to_owned(), process: (pid, start) }).await;
}

/// Time for which plugins wait for addresses when the daemon starts; less than the default of
/// `plugin_registration_timeout`, for which creates wait for plugins.
const SYNCHRONIZE_WAITS: Duration = Duration::from_secs(2);

/// Looks up the addresses of these pods while the daemon already serves commands, because a node may have
/// thousands of pods. Addresses that are not found in time follow in the pods' later events.
pub(crate) fn look_up_all(daemon: &Rc<Daemon>, pods: Vec<Unaddressed>) {
    let Ok(under_way) = Arc::clone(&daemon.looking_up).try_lock_owned() else { return };
    let (daemon, work) = (Rc::clone(daemon), daemon.process.activity.begin());
    tokio::task::spawn_local(async move {
        let processes = pods.iter().map(|pod| pod.process).collect();
        let note = |number, found| {
            if let Some(pod) = pods.get(number) {
                note(&daemon, pod, found);
            }
        };
        let mut look = pin!(sources::addresses_of_each(&daemon.host, processes, note));
        if tokio::time::timeout(SYNCHRONIZE_WAITS, &mut look).await.is_err() {
            info!("plugins are synchronized before all addresses of containers are known");
            drop(under_way);
            look.await;
        }
        drop(work);
    });
}

/// Removes the pod's process when this container has exited, because its PID may be reused. The
/// process of the oldest living member, if any, becomes the pod's.
pub(crate) fn forget(records: &Records, record: &Container) {
    let pid = of_pod_without_sandbox(records, record, |pod| pod.pid);
    if pid.is_none_or(|pid| pid == 0 || record.process.init_pid != Some(pid)) {
        return;
    }
    let next = {
        let store = records.read();
        let is_alive =
            |other: &&Container| matches!(other.state, Lifecycle::Created | Lifecycle::Running);
        let members = store.of_pod(&record.pod).filter(is_alive);
        let members = members.filter(|one| one.key != record.key);
        members.min_by_key(|one| one.incarnation).and_then(|one| one.process.init_pid)
    };
    records.change_pod_in_memory(&record.pod, |pod| pod.pid = next.unwrap_or(0));
}

/// Applies `fact` to the container's pod if the pod has no sandbox and its engine does not report its process.
fn of_pod_without_sandbox<T>(
    records: &Records,
    record: &Container,
    fact: impl FnOnce(&Pod) -> T,
) -> Option<T> {
    let store = records.read();
    let pod = store.pod(&record.pod)?;
    (pod.sandbox.is_none() && !reports_its_pods(pod)).then(|| fact(pod))
}

/// Whether the engine reports process and addresses of its pods.
fn reports_its_pods(pod: &Pod) -> bool {
    pod.engine.behaviour().reports_pods
}

/// Looks up and records the addresses of one pod.
pub(crate) async fn look_up(daemon: &Daemon, pod: &Unaddressed) {
    let (pid, start) = pod.process;
    note(daemon, pod, sources::addresses(&daemon.host, pid, start).await);
}

fn note(daemon: &Daemon, Unaddressed { pod, process: (pid, _) }: &Unaddressed, found: Vec<String>) {
    let is_its = |pod: &Pod| pod.pid == *pid;
    if found.is_empty() || !daemon.records.read().pod(pod).is_some_and(is_its) {
        return;
    }
    daemon.note_pod(pod, |pod| {
        let mut message = messages::pod(pod);
        message.ips = found;
        pod.message = messages::pod_to_wire(&message);
    });
}
