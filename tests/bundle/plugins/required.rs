// SPDX-License-Identifier: Apache-2.0
//! Required plugins from RunPodSandbox on: a pod starts only after a response of each, a plugin
//! that missed the pod does not make up for it by reconnecting, and a pod or container waits for an
//! absent plugin as long as configured without delaying others.

use std::time::{Duration, Instant};

use nri_runc::plugin::Event;
use serde_json::{Value, json};
use test_support::responding_plugin::{RespondingPlugin, Response};
use test_support::{BUNDLE, SILENT, Script, TestHost, wait_until};

use super::policies::{connected, row};
use crate::{started, succeeds};

const KEY: &str = "required-plugins.noderesource.dev";
const VALIDATOR: &str = "[nri.default_validator]\nenable = true\n\
                         tolerate_missing_plugins_annotation = \"tolerate.example\"\n";

/// Writes a bundle as containerd's CRI plugin does, with annotations of the pod.
fn bundle(host: &TestHost, (id, pod): (&str, &str), namespace: &str, more: &Value) -> String {
    let kind = if id == pod { "sandbox" } else { "container" };
    let mut annotations = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": pod,
        "io.kubernetes.cri.sandbox-name": pod,
        "io.kubernetes.cri.sandbox-namespace": namespace,
        "io.kubernetes.cri.sandbox-uid": "u1",
    });
    if id != pod {
        annotations["io.kubernetes.cri.container-name"] = json!(id);
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        annotations[key] = value.clone();
    }
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations;
    let folder = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
    std::fs::create_dir_all(host.path(&folder).join("rootfs")).unwrap();
    host.write(&format!("{folder}/config.json"), &document.to_string());
    folder
}

/// Creates the sandbox of a pod and starts it; returns the result of the start.
fn pod_in(host: &TestHost, pod: &str, namespace: &str, more: &Value) -> std::process::Output {
    succeeds(&host.create_from(&bundle(host, (pod, pod), namespace, more), pod));
    host.verb(&["start", pod])
}

fn pod(host: &TestHost, id: &str) -> std::process::Output {
    pod_in(host, id, "shop", &json!({}))
}

/// Creates a container of a pod.
fn member(host: &TestHost, pod: &str, id: &str) -> std::process::Output {
    host.create_from(&bundle(host, (id, pod), "shop", &json!({})), id)
}

#[track_caller]
fn fails(output: &std::process::Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{words:?} is not in: {line}");
}

#[test]
fn a_pod_does_not_begin_without_a_required_plugin() {
    let host = started("[plugin.guard]\nrequired = true\n");
    let received = host.plugin("20", "listener", Script::default());
    fails(&pod(&host, "p1"), &["required plugin guard is not connected", "pod was not started"]);
    assert_eq!(received.lock().unwrap().len(), 0, "no plugin receives a pod that never started");
    let printed = host.admin(&["explain", "p1"])["refused"].to_string();
    assert!(printed.contains("required plugin guard is not connected"), "{printed}");
    // The engine removes the pod and retries with another one.
    succeeds(&host.verb(&["delete", "--force", "p1"]));
    let _guard = host.plugin("10", "guard", Script::default());
    succeeds(&pod(&host, "p2"));
    succeeds(&member(&host, "p2", "c2"));
}

#[test]
fn exempt_and_tolerant_pods_start_without_a_required_plugin() {
    let host = started(&format!("{VALIDATOR}[plugin.guard]\nrequired = true\n"));
    succeeds(&pod_in(&host, "p1", "kube-system", &json!({})));
    for (pod, key) in [("p2", "tolerate.example"), ("p3", "tolerate.example/pod")] {
        succeeds(&pod_in(&host, pod, "shop", &json!({key: "true"})));
    }
    let more = json!({"tolerate.example/container.c1": "true"});
    fails(&pod_in(&host, "p4", "shop", &more), &["required plugin guard is not connected"]);
    let more = json!({"tolerate.example": "perhaps"});
    fails(&pod_in(&host, "p5", "shop", &more), &["tolerate.example", "expected true or false"]);
}

#[test]
fn a_plugin_required_by_the_pod_must_answer_its_start_too() {
    let host = started(VALIDATOR);
    let more = json!({KEY: "[guard]"});
    fails(&pod_in(&host, "p1", "shop", &more), &["required plugin guard is not connected"]);
    fails(
        &pod_in(&host, "p2", "shop", &json!({KEY: "{"})),
        &["invalid required-plugins.noderesource.dev annotation"],
    );
    let _guard = host.plugin("10", "guard", Script::default());
    succeeds(&pod_in(&host, "p3", "shop", &more));
    // If nothing is validated, the annotation has no effect, as in the reference.
    let host = started("");
    succeeds(&pod_in(&host, "p1", "shop", &more));
}

#[test]
fn a_required_plugin_silent_at_run_pod_sandbox_refuses_the_pod() {
    for (act, why) in [
        (Response::Hang, "the required plugin 10-odd did not answer RunPodSandbox in time"),
        (Response::Leave, "the required plugin 10-odd disconnected during RunPodSandbox"),
    ] {
        let host = started(&format!(
            "{SILENT}[plugin.odd]\nrequired = true\non_failure = \"skip\"\nstrikes = 0\n"
        ));
        let next = connected(&host, "20-next", RespondingPlugin::always(Response::Answer));
        let _odd = connected(&host, "10-odd", RespondingPlugin::at(Event::RunPodSandbox, act));
        fails(&pod(&host, "p1"), &[why, "the pod was not started"]);
        wait_until("the others receive its end", || {
            next.received() == ["RunPodSandbox p1", "StopPodSandbox p1", "RemovePodSandbox p1"]
        });
        // Each container of an engine without pods is a separate pod.
        if act == Response::Hang {
            fails(&host.create("c1"), &[why]);
        }
    }
}

/// A pod that tolerates the missing plugin, with one container that does not: the plugin was
/// disconnected by its time-out at RunPodSandbox, and has reconnected.
fn missed(settings: &str) -> TestHost {
    let host = started(&format!("autostart = false\n{SILENT}{VALIDATOR}{settings}"));
    let _odd =
        connected(&host, "10-odd", RespondingPlugin::at(Event::RunPodSandbox, Response::Hang));
    let more = json!({format!("{KEY}/container.c1"): "[odd]"});
    succeeds(&pod_in(&host, "p1", "shop", &more));
    wait_until("its one strike disconnects it", || row(&host, "10-odd").is_none());
    let _back = connected(&host, "10-odd", RespondingPlugin::always(Response::Answer));
    host
}

#[test]
fn a_plugin_that_missed_its_pod_refuses_later_containers_too() {
    let mut host = missed("");
    let words = [
        "the required plugin 10-odd did not answer RunPodSandbox in time",
        "no container of this pod is created",
        "delete the pod",
    ];
    fails(&member(&host, "p1", "c1"), &words);
    for id in ["c1", "p1"] {
        let printed = host.admin(&["explain", id]).to_string();
        assert!(printed.contains("did not answer RunPodSandbox in time"), "{printed}");
    }
    succeeds(&member(&host, "p1", "c2"));
    // The next daemon also knows that the plugin missed the pod.
    host.kill_daemon();
    host.start_daemon();
    let _back = connected(&host, "10-odd", RespondingPlugin::always(Response::Answer));
    fails(&member(&host, "p1", "c1"), &words);
    // The plugin is asked about a new pod, so its containers are not refused.
    let more = json!({format!("{KEY}/container.c1"): "[odd]"});
    succeeds(&pod_in(&host, "p2", "shop", &more));
    succeeds(&host.create_from(&bundle(&host, ("c1", "p2"), "shop", &json!({})), "c1"));
}

#[test]
fn an_absent_required_plugin_has_missed_the_pod() {
    let host = started(VALIDATOR);
    let more = json!({format!("{KEY}/container.c1"): "[guard]"});
    succeeds(&pod_in(&host, "p1", "shop", &more));
    fails(&member(&host, "p1", "c1"), &["required plugin \"guard\" not present"]);
    let _late = host.plugin("10", "guard", Script::default());
    fails(
        &member(&host, "p1", "c1"),
        &["guard was not connected or could not see the pod at RunPodSandbox"],
    );
}

#[test]
fn a_pod_from_before_a_plugin_was_required_needs_no_restart() {
    let mut host = started("autostart = false");
    succeeds(&pod(&host, "p1"));
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "[plugin.guard]\nrequired = true\n");
    host.start_daemon();
    fails(&member(&host, "p1", "c1"), &["required plugin guard is not connected"]);
    let _guard = host.plugin("10", "guard", Script::default());
    succeeds(&member(&host, "p1", "c1"));
}

#[test]
fn a_pod_is_not_accepted_if_the_daemon_died_announcing_it() {
    let mut host = started("autostart = false\n[plugin.odd]\nrequired = true\n");
    let odd =
        connected(&host, "10-odd", RespondingPlugin::at(Event::RunPodSandbox, Response::Hang));
    succeeds(&host.create_from(&bundle(&host, ("p1", "p1"), "shop", &json!({})), "p1"));
    let mut start = host.spawn(&["start", "p1"]);
    wait_until("it is asked", || odd.received() == ["RunPodSandbox p1"]);
    host.kill_daemon();
    assert!(start.wait().unwrap().success(), "a start goes on");
    host.start_daemon();
    let _back = connected(&host, "10-odd", RespondingPlugin::always(Response::Answer));
    fails(&member(&host, "p1", "c1"), &["odd was not asked at RunPodSandbox"]);
}

#[test]
fn a_pod_started_without_the_daemon_precedes_its_container() {
    let mut host = started("autostart = false\n[plugin.guard]\nrequired = true\n");
    for (id, is_settled) in [("p1", true), ("p2", false)] {
        let _guard = host.plugin("10", "guard", Script::default());
        succeeds(&host.create_from(&bundle(&host, (id, id), "shop", &json!({})), id));
        if is_settled {
            wait_until("it is settled", || host.admin(&["pods"]).to_string().contains("created"));
        }
        host.kill_daemon();
        succeeds(&host.verb(&["start", id]));
        host.start_daemon();
        let container = format!("c-{id}");
        fails(&member(&host, id, &container), &["required plugin guard is not connected"]);
        let received = host.plugin("10", "guard", Script::default());
        succeeds(&member(&host, id, &container));
        let received = received.lock().unwrap().clone();
        let wanted = [format!("RunPodSandbox {id}"), format!("CreateContainer {container}")];
        let requests: Vec<&String> = received.iter().filter(|line| wanted.contains(line)).collect();
        assert_eq!(requests, wanted.iter().collect::<Vec<_>>(), "{received:?}");
    }
}

#[test]
fn waiting_for_a_required_plugin_delays_no_other_container() {
    let host = started("[plugin.guard]\nrequired = true\nwait = \"10m\"\n");
    succeeds(&host.create_from(&bundle(&host, ("p1", "p1"), "shop", &json!({})), "p1"));
    let mut start = host.spawn(&["start", "p1"]);
    let mut create = host.spawn(&["create", "--bundle", "BUNDLE", "c1"]);
    wait_until("they wait", || host.logged(&["wait up to", "for guard, which is required"]) == 1);
    succeeds(&pod_in(&host, "p2", "kube-system", &json!({})));
    succeeds(&host.verb(&["delete", "--force", "p2"]));
    assert!(start.try_wait().unwrap().is_none() && create.try_wait().unwrap().is_none());
    let received = host.plugin("10", "guard", Script::default());
    // Their callers must still be waiting when the plugin connects.
    assert!(start.wait().unwrap().success() && create.wait().unwrap().success());
    let received = received.lock().unwrap().clone();
    for line in ["RunPodSandbox p1", "RunPodSandbox c1", "CreateContainer c1"] {
        assert_eq!(
            received.iter().filter(|received| *received == line).count(),
            1,
            "{line} in {received:?}"
        );
    }
}

#[test]
fn a_wait_ends_at_its_limit_or_before_the_engines_time_out() {
    let host = started("[plugin.guard]\nrequired = true\nwait = \"300ms\"\n");
    let begun = Instant::now();
    fails(&host.create("c1"), &["required plugin guard is not connected"]);
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    // Two required plugins are absent and one of them is not awaited, so there is no wait.
    let more = "[plugin.guard]\nrequired = true\nwait = \"50s\"\n[plugin.b]\nrequired = true\n";
    fails(&started(more).create("c1"), &["required plugins b, guard are not connected"]);
    let more = "[plugin.guard]\nrequired = true\nwait = \"10m\"\n[debug]\ncreate_cap = \"5s\"\n";
    let host = started(more);
    let begun = Instant::now();
    fails(&host.create("c1"), &["required plugin guard is not connected"]);
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
}

#[test]
fn a_stopping_daemon_ends_all_waits() {
    let mut host = started(
        "autostart = false\n[plugin.guard]\nrequired = true\nwait = \"10m\"\n[debug]\ncreate_cap = \"10m\"\n",
    );
    let begun = Instant::now();
    let mut create = host.spawn(&["create", "--bundle", "BUNDLE", "c1"]);
    wait_until("it waits", || host.logged(&["wait up to"]) == 1);
    let pid = nix::unistd::Pid::from_raw(host.daemon_pid());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(!create.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(300), "it waited {:?}", begun.elapsed());
    host.kill_daemon();
}
