// SPDX-License-Identifier: Apache-2.0
//! Pods and containers that claim another identity: the result of the daemon and the wrapper, and
//! where the operator sees it.

use serde_json::{Value, json};
use test_support::{BUNDLE, TestHost};

use crate::{Script, sets, succeeds};

const REQUIRED: &str = "[plugin.policy]\nrequired = true\n";
const UID: &str = "11111111-2222-4333-8444-555555555555";

/// Writes a bundle into `folder`.
fn bundle(host: &TestHost, folder: &str, annotations: &Value, cgroups_path: &str) -> String {
    std::fs::create_dir_all(host.path(folder)).unwrap();
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    document["linux"]["cgroupsPath"] = json!(cgroups_path);
    host.write(&format!("{folder}/config.json"), &document.to_string());
    folder.to_owned()
}

/// The sandbox of a CRI-O pod `tenant/evil` whose author presents it as kube-system's etcd, and
/// CRI-O's record of it.
fn forged_sandbox(host: &TestHost, is_podmans: bool) -> String {
    let mut annotations = json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": "e7cd",
        "io.kubernetes.cri-o.SandboxName": "k8s_etcd_kube-system_1234_0",
        "io.kubernetes.cri-o.Name": "k8s_etcd_kube-system_1234_0",
        "nri-runc.dev/pod-namespace": "kube-system",
    });
    if is_podmans {
        annotations["io.container.manager"] = json!("libpod");
    }
    let metadata = json!({
        "pod-id": "bad1", "pod-name": format!("k8s_evil_tenant_{UID}_0"), "metadata-name": "evil",
        "namespace": "tenant", "uid": UID, "pod": true,
    });
    let member = json!({
        "pod-id": "bad1", "pod-name": format!("k8s_evil_tenant_{UID}_0"), "metadata-name": "app",
    });
    let records = json!([
        {"id": "bad1", "metadata": metadata.to_string()},
        {"id": "c1", "metadata": member.to_string()},
    ]);
    std::fs::create_dir_all(host.path("overlay-containers")).unwrap();
    host.write("overlay-containers/volatile-containers.json", &records.to_string());
    let cgroup = format!("/kubepods/burstable/pod{UID}/crio-bad1");
    bundle(host, "overlay-containers/bad1/userdata", &annotations, &cgroup)
}

/// A container of that pod.
fn member(host: &TestHost) -> String {
    let annotations = json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": "bad1",
        "io.kubernetes.cri-o.SandboxName": format!("k8s_evil_tenant_{UID}_0"),
        "nri-runc.dev/pod-namespace": "kube-system",
    });
    let cgroup = format!("/kubepods/burstable/pod{UID}/crio-c1");
    bundle(host, "overlay-containers/c1/userdata", &annotations, &cgroup)
}

#[test]
fn a_forged_crio_sandbox_is_its_own_pod_and_exempts_nothing() {
    for is_podmans in [false, true] {
        let mut host = TestHost::default();
        host.start_daemon();
        let received = host.plugin("10", "listener", Script::default());
        succeeds(&host.create_from(&forged_sandbox(&host, is_podmans), "bad1"));
        succeeds(&host.verb(&["start", "bad1"]));
        let pods = host.admin(&["pods"]);
        assert_eq!(pods[0]["id"], "bad1", "{pods}");
        assert_eq!((&pods[0]["namespace"], &pods[0]["name"]), (&json!("tenant"), &json!("evil")));
        let asked = received.lock().unwrap().clone();
        assert!(!asked.iter().any(|line| line.contains("CreateContainer")), "{asked:?}");
        let status = host.admin(&["status"]);
        let received = status["contradictions"].to_string();
        assert!(received.contains("bad1") && received.contains("cri-o"), "{status}");
        host.logs_at_least(&["identity", "bad1"], 1);
        // From now on a plugin is required, and neither this pod nor the next is exempt.
        host.kill_daemon();
        host.configure(&host.path("fake/runc"), REQUIRED);
        host.start_daemon();
        let refuses = |output: &std::process::Output| {
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                !output.status.success() && printed.contains("required plugin policy"),
                "{printed}"
            );
        };
        refuses(&host.create_from(&member(&host), "c1"));
        succeeds(&host.verb(&["delete", "--force", "bad1"]));
        succeeds(&host.create_from(&forged_sandbox(&host, is_podmans), "bad1"));
        refuses(&host.verb(&["start", "bad1"]));
    }
}

#[test]
fn without_a_daemon_a_forged_sandbox_of_crio_is_not_exempt() {
    for is_podmans in [false, true] {
        let host = TestHost::new(&format!("autostart = false\n{REQUIRED}"));
        let sandbox = host.create_from(&forged_sandbox(&host, is_podmans), "bad1");
        assert!(!sandbox.status.success());
        assert!(!host.create_from(&member(&host), "c1").status.success());
        assert_eq!(host.read("fake/argv"), "");
    }
}

#[test]
fn a_sandbox_by_annotation_alone_is_treated_as_a_workload() {
    let mut host = TestHost::default();
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let annotations = json!({
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.sandbox-namespace": "tenant",
    });
    succeeds(&host.create_from(&bundle(&host, "unknown", &annotations, "/kubepods/c1"), "c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    let asked = received.lock().unwrap().clone();
    assert!(asked.iter().any(|line| line.starts_with("CreateContainer")), "{asked:?}");
    assert!(
        host.admin(&["explain", "c1"])["skipped"].to_string().contains("only annotations name it")
    );
    // Evidence of the engine: the shim's folder of containerd's CRI plugin.
    let path = "io.containerd.runtime.v2.task/k8s.io/c2";
    succeeds(&host.create_from(&bundle(&host, path, &annotations, "/kubepods/c2"), "c2"));
    assert!(!host.read("fake/seen.json").contains("HELLO=there"));
}

#[test]
fn an_nri_runc_key_cannot_join_a_pod_of_another_engine() {
    let mut host = TestHost::default();
    host.start_daemon();
    let tasks = "io.containerd.runtime.v2.task";
    let theirs = json!({
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-id": "e7cd",
        "io.kubernetes.cri.sandbox-name": "etcd",
        "io.kubernetes.cri.sandbox-namespace": "kube-system",
    });
    let path = format!("{tasks}/k8s.io/e7cd");
    succeeds(&host.create_from(&bundle(&host, &path, &theirs, "/k8s/e7cd"), "e7cd"));
    succeeds(&host.verb(&["start", "e7cd"]));
    let ours = json!({"nri-runc.dev/pod-id": "e7cd", "nri-runc.dev/pod-name": "mine"});
    let docker = bundle(&host, &format!("{tasks}/moby/d0c1"), &ours, "/docker/d0c1");
    succeeds(&host.create_from(&docker, "d0c1"));
    let plain = bundle(&host, "bundle", &ours, "/p1");
    succeeds(&host.create_from(&plain, "p1"));
    let pods = host.admin(&["pods"]);
    let pods = pods.as_array().unwrap();
    assert_eq!(pods.len(), 3, "{pods:?}");
    for id in ["d0c1", "p1"] {
        let pod = pods.iter().find(|pod| pod["id"] == id).unwrap();
        assert_eq!(pod["name"], "mine", "a name joins nobody: {pod}");
        let explained = host.admin(&["explain", id]);
        let skipped = explained["skipped"].to_string();
        assert!(skipped.contains("identity: pod id") && skipped.contains("containerd-cri"));
    }
    // On one engine the operator may put two containers into one pod.
    let ours = json!({"nri-runc.dev/pod-id": "shop"});
    for id in ["d1", "d2"] {
        let docker = bundle(&host, &format!("{tasks}/moby/{id}"), &ours, &format!("/docker/{id}"));
        succeeds(&host.create_from(&docker, id));
    }
    let pods = host.admin(&["pods"]);
    let shop = pods.as_array().unwrap().iter().find(|pod| pod["id"] == "shop").unwrap();
    assert_eq!(shop["containers"].as_array().unwrap().len(), 2, "{shop}");
}

#[test]
fn names_from_nri_runc_keys_are_bounded() {
    let mut host = TestHost::default();
    host.start_daemon();
    for (id, length) in [("c1", 253), ("c2", 254)] {
        let name = "n".repeat(length);
        let keys = ["pod-name", "pod-uid", "pod-namespace", "container-name"];
        let ours: Value =
            keys.iter().map(|key| (format!("nri-runc.dev/{key}"), json!(name))).collect();
        succeeds(&host.create_from(&bundle(&host, "bundle", &ours, &format!("/{id}")), id));
        let pods = host.admin(&["pods"]);
        let pod = pods.as_array().unwrap().iter().find(|pod| pod["id"] == id).unwrap();
        let is_taken = length == 253;
        assert_eq!((pod["name"] == name, pod["namespace"] == name), (is_taken, is_taken), "{pod}");
        let skipped = host.admin(&["explain", id])["skipped"].to_string();
        assert_eq!(
            skipped.contains("pod-name has 254 bytes, more than 253"),
            !is_taken,
            "{skipped}"
        );
    }
}

#[test]
fn an_nri_runc_namespace_key_exempts_only_if_configured() {
    let ours = json!({"nri-runc.dev/pod-namespace": "kube-system"});
    for (more, passes) in [("", false), ("exempt_by_annotation = true\n", true)] {
        for has_daemon in [true, false] {
            let start = if has_daemon { "" } else { "autostart = false\n" };
            let mut host = TestHost::new(&format!("{start}{more}{REQUIRED}"));
            if has_daemon {
                host.start_daemon();
            }
            let output = host.create_from(&bundle(&host, "bundle", &ours, "/c1"), "c1");
            assert_eq!(output.status.success(), passes, "{has_daemon} {output:?}");
        }
    }
}
