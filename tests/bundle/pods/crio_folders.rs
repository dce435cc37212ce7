// SPDX-License-Identifier: Apache-2.0
//! Pods that an engine keeps as folders, and pod data that only the members have.

use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use serde_json::{Value, json};
use test_support::scripted_plugin::json_of;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::succeeds;

fn annotated(host: &TestHost, id: &str, annotations: &Value, cgroups_path: Option<&str>) -> String {
    let folder = format!("overlay-containers/{id}/userdata");
    std::fs::create_dir_all(host.path(&folder)).unwrap();
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    if let Some(path) = cgroups_path {
        document["linux"]["cgroupsPath"] = json!(path);
    }
    host.write(&format!("{folder}/config.json"), &document.to_string());
    folder
}

#[test]
fn a_pod_without_infrastructure_stops_when_marked_and_empty() {
    let mut host = TestHost::default();
    host.start_daemon();
    let received = host.plugin("10", "listener", Script::default());
    let metadata = json!({"name": "web", "uid": "u", "namespace": "shop"}).to_string();
    let pod = json!({
        "io.kubernetes.cri-o.Metadata": metadata,
        "spoofed.crio.io": "true",
    });
    let pod = annotated(&host, "5a0d", &pod, None);
    let member = json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": "5a0d",
        "io.kubernetes.cri-o.SandboxName": "k8s_web_shop_u_0",
        "io.kubernetes.cri-o.Metadata": "{\"name\": \"app\"}",
    });
    succeeds(&host.create_from(&annotated(&host, "c1", &member, None), "c1"));
    succeeds(&host.verb(&["start", "c1"]));
    // CRI-O marks the pod after its containers, but the daemon may see it in the other order.
    host.write(&format!("{pod}/stopped"), "");
    succeeds(&host.verb(&["kill", "c1", "9"]));
    let has_received = |event: &str| received.lock().unwrap().iter().any(|line| line == event);
    wait_until("the pod is stopped", || has_received("StopPodSandbox web"));
    let order = |event: &str| received.lock().unwrap().iter().position(|line| line == event);
    assert!(order("StopContainer app") < order("StopPodSandbox web"));
    assert!(!has_received("RemoveContainer app") && !has_received("RemovePodSandbox web"));
    succeeds(&host.verb(&["delete", "c1"]));
    std::fs::remove_dir_all(host.path("overlay-containers/5a0d")).unwrap();
    wait_until("the pod is removed", || has_received("RemovePodSandbox web"));
    let stops =
        received.lock().unwrap().iter().filter(|line| *line == "StopPodSandbox web").count();
    assert_eq!(stops, 1);
}

/// Podman's `kube play`: the infrastructure container does not have the annotations of the YAML.
#[test]
fn annotations_that_only_a_member_has_are_added_to_the_pod() {
    let mut host = TestHost::default();
    host.start_daemon();
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let requests = Arc::clone(&seen);
    let on_request = move |event: &str, request: &dyn MessageDyn| {
        let request = json_of(request);
        let pin = request["pod"]["annotations"]["cpu.example/pin"].clone();
        requests.lock().unwrap().push(json!([event, pin]));
    };
    let script = Script { on_request: Some(Arc::new(on_request)), ..Script::default() };
    let _plugin = host.plugin("10", "listener", script);
    let parent = format!("/libpod_parent/{}", "a5".repeat(32));
    let path = |id: &str| format!("{parent}/libpod-{id}");
    let infra = json!({"io.container.manager": "libpod"});
    succeeds(&host.create_from(&annotated(&host, "1f4a", &infra, Some(&path("1f4a"))), "1f4a"));
    succeeds(&host.verb(&["start", "1f4a"]));
    let member = json!({
        "io.container.manager": "libpod",
        "io.kubernetes.cri-o.SandboxID": "1f4a",
        "cpu.example/pin": "yes",
    });
    succeeds(&host.create_from(&annotated(&host, "b0b1", &member, Some(&path("b0b1"))), "b0b1"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], json!(["RunPodSandbox", null]));
    assert_eq!(seen[1], json!(["CreateContainer", "yes"]));
}
