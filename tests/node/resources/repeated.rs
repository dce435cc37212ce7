// SPDX-License-Identifier: Apache-2.0
//! The results with the real runc for an engine that repeats its values, and for updates that
//! plugins request while a container is being started; read from the cgroup.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::adjustments::owns;
use test_support::scripted_plugin::OnRequest;

use super::{Place, Script, fails, is_done, place, request, succeeds, update_of, wait_until};

const LIMIT: &str = "memory.limit_in_bytes";

fn bandwidth(place: &Place) -> (String, String) {
    let file = |name: &str| place.file("c1", "cpu", name);
    (file("cpu.cfs_quota_us"), file("cpu.cfs_period_us"))
}

fn engine() -> Value {
    json!({"memory": {"limit": 134_217_728}, "cpu": {"quota": 50_000, "period": 100_000}})
}

#[test]
fn a_plugins_limit_stays_when_the_engine_repeats_its_own() {
    let Some(place) = place("") else { return };
    let received = place.host.plugin("10", "half", owns(&json!({"memory": {"limit": 67_108_864}})));
    place.run("c1", &engine());
    succeeds(&place.update("c1", &json!({"memory": {"limit": 134_217_728}})));
    assert_eq!(place.file("c1", "memory", LIMIT), "67108864");
    let is_asked = |line: &String| line == "UpdateContainer c1";
    assert_eq!(received.lock().unwrap().iter().filter(|line| is_asked(line)).count(), 1);
    // The response of a plugin takes precedence, also over values of flags.
    let updates = vec![update_of("c1", &json!({"memory": {"limit": 100_663_296}}))];
    let _plugin = place.host.plugin("20", "giver", Script { updates, ..Script::default() });
    let root = place.host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--memory", "128m", "c1"];
    succeeds(&place.host.call(&words));
    assert_eq!(place.file("c1", "memory", LIMIT), "100663296");
    let owners = place.host.admin(&["explain", "c1"])["owners"].clone();
    assert_eq!(owners, json!({"MemLimit": "20-giver"}));
}

#[test]
fn a_quota_alone_leaves_a_plugins_period_in_the_cgroup() {
    let Some(place) = place("") else { return };
    let _plugin = place.host.plugin("10", "slow", owns(&json!({"cpu": {"period": 60_000}})));
    place.run("c1", &engine());
    assert_eq!(bandwidth(&place), ("50000".to_owned(), "60000".to_owned()));
    succeeds(&place.update("c1", &json!({"cpu": {"quota": 40_000, "period": 100_000}})));
    assert_eq!(bandwidth(&place), ("40000".to_owned(), "60000".to_owned()));
    let root = place.host.path("root").display().to_string();
    succeeds(&place.host.call(&["--root", &root, "update", "--cpu-quota", "30000", "c1"]));
    assert_eq!(bandwidth(&place), ("30000".to_owned(), "60000".to_owned()));
    succeeds(&place.update("c1", &json!({"cpu": {"quota": 20_000, "period": 50_000}})));
    assert_eq!(bandwidth(&place), ("20000".to_owned(), "50000".to_owned()));
}

#[test]
fn plugin_values_that_runc_does_not_apply_stay_in_force() {
    let Some(place) = place("") else { return };
    place.run("c1", &engine());
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"memory": {"swappiness": 7}})));
    succeeds(&place.update("c1", &json!({"memory": {"swappiness": 40}})));
    wait_until("it is there again", || place.file("c1", "memory", "memory.swappiness") == "7");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"MemSwappiness": "10-asker"}), "{explained}");
    assert_eq!(explained["repeated"][0]["engine"], 40, "{explained}");
}

/// A plugin that signals when StartContainer arrives, and answers when the test permits it.
fn holding() -> (mpsc::Receiver<()>, mpsc::Sender<()>, Script) {
    let (reached, reaches) = mpsc::channel();
    let (lets_go, goes) = mpsc::channel();
    let goes = Mutex::new(goes);
    let on_request: OnRequest = Arc::new(move |event, _request| {
        if event == "StartContainer" {
            reached.send(()).unwrap();
            goes.lock().unwrap().recv().unwrap();
        }
    });
    (reaches, lets_go, Script { on_request: Some(on_request), ..Script::default() })
}

const PATIENT: &str = "[nri]\nplugin_request_timeout = \"60s\"";

#[test]
fn an_update_waits_while_the_container_is_being_started() {
    let Some(place) = place(PATIENT) else { return };
    let (reaches, lets_go, script) = holding();
    let received = place.host.plugin("20", "holder", script);
    let asking = place.asker();
    place.create("c1", &json!({"cpu": {"shares": 1024}}));
    // Before the start it is applied immediately.
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 200}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "200");
    let mut start = place.host.spawn(&["start", "c1"]);
    reaches.recv().unwrap();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}})), "it is promised");
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 400}})), "it is promised");
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "200", "it was written before the launch");
    assert_eq!(place.state("c1").as_deref(), Some("created"));
    lets_go.send(()).unwrap();
    assert!(start.wait().unwrap().success());
    wait_until("both are carried out, in their order", || {
        place.file("c1", "cpu", "cpu.shares") == "400"
    });
    wait_until("the start is reported", || {
        received.lock().unwrap().contains(&"PostStartContainer c1".to_owned())
    });
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!((&explained["state"], &explained["skipped"]), (&json!("running"), &json!([])));
    assert_eq!(explained["owners"], json!({"CPUShares": "10-asker"}));
}

#[test]
fn an_update_from_inside_startcontainer_is_carried_out_after_it() {
    let Some(place) = place("") else { return };
    let inside = Some(request(vec![update_of("c1", &json!({"cpu": {"shares": 300}}))]));
    let at = Some("StartContainer".to_owned());
    let received = place.host.plugin("10", "inner", Script { inside, at, ..Script::default() });
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    assert!(received.lock().unwrap().contains(&"inside 0 failed".to_owned()));
    wait_until("it is carried out", || place.file("c1", "cpu", "cpu.shares") == "300");
    assert_eq!(place.host.admin(&["explain", "c1"])["skipped"], json!([]), "nobody was late");
}

#[test]
fn an_update_that_waited_for_a_refused_start_is_carried_out() {
    let Some(place) = place(PATIENT) else { return };
    let (reaches, lets_go, script) = holding();
    let (refuses, at) = (Some("not today"), Some("StartContainer".to_owned()));
    let _plugin = place.host.plugin("20", "holder", Script { refuses, at, ..script });
    let asking = place.asker();
    place.create("c1", &json!({"cpu": {"shares": 1024}}));
    let mut start = place.host.spawn(&["start", "c1"]);
    reaches.recv().unwrap();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "1024");
    lets_go.send(()).unwrap();
    assert!(!start.wait().unwrap().success());
    wait_until("it is carried out", || place.file("c1", "cpu", "cpu.shares") == "300");
    assert_eq!(place.state("c1").as_deref(), Some("created"));
    // The next attempt has the same result.
    lets_go.send(()).unwrap();
    fails(&place.host.verb(&["start", "c1"]), &["not today"]);
}

#[test]
fn an_update_that_waited_for_a_missing_start_is_reported() {
    let Some(place) = place(PATIENT) else { return };
    let (reaches, lets_go, script) = holding();
    let _plugin = place.host.plugin("20", "holder", script);
    let asking = place.asker();
    place.create("c1", &json!({"cpu": {"shares": 1024}}));
    let mut start = place.host.spawn(&["start", "c1"]);
    reaches.recv().unwrap();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}})));
    // The container's process exits while plugins are asked.
    succeeds(&place.host.verb(&["kill", "c1", "9"]));
    wait_until("it has ended", || place.file("c1", "pids", "cgroup.procs").is_empty());
    lets_go.send(()).unwrap();
    assert!(!start.wait().unwrap().success());
    wait_until("it is said", || {
        let explained = place.host.admin(&["explain", "c1"]);
        explained["skipped"].to_string().contains("it has ended")
    });
}
