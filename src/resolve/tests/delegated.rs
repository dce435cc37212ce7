// SPDX-License-Identifier: Apache-2.0
//! Tests controllers of a user's cgroup, on trees of files.

use serde_json::json;

use super::{HostTree, linux, says};
use crate::resolve::check_delegated;
use crate::spec::patch::{PatchError, Resolved};

/// Checks a plugin's values for a container with this cgroup.
fn checked(tree: &HostTree, cgroup: &str, members: &[&str]) -> Result<(), PatchError> {
    let all = json!({
        "memory": {"limit": {"value": 1 << 20}},
        "cpu": {"shares": {"value": 300}, "cpus": "0"},
        "pids": {"limit": 7},
        "unified": {"io.weight": "50"},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 1 << 21}],
    });
    let mut resources = json!({});
    for (section, member) in members.iter().filter_map(|member| member.split_once('.')) {
        resources[section] = match section {
            "cpu" => json!({ member: all[section][member] }),
            _ => all[section].clone(),
        };
    }
    let document = json!({"linux": {"cgroupsPath": cgroup}}).to_string();
    let adjustment = linux(&json!({ "resources": resources }));
    check_delegated(&adjustment, &Resolved::default(), document.as_bytes(), &tree.host())
}

#[test]
fn a_field_of_a_controller_that_a_user_lacks_is_refused() {
    let uid = nix::unistd::geteuid();
    let manager = format!("/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service");
    let tree = HostTree::new(&[
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
        ("/sys/fs/cgroup/mine/cgroup.controllers", "memory pids"),
        (&format!("{manager}/cgroup.controllers"), "cpu io"),
    ]);
    for (cgroup, member, field, controller) in [
        ("/mine/pods/c1", "cpu.shares", "CPUShares", "cpu"),
        ("/mine/c1", "cpu.cpus", "CPUSetCPUs", "cpuset"),
        ("/mine/c1", "unified.io.weight", "CgroupsUnified[io.weight]", "io"),
        ("user.slice:libpod:c1", "memory.limit", "MemLimit", "memory"),
        ("user.slice:docker:c1", "pids.limit", "PidsLimit", "pids"),
        ("/mine/c1", "hugepageLimits.2MB", "HugepageLimits[2MB]", "hugetlb"),
    ] {
        let error = checked(&tree, cgroup, &[member]).unwrap_err();
        assert_eq!(error.field(), Some(field), "{error}");
        says(&error, &[&format!("the {controller} controller is not delegated to /sys/fs/cgroup")]);
    }
    for (cgroup, members) in [
        ("/mine/pods/c1", &["memory.limit", "pids.limit"][..]),
        ("user.slice:libpod:c1", &["cpu.shares", "unified.io.weight"]),
        ("/other/c1", &["cpu.cpus"]),
        ("c1", &["cpu.cpus"]),
    ] {
        checked(&tree, cgroup, members).unwrap();
    }
}

#[test]
fn on_cgroup_v1_no_field_of_a_user_is_refused() {
    let v1 = HostTree::new(&[("/sys/fs/cgroup/memory/mine/tasks", "")]);
    checked(&v1, "/mine/c1", &["cpu.shares"]).unwrap();
}
