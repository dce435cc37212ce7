// SPDX-License-Identifier: Apache-2.0
//! StopPodSandbox in time (D37): before the signal that ends the infrastructure container, else at
//! its exit; once, and never before a member's StopContainer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, has_received, started, succeeds, task, wait_until};

/// Writes a bundle of the pod `web`, as a Kubernetes engine does, into a folder of its name.
pub(crate) fn document(host: &TestHost, name: &str, kind: &str) {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": "pause",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.container-name": name,
    });
    std::fs::create_dir_all(host.path(&task(name))).unwrap();
    host.write(&format!("{}/config.json", task(name)), &document.to_string());
}

/// The pod with its infrastructure container and these members, all running, and a plugin that
/// records events.
fn running(host: &TestHost, members: &[&str], script: Script) -> Arc<Mutex<Vec<String>>> {
    let received = host.plugin("10", "witness", script);
    document(host, "pause", "sandbox");
    members.iter().for_each(|member| document(host, member, "container"));
    for id in [&["pause"], members].concat() {
        succeeds(&host.create_from(&task(id), id));
        succeeds(&host.verb(&["start", id]));
    }
    for member in members {
        wait_until("it runs", || has_received(&received, &format!("PostStartContainer {member}")));
    }
    wait_until("the pod is known", || has_received(&received, "RunPodSandbox web"));
    received
}

fn pid_of(host: &TestHost, id: &str) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(host.read(&format!("root/{id}/pid")).trim().parse().unwrap())
}

fn is_alive(pid: nix::unistd::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The received events of the pod's end, in order.
fn ends(received: &Mutex<Vec<String>>) -> Vec<String> {
    let received = received.lock().unwrap();
    let is_end = |line: &&String| line.starts_with("Stop") || line.starts_with("Remove");
    received.iter().filter(is_end).cloned().collect()
}

/// A plugin that records at StopPodSandbox whether the infrastructure container is alive.
fn looking(host: &TestHost) -> (Script, Arc<Mutex<Vec<bool>>>) {
    let found: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (notes, file) = (Arc::clone(&found), host.path("root/pause/pid"));
    let on_request = move |event: &str, _: &dyn protobuf::MessageDyn| {
        if event == "StopPodSandbox" {
            let pid = std::fs::read_to_string(&file).unwrap_or_default();
            let pid = pid.trim().parse().map(nix::unistd::Pid::from_raw);
            notes.lock().unwrap().push(pid.is_ok_and(is_alive));
        }
    };
    (Script { on_request: Some(Arc::new(on_request)), ..Script::default() }, found)
}

#[test]
fn every_spelling_of_kill_follows_stoppodsandbox() {
    for words in [
        &["kill", "pause", "9"][..],
        &["kill", "pause", "KILL"],
        &["kill", "--all", "pause", "SIGKILL"],
        &["kill", "-a", "pause", "15"],
        &["kill", "pause"],
    ] {
        let host = started("");
        let (script, found) = looking(&host);
        let received = running(&host, &["app"], script);
        succeeds(&host.verb(&["kill", "app", "9"]));
        succeeds(&host.verb(&["delete", "app"]));
        succeeds(&host.verb(words));
        assert_eq!(*found.lock().unwrap(), [true], "{words:?}");
        wait_until("it has ended", || !is_alive(pid_of(&host, "pause")));
        succeeds(&host.verb(&["kill", "--all", "pause", "9"]));
        succeeds(&host.verb(&["delete", "pause"]));
        succeeds(&host.verb(&["delete", "--force", "pause"]));
        wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
        let wanted = [
            "StopContainer app",
            "RemoveContainer app",
            "StopPodSandbox web",
            "RemovePodSandbox web",
        ];
        assert_eq!(ends(&received), wanted, "{words:?}");
    }
}

#[test]
fn a_signal_that_ends_nothing_sends_no_event() {
    let host = started("");
    let received = running(&host, &[], Script::default());
    // A runtime that only records the signal.
    let quiet = host.read("fake/runc").replace("kill) kill -9", "kill) : ");
    host.put_program("fake/runc", &quiet);
    for signal in ["0", "HUP", "USR1", "SIGWINCH", "CONT", "nonsense", "34"] {
        succeeds(&host.verb(&["kill", "pause", signal]));
    }
    assert_eq!(ends(&received), Vec::<String>::new());
    assert_eq!(host.admin(&["pods"])[0]["state"], "ready");
    assert_eq!(host.admin(&["status"])["requests"].get("kill"), None, "the daemon was not asked");
}

#[test]
fn a_kill_of_a_member_sends_no_request() {
    let host = started("");
    let received = running(&host, &["app"], Script::default());
    succeeds(&host.verb(&["kill", "app", "9"]));
    wait_until("the exit is reported", || has_received(&received, "StopContainer app"));
    assert_eq!(host.admin(&["status"])["requests"].get("kill"), None);
    assert!(!has_received(&received, "StopPodSandbox web"));
}

#[test]
fn a_pod_that_dies_by_itself_is_stopped_at_its_exit_and_once() {
    let host = started("");
    let received = running(&host, &[], Script::default());
    nix::sys::signal::kill(pid_of(&host, "pause"), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_until("the stop is reported", || has_received(&received, "StopPodSandbox web"));
    assert!(!has_received(&received, "RemovePodSandbox web"));
    succeeds(&host.verb(&["kill", "pause", "9"]));
    succeeds(&host.verb(&["delete", "pause"]));
    wait_until("the end is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(ends(&received), ["StopPodSandbox web", "RemovePodSandbox web"]);
}

#[test]
fn a_running_pod_is_stopped_before_its_deletion() {
    let host = started("");
    let (script, found) = looking(&host);
    let received = running(&host, &[], script);
    succeeds(&host.verb(&["delete", "--force", "pause"]));
    wait_until("the end is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(*found.lock().unwrap(), [true]);
    assert_eq!(ends(&received), ["StopPodSandbox web", "RemovePodSandbox web"]);
}

#[test]
fn a_running_member_is_stopped_before_its_pod() {
    let host = started("");
    let received = running(&host, &["app", "helper"], Script::default());
    succeeds(&host.verb(&["kill", "pause", "9"]));
    succeeds(&host.verb(&["kill", "app", "9"]));
    wait_until("the exit is reported", || has_received(&received, "StopContainer app"));
    assert!(!has_received(&received, "StopPodSandbox web"), "a member runs");
    succeeds(&host.verb(&["kill", "helper", "9"]));
    wait_until("the pod's stop is reported", || has_received(&received, "StopPodSandbox web"));
    let received = ends(&received);
    assert_eq!(received.last().map(String::as_str), Some("StopPodSandbox web"), "{received:?}");
}

#[test]
fn a_plugin_slow_at_the_pods_stop_delays_a_kill_by_a_second() {
    let host = started("[nri]\nplugin_request_timeout = \"60s\"\n");
    let slow = Script { hangs: true, at: Some("StopPodSandbox".to_owned()), ..Script::default() };
    let received = running(&host, &[], slow);
    let (begun, pid) = (Instant::now(), pid_of(&host, "pause"));
    succeeds(&host.verb(&["kill", "pause", "9"]));
    let took = begun.elapsed();
    // A kill that waits longer would wait for the plugin's time-out.
    assert!(took >= Duration::from_millis(800) && took < Duration::from_secs(50), "{took:?}");
    wait_until("it has ended", || !is_alive(pid));
    assert_eq!(ends(&received), ["StopPodSandbox web"]);
}

#[test]
fn a_kill_continues_without_a_daemon_or_if_it_hangs() {
    let mut host = started("autostart = false\non_daemon_failure = \"fail\"\n");
    let received = running(&host, &[], Script::default());
    let pid = nix::unistd::Pid::from_raw(host.daemon_pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    succeeds(&host.verb(&["kill", "pause", "9"]));
    wait_until("it has ended", || !is_alive(pid_of(&host, "pause")));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    wait_until("the stop is reported", || has_received(&received, "StopPodSandbox web"));
    succeeds(&host.verb(&["delete", "pause"]));
    wait_until("the end is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(ends(&received), ["StopPodSandbox web", "RemovePodSandbox web"]);

    succeeds(&host.create_from(&task("pause"), "pause"));
    host.kill_daemon();
    succeeds(&host.verb(&["kill", "pause", "9"]));
    assert!(!host.path("run/daemon.sock").exists() || host.admin(&["status"])["pid"].is_null());
}

#[test]
fn a_restarted_daemon_stops_the_pod_that_ended_meanwhile() {
    let mut host = started("autostart = false\n");
    let _plugin = running(&host, &[], Script::default());
    host.kill_daemon();
    succeeds(&host.verb(&["kill", "pause", "9"]));
    host.start_daemon();
    let received = host.plugin("10", "witness", Script::default());
    wait_until("the stop is reported or was before it came", || {
        has_received(&received, "StopPodSandbox web")
            || host.admin(&["pods"])[0]["state"] == "stopped"
    });
    succeeds(&host.verb(&["delete", "pause"]));
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    let stops = ends(&received).iter().filter(|line| *line == "StopPodSandbox web").count();
    assert!(stops <= 1, "{:?}", ends(&received));
}
