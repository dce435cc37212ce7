// SPDX-License-Identifier: Apache-2.0
//! What went past an absent daemon is found by the next one: plugins see it when they are
//! synchronized and hear of it from then on; what came to nothing is nobody's business.

use serde_json::json;

use super::player::Manner;
use super::rig::{BUNDLE, Rig, wait_until};
use super::{life, sets, succeeds};

/// A world whose daemon is away, and policy is to go on.
fn without_a_daemon() -> Rig {
    Rig::new("autostart = false")
}

fn notes(rig: &Rig) -> usize {
    std::fs::read_dir(rig.path("run/bypassed")).map_or(0, Iterator::count)
}

#[test]
fn a_container_that_went_past_is_shown_to_plugins_and_its_end_is_told() {
    let mut rig = without_a_daemon();
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    assert_eq!(notes(&rig), 2);
    rig.start_daemon();
    assert_eq!(notes(&rig), 0, "each note is taken up once");
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(*told.lock().unwrap(), ["Synchronize c1"]);
    let pods = rig.admin(&["pods"]);
    let pid: u64 = rig.read("pid").trim().parse().unwrap();
    assert_eq!(pods[0]["containers"][0]["state"], "running");
    assert_eq!(pods[0]["containers"][0]["pid"], pid);
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    wait_until("the stop is told", || told.lock().unwrap().len() >= 2);
    succeeds(&rig.verb(&["delete", "c1"]));
    wait_until("the end is told", || told.lock().unwrap().len() >= 5);
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[5..]].concat();
    assert_eq!(*told.lock().unwrap(), wanted);
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_delete_that_is_under_way_when_the_daemon_comes_is_followed_to_its_end() {
    let mut rig = without_a_daemon();
    rig.start_daemon();
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    rig.kill_daemon();
    rig.write("fake/slow-delete", "");
    let mut delete = rig.spawn(&["delete", "--force", "c1"]);
    wait_until("it goes on without the daemon", || notes(&rig) == 1);
    rig.start_daemon();
    assert_eq!(rig.admin(&["pods"])[0]["containers"][0]["state"], "running");
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    assert!(delete.wait().unwrap().success());
    wait_until("nobody knows of it", || rig.admin(&["pods"]) == json!([]));
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[5..]].concat();
    assert_eq!(*told.lock().unwrap(), wanted);
}

#[test]
fn a_container_that_was_only_created_is_started_with_leave() {
    let mut rig = without_a_daemon();
    succeeds(&rig.create("c1"));
    rig.start_daemon();
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(rig.admin(&["pods"])[0]["containers"][0]["state"], "created");
    succeeds(&rig.verb(&["start", "c1"]));
    wait_until("the start is told", || told.lock().unwrap().len() >= 3);
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[3..5]].concat();
    assert_eq!(*told.lock().unwrap(), wanted);
}

#[test]
fn a_start_that_a_plugin_refuses_is_refused_for_an_adopted_container_too() {
    let mut rig = without_a_daemon();
    succeeds(&rig.create("c1"));
    rig.start_daemon();
    let at = Some("StartContainer".to_owned());
    let guard = Manner { refuses: Some("not yet"), at, ..Manner::default() };
    let _told = rig.plugin("90", "guard", guard);
    let output = rig.verb(&["start", "c1"]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.contains("not yet"), "{line}");
    assert!(rig.path("root/c1/exec.fifo").exists());
}

#[test]
fn a_start_past_the_daemon_is_seen_on_a_container_that_was_known() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    succeeds(&rig.create("c1"));
    rig.kill_daemon();
    rig.configure(&rig.path("fake/runc"), "autostart = false");
    succeeds(&rig.verb(&["start", "c1"]));
    rig.start_daemon();
    let _told = rig.plugin("10", "env", Manner::default());
    assert_eq!(rig.admin(&["pods"])[0]["containers"][0]["state"], "running");
}

#[test]
fn a_creation_whose_daemon_died_is_adopted_without_what_plugins_had_said() {
    let fault = "autostart = false---[debug]\nfault = \"daemon.verdict:kill\"\n";
    let mut rig = Rig::new(fault);
    rig.start_daemon();
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c1"));
    assert_eq!(rig.read("fake/seen.json"), BUNDLE);
    rig.configure(&rig.path("fake/runc"), "");
    rig.kill_daemon();
    rig.start_daemon();
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(*told.lock().unwrap(), ["Synchronize c1"]);
    let explained = rig.admin(&["explain", "c1"]);
    assert_eq!(explained["changes"], json!([]), "{explained}");
    assert!(explained["skipped"].to_string().contains("went past the daemon"), "{explained}");
    let left = std::fs::read_dir(rig.path("bundle")).unwrap().count();
    assert_eq!((left, rig.read("bundle/config.json").as_str()), (2, BUNDLE));
}

#[test]
fn a_creation_past_the_daemon_that_failed_is_not_adopted() {
    let mut rig = without_a_daemon();
    rig.write("fake/fail", "");
    assert!(!rig.create("c1").status.success());
    rig.start_daemon();
    let told = rig.plugin("10", "env", Manner::default());
    assert_eq!(rig.admin(&["pods"]), json!([]));
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn a_container_that_came_and_went_past_the_daemon_is_not_adopted() {
    let mut rig = without_a_daemon();
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    rig.start_daemon();
    let told = rig.plugin("10", "env", Manner::default());
    assert_eq!(rig.admin(&["pods"]), json!([]));
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn a_container_that_ended_meanwhile_is_shown_and_only_its_removal_is_told() {
    let mut rig = without_a_daemon();
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    rig.start_daemon();
    let told = rig.plugin("10", "env", Manner::default());
    assert_eq!(*told.lock().unwrap(), ["Synchronize c1"]);
    assert_eq!(rig.admin(&["pods"])[0]["containers"][0]["state"], "stopped");
    succeeds(&rig.verb(&["delete", "c1"]));
    wait_until("nobody knows of it", || rig.admin(&["pods"]) == json!([]));
    wait_until("its removal is told", || told.lock().unwrap().len() >= 2);
    assert_eq!(told.lock().unwrap()[1], "RemoveContainer c1");
}

#[test]
fn notes_that_cannot_be_read_keep_nobody_from_the_others() {
    let mut rig = without_a_daemon();
    succeeds(&rig.create("c1"));
    for (name, text) in
        [("0.json", "{{{"), ("1.json", "{\"verb\":\"run\",\"id\":\"x\",\"why\":\"\"}")]
    {
        rig.write(&format!("run/bypassed/{name}"), text);
    }
    rig.start_daemon();
    assert_eq!(rig.admin(&["pods"])[0]["containers"][0]["id"], "c1");
    assert_eq!(notes(&rig), 0);
}
