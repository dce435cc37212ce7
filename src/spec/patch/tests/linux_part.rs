// SPDX-License-Identifier: Apache-2.0
//! Tests the Linux part: devices, resources, namespaces, and fields that are not applied.

use serde_json::{Value, json};

use super::super::{HostFacts, PatchError, patch_on};
use super::{Adjustment, adjusted, asks, cpu, invalid_field, linux, patch, refused, resources};

fn memory(memory: &Value) -> Adjustment {
    resources(&json!({ "memory": memory }))
}

fn device(path: &str, kind: &str, major: i64, minor: i64) -> Adjustment {
    let device = json!({"path": path, "type": kind, "major": major, "minor": minor});
    linux(&json!({"devices": [device]}))
}

#[test]
fn a_device_is_added_and_removed_with_its_rule() {
    let document = r#"{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}"#;
    let mut fuse = device("/dev/fuse", "c", 10, 229);
    fuse.linux.mut_or_insert_default().devices[0].file_mode = Some(0o666.into()).into();
    let (with, changes) = adjusted(document, &fuse);
    let spec: Value = serde_json::from_str(&with).unwrap();
    let node =
        json!({"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 438});
    assert_eq!(spec["linux"]["devices"], json!([node]));
    let rule = json!({"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"});
    assert_eq!(spec["linux"]["resources"]["devices"][1], rule);
    let fields: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["linux.devices[/dev/fuse]", "linux.resources.devices[c 10:229]"]);
    assert_eq!(patch(with.as_bytes(), &fuse).unwrap().bytes, None);
    let (without, _) = adjusted(&with, &device("-/dev/fuse", "", 0, 0));
    let wanted =
        r#"{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]},"devices":[]}}"#;
    assert_eq!(without, wanted);
}

#[test]
fn a_device_rule_stays_while_another_node_needs_it() {
    let document = r#"{"linux":{"devices":[{"path":"/dev/a","type":"u","major":1,"minor":9},
        {"path":"/dev/b","type":"c","major":1,"minor":9}],
        "resources":{"devices":[{"allow":true,"type":"c","major":1,"minor":9,"access":"r"}]}}}"#;
    let (one, changes) = adjusted(document, &device("-/dev/a", "", 0, 0));
    assert_eq!(changes.len(), 1);
    let (none, changes) = adjusted(&one, &device("-/dev/b", "", 0, 0));
    assert_eq!(changes.len(), 2);
    assert!(!none.contains("allow"), "{none}");
}

#[test]
fn a_fifo_needs_no_device_rule_and_an_unknown_type_is_refused() {
    let (text, changes) = adjusted("{}", &device("/dev/p", "p", 0, 0));
    assert_eq!(changes.len(), 1, "{text}");
    for kind in ["", "x", "C"] {
        assert_eq!(invalid_field(&device("/dev/x", kind, 1, 1)), "Devices[/dev/x]");
    }
    assert_eq!(invalid_field(&device("-", "c", 1, 1)), "Devices[]");
}

#[test]
fn every_memory_value_is_written() {
    let adjustment = memory(&json!({
        "limit": {"value": 1000}, "reservation": {"value": 2}, "swap": {"value": 3000}, "kernel": {"value": 4},
        "kernelTcp": {"value": 5}, "swappiness": {"value": 0}, "disableOomKiller": {"value": true},
        "useHierarchy": {"value": false},
    }));
    let (text, changes) = adjusted("{}", &adjustment);
    let wanted = json!({"limit": 1000, "reservation": 2, "swap": 3000, "kernel": 4, "kernelTCP": 5,
        "swappiness": 0, "disableOOMKiller": true, "useHierarchy": false});
    let spec: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(spec["linux"]["resources"]["memory"], wanted);
    assert_eq!(changes.len(), 8);
}

#[test]
fn swap_follows_a_limit_set_alone() {
    let document =
        r#"{"linux":{"resources":{"memory":{"swap":5,"limit":5,"checkBeforeUpdate":true}}}}"#;
    for limit in [9, -1] {
        let (text, changes) = adjusted(document, &memory(&json!({"limit": {"value": limit}})));
        let wanted = json!({"swap": limit, "limit": limit, "checkBeforeUpdate": true});
        let spec: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(spec["linux"]["resources"]["memory"], wanted);
        assert_eq!(changes[1].nri_field, "MemLimit");
    }
    let zero = memory(&json!({"limit": {"value": 0}}));
    assert_eq!(patch(document.as_bytes(), &zero).unwrap().bytes, None, "zero leaves it");
    let low = memory(&json!({"swap": {"value": 4}}));
    assert_eq!(refused(document, &low).field(), Some("MemSwapLimit"));
    for alone in ["{}", r#"{"linux":{"resources":{"memory":{"limit":0}}}}"#] {
        assert_eq!(refused(alone, &low).field(), Some("MemSwapLimit"), "no limit beside it");
    }
    let negative = memory(&json!({"kernel": {"value": -2}}));
    assert_eq!(invalid_field(&negative), "MemKernelLimit");
    let swappiness = memory(&json!({"swappiness": {"value": 101}}));
    assert_eq!(invalid_field(&swappiness), "MemSwappiness");
}

#[test]
fn a_given_swap_is_used_unless_memory_is_unlimited() {
    let document = r#"{"linux":{"resources":{"memory":{"limit":50,"swap":100}}}}"#;
    for (given, wanted) in [
        (json!({"limit": {"value": 20}, "swap": {"value": 60}}), json!({"limit": 20, "swap": 60})),
        (
            json!({"limit": {"value": 200}, "swap": {"value": 0}}),
            json!({"limit": 200, "swap": 200}),
        ),
        (
            json!({"limit": {"value": 200}, "swap": {"value": -1}}),
            json!({"limit": 200, "swap": -1}),
        ),
        (json!({"limit": {"value": -1}, "swap": {"value": 60}}), json!({"limit": -1, "swap": -1})),
        (json!({"swap": {"value": 60}}), json!({"limit": 50, "swap": 60})),
    ] {
        let (text, _) = adjusted(document, &memory(&given));
        let spec: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(spec["linux"]["resources"]["memory"], wanted);
    }
    let low = json!({"limit": {"value": 20}, "swap": {"value": 19}});
    assert_eq!(invalid_field(&memory(&low)), "MemSwapLimit");
    let odd = r#"{"linux":{"resources":{"memory":{"limit":50,"swap":9}}}}"#;
    let other = memory(&json!({"reservation": {"value": 1}}));
    assert!(adjusted(odd, &other).0.contains("reservation"), "the engine's own business");
}

#[test]
fn cpu_values_are_written_and_the_rest_of_the_section_stays() {
    let document =
        r#"{"linux":{"resources":{"cpu":{ "burst":1e3, "cpus":"0-7", "shares":1024 },"x":1}}}"#;
    let adjustment = cpu(&json!({
        "shares": {"value": 2}, "quota": {"value": -1}, "period": {"value": 100_000}, "realtimeRuntime": {"value": 3},
        "realtimePeriod": {"value": 4}, "cpus": "1", "mems": "0",
    }));
    let (text, changes) = adjusted(document, &adjustment);
    let wanted = r#"{"linux":{"resources":{"cpu":{ "burst":1e3, "cpus":"1", "shares":2, "quota":-1, "period":100000, "realtimeRuntime":3, "realtimePeriod":4, "mems":"0" },"x":1}}}"#;
    assert_eq!(text, wanted);
    let cpus = changes.iter().find(|change| change.nri_field == "CPUSetCPUs").unwrap();
    assert_eq!(cpus.field, "linux.resources.cpu.cpus");
    assert_eq!(
        (cpus.before.as_ref(), cpus.after.as_ref()),
        (Some(&json!("0-7")), Some(&json!("1")))
    );
    assert_eq!(invalid_field(&cpu(&json!({"shares": {"value": 1}}))), "CPUShares");
}

#[test]
fn other_resources_are_replaced_by_their_keys() {
    let adjustment = resources(&json!({
        "hugepageLimits": [{"pageSize": "2M", "limit": 1}, {"pageSize": "1GB", "limit": 2}],
        "unified": {"memory.high": "max"},
        "pids": {"limit": -1},
        "devices": [{"allow": true, "type": "c", "major": {"value": 5}, "access": "r"}],
    }));
    let document = r#"{"linux":{"resources":{"hugepageLimits":[{"pageSize":"2MB","limit":9}],"pids":{"limit":3}}}}"#;
    let (text, _) = adjusted(document, &adjustment);
    let wanted = r#"{"linux":{"resources":{"hugepageLimits":[{"pageSize":"2MB","limit":1},{"pageSize":"1GB","limit":2}],"pids":{"limit":-1},"devices":[{"allow":true,"type":"c","major":5,"access":"r"}],"unified":{"memory.high":"max"}}}}"#;
    assert_eq!(text, wanted);
}

#[test]
fn resources_that_reach_beyond_the_container_are_refused() {
    for key in
        ["../x", "/etc/x", "a/b", "cpu", "cpu.", ".max", "cgroup.procs", "Cpu.max", "cpu.a-b", ""]
    {
        let adjustment = resources(&json!({"unified": {key: "1"}}));
        assert_eq!(invalid_field(&adjustment), format!("CgroupsUnified[{key}]"));
    }
    for limit in [0, -2] {
        assert_eq!(invalid_field(&resources(&json!({"pids": {"limit": limit}}))), "PidsLimit");
    }
    let adjustment = resources(&json!({"devices": [{"access": "rx"}]}));
    assert_eq!(invalid_field(&adjustment), "DeviceRules[deny a *:* rx]");
}

#[test]
fn namespaces_and_sysctls_are_set_and_removed() {
    let adjustment = linux(&json!({
        "namespaces": [{"type": "-pid"}, {"type": "network", "path": "/n"}, {"type": "ipc"}],
        "sysctl": {"net.a": "1", "-net.b": ""},
    }));
    let document =
        r#"{"linux":{"namespaces":[{"type":"pid"},{"type":"network"}],"sysctl":{"net.b":"2"}}}"#;
    let (text, changes) = adjusted(document, &adjustment);
    let wanted = r#"{"linux":{"namespaces":[{"type":"network","path":"/n"},{"type":"ipc"}],"sysctl":{"net.a":"1"}}}"#;
    assert_eq!(text, wanted);
    assert_eq!(changes.len(), 5);
    let unknown = linux(&json!({"namespaces": [{"type": "net"}]}));
    assert_eq!(invalid_field(&unknown), "Namespace[net]");
}

#[test]
fn a_field_that_is_not_applied_is_named() {
    for (adjustment, named) in [
        (asks(&json!({"CDIDevices": [{"name": "v.com/gpu=0"}]})), "CdiDevices[v.com/gpu=0]"),
        (resources(&json!({"blockioClass": {}})), "BlockioClass"),
        (resources(&json!({"rdtClass": {}})), "RdtClass"),
    ] {
        let error = refused("{}", &adjustment);
        assert_eq!(error, PatchError::NotApplied { field: named.to_owned() });
        assert!(error.to_string().contains(named));
    }
}

#[test]
fn an_overlay_equals_the_resources_that_a_patch_writes() {
    let adjustment = resources(&json!({"memory": {"limit": {"value": 9}}, "cpu": {"cpus": "1"}}));
    let resources = &adjustment.linux.resources;
    let overlay = Value::Object(
        crate::spec::overlay::overlay_of(resources, &crate::spec::patch::Resolved::default())
            .unwrap(),
    );
    assert_eq!(overlay, json!({"memory": {"limit": 9, "swap": 9}, "cpu": {"cpus": "1"}}));
    let (text, _) = adjusted("{}", &adjustment);
    let spec: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(spec["linux"]["resources"], overlay);
}

#[test]
fn values_implied_by_cgroup_v2_are_omitted_unless_present() {
    let adjust = memory(&json!({
        "kernel": {"value": -1}, "useHierarchy": {"value": true}, "limit": {"value": 4096},
    }));
    let memory = |document: &str, is_cgroup_v2: bool| {
        let facts = HostFacts { is_cgroup_v2, ..HostFacts::default() };
        let patched = patch_on(document.as_bytes(), &adjust, &facts).unwrap().bytes.unwrap();
        let document: Value = serde_json::from_slice(&patched).unwrap();
        document["linux"]["resources"]["memory"].clone()
    };
    let all = json!({"kernel": -1, "useHierarchy": true, "limit": 4096, "swap": 4096});
    assert_eq!(memory("{}", false), all);
    assert_eq!(memory("{}", true), json!({"limit": 4096, "swap": 4096}));
    let engines = r#"{"linux": {"resources": {"memory": {"kernel": 5, "useHierarchy": false}}}}"#;
    assert_eq!(memory(engines, true), all, "the engine's own values are replaced");
}
