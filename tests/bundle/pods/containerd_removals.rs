// SPDX-License-Identifier: Apache-2.0
//! Containers and pods that containerd's CRI plugin still keeps after the runtime has deleted them:
//! plugins receive their removal once, when containerd removes them, even if the daemon restarts
//! meanwhile. Without a folder they are removed with the runtime's `delete`.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{started, succeeds};

const HOMES: &str = "io.containerd.grpc.v1.cri";

/// The folder of a container, or of a pod's sandbox.
fn folder(id: &str, pod: &str) -> String {
    let kind = if id == pod { "sandboxes" } else { "containers" };
    format!("{HOMES}/{kind}/{id}")
}

/// Creates and starts a container, or a pod's sandbox, as containerd does.
fn run(host: &TestHost, id: &str, pod: &str) {
    std::fs::create_dir_all(host.path(&folder(id, pod))).unwrap();
    let kind = if id == pod { "sandbox" } else { "container" };
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": pod,
        "io.kubernetes.cri.sandbox-name": pod,
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": "u1",
    });
    if id != pod {
        document["annotations"]["io.kubernetes.cri.container-name"] = json!(id);
    }
    let bundle = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
    std::fs::create_dir_all(host.path(&bundle)).unwrap();
    host.write(&format!("{bundle}/config.json"), &document.to_string());
    succeeds(&host.create_from(&bundle, id));
    succeeds(&host.verb(&["start", id]));
}

/// Ends the process; the shim then deletes the container with its bundle.
fn ends(host: &TestHost, id: &str) {
    succeeds(&host.verb(&["kill", id, "9"]));
    succeeds(&host.verb(&["delete", id]));
    std::fs::remove_dir_all(host.path(&format!("io.containerd.runtime.v2.task/k8s.io/{id}")))
        .unwrap();
}

/// Removes the container, as the engine does.
fn remove(host: &TestHost, id: &str, pod: &str) {
    std::fs::remove_dir_all(host.path(&folder(id, pod))).unwrap();
}

type EventLines = Arc<Mutex<Vec<String>>>;

fn count(received: &EventLines, line: &str) -> usize {
    received.lock().unwrap().iter().filter(|received| *received == line).count()
}

fn wait_for_event(received: &EventLines, line: &str) {
    wait_until(line, || count(received, line) == 1);
}

fn state(host: &TestHost, id: &str) -> String {
    let pods = host.admin(&["pods"]);
    let pods = pods.as_array().into_iter().flatten();
    let mut all = pods.flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
    let found = all.find(|container| container["id"] == id).unwrap_or_default();
    found["state"].as_str().unwrap_or_default().to_owned()
}

/// Waits until nothing is pending for the container.
fn is_settled(host: &TestHost, id: &str) {
    wait_until("its delete is settled", || {
        let record = records(host).into_iter().find(|record| record["key"]["id"] == id);
        record.is_some_and(|record| record["is_deleted"] == true)
    });
}

/// The records on disk.
fn records(host: &TestHost) -> Vec<Value> {
    let files = std::fs::read_dir(host.path("run/state/containers")).unwrap().flatten();
    let records = files.filter_map(|file| std::fs::read(file.path()).ok());
    records.filter_map(|bytes| serde_json::from_slice(&bytes).ok()).collect()
}

#[test]
fn a_container_and_its_pod_are_removed_with_the_engines_files() {
    let host = started("");
    let received = host.plugin("10", "early", Script::default());
    run(&host, "p1", "p1");
    run(&host, "c1", "p1");
    ends(&host, "c1");
    wait_for_event(&received, "StopContainer c1");
    is_settled(&host, "c1");
    assert_eq!(state(&host, "c1"), "stopped");
    assert!(std::fs::read_dir(host.path("run/state/pristine")).unwrap().next().is_none());
    // A plugin that connects now receives the exited container, and its removal.
    let late = host.plugin("20", "late", Script::default());
    assert_eq!(count(&late, "Synchronize c1"), 1, "{:?}", late.lock().unwrap());
    assert_eq!(count(&received, "RemoveContainer c1"), 0);
    remove(&host, "c1", "p1");
    wait_for_event(&received, "RemoveContainer c1");
    wait_for_event(&late, "RemoveContainer c1");
    ends(&host, "p1");
    wait_for_event(&received, "StopPodSandbox p1");
    is_settled(&host, "p1");
    assert_eq!(count(&received, "RemovePodSandbox p1"), 0);
    assert_eq!(host.admin(&["pods"])[0]["state"], "stopped");
    remove(&host, "p1", "p1");
    wait_for_event(&received, "RemovePodSandbox p1");
    wait_until("it is forgotten", || host.admin(&["pods"]) == json!([]));
    for event in ["StopContainer c1", "RemoveContainer c1", "StopPodSandbox p1"] {
        assert_eq!(count(&received, event), 1, "{event}");
    }
    assert_eq!(records(&host).len(), 0);
}

#[test]
fn a_pod_that_is_removed_with_its_containers_is_removed_last() {
    let host = started("");
    let received = host.plugin("10", "listener", Script::default());
    run(&host, "p1", "p1");
    for id in ["c1", "c2"] {
        run(&host, id, "p1");
        ends(&host, id);
    }
    ends(&host, "p1");
    ["c1", "c2", "p1"].iter().for_each(|id| is_settled(&host, id));
    for id in ["c1", "c2", "p1"] {
        remove(&host, id, "p1");
    }
    wait_for_event(&received, "RemovePodSandbox p1");
    let received = received.lock().unwrap().clone();
    let mut removals: Vec<&String> =
        received.iter().filter(|line| line.starts_with("Remove")).collect();
    assert_eq!(
        removals.last().map(|line| line.as_str()),
        Some("RemovePodSandbox p1"),
        "{received:?}"
    );
    removals.sort(); // Containers that are removed at the same time have no order.
    assert_eq!(removals, ["RemoveContainer c1", "RemoveContainer c2", "RemovePodSandbox p1"]);
}

#[test]
fn removals_without_a_daemon_are_reported_oldest_first() {
    let mut host = started("");
    run(&host, "p1", "p1");
    for id in ["c3", "c2", "c1"] {
        run(&host, id, "p1");
        ends(&host, id);
    }
    ends(&host, "p1");
    ["c1", "c2", "c3", "p1"].iter().for_each(|id| is_settled(&host, id));
    host.kill_daemon();
    for id in ["c1", "c3", "p1"] {
        remove(&host, id, "p1");
    }
    host.write(
        "config.toml",
        &host.read("config.toml").replace("[nri]", "[nri]\nwait_for = [\"10-a\"]"),
    );
    host.start_daemon();
    let received = host.plugin("10", "a", Script::default());
    wait_for_event(&received, "RemoveContainer c1");
    assert_eq!(state(&host, "c2"), "stopped", "its engine keeps it");
    // The next daemon watches too.
    remove(&host, "c2", "p1");
    wait_for_event(&received, "RemovePodSandbox p1");
    let received = received.lock().unwrap().clone();
    let removals: Vec<&String> =
        received.iter().filter(|line| line.starts_with("Remove")).collect();
    let wanted = ["RemoveContainer c3", "RemoveContainer c1", "RemoveContainer c2"];
    assert_eq!(removals[..3], wanted, "{received:?}");
}

#[test]
fn a_container_without_engine_files_is_removed_at_its_delete() {
    let host = started("");
    let received = host.plugin("10", "listener", Script::default());
    run(&host, "p1", "p1");
    for id in ["p1", "c1"] {
        if id == "c1" {
            run(&host, id, "p1");
        }
        remove(&host, id, "p1");
    }
    for id in ["c1", "p1"] {
        ends(&host, id);
    }
    wait_for_event(&received, "RemovePodSandbox p1");
    assert_eq!(count(&received, "RemoveContainer c1"), 1);
}

#[test]
fn removing_the_engines_whole_folder_removes_all_pods() {
    let host = started("");
    let received = host.plugin("10", "listener", Script::default());
    for pod in ["p1", "p2"] {
        run(&host, pod, pod);
        ends(&host, pod);
        is_settled(&host, pod);
    }
    std::fs::remove_dir_all(host.path(HOMES)).unwrap();
    wait_for_event(&received, "RemovePodSandbox p1");
    wait_for_event(&received, "RemovePodSandbox p2");
    // Later pods are watched again.
    run(&host, "p3", "p3");
    ends(&host, "p3");
    is_settled(&host, "p3");
    assert_eq!(count(&received, "RemovePodSandbox p3"), 0);
    remove(&host, "p3", "p3");
    wait_for_event(&received, "RemovePodSandbox p3");
}

#[test]
fn a_reused_id_ends_the_earlier_container() {
    let host = started("");
    let received = host.plugin("10", "listener", Script::default());
    run(&host, "p1", "p1");
    run(&host, "c1", "p1");
    ends(&host, "c1");
    is_settled(&host, "c1");
    run(&host, "c1", "p1");
    assert_eq!(count(&received, "RemoveContainer c1"), 1);
    assert_eq!(state(&host, "c1"), "running");
    let received = received.lock().unwrap().clone();
    let place =
        |line: &str, from: usize| received.iter().skip(from).position(|received| received == line);
    let removed = place("RemoveContainer c1", 0).unwrap();
    assert!(place("CreateContainer c1", removed).is_some(), "{received:?}");
}

#[test]
fn a_forced_delete_of_a_running_container_stops_it_and_keeps_it() {
    let host = started("");
    let received = host.plugin("10", "listener", Script::default());
    run(&host, "p1", "p1");
    run(&host, "c1", "p1");
    for _twice in 0..2 {
        succeeds(&host.verb(&["delete", "--force", "c1"]));
    }
    wait_for_event(&received, "StopContainer c1");
    is_settled(&host, "c1");
    assert_eq!(count(&received, "RemoveContainer c1"), 0);
    remove(&host, "c1", "p1");
    wait_for_event(&received, "RemoveContainer c1");
}
