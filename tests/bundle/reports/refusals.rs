// SPDX-License-Identifier: Apache-2.0
//! Every refusal and skip is shown: in the log, in `status`, in `explain` of the container and of
//! its pod, and in `check`.

use nri_runc::plugin::Event;
use serde_json::{Value, json};
use test_support::responding_plugin::{RespondingPlugin, Response};
use test_support::{BUNDLE, SILENT, TestHost, task, wait_until};

use crate::plugins::policies::connected;
use crate::{sets, started, succeeds};

fn checked(host: &TestHost, name: &str) -> Value {
    let found = host.admin(&["check"]);
    let mut found = found.as_array().unwrap().iter();
    found.find(|finding| finding["check"] == name).unwrap().clone()
}

/// The reasons why `id` was refused, as `explain` shows them.
fn refusals(host: &TestHost, id: &str) -> String {
    host.admin(&["explain", id])["refused"].to_string()
}

/// Writes the bundle of `id` as containerd's CRI plugin does.
fn cri_task(host: &TestHost, id: &str, kind: &str, name: &str) {
    cri(host, kind, name);
    std::fs::create_dir_all(host.path(&task(id))).unwrap();
    host.write(&format!("{}/config.json", task(id)), &host.read("bundle/config.json"));
}

/// Writes the usual bundle as containerd's CRI plugin does.
fn cri(host: &TestHost, kind: &str, name: &str) {
    let annotations = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": "box",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": "u",
        "io.kubernetes.cri.container-name": name,
    });
    let bundle = BUNDLE.replacen('{', &format!("{{\"annotations\": {annotations}, "), 1);
    host.write("bundle/config.json", &bundle);
}

const POLICY_IS_REQUIRED: &str = "[plugin.policy]\nrequired = true\n";

#[test]
fn a_missing_required_plugin_is_in_status_and_check() {
    let host = started(POLICY_IS_REQUIRED);
    let check = checked(&host, "required plugins");
    assert_eq!(check["ok"], false, "{check}");
    assert!(check["detail"].as_str().unwrap().starts_with("policy not connected"), "{check}");
    let required = host.admin(&["status"])["required"].clone();
    assert_eq!(required, json!([{"plugin": "policy", "connected": false}]));
    let _policy = connected(&host, "10-policy", RespondingPlugin::always(Response::Answer));
    assert_eq!(checked(&host, "required plugins")["ok"], true);
    succeeds(&host.create("c1"));
}

#[test]
fn each_refusal_for_a_missing_plugin_is_one_log_line() {
    let host = started(POLICY_IS_REQUIRED);
    for id in ["c1", "c2"] {
        assert!(!host.create(id).status.success());
        assert!(refusals(&host, id).contains("required plugin policy is not connected"), "{id}");
        host.logs(&[&format!("create {id}: the required plugin policy")], 1);
    }
}

#[test]
fn refusals_for_one_missing_plugin_are_one_failure_with_a_count() {
    let host = started(POLICY_IS_REQUIRED);
    for id in ["c1", "c2", "c3"] {
        assert!(!host.create(id).status.success());
    }
    let failures = host.admin(&["status"])["failures"].clone();
    assert_eq!(failures.as_array().unwrap().len(), 1, "one failure, counted: {failures}");
    let failure = &failures[0];
    assert_eq!(failure["count"], 3, "{failure}");
    assert!(failure["first"].as_i64() < failure["at"].as_i64(), "{failure}");
    assert!(failure["what"].as_str().unwrap().starts_with("create c3: the required"), "{failure}");
}

#[test]
fn a_container_refused_before_any_plugin_is_explained() {
    let host = started("");
    host.write("bundle/config.json", "{\"process\": 7");
    assert!(!host.create("c1").status.success());
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["refused"].as_array().map(Vec::len), Some(1), "{explained}");
    let failure = host.admin(&["status"])["failures"][0].clone();
    assert!(failure["what"].as_str().unwrap().starts_with("create c1: "), "{failure}");
    // The next container of that ID does not show it.
    host.write("bundle/config.json", BUNDLE);
    succeeds(&host.create("c1"));
    assert_eq!(host.admin(&["explain", "c1"])["refused"], json!([]));
}

#[test]
fn a_refused_pod_is_found_by_its_id_and_by_its_name() {
    let host = started("");
    let strict = RespondingPlugin::at(Event::RunPodSandbox, Response::Refuse("no room"));
    let _strict = connected(&host, "10-strict", strict);
    cri_task(&host, "box", "sandbox", "");
    succeeds(&host.create_from(&task("box"), "box"));
    assert!(!host.verb(&["start", "box"]).status.success());
    for name in ["box", "bo", "shop/web"] {
        let explained = host.admin(&["explain", name]);
        assert_eq!(
            (&explained["kind"], &explained["id"]),
            (&"pod".into(), &"box".into()),
            "{name}"
        );
        let refused = explained["refused"].to_string();
        assert!(refused.contains("10-strict refused: no room"), "{refused}");
    }
    host.logs(&["start box: 10-strict refused: no room"], 1);
    let failures = host.admin(&["status"])["failures"].clone();
    assert_eq!(failures.as_array().unwrap().len(), 1, "{failures}");
    assert_eq!(failures[0]["plugin"], "10-strict", "{failures}");
    let page = String::from_utf8(host.call(&["nri", "explain", "box"]).stdout).unwrap();
    assert!(page.contains("pod box (shop/web), removed") && page.contains("no room"), "{page}");
}

#[test]
fn a_pod_missed_by_a_plugin_is_shown_there_and_in_containers() {
    let host = started(&format!("{SILENT}[plugin.slow]\nstrikes = 0\n"));
    let _slow =
        connected(&host, "10-slow", RespondingPlugin::at(Event::RunPodSandbox, Response::Hang));
    cri_task(&host, "box", "sandbox", "");
    succeeds(&host.create_from(&task("box"), "box"));
    succeeds(&host.verb(&["start", "box"]));
    cri_task(&host, "c1", "container", "app");
    succeeds(&host.create_from(&task("c1"), "c1"));
    let missed = json!([{"plugin": "10-slow", "reason": "did not answer RunPodSandbox in time"}]);
    let pod = host.admin(&["explain", "box"]);
    assert_eq!(pod["skipped"], missed, "{pod}");
    assert_eq!(pod["containers"][0]["id"], "c1", "{pod}");
    assert_eq!(host.admin(&["explain", "c1"])["skipped"], missed);
    // `explain` still shows it after both are removed.
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.verb(&["delete", "--force", "box"]));
    wait_until("the pod is gone", || host.admin(&["pods"]) == json!([]));
    assert_eq!(host.admin(&["explain", "c1"])["skipped"], missed);
    assert_eq!(host.admin(&["explain", "box"])["skipped"], missed);
}

#[test]
fn a_start_or_update_missed_by_a_plugin_is_shown() {
    let host = started(&format!("{SILENT}[plugin.slow]\nstrikes = 0\n"));
    let hangs = |event, _: &str| {
        let is_late = matches!(event, Event::StartContainer | Event::UpdateContainer);
        if is_late { Response::Hang } else { Response::Answer }
    };
    let _slow = connected(&host, "10-slow", RespondingPlugin::new(hangs));
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let root = host.path("root").display().to_string();
    let update = ["--root", &root, "update", "--resources", "-", "c1"];
    succeeds(&host.call_with(&update, r#"{"memory":{"limit":2000000}}"#));
    let skipped = host.admin(&["explain", "c1"])["skipped"].to_string();
    for event in ["StartContainer", "UpdateContainer"] {
        assert!(skipped.contains(&format!("did not answer {event} in time")), "{skipped}");
    }
}

#[test]
fn a_refused_start_or_run_is_a_failure_of_its_plugin() {
    let host = started("");
    let _odd = connected(
        &host,
        "10-odd",
        RespondingPlugin::at(Event::StartContainer, Response::Refuse("not now")),
    );
    succeeds(&host.create("c1"));
    assert!(!host.verb(&["start", "c1"]).status.success());
    let bundle = host.path("bundle").display().to_string();
    assert!(!host.verb(&["run", "--bundle", &bundle, "c2"]).status.success());
    let failures = host.admin(&["status"])["failures"].clone();
    for (index, verb) in ["start c1", "run c2"].into_iter().enumerate() {
        let what = failures[index]["what"].as_str().unwrap();
        assert_eq!(what, format!("{verb}: 10-odd refused: not now"), "{failures}");
        assert_eq!(failures[index]["plugin"], "10-odd", "{failures}");
    }
    assert!(refusals(&host, "c2").contains("not now"));
}

/// A daemon, and a plugin that sets a variable and a mount of `/nowhere` on `/data`.
fn with_a_mount_of_nowhere() -> TestHost {
    let host = started("");
    let mount = nri_runc::plugin::api::Mount {
        destination: "/data".to_owned(),
        source: "/nowhere".to_owned(),
        type_: "bind".to_owned(),
        options: vec!["rbind".to_owned()],
        ..Default::default()
    };
    let mut script = sets("HELLO", "there");
    script.adjust.mounts.push(mount);
    drop(host.plugin("10", "mounts", script));
    host
}

/// A line of the runtime's log.
fn runtimes_line(words: &str) -> String {
    format!("{{\"level\":\"error\",\"msg\":\"{words}\",\"time\":\"t\"}}\n")
}

/// The runtime refuses a container with these lines in its log; returns the output of `explain`.
fn refused_by_the_runtime(host: &TestHost, lines: &str) -> String {
    host.write("fake/fail", lines);
    assert!(!host.create("c1").status.success());
    wait_until("it is undone", || host.admin(&["pods"]) == json!([]));
    refusals(host, "c1")
}

#[test]
fn a_refusal_by_the_runtime_is_explained_with_the_plugin() {
    let host = with_a_mount_of_nowhere();
    let words = "error mounting \\\"/nowhere\\\" to rootfs at \\\"/data\\\"";
    let refused = refused_by_the_runtime(&host, &runtimes_line(words));
    assert!(refused.contains("the runtime refused it: error mounting"), "{refused}");
    assert!(refused.contains("(10-mounts set mounts[/data])"), "{refused}");
    let failures = host.admin(&["status"])["failures"].clone();
    assert_eq!(failures[0]["plugin"], "10-mounts", "{failures}");
}

#[test]
fn an_unrelated_runtime_error_blames_no_plugin() {
    let host = with_a_mount_of_nowhere();
    let lines = runtimes_line("container init was OOM-killed");
    let refused = refused_by_the_runtime(&host, &lines);
    assert!(refused.contains("OOM-killed") && !refused.contains("10-mounts"), "{refused}");
    assert_eq!(host.admin(&["status"])["failures"], json!([]));
}

#[test]
fn a_runtime_message_of_another_call_is_not_used() {
    let host = with_a_mount_of_nowhere();
    host.write("log.json", &runtimes_line("of another call"));
    let refused = refused_by_the_runtime(&host, "");
    assert!(refused.contains("the runtime did not create it"), "{refused}");
    assert!(!refused.contains("of another call"), "{refused}");
    host.logs(&["c1: the runtime did not create it"], 1);
}

const REQUIRED: &str = "autostart = false\n[plugin.policy]\nrequired = true\n";

#[test]
fn refusals_without_a_daemon_are_reported_by_the_next_one() {
    let mut host = TestHost::new(REQUIRED);
    for id in ["c1", "c2"] {
        assert!(!host.create(id).status.success());
    }
    let refused_by = nri_runc::testing::text::rfc3339(std::time::SystemTime::now());
    host.start_daemon();
    for id in ["c1", "c2"] {
        let line = format!("create {id}: refused by the wrapper at 2");
        host.logs(&[&line, "plugin policy is required"], 1);
        let explained = host.admin(&["explain", id]);
        assert!(explained["refused"][0].as_str().unwrap().contains("policy is required"));
        assert!(explained["refused_time"].as_str().unwrap() < refused_by.as_str(), "{explained}");
    }
    let status = host.admin(&["status"]);
    let failures = status["failures"].as_array().unwrap();
    assert_eq!((failures.len(), &failures[0]["count"]), (1, &json!(2)), "{status}");
    assert!(failures[0]["what"].as_str().unwrap().starts_with("create c2: "), "{status}");
    assert_eq!(failures[0]["at"], host.admin(&["explain", "c2"])["refused_at"]);
    assert_eq!(status["bypassed"], 0, "{status}");
    assert_eq!(std::fs::read_dir(host.path("run/refused")).unwrap().count(), 0);
}

#[test]
fn a_pod_refused_without_a_daemon_is_found_without_its_bundle() {
    let mut host = TestHost::new(REQUIRED);
    let folder = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1";
    std::fs::create_dir_all(host.path(folder).join("rootfs")).unwrap();
    cri(&host, "container", "app");
    host.write(&format!("{folder}/config.json"), &host.read("bundle/config.json"));
    assert!(!host.create_from(folder, "c1").status.success());
    std::fs::remove_dir_all(host.path(folder)).unwrap();
    host.start_daemon();
    for name in ["c1", "app", "shop/app", "shop/web/app"] {
        let explained = host.admin(&["explain", name]);
        assert!(explained["refused"].to_string().contains("policy is required"), "{name}");
    }
}

#[test]
fn a_silent_daemon_later_reports_the_wrappers_refusals() {
    let host = TestHost::default();
    let file = host.path("fault").display().to_string();
    let more = format!("[plugin.policy]\nrequired = true\n[debug]\nfault = \"@{file}\"\n");
    host.configure(&host.path("fake/runc"), &more);
    let mut host = host;
    host.start_daemon();
    // The plugin does not respond as long as the wrapper waits.
    let _policy = connected(&host, "10-policy", RespondingPlugin::always(Response::Answer));
    kill(&host, nix::sys::signal::Signal::SIGSTOP);
    assert!(!host.create("c1").status.success());
    kill(&host, nix::sys::signal::Signal::SIGCONT);
    wait_until("it is reported", || {
        host.logged(&["create c1: refused by the wrapper", "the daemon stopped responding"]) == 1
    });
    assert!(refusals(&host, "c1").contains("the daemon stopped responding"));
}

fn kill(host: &TestHost, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(host.daemon_pid()), signal).unwrap();
}

#[test]
fn a_verb_failed_by_policy_without_a_daemon_is_reported_too() {
    let mut host = TestHost::new("autostart = false");
    host.start_daemon();
    succeeds(&host.create("c1"));
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "autostart = false\non_daemon_failure = \"fail\"");
    assert!(!host.verb(&["start", "c1"]).status.success());
    assert!(!host.create("c2").status.success());
    host.start_daemon();
    for (id, state) in [("c1", "created"), ("c2", "removed")] {
        let explained = host.admin(&["explain", id]);
        assert_eq!(explained["state"], state, "{explained}");
        assert!(explained["refused"].to_string().contains("nothing was changed"), "{explained}");
    }
}

#[test]
fn records_of_refused_containers_are_bounded_to_the_newest() {
    let mut host = TestHost::new(REQUIRED);
    std::fs::create_dir_all(host.path("run/refused")).unwrap();
    for at in 0..300 {
        host.write(&format!("run/refused/{at:020}-7.json"), "{");
    }
    host.write("run/refused/.00000000000000000001-7.json.4000000", "half");
    assert!(!host.create("c1").status.success());
    let left = std::fs::read_dir(host.path("run/refused")).unwrap();
    let left: Vec<String> =
        left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let notes = left.iter().filter(|name| name.ends_with(".json")).count();
    assert_eq!(notes, 128, "{left:?}");
    host.start_daemon();
    host.logs(&["only the newest 128 refusals were kept"], 1);
    host.logs(&["cannot be read and is dropped"], 127);
    assert!(refusals(&host, "c1").contains("policy is required"));
    assert_eq!(std::fs::read_dir(host.path("run/refused")).unwrap().count(), 0);
}
