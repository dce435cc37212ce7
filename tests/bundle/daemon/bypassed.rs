// SPDX-License-Identifier: Apache-2.0
//! The next daemon finds the operations that bypassed an absent one: plugins see the containers at
//! Synchronize and receive their later events. Failed operations are ignored.

use serde_json::json;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{life, sets, succeeds};

/// A host without a daemon, whose policy permits containers to continue.
fn without_a_daemon() -> TestHost {
    TestHost::new("autostart = false")
}

fn notes(host: &TestHost) -> usize {
    std::fs::read_dir(host.path("run/bypassed")).map_or(0, Iterator::count)
}

#[test]
fn a_bypassed_container_is_synchronized_and_its_end_reported() {
    let mut host = without_a_daemon();
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    assert_eq!(notes(&host), 2);
    host.start_daemon();
    assert_eq!(notes(&host), 0, "each note is taken up once");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(*received.lock().unwrap(), ["Synchronize c1"]);
    let pods = host.admin(&["pods"]);
    let pid: u64 = host.read("pid").trim().parse().unwrap();
    assert_eq!(pods[0]["containers"][0]["state"], "running");
    assert_eq!(pods[0]["containers"][0]["pid"], pid);
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("the stop is reported", || received.lock().unwrap().len() >= 2);
    succeeds(&host.verb(&["delete", "c1"]));
    wait_until("the end is reported", || received.lock().unwrap().len() >= 5);
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[5..]].concat();
    assert_eq!(*received.lock().unwrap(), wanted);
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn an_adopted_container_has_the_times_of_its_process() {
    let mut host = without_a_daemon();
    let seconds = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let before = seconds();
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.create("c2"));
    host.start_daemon();
    let times = |id: &str| {
        let document = host.admin(&["explain", id]);
        ["created_at", "started_at"].map(|key| document[key].as_u64().unwrap() / 1_000_000_000)
    };
    // The kernel counts from the boot, whose time is known to one second.
    let is_of_now = |time: u64| (before - 2..=seconds() + 2).contains(&time);
    let [created, started] = times("c1");
    assert!(is_of_now(created) && is_of_now(started), "{before}: {created} {started}");
    let [created, started] = times("c2");
    assert!(is_of_now(created) && started == 0, "{before}: {created} {started}");
}

#[test]
fn a_delete_in_progress_at_the_daemons_start_is_followed() {
    let mut host = without_a_daemon();
    host.start_daemon();
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    host.kill_daemon();
    host.write("fake/slow-delete", "");
    let mut delete = host.spawn(&["delete", "--force", "c1"]);
    wait_until("it goes on without the daemon", || notes(&host) == 1);
    host.start_daemon();
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    std::fs::remove_file(host.path("fake/slow-delete")).unwrap();
    assert!(delete.wait().unwrap().success());
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[5..]].concat();
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn plugins_are_asked_before_an_adopted_container_starts() {
    let mut host = without_a_daemon();
    succeeds(&host.create("c1"));
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "created");
    succeeds(&host.verb(&["start", "c1"]));
    wait_until("the start is reported", || received.lock().unwrap().len() >= 3);
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[3..5]].concat();
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn a_plugin_may_refuse_the_start_of_an_adopted_container() {
    let mut host = without_a_daemon();
    succeeds(&host.create("c1"));
    host.start_daemon();
    let at = Some("StartContainer".to_owned());
    let guard = Script { refuses: Some("not yet"), at, ..Script::default() };
    let _plugin = host.plugin("90", "guard", guard);
    let output = host.verb(&["start", "c1"]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.contains("not yet"), "{line}");
    assert!(host.path("root/c1/exec.fifo").exists());
}

#[test]
fn the_next_daemon_notices_the_start_of_a_known_container() {
    let mut host = TestHost::default();
    host.start_daemon();
    succeeds(&host.create("c1"));
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "autostart = false");
    succeeds(&host.verb(&["start", "c1"]));
    host.start_daemon();
    let _plugin = host.plugin("10", "env", Script::default());
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "running");
}

#[test]
fn a_create_whose_daemon_was_killed_is_taken_over_unadjusted() {
    let fault = "autostart = false\n[debug]\nfault = \"daemon.verdict:kill\"\n";
    let mut host = TestHost::new(fault);
    host.start_daemon();
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    host.configure(&host.path("fake/runc"), "");
    host.kill_daemon();
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(*received.lock().unwrap(), ["Synchronize c1"]);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["changes"], json!([]), "{explained}");
    assert!(explained["skipped"].to_string().contains("bypassed the daemon"), "{explained}");
    let left = std::fs::read_dir(host.path("bundle")).unwrap().count();
    assert_eq!((left, host.read("bundle/config.json").as_str()), (2, BUNDLE));
}

#[test]
fn a_failed_bypassed_creation_is_not_adopted() {
    let mut host = without_a_daemon();
    host.write("fake/fail", "");
    assert!(!host.create("c1").status.success());
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    assert_eq!(host.admin(&["pods"]), json!([]));
    assert!(received.lock().unwrap().is_empty());
}

#[test]
fn a_container_removed_while_the_daemon_was_away_is_not_adopted() {
    let mut host = without_a_daemon();
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    assert_eq!(host.admin(&["pods"]), json!([]));
    assert!(received.lock().unwrap().is_empty());
}

#[test]
fn an_ended_bypassed_container_is_shown_until_its_removal() {
    let mut host = without_a_daemon();
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    host.start_daemon();
    let received = host.plugin("10", "env", Script::default());
    assert_eq!(*received.lock().unwrap(), ["Synchronize c1"]);
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "stopped");
    succeeds(&host.verb(&["delete", "c1"]));
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    wait_until("its removal is reported", || received.lock().unwrap().len() >= 2);
    assert_eq!(received.lock().unwrap()[1], "RemoveContainer c1");
}

#[test]
fn unreadable_notes_do_not_hide_the_others() {
    let mut host = without_a_daemon();
    succeeds(&host.create("c1"));
    for (name, text) in
        [("0.json", "{{{"), ("1.json", "{\"verb\":\"run\",\"id\":\"x\",\"why\":\"\"}")]
    {
        host.write(&format!("run/bypassed/{name}"), text);
    }
    host.start_daemon();
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["id"], "c1");
    assert_eq!(notes(&host), 0);
}
