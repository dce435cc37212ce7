// SPDX-License-Identifier: Apache-2.0
//! Sends StopPodSandbox of a pod with an infrastructure container as soon as that container is
//! about to end, or has ended (D37), because the pod's network namespace may be removed soon. A member that
//! still runs delays it: its StopContainer comes first.

use std::rc::Rc;

use crate::daemon::pods::life;
use crate::daemon::shared::{Daemon, Records};
use crate::state::{Container, ContainerKey, Lifecycle};

/// Sends StopPodSandbox, once, if this is its pod's infrastructure container and every member has
/// ended. The caller must not hold the lane of a member.
pub(crate) async fn stop_with_sandbox(daemon: &Rc<Daemon>, sandbox: &Container) {
    let id = &sandbox.pod;
    for key in members(&daemon.records, id).into_iter().map(|(key, _)| key) {
        // Once the lane is free, the task that notifies plugins of this member has finished.
        let lane = daemon.lane(&key);
        drop(lane.turn.lock().await);
        daemon.lanes.release(&key, lane);
    }
    let lane = daemon.pod_lane(id);
    let turn = lane.turn.lock().await;
    // Another container may have replaced the infrastructure container meanwhile.
    let is_same = sandbox_of(daemon, id).is_some_and(|now| now.incarnation == sandbox.incarnation);
    if is_same && members(&daemon.records, id).iter().all(|(_, state)| has_ended(*state)) {
        life::stop(daemon, id).await;
    }
    drop(turn);
    drop(lane);
    // A pod whose creation failed is no longer on record, so no other step drops its lane.
    daemon.lanes.drop_idle_pod(&daemon.records.read(), id);
}

/// Sends StopPodSandbox if the pod's infrastructure container has ended; in a task, because the
/// caller holds the container's lane, and the runtime must not wait for plugins.
pub(crate) fn stop_if_ended(daemon: &Rc<Daemon>, container: &Container) {
    let sandbox = sandbox_of(daemon, &container.pod);
    if let Some(sandbox) = sandbox.filter(|sandbox| has_ended(sandbox.state)) {
        let (daemon, active) = (Rc::clone(daemon), daemon.process.activity.begin());
        tokio::task::spawn_local(async move {
            stop_with_sandbox(&daemon, &sandbox).await;
            drop(active);
        });
    }
}

fn sandbox_of(daemon: &Daemon, id: &str) -> Option<Rc<Container>> {
    let key = daemon.records.read().pod(id).and_then(|pod| pod.sandbox.clone())?;
    daemon.container(&key)
}

/// Returns the other containers of a pod, and their states.
fn members(records: &Records, id: &str) -> Vec<(ContainerKey, Lifecycle)> {
    let store = records.read();
    let members = store.of_pod(id).filter(|container| !container.is_sandbox);
    members.map(|member| (member.key.clone(), member.state)).collect()
}

fn has_ended(state: Lifecycle) -> bool {
    matches!(state, Lifecycle::Stopped | Lifecycle::Removed)
}
