// SPDX-License-Identifier: Apache-2.0
//! Pods of CRI-O without an infrastructure container, whose start and end no runtime call shows
//! (D20). The files are laid out manually, as CRI-O does.

use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{started, succeeds};

const POD: &str = "store/overlay-containers/pod1";

fn document(host: &TestHost, folder: &str, annotations: &Value) -> String {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    let bundle = format!("{folder}/userdata");
    std::fs::create_dir_all(host.path(&bundle)).unwrap();
    host.write(&format!("{bundle}/config.json"), &document.to_string());
    bundle
}

/// Writes the pod's files as CRI-O does before its first container.
fn pod(host: &TestHost) {
    let annotations = json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
        "io.kubernetes.cri-o.Metadata":
            "{\"name\":\"web\",\"namespace\":\"default\",\"uid\":\"u1\",\"attempt\":0}",
        "io.kubernetes.cri-o.Spoofed": "true",
    });
    document(host, POD, &annotations);
}

fn create(host: &TestHost, id: &str) -> std::process::Output {
    let annotations = json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": "pod1",
        "io.kubernetes.cri-o.SandboxName": "k8s_web_default_u1_0",
        "io.kubernetes.cri-o.Metadata": "{\"name\":\"app\",\"attempt\":0}",
        "io.kubernetes.container.name": "app",
    });
    let bundle = document(host, &format!("store/overlay-containers/{id}"), &annotations);
    host.create_from(&bundle, id)
}

fn ends(host: &TestHost, received: &std::sync::Mutex<Vec<String>>, id: &str, so_far: usize) {
    succeeds(&host.verb(&["delete", "--force", id]));
    wait_until("the end is reported", || received.lock().unwrap().len() >= so_far);
}

fn pod_goes(host: &TestHost) {
    std::fs::remove_dir_all(host.path(POD)).unwrap();
}

const BEGINS: [&str; 3] = ["RunPodSandbox web", "CreateContainer app", "PostCreateContainer app"];
const ENDS: [&str; 2] = ["StopContainer app", "RemoveContainer app"];
const POD_ENDS: [&str; 2] = ["StopPodSandbox web", "RemovePodSandbox web"];

#[test]
fn a_pod_without_infrastructure_ends_with_its_folder() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    pod(&host);
    succeeds(&create(&host, "app1"));
    ends(&host, &received, "app1", 5);
    // kubelet restarts the container: another ID, the same pod.
    succeeds(&create(&host, "app2"));
    ends(&host, &received, "app2", 9);
    assert_eq!(host.admin(&["pods"])[0]["state"], "ready");
    let lived = [&BEGINS[..], &ENDS, &BEGINS[1..], &ENDS].concat();
    assert_eq!(*received.lock().unwrap(), lived);
    pod_goes(&host);
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    assert_eq!(*received.lock().unwrap(), [&lived[..], &POD_ENDS].concat());
}

#[test]
fn a_pod_without_its_folder_ends_with_its_last_container() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    pod(&host);
    succeeds(&create(&host, "app1"));
    wait_until("the creation is reported", || received.lock().unwrap().len() >= 3);
    pod_goes(&host);
    ends(&host, &received, "app1", 7);
    assert_eq!(*received.lock().unwrap(), [&BEGINS[..], &ENDS, &POD_ENDS].concat());
    assert_eq!(host.admin(&["pods"]), json!([]));
}

#[test]
fn a_refused_pod_fails_the_create_and_is_announced_again() {
    let host = started("");
    let at = Some("RunPodSandbox".to_owned());
    let guard = Script { refuses: Some("not here"), at, ..Script::default() };
    let received = host.plugin("90", "guard", guard);
    pod(&host);
    for _attempt in 0..2 {
        let output = create(&host, "app1");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && line.contains("not here"), "{line}");
        let wanted = [&BEGINS[..1], &POD_ENDS].concat();
        assert_eq!(std::mem::take(&mut *received.lock().unwrap()), wanted);
        // CRI-O keeps the pod until kubelet removes it.
        assert_eq!(host.admin(&["pods"])[0]["containers"], json!([]));
    }
    assert_eq!(host.read("fake/argv"), "");
}

#[test]
fn a_pod_removed_while_the_daemon_was_away_is_forgotten() {
    for is_gone in [true, false] {
        let mut host = started("");
        pod(&host);
        succeeds(&create(&host, "app1"));
        succeeds(&host.verb(&["delete", "--force", "app1"]));
        wait_until("the container is forgotten", || {
            host.admin(&["pods"])[0]["containers"] == json!([])
        });
        host.kill_daemon();
        if is_gone {
            pod_goes(&host);
        }
        host.start_daemon();
        if !is_gone {
            let received = host.plugin("10", "witness", Script::default());
            assert_eq!(host.admin(&["pods"])[0]["state"], "ready");
            pod_goes(&host);
            wait_until("its end is reported", || received.lock().unwrap().len() >= 2);
            assert_eq!(*received.lock().unwrap(), POD_ENDS);
        }
        wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    }
}
