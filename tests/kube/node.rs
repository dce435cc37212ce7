// SPDX-License-Identifier: Apache-2.0
//! The node: a containerd with its default configuration, kubelet, sample plugins that the daemon launches,
//! and, once it is registered, nri-runc as its packages install it. The first container starts the daemon.

use std::cell::{OnceCell, RefCell};

use serde_json::{Value, json};
use test_support::example::example;

use super::control::{KUBECONFIG, NODE_ADDRESS};
use super::kubectl::{self, apply};
use super::machine::{Machine, PROGRAMS, Process, wait_for, write};

pub(super) const NAME: &str = "node";
/// The socket for plugins that the daemon does not launch.
pub(super) const PLUGINS: &str = "/var/run/nri/nri.sock";
/// The file of the event logger.
pub(super) const EVENTS: &str = "/var/log/nri-events.json";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// A protected node: without the injector no pod runs, and an eviction is quick.
pub(super) const CONFIGURATION: &str = r#"[log]
target = "file"
level = "debug"
[eviction]
grace = "300ms"
[plugin.device-injector]
required = true
[plugin.powerless]
evict = "deny"
"#;

pub(super) struct Node {
    kubelet: RefCell<Process>,
    /// The output of `install`.
    installed: OnceCell<String>,
}

impl Node {
    /// Starts the node without nri-runc, and waits until Kubernetes reports it ready.
    pub(super) fn start(machine: &Machine) -> Self {
        configure_containerd(machine);
        write("/etc/cni/net.d/10-pods.conflist", &network(), 0o644);
        write("/opt/cni/bin/pods", include_str!("pods-network.sh"), 0o755);
        write_device();
        write_unit(machine);
        machine.run("containerd-unit", &["start"]);
        import_image(machine);
        put_plugins(machine);
        let kubelet = RefCell::new(run_kubelet(machine, &[]));
        wait_for("the node is ready", || {
            let is_ready = Self::state()["status"]["conditions"]
                .as_array()?
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            is_ready.then_some(())
        });
        Self { kubelet, installed: OnceCell::new() }
    }

    /// Registers nri-runc manually, once; returns the output of `install`.
    pub(super) fn registered(&self, machine: &Machine) -> &str {
        self.installed.get_or_init(|| {
            let installed = install(machine);
            machine.run("containerd-unit", &["restart"]);
            let handler = json!({
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nri-runc"},
                "handler": "nri-runc",
            });
            apply(&handler);
            wait_for("kubelet sees the handler", || {
                Self::handlers().contains(&"nri-runc".to_owned()).then_some(())
            });
            installed
        })
    }

    /// Removes nri-runc, so that the engine serves plugins itself; no later row may need nri-runc.
    pub(super) fn removed(&self, machine: &Machine) {
        wait_for("no container needs it", || {
            super::inside::admin(&["pods"]).as_array().is_some_and(Vec::is_empty).then_some(())
        });
        remove_program(machine);
        machine.run("containerd-unit", &["restart"]);
    }

    /// The node as Kubernetes shows it.
    pub(super) fn state() -> Value {
        let node = kubectl::run(&["get", "node", NAME, "-o", "json"]);
        node.ok().and_then(|node| serde_json::from_str(&node).ok()).unwrap_or_default()
    }

    /// The runtime handlers that it offers; the default has no name.
    pub(super) fn handlers() -> Vec<String> {
        let node = Self::state();
        let handlers = node["status"]["runtimeHandlers"].as_array().into_iter().flatten();
        let names = handlers.filter_map(|one| one["name"].as_str());
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// Restarts kubelet without these features. The containers keep running.
    pub(super) fn restart_kubelet(
        &self,
        machine: &Machine,
        disabled: &[&str],
        while_it_is_away: impl FnOnce(),
    ) {
        let mut kubelet = self.kubelet.borrow_mut();
        kubelet.stop();
        while_it_is_away();
        *kubelet = run_kubelet(machine, disabled);
    }

    /// Stops kubelet, which would restart pods, before the engine.
    pub(super) fn stop(&mut self, machine: &Machine) {
        self.kubelet.get_mut().stop();
        machine.run("containerd-unit", &["stop"]);
    }
}

/// Replaces systemd for the engine: no service manager runs here.
fn write_unit(machine: &Machine) {
    let log = machine.log("containerd").display().to_string();
    let unit = include_str!("containerd-unit.sh").replace("@LOG@", &log);
    write(&format!("{PROGRAMS}/containerd-unit"), &unit, 0o755);
}

/// Writes containerd's default configuration; an imported file has this machine's settings.
fn configure_containerd(machine: &Machine) {
    let text = machine.run("containerd", &["config", "default"]);
    let version = text.lines().find(|line| line.starts_with("version")).unwrap().to_owned();
    write("/etc/containerd/config.toml", &text, 0o644);
    let here = format!(
        "{version}\n\
         [plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = \"localhost/busybox:1\"\n\
         [plugins.\"io.containerd.cri.v1.runtime\"]\n  restrict_oom_score_adj = true\n  disable_apparmor = true\n\
         [plugins.\"io.containerd.cri.v1.runtime\".cni]\n  use_internal_loopback = true\n"
    );
    write("/etc/containerd/conf.d/10-node.toml", &here, 0o644);
}

fn network() -> String {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "pods"}]}).to_string()
}

/// Writes a CDI device as a vendor's software installs it on a node: a device node and a variable.
fn write_device() {
    let edits = json!({
        "env": ["CARD=one"],
        "deviceNodes": [{"path": "/dev/card", "hostPath": "/dev/zero"}],
    });
    let spec = json!({
        "cdiVersion": "0.6.0",
        "kind": "example.org/card",
        "devices": [{"name": "one", "containerEdits": edits}],
    });
    write("/etc/cdi/card.json", &spec.to_string(), 0o644);
}

fn import_image(machine: &Machine) {
    let dir = "/var/lib/busybox-image";
    std::fs::create_dir_all(dir).unwrap();
    let script = include_str!("../../fixtures/images/busybox.sh");
    let busybox = format!("{PROGRAMS}/busybox");
    let in_dir = format!("cd {dir}\n{script}");
    machine.run("sh", &["-c", &in_dir, "sh", &busybox]);
    let tar = format!("{dir}/image.tar");
    machine.run("ctr", &["--namespace", "k8s.io", "images", "import", "--local", &tar]);
}

/// Writes pre-installed plugins, which each daemon launches.
fn put_plugins(machine: &Machine) {
    for (name, program) in [
        ("10-device-injector", "device_injector"),
        ("20-resource-defaults", "resource_defaults"),
        ("99-event-logger", "event_logger"),
    ] {
        let to = format!("/opt/nri/plugins/{name}");
        std::fs::create_dir_all("/opt/nri/plugins").unwrap();
        machine.run("cp", &[&example(program).display().to_string(), &to]);
    }
    write("/etc/nri/conf.d/99-event-logger.conf", &format!("file = {EVENTS}\n"), 0o644);
}

/// Copies the program to the node, as an administrator does.
pub(super) fn copy_program(machine: &Machine) {
    run_script(machine, &["--binary", env!("CARGO_BIN_EXE_nri-runc"), "--no-units"]);
}

/// Undoes every registration, and removes the program.
pub(super) fn remove_program(machine: &Machine) {
    run_script(machine, &["--uninstall"]);
}

fn run_script(machine: &Machine, words: &[&str]) {
    let script = test_support::program::project().join("install.sh").display().to_string();
    machine.run("sh", &[&[script.as_str()], words].concat());
}

/// Installs as an administrator does.
fn install(machine: &Machine) -> String {
    copy_program(machine);
    write("/etc/nri-runc/config.d/node.toml", CONFIGURATION, 0o644);
    // containerd serves NRI itself by default.
    machine.run("nri-runc", &["nri", "install", "containerd", "--take-over-nri"])
}

fn run_kubelet(machine: &Machine, disabled: &[&str]) -> Process {
    let cgroup = format!("/{}", machine.cgroup());
    make_cgroup(&cgroup);
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupRoot": cgroup,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "localStorageCapacityIsolation": false,
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
        "resolvConf": "",
        // One of two CPUs is exclusive.
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "1s",
        "reservedSystemCPUs": "0",
        // A crash loop has to turn more than once in a test.
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "2s",
    });
    for feature in disabled {
        config["featureGates"][*feature] = json!(false);
    }
    write("/etc/kubernetes/kubelet.json", &config.to_string(), 0o600);
    let words = [
        "--config=/etc/kubernetes/kubelet.json",
        &format!("--kubeconfig={KUBECONFIG}"),
        &format!("--hostname-override={NAME}"),
        &format!("--node-ip={NODE_ADDRESS}"),
    ];
    machine.start("kubelet", &words)
}

/// Creates kubelet's root cgroup, which it requires in every hierarchy.
fn make_cgroup(cgroup: &str) {
    let top = std::path::Path::new("/sys/fs/cgroup");
    let name = cgroup.trim_start_matches('/');
    if top.join("cgroup.controllers").exists() {
        std::fs::create_dir_all(top.join(name)).unwrap();
        return;
    }
    for hierarchy in std::fs::read_dir(top).unwrap().flatten() {
        let dir = hierarchy.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        // A new cgroup has no CPUs, and no process can run in it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(values) = std::fs::read(hierarchy.path().join(file)) {
                let mut options = std::fs::OpenOptions::new();
                let mut file = options.write(true).open(dir.join(file)).unwrap();
                std::io::Write::write_all(&mut file, &values).unwrap();
            }
        }
    }
}
