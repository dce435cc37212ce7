// SPDX-License-Identifier: Apache-2.0
//! What scripted plugins most often set, as NRI's messages.

use std::path::Path;

use nri_runc::plugin::api;
use serde_json::Value;

use crate::Script;

/// An environment variable.
pub fn env(key: &str, value: &str) -> api::KeyValue {
    api::KeyValue { key: key.to_owned(), value: value.to_owned(), ..Default::default() }
}

/// A plugin that sets one environment variable, so that every document is patched.
pub fn sets(key: &str, value: &str) -> Script {
    let adjust = api::ContainerAdjustment { env: vec![env(key, value)], ..Default::default() };
    Script { adjust, ..Script::default() }
}

/// A plugin that owns the number of processes.
pub fn limits_processes(limit: i64) -> Script {
    let pids = api::LinuxPids { limit, ..Default::default() };
    let resources = api::LinuxResources { pids: Some(pids).into(), ..Default::default() };
    let linux =
        api::LinuxContainerAdjustment { resources: Some(resources).into(), ..Default::default() };
    let adjust = api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() };
    Script { adjust, ..Script::default() }
}

/// A plugin that pins containers to CPUs.
pub fn pins(cpus: &str) -> Script {
    let cpu = api::LinuxCPU { cpus: cpus.to_owned(), ..Default::default() };
    let resources = api::LinuxResources { cpu: Some(cpu).into(), ..Default::default() };
    let linux =
        api::LinuxContainerAdjustment { resources: Some(resources).into(), ..Default::default() };
    let adjust = api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() };
    Script { adjust, ..Script::default() }
}

/// A plugin that sets these resources, in OCI's words, when a container is created.
pub fn owns(resources: &Value) -> Script {
    let resources = resources.as_object().cloned().unwrap();
    let resources = nri_runc::testing::describe::resources_from_json(&resources);
    let linux =
        api::LinuxContainerAdjustment { resources: Some(resources).into(), ..Default::default() };
    let adjust = api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() };
    Script { adjust, ..Script::default() }
}

/// A read-only bind mount.
pub fn bind_mount(source: &Path, destination: &str) -> api::Mount {
    api::Mount {
        destination: destination.to_owned(),
        type_: "bind".to_owned(),
        source: source.display().to_string(),
        options: ["bind", "ro"].map(ToOwned::to_owned).into(),
        ..Default::default()
    }
}

/// One of the kernel's own devices (major 1) under another name.
pub fn memory_device(path: &str, minor: i64) -> api::LinuxDevice {
    api::LinuxDevice {
        path: path.to_owned(),
        type_: "c".to_owned(),
        major: 1,
        minor,
        ..Default::default()
    }
}

/// At most 123 open files, 321 on request.
pub fn open_files() -> api::POSIXRlimit {
    api::POSIXRlimit {
        type_: "RLIMIT_NOFILE".to_owned(),
        hard: 321,
        soft: 123,
        ..Default::default()
    }
}

/// 321 open files, no fewer: runc 1.1 may give a later process the hard limit as the soft one too.
pub fn just_so_many_files() -> api::POSIXRlimit {
    api::POSIXRlimit { soft: 321, ..open_files() }
}

/// CPU shares, 32 MiB of memory, a device and the out-of-memory score 950.
pub fn linux(shares: u64, device: api::LinuxDevice) -> api::LinuxContainerAdjustment {
    let shares = api::OptionalUInt64 { value: shares, ..Default::default() };
    let cpu = api::LinuxCPU { shares: Some(shares).into(), ..Default::default() };
    let limit = api::OptionalInt64 { value: 32 << 20, ..Default::default() };
    let memory = api::LinuxMemory { limit: Some(limit).into(), ..Default::default() };
    let score = api::OptionalInt { value: 950, ..Default::default() };
    let resources = api::LinuxResources {
        cpu: Some(cpu).into(),
        memory: Some(memory).into(),
        ..Default::default()
    };
    api::LinuxContainerAdjustment {
        resources: Some(resources).into(),
        devices: vec![device],
        oom_score_adj: Some(score).into(),
        ..Default::default()
    }
}

/// What a later process says of [`closed_device`]: mode, type and numbers of its node, and groups.
pub const LOOK_AT_CLOSED_DEVICE: &str =
    "/bin/busybox stat -c '%a %t:%T' /dev/closed; /bin/busybox id -G";

/// A plugin that gives each container a CDI device, which is written below `dir` (`cdi`): a node
/// that only root may open on the host, and the group 4400.
pub fn closed_device(dir: &Path) -> Script {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let node = dir.join("closed-node");
    mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o600), makedev(1, 3)).unwrap();
    std::fs::create_dir_all(dir.join("cdi")).unwrap();
    let spec = serde_json::json!({"cdiVersion": "0.7.0", "kind": "example.org/closed",
    "devices": [{"name": "one", "containerEdits": {
        "deviceNodes": [{"path": "/dev/closed", "hostPath": node}],
        "additionalGids": [4400],
    }}]});
    let file = dir.join("cdi/closed.json");
    nri_runc::testing::files::replace(&file, spec.to_string().as_bytes()).unwrap();
    let device = api::CDIDevice { name: "example.org/closed=one".to_owned(), ..Default::default() };
    let adjust = api::ContainerAdjustment { CDI_devices: vec![device], ..Default::default() };
    Script { adjust, ..Script::default() }
}

/// An update of `container`, from resources in OCI's words.
pub fn update_of(container: &str, resources: &Value) -> api::ContainerUpdate {
    let resources = resources.as_object().cloned().unwrap();
    let resources = nri_runc::testing::describe::resources_from_json(&resources);
    let linux =
        api::LinuxContainerUpdate { resources: Some(resources).into(), ..Default::default() };
    api::ContainerUpdate {
        container_id: container.to_owned(),
        linux: Some(linux).into(),
        ..Default::default()
    }
}

/// An OCI hook that gives the container an address while its runtime creates it, as a network
/// plugin would; `None` after saying why the test is skipped.
pub fn gives_address(address: &str) -> Option<api::Hooks> {
    let is_there = |program: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    if !["ip", "nsenter"].into_iter().all(is_there) {
        crate::skip::machine_lacks("iproute2 and util-linux are not here to give an address");
        return None;
    }
    let script = format!(
        "pid=$(sed 's/.*\"pid\": *\\([0-9]*\\).*/\\1/'); \
         exec nsenter --net=/proc/$pid/ns/net ip addr add {address}/24 dev lo"
    );
    let hook = api::Hook {
        path: "/bin/sh".to_owned(),
        args: ["sh", "-c", &script].map(ToOwned::to_owned).to_vec(),
        env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        ..Default::default()
    };
    Some(api::Hooks { create_runtime: vec![hook], ..Default::default() })
}
