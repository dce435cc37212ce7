// SPDX-License-Identifier: Apache-2.0
//! StopPodSandbox of a pod with an infrastructure container: as soon as that one is about to end, or
//! has (D37), so that plugins find the pod's network namespace. A member that still runs delays it:
//! its StopContainer comes first.

use std::rc::Rc;

use crate::daemon::node::Node;
use crate::daemon::pods::life;
use crate::state::{Container, ContainerKey, Lifecycle};

/// StopPodSandbox, once, if this infrastructure container is its pod's and no member runs. The
/// caller must not hold the lane of a member.
pub(crate) async fn stop_with_sandbox(node: &Rc<Node>, sandbox: &Container) {
    let id = &sandbox.pod;
    for key in members(node, id).into_iter().map(|(key, _)| key) {
        // A task that notifies plugins of this member is done once the lane is free.
        let lane = node.lane(&key);
        drop(lane.turn.lock().await);
        node.lanes.release(&key, lane);
    }
    let lane = node.pod_lane(id);
    let turn = lane.turn.lock().await;
    // Another one may have taken its place meanwhile.
    let is_same = sandbox_of(node, id).is_some_and(|now| now.incarnation == sandbox.incarnation);
    if is_same && members(node, id).iter().all(|(_, state)| has_ended(*state)) {
        life::stop(node, id).await;
    }
    drop(turn);
    drop(lane);
    // A pod whose creation failed is forgotten by now.
    node.lanes.drop_idle_pod(&node.records.read(), id);
}

/// A container has exited: its pod may be over with it. Done in a task of its own, because the
/// caller holds the container's lane, and the runtime must not wait for it.
pub(crate) fn container_ended(node: &Rc<Node>, container: &Container) {
    let sandbox = sandbox_of(node, &container.pod);
    if let Some(sandbox) = sandbox.filter(|sandbox| has_ended(sandbox.state)) {
        let (node, active) = (Rc::clone(node), node.process.activity.begin());
        tokio::task::spawn_local(async move {
            stop_with_sandbox(&node, &sandbox).await;
            drop(active);
        });
    }
}

/// The infrastructure container of a pod, if it is on record.
fn sandbox_of(node: &Node, id: &str) -> Option<Rc<Container>> {
    let key = node.records.read().pod(id).and_then(|pod| pod.sandbox.clone())?;
    node.container(&key)
}

/// The other containers of a pod, and their states.
fn members(node: &Node, id: &str) -> Vec<(ContainerKey, Lifecycle)> {
    let store = node.records.read();
    let members = store.of_pod(id).filter(|container| !container.is_sandbox);
    members.map(|member| (member.key.clone(), member.state)).collect()
}

fn has_ended(state: Lifecycle) -> bool {
    matches!(state, Lifecycle::Stopped | Lifecycle::Removed)
}
