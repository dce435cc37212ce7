// SPDX-License-Identifier: Apache-2.0
//! Pods, created manually and from Kubernetes YAML. The infrastructure container belongs to the
//! pod, the others are its members.

use serde_json::{Value, json};
use test_support::podman::IMAGE;
use test_support::{LIFE, ORDER, Script};

use super::{EventLines, PodmanHost, events_of, inspect, installed, listening, request_of};

/// Returns the pod. Since Podman 5, the output for one pod is a list of one.
fn inspect_pod(host: &PodmanHost, name: &str) -> Value {
    let pod: Value = serde_json::from_str(&host.good(&["pod", "inspect", name])).unwrap();
    if host.major_version < 5 { pod } else { pod[0].clone() }
}

/// Checks that each member's events come once and in order, and the pod's around all of them.
#[track_caller]
fn a_pods_life(received: &EventLines, pod: &str, members: &[&str]) {
    for member in members {
        assert_eq!(events_of(received, member), ORDER[1..], "{member}");
    }
    assert_eq!(events_of(received, pod), [LIFE[0], LIFE[7], LIFE[8]]);
    let received = received.lock().unwrap();
    let is_pods = |event: &&String| event.contains("PodSandbox");
    assert!(received.first().is_some_and(|event| is_pods(&event)), "{received:?}");
    let place = |event: &str| received.iter().position(|known| known == event).unwrap();
    // The infrastructure container ends after the members, and may be removed before them.
    let stop = place(&format!("StopPodSandbox {pod}"));
    for member in members {
        assert!(place(&format!("StopContainer {member}")) < stop, "{received:?}");
    }
    assert_eq!(received.last(), Some(&format!("RemovePodSandbox {pod}")), "{received:?}");
    assert_eq!(received.len(), 3 + 7 * members.len() - members.len(), "{received:?}");
}

fn settled(host: &PodmanHost, received: &EventLines, starts: usize) {
    host.wait_until("the starts are reported", || {
        let received = received.lock().unwrap();
        received.iter().filter(|event| event.starts_with("PostStartContainer")).count() == starts
    });
}

#[test]
fn a_podman_pod_is_announced_once_around_its_members() {
    let Some(host) = installed("") else { return };
    let (script, requests) = listening(Script::default());
    let received = host.plugin("10", "witness", script);
    let cgroup = host.cgroup();
    let make = ["--runtime", "nri-runc", "pod", "create", "--name", "shop", "--network", "none"];
    let id =
        host.good(&[&make[..], &["--cgroup-parent", &cgroup, "--label", "tier=front"]].concat());
    for (name, label) in [("shop-web", "app=web"), ("shop-helper", "app=helper")] {
        let words = ["create", "--pod", "shop", "--name", name, "--label", label, IMAGE];
        host.good(&[&["--runtime", "nri-runc"][..], &words].concat());
    }
    host.good(&["pod", "start", "shop"]);
    settled(&host, &received, 2);
    let printed = inspect_pod(&host, "shop");
    let infra = inspect(&host, printed["InfraContainerID"].as_str().unwrap());
    let pod = &request_of(&requests, "RunPodSandbox", "shop")["pod"];
    assert_eq!(
        [&pod["id"], &pod["uid"], &pod["labels"], &pod["pid"], &pod["runtimeHandler"]],
        [&json!(id), &json!(id), &printed["Labels"], &infra["State"]["Pid"], &json!("nri-runc")]
    );
    let cgroup = test_support::cgroup::in_message(printed["CgroupPath"].as_str().unwrap());
    assert_eq!(pod["linux"]["cgroupParent"], cgroup);
    for name in ["shop-web", "shop-helper"] {
        let request = request_of(&requests, "CreateContainer", name);
        let (container, member) = (&request["container"], inspect(&host, name));
        assert_eq!(
            [&container["id"], &container["labels"], &container["podSandboxId"]],
            [&member["Id"], &member["Config"]["Labels"], &member["Pod"]]
        );
        assert_eq!(&request["pod"], pod, "each request has the same pod");
    }
    let known = host.admin(&["pods"]);
    assert_eq!(known[0]["containers"].as_array().map(Vec::len), Some(2), "{known}");
    host.good(&["pod", "stop", "--time", "0", "shop"]);
    host.wait_until_no_pods();
    a_pods_life(&received, "shop", &["shop-web", "shop-helper"]);
    host.good(&["pod", "rm", "shop"]);
    assert_eq!(received.lock().unwrap().len(), 15, "what has gone from the runtime goes once");
}

#[test]
fn a_restarted_pod_is_announced_twice_and_a_removed_one_once() {
    let Some(host) = installed("") else { return };
    let received = host.plugin("10", "witness", Script::default());
    let cgroup = host.cgroup();
    let make = ["--runtime", "nri-runc", "pod", "create", "--name", "shop", "--network", "none"];
    host.good(&[&make[..], &["--cgroup-parent", &cgroup]].concat());
    let member = ["run", "--detach", "--pod", "shop", "--name", "shop-web", IMAGE];
    host.good(&[&["--runtime", "nri-runc"][..], &member].concat());
    settled(&host, &received, 1);
    host.good(&["pod", "stop", "--time", "0", "shop"]);
    host.wait_until_no_pods();
    a_pods_life(&received, "shop", &["shop-web"]);
    received.lock().unwrap().clear();
    host.good(&["pod", "start", "shop"]);
    settled(&host, &received, 1);
    host.good(&["pod", "rm", "--force", "--time", "0", "shop"]);
    host.wait_until_no_pods();
    a_pods_life(&received, "shop", &["shop-web"]);
}

const YAML: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: kubed
  labels: {app: shop}
  annotations: {example.org/note: from-yaml}
spec:
  hostNetwork: true
  containers:
  - name: web
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: ["/bin/sleep", "1000"]
    env: [{name: GREETING, value: hello}]
    resources: {limits: {memory: 128Mi, cpu: 500m}, requests: {memory: 64Mi, cpu: 250m}}
  - name: helper
    image: localhost/busybox:1
    imagePullPolicy: Never
"#;

#[test]
fn a_pod_of_kubernetes_yaml_has_its_annotations_and_limits() {
    let Some(host) = installed("") else { return };
    let (script, requests) = listening(Script::default());
    let received = host.plugin("10", "witness", script);
    host.write("kubed.yaml", YAML);
    let file = host.path("kubed.yaml").display().to_string();
    host.good(&["--runtime", "nri-runc", "kube", "play", &file]);
    settled(&host, &received, 2);
    let printed = inspect_pod(&host, "kubed");
    let request = request_of(&requests, "CreateContainer", "kubed-web");
    let (pod, container) = (&request["pod"], &request["container"]);
    assert_eq!([&pod["id"], &pod["name"]], [&printed["Id"], &printed["Name"]]);
    assert_eq!([&pod["labels"], &pod["labels"]["app"]], [&printed["Labels"], &json!("shop")]);
    assert_eq!(pod["annotations"]["example.org/note"], "from-yaml");
    assert_eq!(container["annotations"]["example.org/note"], "from-yaml");
    let member = inspect(&host, "kubed-web");
    let limits = &member["HostConfig"];
    let resources = &container["linux"]["resources"];
    assert_eq!(resources["memory"]["limit"]["value"], (128 << 20).to_string());
    assert_eq!(resources["memory"]["limit"]["value"], limits["Memory"].to_string());
    let cpu = (&resources["cpu"]["quota"]["value"], &resources["cpu"]["period"]["value"]);
    let wanted = (limits["CpuQuota"].to_string(), limits["CpuPeriod"].to_string());
    assert_eq!(cpu, (&json!(wanted.0), &json!(wanted.1)));
    assert_ne!(wanted.0, "0");
    assert!(container["env"].as_array().unwrap().contains(&json!("GREETING=hello")));
    host.good(&["kube", "down", &file]);
    host.wait_until_no_pods();
    a_pods_life(&received, "kubed", &["kubed-web", "kubed-helper"]);
    let id = printed["Id"].as_str().unwrap();
    drop(host);
    forget_podmans_own_cgroup(id);
}

/// Removes the cgroups of this pod that `kube play` leaves below Podman's own parent, the only one
/// that it accepts, and then the parent if it is empty.
pub(super) fn forget_podmans_own_cgroup(pod: &str) {
    let folders = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let roots = folders.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]);
    for parent in roots.map(|root| root.join("libpod_parent")) {
        for folder in [parent.join(pod), parent.join("conmon"), parent] {
            let _in_use = std::fs::remove_dir(folder);
        }
    }
}

#[test]
fn a_refused_member_is_named_and_the_others_keep_running() {
    let Some(host) = installed("") else { return };
    let refuses = Script { refuses: Some("not signed"), ..Script::default() };
    let received = host.plugin("90", "guard", refuses);
    let cgroup = host.cgroup();
    let make = ["--runtime", "nri-runc", "pod", "create", "--name", "shop", "--network", "none"];
    host.good(&[&make[..], &["--cgroup-parent", &cgroup]].concat());
    let member = ["run", "--detach", "--pod", "shop", "--name", "shop-web", IMAGE];
    host.bad(&[&["--runtime", "nri-runc"][..], &member].concat(), &["90-guard", "not signed"]);
    let infra = inspect_pod(&host, "shop")["InfraContainerID"].as_str().unwrap().to_owned();
    assert_eq!(inspect(&host, &infra)["State"]["Running"], true);
    host.good(&["pod", "rm", "--force", "--time", "0", "shop"]);
    host.wait_until_no_pods();
    assert_eq!(events_of(&received, "shop"), [LIFE[0], LIFE[7], LIFE[8]]);
    assert_eq!(
        events_of(&received, "shop-web"),
        ["CreateContainer", "StopContainer", "RemoveContainer"]
    );
}
