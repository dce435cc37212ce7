// SPDX-License-Identifier: Apache-2.0
//! Sends StopPodSandbox of a pod with an infrastructure container as soon as that container is
//! about to end, or has ended (D37), because the pod's network namespace may be removed soon. A member that
//! still runs delays it: its StopContainer comes first.

use std::rc::Rc;

use crate::daemon::pods::life;
use crate::daemon::runtime::{command, state_dir};
use crate::daemon::shared::Daemon;
use crate::state::{Container, ContainerKey, Lifecycle};

/// Sends StopPodSandbox, once, if this is its pod's infrastructure container and every member has
/// ended. The caller must not hold the lane of a member.
pub(crate) async fn stop_with_sandbox(daemon: &Rc<Daemon>, sandbox: &Container) {
    stop_with(daemon, &sandbox.pod, &sandbox.key, Some(sandbox.incarnation)).await;
}

/// Like [`stop_with_sandbox`]. `incarnation`: the infrastructure container's; `None` if its record is gone.
async fn stop_with(daemon: &Rc<Daemon>, id: &str, key: &ContainerKey, incarnation: Option<u64>) {
    // Meanwhile it may have been removed, after which the pod still stops. Another one in its place, or a pod that was
    // recorded anew without one, is not to be stopped.
    let is_same = || {
        let is_pods_sandbox =
            daemon.records.read().pod(id).is_some_and(|pod| pod.sandbox.as_ref() == Some(key));
        is_pods_sandbox
            && daemon.container(key).is_none_or(|now| Some(now.incarnation) == incarnation)
    };
    stop_after(daemon, id, |container| !container.is_sandbox, is_same).await;
    // A pod whose creation failed is no longer on record, so no other step drops its lane.
    daemon.lanes.drop_idle_pod(&daemon.records.read(), id);
}

/// Sends StopPodSandbox, once, if `is_due` and each of the pod's containers that `is_member` selects has ended; it
/// comes after their StopContainer. The caller must not hold the lane of a member.
pub(super) async fn stop_after(
    daemon: &Rc<Daemon>,
    id: &str,
    is_member: impl Fn(&Container) -> bool,
    is_due: impl Fn() -> bool,
) {
    let members = || -> Vec<(ContainerKey, Lifecycle)> {
        let store = daemon.records.read();
        let members = store.of_pod(id).filter(|container| is_member(container));
        members.map(|member| (member.key.clone(), member.state)).collect()
    };
    loop {
        for (key, _) in members() {
            // Once the lane is free, the task that notifies plugins of this member has finished.
            let lane = daemon.lane(&key);
            drop(lane.turn.lock().await);
            daemon.lanes.release(&key, lane);
        }
        let lane = daemon.pod_lane(id);
        let turn = lane.turn.lock().await;
        let members = members();
        if !is_due() || !members.iter().all(|(_, state)| has_ended(*state)) {
            return;
        }
        // A member may have ended while this task waited for the pod's turn: its StopContainer is then being sent. That
        // its lane is held would not prove it: another task that waits here may hold it.
        let report_ended = daemon.lanes.report_ended.notified();
        if members.iter().all(|(key, _)| !daemon.lanes.is_reported_now(key)) {
            return life::stop(daemon, id).await;
        }
        drop(turn);
        report_ended.await;
    }
}

/// Sends StopPodSandbox if the pod's infrastructure container has ended, or was removed while a member still ran; in
/// a task, because the caller holds the container's lane, and the runtime must not wait for plugins.
pub(crate) fn stop_if_ended(daemon: &Rc<Daemon>, container: &Container) {
    let id = container.pod.clone();
    let Some(key) = daemon.records.read().pod(&id).and_then(|pod| pod.sandbox.clone()) else {
        return;
    };
    let sandbox = daemon.container(&key);
    let is_over = match &sandbox {
        Some(sandbox) => has_ended(sandbox.state),
        // A record can be lost, too: then the runtime still has the container, if its files are known.
        None if command::has_unknown_files(container) => false,
        None => matches!(state_dir::exists(&daemon.host, &key), Ok(false)),
    };
    if is_over {
        let incarnation = sandbox.map(|sandbox| sandbox.incarnation);
        let (daemon, active) = (Rc::clone(daemon), daemon.process.activity.begin());
        tokio::task::spawn_local(async move {
            stop_with(&daemon, &id, &key, incarnation).await;
            drop(active);
        });
    }
}

fn has_ended(state: Lifecycle) -> bool {
    matches!(state, Lifecycle::Stopped | Lifecycle::Removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::state::{Pod, PodState, Store};

    /// A daemon that knows a pod with these running containers; the one called `p` is its infrastructure container.
    fn daemon(dir: &std::path::Path, ids: &[&str]) -> (Rc<Daemon>, Vec<ContainerKey>) {
        let config = Config { run_dir: dir.join("run"), ..Config::default() };
        let mut store = Store::open(&dir.join("state"), "boot").unwrap().0;
        let key = |id: &str| serde_json::json!({"root": dir.join("runtime"), "id": id});
        let sandbox = ids.contains(&"p").then(|| key("p"));
        let pod = serde_json::json!({
            "schema": 1, "boot_id": "boot", "id": "p", "name": "", "namespace": "", "uid": "",
            "engine": "containerd-cri", "state": "ready", "sandbox": sandbox, "message": ""
        });
        store.put_pod(serde_json::from_value::<Pod>(pod).unwrap()).unwrap();
        let mut keys = Vec::new();
        for id in ids {
            let member = serde_json::json!({
                "schema": 1, "boot_id": "boot", "key": key(id), "incarnation": 1,
                "runtime": "/usr/bin/runc", "global_flags": [], "bundle": "/b", "is_sandbox": *id == "p", "pod": "p",
                "name": "c", "state": "running", "pid_file": null, "init_pid": 1, "init_start": null,
                "engine": "containerd-cri", "evidence": [], "variables": [], "message": "", "engine_resources": {},
                "overlay": {}, "owners": {}, "patched": null, "refused": [], "skipped": [], "in_flight": null,
                "changes": []
            });
            let member: Container = serde_json::from_value(member).unwrap();
            keys.push(member.key.clone());
            store.put(member).unwrap();
        }
        let host = config.host();
        (Daemon::new(config, host, store), keys)
    }

    #[tokio::test]
    async fn a_pod_stops_after_a_member_whose_end_is_being_reported() {
        let temp = tempfile::tempdir().unwrap();
        let (daemon, keys) = daemon(temp.path(), &["c"]);
        let key = &keys[0];
        let state = || daemon.records.read().pod("p").map(|pod| pod.state);
        let a_while = || tokio::time::sleep(std::time::Duration::from_millis(20));
        let story = async {
            let pod = daemon.pod_lane("p");
            let of_pod = pod.turn.lock().await;
            let stopping = {
                let daemon = Rc::clone(&daemon);
                tokio::task::spawn_local(async move {
                    stop_after(&daemon, "p", |_| true, || true).await;
                })
            };
            a_while().await; // It found the member's lane free, and waits for the pod's turn.
            let reporting = daemon.lanes.begin_report(key);
            daemon.change(key, |record| record.state = Lifecycle::Stopped);
            drop(of_pod);
            a_while().await;
            assert_eq!(
                state(),
                Some(PodState::Ready),
                "the member's StopContainer is not sent yet"
            );
            drop(reporting);
            stopping.await.unwrap();
            assert_eq!(state(), Some(PodState::Stopped));
        };
        tokio::task::LocalSet::new().run_until(story).await;
    }

    #[tokio::test]
    async fn a_pod_stops_although_its_sandbox_was_removed_meanwhile() {
        let temp = tempfile::tempdir().unwrap();
        let (daemon, keys) = daemon(temp.path(), &["p"]);
        let key = &keys[0];
        let sandbox = daemon.container(key).unwrap();
        let story = async {
            let lane = daemon.pod_lane("p");
            let of_pod = lane.turn.lock().await;
            let stopping = {
                let daemon = Rc::clone(&daemon);
                tokio::task::spawn_local(async move { stop_with_sandbox(&daemon, &sandbox).await })
            };
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            daemon.records.forget(key);
            drop(of_pod);
            stopping.await.unwrap();
            let state = daemon.records.read().pod("p").map(|pod| pod.state);
            assert_eq!(state, Some(PodState::Stopped));
        };
        tokio::task::LocalSet::new().run_until(story).await;
    }

    #[tokio::test]
    async fn several_stops_of_a_pod_that_wait_for_a_member_end() {
        let temp = tempfile::tempdir().unwrap();
        let (daemon, keys) = daemon(temp.path(), &["p", "c"]);
        let story = async {
            for key in &keys {
                daemon.change(key, |record| record.state = Lifecycle::Stopped);
            }
            let lane = daemon.lane(&keys[1]);
            let of_verb = lane.turn.lock().await;
            let sandbox = daemon.container(&keys[0]).unwrap();
            let stop = || {
                let (daemon, sandbox) = (Rc::clone(&daemon), Rc::clone(&sandbox));
                tokio::task::spawn_local(async move { stop_with_sandbox(&daemon, &sandbox).await })
            };
            let stops = [stop(), stop(), stop()];
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            drop(of_verb);
            for stop in stops {
                stop.await.unwrap();
            }
            let state = daemon.records.read().pod("p").map(|pod| pod.state);
            assert_eq!(state, Some(PodState::Stopped));
        };
        let tasks = tokio::task::LocalSet::new();
        let ended = tasks.run_until(story);
        tokio::time::timeout(std::time::Duration::from_secs(20), ended).await.expect("it ends");
    }

    #[tokio::test]
    async fn a_member_that_ends_after_its_removed_sandbox_stops_the_pod() {
        for is_lost in [false, true] {
            let temp = tempfile::tempdir().unwrap();
            let (daemon, keys) = daemon(temp.path(), &["p", "c"]);
            // The runtime still has a container whose record was lost.
            if is_lost {
                std::fs::create_dir_all(temp.path().join("runtime/p")).unwrap();
            }
            let story = async {
                daemon.records.forget(&keys[0]);
                let member = daemon.container(&keys[1]).unwrap();
                daemon.change(&keys[1], |record| record.state = Lifecycle::Stopped);
                stop_if_ended(&daemon, &member);
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                let state = daemon.records.read().pod("p").map(|pod| pod.state);
                let wanted = if is_lost { PodState::Ready } else { PodState::Stopped };
                assert_eq!(state, Some(wanted), "the record was lost: {is_lost}");
            };
            tokio::task::LocalSet::new().run_until(story).await;
        }
    }

    #[tokio::test]
    async fn a_pod_that_was_made_anew_is_not_stopped_with_the_old_one() {
        for id in ["p", "c"] {
            let temp = tempfile::tempdir().unwrap();
            let (daemon, keys) = daemon(temp.path(), &[id]);
            let key = &keys[0];
            // The earlier container of this ID; the pod has another one now, or none.
            let earlier =
                Container { incarnation: 0, ..Container::clone(&daemon.container(key).unwrap()) };
            daemon.change(key, |record| record.state = Lifecycle::Stopped);
            stop_with_sandbox(&daemon, &earlier).await;
            let state = daemon.records.read().pod("p").map(|pod| pod.state);
            assert_eq!(state, Some(PodState::Ready), "the pod has {id}");
        }
    }
}
