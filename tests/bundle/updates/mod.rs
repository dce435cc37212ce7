// SPDX-License-Identifier: Apache-2.0
//! `update` through the built binary: which plugins are asked, what the runtime receives, and whose
//! values take precedence.

mod repeated;

use std::process::Output;

use serde_json::{Value, json};
use test_support::adjustments::update_of;
use test_support::{Script, TestHost, wait_until};

use crate::{pins, started, succeeds};

/// A plugin that answers updates of `container` with `resources`.
fn answers(container: &str, resources: &Value) -> Script {
    Script { updates: vec![update_of(container, resources)], ..Script::default() }
}

/// Waits until the daemon knows that the container exists.
pub(crate) fn settled(host: &TestHost) {
    wait_until("the create is settled", || {
        let pods = host.admin(&["pods"]);
        let mut all = pods
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
        all.all(|container| container["state"] != "creating")
    });
}

pub(crate) fn update(host: &TestHost, request: &Value) -> Output {
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", "c1"];
    host.call_with(&words, &request.to_string())
}

pub(crate) fn runtime_got(host: &TestHost) -> Value {
    serde_json::from_str(&host.read("fake/update.json")).unwrap()
}

pub(crate) fn count(received: &std::sync::Mutex<Vec<String>>, event: &str) -> usize {
    received.lock().unwrap().iter().filter(|line| line.starts_with(event)).count()
}

#[test]
fn plugins_receive_an_engines_update_and_change_it() {
    let host = started("");
    let received = host.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&host.create("c1"));
    settled(&host);
    succeeds(&update(&host, &json!({"memory": {"limit": 2_000_000}, "cpu": {"shares": 1024}})));
    let got = runtime_got(&host);
    assert_eq!((&got["cpu"]["shares"], &got["memory"]["limit"]), (&json!(77), &json!(2_000_000)));
    wait_until("the success is reported", || count(&received, "PostUpdateContainer c1") == 1);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["CPUShares"], "10-half", "{explained}");
    let change = &explained["changes"][0];
    assert_eq!((&change["before"], &change["after"]), (&json!(1024), &json!(77)), "{explained}");
    assert_eq!(change["field"], "linux.resources.cpu.shares");
}

#[test]
fn an_engines_repeated_values_undo_nothing() {
    let host = started("");
    let received = host.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&host.create("c1"));
    settled(&host);
    let request = json!({"memory": {"limit": 2_000_000}, "cpu": {"shares": 1024}});
    succeeds(&update(&host, &request));
    wait_until("the success is reported", || count(&received, "PostUpdateContainer c1") == 1);
    succeeds(&update(&host, &request));
    assert_eq!(runtime_got(&host)["cpu"]["shares"], 77);
    assert_eq!(count(&received, "UpdateContainer"), 2, "{:?}", received.lock().unwrap());
}

#[test]
fn an_engines_new_value_wins_unless_a_plugin_responds() {
    let host = started("");
    let received = host.plugin("10", "pin", pins("0"));
    succeeds(&host.create("c1"));
    settled(&host);
    succeeds(&update(&host, &json!({"cpu": {"cpus": "1"}})));
    assert_eq!(runtime_got(&host)["cpu"]["cpus"], "1");
    wait_until("the success is reported", || count(&received, "PostUpdateContainer c1") == 1);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({}), "{explained}");
    assert_eq!(explained["changes"][1]["event"], "update by the engine");
    let _other = host.plugin("20", "firm", answers("c1", &json!({"cpu": {"cpus": "0"}})));
    succeeds(&update(&host, &json!({"cpu": {"cpus": "0-1"}})));
    assert_eq!(runtime_got(&host)["cpu"]["cpus"], "0");
}

#[test]
fn a_refused_update_never_reaches_the_runtime_and_is_one_line() {
    let host = started("");
    let refuses = Script {
        refuses: Some("not now"),
        at: Some("UpdateContainer".into()),
        ..Script::default()
    };
    let received = host.plugin("10", "guard", refuses);
    succeeds(&host.create("c1"));
    settled(&host);
    let output = update(&host, &json!({"cpu": {"shares": 5}}));
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("cannot update c1: 10-guard refused: not now"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(!host.path("fake/update.json").exists());
    assert_eq!(count(&received, "PostUpdateContainer"), 0);
    // Repeated identical requests of an engine are recorded once, and the container still exists.
    update(&host, &json!({"cpu": {"shares": 5}}));
    let refused = host.admin(&["explain", "c1"])["refused"].clone();
    assert_eq!(refused.as_array().map(Vec::len), Some(1), "{refused}");
    assert!(refused[0].as_str().unwrap().contains("not now"), "{refused}");
    let late = host.plugin("20", "late", Script::default());
    assert_eq!(count(&late, "Synchronize c1"), 1);
}

#[test]
fn values_that_no_runtime_accepts_name_the_plugin() {
    for wrong in [json!({"cpu": {"shares": 1}}), json!({"memory": {"swap": 5}})] {
        let host = started("");
        let _plugin = host.plugin("10", "odd", answers("c1", &wrong));
        succeeds(&host.create("c1"));
        settled(&host);
        let output = update(&host, &json!({"pids": {"limit": 5}}));
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && line.contains("10-odd"), "{wrong} {line}");
        assert!(!host.path("fake/update.json").exists());
    }
}

#[test]
fn resources_in_a_file_are_bounded() {
    let host = started("");
    let _plugin = host.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&host.create("c1"));
    settled(&host);
    let from_file = |length: usize| {
        let request = json!({"pids": {"limit": 5}}).to_string();
        host.write("resources.json", &format!("{request}{}", " ".repeat(length - request.len())));
        let file = host.path("resources.json").display().to_string();
        host.verb(&["update", "--resources", &file, "c1"])
    };
    let refused = from_file((16 << 20) + 1);
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        line.contains("reading the requested resources: the resources have more than"),
        "{line}"
    );
    assert!(!host.path("fake/update.json").exists(), "the runtime was not called");
    succeeds(&from_file(16 << 20));
    assert_eq!(
        (&runtime_got(&host)["cpu"]["shares"], &runtime_got(&host)["pids"]["limit"]),
        (&json!(77), &json!(5))
    );
}

#[test]
fn a_failed_update_does_not_count_as_applied() {
    let host = started("");
    let received = host.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&host.create("c1"));
    settled(&host);
    host.write("fake/fail-update", "");
    assert!(!update(&host, &json!({"pids": {"limit": 5}})).status.success());
    std::fs::remove_file(host.path("fake/fail-update")).unwrap();
    succeeds(&update(&host, &json!({"pids": {"limit": 5}})));
    // Plugins also receive the event of the failed update (D39), at the latest before that of the
    // second.
    wait_until("both are reported", || count(&received, "PostUpdateContainer") == 2);
    assert_eq!(count(&received, "UpdateContainer"), 2, "the first was not taken for done");
    let conflict = host.plugin("20", "too", answers("c1", &json!({"cpu": {"shares": 78}})));
    let output = update(&host, &json!({"pids": {"limit": 6}}));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("20-too") && line.contains("10-half"), "{line}");
    assert_eq!(count(&conflict, "UpdateContainer"), 1);
}
