// SPDX-License-Identifier: Apache-2.0
//! `update` through the built binary: who is asked, what the runtime gets, who wins.

use std::process::Output;

use nri_runc::plugin::api;
use serde_json::{Value, json};

use super::player::Manner;
use super::rig::{Rig, wait_until};
use super::{pins, started, succeeds};

/// An update of `container`, from resources in OCI's words.
pub(super) fn update_of(container: &str, resources: &Value) -> api::ContainerUpdate {
    let resources = resources.as_object().cloned().unwrap();
    let resources = nri_runc::describe::resources_from_json(&resources);
    let linux =
        api::LinuxContainerUpdate { resources: Some(resources).into(), ..Default::default() };
    api::ContainerUpdate {
        container_id: container.to_owned(),
        linux: Some(linux).into(),
        ..Default::default()
    }
}

/// A plugin that answers updates of `container` with `resources`.
fn answers(container: &str, resources: &Value) -> Manner {
    Manner { updates: vec![update_of(container, resources)], ..Manner::default() }
}

/// Waits until the daemon has seen that the container is there.
pub(super) fn settled(rig: &Rig) {
    wait_until("the create is settled", || {
        let pods = rig.admin(&["pods"]);
        let mut all = pods
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
        all.all(|container| container["state"] != "creating")
    });
}

fn update(rig: &Rig, request: &Value) -> Output {
    let root = rig.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", "c1"];
    rig.call_with(&words, &request.to_string())
}

fn runtime_got(rig: &Rig) -> Value {
    serde_json::from_str(&rig.read("fake/update.json")).unwrap()
}

fn count(told: &std::sync::Mutex<Vec<String>>, event: &str) -> usize {
    told.lock().unwrap().iter().filter(|line| line.starts_with(event)).count()
}

#[test]
fn plugins_are_asked_about_what_changes_and_their_answer_reaches_the_runtime() {
    let rig = started("");
    let told = rig.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&rig.create("c1"));
    settled(&rig);
    succeeds(&update(&rig, &json!({"memory": {"limit": 2_000_000}, "cpu": {"shares": 1024}})));
    let got = runtime_got(&rig);
    assert_eq!((&got["cpu"]["shares"], &got["memory"]["limit"]), (&json!(77), &json!(2_000_000)));
    wait_until("the success is told", || count(&told, "PostUpdateContainer c1") == 1);
    let explained = rig.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["CPUShares"], "10-half", "{explained}");
    let change = &explained["changes"][0];
    assert_eq!((&change["before"], &change["after"]), (&json!(1024), &json!(77)), "{explained}");
    assert_eq!(change["field"], "linux.resources.cpu.shares");
}

#[test]
fn an_engine_that_repeats_itself_is_no_question_and_undoes_nothing() {
    let rig = started("");
    let told = rig.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&rig.create("c1"));
    settled(&rig);
    let request = json!({"memory": {"limit": 2_000_000}, "cpu": {"shares": 1024}});
    succeeds(&update(&rig, &request));
    wait_until("the success is told", || count(&told, "PostUpdateContainer c1") == 1);
    succeeds(&update(&rig, &request));
    assert_eq!(runtime_got(&rig)["cpu"]["shares"], 77);
    assert_eq!(count(&told, "UpdateContainer"), 1, "{:?}", told.lock().unwrap());
}

#[test]
fn an_engine_that_changes_a_value_wins_unless_a_plugin_answers_it() {
    let rig = started("");
    let told = rig.plugin("10", "pin", pins("0"));
    succeeds(&rig.create("c1"));
    settled(&rig);
    succeeds(&update(&rig, &json!({"cpu": {"cpus": "1"}})));
    assert_eq!(runtime_got(&rig)["cpu"]["cpus"], "1");
    wait_until("the success is told", || count(&told, "PostUpdateContainer c1") == 1);
    let explained = rig.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({}), "{explained}");
    assert_eq!(explained["changes"][1]["event"], "update by the engine");
    let _other = rig.plugin("20", "firm", answers("c1", &json!({"cpu": {"cpus": "0"}})));
    succeeds(&update(&rig, &json!({"cpu": {"cpus": "0-1"}})));
    assert_eq!(runtime_got(&rig)["cpu"]["cpus"], "0");
}

#[test]
fn a_refused_update_never_reaches_the_runtime_and_is_one_line() {
    let rig = started("");
    let refuses = Manner {
        refuses: Some("not now"),
        at: Some("UpdateContainer".into()),
        ..Manner::default()
    };
    let told = rig.plugin("10", "guard", refuses);
    succeeds(&rig.create("c1"));
    settled(&rig);
    let output = update(&rig, &json!({"cpu": {"shares": 5}}));
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("cannot update c1: 10-guard refused: not now"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(!rig.path("fake/update.json").exists());
    assert_eq!(count(&told, "PostUpdateContainer"), 0);
    // An engine that asks again and again is remembered once, and the container is still there.
    update(&rig, &json!({"cpu": {"shares": 5}}));
    let refused = rig.admin(&["explain", "c1"])["refused"].clone();
    assert_eq!(refused.as_array().map(Vec::len), Some(1), "{refused}");
    assert!(refused[0].as_str().unwrap().contains("not now"), "{refused}");
    let late = rig.plugin("20", "late", Manner::default());
    assert_eq!(count(&late, "Synchronize c1"), 1);
}

#[test]
fn values_that_no_runtime_would_take_are_refused_with_the_plugins_name() {
    for wrong in [json!({"cpu": {"shares": 1}}), json!({"memory": {"swap": 5}})] {
        let rig = started("");
        let _told = rig.plugin("10", "odd", answers("c1", &wrong));
        succeeds(&rig.create("c1"));
        settled(&rig);
        let output = update(&rig, &json!({"pids": {"limit": 5}}));
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && line.contains("10-odd"), "{wrong} {line}");
        assert!(!rig.path("fake/update.json").exists());
    }
}

#[test]
fn what_the_runtime_did_not_take_does_not_hold() {
    let rig = started("");
    let told = rig.plugin("10", "half", answers("c1", &json!({"cpu": {"shares": 77}})));
    succeeds(&rig.create("c1"));
    settled(&rig);
    rig.write("fake/fail-update", "");
    assert!(!update(&rig, &json!({"pids": {"limit": 5}})).status.success());
    std::fs::remove_file(rig.path("fake/fail-update")).unwrap();
    succeeds(&update(&rig, &json!({"pids": {"limit": 5}})));
    wait_until("the success is told", || count(&told, "PostUpdateContainer") == 1);
    assert_eq!(count(&told, "UpdateContainer"), 2, "the first was not taken for done");
    let conflict = rig.plugin("20", "too", answers("c1", &json!({"cpu": {"shares": 78}})));
    let output = update(&rig, &json!({"pids": {"limit": 6}}));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("20-too") && line.contains("10-half"), "{line}");
    assert_eq!(count(&conflict, "UpdateContainer"), 1);
}
