// SPDX-License-Identifier: Apache-2.0
//! Operations of wrappers while plugins are disabled are not recorded: `enable` detects them.

use std::sync::{Arc, Mutex};

use serde_json::json;
use test_support::{Script, TestHost, wait_until};

use super::{bundle, run, started, state, succeeds};

/// A host with a plugin, which receives every event, and running containers.
fn with_running(ids: &[&str], more: &str) -> (TestHost, Arc<Mutex<Vec<String>>>) {
    let host = TestHost::default();
    let root = host.path("root").display().to_string();
    let runtime = host.path("fake/runc");
    host.configure(&runtime, &format!("autostart = false\nruntime_roots = [\"{root}\"]\n{more}"));
    let mut host = host;
    host.start_daemon();
    let received = host.plugin("10", "witness", Script::default());
    ids.iter().for_each(|id| run(&host, id));
    (host, received)
}

/// The events of this container or pod, in order.
fn of(received: &Mutex<Vec<String>>, id: &str) -> Vec<String> {
    let received = received.lock().unwrap();
    let events = received.iter().filter_map(|line| line.strip_suffix(&format!(" {id}")));
    events.map(ToOwned::to_owned).collect()
}

const REST: [&str; 4] = ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"];

fn is_caught_up(host: &TestHost) -> bool {
    !host.path("run/was_disabled").exists()
}

#[test]
fn containers_deleted_while_disabled_are_removed_at_enable() {
    let (host, received) = with_running(&["gone", "stays"], "");
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.verb(&["delete", "--force", "gone"]));
    wait_until("its exit is noted", || state(&host, "gone") == "stopped");
    assert_eq!(host.admin(&["pods"]).as_array().unwrap().len(), 2, "nothing is written meanwhile");
    succeeds(&host.call(&["nri", "enable"]));
    wait_until("it is removed", || host.admin(&["pods"]).as_array().unwrap().len() == 1);
    wait_until("all is looked at", || is_caught_up(&host));
    assert_eq!(of(&received, "gone")[5..], REST);
    assert!(!of(&received, "stays").contains(&"StopContainer".to_owned()));
    // A second `enable` changes nothing.
    succeeds(&host.call(&["nri", "enable"]));
    let late = host.plugin("20", "late", Script::default());
    assert_eq!(*late.lock().unwrap(), ["Synchronize stays"]);
    assert_eq!(of(&received, "gone").len(), 9);
}

#[test]
fn containers_created_while_disabled_are_known_at_enable() {
    let (host, received) = with_running(&[], "");
    succeeds(&host.call(&["nri", "disable"]));
    run(&host, "new");
    bundle(&host, "made");
    succeeds(&host.create_from("made", "made"));
    succeeds(&host.call(&["nri", "enable"]));
    wait_until("all is looked at", || is_caught_up(&host));
    assert_eq!(state(&host, "new"), "running");
    assert_eq!(state(&host, "made"), "created");
    let explained = host.admin(&["explain", "new"]);
    assert!(explained["skipped"].to_string().contains("created while plugins were disabled"));
    assert_eq!(of(&received, "new"), ["RunPodSandbox", "CreateContainer"]);
    succeeds(&host.verb(&["delete", "--force", "new"]));
    wait_until("its end is reported", || of(&received, "new").len() == 6);
    assert_eq!(of(&received, "new")[2..], REST);
}

#[test]
fn a_start_while_disabled_is_reported_at_enable() {
    let (host, received) = with_running(&[], "");
    bundle(&host, "made");
    succeeds(&host.create_from("made", "made"));
    wait_until("it is created", || state(&host, "made") == "created");
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.verb(&["start", "made"]));
    assert_eq!(state(&host, "made"), "created");
    succeeds(&host.call(&["nri", "enable"]));
    wait_until("all is looked at", || is_caught_up(&host));
    assert_eq!(state(&host, "made"), "running");
    let before = ["RunPodSandbox", "CreateContainer", "PostCreateContainer"];
    assert_eq!(
        of(&received, "made"),
        [&before[..], &["StartContainer", "PostStartContainer"]].concat()
    );
    // A second `enable` changes nothing.
    succeeds(&host.call(&["nri", "enable"]));
    wait_until("all is looked at again", || is_caught_up(&host));
    assert_eq!(of(&received, "made").len(), 5);
}

#[test]
fn an_id_reused_while_disabled_means_the_new_container() {
    let (host, received) = with_running(&["same"], "");
    let before = host.admin(&["pods"])[0]["containers"][0]["pid"].clone();
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.verb(&["delete", "--force", "same"]));
    run(&host, "same");
    succeeds(&host.call(&["nri", "enable"]));
    wait_until("all is looked at", || is_caught_up(&host));
    let now = &host.admin(&["pods"])[0]["containers"][0];
    assert_eq!(now["state"], "running");
    assert_ne!(now["pid"], before);
    let whole: Vec<&str> = [&REST[..], &["RunPodSandbox", "CreateContainer"]].concat();
    assert_eq!(of(&received, "same")[5..], whole);
}

#[test]
fn the_next_daemon_finds_changes_made_while_disabled() {
    let (mut host, received) = with_running(&["gone"], "");
    host.kill_daemon();
    drop(received);
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.verb(&["delete", "--force", "gone"]));
    run(&host, "new");
    succeeds(&host.call(&["nri", "enable"]));
    host.start_daemon();
    wait_until("all is looked at", || is_caught_up(&host));
    assert_eq!(state(&host, "new"), "running");
    wait_until("the dead are gone", || host.admin(&["pods"]).as_array().unwrap().len() == 1);
}

#[test]
fn a_reload_that_ends_nri_disable_catches_up_too() {
    let (host, _plugin) = with_running(&["gone"], "");
    let root = host.path("root").display().to_string();
    let configured = |more: &str| {
        let more = format!("autostart = false\nruntime_roots = [\"{root}\"]\n{more}");
        host.configure(&host.path("fake/runc"), &more);
        succeeds(&host.call(&["nri", "reload"]));
    };
    configured("[nri]\ndisable = true\n");
    succeeds(&host.verb(&["delete", "--force", "gone"]));
    configured("");
    wait_until("it is removed", || host.admin(&["pods"]) == json!([]));
    wait_until("all is looked at", || is_caught_up(&host));
}

#[test]
fn an_unreadable_state_does_not_count_as_removed() {
    let (host, received) = with_running(&["c1"], "");
    succeeds(&host.call(&["nri", "disable"]));
    // A path with a loop of links fails with another error than a missing one.
    std::fs::rename(host.path("root"), host.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("root", host.path("root")).unwrap();
    succeeds(&host.call(&["nri", "enable"]));
    assert_eq!(state(&host, "c1"), "running");
    assert!(!is_caught_up(&host), "it is checked again");
    std::fs::remove_file(host.path("root")).unwrap();
    std::fs::rename(host.path("elsewhere"), host.path("root")).unwrap();
    wait_until("all is looked at", || is_caught_up(&host));
    assert_eq!(state(&host, "c1"), "running");
    assert_eq!(of(&received, "c1").len(), 5);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn disable_followed_at_once_by_enable_changes_nothing() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    run(&host, "c1");
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.call(&["nri", "enable"]));
    wait_until("all is looked at", || is_caught_up(&host));
    assert_eq!((state(&host, "c1").as_str(), of(&received, "c1").len()), ("running", 5));
}
