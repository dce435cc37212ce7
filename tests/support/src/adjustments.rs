// SPDX-License-Identifier: Apache-2.0
//! The most common values of scripted plugins, as NRI's messages.

use std::path::Path;

use nri_plugin::{Adjustment, Device, Mount, Resources, Update};
use nri_runc::plugin::api;
use protobuf::MessageFull;
use serde_json::Value;

use crate::Script;

/// An environment variable.
pub fn env(key: &str, value: &str) -> api::KeyValue {
    (key, value).into()
}

/// A plugin that sets one environment variable, so that every document is patched.
pub fn sets(key: &str, value: &str) -> Script {
    Adjustment::new().env(key, value).into()
}

/// A message from NRI's JSON.
pub fn message<M: MessageFull>(json: &Value) -> M {
    protobuf_json_mapping::parse_from_str(&json.to_string()).unwrap()
}

/// A plugin that makes this adjustment, which is NRI's JSON.
pub fn adjusts(adjustment: &Value) -> Script {
    Script { adjust: message(adjustment), ..Script::default() }
}

/// A plugin that owns the pids limit.
pub fn limits_processes(limit: i64) -> Script {
    Adjustment::new().resources(Resources::new().pids_limit(limit)).into()
}

/// A plugin that pins containers to CPUs.
pub fn pins(cpus: &str) -> Script {
    Adjustment::new().resources(Resources::new().cpus(cpus)).into()
}

fn resources_of(resources: &Value) -> api::LinuxResources {
    nri_runc::testing::describe::resources_from_json(resources.as_object().unwrap())
}

/// A plugin that sets these resources, in OCI's names, when a container is created.
pub fn owns(resources: &Value) -> Script {
    Adjustment::new().resources(resources_of(resources)).into()
}

/// A read-only bind mount.
pub fn bind_mount(source: &Path, destination: &str) -> Mount {
    Mount::of("bind", &source.display().to_string(), destination).option("bind").read_only()
}

/// Adds a limit of 321 open files, soft and hard, because runc 1.1 may give a later process the
/// hard limit as the soft one too.
pub fn just_so_many_files(adjustment: Adjustment) -> Adjustment {
    adjustment.rlimit("RLIMIT_NOFILE", 321, 321)
}

/// An adjustment with each kind of value: a variable, 123 open files (321 on request), an
/// annotation, CPU shares, 32 MiB of memory, the out-of-memory score 950, and one of the kernel's
/// own devices (major 1) under another name.
pub fn every_kind(shares: u64, device: &str, minor: i64) -> Adjustment {
    Adjustment::new()
        .env("HELLO", "there")
        .rlimit("RLIMIT_NOFILE", 123, 321)
        .annotation("example.org/seen", "yes")
        .resources(Resources::new().cpu_shares(shares).memory_limit(32 << 20))
        .oom_score_adj(950)
        .device(Device::character(device, 1, minor))
}

/// Prints what a later process sees of [`closed_device`]: mode, type and numbers of its node, and
/// groups.
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
    Adjustment::new().cdi_device("example.org/closed=one").into()
}

/// An update of `container`, from resources in OCI's names.
pub fn update_of(container: &str, resources: &Value) -> api::ContainerUpdate {
    Update::of(container).resources(resources_of(resources)).into()
}

/// An OCI hook that gives the container an address while its runtime creates it, as a network
/// plugin would; `None` after printing why the test is skipped.
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
