// SPDX-License-Identifier: Apache-2.0
//! Each resource of a running container, on cgroup v1: raised, lowered, refused; and what stays
//! of it when the engine updates the container too.

use serde_json::{Value, json};

use super::{is_done, place, succeeds};

/// Resources, and the files that must say so: controller, file, text.
type Case = (&'static str, &'static [(&'static str, &'static str, &'static str)]);

const LIMIT: &str = "memory.limit_in_bytes";

const CASES: &[Case] = &[
    (r#"{"memory": {"limit": 50331648}}"#, &[("memory", LIMIT, "50331648")]),
    (r#"{"memory": {"limit": 33554432}}"#, &[("memory", LIMIT, "33554432")]),
    (r#"{"memory": {"limit": -1}}"#, &[("memory", LIMIT, UNLIMITED)]),
    (
        r#"{"memory": {"reservation": 8388608}}"#,
        &[("memory", "memory.soft_limit_in_bytes", "8388608")],
    ),
    (r#"{"memory": {"swappiness": 7}}"#, &[("memory", "memory.swappiness", "7")]),
    (
        r#"{"memory": {"kernelTCP": 4194304}}"#,
        &[("memory", "memory.kmem.tcp.limit_in_bytes", "4194304")],
    ),
    (
        r#"{"memory": {"disableOOMKiller": true}}"#,
        &[("memory", "memory.oom_control", "oom_kill_disable 1")],
    ),
    (r#"{"cpu": {"shares": 2048}}"#, &[("cpu", "cpu.shares", "2048")]),
    (r#"{"cpu": {"shares": 2}}"#, &[("cpu", "cpu.shares", "2")]),
    (
        r#"{"cpu": {"quota": 50000, "period": 100000}}"#,
        &[("cpu", "cpu.cfs_quota_us", "50000"), ("cpu", "cpu.cfs_period_us", "100000")],
    ),
    (
        r#"{"cpu": {"quota": 5000, "period": 10000}}"#,
        &[("cpu", "cpu.cfs_quota_us", "5000"), ("cpu", "cpu.cfs_period_us", "10000")],
    ),
    (
        r#"{"cpu": {"quota": 400000, "period": 200000}}"#,
        &[("cpu", "cpu.cfs_quota_us", "400000"), ("cpu", "cpu.cfs_period_us", "200000")],
    ),
    (r#"{"cpu": {"quota": -1}}"#, &[("cpu", "cpu.cfs_quota_us", "-1")]),
    // More than the cgroup above has is refused; that one has none.
    (r#"{"cpu": {"realtimePeriod": 500000}}"#, &[("cpu", "cpu.rt_period_us", "500000")]),
    (
        r#"{"cpu": {"cpus": "0", "mems": "0"}}"#,
        &[("cpuset", "cpuset.cpus", "0"), ("cpuset", "cpuset.mems", "0")],
    ),
    (r#"{"pids": {"limit": 64}}"#, &[("pids", "pids.max", "64")]),
    (r#"{"pids": {"limit": -1}}"#, &[("pids", "pids.max", "max")]),
    (
        r#"{"devices": [{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"}]}"#,
        &[("devices", "devices.list", "c 10:229 rw")],
    ),
];

const UNLIMITED: &str = "9223372036854771712";

#[test]
fn each_field_reaches_its_file_without_the_runtime() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"devices": [{"allow": false, "access": "rwm"}]}));
    let asking = place.asker();
    let mut done = 0;
    for (text, files) in CASES {
        let resources: Value = serde_json::from_str(text).unwrap();
        // Kernels differ in which files they have; then nothing may be claimed.
        let has = |(controller, file, _): &(&str, &str, &str)| {
            !place.file("c1", controller, file).starts_with('/')
        };
        if !files.iter().all(has) {
            assert!(!is_done(&asking, "c1", &resources), "{text}");
            continue;
        }
        assert!(is_done(&asking, "c1", &resources), "{resources} {}", place.rig.read("daemon.err"));
        for (controller, file, wanted) in *files {
            let text = place.file("c1", controller, file);
            let is_so = text == *wanted || text.lines().any(|line| line.contains(wanted));
            assert!(is_so, "{resources}: {file} says {text}");
        }
        done += 1;
    }
    assert!(done >= 12, "only {done} cases have files on this kernel");
    let explained = place.rig.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["CPUShares"], "10-asker", "{explained}");
    let changes = explained["changes"].as_array().unwrap();
    let shares = changes.iter().find(|change| change["field"] == "cgroup:cpu.shares").unwrap();
    assert_eq!((&shares["plugin"], &shares["after"]), (&json!("10-asker"), &json!("2")));
}

#[test]
fn what_the_kernel_refuses_leaves_every_file_as_it_was() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 500}, "pids": {"limit": 40}}));
    let asking = place.asker();
    let before: Vec<String> =
        [("cpu", "cpu.shares"), ("pids", "pids.max"), ("cpuset", "cpuset.cpus")]
            .map(|(controller, file)| place.file("c1", controller, file))
            .to_vec();
    for wrong in [
        // Later in the order than what can be set.
        json!({"cpu": {"shares": 700, "quota": 1, "period": 100_000}, "pids": {"limit": 50}}),
        json!({"cpu": {"shares": 600, "cpus": "4000"}}),
        json!({"cpu": {"shares": 999_999_999}, "pids": {"limit": 50}}),
        json!({"cpu": {"shares": 700}, "unified": {"memory.high": "1"}}),
        json!({"cpu": {"shares": 700}, "hugepageLimits": [{"pageSize": "3MB", "limit": 1}]}),
        json!({"cpu": {"shares": 1}}),
        json!({"pids": {"limit": 50}, "devices": [{"allow": true, "access": "rwm"}]}),
    ] {
        assert!(!is_done(&asking, "c1", &wrong), "{wrong}");
        let after: Vec<String> =
            [("cpu", "cpu.shares"), ("pids", "pids.max"), ("cpuset", "cpuset.cpus")]
                .map(|(controller, file)| place.file("c1", controller, file))
                .to_vec();
        assert_eq!(before, after, "{wrong}");
    }
    let explained = place.rig.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({}), "{explained}");
    assert!(explained["skipped"].as_array().unwrap().len() >= 6, "{explained}");
}

#[test]
fn a_memory_limit_below_what_is_used_is_refused_and_swap_follows_up_and_down() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"memory": {"limit": 67_108_864}}));
    let asking = place.asker();
    let has_swap = !place.file("c1", "memory", "memory.memsw.limit_in_bytes").starts_with('/');
    for limit in [100_663_296_u64, 50_331_648, 134_217_728] {
        assert!(is_done(&asking, "c1", &json!({"memory": {"limit": limit}})));
        assert_eq!(place.file("c1", "memory", "memory.limit_in_bytes"), limit.to_string());
        if has_swap {
            assert_eq!(
                place.file("c1", "memory", "memory.memsw.limit_in_bytes"),
                limit.to_string()
            );
        }
    }
}

#[test]
fn an_engine_that_updates_too_leaves_what_the_plugin_owns_and_the_runtime_learns_it() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}}));
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}, "memory": {"swappiness": 7}})));
    // The engine repeats its own idea of the shares and changes something else.
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 77}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "300");
    assert_eq!(place.file("c1", "pids", "pids.max"), "77");
    let state: Value = serde_json::from_str(&place.rig.read("root/c1/state.json")).unwrap();
    assert_eq!(state["config"]["cgroups"]["cpu_shares"], 300, "runc has the plugin's value");
    // A deliberate change wins, and is not undone by what the plugin set before.
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 900}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "900");
    super::wait_until("what runc does not apply is there again", || {
        place.file("c1", "memory", "memory.swappiness") == "7"
    });
    let explained = place.rig.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"MemSwappiness": "10-asker"}), "{explained}");
}
