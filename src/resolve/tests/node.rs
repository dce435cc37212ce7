// SPDX-License-Identifier: Apache-2.0
//! Tests features that nodes lack, on trees of files, and that the table of docs/compatibility.md matches the code.

use std::path::Path;

use serde_json::json;

use super::{HostTree, linux, says};
use crate::plugin::api;
use crate::resolve::check_node;
use crate::spec::patch::{PatchError, Resolved};

fn checked(tree: &HostTree, adjustment: &api::ContainerAdjustment) -> Result<(), PatchError> {
    let resctrl = Path::new("/sys/fs/resctrl");
    check_node(adjustment, &Resolved::default(), resctrl, b"{}", &tree.host())
}

/// Returns an adjustment for each row of the table, with the field that a refusal names.
fn each() -> Vec<(api::ContainerAdjustment, &'static str)> {
    [
        (json!({"resources": {"unified": {"memory.high": "1"}}}), "CgroupsUnified[memory.high]"),
        (
            json!({"resources": {"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}}),
            "HugepageLimits[2MB]",
        ),
        (json!({"rdt": {"closId": {"value": "gold"}}}), "RdtClosID"),
        (json!({"namespaces": [{"type": "time"}]}), "Namespace[time]"),
        (json!({"memoryPolicy": {}}), "MemoryPolicy"),
    ]
    .map(|(asked, field)| (linux(&asked), field))
    .into()
}

/// Returns two nodes: one that lacks every feature, and one that has all.
fn nodes() -> [HostTree; 2] {
    let poor = HostTree::new(&[
        ("/sys/fs/cgroup/memory/tasks", ""),
        ("/proc/self/ns/pid", ""),
        ("/sys/devices/system/cpu/online", "0"),
    ]);
    let rich = HostTree::new(&[
        ("/sys/fs/cgroup/cgroup.controllers", "memory hugetlb"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
        ("/sys/fs/resctrl/info/L3/num_closids", "16"),
        ("/proc/self/ns/time", ""),
        ("/sys/devices/system/cpu/online", "0"),
        ("/sys/devices/system/node/online", "0"),
    ]);
    [poor, rich]
}

#[test]
fn a_field_is_refused_only_if_the_node_does_not_support_it() {
    let [poor, rich] = nodes();
    for (adjustment, field) in each() {
        let error = checked(&poor, &adjustment).unwrap_err();
        assert_eq!(error.field(), Some(field), "{error}");
        says(&error, &["on this node"]);
        checked(&rich, &adjustment).unwrap();
        // A node whose features cannot be read is accepted. For RDT the directory itself decides.
        if !field.starts_with("Rdt") {
            checked(&HostTree::new(&[]), &adjustment).unwrap();
        }
    }
}

#[test]
fn resctrl_that_cannot_be_examined_refuses_nothing() {
    let node = HostTree::new(&[("/sys/fs/resctrl/schemata", "")]);
    let info = node.temp.path().join("sys/fs/resctrl/info");
    std::os::unix::fs::symlink("info", info).unwrap();
    let rdt = linux(&json!({"rdt": {"closId": {"value": "gold"}}}));
    checked(&node, &rdt).unwrap();
}

#[test]
fn a_missing_controller_or_page_size_is_named() {
    let node = HostTree::new(&[
        ("/sys/fs/cgroup/cgroup.controllers", "cpu hugetlb"),
        ("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
    ]);
    let [(unified, _), (pages, _), ..] = <[_; 5]>::try_from(each()).unwrap();
    says(&checked(&node, &unified).unwrap_err(), &["no memory controller"]);
    says(&checked(&node, &pages).unwrap_err(), &["no pages of that size"]);
}

#[test]
fn unreadable_controllers_do_not_mean_cgroup_v1() {
    // Reading a folder fails with another error than reading a missing file.
    let node = HostTree::new(&[("/sys/fs/cgroup/cgroup.controllers/x", "")]);
    let [(unified, _), ..] = <[_; 5]>::try_from(each()).unwrap();
    says(&checked(&node, &unified).unwrap_err(), &["cgroup.controllers cannot be read: "]);
}

/// The fields, and what a node must have for them: the table of docs/compatibility.md.
const NODE_NEEDS: [(&str, &str); 5] = [
    ("CgroupsUnified", "cgroup v2 only, with the controller of the file"),
    ("HugepageLimits", "huge pages of that size, and the hugetlb controller"),
    ("RdtClosID, RdtSchemata, RdtEnableMonitoring", "resctrl, mounted at `[rdt] resctrl_path`"),
    ("Namespace", "a kernel with that kind of namespace"),
    ("MemoryPolicy", "a kernel with NUMA"),
];

#[test]
fn the_compatibility_page_lists_the_nodes_requirements() {
    let page = include_str!("../../../docs/compatibility.md");
    let part = page.split("### Node requirements").nth(1).unwrap();
    let rows = part.split("\n##").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<String> = rows.map(str::to_owned).collect();
    let wanted: Vec<String> = NODE_NEEDS
        .iter()
        .map(|(fields, what)| format!("| `{}` | {what} |", fields.replace(", ", "`, `")))
        .collect();
    assert_eq!(rows, wanted);
    // The test above checks that each row is refused.
    let tried: Vec<&str> = each().iter().map(|(_, field)| *field).collect();
    for (fields, _) in NODE_NEEDS {
        let first = fields.split(", ").next().unwrap();
        assert!(tried.iter().any(|field| field.starts_with(first)), "{first}");
    }
}
