// SPDX-License-Identifier: Apache-2.0
//! Pods that kubelet resizes: the limits of a pod's cgroup are written, on v1 and on v2, and plugins
//! receive this once, with the values in force. The cgroups are this machine's.

use std::path::PathBuf;

use serde_json::{Value, json};
use test_support::cgroup::test_is_kubelet;
use test_support::scripted_plugin::WITH_RESIZES;
use test_support::scripted_plugin::{ReceivedRequests, listening};

use super::{Place, Script, anywhere, skip, succeeds, wait_until};

/// A guest without KVM is slow: no plugin is late there.
fn patient() -> String {
    format!("[nri]\nplugin_request_timeout = \"20s\"\n{}", test_is_kubelet())
}

const UID: &str = "11111111-2222-4333-8444-555555555555";

/// A pod as containerd's CRI plugin creates it, in a cgroup that kubelet created.
struct ResizedPod {
    place: Place,
    is_v2: bool,
}

impl ResizedPod {
    /// Creates the cgroup with its first limits, as kubelet does before it requests a sandbox.
    fn new() -> Option<Self> {
        let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        if !is_v2 && !std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
            skip::machine_lacks("this host has no cgroups with a memory controller");
            return None;
        }
        if is_v2 {
            test_support::tools::find_in_guest(&["busybox", "runc"])?;
        }
        let pod = Self { place: anywhere("runc", &patient())?, is_v2 };
        for folder in pod.folders() {
            std::fs::create_dir_all(&folder).unwrap();
            if is_v2 {
                let above: Vec<_> = folder.ancestors().skip(1).take(2).collect();
                for above in above.into_iter().rev() {
                    write(above.join("cgroup.subtree_control"), "+cpu +memory");
                }
            }
        }
        pod.limit(&[("quota", "50000"), ("shares", "512"), ("memory", "67108864")]);
        Some(pod)
    }

    fn cgroup(&self) -> String {
        self.place.real.cgroup(&format!("pod{UID}"))
    }

    fn folders(&self) -> Vec<PathBuf> {
        let controllers: &[&str] = if self.is_v2 { &[""] } else { &["cpu", "memory"] };
        let folder = |name: &&str| PathBuf::from(format!("/sys/fs/cgroup/{name}{}", self.cgroup()));
        controllers.iter().map(folder).collect()
    }

    /// Writes limits as kubelet does, one file after the other.
    fn limit(&self, limits: &[(&str, &str)]) {
        for (what, value) in limits {
            let (file, text) = self.written(what, value);
            write(file, &text);
        }
    }

    /// The file of a limit, and its text.
    fn written(&self, what: &str, value: &str) -> (PathBuf, String) {
        let (controller, file, text) = match (self.is_v2, what) {
            (true, "quota") => ("", "cpu.max", format!("{value} 100000")),
            (true, "shares") => {
                let weight = 1 + (value.parse::<u64>().unwrap() - 2) * 9999 / 262_142;
                ("", "cpu.weight", weight.to_string())
            }
            (true, _) => ("", "memory.max", value.to_owned()),
            (false, "quota") => ("cpu", "cpu.cfs_quota_us", value.replace("max", "-1")),
            (false, "shares") => ("cpu", "cpu.shares", value.to_owned()),
            (false, _) => ("memory", "memory.limit_in_bytes", value.replace("max", "-1")),
        };
        let folder = PathBuf::from(format!("/sys/fs/cgroup/{controller}{}", self.cgroup()));
        (folder.join(file), text)
    }

    /// The shares that are sent for a weight, on v2; kubelet computes them in the same way.
    fn shares(&self, asked: u64) -> u64 {
        let weight = 1 + (asked - 2) * 9999 / 262_142;
        if self.is_v2 { (weight - 1) * 262_142 / 9999 + 2 } else { asked }
    }

    fn run(&self) {
        let mut document = self.place.real.document("p1", &["sleep", "1000"]);
        document["linux"]["cgroupsPath"] = json!(format!("{}/p1", self.cgroup()));
        document["annotations"] = sandbox("p1", UID);
        let folder = "io.containerd.runtime.v2.task/k8s.io/p1";
        std::fs::create_dir_all(self.place.host.path(folder)).unwrap();
        self.place.host.write(&format!("{folder}/config.json"), &document.to_string());
        succeeds(&self.place.host.create_from(folder, "p1"));
        succeeds(&self.place.host.verb(&["start", "p1"]));
    }

    fn plugin(&self, name: &str) -> ReceivedRequests {
        listen(&self.place, name)
    }
}

/// The members of a sandbox's document by containerd's CRI plugin.
pub(super) fn sandbox(id: &str, uid: &str) -> Value {
    json!({
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-id": id,
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": uid,
    })
}

/// Connects a plugin that records every request.
pub(super) fn listen(place: &Place, name: &str) -> ReceivedRequests {
    let (script, requests) = listening(Script { events: Some(WITH_RESIZES), ..Script::default() });
    let _names_only = place.host.plugin("10", name, script);
    requests
}

fn write(path: PathBuf, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// The requests of this event.
pub(super) fn all(requests: &ReceivedRequests, event: &str) -> Vec<Value> {
    let requests = requests.lock().unwrap();
    requests.iter().filter(|(name, _)| name == event).map(|(_, request)| request.clone()).collect()
}

/// Waits long enough for a write that must not be sent.
fn a_while() {
    std::thread::sleep(std::time::Duration::from_millis(600));
}

#[test]
fn a_kubelet_resize_is_sent_once_with_the_values_in_force() {
    let Some(pod) = ResizedPod::new() else { return };
    let requests = pod.plugin("a");
    pod.run();
    let same = [("quota", "50000"), ("shares", "512"), ("memory", "67108864")];
    pod.limit(&same);
    a_while();
    assert_eq!(all(&requests, "UpdatePodSandbox").len(), 0, "nothing changed");
    pod.limit(&[("memory", "134217728"), ("quota", "150000"), ("shares", "2048")]);
    wait_until("it is reported", || all(&requests, "PostUpdatePodSandbox").len() == 1);
    let updates = all(&requests, "UpdatePodSandbox");
    assert_eq!(updates.len(), 1, "files that are written together are one resize");
    let received = &updates[0]["linuxResources"];
    assert_eq!(received["memory"]["limit"]["value"], "134217728", "{received}");
    assert_eq!(received["cpu"]["quota"]["value"], "150000", "{received}");
    assert_eq!(received["cpu"]["period"]["value"], "100000", "{received}");
    assert_eq!(received["cpu"]["shares"]["value"], pod.shares(2048).to_string(), "{received}");
    let known = &updates[0]["pod"]["linux"]["podResources"];
    assert!(known.is_null(), "nothing received it: {known}");
    let after = all(&requests, "PostUpdatePodSandbox");
    assert_eq!(after[0]["pod"]["linux"]["podResources"], *received);
    // A removed limit is absent, and the rest stays.
    pod.limit(&[("quota", "max")]);
    wait_until("it is reported", || all(&requests, "PostUpdatePodSandbox").len() == 2);
    let received = all(&requests, "UpdatePodSandbox")[1]["linuxResources"].clone();
    assert!(received["cpu"]["quota"].is_null(), "{received}");
    assert_eq!(received["memory"]["limit"]["value"], "134217728", "{received}");
    succeeds(&pod.place.host.verb(&["kill", "p1", "KILL"]));
    wait_until("it is deleted", || pod.place.host.verb(&["delete", "p1"]).status.success());
    wait_until("it is gone", || pod.place.host.admin(&["pods"]) == json!([]));
    assert_eq!(all(&requests, "RemovePodSandbox").len(), 1);
}

#[test]
fn a_resize_without_a_daemon_is_sent_once_by_the_next_one() {
    let Some(mut pod) = ResizedPod::new() else { return };
    let _plugin = pod.plugin("a");
    pod.run();
    pod.place.host.kill_daemon();
    pod.limit(&[("memory", "134217728")]);
    pod.place.host.start_daemon();
    let requests = pod.plugin("a");
    wait_until("it is reported", || all(&requests, "PostUpdatePodSandbox").len() == 1);
    let received = all(&requests, "UpdatePodSandbox")[0]["linuxResources"].clone();
    assert_eq!(received["memory"]["limit"]["value"], "134217728", "{received}");
    // The next daemon knows that it was sent, and still watches the pod.
    pod.place.host.kill_daemon();
    pod.place.host.start_daemon();
    let requests = pod.plugin("a");
    a_while();
    assert_eq!(all(&requests, "UpdatePodSandbox").len(), 0);
    pod.limit(&[("shares", "1024")]);
    wait_until("it is reported", || all(&requests, "PostUpdatePodSandbox").len() == 1);
}

#[test]
fn a_resize_that_a_plugin_refuses_is_in_force_and_reported() {
    let Some(pod) = ResizedPod::new() else { return };
    let script = Script {
        events: Some(WITH_RESIZES),
        refuses: Some("not that much"),
        at: Some("UpdatePodSandbox".to_owned()),
        ..Script::default()
    };
    let refusing = pod.place.host.plugin("10", "refusing", script);
    let requests = pod.plugin("other");
    pod.run();
    pod.limit(&[("memory", "134217728")]);
    wait_until("the others are reported", || all(&requests, "PostUpdatePodSandbox").len() == 1);
    let refusing = refusing.lock().unwrap().join("\n");
    assert!(refusing.ends_with("UpdatePodSandbox web\nPostUpdatePodSandbox web"), "{refusing}");
    let status = pod.place.host.admin(&["status"])["failures"].to_string();
    assert!(status.contains("UpdatePodSandbox p1") && status.contains("not that much"), "{status}");
    let explained = pod.place.host.admin(&["explain", "p1"]);
    let refused = explained["refused"].to_string();
    assert!(refused.contains("10-refusing refused: not that much"), "{explained}");
    assert!(refused.contains("the resize is in force nevertheless"), "{explained}");
    assert_eq!(explained["state"], "ready", "{explained}");
}

#[test]
fn each_of_several_resizes_is_sent_with_its_own_values() {
    let Some(pod) = ResizedPod::new() else { return };
    let requests = pod.plugin("a");
    pod.run();
    for memory in ["134217728", "100663296", "83886080"] {
        pod.limit(&[("memory", memory)]);
        let is_it = |update: &Value| update["linuxResources"]["memory"]["limit"]["value"] == memory;
        wait_until("it is reported", || {
            all(&requests, "UpdatePodSandbox").last().is_some_and(is_it)
        });
    }
    assert_eq!(all(&requests, "UpdatePodSandbox").len(), 3);
}

/// An agent like Koordinator writes the pod's quota repeatedly, while kubelet writes the other
/// limits.
#[test]
fn a_resize_omits_the_quota_that_an_agent_wrote() {
    let Some(pod) = ResizedPod::new() else { return };
    let requests = pod.plugin("a");
    pod.run();
    let (file, text) = pod.written("quota", "20000");
    let mut agent = std::process::Command::new("sh");
    agent.args(["-c", "echo \"$1\" >\"$2\"; exec sleep 1000", "sh", &text]).arg(&file);
    let mut agent = agent.spawn().unwrap();
    let is_written = || std::fs::read_to_string(&file).unwrap().trim() == text;
    wait_until("the agent has written", is_written);
    pod.limit(&[("memory", "134217728")]);
    wait_until("it is told", || all(&requests, "PostUpdatePodSandbox").len() == 1);
    agent.kill().unwrap();
    agent.wait().unwrap();
    let updates = all(&requests, "UpdatePodSandbox");
    assert_eq!(updates.len(), 1, "only kubelet's write is a resize");
    let seen = &updates[0]["linuxResources"];
    assert_eq!(seen["memory"]["limit"]["value"], "134217728", "{seen}");
    assert_eq!(seen["cpu"]["quota"]["value"], "50000", "kubelet's own: {seen}");
    assert_eq!(all(&requests, "PostUpdatePodSandbox")[0]["pod"]["linux"]["podResources"], *seen);
}
