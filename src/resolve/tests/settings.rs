// SPDX-License-Identifier: Apache-2.0
//! Tests resources for which the host's cgroups have no setting, on trees of files.

use std::path::Path;

use serde_json::json;

use super::{HostTree, says};
use crate::plugin::api;
use crate::resolve::check_node;
use crate::spec::patch::{Class, PatchError, Resolved};

/// Cgroup v1 on a kernel with every feature, with one container.
const V1: [(&str, &str); 9] = [
    ("/proc/sys/kernel/osrelease", "4.18.0-553.el8"),
    ("/sys/fs/cgroup/memory/memory.use_hierarchy", "1"),
    ("/sys/fs/cgroup/memory/c/memory.swappiness", "60"),
    ("/sys/fs/cgroup/memory/c/memory.oom_control", "oom_kill_disable 0"),
    ("/sys/fs/cgroup/memory/c/memory.kmem.limit_in_bytes", "0"),
    ("/sys/fs/cgroup/memory/c/memory.kmem.tcp.limit_in_bytes", "0"),
    ("/sys/fs/cgroup/cpu,cpuacct/kubepods/cpu.rt_runtime_us", "0"),
    ("/sys/fs/cgroup/cpu,cpuacct/kubepods/cpu.rt_period_us", "1000000"),
    ("/sys/fs/cgroup/blkio/c/blkio.bfq.weight_device", ""),
];

/// Cgroup v2 with one container.
const V2: [(&str, &str); 4] = [
    ("/sys/fs/cgroup/cgroup.controllers", "cpu io memory"),
    ("/sys/fs/cgroup/cgroup.subtree_control", "cpu io memory"),
    ("/sys/fs/cgroup/c/memory.max", "max"),
    ("/sys/fs/cgroup/c/io.max", ""),
];

const DOCUMENT: &str = r#"{"linux": {"cgroupsPath": "/kubepods/c1"}}"#;

/// Returns resources in NRI's form, which wraps numbers to distinguish zero from absent.
fn in_nri(resources: &serde_json::Value) -> api::LinuxResources {
    let mut resources = resources.clone();
    for section in ["memory", "cpu"] {
        for value in resources
            .get_mut(section)
            .and_then(|all| all.as_object_mut())
            .into_iter()
            .flat_map(serde_json::Map::values_mut)
        {
            *value = json!({ "value": value.take() });
        }
    }
    protobuf_json_mapping::parse_from_str(&resources.to_string()).unwrap()
}

fn checked_with(
    tree: &HostTree,
    resources: &serde_json::Value,
    resolved: &Resolved,
) -> Result<(), PatchError> {
    let mut resources = in_nri(resources);
    if resolved.block_io != Class::Unasked {
        resources.blockio_class = Some(api::OptionalString::default()).into();
    }
    let mut adjustment = api::ContainerAdjustment::default();
    adjustment.linux.mut_or_insert_default().resources = Some(resources).into();
    let resctrl = Path::new("/sys/fs/resctrl");
    check_node(&adjustment, resolved, resctrl, DOCUMENT.as_bytes(), &tree.host())
}

fn checked(tree: &HostTree, resources: &serde_json::Value) -> Result<(), PatchError> {
    checked_with(tree, resources, &Resolved::default())
}

#[test]
fn fields_missing_in_cgroup_v2_are_refused_by_name() {
    let (v1, v2) = (HostTree::new(&V1), HostTree::new(&V2));
    for (resources, field) in [
        (json!({"memory": {"kernel": 4096}}), "MemKernelLimit"),
        (json!({"memory": {"kernelTcp": 4096}}), "MemTCPLimit"),
        (json!({"memory": {"swappiness": 0}}), "MemSwappiness"),
        (json!({"memory": {"disableOomKiller": true}}), "MemDisableOomKiller"),
        (json!({"cpu": {"realtimePeriod": 500_000}}), "CPURealtimePeriod"),
    ] {
        let error = checked(&v2, &resources).unwrap_err();
        assert_eq!(error.field(), Some(field), "{error}");
        says(&error, &["on this node cgroup v2 has no such setting"]);
        checked(&v1, &resources).unwrap();
    }
    for (tree, version) in [(&v1, "cannot change"), (&v2, "cgroup v2 has no such setting")] {
        let error = checked(tree, &json!({"memory": {"useHierarchy": false}})).unwrap_err();
        assert_eq!(error.field(), Some("MemUseHierarchy"), "{error}");
        says(&error, &[version]);
    }
}

#[test]
fn default_values_are_accepted_on_both_cgroup_versions() {
    for tree in [HostTree::new(&V1), HostTree::new(&V2)] {
        for resources in [
            json!({"memory": {"kernel": -1, "kernelTcp": 0, "useHierarchy": true}}),
            json!({"memory": {"disableOomKiller": false}}),
            json!({"cpu": {"realtimeRuntime": 0, "realtimePeriod": 0}}),
            json!({}),
        ] {
            checked(&tree, &resources).unwrap();
        }
    }
    // Without any cgroup file the runtime decides.
    checked(&HostTree::new(&[]), &json!({"memory": {"swappiness": 7}})).unwrap();
    let empty = HostTree::new(&[("/sys/fs/cgroup/README", "")]);
    checked(&empty, &json!({"memory": {"limit": 4096}})).unwrap();
}

#[test]
fn fields_that_the_kernel_lacks_are_refused_by_name() {
    let v1 = HostTree::new(&V1);
    let error = checked(&v1, &json!({"cpu": {"realtimeRuntime": 900}})).unwrap_err();
    assert_eq!(error.field(), Some("CPURealtimeRuntime"), "{error}");
    says(&error, &["no real-time budget"]);
    v1.put("/sys/fs/cgroup/cpu,cpuacct/kubepods/cpu.rt_runtime_us", "5000");
    checked(&v1, &json!({"cpu": {"realtimeRuntime": 900}})).unwrap();
    v1.put("/proc/sys/kernel/osrelease", "5.16.0-amd64");
    let error = checked(&v1, &json!({"memory": {"kernel": 4096}})).unwrap_err();
    says(&error, &["MemKernelLimit", "no such limit since Linux 5.16"]);
    let error = checked(&v1, &json!({"pids": {"limit": 5}})).unwrap_err();
    says(&error, &["PidsLimit", "on this node the cgroup has no pids.max"]);
    let v2 = HostTree::new(&V2);
    let swap = json!({"memory": {"limit": 4096, "swap": 8192}});
    let error = checked(&v2, &swap).unwrap_err();
    says(&error, &["MemSwapLimit", "the cgroup has no memory.swap.max"]);
    v2.put("/sys/fs/cgroup/c/memory.swap.max", "max");
    checked(&v2, &swap).unwrap();
}

#[test]
fn an_unreadable_file_does_not_count_as_missing() {
    // Reading a folder fails with another error than reading a missing file.
    let budget = "/sys/fs/cgroup/cpu/kubepods/cpu.rt_runtime_us";
    let node = HostTree::new(&[(&format!("{budget}/x"), "")]);
    let error = checked(&node, &json!({"cpu": {"realtimeRuntime": 900}})).unwrap_err();
    says(&error, &["cpu.rt_runtime_us cannot be read: "]);
    let error =
        checked(&HostTree::new(&V1), &json!({"cpu": {"realtimeRuntime": 900}})).unwrap_err();
    says(&error, &["no real-time budget"]);
}

#[test]
fn a_weight_of_a_disk_needs_its_scheduler_and_a_limit_does_not() {
    let weights = json!({"weightDevice": [{"major": 8, "minor": 0, "weight": 300}]});
    let rates = json!({"throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 1}]});
    let class = |value| Resolved { block_io: Class::Set(value), ..Resolved::default() };
    let v2 = HostTree::new(&V2);
    let error = checked_with(&v2, &json!({}), &class(weights.clone())).unwrap_err();
    says(&error, &["BlockioClass", "the cgroup has no io.bfq.weight"]);
    checked_with(&v2, &json!({}), &class(rates)).unwrap();
    v2.put("/sys/fs/cgroup/c/io.bfq.weight", "default 100");
    let queue = "/sys/dev/block/8:0/queue/scheduler";
    v2.put(queue, "[none] mq-deadline bfq");
    let error = checked_with(&v2, &json!({}), &class(weights.clone())).unwrap_err();
    says(&error, &["BlockioClass", "the disk 8:0 does not use the I/O scheduler BFQ"]);
    v2.put(queue, "none mq-deadline [bfq]");
    checked_with(&v2, &json!({}), &class(weights)).unwrap();
}
