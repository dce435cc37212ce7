// SPDX-License-Identifier: Apache-2.0
//! The values that plugins receive of a container after a failed `update` of its runtime, and of a
//! paused one: those of the container's cgroup.

use serde_json::{Value, json};
use test_support::scripted_plugin::{ReceivedRequests, listening};
use test_support::{Script, succeeds, wait_until};

use super::{Place, is_done, place};

fn last(seen: &ReceivedRequests, event: &str) -> Option<Value> {
    let seen = seen.lock().unwrap();
    seen.iter().rev().find(|(name, _)| name == event).map(|(_, request)| request.clone())
}

/// Installs a runtime whose `update` writes shares and then fails, as if a later value were
/// invalid.
fn fails_half_way(place: &mut Place) {
    let real = place.real.runc().display().to_string();
    let shares = format!("/sys/fs/cgroup/cpu{}/cpu.shares", place.real.cgroup("c1"));
    let script = format!(
        "#!/bin/sh\nfor word; do case $word in update) cat >/dev/null; echo 700 >{shares}; \
         echo 'no such value' >&2; exit 1;; esac; done\nexec {real} \"$@\"\n"
    );
    std::fs::create_dir_all(place.host.path("broken")).unwrap();
    place.host.put_program("broken/runc", &script);
    place.host.configure(&place.host.path("broken/runc"), "");
    place.host.kill_daemon();
    place.host.start_daemon();
}

#[test]
fn after_a_failed_update_plugins_receive_the_real_values() {
    let Some(mut place) = place("") else { return };
    fails_half_way(&mut place);
    place.run("c1", &json!({"cpu": {"shares": 500}, "pids": {"limit": 40}}));
    let (script, seen) = listening(Script::default());
    let _plugin = place.host.plugin("10", "listener", script);
    let request = json!({"cpu": {"shares": 700}, "pids": {"limit": 50}});
    assert!(!place.update("c1", &request).status.success());
    wait_until("the end of the update is reported", || {
        last(&seen, "PostUpdateContainer").is_some()
    });
    let received = last(&seen, "PostUpdateContainer").unwrap()["container"].clone();
    let resources = &received["linux"]["resources"];
    let files = [("cpu", "cpu.shares"), ("pids", "pids.max")]
        .map(|(controller, file)| place.file("c1", controller, file));
    assert_eq!(files, ["700", "40"]);
    assert_eq!(resources["cpu"]["shares"]["value"], "700", "{resources}");
    assert_eq!(resources["pids"]["limit"], "40", "{resources}");
    assert_eq!(seen.lock().unwrap().iter().filter(|(e, _)| e == "PostUpdateContainer").count(), 1);
}

#[test]
fn after_a_failed_update_owned_values_are_in_force_again() {
    let Some(mut place) = place("") else { return };
    fails_half_way(&mut place);
    place.run("c1", &json!({"cpu": {"shares": 500}, "pids": {"limit": 40}}));
    assert!(is_done(&place.asker(), "c1", &json!({"cpu": {"shares": 300}})));
    let (script, seen) = listening(Script::default());
    let _plugin = place.host.plugin("20", "listener", script);
    assert!(!place.update("c1", &json!({"pids": {"limit": 50}})).status.success());
    wait_until("the end of the update is reported", || {
        last(&seen, "PostUpdateContainer").is_some()
    });
    let received = last(&seen, "PostUpdateContainer").unwrap()["container"].clone();
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "300");
    assert_eq!(received["linux"]["resources"]["cpu"]["shares"]["value"], "300", "{received}");
    assert_eq!(received["linux"]["resources"]["pids"]["limit"], "40", "{received}");
}

#[test]
fn a_paused_container_is_shown_as_paused_until_it_is_resumed() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 500}}));
    place.run("c2", &json!({}));
    let root = place.host.path("root").display().to_string();
    let verb = |verb: &str| succeeds(&place.host.call(&["--root", &root, verb, "c1"]));
    let requests = || place.host.admin(&["status"])["requests"].clone();
    let before = requests();
    verb("pause");
    assert_eq!(requests(), before, "pause is nobody's business");
    assert_eq!(place.state("c1").as_deref(), Some("paused"));
    let (script, seen) = listening(Script::default());
    let _plugin = place.host.plugin("10", "listener", script);
    let state = |id: &str| {
        let received = last(&seen, "Synchronize").unwrap();
        let all = received["containers"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["id"] == id).unwrap()["state"].clone()
    };
    assert_eq!((state("c1"), state("c2")), (json!("CONTAINER_PAUSED"), json!("CONTAINER_RUNNING")));
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 600}})));
    wait_until("the update is reported", || last(&seen, "PostUpdateContainer").is_some());
    for event in ["UpdateContainer", "PostUpdateContainer"] {
        let received = last(&seen, event).unwrap()["container"]["state"].clone();
        assert_eq!(received, "CONTAINER_PAUSED", "{event}");
    }
    verb("resume");
    seen.lock().unwrap().clear();
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 700}})));
    wait_until("the update is reported", || last(&seen, "PostUpdateContainer").is_some());
    let received = last(&seen, "UpdateContainer").unwrap()["container"]["state"].clone();
    assert_eq!(received, "CONTAINER_RUNNING");
    assert_eq!(place.state("c1").as_deref(), Some("running"));
}
