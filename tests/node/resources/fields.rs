// SPDX-License-Identifier: Apache-2.0
//! Each resource of a running container, on cgroup v1: raised, lowered, refused; and the values
//! after an update of the engine.

use serde_json::{Value, json};

use super::{Place, is_done, place, succeeds};

/// The change, the resources, and the files to check: controller, file, text (after an exclamation
/// mark: a text that must not be there).
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str, &'static str)]);

const LIMIT: &str = "memory.limit_in_bytes";
const MEMSW: &str = "memory.memsw.limit_in_bytes";
const SOFT: &str = "memory.soft_limit_in_bytes";
const TCP: &str = "memory.kmem.tcp.limit_in_bytes";
const UNLIMITED: &str = "9223372036854771712";

/// In this order: each case begins with the values of the previous one.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("memory limit set", r#"{"memory": {"limit": 50331648}}"#, &[("memory", LIMIT, "50331648")]),
    ("memory limit lowered", r#"{"memory": {"limit": 33554432}}"#, &[("memory", LIMIT, "33554432")]),
    ("memory limit raised", r#"{"memory": {"limit": 67108864}}"#, &[("memory", LIMIT, "67108864")]),
    ("memory limit between pages", r#"{"memory": {"limit": 67108865}}"#, &[("memory", LIMIT, "67108864")]),
    ("memory with swap raised", r#"{"memory": {"limit": 67108864, "swap": 134217728}}"#, &[("memory", LIMIT, "67108864"), ("memory", MEMSW, "134217728")]),
    ("both raised beyond it", r#"{"memory": {"limit": 201326592, "swap": 268435456}}"#, &[("memory", LIMIT, "201326592"), ("memory", MEMSW, "268435456")]),
    ("both lowered below it", r#"{"memory": {"limit": 33554432, "swap": 67108864}}"#, &[("memory", LIMIT, "33554432"), ("memory", MEMSW, "67108864")]),
    ("swap removed", r#"{"memory": {"limit": 33554432, "swap": -1}}"#, &[("memory", LIMIT, "33554432"), ("memory", MEMSW, UNLIMITED)]),
    ("memory limit removed", r#"{"memory": {"limit": -1}}"#, &[("memory", LIMIT, UNLIMITED), ("memory", MEMSW, UNLIMITED)]),
    ("reservation set", r#"{"memory": {"reservation": 8388608}}"#, &[("memory", SOFT, "8388608")]),
    ("reservation raised", r#"{"memory": {"reservation": 16777216}}"#, &[("memory", SOFT, "16777216")]),
    ("reservation lowered", r#"{"memory": {"reservation": 4194304}}"#, &[("memory", SOFT, "4194304")]),
    ("reservation removed", r#"{"memory": {"reservation": -1}}"#, &[("memory", SOFT, UNLIMITED)]),
    ("swappiness lowered", r#"{"memory": {"swappiness": 7}}"#, &[("memory", "memory.swappiness", "7")]),
    ("swappiness raised", r#"{"memory": {"swappiness": 80}}"#, &[("memory", "memory.swappiness", "80")]),
    ("swappiness at its least", r#"{"memory": {"swappiness": 0}}"#, &[("memory", "memory.swappiness", "0")]),
    ("TCP memory set", r#"{"memory": {"kernelTCP": 4194304}}"#, &[("memory", TCP, "4194304")]),
    ("TCP memory raised", r#"{"memory": {"kernelTCP": 8388608}}"#, &[("memory", TCP, "8388608")]),
    ("TCP memory lowered", r#"{"memory": {"kernelTCP": 1048576}}"#, &[("memory", TCP, "1048576")]),
    ("TCP memory removed", r#"{"memory": {"kernelTCP": -1}}"#, &[("memory", TCP, UNLIMITED)]),
    ("no OOM killer", r#"{"memory": {"disableOOMKiller": true}}"#, &[("memory", "memory.oom_control", "oom_kill_disable 1")]),
    ("the OOM killer again", r#"{"memory": {"disableOOMKiller": false}}"#, &[("memory", "memory.oom_control", "oom_kill_disable 0")]),
    ("hierarchy, which is used", r#"{"memory": {"useHierarchy": true}}"#, &[]),
    ("shares raised", r#"{"cpu": {"shares": 2048}}"#, &[("cpu", "cpu.shares", "2048")]),
    ("shares lowered", r#"{"cpu": {"shares": 512}}"#, &[("cpu", "cpu.shares", "512")]),
    ("shares at their most", r#"{"cpu": {"shares": 262144}}"#, &[("cpu", "cpu.shares", "262144")]),
    ("shares at their least", r#"{"cpu": {"shares": 2}}"#, &[("cpu", "cpu.shares", "2")]),
    ("quota and period set", r#"{"cpu": {"quota": 50000, "period": 100000}}"#, &[("cpu", "cpu.cfs_quota_us", "50000"), ("cpu", "cpu.cfs_period_us", "100000")]),
    ("quota and period lowered", r#"{"cpu": {"quota": 5000, "period": 10000}}"#, &[("cpu", "cpu.cfs_quota_us", "5000"), ("cpu", "cpu.cfs_period_us", "10000")]),
    ("quota and period raised", r#"{"cpu": {"quota": 400000, "period": 200000}}"#, &[("cpu", "cpu.cfs_quota_us", "400000"), ("cpu", "cpu.cfs_period_us", "200000")]),
    ("quota alone", r#"{"cpu": {"quota": 100000}}"#, &[("cpu", "cpu.cfs_quota_us", "100000"), ("cpu", "cpu.cfs_period_us", "200000")]),
    ("period alone", r#"{"cpu": {"period": 50000}}"#, &[("cpu", "cpu.cfs_quota_us", "100000"), ("cpu", "cpu.cfs_period_us", "50000")]),
    ("quota removed", r#"{"cpu": {"quota": -1}}"#, &[("cpu", "cpu.cfs_quota_us", "-1"), ("cpu", "cpu.cfs_period_us", "50000")]),
    // A runtime beyond the parent cgroup's is refused, and the parent has none.
    ("real-time period lowered", r#"{"cpu": {"realtimePeriod": 500000}}"#, &[("cpu", "cpu.rt_period_us", "500000")]),
    ("real-time period raised", r#"{"cpu": {"realtimePeriod": 2000000}}"#, &[("cpu", "cpu.rt_period_us", "2000000")]),
    ("cpus and mems lowered", r#"{"cpu": {"cpus": "0", "mems": "0"}}"#, &[("cpuset", "cpuset.cpus", "0"), ("cpuset", "cpuset.mems", "0")]),
    ("cpus raised", r#"{"cpu": {"cpus": "0-1"}}"#, &[("cpuset", "cpuset.cpus", "0-1")]),
    ("pids set", r#"{"pids": {"limit": 64}}"#, &[("pids", "pids.max", "64")]),
    ("pids raised", r#"{"pids": {"limit": 128}}"#, &[("pids", "pids.max", "128")]),
    ("pids lowered", r#"{"pids": {"limit": 32}}"#, &[("pids", "pids.max", "32")]),
    ("pids removed", r#"{"pids": {"limit": -1}}"#, &[("pids", "pids.max", "max")]),
    ("a device allowed", r#"{"devices": [{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"}]}"#, &[("devices", "devices.list", "c 10:229 rw")]),
    ("a device denied in part", r#"{"devices": [{"allow": false, "type": "c", "major": 10, "minor": 229, "access": "w"}]}"#, &[("devices", "devices.list", "c 10:229 r")]),
    ("the rest of it denied", r#"{"devices": [{"allow": false, "type": "c", "major": 10, "minor": 229, "access": "rwm"}]}"#, &[("devices", "devices.list", "!c 10:229")]),
];

/// The request, the resources, and a word of the reason. Each also has processors, which are
/// written first and must be reverted.
#[rustfmt::skip]
const REFUSED: &[(&str, &str, &str)] = &[
    ("a limit below what is used", r#"{"memory": {"limit": 4096}}"#, "memory.limit"),
    ("swap below memory", r#"{"memory": {"limit": 67108864, "swap": 33554432}}"#, "swap"),
    ("kernel memory", r#"{"memory": {"kernel": 4194304}}"#, "memory.kernel"),
    ("swappiness beyond 100", r#"{"memory": {"swappiness": 201}}"#, "wappiness"),
    ("no hierarchy", r#"{"memory": {"useHierarchy": false}}"#, "memory.useHierarchy"),
    ("shares of 1", r#"{"cpu": {"shares": 1}}"#, "CPUShares"),
    ("shares beyond the kernel's", r#"{"cpu": {"shares": 999999999}}"#, "CPUShares"),
    ("quota too small", r#"{"cpu": {"shares": 700, "quota": 1, "period": 100000}}"#, "CPUQuota"),
    ("quota beyond the kernel's", r#"{"cpu": {"quota": 9000000000000000000, "period": 100000}}"#, "cpu.quota"),
    ("period too long", r#"{"cpu": {"quota": 50000, "period": 2000000}}"#, "CPUPeriod"),
    ("real-time runtime that the cgroup above has not", r#"{"cpu": {"realtimeRuntime": 5000}}"#, "cpu.realtimeRuntime"),
    ("mems that are not there", r#"{"cpu": {"shares": 600, "mems": "7"}}"#, "cpu.mems"),
    ("pids beyond the kernel's", r#"{"pids": {"limit": 9000000000}}"#, "pids.limit"),
    ("unified settings", r#"{"cpu": {"shares": 700}, "unified": {"memory.high": "1"}}"#, "unified"),
    ("pages of 3 MB", r#"{"cpu": {"shares": 700}, "hugepageLimits": [{"pageSize": "3MB", "limit": 1}]}"#, "hugetlb.3MB"),
    ("one device of a wider rule", r#"{"devices": [{"allow": false, "type": "c", "major": 136, "minor": 0, "access": "rw"}]}"#, "devices"),
    ("all devices", r#"{"pids": {"limit": 50}, "devices": [{"allow": true, "access": "rwm"}]}"#, "devices"),
];

/// The files with a container's limits.
const LIMITS: [(&str, &str); 10] = [
    ("memory", LIMIT),
    ("memory", SOFT),
    ("memory", "memory.swappiness"),
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_period_us"),
    ("cpuset", "cpuset.cpus"),
    ("cpuset", "cpuset.mems"),
    ("pids", "pids.max"),
    ("devices", "devices.list"),
];

fn limits(place: &Place) -> Vec<String> {
    let says = |(controller, file)| format!("{file}={}", place.file("c1", controller, file));
    LIMITS.map(says).to_vec()
}

/// Prints one line for each case.
#[expect(clippy::print_stderr, reason = "the table of cases")]
fn show(case: &str, outcome: &str) {
    eprintln!("case v1: {case}: {outcome}");
}

#[test]
fn each_field_reaches_its_file_without_the_runtime() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"devices": [{"allow": false, "access": "rwm"}]}));
    let asking = place.asker();
    let mut failed = Vec::new();
    let mut done = 0;
    for (case, text, files) in CASES {
        let resources: Value = serde_json::from_str(text).unwrap();
        let is_done = is_done(&asking, "c1", &resources);
        // Kernels differ in their files, and machines in their processors.
        let has = |(controller, file, wanted): &(&str, &str, &str)| {
            let is_there = !place.file("c1", controller, file).starts_with('/');
            is_there && (*wanted != "0-1" || place.file("", "cpuset", "cpuset.cpus") != "0")
        };
        if !files.iter().all(has) {
            show(case, "gap: this machine has no such file or processor");
            failed.extend(is_done.then(|| format!("{case}: claimed to be done")));
            continue;
        }
        let wrong = files.iter().filter_map(|(controller, file, wanted)| {
            let text = place.file("c1", controller, file);
            let is_so = match wanted.strip_prefix('!') {
                Some(gone) => !text.contains(gone),
                None => text == *wanted || text.lines().any(|line| line == *wanted),
            };
            (!is_so).then(|| format!("{file} says {text}, not {wanted}"))
        });
        let mut wrong: Vec<String> = wrong.collect();
        if !is_done {
            wrong.push(format!("refused: {}", last_reason(&place)));
        }
        show(case, if wrong.is_empty() { "ok" } else { "failed" });
        if !wrong.is_empty() {
            failed.push(format!("{case}: {}", wrong.join("; ")));
        }
        done += 1;
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(done >= 30, "only {done} cases have files on this kernel");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["CPUShares"], "10-asker", "{explained}");
    let changes = explained["changes"].as_array().unwrap();
    let shares = changes.iter().find(|change| change["field"] == "cgroup:cpu.shares").unwrap();
    assert_eq!((&shares["plugin"], &shares["after"]), (&json!("10-asker"), &json!("2")));
}

fn last_reason(place: &Place) -> String {
    let explained = place.host.admin(&["explain", "c1"]);
    let skipped = explained["skipped"].as_array().and_then(|all| all.last().cloned());
    skipped.map_or_else(String::new, |skipped| skipped["reason"].to_string())
}

#[test]
fn a_refusal_by_the_kernel_leaves_every_file_unchanged() {
    let Some(place) = place("") else { return };
    place.run(
        "c1",
        &json!({"cpu": {"shares": 500}, "pids": {"limit": 40},
        "devices": [{"allow": false, "access": "rwm"}]}),
    );
    let asking = place.asker();
    let before = limits(&place);
    let mut failed = Vec::new();
    for (case, text, why) in REFUSED {
        let mut wrong: Value = serde_json::from_str(text).unwrap();
        wrong["cpu"]["cpus"] = json!("0");
        let done = is_done(&asking, "c1", &wrong);
        let (after, reason) = (limits(&place), last_reason(&place));
        let is_right = !done && before == after && reason.contains(why);
        show(&format!("{case} is refused"), if is_right { "ok" } else { &reason });
        if !is_right {
            failed.push(format!("{case}: done {done}, {reason}, {after:?}"));
        }
        // A successful update, because consecutive failures are delayed.
        assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 500}})), "{case}");
    }
    assert!(failed.is_empty(), "before: {before:?}\n{failed:#?}");
    assert!(!is_done(&asking, "c1", &json!({"cpu": {"shares": 600, "cpus": "4000"}})));
    assert_eq!(limits(&place), before);
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"CPUShares": "10-asker"}), "{explained}");
}

#[test]
fn a_swap_limit_follows_the_memory_limit_up_and_down() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"memory": {"limit": 67_108_864}}));
    let asking = place.asker();
    let has_swap = !place.file("c1", "memory", MEMSW).starts_with('/');
    for limit in [100_663_296_u64, 50_331_648, 134_217_728] {
        assert!(is_done(&asking, "c1", &json!({"memory": {"limit": limit}})));
        assert_eq!(place.file("c1", "memory", LIMIT), limit.to_string());
        if has_swap {
            assert_eq!(place.file("c1", "memory", MEMSW), limit.to_string());
        }
    }
}

#[test]
fn an_engines_update_keeps_owned_values_and_reaches_the_runtime() {
    let Some(place) = place("") else { return };
    place.run("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 100}}));
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &json!({"cpu": {"shares": 300}, "memory": {"swappiness": 7}})));
    // The engine repeats its own shares and changes another value.
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 1024}, "pids": {"limit": 77}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "300");
    assert_eq!(place.file("c1", "pids", "pids.max"), "77");
    let state: Value = serde_json::from_str(&place.host.read("root/c1/state.json")).unwrap();
    assert_eq!(state["config"]["cgroups"]["cpu_shares"], 300, "runc has the plugin's value");
    // A deliberate change takes precedence, and the plugin's earlier value does not undo it.
    succeeds(&place.update("c1", &json!({"cpu": {"shares": 900}})));
    assert_eq!(place.file("c1", "cpu", "cpu.shares"), "900");
    super::wait_until("what runc does not apply is there again", || {
        place.file("c1", "memory", "memory.swappiness") == "7"
    });
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"MemSwappiness": "10-asker"}), "{explained}");
}
