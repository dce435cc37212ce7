// SPDX-License-Identifier: Apache-2.0
//! Updates of other containers: in which messages they are sent, and the effect of failures.

use nri_runc::plugin::api;
use serde_json::json;

use super::{Script, is_done, place, request, succeeds, update_of, wait_until};

#[test]
fn responses_to_every_event_can_update_another_container() {
    let Some(place) = place("") else { return };
    place.run("other", &json!({"cpu": {"shares": 1024}}));
    let shares = |n: u64| vec![update_of("other", &json!({"cpu": {"shares": n}}))];
    let script = Script {
        wants: shares(101),
        update: shares(102),
        updates: shares(103),
        leaves_room: shares(104),
        ..Script::default()
    };
    let _plugin = place.host.plugin("10", "mover", script);
    let has_limit = |wanted: &str| place.file("other", "cpu", "cpu.shares") == wanted;
    wait_until("Synchronize's answer is carried out", || has_limit("101"));
    place.run("c1", &json!({}));
    assert!(has_limit("102"), "before the created container is there");
    succeeds(&place.update("c1", &json!({"pids": {"limit": 50}})));
    assert!(has_limit("103"), "before the runtime has updated");
    assert_eq!(place.file("c1", "pids", "pids.max"), "50");
    succeeds(&place.host.verb(&["kill", "c1", "9"]));
    wait_until("StopContainer's answer is carried out", || has_limit("104"));
}

#[test]
fn updates_fail_separately_and_ignored_failures_are_omitted() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({}));
    place.run("dead", &json!({}));
    succeeds(&place.host.verb(&["kill", "dead", "9"]));
    wait_until("it has ended", || place.state("dead").as_deref() == Some("stopped"));
    let asking = place.asker();
    let fine = json!({"cpu": {"shares": 222}});
    let forgiven = api::ContainerUpdate { ignore_failure: true, ..update_of("gone", &fine) };
    let all = vec![
        update_of("nobody", &fine),
        update_of("dead", &fine),
        update_of("c1", &fine),
        forgiven,
        update_of("c1", &json!({"cpu": {"cpus": "4000"}})),
    ];
    let failed = asking.ask(request(all)).unwrap().failed;
    let ids: Vec<&str> = failed.iter().map(|update| update.container_id.as_str()).collect();
    assert_eq!(ids, ["nobody", "dead", "c1"]);
    assert_eq!(failed[2].linux.resources.cpu.cpus, "4000", "as it was asked for");
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "222");
    let dead = place.host.admin(&["explain", "dead"]);
    assert!(dead["skipped"][0]["reason"].as_str().unwrap().contains("it has ended"), "{dead}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a file of the kernel")]
fn a_process_that_moved_to_another_cgroup_is_found_there() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    let own = format!("/sys/fs/cgroup/cpu{}", place.real.cgroup("c1"));
    let pid = place.file("c1", "pids", "cgroup.procs");
    let child = format!("{own}/child");
    std::fs::create_dir(&child).unwrap();
    // The runtime writes if the process is elsewhere: then the daemon does not know the container's cgroups.
    for (number, (folder, field)) in [
        (own.as_str(), "cgroup:cpu.shares"),
        ("/sys/fs/cgroup/cpu", "linux.resources.cpu.shares"),
        (child.as_str(), "cgroup:cpu.shares"),
        (own.as_str(), "cgroup:cpu.shares"),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(format!("{folder}/cgroup.procs"), &pid).unwrap();
        let value = 301 + u64::try_from(number).unwrap();
        assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 299}})), "{folder}");
        assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": value}})), "{folder}");
        assert_eq!(place.file("c1", "cpu", "cpu.shares"), value.to_string(), "{folder}");
        let explained = place.host.admin(&["explain", "c1"]);
        let changes = explained["changes"].as_array().unwrap();
        let after = json!(value.to_string());
        let change =
            changes.iter().find(|change| change["after"] == after || change["after"] == value);
        assert_eq!(change.unwrap()["field"], field, "{explained}");
    }
    std::fs::remove_dir(child).unwrap();
}

#[test]
fn a_frozen_container_accepts_the_values_the_kernel_accepts() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    succeeds(&place.host.verb(&["pause", "c1"]));
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 333}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "333");
    assert_eq!(place.file("c1", "freezer", "freezer.state"), "FROZEN");
    assert!(!is_done(&asking, "c1", &json!({"cpu": {"cpus": "4000"}})));
    let explained = place.host.admin(&["explain", "c1"]);
    let reason = explained["skipped"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("while it is frozen"), "{reason}");
    succeeds(&place.host.verb(&["resume", "c1"]));
}

#[test]
fn a_plugin_may_request_updates_from_inside_its_handler() {
    let Some(place) = place("") else { return };
    place.run("other", &json!({}));
    let both = request(vec![
        update_of("other", &json!({"cpu": {"shares": 111}})),
        update_of("c1", &json!({"cpu": {"shares": 112}})),
    ]);
    let script = Script { inside: Some(both.clone()), ..Script::default() };
    let received = place.host.plugin("10", "inner", script);
    place.run("c1", &json!({"cpu": {"shares": 1024}}));
    let lines = received.lock().unwrap().clone();
    assert!(lines.contains(&"inside 0 failed".to_owned()), "{lines:?}");
    assert_eq!(place.file("other", "cpu", "cpu.shares"), "111");
    wait_until("it is updated once it is created", || {
        place.file("c1", "cpu", "cpu.shares") == "112"
    });
    let script =
        Script { inside: Some(both), at: Some("UpdateContainer".into()), ..Script::default() };
    let received = place.host.plugin("20", "too", script);
    succeeds(&place.update("c1", &json!({"pids": {"limit": 66}, "cpu": {"shares": 1024}})));
    let plugins = place.host.admin(&["plugins"]);
    let timeouts: Vec<_> =
        plugins.as_array().unwrap().iter().map(|row| row["timeouts"].clone()).collect();
    assert!(timeouts.iter().all(|count| *count == 0), "nobody waited for a time-out: {plugins}");
    assert!(received.lock().unwrap().contains(&"inside 0 failed".to_owned()));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "112");
    assert_eq!(place.file("c1", "pids", "pids.max"), "66");
}

#[test]
fn a_denied_field_fails_the_whole_request() {
    let Some(place) = place("[plugin.asker]\ndeny = [\"CPUShares\"]") else { return };
    place.run("c1", &json!({"cpu": {"shares": 500}}));
    let asking = place.asker();
    let all = vec![
        update_of("c1", &json!({"pids": {"limit": 50}})),
        update_of("c1", &json!({"cpu": {"shares": 600}})),
    ];
    let refused = asking.ask(request(all)).unwrap_err();
    assert!(refused.contains("CPUShares"), "{refused}");
    assert_eq!(place.file("c1", "pids", "pids.max"), "max");
}

#[test]
fn concurrent_updates_end_in_one_of_the_legal_orders() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 1000}}));
    let asking = place.asker();
    let pairs: Vec<u64> = (1..=20).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in &pairs {
                let both = json!({"cpu": {"shares": 2000 + n}, "memory": {"reservation": (2000 + n) * 4096}});
                assert!(is_done(&asking, "c1", &both));
            }
        });
        for n in &pairs {
            succeeds(&place.update("c1", &json!({"pids": {"limit": 1000 + n}})));
        }
    });
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "2020");
    let reservation = place.file("c1", "memory", "memory.soft_limit_in_bytes");
    assert_eq!(reservation, (2020 * 4096).to_string());
    assert_eq!(place.file("c1", "pids", "pids.max"), "1020");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["skipped"], json!([]), "{explained}");
}
