// SPDX-License-Identifier: Apache-2.0
//! Tests that values are refused if they lead out of the container, are ambiguous, or are accepted
//! by no kernel; and that similar values are accepted.

use serde_json::{Value, json};

use super::{
    Adjustment, adjusted, annotations, asks, cpu, invalid_field, linux, net_devices, refused,
    resources,
};
use crate::spec::patch::{HostFacts, patch_on};

fn device(path: &str, kind: &str, (major, minor): (i64, i64), mode: u32) -> Adjustment {
    let mode = json!({ "value": mode });
    let device =
        json!({"path": path, "type": kind, "major": major, "minor": minor, "fileMode": mode});
    linux(&json!({"devices": [device]}))
}

fn cgroups_path(path: &str) -> Adjustment {
    linux(&json!({ "cgroupsPath": path }))
}

fn sysctl(key: &str) -> Adjustment {
    linux(&json!({"sysctl": {key: "1"}}))
}

fn hugepage(page_size: &str) -> Adjustment {
    resources(&json!({"hugepageLimits": [{"pageSize": page_size, "limit": 1}]}))
}

fn mount(destination: &str, source: &str, option: &str) -> Adjustment {
    asks(&json!({"mounts": [{"destination": destination, "source": source, "options": [option]}]}))
}

fn spec(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_negative_device_number_is_not_a_wildcard() {
    for numbers in [(-1, 3), (1, -1), (-1, -1), (4096, 0), (1, 0x10_0000), (i64::MAX, 0)] {
        for kind in ["c", "u", "b"] {
            assert_eq!(invalid_field(&device("/dev/x", kind, numbers, 0)), "Devices[/dev/x]");
        }
    }
    adjusted("{}", &device("/dev/x", "b", (4095, 0xf_ffff), 0o600));
    adjusted("{}", &device("/dev/pipe", "p", (-1, -1), 0o600));
}

#[test]
fn a_device_is_made_inside_the_container_as_described() {
    for path in ["dev/x", "../x", "/dev/../../x", "/..", "/dev/x\0"] {
        let field = invalid_field(&device(path, "c", (1, 3), 0));
        assert!(field.starts_with("Devices["), "{field}");
    }
    adjusted("{}", &device("/dev/..x", "c", (1, 3), 0));
    // File types as in stat(2), matching and others, and as in Go's os.FileMode.
    for mode in [0o666, 0o020_666, 0o060_666, 0o010_666, 0o100_666, 0x0420_0000 | 0o666] {
        let (text, _) = adjusted("{}", &device("/dev/x", "c", (1, 3), mode));
        assert_eq!(spec(&text)["linux"]["devices"][0]["fileMode"], 0o666);
    }
}

#[test]
fn no_container_is_put_into_the_hosts_own_cgroup() {
    for path in ["/", "//", "/./", ".", "/../x", "/a/../../b", "..", "/a\n", "a\0"] {
        assert_eq!(invalid_field(&cgroups_path(path)), "CgroupsPath", "{path:?}");
    }
    for path in ["a.slice:x:", "a:../../..:c1", "a.slice:../x:c1", "a.slice:x:/c1", "::"] {
        assert_eq!(invalid_field(&cgroups_path(path)), "CgroupsPath", "{path:?}");
    }
    for path in ["/a/b", "a/b", "/a/..b", "a.slice:nri:c1", ":nri:c1", "::c1", "/a:b:c", "a:b:c"] {
        let (text, _) = adjusted(r#"{"linux":{"cgroupsPath":"/shop/c1"}}"#, &cgroups_path(path));
        assert_eq!(spec(&text)["linux"]["cgroupsPath"], path);
    }
}

#[test]
fn with_systemd_a_plain_cgroup_path_is_refused() {
    let document = r#"{"linux":{"cgroupsPath":"a.slice:crio:c1"}}"#;
    assert_eq!(refused(document, &cgroups_path("/a/c1")).field(), Some("CgroupsPath"));
    assert_eq!(refused(document, &cgroups_path("a:crio:c1")).field(), Some("CgroupsPath"));
    adjusted(document, &cgroups_path("b.slice:crio:c1"));
}

const OWN: &str =
    r#"{"linux":{"namespaces":[ {"type":"network"},{"type":"ipc","path":"/n"}, {"type":"uts"}]}}"#;

#[test]
fn a_sysctl_of_the_whole_host_is_refused() {
    for key in [
        "kernel.core_pattern",
        "kernel.panic",
        "vm.swappiness",
        "fs.file-max",
        "fs.mqueue",
        "net",
        "kernel/core_pattern",
        "kernel.msgmax.x",
        "netx.a",
    ] {
        assert_eq!(refused(OWN, &sysctl(key)).field(), Some(&*format!("Sysctl[{key}]")));
        assert_eq!(refused("{}", &sysctl(key)).field(), Some(&*format!("Sysctl[{key}]")));
    }
}

#[test]
fn an_invalid_sysctl_name_is_refused() {
    for key in ["", ".", "net..a", "net/../kernel/panic", "net/./a", "/net/a", "net.a\0", "net.a b"]
    {
        assert!(invalid_field(&sysctl(key)).starts_with("Sysctl["), "{key:?}");
    }
    assert_eq!(invalid_field(&linux(&json!({"sysctl": {"-": ""}}))), "Sysctl[]");
}

#[test]
fn a_sysctl_needs_a_namespace_of_the_containers_own() {
    for key in [
        "net.ipv4.ip_forward",
        "net/ipv4/conf/eth0.100/forwarding",
        "fs.mqueue.msg_max",
        "kernel.shmmax",
        "kernel.domainname",
    ] {
        let (text, changes) = adjusted(OWN, &sysctl(key));
        assert_eq!(changes.len(), 1);
        let wanted = OWN.replace("]}}", &format!("],\"sysctl\":{{\"{key}\":\"1\"}}}}}}"));
        assert_eq!(text, wanted, "the list of namespaces is only read");
        let without = r#"{"linux":{"namespaces":[{"type":"mount"}]}}"#;
        assert_eq!(refused(without, &sysctl(key)).field(), Some(&*format!("Sysctl[{key}]")));
        let (text, _) = adjusted("{}", &sysctl(key));
        assert_eq!(spec(&text), json!({"linux": {"sysctl": {key: "1"}}}), "the runtime's to judge");
    }
    refused(OWN, &sysctl("user.max_net_namespaces"));
}

#[test]
fn without_its_namespace_a_sysctl_may_only_be_removed() {
    let both = linux(&json!({"sysctl": {"net.a": "1"}, "namespaces": [{"type": "-network"}]}));
    assert_eq!(refused(OWN, &both).field(), Some("Sysctl[net.a]"));
    let removal = linux(&json!({"sysctl": {"-kernel.core_pattern": ""}}));
    let (text, _) = adjusted(r#"{"linux":{"sysctl":{"kernel.core_pattern":"x"}}}"#, &removal);
    assert_eq!(text, r#"{"linux":{"sysctl":{}}}"#, "what harms may always go");
}

#[test]
fn a_namespace_is_joined_by_an_absolute_path() {
    let namespace = |path| linux(&json!({"namespaces": [{"type": "network", "path": path}]}));
    for path in ["netns/shop", "../n", "/n\0"] {
        assert_eq!(invalid_field(&namespace(path)), "Namespace[network]");
    }
    adjusted("{}", &namespace("/run/netns/shop"));
}

#[test]
fn a_page_size_cannot_name_another_file() {
    for size in ["", "../x", "2MB/../x", "2MB.rsvd", "MB", "2", "2XB", "1TB", "-2MB", "2 MB"] {
        let field = invalid_field(&hugepage(size));
        assert!(field.starts_with("HugepageLimits["), "{field}");
    }
    let there = r#"{"linux":{"resources":{"hugepageLimits":[{"pageSize":"2MB","limit":9}]}}}"#;
    for size in ["2MB", "2M", "2MiB", "2048KB", "2mb"] {
        let (text, changes) = adjusted(there, &hugepage(size));
        assert_eq!(text, there.replace('9', "1"), "{size}");
        assert_eq!(changes[0].nri_field, "HugepageLimits[2MB]", "as its owner is found by");
    }
}

#[test]
fn cpu_time_that_no_kernel_accepts_is_refused() {
    for quota in [1, 999] {
        assert_eq!(invalid_field(&cpu(&json!({"quota": {"value": quota}}))), "CPUQuota");
    }
    for period in [1, 999, 1_000_001, u64::MAX] {
        assert_eq!(invalid_field(&cpu(&json!({"period": {"value": period}}))), "CPUPeriod");
    }
    for (quota, period) in [(-1, 1000), (0, 0), (1000, 1_000_000), (i64::MIN, 1000)] {
        adjusted("{}", &cpu(&json!({"quota": {"value": quota}, "period": {"value": period}})));
    }
}

#[test]
fn an_invalid_list_of_cpus_is_refused() {
    let of = |cpus: &str, mems: &str| cpu(&json!({"cpus": cpus, "mems": mems}));
    for list in ["a", "1-", "3-1", ",", " , ", "-1", "0;1", "0\0", "all", "99999"] {
        assert_eq!(invalid_field(&of(list, "")), "CPUSetCPUs", "{list}");
        assert_eq!(invalid_field(&of("", list)), "CPUSetMems", "{list}");
    }
    for list in ["0", "0-3,8", "0-3, 8", "0-3\n", "0,", ",0,,2"] {
        let (text, _) = adjusted("{}", &of(list, list));
        let wanted = json!({"cpus": list, "mems": list});
        assert_eq!(spec(&text)["linux"]["resources"]["cpu"], wanted, "as the plugin wrote it");
    }
}

#[test]
fn a_device_rule_is_named_by_its_text_also_if_it_is_refused() {
    let rule = |kind: &str, major: i64, access: &str| {
        let major = json!({ "value": major });
        resources(
            &json!({"devices": [{"allow": true, "type": kind, "major": major, "access": access}]}),
        )
    };
    let (_, changes) = adjusted("{}", &rule("c", 10, "rw"));
    assert_eq!(changes[0].nri_field, "DeviceRules[allow c 10:* rw]");
    adjusted("{}", &rule("b", -1, ""));
    for odd in [rule("u", 1, "r"), rule("c", 1, "x"), rule("c", -2, "r"), rule("c", 1 << 32, "r")] {
        let field = invalid_field(&odd);
        assert!(field.starts_with("DeviceRules[allow "), "{field}");
    }
}

#[test]
fn a_mount_is_named_by_its_normalized_destination() {
    for destination in ["/data", "/data/", "data", "//x/../data"] {
        let (_, changes) = adjusted("{}", &mount(destination, "/src", "ro"));
        assert_eq!(changes[0].nri_field, "Mounts[/data]", "{destination}");
    }
    let (_, changes) = adjusted("{\"linux\":{}}", &mount("/data/", "/src", "rshared"));
    assert_eq!(changes.len(), 1, "it is no bind mount");
    for odd in [mount("/a\0", "/s", "ro"), mount("/a", "/s\0", "ro"), mount("/a", "/s", "ro\0")] {
        assert!(invalid_field(&odd).starts_with("Mounts[/a"));
    }
}

#[test]
fn a_hook_with_a_nul_byte_or_an_overlong_timeout_is_refused() {
    let of = |path: &str, arg: &str, variable: &str, timeout: i64| {
        let timeout = json!({ "value": timeout });
        let hook = json!({"path": path, "args": [arg], "env": [variable], "timeout": timeout});
        asks(&json!({"hooks": {"poststop": [hook]}}))
    };
    adjusted("{}", &of("/x", "x", "A=1", i64::from(i32::MAX)));
    for odd in [
        of("/x\0", "x", "A=1", 1),
        of("/x", "x\0", "A=1", 1),
        of("/x", "x", "A=1\0", 1),
        of("/x", "x", "A=1", i64::from(i32::MAX) + 1),
        of("/x", "x", "A=1", i64::MAX),
    ] {
        assert_eq!(invalid_field(&odd), "OciHooks");
    }
}

#[test]
fn annotations_that_another_runtime_acts_on_are_refused_as_well() {
    let of = |key| annotations(&[(key, "1")]);
    for key in ["run.oci.handler", "run.oci.hooks.stdout", "module.wasm.image/variant", "krun.cpus"]
    {
        assert_eq!(invalid_field(&of(key)), format!("Annotations[{key}]"));
    }
    let document = r#"{"annotations":{"io.kubernetes.cri.container-type":"container"}}"#;
    refused(document, &of("io.kubernetes.cri.container-type"));
    adjusted(document, &of("run.ocix"));
}

#[test]
fn permitted_runtime_annotations_are_set_but_never_bundle() {
    let allowed = ["run.oci.handler", "bundle"].map(str::to_owned).into();
    let facts = HostFacts { runtime_annotations: allowed, ..HostFacts::default() };
    let patched = |key| patch_on(b"{}", &annotations(&[(key, "1")]), &facts);
    let bytes = patched("run.oci.handler").unwrap().bytes.unwrap();
    assert_eq!(bytes, br#"{"annotations":{"run.oci.handler":"1"}}"#);
    for key in ["bundle", "run.oci.other", "a=b"] {
        let field = format!("Annotations[{key}]");
        assert_eq!(patched(key).unwrap_err().field(), Some(&*field));
    }
}

#[test]
fn a_seccomp_filter_that_would_stop_the_runtime_is_refused() {
    let of = |default_action: &str, name: &str, listener_path: &str| {
        let rule = json!({"names": ["read", name], "action": "SCMP_ACT_NOTIFY"});
        linux(&json!({"seccompPolicy": {
            "defaultAction": default_action, "listenerPath": listener_path, "syscalls": [rule],
        }}))
    };
    adjusted("{}", &of("SCMP_ACT_ALLOW", "mkdir", "/run/l"));
    for odd in [
        of("SCMP_ACT_NOTIFY", "mkdir", "/run/l"),
        of("SCMP_ACT_ALLOW", "write", "/run/l"),
        of("SCMP_ACT_ALLOW", "mkdir", ""),
    ] {
        assert_eq!(invalid_field(&odd), "SeccompPolicy");
    }
}

#[test]
fn two_network_devices_cannot_have_one_name() {
    for devices in [[("eth1", "x"), ("eth2", "x")], [("eth1", "eth2"), ("eth2", "")]] {
        assert_eq!(invalid_field(&net_devices(&devices)), "LinuxNetDevices[eth2]");
    }
    adjusted("{}", &net_devices(&[("eth1", "eth2"), ("eth2", "eth1")]));
    adjusted("{}", &net_devices(&[("eth1", "eth2"), ("-eth2", "")]));
}

#[test]
fn memory_policy_nodes_cannot_be_both_static_and_relative() {
    let of = |flags: [&str; 2]| {
        linux(&json!({"memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0", "flags": flags}}))
    };
    let [fixed, relative] = ["MPOL_F_STATIC_NODES", "MPOL_F_RELATIVE_NODES"];
    assert_eq!(invalid_field(&of([fixed, relative])), "MemoryPolicy");
    for flags in [[fixed, "MPOL_F_NUMA_BALANCING"], [relative; 2]] {
        adjusted("{}", &of(flags));
    }
}
