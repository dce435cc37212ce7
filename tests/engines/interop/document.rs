// SPDX-License-Identifier: Apache-2.0
//! A document with values of each kind to keep, replace and remove; and the result of each plugin
//! version, written manually from `stubs/adjust*.go`.

use serde_json::{Value, json};
use test_support::TestHost;

/// The engine's document.
pub(super) fn original() -> Value {
    json!({
        "ociVersion": "1.0.2",
        "x-vendor": {"kept": [1.5, null]},
        "annotations": {"stub/gone": "1", "stub/kept": "before", "other": "stays"},
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["sleep", "1"],
            "env": ["PATH=/bin", "GONE=1", "KEPT=before", "LAST=1"],
            "rlimits": [
                {"type": "RLIMIT_CORE", "hard": 1, "soft": 1},
                {"type": "RLIMIT_NOFILE", "hard": 10, "soft": 10},
            ],
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/gone", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {
            "namespaces": [{"type": "mount"}, {"type": "network"}, {"type": "uts"}, {"type": "ipc"}],
            "devices": [{"path": "/dev/gone", "type": "c", "major": 1, "minor": 5}],
            "sysctl": {"net.gone": "1", "net.stays": "1"},
            "netDevices": {"eth6": {}, "eth5": {"name": "stays"}},
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "cpu": {"shares": 1024, "x-future": true},
                "hugepageLimits": [{"pageSize": "2MB", "limit": 1}, {"pageSize": "1GB", "limit": 2}],
            },
        },
    })
}

/// Defines the names of classes and devices on a node that lacks nothing; returns the configuration
/// with their paths.
pub(super) fn furnish_host(host: &TestHost) -> String {
    for folder in ["cdi", "resctrl/info", "resctrl/silver", "resctrl/gold"] {
        std::fs::create_dir_all(host.path(folder)).unwrap();
    }
    let device = json!({
        "cdiVersion": "0.6.0",
        "kind": "vendor.com/device",
        "devices": [{"name": "one", "containerEdits": {"env": ["CDI=one"]}}],
    });
    host.write("cdi/vendor.json", &device.to_string());
    host.write("blockio.yaml", "Classes:\n  gold:\n  - Weight: 80\n");
    format!(
        "[cdi]\nspec_dirs = [\"{}\"]\n[blockio]\nconfig_file = \"{}\"\n[rdt]\nresctrl_path = \"{}\"\n[debug]\nnode_root = \"{}\"\n",
        host.path("cdi").display(),
        host.path("blockio.yaml").display(),
        host.path("resctrl").display(),
        host.path("").display(),
    )
}

fn hook(name: &str) -> Value {
    json!([{"path": format!("/bin/{name}"), "args": [name, "now"], "env": ["H=1"], "timeout": 7}])
}

/// The document after the plugin on NRI v0.`minor`.
pub(super) fn adjusted(minor: u32) -> Value {
    let mut document = original();
    for (since, adjust) in [
        (2, from_the_start as fn(&mut Value)),
        (4, v0_4),
        (7, v0_7),
        (10, v0_10),
        (11, v0_11),
        (12, v0_12),
    ] {
        if minor >= since {
            adjust(&mut document);
        }
    }
    document
}

fn from_the_start(document: &mut Value) {
    document["annotations"] = json!({"stub/kept": "after", "stub/new": "yes", "other": "stays"});
    document["process"]["env"] = json!(["PATH=/bin", "KEPT=after", "LAST=1", "NEW=yes"]);
    document["hooks"] = json!({
        "prestart": hook("prestart"), "createRuntime": hook("createRuntime"),
        "createContainer": hook("createContainer"), "startContainer": hook("startContainer"),
        "poststart": hook("poststart"), "poststop": hook("poststop"),
    });
    document["mounts"] = json!([
        {"destination": "/new", "type": "bind", "source": "/etc", "options": ["rbind", "ro"]},
        {"destination": "/proc", "type": "proc", "source": "proc"},
    ]);
    let linux = &mut document["linux"];
    linux["devices"] = json!([{
        "path": "/dev/new", "type": "c", "major": 1, "minor": 3, "fileMode": 0o640, "uid": 5, "gid": 6,
    }]);
    linux["cgroupsPath"] = json!("/stub/path");
    linux["intelRdt"] = json!({"closID": "silver"});
    linux["resources"] = json!({
        "devices": [
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
            {"allow": true, "type": "c", "major": 10, "minor": 200, "access": "rw"},
        ],
        "memory": {
            "limit": 64 << 20, "reservation": 32 << 20, "swap": 96 << 20, "kernel": 16 << 20,
            "kernelTCP": 8 << 20, "swappiness": 40, "disableOOMKiller": true, "useHierarchy": true,
        },
        "cpu": {
            "shares": 300, "x-future": true, "quota": 20000, "period": 50000,
            "realtimeRuntime": 100, "realtimePeriod": 1000, "cpus": "0", "mems": "0",
        },
        "hugepageLimits": [{"pageSize": "2MB", "limit": 4 << 20}, {"pageSize": "1GB", "limit": 2}],
        "unified": {"memory.high": "50000000"},
        "blockIO": {"weight": 80},
    });
}

fn v0_4(document: &mut Value) {
    document["process"]["rlimits"][1] =
        json!({"type": "RLIMIT_NOFILE", "hard": 2048, "soft": 1024});
}

fn v0_7(document: &mut Value) {
    let process = &mut document["process"];
    process["oomScoreAdj"] = json!(123);
    process["env"] = json!(["PATH=/bin", "KEPT=after", "LAST=1", "NEW=yes", "CDI=one"]);
    document["linux"]["resources"]["pids"] = json!({"limit": 77});
}

fn v0_10(document: &mut Value) {
    let process = &mut document["process"];
    process["args"] = json!(["sleep", "2"]);
    process["ioPriority"] = json!({"class": "IOPRIO_CLASS_BE", "priority": 4});
    let linux = &mut document["linux"];
    linux["namespaces"] =
        json!([{"type": "mount"}, {"type": "network"}, {"type": "uts", "path": "/proc/1/ns/uts"}]);
    linux["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64"], "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [
            {
                "names": ["read", "write"], "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 1, "value": 2, "valueTwo": 3, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        ],
    });
}

fn v0_11(document: &mut Value) {
    let process = &mut document["process"];
    process["scheduler"] = json!({
        "policy": "SCHED_BATCH", "nice": 3, "flags": ["SCHED_FLAG_RESET_ON_FORK"],
    });
    let linux = &mut document["linux"];
    linux["sysctl"] = json!({"net.stays": "1", "net.ipv4.ip_forward": "1"});
    linux["netDevices"] = json!({"eth5": {"name": "stays"}, "eth7": {"name": "net7"}});
    linux["intelRdt"] = json!({"closID": "gold", "schemata": ["L3:0=f"], "enableMonitoring": true});
}

fn v0_12(document: &mut Value) {
    document["linux"]["memoryPolicy"] =
        json!({"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"]});
}
