// SPDX-License-Identifier: Apache-2.0
//! The cost of watching for resizes: no wake-ups between two of them, however many pods there are. Also
//! pods that are not watched. The host's files are in a private folder; `tests/node/resources` tests
//! real cgroups.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::cgroup::{memory_limit, test_is_kubelet};
use test_support::scripted_plugin::WITH_RESIZES;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::succeeds;

/// The maximum number of pods on a node by kubelet's default.
const PODS: usize = 110;

/// A test host that resolves paths below its `host`, with this machine's processes.
fn host() -> TestHost {
    let mut host = TestHost::default();
    std::fs::create_dir(host.path("host")).unwrap();
    std::os::unix::fs::symlink("/proc", host.path("host/proc")).unwrap();
    let root = host.path("host").display().to_string();
    let kubelet = test_is_kubelet();
    host.configure(&host.path("fake/runc"), &format!("{kubelet}[debug]\nhost_root = \"{root}\"\n"));
    host.start_daemon();
    host
}

/// The folder that represents the pod's cgroup.
fn cgroup(host: &TestHost, parent: &str) -> PathBuf {
    let at = memory_limit().0;
    host.path("host").join(at.strip_prefix("/").unwrap()).join(parent.trim_start_matches('/'))
}

fn limit(folder: &Path, value: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(memory_limit().1), value).unwrap();
}

/// Creates a pod in this cgroup and starts it.
fn pod(host: &TestHost, id: &str, parent: &str) {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["linux"]["cgroupsPath"] = json!(format!("{parent}/{id}"));
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-id": id,
        "io.kubernetes.cri.sandbox-name": id,
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": format!("uid-of-{id}"),
    });
    let folder = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
    std::fs::create_dir_all(host.path(&folder)).unwrap();
    host.write(&format!("{folder}/config.json"), &document.to_string());
    succeeds(&host.create_from(&folder, id));
    succeeds(&host.verb(&["start", id]));
}

fn listener(host: &TestHost) -> Arc<Mutex<Vec<String>>> {
    host.plugin("10", "a", Script { events: Some(WITH_RESIZES), ..Script::default() })
}

fn count(received: &Arc<Mutex<Vec<String>>>, event: &str) -> usize {
    let received = received.lock().unwrap();
    received.iter().filter(|line| line.starts_with(event)).count()
}

/// The number of times that the daemon's threads slept and were woken.
fn wake_ups(host: &TestHost) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", host.daemon_pid())).unwrap();
    let of_task = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(of_task).sum()
}

#[test]
fn watching_many_pods_for_resizes_costs_no_wake_ups() {
    let host = host();
    let received = listener(&host);
    let parent = |n: usize| format!("/kubepods/burstable/pod{n}");
    for n in 0..PODS {
        limit(&cgroup(&host, &parent(n)), "67108864");
        pod(&host, &format!("p{n}"), &parent(n));
    }
    // At first the runtimes' exits are still being settled. The daemon has a few timers; one check of
    // each pod would exceed this number.
    wait_until("there are few wake-ups in three seconds", || {
        let before = wake_ups(&host);
        std::thread::sleep(Duration::from_secs(3));
        wake_ups(&host) - before < 40
    });
    let (before, begun) = (wake_ups(&host), Instant::now());
    limit(&cgroup(&host, &parent(7)), "134217728");
    wait_until("it is reported", || count(&received, "PostUpdatePodSandbox p7") == 1);
    let woken = wake_ups(&host) - before;
    let own = 13 * begun.elapsed().as_secs();
    assert!(woken < 60 + own, "{woken} wake-ups for one resize, {own} of the daemon's own");
    assert_eq!(count(&received, "UpdatePodSandbox"), 1);
    let output = host.call(&["nri", "events", "-o", "json", "--kind", "pod_updated"]);
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(event["pod_id"], "p7", "{event}");
}

#[test]
fn a_shared_or_removed_cgroup_sends_no_resize_of_a_pod() {
    let host = host();
    let received = listener(&host);
    limit(&cgroup(&host, "/k8s.io"), "67108864");
    pod(&host, "p1", "/k8s.io");
    limit(&cgroup(&host, "/kubepods/pod2"), "67108864");
    pod(&host, "p2", "/kubepods/pod2");
    limit(&cgroup(&host, "/k8s.io"), "1000");
    std::fs::remove_dir_all(cgroup(&host, "/kubepods/pod2")).unwrap();
    // A cgroup of the same name, created again.
    limit(&cgroup(&host, "/kubepods/pod2"), "1000");
    // A cgroup that did not exist before its pod is watched from its creation.
    pod(&host, "p3", "/kubepods/pod3");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(count(&received, "UpdatePodSandbox"), 0);
    for id in ["p1", "p2", "p3"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
    wait_until("the pods are gone", || host.admin(&["pods"]) == json!([]));
    assert_eq!(count(&received, "RemovePodSandbox"), 3);
}

/// A process that writes the limit and keeps running, like an agent of the node.
fn agent(folder: &Path, value: &str) -> std::process::Child {
    let file = folder.join(memory_limit().1);
    let mut agent = std::process::Command::new("sh");
    agent.args(["-c", "echo \"$1\" >\"$2\"; exec sleep 1000", "sh", value]).arg(file);
    agent.spawn().unwrap()
}

fn ends(mut process: std::process::Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

fn rows(host: &TestHost, word: &str) -> Vec<Value> {
    let rows = host.admin(&["check"]);
    let mut rows = rows.as_array().cloned().unwrap_or_default();
    rows.retain(|row| row["detail"].as_str().is_some_and(|detail| detail.contains(word)));
    rows
}

#[test]
fn only_cgroup_writes_by_kubelet_are_resizes() {
    let host = host();
    let received = listener(&host);
    let folder = cgroup(&host, "/kubepods/pod1");
    limit(&folder, "67108864");
    pod(&host, "p1", "/kubepods/pod1");
    let other = agent(&folder, "1000000");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(count(&received, "UpdatePodSandbox"), 0, "an agent's write is none");
    limit(&folder, "134217728");
    wait_until("kubelet's write is reported", || count(&received, "PostUpdatePodSandbox p1") == 1);
    assert_eq!(count(&received, "UpdatePodSandbox"), 1);
    assert!(rows(&host, "an unidentified process").is_empty());
    ends(other);
}

#[test]
fn an_unidentified_write_is_counted_but_sends_no_resize() {
    let host = host();
    let received = listener(&host);
    let folder = cgroup(&host, "/kubepods/pod1");
    limit(&folder, "67108864");
    pod(&host, "p1", "/kubepods/pod1");
    let daemon = nix::unistd::Pid::from_raw(host.daemon_pid());
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let writer = agent(&folder, "1000000");
    let file = folder.join(memory_limit().1);
    let has_written = || std::fs::read_to_string(&file).is_ok_and(|text| text == "1000000\n");
    wait_until("it has written", has_written);
    ends(writer);
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGCONT).unwrap();
    wait_until("check names it", || !rows(&host, "an unidentified process").is_empty());
    let row = rows(&host, "an unidentified process").remove(0);
    assert_eq!((&row["ok"], &row["warning"]), (&json!(true), &json!(true)), "{row}");
    assert_eq!(count(&received, "UpdatePodSandbox"), 0);
}
