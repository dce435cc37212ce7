// SPDX-License-Identifier: Apache-2.0
//! Features that only later runtimes support take effect, read inside the container: scheduler, I/O
//! priority, memory policy, seccomp and a network interface of the node, on containerd 2.4.2 with
//! runc 1.5.2 and 1.6.0-rc.1. With runc 1.1.5 the interface is refused by name.
//!
//! The node's network is a separate namespace with one pair of interfaces.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use test_support::adjustments::adjusts;
use test_support::cri::{self, container, pods};
use test_support::{Script, skip, tools};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::messages::{ContainerConfig, PodSandboxConfig};
use super::samples::sample;

const HANDLERS: [(&str, Passes); 1] = [("nri-runc", Passes::All)];

/// Prints the values of a process in the container; fields 41 and 19 of stat are policy and nice.
const LOOK: &str = r#"
echo "policy $(cut -d ' ' -f 41 /proc/self/stat) nice $(cut -d ' ' -f 19 /proc/self/stat)"
echo "io $(ionice -p $$)"
echo "memory $(head -n 1 /proc/self/numa_maps | cut -d ' ' -f 2)"
echo "filter $(grep -c 'Seccomp:.*2' /proc/self/status) $(mkdir /made 2>&1)"
echo "interfaces" $(cut -d : -f 1 /proc/net/dev | grep -v '|')
echo end
exec sleep 1000
"#;

fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// Moves this thread and its children to a new network namespace with the interface `node0`;
/// returns whether that worked.
fn has_network_of_its_own() -> bool {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        skip::machine_lacks("a network namespace of its own is refused");
        return false;
    }
    let is_made = ip("link add node0 type veth peer name node1");
    if !is_made {
        skip::machine_lacks("a pair of network interfaces cannot be made (ip link add type veth)");
    }
    is_made
}

fn adjusting() -> Script {
    // ENOSYS, because neither containerd's own profile nor a missing permission returns it.
    let call = json!({"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": {"value": 38}});
    adjusts(&json!({"linux": {
        "scheduler": {"policy": "SCHED_BATCH", "nice": 5},
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 6},
        "memoryPolicy": {"mode": "MPOL_INTERLEAVE", "nodes": "0"},
        "seccompPolicy": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [call]},
    }}))
}

/// A pod with a separate network, and a container that prints its values.
fn pod(engine: &Engine) -> (PodSandboxConfig, ContainerConfig) {
    let mut config = cri::pod(engine.cgroup(), "inside");
    config.log_directory = engine.path("logs").display().to_string();
    let key = "netdevices.noderesource.dev/container.app".to_owned();
    config.annotations.insert(key, r#"[{"device": "node0", "name": "uplink"}]"#.to_owned());
    let mut app = container("app", &["/bin/sh", "-c", LOOK]);
    app.log_path = "app.log".to_owned();
    pods::on_own_network(config, app)
}

/// containerd 2.4.2 with nri-runc and this runc; files of libcni are removed with it.
fn start(runc: &Path) -> Option<Engine> {
    let (tools, containerd) = (host::tools()?, tools::newer("containerd-2.4.2")?);
    if !has_network_of_its_own() {
        return None;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_nri-runc"));
    let wanted = Wanted { version: 4, handlers: &HANDLERS, runtime: program, has_nri: false };
    let text = |dir: &Path| config::containerd(dir, &wanted);
    let parts = Parts { tools: &tools, containerd: &containerd, runc, configuration: Some(&text) };
    Some(Engine::of(&parts))
}

async fn takes_effect(runc: Option<PathBuf>) {
    let Some(runc) = runc.map(|dir| dir.join("runc")) else { return };
    let Some(engine) = start(&runc) else { return };
    let _daemon = engine.start_daemon();
    let socket = engine.path("nri.sock");
    let _plugin = test_support::scripted_plugin::connect(socket, "20", "adjust", adjusting());
    let id = "10-network-device-injector";
    let _sample = sample(&engine, "network_device_injector", id, &[]);
    engine.wait_until("both are synchronized", || {
        test_support::is_synchronized(&engine.admin(&["plugins"]), "20-adjust")
    });
    let mut cri = engine.client().await;
    let (config, app) = pod(&engine);
    let pod = cri::run_pod(&mut cri, config.clone()).await;
    let app = cri::create(&mut cri, &pod, config, app).await;
    cri::start(&mut cri, &app).await.unwrap();
    let printed = || std::fs::read_to_string(engine.path("logs/app.log")).unwrap_or_default();
    engine.wait_until("the container has looked around", || printed().contains("F end\n"));
    let printed = printed();
    for wanted in [
        "policy 3 nice 5",
        "io best-effort: prio 6",
        "memory interleave:0",
        "filter 1 mkdir: can't create directory '/made': Function not implemented",
    ] {
        assert!(printed.contains(&format!(" F {wanted}\n")), "{wanted} is not in:\n{printed}");
    }
    let interfaces = printed.lines().find(|line| line.contains(" F interfaces ")).unwrap();
    assert!(interfaces.contains("uplink") && !interfaces.contains("node0"), "{interfaces}");
    assert!(!ip("link show node0"), "the interface is on the node still");
    let changes = engine.admin(&["explain", &app])["changes"].to_string();
    for field in ["scheduler", "ioPriority", "memoryPolicy", "netDevices", "seccomp"] {
        assert!(changes.contains(field), "{field} is not in: {changes}");
    }
    cri::end_pod(&mut cri, &pod).await;
}

#[tokio::test]
async fn features_of_runc_1_5_take_effect_inside_a_pod() {
    takes_effect(tools::newer("runc-1.5.2")).await;
}

#[tokio::test]
async fn features_of_runc_1_6_take_effect_inside_a_pod() {
    takes_effect(tools::newer("runc-1.6.0-rc.1")).await;
}

#[tokio::test]
async fn an_interface_that_runc_1_1_cannot_move_stays_on_the_node() {
    let Some(tools) = host::tools() else { return };
    let Some(engine) = start(&tools.join("runc")) else { return };
    let _daemon = engine.start_daemon();
    let id = "10-network-device-injector";
    let _sample = sample(&engine, "network_device_injector", id, &[]);
    let mut cri = engine.client().await;
    let (config, app) = pod(&engine);
    let pod = cri::run_pod(&mut cri, config.clone()).await;
    let app = cri::create(&mut cri, &pod, config, app).await;
    let error = cri::start(&mut cri, &app).await.unwrap_err().to_string();
    for word in [id, "runc", "has no"] {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
    assert!(ip("link show node0"), "the interface left the node");
    cri::end_pod(&mut cri, &pod).await;
}
