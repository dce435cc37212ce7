// SPDX-License-Identifier: Apache-2.0
//! The Linux part: devices, resources, namespaces, and fields that are not applied.

use protobuf::MessageField;
use serde_json::{Value, json};

use super::super::{HostFacts, PatchError, patch_on};
use super::{Adjustment, adjusted, invalid_field, linux, patch, refused, some, uint64};
use crate::plugin::api;

fn int64(value: i64) -> MessageField<api::OptionalInt64> {
    some(api::OptionalInt64 { value, ..Default::default() })
}

fn resources(resources: api::LinuxResources) -> Adjustment {
    linux(api::LinuxContainerAdjustment { resources: some(resources), ..Default::default() })
}

fn memory(memory: api::LinuxMemory) -> Adjustment {
    resources(api::LinuxResources { memory: some(memory), ..Default::default() })
}

fn cpu(cpu: api::LinuxCPU) -> Adjustment {
    resources(api::LinuxResources { cpu: some(cpu), ..Default::default() })
}

fn device(path: &str, kind: &str, major: i64, minor: i64) -> api::LinuxDevice {
    let (path, type_) = (path.to_owned(), kind.to_owned());
    api::LinuxDevice { path, type_, major, minor, ..Default::default() }
}

fn devices(devices: Vec<api::LinuxDevice>) -> Adjustment {
    linux(api::LinuxContainerAdjustment { devices, ..Default::default() })
}

#[test]
fn a_device_is_added_and_removed_with_its_rule() {
    let document = r#"{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}"#;
    let fuse = api::LinuxDevice {
        file_mode: some(api::OptionalFileMode { value: 0o666, ..Default::default() }),
        ..device("/dev/fuse", "c", 10, 229)
    };
    let (with, changes) = adjusted(document, &devices(vec![fuse.clone()]));
    let spec: Value = serde_json::from_str(&with).unwrap();
    let node =
        json!({"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 438});
    assert_eq!(spec["linux"]["devices"], json!([node]));
    let rule = json!({"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"});
    assert_eq!(spec["linux"]["resources"]["devices"][1], rule);
    let fields: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["linux.devices[/dev/fuse]", "linux.resources.devices[c 10:229]"]);
    assert_eq!(patch(with.as_bytes(), &devices(vec![fuse])).unwrap().bytes, None);
    let (without, _) = adjusted(&with, &devices(vec![device("-/dev/fuse", "", 0, 0)]));
    let wanted =
        r#"{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]},"devices":[]}}"#;
    assert_eq!(without, wanted);
}

#[test]
fn a_rule_stays_while_another_node_needs_it() {
    let document = r#"{"linux":{"devices":[{"path":"/dev/a","type":"u","major":1,"minor":9},
        {"path":"/dev/b","type":"c","major":1,"minor":9}],
        "resources":{"devices":[{"allow":true,"type":"c","major":1,"minor":9,"access":"r"}]}}}"#;
    let (one, changes) = adjusted(document, &devices(vec![device("-/dev/a", "", 0, 0)]));
    assert_eq!(changes.len(), 1);
    let (none, changes) = adjusted(&one, &devices(vec![device("-/dev/b", "", 0, 0)]));
    assert_eq!(changes.len(), 2);
    assert!(!none.contains("allow"), "{none}");
}

#[test]
fn a_pipe_needs_no_rule_and_an_unknown_type_is_refused() {
    let (text, changes) = adjusted("{}", &devices(vec![device("/dev/p", "p", 0, 0)]));
    assert_eq!(changes.len(), 1, "{text}");
    for kind in ["", "x", "C"] {
        assert_eq!(invalid_field(&devices(vec![device("/dev/x", kind, 1, 1)])), "Devices[/dev/x]");
    }
    assert_eq!(invalid_field(&devices(vec![device("-", "c", 1, 1)])), "Devices[]");
}

#[test]
fn every_memory_value_is_written() {
    let flag = |value| some(api::OptionalBool { value, ..Default::default() });
    let adjustment = memory(api::LinuxMemory {
        limit: int64(1000),
        reservation: int64(2),
        swap: int64(3000),
        kernel: int64(4),
        kernel_tcp: int64(5),
        swappiness: uint64(0),
        disable_oom_killer: flag(true),
        use_hierarchy: flag(false),
        ..Default::default()
    });
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
        let (text, changes) = adjusted(
            document,
            &memory(api::LinuxMemory { limit: int64(limit), ..Default::default() }),
        );
        let wanted = json!({"swap": limit, "limit": limit, "checkBeforeUpdate": true});
        let spec: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(spec["linux"]["resources"]["memory"], wanted);
        assert_eq!(changes[1].nri_field, "MemLimit");
    }
    let zero = memory(api::LinuxMemory { limit: int64(0), ..Default::default() });
    assert_eq!(patch(document.as_bytes(), &zero).unwrap().bytes, None, "zero leaves it");
    let low = memory(api::LinuxMemory { swap: int64(4), ..Default::default() });
    assert_eq!(refused(document, &low).field(), Some("MemSwapLimit"));
    for alone in ["{}", r#"{"linux":{"resources":{"memory":{"limit":0}}}}"#] {
        assert_eq!(refused(alone, &low).field(), Some("MemSwapLimit"), "no limit beside it");
    }
    let negative = memory(api::LinuxMemory { kernel: int64(-2), ..Default::default() });
    assert_eq!(invalid_field(&negative), "MemKernelLimit");
    let swappiness = memory(api::LinuxMemory { swappiness: uint64(101), ..Default::default() });
    assert_eq!(invalid_field(&swappiness), "MemSwappiness");
}

#[test]
fn a_given_swap_is_used_and_unlimited_memory_unlimits_swap() {
    let document = r#"{"linux":{"resources":{"memory":{"limit":50,"swap":100}}}}"#;
    for (limit, swap, wanted) in [
        (int64(20), int64(60), json!({"limit": 20, "swap": 60})),
        (int64(200), int64(0), json!({"limit": 200, "swap": 200})),
        (int64(200), int64(-1), json!({"limit": 200, "swap": -1})),
        (int64(-1), int64(60), json!({"limit": -1, "swap": -1})),
        (MessageField::none(), int64(60), json!({"limit": 50, "swap": 60})),
    ] {
        let adjustment = memory(api::LinuxMemory { limit, swap, ..Default::default() });
        let (text, _) = adjusted(document, &adjustment);
        let spec: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(spec["linux"]["resources"]["memory"], wanted);
    }
    let low = api::LinuxMemory { limit: int64(20), swap: int64(19), ..Default::default() };
    assert_eq!(invalid_field(&memory(low)), "MemSwapLimit");
    let odd = r#"{"linux":{"resources":{"memory":{"limit":50,"swap":9}}}}"#;
    let other = api::LinuxMemory { reservation: int64(1), ..Default::default() };
    assert!(adjusted(odd, &memory(other)).0.contains("reservation"), "the engine's own business");
}

#[test]
fn cpu_values_are_written_and_the_rest_of_the_section_stays() {
    let document =
        r#"{"linux":{"resources":{"cpu":{ "burst":1e3, "cpus":"0-7", "shares":1024 },"x":1}}}"#;
    let adjustment = cpu(api::LinuxCPU {
        shares: uint64(2),
        quota: int64(-1),
        period: uint64(100_000),
        realtime_runtime: int64(3),
        realtime_period: uint64(4),
        cpus: "1".to_owned(),
        mems: "0".to_owned(),
        ..Default::default()
    });
    let (text, changes) = adjusted(document, &adjustment);
    let wanted = r#"{"linux":{"resources":{"cpu":{ "burst":1e3, "cpus":"1", "shares":2, "quota":-1, "period":100000, "realtimeRuntime":3, "realtimePeriod":4, "mems":"0" },"x":1}}}"#;
    assert_eq!(text, wanted);
    let cpus = changes.iter().find(|change| change.nri_field == "CPUSetCPUs").unwrap();
    assert_eq!(cpus.field, "linux.resources.cpu.cpus");
    assert_eq!(
        (cpus.before.as_ref(), cpus.after.as_ref()),
        (Some(&json!("0-7")), Some(&json!("1")))
    );
    let one = cpu(api::LinuxCPU { shares: uint64(1), ..Default::default() });
    assert_eq!(invalid_field(&one), "CPUShares");
}

#[test]
fn other_resources_are_replaced_by_their_keys() {
    let limit = |page_size: &str, limit| api::HugepageLimit {
        page_size: page_size.to_owned(),
        limit,
        ..Default::default()
    };
    let adjustment = resources(api::LinuxResources {
        hugepage_limits: vec![limit("2M", 1), limit("1GB", 2)],
        unified: [("memory.high".to_owned(), "max".to_owned())].into(),
        pids: some(api::LinuxPids { limit: -1, ..Default::default() }),
        devices: vec![api::LinuxDeviceCgroup {
            allow: true,
            type_: "c".to_owned(),
            major: int64(5),
            access: "r".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    });
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
        let unified = [(key.to_owned(), "1".to_owned())].into();
        let adjustment = resources(api::LinuxResources { unified, ..Default::default() });
        assert_eq!(invalid_field(&adjustment), format!("CgroupsUnified[{key}]"));
    }
    for limit in [0, -2] {
        let pids = some(api::LinuxPids { limit, ..Default::default() });
        let adjustment = resources(api::LinuxResources { pids, ..Default::default() });
        assert_eq!(invalid_field(&adjustment), "PidsLimit");
    }
    let rule = api::LinuxDeviceCgroup { access: "rx".to_owned(), ..Default::default() };
    let adjustment = resources(api::LinuxResources { devices: vec![rule], ..Default::default() });
    assert_eq!(invalid_field(&adjustment), "DeviceRules[deny a *:* rx]");
}

#[test]
fn namespaces_and_sysctls_are_set_and_removed() {
    let namespace = |type_: &str, path: &str| api::LinuxNamespace {
        type_: type_.to_owned(),
        path: path.to_owned(),
        ..Default::default()
    };
    let adjustment = linux(api::LinuxContainerAdjustment {
        namespaces: vec![namespace("-pid", ""), namespace("network", "/n"), namespace("ipc", "")],
        sysctl: [("net.a".to_owned(), "1".to_owned()), ("-net.b".to_owned(), String::new())].into(),
        ..Default::default()
    });
    let document =
        r#"{"linux":{"namespaces":[{"type":"pid"},{"type":"network"}],"sysctl":{"net.b":"2"}}}"#;
    let (text, changes) = adjusted(document, &adjustment);
    let wanted = r#"{"linux":{"namespaces":[{"type":"network","path":"/n"},{"type":"ipc"}],"sysctl":{"net.a":"1"}}}"#;
    assert_eq!(text, wanted);
    assert_eq!(changes.len(), 5);
    let unknown = api::LinuxContainerAdjustment {
        namespaces: vec![namespace("net", "")],
        ..Default::default()
    };
    assert_eq!(invalid_field(&linux(unknown)), "Namespace[net]");
}

#[test]
fn a_field_that_is_not_applied_is_named() {
    use api::LinuxResources as Resources;
    let class = || some(api::OptionalString::default());
    let cdi = api::CDIDevice { name: "v.com/gpu=0".to_owned(), ..Default::default() };
    for (adjustment, named) in [
        (Adjustment { CDI_devices: vec![cdi], ..Default::default() }, "CdiDevices[v.com/gpu=0]"),
        (resources(Resources { blockio_class: class(), ..Default::default() }), "BlockioClass"),
        (resources(Resources { rdt_class: class(), ..Default::default() }), "RdtClass"),
    ] {
        let error = refused("{}", &adjustment);
        assert_eq!(error, PatchError::NotApplied { field: named.to_owned() });
        assert!(error.to_string().contains(named));
    }
}

#[test]
fn an_overlay_equals_the_patchs_values() {
    let resources = api::LinuxResources {
        memory: some(api::LinuxMemory { limit: int64(9), ..Default::default() }),
        cpu: some(api::LinuxCPU { cpus: "1".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let overlay = Value::Object(
        crate::spec::overlay::overlay_of(&resources, &crate::spec::patch::Resolved::default())
            .unwrap(),
    );
    assert_eq!(overlay, json!({"memory": {"limit": 9, "swap": 9}, "cpu": {"cpus": "1"}}));
    let (text, _) = adjusted("{}", &self::resources(resources));
    let spec: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(spec["linux"]["resources"], overlay);
}

#[test]
fn values_implied_by_cgroup_v2_are_omitted_unless_present() {
    let adjust = memory(api::LinuxMemory {
        kernel: int64(-1),
        use_hierarchy: some(api::OptionalBool { value: true, ..Default::default() }),
        limit: int64(4096),
        ..Default::default()
    });
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
