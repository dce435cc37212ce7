// SPDX-License-Identifier: Apache-2.0
//! Values that plugins own stay: after the container is created again under its ID, and after the
//! daemon dies, is absent, or is killed between any two of its steps.

use serde_json::{Value, json};
use test_support::adjustments::limits_processes;

use super::{Place, Script, is_done, place, request, succeeds, update_of, wait_until};

/// Starts the next daemon, with further lines of configuration.
fn next_daemon(place: &mut Place, more: &str) {
    place.host.configure(place.real.runc(), more);
    place.host.kill_daemon();
    place.host.start_daemon();
}

fn shares(place: &Place) -> String {
    place.file("c1", "cpu", "cpu.shares")
}

fn mentions(explained: &Value, word: &str) -> bool {
    explained["skipped"].to_string().contains(word)
}

#[test]
fn no_verb_of_the_engine_restores_an_old_value() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}}));
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}, "pids": {"limit": 55}})));
    let holds = |what: &str| {
        assert_eq!(
            (shares(&place), place.file("c1", "pids", "pids.max")),
            ("300".into(), "55".into()),
            "{what}"
        );
    };
    for verb in [&["state", "c1"][..], &["pause", "c1"], &["resume", "c1"], &["ps", "c1"]] {
        succeeds(&place.host.verb(verb));
        holds(verb[0]);
    }
    // runc has the values of the creation in its state, and writes all of them at each update.
    let root = place.host.path("root").display().to_string();
    succeeds(&place.host.call(&[
        "--root",
        &root,
        "update",
        "--memory-reservation",
        "8388608",
        "c1",
    ]));
    holds("update by flags");
    succeeds(&place.update("c1", &json!({"memory": {"reservation": 4_194_304}})));
    holds("update");
    assert_eq!(place.file("c1", "memory", "memory.soft_limit_in_bytes"), "4194304");
}

#[test]
fn a_recreated_container_gets_its_plugins_values_again() {
    let Some(place) = place("") else { return };
    let resources = json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}});
    place.run("c1", &resources);
    let asking = place.asker();
    let wanted = json!({"cpu": {"shares": 300}, "pids": {"limit": 55},
        "memory": {"reservation": 8_388_608, "swappiness": 7}});
    assert!(is_done(&asking, "c1", &wanted));
    let delete = || {
        succeeds(&place.host.verb(&["delete", "--force", "c1"]));
        wait_until("it is gone", || place.state("c1").is_none());
    };
    delete();
    // The engine has changed one of its values, and a plugin sets another.
    let _plugin = place.host.plugin("20", "counts", limits_processes(44));
    let resources = json!({"cpu": {"shares": 1024}, "pids": {"limit": 100},
        "memory": {"reservation": 4_194_304}});
    place.run("c1", &resources);
    wait_until("what the plugin set is set again", || shares(&place) == "300");
    assert_eq!(place.file("c1", "memory", "memory.swappiness"), "7");
    assert_eq!(place.file("c1", "memory", "memory.soft_limit_in_bytes"), "4194304");
    assert_eq!(place.file("c1", "pids", "pids.max"), "44");
    let explained = place.host.admin(&["explain", "c1"]);
    let owners =
        json!({"CPUShares": "10-asker", "MemSwappiness": "10-asker", "PidsLimit": "20-counts"});
    assert_eq!(explained["owners"], owners, "{explained}");
    // After a second recreation the repeated value is still the plugin's.
    delete();
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    wait_until("what the plugin set is set again", || shares(&place) == "300");
}

#[test]
fn plugin_values_are_set_again_after_the_daemon_ended() {
    let Some(mut place) = place("") else { return };
    let resources = json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}});
    for is_orderly in [false, true] {
        place.run("c1", &resources);
        let asking = place.asker();
        assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}, "pids": {"limit": 55}})));
        succeeds(&place.host.verb(&["delete", "--force", "c1"]));
        wait_until("it is gone", || place.state("c1").is_none());
        if is_orderly {
            let pid = nix::unistd::Pid::from_raw(place.host.daemon_pid());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
            wait_until("the daemon has ended", || place.host.admin(&["status"]).is_null());
        }
        place.host.kill_daemon();
        place.host.start_daemon();
        let _asking = place.asker();
        // A failed creation does not drop the values.
        place.prepare("c1", &json!({"cpu": {"cpus": "4000"}}));
        assert!(!place.host.create_from("c1", "c1").status.success());
        wait_until("it is undone", || place.state("c1").is_none());
        place.run("c1", &resources);
        wait_until("what the plugin set is set again", || shares(&place) == "300");
        assert_eq!(place.file("c1", "pids", "pids.max"), "55");
        let owners = json!({"CPUShares": "10-asker", "PidsLimit": "10-asker"});
        assert_eq!(place.host.admin(&["explain", "c1"])["owners"], owners);
        succeeds(&place.host.verb(&["delete", "--force", "c1"]));
        wait_until("it is gone", || place.state("c1").is_none());
        place.host.kill_daemon();
        std::fs::remove_dir_all(place.host.path("run/state/kept")).unwrap();
        place.host.start_daemon();
    }
}

#[test]
fn a_disconnected_plugin_owns_nothing_after_a_recreation() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    let (asking, asks) = super::asking();
    let at = Some("RemoveContainer".to_owned());
    let leaves = Script { asks: Some(asks), leaves: true, at, ..Script::default() };
    let _plugin = place.host.plugin("10", "leaver", leaves);
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}})));
    succeeds(&place.host.verb(&["delete", "--force", "c1"]));
    wait_until("it has left", || place.host.admin(&["status"])["plugins"] == 0);
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    assert_eq!(shares(&place), "1024");
    assert_eq!(place.host.admin(&["explain", "c1"])["owners"], json!({}));
}

#[test]
fn the_next_daemon_keeps_plugin_owned_values() {
    let Some(mut place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}, "memory": {"swappiness": 7}})));
    next_daemon(&mut place, "");
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 77}})));
    assert_eq!((shares(&place), place.file("c1", "pids", "pids.max")), ("300".into(), "77".into()));
    wait_until("what runc does not apply is there again", || {
        place.file("c1", "memory", "memory.swappiness") == "7"
    });
    let explained = place.host.admin(&["explain", "c1"]);
    let owners = json!({"CPUShares": "10-asker", "MemSwappiness": "10-asker"});
    assert_eq!(explained["owners"], owners, "{explained}");
}

#[test]
fn a_recovered_container_takes_updates_of_plugins_and_engine() {
    let Some(mut place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}}));
    assert!(is_done(&place.asker(), "c1", &json!({"cpu": {"shares": 300}})));
    let root = place.host.path("root").display().to_string();
    place.host.configure(place.real.runc(), &format!("runtime_roots = [\"{root}\"]"));
    place.host.kill_daemon();
    std::fs::remove_dir_all(place.host.path("run")).unwrap();
    place.host.start_daemon();
    assert_eq!(place.state("c1").as_deref(), Some("running"));
    assert_eq!(shares(&place), "300", "nothing was touched");
    assert!(is_done(&place.asker(), "c1", &json!({"pids": {"limit": 55}})));
    assert_eq!(place.file("c1", "pids", "pids.max"), "55");
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}})));
    let files = (shares(&place), place.file("c1", "pids", "pids.max"));
    assert_eq!(files, ("1024".into(), "55".into()), "what it owned before is not known");
    let owners = place.host.admin(&["explain", "c1"])["owners"].clone();
    assert_eq!(owners, json!({"PidsLimit": "10-asker"}));
    succeeds(&place.host.verb(&["delete", "--force", "c1"]));
    wait_until("it is gone", || place.state("c1").is_none());
}

#[test]
fn an_update_without_the_daemon_is_corrected_and_logged() {
    let Some(mut place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}}));
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}})));
    place.host.configure(place.real.runc(), "autostart = false");
    place.host.kill_daemon();
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 77}})));
    assert_eq!(shares(&place), "1024", "nobody was there");
    place.host.start_daemon();
    wait_until("what the plugin owns holds again", || shares(&place) == "300");
    assert_eq!(place.file("c1", "pids", "pids.max"), "77", "the engine's own value stays");
    wait_until("it is said", || {
        mentions(&place.host.admin(&["explain", "c1"]), "were written again after that update")
    });
    // The container is gone by then: the log reports that nothing could be done.
    place.host.kill_daemon();
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 1024}})));
    succeeds(&place.host.verb(&["kill", "c1", "9"]));
    wait_until("it has ended", || place.file("c1", "pids", "cgroup.procs").is_empty());
    place.host.start_daemon();
    wait_until("it is said", || {
        mentions(&place.host.admin(&["explain", "c1"]), "could not be restored: it has ended")
    });
}

#[test]
fn a_fault_before_the_first_write_is_reported_to_the_plugin() {
    let Some(mut place) = place("[debug]\nfault = \"daemon.cgroup:fail\"") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    let asking = place.asker();
    assert!(!is_done(&asking, "c1", &json!({"cpu": {"shares": 300}})));
    assert_eq!(shares(&place), "1024");
    let explained = place.host.admin(&["explain", "c1"]);
    assert!(
        mentions(&explained, "fault injected") && explained["owners"] == json!({}),
        "{explained}"
    );
    next_daemon(&mut place, "[debug]\nfault = \"daemon.cgroup:kill\"");
    let asking = place.asker();
    let wish = update_of("c1", &json!({"cpu": {"shares": 300}}));
    assert!(!matches!(asking.try_ask(request(vec![wish])), Ok(Ok(_))), "nobody is left to answer");
    next_daemon(&mut place, "");
    assert_eq!(shares(&place), "1024");
    assert_eq!(place.host.admin(&["explain", "c1"])["owners"], json!({}));
    assert!(is_done(&place.asker(), "c1", &json!({"cpu": {"shares": 300}})));
    assert_eq!(shares(&place), "300");
}

/// A plugin that requests a change of the container about which it is being asked.
fn hasty(place: &Place) -> std::sync::Arc<std::sync::Mutex<Vec<String>>> {
    let wish = request(vec![update_of("c1", &json!({"cpu": {"shares": 300}}))]);
    place.host.plugin("10", "hasty", Script { inside: Some(wish), ..Script::default() })
}

#[test]
fn updates_that_wait_for_a_creation_survive_the_daemon() {
    let Some(mut place) = place("[debug]\nfault = \"daemon.settle:kill\"") else { return };
    let received = hasty(&place);
    place.prepare("c1", &json!({"cpu": {"shares": 1024}}));
    succeeds(&place.host.create_from("c1", "c1"));
    assert!(received.lock().unwrap().contains(&"inside 0 failed".to_owned()));
    let status = || place.host.admin(&["status"]).is_null();
    wait_until("the daemon is dead", status);
    assert_eq!(shares(&place), "1024");
    next_daemon(&mut place, "");
    wait_until("the wish is carried out", || shares(&place) == "300");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"CPUShares": "10-hasty"}), "{explained}");
}

#[test]
fn an_update_that_waits_for_a_failed_creation_fails() {
    let Some(place) = place("") else { return };
    let received = hasty(&place);
    place.prepare("c1", &json!({"cpu": {"cpus": "4000"}}));
    assert!(!place.host.create_from("c1", "c1").status.success());
    assert!(received.lock().unwrap().contains(&"inside 0 failed".to_owned()));
    wait_until("it is said", || {
        mentions(&place.host.admin(&["explain", "c1"]), "it was not created")
    });
}
