// SPDX-License-Identifier: Apache-2.0
//! Tests features that the build machines lack (huge pages of v1, real-time groups, disks on v2,
//! resctrl): the exact writes, on trees of plain files with redirected host paths (D18). Each test
//! prints that no kernel has accepted the writes.

use serde_json::{Value, json};

use super::tests::{CgroupTree, map};
use super::{Around, carry_out, plan, resctrl};

/// The case's name, the resources, and the files with the last written value.
type Case = (&'static str, Value, Vec<(&'static str, &'static str)>);

#[expect(clippy::print_stderr, reason = "a gap is said")]
fn each(tree: &CgroupTree, folder: &str, gap: &str, cases: &[Case]) {
    for (case, wanted, files) in cases {
        let wanted = map(wanted.clone());
        let cgroups = tree.cgroups();
        let around = Around { before: &map(json!({})), tried: None, after: &wanted };
        let writes = plan(cgroups.layout(), &wanted, around, &cgroups).unwrap();
        carry_out(&cgroups, &writes).unwrap();
        for (file, text) in files {
            let path = tree.host().path(format!("/sys/fs/cgroup/{folder}/{file}"));
            let says = std::fs::read_to_string(path).unwrap();
            assert_eq!(says.trim_end(), *text, "{case}: {file}");
        }
        eprintln!("gap: {case}: on plain files only ({gap})");
    }
}

fn pages(limit: u64) -> Value {
    json!({"hugepageLimits": [{"pageSize": "2MB", "limit": limit}]})
}

#[test]
fn v1_huge_pages_change_together_with_their_reservations() {
    let tree = CgroupTree::v1();
    tree.file("/sys/fs/cgroup/hugetlb/k/c/hugetlb.2MB.rsvd.limit_in_bytes", "0\n");
    let (limit, rsvd) = ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes");
    let cases: &[Case] = &[
        ("huge pages set", pages(4_194_304), vec![(limit, "4194304"), (rsvd, "4194304")]),
        ("huge pages raised", pages(8_388_608), vec![(limit, "8388608"), (rsvd, "8388608")]),
        ("huge pages lowered to none", pages(0), vec![(limit, "0"), (rsvd, "0")]),
        (
            "huge pages removed",
            pages(9_223_372_036_854_771_712),
            vec![(limit, "9223372036854771712"), (rsvd, "9223372036854771712")],
        ),
    ];
    each(&tree, "hugetlb/k/c", "no hugetlb controller", cases);
}

#[test]
fn v1_real_time_idle_and_burst_are_written_unchanged() {
    let tree = CgroupTree::v1();
    tree.file("/sys/fs/cgroup/cpu,cpuacct/k/c/cpu.idle", "0\n");
    tree.file("/sys/fs/cgroup/cpu,cpuacct/k/c/cpu.cfs_burst_us", "0\n");
    let rt = |runtime: i64, period: u64| json!({"cpu": {"realtimeRuntime": runtime, "realtimePeriod": period}});
    let (runtime, period) = ("cpu.rt_runtime_us", "cpu.rt_period_us");
    let cases: &[Case] = &[
        ("real-time set", rt(5000, 1_000_000), vec![(runtime, "5000"), (period, "1000000")]),
        ("real-time raised", rt(9000, 2_000_000), vec![(runtime, "9000"), (period, "2000000")]),
        ("real-time lowered", rt(100, 10_000), vec![(runtime, "100"), (period, "10000")]),
        ("real-time removed", rt(-1, 10_000), vec![(runtime, "-1")]),
        ("idle", json!({"cpu": {"idle": 1}}), vec![("cpu.idle", "1")]),
        ("no longer idle", json!({"cpu": {"idle": 0}}), vec![("cpu.idle", "0")]),
        ("burst", json!({"cpu": {"burst": 700}}), vec![("cpu.cfs_burst_us", "700")]),
        ("no burst", json!({"cpu": {"burst": 0}}), vec![("cpu.cfs_burst_us", "0")]),
    ];
    each(
        &tree,
        "cpu,cpuacct/k/c",
        "the cgroup above has no real-time share; NRI has no burst",
        cases,
    );
}

fn rate(rate: u64) -> Value {
    json!({"blockIO": {"throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": rate}]}})
}

#[test]
fn v2_block_io_is_set_raised_lowered_and_lifted() {
    let tree = CgroupTree::v2();
    tree.file("/sys/fs/cgroup/k/c/io.max", "\n");
    tree.file("/sys/fs/cgroup/k/c/io.weight", "default 100\n");
    let weight = |weight: u64| json!({"blockIO": {"weight": weight}});
    let none = json!({"blockIO": {"throttleReadBpsDevice": []}});
    let cases: &[Case] = &[
        ("a disk's rate set", rate(1000), vec![("io.max", "8:0 rbps=1000")]),
        ("a disk's rate raised", rate(2000), vec![("io.max", "8:0 rbps=2000")]),
        ("a disk's rate lowered", rate(500), vec![("io.max", "8:0 rbps=500")]),
        ("a disk's rate removed", none, vec![("io.max", "8:0 rbps=max")]),
        ("weight at its most", weight(1000), vec![("io.weight", "10000")]),
        ("weight at its least", weight(10), vec![("io.weight", "1")]),
    ];
    each(&tree, "k/c", "the guest has a disk for io.max in scopes, and no weights", cases);
}

#[expect(clippy::print_stderr, reason = "a gap is said")]
#[test]
fn threads_enter_and_leave_a_resctrl_group_one_by_one() {
    let tree = CgroupTree::v1();
    tree.file("/sys/fs/cgroup/memory/k/c/cgroup.procs", "42\n");
    tree.file("/proc/42/task/42/x", "");
    for tasks in ["/sys/fs/resctrl/tasks", "/sys/fs/resctrl/gold/tasks"] {
        tree.file(tasks, "");
    }
    let (host, cgroups) = (tree.host(), tree.cgroups());
    let place = std::path::Path::new("/sys/fs/resctrl");
    for group in ["gold", ""] {
        resctrl::enter(&host, &cgroups, place, &resctrl::Group::named(group)).unwrap();
        let tasks = host.path(place.join(group).join("tasks"));
        assert_eq!(std::fs::read_to_string(tasks).unwrap(), "42\n", "{group}");
    }
    eprintln!("gap: an RDT class: on plain files only (no resctrl)");
}
