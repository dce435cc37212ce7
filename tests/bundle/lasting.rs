// SPDX-License-Identifier: Apache-2.0
//! Pods that an engine keeps as folders, and what only the members of a pod know of it.

use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use serde_json::{Value, json};

use super::player::Manner;
use super::rig::{BUNDLE, Rig, wait_until};
use super::succeeds;

fn annotated(rig: &Rig, id: &str, annotations: &Value, cgroups_path: Option<&str>) -> String {
    let folder = format!("overlay-containers/{id}/userdata");
    std::fs::create_dir_all(rig.path(&folder)).unwrap();
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    if let Some(path) = cgroups_path {
        document["linux"]["cgroupsPath"] = json!(path);
    }
    rig.write(&format!("{folder}/config.json"), &document.to_string());
    folder
}

#[test]
fn a_pod_without_infrastructure_is_stopped_when_it_is_marked_and_its_member_has_ended() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    let told = rig.plugin("10", "listener", Manner::default());
    let metadata = json!({"name": "web", "uid": "u", "namespace": "shop"}).to_string();
    let pod = json!({
        "io.kubernetes.cri-o.Metadata": metadata,
        "spoofed.crio.io": "true",
    });
    let pod = annotated(&rig, "5a0d", &pod, None);
    let member = json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": "5a0d",
        "io.kubernetes.cri-o.SandboxName": "k8s_web_shop_u_0",
        "io.kubernetes.cri-o.Metadata": "{\"name\": \"app\"}",
    });
    succeeds(&rig.create_from(&annotated(&rig, "c1", &member, None), "c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    // CRI-O marks it after its containers, but we may see it the other way round.
    rig.write(&format!("{pod}/stopped"), "");
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    let heard = |event: &str| told.lock().unwrap().iter().any(|line| line == event);
    wait_until("the pod is stopped", || heard("StopPodSandbox web"));
    let order = |event: &str| told.lock().unwrap().iter().position(|line| line == event);
    assert!(order("StopContainer app") < order("StopPodSandbox web"));
    assert!(!heard("RemoveContainer app") && !heard("RemovePodSandbox web"));
    succeeds(&rig.verb(&["delete", "c1"]));
    std::fs::remove_dir_all(rig.path("overlay-containers/5a0d")).unwrap();
    wait_until("the pod is removed", || heard("RemovePodSandbox web"));
    let stops = told.lock().unwrap().iter().filter(|line| *line == "StopPodSandbox web").count();
    assert_eq!(stops, 1);
}

/// Podman's `kube play`: the infrastructure container does not have the annotations of the YAML.
#[test]
fn annotations_that_only_a_member_has_are_its_pods() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let heard = Arc::clone(&seen);
    let hears = move |event: &str, request: &dyn MessageDyn| {
        let text = protobuf_json_mapping::print_to_string(request).unwrap();
        let request: Value = serde_json::from_str(&text).unwrap();
        let pin = request["pod"]["annotations"]["cpu.example/pin"].clone();
        heard.lock().unwrap().push(json!([event, pin]));
    };
    let manner = Manner { hears: Some(Arc::new(hears)), ..Manner::default() };
    let _plugin = rig.plugin("10", "listener", manner);
    let parent = format!("/libpod_parent/{}", "a5".repeat(32));
    let path = |id: &str| format!("{parent}/libpod-{id}");
    let infra = json!({"io.container.manager": "libpod"});
    succeeds(&rig.create_from(&annotated(&rig, "1f4a", &infra, Some(&path("1f4a"))), "1f4a"));
    succeeds(&rig.verb(&["start", "1f4a"]));
    let member = json!({
        "io.container.manager": "libpod",
        "io.kubernetes.cri-o.SandboxID": "1f4a",
        "cpu.example/pin": "yes",
    });
    succeeds(&rig.create_from(&annotated(&rig, "b0b1", &member, Some(&path("b0b1"))), "b0b1"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], json!(["RunPodSandbox", null]));
    assert_eq!(seen[1], json!(["CreateContainer", "yes"]));
}
