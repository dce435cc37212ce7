// SPDX-License-Identifier: Apache-2.0
//! Tests both layouts on trees of plain files: the writes and their order, the refusals, and that a
//! failure leaves no change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{Around, CgroupFiles, Cgroups, Layout, Mounts, Unfit, carry_out, may_read_as, plan};
use crate::host::Host;

const V1: &str = "\
30 20 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
32 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
33 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
34 30 0:29 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb\n\
35 30 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
36 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
const V2: &str = "31 30 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

/// A host of plain files with one process, PID 42.
pub(super) struct CgroupTree {
    temp: tempfile::TempDir,
}

impl CgroupTree {
    fn new(mountinfo: &str, cgroup: &str) -> Self {
        let tree = Self { temp: tempfile::tempdir().unwrap() };
        tree.file("/proc/self/mountinfo", mountinfo);
        tree.file("/proc/42/cgroup", cgroup);
        tree
    }

    pub(super) fn v1() -> Self {
        let paths = "4:cpu,cpuacct:/k/c\n3:memory:/k/c\n2:cpuset:/k/c\n5:hugetlb:/k/c\n6:freezer:/k/c\n0::/\n";
        let tree = Self::new(V1, paths);
        for (file, text) in [
            ("cpu,cpuacct/k/c/cpu.shares", "1024"),
            ("cpu,cpuacct/k/c/cpu.cfs_period_us", "100000"),
            ("cpu,cpuacct/k/c/cpu.cfs_quota_us", "50000"),
            ("cpu,cpuacct/k/c/cpu.rt_period_us", "1000000"),
            ("cpu,cpuacct/k/c/cpu.rt_runtime_us", "0"),
            ("memory/k/c/memory.limit_in_bytes", "1000"),
            ("memory/k/c/memory.memsw.limit_in_bytes", "1000"),
            ("memory/k/c/memory.use_hierarchy", "1"),
            ("memory/k/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0"),
            ("cpuset/k/c/cpuset.cpus", "0-3"),
            ("hugetlb/k/c/hugetlb.2MB.limit_in_bytes", "0"),
            ("freezer/k/c/freezer.state", "THAWED"),
        ] {
            tree.file(&format!("/sys/fs/cgroup/{file}"), &format!("{text}\n"));
        }
        tree
    }

    pub(super) fn v2() -> Self {
        let tree = Self::new(V2, "0::/k/c\n");
        for (file, text) in [
            ("cpu.weight", "39"),
            ("cpu.max", "max 100000"),
            ("cpu.max.burst", "0"),
            ("cpu.idle", "0"),
            ("memory.max", "max"),
            ("memory.low", "0"),
            ("memory.high", "max"),
            ("memory.swap.max", "max"),
            ("pids.max", "max"),
            ("cpuset.cpus", ""),
            ("cpuset.mems", ""),
            ("hugetlb.2MB.max", "max"),
            ("hugetlb.2MB.rsvd.max", "max"),
            ("cgroup.freeze", "0"),
        ] {
            tree.file(&format!("/sys/fs/cgroup/k/c/{file}"), &format!("{text}\n"));
        }
        tree
    }

    pub(super) fn host(&self) -> Host {
        Host::new(&self.temp.path().display().to_string(), "")
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.host().path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        crate::files::replace(&path, text.as_bytes()).unwrap();
    }

    pub(super) fn cgroups(&self) -> Cgroups {
        self.find(&BTreeMap::new()).unwrap()
    }

    fn find(&self, told: &BTreeMap<String, PathBuf>) -> crate::error::Result<Cgroups> {
        Cgroups::find(&self.host(), &Mounts::read(&self.host())?, 42, told)
    }
}

pub(super) fn map(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

/// Plans `wanted`, and returns the writes as `file=value`.
fn planned(tree: &CgroupTree, wanted: Value, before: Value) -> Result<Vec<String>, Unfit> {
    let (wanted, before) = (map(wanted), map(before));
    let mut after = before.clone();
    for (section, members) in &wanted {
        let place = after.entry(section).or_insert_with(|| json!({}));
        if let (Value::Object(place), Value::Object(members)) = (place, members) {
            place.extend(members.clone());
        }
    }
    let cgroups = tree.cgroups();
    let around = Around { before: &before, tried: None, after: &after };
    let writes = plan(cgroups.layout(), &wanted, around, &cgroups)?;
    Ok(writes.into_iter().map(|write| format!("{}={}", write.file, write.value)).collect())
}

#[track_caller]
fn fits(tree: &CgroupTree, wanted: Value, before: Value, files: &[&str]) {
    let shown = wanted.to_string();
    assert_eq!(planned(tree, wanted, before).unwrap(), files, "{shown}");
}

#[track_caller]
fn refused(tree: &CgroupTree, wanted: Value, field: &str) {
    let shown = wanted.to_string();
    match planned(tree, wanted, json!({})) {
        Err(Unfit::Refused { field: named, .. }) => assert_eq!(named, field, "{shown}"),
        other => panic!("{shown}: {other:?}"),
    }
}

#[test]
fn v2_swap_excludes_memory_and_is_written_before_the_limit() {
    let tree = CgroupTree::v2();
    let memory = |memory: Value| json!({ "memory": memory });
    for (wanted, before, files) in [
        (
            json!({"limit": 100, "swap": 100}),
            json!({}),
            &["memory.swap.max=0", "memory.max=100"][..],
        ),
        (json!({"limit": 100, "swap": 130}), json!({}), &["memory.swap.max=30", "memory.max=100"]),
        (json!({"limit": 100, "swap": -1}), json!({}), &["memory.swap.max=max", "memory.max=100"]),
        (json!({"limit": 100}), json!({}), &["memory.max=100"]),
        (json!({"limit": -1}), json!({}), &["memory.swap.max=max", "memory.max=max"]),
        (json!({"limit": -1, "swap": 50}), json!({}), &["memory.swap.max=50", "memory.max=max"]),
        (json!({"swap": 130}), json!({"limit": 100}), &["memory.swap.max=30"]),
        (json!({"reservation": 70}), json!({}), &["memory.low=70"]),
        (json!({"disableOOMKiller": false, "useHierarchy": true}), json!({}), &[]),
    ] {
        fits(&tree, memory(wanted), memory(before), files);
    }
    for (wanted, field) in [
        (json!({"swap": 130}), "memory.swap"),
        (json!({"limit": 100, "swap": 50}), "memory.swap"),
        (json!({"swappiness": 5}), "memory.swappiness"),
        (json!({"disableOOMKiller": true}), "memory.disableOOMKiller"),
        (json!({"kernel": 5}), "memory.kernel"),
        (json!({"kernelTCP": 5}), "memory.kernelTCP"),
        (json!({"useHierarchy": false}), "memory.useHierarchy"),
    ] {
        refused(&tree, memory(wanted), field);
    }
}

#[test]
fn v2_cpu_time_is_a_weight_and_a_quota_period_pair() {
    let tree = CgroupTree::v2();
    let cpu = |cpu: Value| json!({ "cpu": cpu });
    for (wanted, before, files) in [
        // The weight of 39 for 1024 shares shows which formula the runtime uses.
        (json!({"shares": 512}), json!({"shares": 1024}), &["cpu.weight=20"][..]),
        (json!({"shares": 512}), json!({"shares": 4096}), &["cpu.weight=59"]),
        (json!({"shares": 512}), json!({"idle": 1}), &[]),
        (json!({"idle": 1}), json!({}), &["cpu.idle=1"]),
        (json!({"quota": 5000}), json!({}), &["cpu.max=5000 100000"]),
        (json!({"quota": 5000}), json!({"period": 20000}), &["cpu.max=5000 20000"]),
        (json!({"period": 20000}), json!({"quota": 5000}), &["cpu.max=5000 20000"]),
        (json!({"period": 20000}), json!({}), &["cpu.max=max 20000"]),
        (json!({"quota": -1}), json!({"period": 20000}), &["cpu.max=max 20000"]),
        (
            json!({"quota": 5000, "burst": 50}),
            json!({}),
            &["cpu.max=5000 100000", "cpu.max.burst=50"],
        ),
        (json!({"cpus": "0-1", "mems": "0"}), json!({}), &["cpuset.cpus=0-1", "cpuset.mems=0"]),
    ] {
        fits(&tree, cpu(wanted), cpu(before), files);
    }
    refused(&tree, cpu(json!({"realtimeRuntime": 5})), "cpu.realtimeRuntime");
    refused(&tree, cpu(json!({"realtimePeriod": 5})), "cpu.realtimePeriod");
}

#[test]
fn v2_writes_the_unified_settings_last() {
    let tree = CgroupTree::v2();
    let wanted = json!({
        "unified": {"memory.high": "5"}, "pids": {"limit": -1},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 7}],
    });
    let files = ["pids.max=max", "hugetlb.2MB.max=7", "hugetlb.2MB.rsvd.max=7", "memory.high=5"];
    fits(&tree, wanted, json!({}), &files);
    for key in ["memory.nothing", "cgroup.procs", "../x.y", "nodot"] {
        refused(&tree, json!({"unified": {key: "5"}}), &format!("unified[{key}]"));
    }
    refused(
        &tree,
        json!({"hugepageLimits": [{"pageSize": "1GB", "limit": 7}]}),
        "hugepageLimits[1GB]",
    );
}

#[test]
fn v1_writes_are_ordered_so_that_the_kernel_accepts_each() {
    let tree = CgroupTree::v1();
    for (wanted, files) in [
        (
            json!({"memory": {"limit": 2000, "swap": 2000}}),
            &["memory.memsw.limit_in_bytes=2000", "memory.limit_in_bytes=2000"][..],
        ),
        (
            json!({"memory": {"limit": 500, "swap": 500}}),
            &["memory.limit_in_bytes=500", "memory.memsw.limit_in_bytes=500"],
        ),
        (
            json!({"memory": {"limit": -1}}),
            &["memory.memsw.limit_in_bytes=-1", "memory.limit_in_bytes=-1"],
        ),
        (
            json!({"cpu": {"quota": 5000, "period": 10000}}),
            &["cpu.cfs_quota_us=5000", "cpu.cfs_period_us=10000"],
        ),
        (
            json!({"cpu": {"quota": 400_000, "period": 200_000}}),
            &["cpu.cfs_period_us=200000", "cpu.cfs_quota_us=400000"],
        ),
        (
            json!({"cpu": {"realtimeRuntime": 5, "realtimePeriod": 10}}),
            &["cpu.rt_runtime_us=5", "cpu.rt_period_us=10"],
        ),
        (
            json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 7}]}),
            &["hugetlb.2MB.limit_in_bytes=7"],
        ),
        (json!({"memory": {"disableOOMKiller": true}}), &["memory.oom_control=1"]),
        (json!({"memory": {"useHierarchy": true}}), &[]),
    ] {
        fits(&tree, wanted, json!({}), files);
    }
    refused(&tree, json!({"memory": {"useHierarchy": false}}), "memory.useHierarchy");
    refused(&tree, json!({"unified": {"memory.high": "1"}}), "unified[memory.high]");
    refused(&tree, json!({"pids": {"limit": 5}}), "pids.limit");
    refused(&tree, json!({"cpu": {"idle": 1}}), "cpu.idle");
}

#[test]
fn unknown_resources_are_not_written_directly() {
    for wanted in [
        json!({"blockIO": {"weight": "much"}}),
        json!({"rdma": {"mlx5": {}}}),
        json!({"cpu": {"newKnob": 5}}),
        json!({"memory": {"limit": "much"}}),
        json!({"devices": [{"allow": true, "access": "r"}]}),
    ] {
        let planned = planned(&CgroupTree::v2(), wanted.clone(), json!({}));
        assert!(matches!(planned, Err(Unfit::NotDirect(_))), "{wanted}: {planned:?}");
    }
}

fn carried_out(
    tree: &CgroupTree,
    wanted: Value,
) -> Result<Vec<super::write::AppliedWrite>, super::write::WriteError> {
    let wanted = map(wanted);
    let cgroups = tree.cgroups();
    let around = Around { before: &Map::new(), tried: None, after: &wanted };
    carry_out(&cgroups, &plan(cgroups.layout(), &wanted, around, &cgroups).unwrap())
}

#[test]
fn files_get_the_wanted_values_and_old_ones_are_returned() {
    let tree = CgroupTree::v2();
    let written =
        carried_out(&tree, json!({"pids": {"limit": 9}, "cpu": {"quota": 5000}})).unwrap();
    let told: Vec<(&str, &str, &str)> =
        written.iter().map(|w| (w.file.as_str(), w.before.as_str(), w.after.as_str())).collect();
    assert_eq!(told, [("pids.max", "max", "9"), ("cpu.max", "max 100000", "5000 100000")]);
}

#[test]
fn another_form_of_a_value_is_equal_and_another_value_is_not() {
    let tree = CgroupTree::v2();
    let wanted = map(json!({
        "memory": {"limit": 1_000_001}, "pids": {"limit": 9},
        "cpu": {"cpus": "0,1", "quota": 5000, "shares": 512},
    }));
    let cgroups = tree.cgroups();
    let around = Around { before: &Map::new(), tried: None, after: &wanted };
    let writes = plan(cgroups.layout(), &wanted, around, &cgroups).unwrap();
    for (file, same, other) in [
        ("memory.max", "999424", "1003520"),
        ("pids.max", "9", "max"),
        ("cpuset.cpus", "0-1", "0"),
        ("cpu.max", "5000 100000", "max 100000"),
    ] {
        let write = writes.iter().find(|write| write.file == file).unwrap();
        tree.file(&format!("/sys/fs/cgroup/k/c/{file}"), &format!("{same}\n"));
        assert!(may_read_as(&cgroups, write), "{file} {same}");
        tree.file(&format!("/sys/fs/cgroup/k/c/{file}"), &format!("{other}\n"));
        assert!(!may_read_as(&cgroups, write), "{file} {other}");
    }
    let weight = writes.iter().find(|write| write.file == "cpu.weight").unwrap();
    assert!(may_read_as(&cgroups, weight), "39 may be what crun made of 512");
}

#[test]
fn a_failed_write_reverts_the_earlier_ones() {
    let tree = CgroupTree::v2();
    let cgroups = tree.cgroups();
    let wanted = map(json!({"pids": {"limit": 9}, "cpu": {"quota": 5000}}));
    let around = Around { before: &Map::new(), tried: None, after: &wanted };
    let writes = plan(cgroups.layout(), &wanted, around, &cgroups).unwrap();
    // A link that appears between plan and write must not be followed.
    let file = cgroups.dir("").unwrap().join("cpu.max");
    std::fs::rename(&file, file.with_extension("aside")).unwrap();
    std::os::unix::fs::symlink(file.with_extension("aside"), &file).unwrap();
    let failed = carry_out(&cgroups, &writes).unwrap_err();
    assert!(failed.field == "cpu.quota" && failed.why.contains("symbolic link"), "{failed:?}");
    assert_eq!(cgroups.text("", "pids.max").unwrap().as_deref(), Some("max"));
    assert_eq!(cgroups.text("", "cpu.max.aside").unwrap(), None);
    let odd = cgroups.dir("").unwrap().join("cpu.weight");
    std::fs::remove_file(&odd).unwrap();
    std::os::unix::fs::symlink(&odd, &odd).unwrap();
    assert!(cgroups.text("", "cpu.weight").is_err());
    assert!(CgroupFiles::exists(&cgroups, "", "cpu.weight").is_err());
}

#[test]
fn the_runtimes_cgroup_is_used_only_if_the_process_is_in_it() {
    let tree = CgroupTree::v2();
    let at = |path: &str| BTreeMap::from([(String::new(), PathBuf::from(path))]);
    // init moved itself into a child cgroup, as systemd does.
    let above = tree.find(&at("/sys/fs/cgroup/k")).unwrap();
    assert!(above.dir("").unwrap().ends_with("sys/fs/cgroup/k"));
    for elsewhere in ["/sys/fs/cgroup/other", "/sys/fs", "/etc"] {
        assert!(tree.find(&at(elsewhere)).is_err(), "{elsewhere}");
    }
}

#[test]
fn a_hybrid_host_counts_as_v1_and_scopes_are_detected() {
    assert_eq!(CgroupTree::v1().cgroups().layout(), Layout::V1);
    let scope = CgroupTree::new(V2, "0::/system.slice/x.scope\n").cgroups();
    assert!(scope.is_scope() && scope.layout() == Layout::V2);
    assert!(!CgroupTree::v2().cgroups().is_scope());
    let outside = CgroupTree::new(V2, "0::/../../elsewhere\n");
    assert!(outside.find(&BTreeMap::new()).is_err());
}

#[test]
fn a_cgroup_that_contains_another_is_recognized() {
    let (own, root) = (CgroupTree::v2(), CgroupTree::new(V2, "0::/\n"));
    assert!(root.cgroups().holds(&root.cgroups()));
    assert!(!own.cgroups().holds(&root.cgroups()));
}

#[test]
fn removed_and_frozen_cgroups_are_reported() {
    let tree = CgroupTree::v2();
    assert!(tree.cgroups().exists() && !tree.cgroups().is_frozen());
    tree.file("/sys/fs/cgroup/k/c/cgroup.freeze", "1\n");
    assert!(tree.cgroups().is_frozen());
    let cgroups = tree.cgroups();
    std::fs::remove_dir_all(Path::new(cgroups.dir("").unwrap())).unwrap();
    assert!(!cgroups.exists());
}

#[test]
fn a_process_is_frozen_if_its_current_cgroup_is_frozen() {
    let states = [
        ("/sys/fs/cgroup/freezer", "freezer.state", "THAWED\n", "FROZEN\n", "6:freezer:"),
        (
            "/sys/fs/cgroup",
            "cgroup.events",
            "populated 1\nfrozen 0\n",
            "populated 1\nfrozen 1\n",
            "0::",
        ),
    ];
    for (tree, (at, file, thawed, frozen, hierarchy)) in
        [CgroupTree::v1(), CgroupTree::v2()].iter().zip(states)
    {
        let mounts = Mounts::read(&tree.host()).unwrap();
        let is_frozen = |pid| mounts.is_frozen(&tree.host(), pid);
        tree.file(&format!("{at}/k/c/{file}"), thawed);
        tree.file(&format!("{at}/other/{file}"), frozen);
        assert!(!is_frozen(42));
        tree.file("/proc/42/cgroup", &format!("7:pids:/\n{hierarchy}/other\n"));
        assert!(is_frozen(42), "it was moved");
        tree.file("/proc/42/cgroup", &format!("{hierarchy}/none\n"));
        assert!(!is_frozen(42) && !is_frozen(43), "there is no such cgroup, or process");
        tree.file("/proc/42/cgroup", &format!("{hierarchy}/../other\n"));
        assert!(!is_frozen(42), "it is outside of the mount");
    }
}

#[test]
fn every_thread_enters_the_group_or_the_move_fails() {
    let tree = CgroupTree::v1();
    let tasks = "/sys/fs/resctrl/gold/tasks";
    tree.file(tasks, "");
    tree.file("/sys/fs/cgroup/memory/k/c/cgroup.procs", "42\n");
    tree.file("/sys/fs/cgroup/memory/k/c/below/cgroup.procs", "50\n51\n");
    for thread in ["42/task/42/x", "42/task/43/x", "50/task/50/x"] {
        tree.file(&format!("/proc/{thread}"), ""); // Task 51 has ended meanwhile.
    }
    let host = tree.host();
    let resctrl = Path::new("/sys/fs/resctrl");
    let enter = |name| {
        super::resctrl::enter(&host, &tree.cgroups(), resctrl, &super::resctrl::Group::named(name))
    };
    enter("gold").unwrap();
    let text = std::fs::read_to_string(host.path(tasks)).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["42", "43", "50"]);
    let error = enter("gone").unwrap_err();
    assert!(error.contains("/sys/fs/resctrl/gone"), "{error}");
}

#[test]
fn the_resctrl_group_of_a_process_is_read() {
    let tree = CgroupTree::v1();
    let group = || super::resctrl::group_of(&tree.host(), 42).map(|group| format!("{group:?}"));
    assert_eq!(group(), None, "a kernel without resctrl says nothing");
    let shown = |name: &str, monitoring: Option<&str>| {
        Some(format!("Group {{ name: {name:?}, monitoring: {monitoring:?} }}"))
    };
    for (text, wanted) in [
        ("res:/gold\nmon:\n", shown("gold", None)),
        ("res:gold\nmon:c1\n", shown("gold", Some("c1"))),
        ("res:/\nmon:/\n", shown("", None)),
        ("res:\nmon:\n", shown("", None)),
        ("res:../gold\nmon:c1\n", None),
        ("res:gold\nmon:../../c1\n", shown("gold", None)),
    ] {
        tree.file("/proc/42/cpu_resctrl_groups", text);
        assert_eq!(group(), wanted, "{text}");
    }
}

#[test]
fn a_move_back_enters_the_monitoring_group_too() {
    let tree = CgroupTree::v1();
    tree.file("/sys/fs/cgroup/memory/k/c/cgroup.procs", "42\n");
    tree.file("/proc/42/task/42/x", "");
    tree.file("/proc/42/cpu_resctrl_groups", "res:gold\nmon:c1\n");
    let (host, resctrl) = (tree.host(), Path::new("/sys/fs/resctrl"));
    let before = super::resctrl::group_of(&host, 42).unwrap();
    let (gold, monitored) = ("gold/tasks", "gold/mon_groups/c1/tasks");
    for tasks in [gold, monitored] {
        tree.file(&format!("/sys/fs/resctrl/{tasks}"), "");
    }
    let read = |tasks: &str| std::fs::read_to_string(host.path(resctrl.join(tasks))).unwrap();
    super::resctrl::enter(&host, &tree.cgroups(), resctrl, &before).unwrap();
    assert_eq!((read(gold).as_str(), read(monitored).as_str()), ("42\n", "42\n"));
    // The monitoring group may have been removed meanwhile.
    std::fs::remove_dir_all(host.path(resctrl.join("gold/mon_groups/c1"))).unwrap();
    let error = super::resctrl::enter(&host, &tree.cgroups(), resctrl, &before).unwrap_err();
    assert!(error.contains("gold/mon_groups/c1: it is missing"), "{error}");
}

#[test]
fn a_group_is_removed_only_if_nothing_is_in_it() {
    let tree = CgroupTree::v1();
    let (host, resctrl) = (tree.host(), Path::new("/sys/fs/resctrl"));
    let remove = |name| super::resctrl::remove_unused(&host, resctrl, name);
    assert_eq!(remove("gone"), Ok(()), "it was never made");
    for (file, text) in [("tasks", "42\n"), ("cpus_list", "0-1\n"), ("mon_groups/c1/tasks", "")] {
        tree.file(&format!("/sys/fs/resctrl/gold/{file}"), text);
        assert_eq!(remove("gold"), Err("/sys/fs/resctrl/gold is in use".to_owned()), "{file}");
        std::fs::remove_dir_all(host.path(resctrl.join("gold"))).unwrap();
    }
    for name in ["info/last_cmd_status", "gold/tasks"] {
        tree.file(
            &format!("/sys/fs/resctrl/{name}"),
            if name == "gold/tasks" { "" } else { "why\n" },
        );
    }
    // On plain files the folder is not empty.
    let error = remove("gold").unwrap_err();
    assert!(error.ends_with("(ENOTEMPTY), last_cmd_status: why"), "{error}");
    std::fs::remove_file(host.path(resctrl.join("gold/tasks"))).unwrap();
    assert_eq!(remove("gold"), Ok(()));
    assert!(super::resctrl::is_missing(&host, resctrl, "gold"));
}
