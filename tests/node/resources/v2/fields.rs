// SPDX-License-Identifier: Apache-2.0
//! Each resource of a running container, set by a plugin's unprompted update: raised, lowered, removed and refused,
//! with the content of every file afterwards.

use serde_json::{Value, json};

use super::super::is_done;
use super::{place, show};

/// The change, the resources, and the files to check: file, text.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// NRI sets the swap of a limit without swap to the same amount, hence no swap; weights are those of runc 1.1.5 and
/// crun 1.8.1, which set the container's first values.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("memory limit raised", r#"{"memory": {"limit": 100663296}}"#, &[("memory.max", "100663296"), ("memory.swap.max", "0")]),
    ("memory limit lowered", r#"{"memory": {"limit": 33554432}}"#, &[("memory.max", "33554432")]),
    ("memory limit between pages", r#"{"memory": {"limit": 33554433}}"#, &[("memory.max", "33554432")]),
    ("memory with swap set", r#"{"memory": {"limit": 33554432, "swap": 67108864}}"#, &[("memory.max", "33554432"), ("memory.swap.max", "33554432")]),
    ("memory with swap raised", r#"{"memory": {"limit": 33554432, "swap": 100663296}}"#, &[("memory.swap.max", "67108864")]),
    ("swap lowered to nothing", r#"{"memory": {"limit": 33554432, "swap": 33554432}}"#, &[("memory.max", "33554432"), ("memory.swap.max", "0")]),
    ("swap removed", r#"{"memory": {"limit": 33554432, "swap": -1}}"#, &[("memory.swap.max", "max")]),
    ("memory limit removed", r#"{"memory": {"limit": -1}}"#, &[("memory.max", "max"), ("memory.swap.max", "max")]),
    ("reservation raised", r#"{"memory": {"reservation": 8388608}}"#, &[("memory.low", "8388608")]),
    ("reservation lowered", r#"{"memory": {"reservation": 4194304}}"#, &[("memory.low", "4194304")]),
    ("reservation without end", r#"{"memory": {"reservation": -1}}"#, &[("memory.low", "max")]),
    ("shares raised", r#"{"cpu": {"shares": 2048}}"#, &[("cpu.weight", "79")]),
    ("shares lowered", r#"{"cpu": {"shares": 512}}"#, &[("cpu.weight", "20")]),
    ("shares at their least", r#"{"cpu": {"shares": 2}}"#, &[("cpu.weight", "1")]),
    ("shares at their most", r#"{"cpu": {"shares": 262144}}"#, &[("cpu.weight", "10000")]),
    ("quota and period set", r#"{"cpu": {"quota": 50000, "period": 100000}}"#, &[("cpu.max", "50000 100000")]),
    ("quota and period lowered", r#"{"cpu": {"quota": 5000, "period": 10000}}"#, &[("cpu.max", "5000 10000")]),
    ("quota and period raised", r#"{"cpu": {"quota": 400000, "period": 200000}}"#, &[("cpu.max", "400000 200000")]),
    ("quota alone", r#"{"cpu": {"quota": 100000}}"#, &[("cpu.max", "100000 200000")]),
    ("period alone", r#"{"cpu": {"period": 50000}}"#, &[("cpu.max", "100000 50000")]),
    ("quota removed", r#"{"cpu": {"quota": -1}}"#, &[("cpu.max", "max 50000")]),
    ("cpus and mems lowered", r#"{"cpu": {"cpus": "0", "mems": "0"}}"#, &[("cpuset.cpus", "0"), ("cpuset.mems", "0"), ("cpuset.cpus.effective", "0")]),
    ("cpus raised", r#"{"cpu": {"cpus": "0-1"}}"#, &[("cpuset.cpus", "0-1"), ("cpuset.cpus.effective", "0-1")]),
    ("pids lowered", r#"{"pids": {"limit": 64}}"#, &[("pids.max", "64")]),
    ("pids raised", r#"{"pids": {"limit": 128}}"#, &[("pids.max", "128")]),
    ("pids removed", r#"{"pids": {"limit": -1}}"#, &[("pids.max", "max")]),
    ("hugepages set", r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}"#, &[("hugetlb.2MB.max", "4194304"), ("hugetlb.2MB.rsvd.max", "4194304")]),
    ("hugepages raised", r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 8388608}]}"#, &[("hugetlb.2MB.max", "8388608"), ("hugetlb.2MB.rsvd.max", "8388608")]),
    ("hugepages lowered to none", r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}"#, &[("hugetlb.2MB.max", "0"), ("hugetlb.2MB.rsvd.max", "0")]),
    ("hugepages removed", r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 9223372036854771712}]}"#, &[("hugetlb.2MB.max", "max"), ("hugetlb.2MB.rsvd.max", "max")]),
    ("unified memory.high set", r#"{"unified": {"memory.high": "50331648"}}"#, &[("memory.high", "50331648")]),
    ("unified memory.high raised", r#"{"unified": {"memory.high": "67108864"}}"#, &[("memory.high", "67108864")]),
    ("unified memory.high removed", r#"{"unified": {"memory.high": "max"}}"#, &[("memory.high", "max")]),
    ("unified memory.min and oom.group", r#"{"unified": {"memory.min": "1048576", "memory.oom.group": "1"}}"#, &[("memory.min", "1048576"), ("memory.oom.group", "1")]),
    ("burst, in unified", r#"{"cpu": {"quota": 50000, "period": 100000}, "unified": {"cpu.max.burst": "10000"}}"#, &[("cpu.max", "50000 100000"), ("cpu.max.burst", "10000")]),
    ("burst removed", r#"{"unified": {"cpu.max.burst": "0"}}"#, &[("cpu.max.burst", "0")]),
    ("I/O weight, in unified", r#"{"unified": {"io.weight": "default 200"}}"#, &[("io.weight", "default 200")]),
    ("unified has the last word", r#"{"pids": {"limit": 30}, "unified": {"pids.max": "31"}}"#, &[("pids.max", "31")]),
    ("what v2 always does", r#"{"memory": {"useHierarchy": true, "disableOOMKiller": false}}"#, &[]),
];

/// The change, the resources, and a word of the reason. Each also has a valid pids limit, which is written first and
/// must be reverted.
const REFUSED: &[(&str, &str, &str)] = &[
    ("shares of 1", r#"{"cpu": {"shares": 1}}"#, "CPUShares"),
    ("quota too small", r#"{"cpu": {"quota": 1, "period": 100000}}"#, "CPUQuota"),
    (
        "quota beyond the kernel's",
        r#"{"cpu": {"quota": 9000000000000000000, "period": 100000}}"#,
        "cpu.max",
    ),
    ("period too long", r#"{"cpu": {"quota": 50000, "period": 2000000}}"#, "CPUPeriod"),
    (
        "burst beyond the quota",
        r#"{"cpu": {"quota": 50000, "period": 100000}, "unified": {"cpu.max.burst": "60000"}}"#,
        "cpu.max.burst",
    ),
    ("pids beyond the kernel's", r#"{"unified": {"pids.max": "4194305"}}"#, "pids.max"),
    ("I/O weight of 0", r#"{"unified": {"io.weight": "0"}}"#, "io.weight"),
    ("cpus that are not there", r#"{"cpu": {"shares": 600, "cpus": "4000"}}"#, "cpuset.cpus"),
    ("mems that are not there", r#"{"cpu": {"shares": 600, "mems": "7"}}"#, "cpuset.mems"),
    ("real-time runtime", r#"{"cpu": {"realtimeRuntime": 5000}}"#, "no such setting"),
    ("real-time period", r#"{"cpu": {"realtimePeriod": 500000}}"#, "no such setting"),
    ("swap below memory", r#"{"memory": {"limit": 67108864, "swap": 33554432}}"#, "swap"),
    ("kernel memory", r#"{"memory": {"kernel": 4194304}}"#, "no such setting"),
    ("TCP memory", r#"{"memory": {"kernelTCP": 4194304}}"#, "no such setting"),
    ("swappiness", r#"{"memory": {"swappiness": 7}}"#, "no such setting"),
    ("no OOM killer", r#"{"memory": {"disableOOMKiller": true}}"#, "no such setting"),
    ("no hierarchy", r#"{"memory": {"useHierarchy": false}}"#, "no such setting"),
    ("pages of 3 MB", r#"{"hugepageLimits": [{"pageSize": "3MB", "limit": 1}]}"#, "hugetlb.3MB"),
    ("a file that is not there", r#"{"unified": {"memory.nothing": "1"}}"#, "memory.nothing"),
    ("a value that is no number", r#"{"unified": {"memory.high": "much"}}"#, "memory.high"),
    ("the list of processes", r#"{"unified": {"cgroup.procs": "1"}}"#, "cgroup.procs"),
    ("a path", r#"{"unified": {"../pids.max": "1"}}"#, "CgroupsUnified"),
];

fn each_field(runtime: &str) {
    let Some(place) = place(runtime) else { return };
    place.run(
        "c1",
        &json!({"memory": {"limit": 67_108_864}, "cpu": {"shares": 1024}, "pids": {"limit": 100}}),
    );
    place.all_say("c1", &[("memory.max", "67108864"), ("cpu.weight", "39"), ("pids.max", "100")]);
    let asking = place.asker();
    let mut failed = Vec::new();
    for (case, text, files) in CASES {
        let resources: Value = serde_json::from_str(text).unwrap();
        let done = is_done(&asking, "c1", &resources);
        let mut wrong = place.wrong("c1", files);
        if !done {
            wrong.push(format!("refused: {}", last_reason(&place)));
        }
        let outcome = if wrong.is_empty() { "ok".to_owned() } else { wrong.join("; ") };
        show(runtime, case, &outcome);
        if outcome != "ok" {
            failed.push(format!("{case}: {outcome}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"]["CPUShares"], "10-asker", "{explained}");
    let changes = explained["changes"].as_array().unwrap();
    let weight = changes.iter().find(|change| change["field"] == "cgroup:cpu.weight").unwrap();
    assert_eq!((&weight["before"], &weight["after"]), (&json!("39"), &json!("10000")));
}

fn last_reason(place: &super::Place) -> String {
    let explained = place.host.admin(&["explain", "c1"]);
    let skipped = explained["skipped"].as_array().and_then(|all| all.last().cloned());
    skipped.map_or_else(String::new, |skipped| skipped["reason"].to_string())
}

fn refusals(runtime: &str) {
    let Some(place) = place(runtime) else { return };
    place.run("c1", &json!({"cpu": {"shares": 500}, "pids": {"limit": 40}}));
    let asking = place.asker();
    let before = place.limits("c1");
    let mut failed = Vec::new();
    for (case, text, why) in REFUSED {
        let mut wrong: Value = serde_json::from_str(text).unwrap();
        wrong["pids"] = json!({"limit": 50});
        let done = is_done(&asking, "c1", &wrong);
        let (after, reason) = (place.limits("c1"), last_reason(&place));
        let is_right = !done && before == after && reason.contains(why);
        show(runtime, &format!("{case} is refused"), if is_right { "ok" } else { &reason });
        if !is_right {
            failed.push(format!("{case}: done {done}, {reason}, {after:?}"));
        }
    }
    assert!(failed.is_empty(), "before: {before:?}\n{failed:#?}");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({}), "{explained}");
}

#[test]
fn each_field_reaches_its_v2_file_with_runc() {
    each_field("runc");
}

#[test]
fn each_field_reaches_its_v2_file_with_crun() {
    each_field("crun");
}

#[test]
fn a_refused_update_leaves_v2_files_unchanged_with_runc() {
    refusals("runc");
}

#[test]
fn a_refused_update_leaves_v2_files_unchanged_with_crun() {
    refusals("crun");
}
