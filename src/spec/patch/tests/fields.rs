// SPDX-License-Identifier: Apache-2.0
//! Tests scheduler, I/O priority, seccomp, network devices, memory policy, RDT.

use serde_json::{Value, json};

use super::{Adjustment, HostFacts, adjusted, invalid_field, linux, net_devices, patch};
use crate::spec::patch::patch_anyway;

fn io_priority(class: i32, priority: i32) -> Adjustment {
    linux(&json!({"ioPriority": {"class": class, "priority": priority}}))
}

fn scheduler(scheduler: &Value) -> Adjustment {
    linux(&json!({ "scheduler": scheduler }))
}

fn seccomp(policy: &Value) -> Adjustment {
    linux(&json!({ "seccompPolicy": policy }))
}

fn memory_policy(mode: i32, nodes: &str, flags: &[i32]) -> Adjustment {
    linux(&json!({"memoryPolicy": {"mode": mode, "nodes": nodes, "flags": flags}}))
}

fn rdt(clos_id: Option<&str>, schemata: Option<&[&str]>, remove: bool) -> Adjustment {
    let [clos_id, schemata] = [json!(clos_id), json!(schemata)]
        .map(|value| if value.is_null() { value } else { json!({ "value": value }) });
    linux(&json!({"rdt": {"closId": clos_id, "schemata": schemata, "remove": remove}}))
}

/// Returns the resulting document, and `(field, NRI field)` of each change; checks that applying the adjustment
/// again changes nothing.
fn outcome(document: &str, adjustment: &Adjustment) -> (String, Vec<(String, String)>) {
    let (text, changes) = adjusted(document, adjustment);
    assert_eq!(patch(text.as_bytes(), adjustment).unwrap().bytes, None, "{text}");
    (text, changes.into_iter().map(|change| (change.field, change.nri_field)).collect())
}

fn names(names: &[(&str, &str)]) -> Vec<(String, String)> {
    names.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn an_io_priority_is_set_replaced_and_removed() {
    let document = r#"{"process":{"ioPriority":{"class":"IOPRIO_CLASS_BE","x":1},"cwd":"/"}}"#;
    let (text, changes) = outcome(document, &io_priority(1, 0));
    let wanted = r#"{"process":{"ioPriority":{"class":"IOPRIO_CLASS_RT","priority":0},"cwd":"/"}}"#;
    assert_eq!(text, wanted);
    assert_eq!(changes, names(&[("process.ioPriority", "IoPriority")]));
    let (text, changes) = outcome(document, &io_priority(0, 9));
    assert_eq!((text.as_str(), changes.len()), (r#"{"process":{"cwd":"/"}}"#, 1));
    assert_eq!(patch(b"{}", &io_priority(0, 0)).unwrap().bytes, None);
    let (text, _) = outcome("{}", &io_priority(3, 7));
    assert_eq!(text, r#"{"process":{"ioPriority":{"class":"IOPRIO_CLASS_IDLE","priority":7}}}"#);
}

#[test]
fn an_io_priority_unknown_to_the_kernel_is_refused() {
    for (class, priority) in [(4, 0), (-1, 0), (2, 8), (2, -1)] {
        assert_eq!(invalid_field(&io_priority(class, priority)), "IoPriority");
    }
}

#[test]
fn a_scheduler_is_set_replaced_and_removed() {
    let document = r#"{"process":{"scheduler":{"policy":"SCHED_FIFO","priority":5},"cwd":"/"}}"#;
    let nice = json!({"policy": 4, "nice": -20, "flags": [0, 3]});
    let (text, changes) = outcome(document, &scheduler(&nice));
    let wanted = r#"{"process":{"scheduler":{"policy":"SCHED_BATCH","nice":-20,"flags":["SCHED_FLAG_RESET_ON_FORK","SCHED_FLAG_KEEP_POLICY"]},"cwd":"/"}}"#;
    assert_eq!(text, wanted);
    assert_eq!(changes, names(&[("process.scheduler", "LinuxSched")]));
    let (text, _) = outcome(document, &scheduler(&json!({"policy": 0})));
    assert_eq!(text, r#"{"process":{"cwd":"/"}}"#);
    let deadline = json!({"policy": 7, "runtime": 1, "deadline": 2, "period": u64::MAX});
    let (text, _) = outcome("{}", &scheduler(&deadline));
    let wanted = r#"{"process":{"scheduler":{"policy":"SCHED_DEADLINE","runtime":1,"deadline":2,"period":18446744073709551615}}}"#;
    assert_eq!(text, wanted);
    let (text, _) = outcome("{}", &scheduler(&json!({"policy": 3, "priority": 99})));
    assert!(text.contains(r#""SCHED_RR","priority":99}"#));
}

#[test]
fn a_scheduler_unknown_to_the_kernel_is_refused() {
    for odd in [
        json!({"policy": 8}),
        json!({"policy": -1}),
        json!({"policy": 1, "nice": 20}),
        json!({"policy": 1, "nice": -21}),
        json!({"policy": 1, "priority": 1}),
        json!({"policy": 2, "priority": 0}),
        json!({"policy": 2, "priority": 100}),
        json!({"policy": 1, "runtime": 1, "deadline": 1, "period": 1}),
        json!({"policy": 7}),
        json!({"policy": 7, "runtime": 3, "deadline": 2, "period": 4}),
        json!({"policy": 7, "runtime": 1, "deadline": 5, "period": 4}),
        json!({"policy": 1, "flags": [7]}),
    ] {
        assert_eq!(invalid_field(&scheduler(&odd)), "LinuxSched", "{odd}");
    }
}

#[test]
fn a_seccomp_policy_is_written_in_full() {
    let policy = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrno": {"value": 38},
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "listenerPath": "/run/l",
        "listenerMetadata": "m\n",
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["_llseek"], "action": "SCMP_ACT_ERRNO", "errnoRet": {"value": 0}, "args": [
                {"index": 0, "value": u64::MAX, "op": "SCMP_CMP_EQ"},
                {"index": 5, "value": u64::MAX, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"},
            ]},
        ],
    });
    let document = r#"{"linux":{"seccomp":{"defaultAction":"SCMP_ACT_LOG","x":1},"vendor":1.0}}"#;
    let (text, changes) = outcome(document, &seccomp(&policy));
    let wanted = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "listenerPath": "/run/l",
        "listenerMetadata": "m\n",
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["_llseek"], "action": "SCMP_ACT_ERRNO", "errnoRet": 0, "args": [
                {"index": 0, "value": u64::MAX, "op": "SCMP_CMP_EQ"},
                {"index": 5, "value": u64::MAX, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"},
            ]},
        ],
    });
    assert_eq!(text, format!(r#"{{"linux":{{"seccomp":{wanted},"vendor":1.0}}}}"#));
    assert_eq!(changes, names(&[("linux.seccomp", "SeccompPolicy")]));
    let (text, _) = outcome("{}", &seccomp(&json!({"defaultAction": "SCMP_ACT_ALLOW"})));
    assert_eq!(text, r#"{"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"}}}"#);
}

#[test]
fn a_dry_run_shows_empty_required_members_of_a_policy() {
    let policy = json!({"defaultAction": "", "syscalls": [{"names": [], "action": ""}]});
    let (patched, doubts) = patch_anyway(b"{}", &seccomp(&policy), &HostFacts::default()).unwrap();
    let shown: Value = serde_json::from_slice(&patched.bytes.unwrap()).unwrap();
    assert_eq!(shown["linux"]["seccomp"], policy);
    assert_eq!(doubts.len(), 3);
}

#[test]
fn invalid_seccomp_names_are_refused() {
    let with = |key: &str, value: Value| json!({"defaultAction": "SCMP_ACT_ALLOW", key: value});
    let of_rule = |names: &[&str], action: &str, key: &str, value: Value| {
        with("syscalls", json!([{"names": names, "action": action, key: value}]))
    };
    let of_arg = |index: u32, op: &str| {
        let args = json!([{"index": index, "value": u64::MAX, "op": op}]);
        of_rule(&["read"], "SCMP_ACT_ALLOW", "args", args)
    };
    let odd_errno = || json!({"value": 0x1_0000});
    for policy in [
        json!({}),
        json!({"defaultAction": "allow"}),
        json!({"defaultAction": "SCMP_ACT_"}),
        json!({"defaultAction": "SCMP_ACT_A
"}),
        with("defaultErrno", odd_errno()),
        with("architectures", json!(["x86_64"])),
        with("flags", json!(["SCMP_ACT_LOG"])),
        with("listenerPath", json!("run/l")),
        with("listenerPath", json!("/run/l\0")),
        with("listenerMetadata", json!("m")),
        of_rule(&[""], "SCMP_ACT_ALLOW", "args", json!([])),
        of_rule(&["read write"], "SCMP_ACT_ALLOW", "args", json!([])),
        of_rule(&["read"], "", "args", json!([])),
        of_rule(&[], "SCMP_ACT_ALLOW", "args", json!([])),
        of_rule(&["read"], "SCMP_ACT_ERRNO", "errnoRet", odd_errno()),
        of_arg(6, "SCMP_CMP_EQ"),
        of_arg(0, "=="),
    ] {
        assert_eq!(invalid_field(&seccomp(&policy)), "SeccompPolicy", "{policy}");
    }
}

#[test]
fn network_devices_are_removed_before_they_are_set() {
    let document =
        r#"{"linux":{"netDevices":{"k\u0065ep":{ },"eth0":{"name":"a"},"eth1":{"name":"b"}}}}"#;
    let wanted_devices = [("-eth0", ""), ("eth0", "x"), ("-eth1", "y"), ("eth2", ""), ("-no", "")];
    let (text, changes) = outcome(document, &net_devices(&wanted_devices));
    let wanted = r#"{"linux":{"netDevices":{"k\u0065ep":{ },"eth0":{"name":"x"},"eth2":{}}}}"#;
    assert_eq!(text, wanted);
    let each =
        |name: &str| (format!("linux.netDevices[{name}]"), format!("LinuxNetDevices[{name}]"));
    assert_eq!(changes, [each("eth0"), each("eth1"), each("eth2")]);
    assert_eq!(patch(b"{}", &net_devices(&[("-eth0", "")])).unwrap().bytes, None);
}

#[test]
fn invalid_network_device_names_are_refused() {
    let exactly = "abcdefghijklmno";
    assert!(outcome("{}", &net_devices(&[(exactly, exactly)])).0.contains(exactly));
    for name in
        ["abcdefghijklmnop", "a/b", "..", ".", "a b", "a\tb", "a\u{a0}b", "a:1", "eth%d", "a\0"]
    {
        for device in [(name, "x"), (name, ""), ("eth0", name)] {
            let field = invalid_field(&net_devices(&[device]));
            assert!(field.starts_with("LinuxNetDevices["), "{field}");
        }
    }
    for nameless in ["", "-"] {
        assert_eq!(invalid_field(&net_devices(&[(nameless, "x")])), "LinuxNetDevices[]");
    }
}

#[test]
fn a_memory_policy_is_set_as_a_whole_even_with_mode_zero() {
    let document = r#"{"linux":{"memoryPolicy":{"mode":"MPOL_BIND","nodes":"0"},"x":1}}"#;
    let (text, changes) = outcome(document, &memory_policy(6, "0-1,3,65535", &[0, 2]));
    let wanted = r#"{"linux":{"memoryPolicy":{"mode":"MPOL_WEIGHTED_INTERLEAVE","nodes":"0-1,3,65535","flags":["MPOL_F_STATIC_NODES","MPOL_F_NUMA_BALANCING"]},"x":1}}"#;
    assert_eq!(text, wanted);
    assert_eq!(changes, names(&[("linux.memoryPolicy", "MemoryPolicy")]));
    let (text, _) = outcome(document, &memory_policy(0, "", &[]));
    assert_eq!(text, r#"{"linux":{"memoryPolicy":{"mode":"MPOL_DEFAULT"},"x":1}}"#);
}

#[test]
fn a_memory_policy_with_invalid_mode_flags_or_nodes_is_refused() {
    for (mode, flags) in [(7, vec![]), (-1, vec![]), (2, vec![3]), (2, vec![0, -1])] {
        assert_eq!(invalid_field(&memory_policy(mode, "0", &flags)), "MemoryPolicy");
    }
    for (mode, nodes) in [(0, "0"), (4, "0"), (2, ""), (3, ""), (5, ""), (6, "")] {
        assert_eq!(invalid_field(&memory_policy(mode, nodes, &[])), "MemoryPolicy", "{mode}");
    }
    assert!(outcome("{}", &memory_policy(1, "", &[])).0.contains("MPOL_PREFERRED"));
    for nodes in [
        ",", "0,", "-1", "1-", "2-1", "0-1-2", "+1", "0 1", " 0", "a", "65536", "0\n1", "all",
        "0x1",
    ] {
        assert_eq!(invalid_field(&memory_policy(2, nodes, &[])), "MemoryPolicy", "{nodes}");
    }
}

const RDT: &str = r#"{"linux":{"intelRdt":{"closID":"old","l3CacheSchema":"L3:0=f", "enableCMT":true,"x":1.0},"y":2}}"#;

#[test]
fn unset_rdt_members_stay() {
    let (text, changes) = outcome(RDT, &rdt(Some("new"), Some(&["MB:0=70", "L3:0=f"]), false));
    let wanted = r#"{"linux":{"intelRdt":{"closID":"new","l3CacheSchema":"L3:0=f", "enableCMT":true,"x":1.0,"schemata":["MB:0=70","L3:0=f"]},"y":2}}"#;
    assert_eq!(text, wanted);
    let wanted =
        [("linux.intelRdt.closID", "RdtClosID"), ("linux.intelRdt.schemata", "RdtSchemata")];
    assert_eq!(changes, names(&wanted));
    let monitoring = linux(&json!({"rdt": {"enableMonitoring": {"value": false}}}));
    let (text, changes) = outcome("{}", &monitoring);
    assert_eq!(text, r#"{"linux":{"intelRdt":{"enableMonitoring":false}}}"#);
    assert_eq!(changes, names(&[("linux.intelRdt.enableMonitoring", "RdtEnableMonitoring")]));
    let (text, _) = outcome(RDT, &rdt(Some(""), Some(&[]), false));
    assert_eq!(text, RDT.replace(r#""closID":"old","#, ""), "empty is the runtime's choice");
    assert_eq!(patch(RDT.as_bytes(), &rdt(None, None, false)).unwrap().bytes, None);
}

#[test]
fn a_removed_rdt_leaves_only_values_set_with_it() {
    let (text, changes) = outcome(RDT, &rdt(None, None, true));
    assert_eq!(text, r#"{"linux":{"y":2}}"#);
    let gone = [
        ("linux.intelRdt.closID", "RdtClosID"),
        ("linux.intelRdt.l3CacheSchema", "RdtSchemata"),
        ("linux.intelRdt.enableCMT", "RdtEnableMonitoring"),
        ("linux.intelRdt.x", "RdtClosID"),
    ];
    assert_eq!(changes, names(&gone));
    let (text, changes) = outcome(RDT, &rdt(Some("old"), Some(&["MB:0=70"]), true));
    let wanted = r#"{"linux":{"intelRdt":{"closID":"old","schemata":["MB:0=70"]},"y":2}}"#;
    assert_eq!(text, wanted);
    assert_eq!(changes.len(), 4, "all but closID: {changes:?}");
    assert_eq!(patch(b"{}", &rdt(None, None, true)).unwrap().bytes, None);
    let (text, changes) = outcome(r#"{"linux":{"intelRdt":{}}}"#, &rdt(None, None, true));
    assert_eq!((text.as_str(), changes.len()), (r#"{"linux":{}}"#, 1));
    let (text, _) = outcome("{}", &rdt(Some("new"), None, true));
    assert_eq!(text, r#"{"linux":{"intelRdt":{"closID":"new"}}}"#);
}

#[test]
fn rdt_names_that_lead_elsewhere_are_refused() {
    let long = "c".repeat(256);
    for clos_id in ["/", "a/b", ".", "..", "../x", "info", "mon_groups", "a\nb", "a\0", &long] {
        assert_eq!(invalid_field(&rdt(Some(clos_id), None, false)), "RdtClosID");
        assert_eq!(invalid_field(&rdt(Some(clos_id), None, true)), "RdtClosID");
    }
    for line in ["MB:0=70\nL3:0=1", "", "MB", "MB:0=\0", "MB:0=70\r"] {
        let adjustment = rdt(None, Some(&["L3:0=f", line]), false);
        assert_eq!(invalid_field(&adjustment), "RdtSchemata");
    }
}

#[test]
fn a_section_that_is_not_an_object_is_refused_or_replaced() {
    let document = r#"{"linux":{"intelRdt":5,"netDevices":[],"seccomp":5}}"#;
    for adjustment in [rdt(Some("a"), None, false), net_devices(&[("a", "b")])] {
        assert_eq!(super::refused(document, &adjustment).field(), None);
    }
    let (text, _) = outcome(document, &seccomp(&json!({"defaultAction": "SCMP_ACT_ALLOW"})));
    let spec: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(spec["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ALLOW");
    let (text, _) = outcome(document, &rdt(None, None, true));
    assert_eq!(text, r#"{"linux":{"netDevices":[],"seccomp":5}}"#);
}
