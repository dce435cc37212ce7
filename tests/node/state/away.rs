// SPDX-License-Identifier: Apache-2.0
//! Changes without a daemon are sent in order once plugins reconnect: first the present state, as
//! Synchronize, then the containers that have ended.

use serde_json::{Value, json};
use test_support::adjustments::pins;
use test_support::scripted_plugin::listening;
use test_support::{Script, TestHost, wait_until};

use super::{bundle, run, started, state, succeeds};

fn update(host: &TestHost, id: &str, resources: &Value) {
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", id];
    succeeds(&host.call_with(&words, &resources.to_string()));
}

#[test]
fn changes_without_the_daemon_are_sent_in_order() {
    let mut host = TestHost::new("autostart = false");
    host.start_daemon();
    let _plugin = host.plugin("10", "pin", pins("0"));
    for id in ["ends", "goes", "stays", "waits"] {
        bundle(&host, id);
        succeeds(&host.create_from(id, id));
        wait_until("it is made", || state(&host, id) == "created");
    }
    for id in ["ends", "goes", "stays"] {
        succeeds(&host.verb(&["start", id]));
        wait_until("it runs", || state(&host, id) == "running");
    }
    host.kill_daemon();
    succeeds(&host.verb(&["kill", "ends", "9"]));
    succeeds(&host.verb(&["delete", "--force", "goes"]));
    succeeds(&host.verb(&["start", "waits"]));
    update(&host, "stays", &json!({"cpu": {"shares": 77, "cpus": ""}}));
    run(&host, "comes");
    host.start_daemon();
    let (script, requests) = listening(pins("0"));
    let received = host.plugin("10", "pin", script);
    let ends = ["StopContainer ends", "StopContainer goes", "RemoveContainer goes"];
    wait_until("the ends are reported", || {
        let received = received.lock().unwrap();
        ends.iter().all(|end| received.iter().any(|line| line == end))
    });
    let received: Vec<String> = received.lock().unwrap().clone();
    let named = |start: &str| received.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(named("Synchronize"), 5, "{received:?}");
    assert!(received[..5].iter().all(|line| line.starts_with("Synchronize ")), "{received:?}");
    assert_eq!((named("StopContainer"), named("RemoveContainer")), (2, 1), "{received:?}");
    assert_eq!(named("CreateContainer") + named("StartContainer"), 0, "{received:?}");
    assert_eq!(state(&host, "waits"), "running");
    assert_eq!(state(&host, "comes"), "running");
    // Synchronize has the values in force: the engine's new value, and the plugin's own.
    let requests = requests.lock().unwrap();
    let stays =
        requests.iter().filter(|(event, _)| event == "Synchronize").find_map(|(_, sync)| {
            let mut all = sync["containers"].as_array().into_iter().flatten();
            all.find(|container| container["id"] == "stays").cloned()
        });
    let cpu = stays.unwrap()["linux"]["resources"]["cpu"].clone();
    assert_eq!((&cpu["shares"]["value"], &cpu["cpus"]), (&json!("77"), &json!("0")), "{cpu}");
    // The log has the result for the plugin's value (there is no real cgroup here).
    wait_until("it is said", || {
        let explained = host.admin(&["explain", "stays"]);
        explained["skipped"].to_string().contains("that update")
    });
    assert_eq!(host.admin(&["explain", "stays"])["owners"]["CPUSetCPUs"], "10-pin");
}

#[test]
fn a_late_plugin_receives_nothing_of_removed_containers() {
    let mut host = started("autostart = false");
    run(&host, "c1");
    host.kill_daemon();
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    host.start_daemon();
    wait_until("it is forgotten", || host.admin(&["pods"]) == json!([]));
    let received = host.plugin("10", "late", Script::default());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(received.lock().unwrap().is_empty());
}
