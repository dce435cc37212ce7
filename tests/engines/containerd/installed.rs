// SPDX-License-Identifier: Apache-2.0
//! A containerd that `install` configures, until `uninstall`: `check`, an adjusted pod, updates that a
//! plugin and the engine both request, a shim that is killed, `uninstall` that refuses while containers
//! need nri-runc, and a configuration that is finally restored byte for byte.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::cri::{Cri, container, pods};
use test_support::tools;
use test_support::{Script, cri, leftovers};

use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::messages::LinuxContainerResources;
use super::{adjusting, cgroup_file, has_received, look_inside, pid_of};

/// How a containerd is configured.
struct ContainerdSetup {
    is_default: bool,
    /// Whether the main file stays unchanged, because it imports a file of nri-runc.
    drops_in: bool,
}

impl ContainerdSetup {
    /// The handler that a pod names.
    fn handler(&self) -> &'static str {
        if self.is_default { "" } else { "nri-runc" }
    }
}

/// A containerd with its configuration, and the root of its host for `install`.
struct Registered {
    engine: Engine,
    setup: ContainerdSetup,
    root: PathBuf,
    before: String,
}

impl Registered {
    /// Starts containerd with a configuration that its owner wrote.
    fn new(parts: &Parts<'_>, setup: ContainerdSetup) -> Self {
        let engine = Engine::of(parts);
        let root = engine.path("host");
        // The undo record of nri-runc is below this root; every other file is at its real path.
        for path in [engine.path(""), PathBuf::from(env!("CARGO_BIN_EXE_nri-runc"))] {
            let first = path.components().nth(1).unwrap();
            std::fs::create_dir_all(&root).unwrap();
            let target = Path::new("/").join(first);
            let _twice_the_same = std::os::unix::fs::symlink(target, root.join(first));
        }
        let config = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
        let config = format!("{config}[debug]\nhost_root = \"{}\"\n", root.display());
        nri_runc::testing::files::replace(&engine.path("host.toml"), config.as_bytes()).unwrap();
        let before = std::fs::read_to_string(engine.path("containerd.toml")).unwrap();
        Self { engine, setup, root, before }
    }

    /// Runs an admin verb on that host.
    fn nri(&self, words: &[&str]) -> Result<Value, String> {
        let config = self.engine.path("host.toml").display().to_string();
        let output = self.engine.nri(&[&["--config", config.as_str()], words].concat());
        if output.status.success() {
            return Ok(serde_json::from_slice(&output.stdout).unwrap());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn install(&self) -> Value {
        let main = self.engine.path("containerd.toml").display().to_string();
        let mut words = vec!["install", "containerd", "--engine-config", main.as_str()];
        words.extend(["--binary", env!("CARGO_BIN_EXE_nri-runc")]);
        words.extend(self.setup.is_default.then_some("--default"));
        self.nri(&words).unwrap()
    }

    fn main_file(&self) -> String {
        std::fs::read_to_string(self.engine.path("containerd.toml")).unwrap()
    }

    /// The row of `check` about the registration.
    fn checked(&self) -> (bool, String) {
        let printed = self.nri(&["check"]).or_else(|_| {
            let config = self.engine.path("host.toml").display().to_string();
            let output = self.engine.nri(&["--config", config.as_str(), "check"]);
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
        });
        let printed = printed.unwrap();
        let mut findings = printed.as_array().unwrap().iter();
        let finding = findings.find(|f| f["check"] == "registered with containerd").unwrap();
        (finding["ok"] == true, finding["detail"].as_str().unwrap().to_owned())
    }

    /// Installs twice, of which only the first has an effect, and restarts the engine as `check` says.
    fn registers(&mut self) {
        assert_eq!(self.install()["changed"], true);
        assert_eq!(self.install()["changed"], false, "a second time it changed something");
        assert_eq!(self.main_file() == self.before, self.setup.drops_in);
        assert_eq!(self.engine.path("conf.d/50-nri-runc.toml").exists(), self.setup.drops_in);
        let (is_well, detail) = self.checked();
        assert!(!is_well && detail.contains("has not loaded it yet"), "{detail}");
        self.engine.containerd.stop();
        self.engine.containerd.run();
        let (is_well, detail) = self.checked();
        assert!(is_well && detail.contains("has loaded it"), "{detail}");
    }

    /// Checks that `uninstall` is refused with the list of containers.
    fn refuses_to_uninstall(&self, ids: &[&String]) {
        let refusal = self.nri(&["uninstall", "containerd"]).unwrap_err();
        for id in ids {
            assert!(
                refusal.contains(nri_runc::testing::text::short_id(id)),
                "{id} is not in: {refusal}"
            );
        }
        assert!(refusal.contains("still use"), "{refusal}");
        assert!(self.root.join("var/lib/nri-runc/engines/containerd.json").exists());
    }

    /// Uninstalls without a trace; the engine starts with the remaining files.
    async fn forgets(&mut self) {
        // containerd removes the folder of a killed shim asynchronously.
        self.engine.wait_until("nobody needs us", || {
            self.nri(&["uninstall", "containerd"]).is_ok_and(|printed| printed["changed"] == true)
        });
        assert_eq!(self.main_file(), self.before);
        assert!(!self.engine.path("conf.d").exists() && !self.root.join("var").exists());
        self.engine.containerd.stop();
        self.engine.containerd.run();
        let mut cri = self.engine.client().await;
        let pod = cri::run_pod(&mut cri, cri::pod(self.engine.cgroup(), "after")).await;
        cri::end_pod(&mut cri, &pod).await;
        let ours = super::messages::RunPodSandboxRequest {
            config: Some(cri::pod(self.engine.cgroup(), "none")),
            runtime_handler: "nri-runc".to_owned(),
        };
        let error = cri.run_pod_sandbox(ours).await.unwrap_err();
        assert!(error.message().contains("nri-runc"), "{error}");
    }
}

fn resources(cpu_shares: i64, cpu_quota: i64) -> LinuxContainerResources {
    let cpu_period = if cpu_quota == 0 { 0 } else { 100_000 };
    LinuxContainerResources { cpu_shares, cpu_period, cpu_quota, ..Default::default() }
}

/// Checks that shares and limit keep the plugin's values, and the rest has the engine's (D21).
async fn updates_of_both_hold(engine: &Engine, cri: &mut Cri, id: &str) {
    let file = |controller: &str, name: &str| cgroup_file(engine, controller, id, name);
    let now = || {
        let limit = file("memory", "memory.limit_in_bytes");
        (file("cpu", "cpu.shares"), file("cpu", "cpu.cfs_quota_us"), limit)
    };
    let limit = (32_u64 << 20).to_string();
    let is = |shares: &str, quota: &str| (shares.to_owned(), quota.to_owned(), limit.clone());

    // The engine repeats the values of the creation, and changes a value without an owner.
    let request =
        LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..resources(1024, 30_000) };
    pods::update(cri, id, request).await.unwrap();
    engine.wait_until("the quota is there", || file("cpu", "cpu.cfs_quota_us") == "30000");
    assert_eq!(now(), is("512", "30000"), "the plugin's values were undone");

    // A person requests a value of the creation: plugins are asked, and none answers.
    let repeats = LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() };
    pods::update(cri, id, repeats).await.unwrap();
    let repeated = engine.admin(&["explain", id])["repeated"].clone();
    let fields = ["linux.resources.memory.limit", "linux.resources.cpu.shares"];
    let is_noted = |field: &&str| repeated.to_string().contains(field);
    assert!(fields.iter().all(is_noted), "{repeated}");
    assert_eq!(now(), is("512", "30000"), "the plugin's values were undone");

    // The engine changes a value that the plugin owns.
    pods::update(cri, id, resources(300, 0)).await.unwrap();
    engine.wait_until("the shares are there", || file("cpu", "cpu.shares") == "300");
    assert_eq!(now(), is("300", "30000"));

    // A refusal changes nothing, and the caller receives the reason.
    let refuses = Some("no more today");
    let guard = Script { refuses, at: Some("UpdateContainer".to_owned()), ..Script::default() };
    let _plugin =
        test_support::scripted_plugin::connect(engine.path("nri.sock"), "90", "guard", guard);
    engine.wait_until("the guard is synchronized", || {
        engine.admin(&["plugins"])[1]["state"] == "synchronized"
    });
    let error = pods::update(cri, id, resources(200, 10_000)).await.unwrap_err();
    for word in ["90-guard", "no more today"] {
        assert!(error.message().contains(word), "{word} is not in: {error}");
    }
    assert_eq!(now(), is("300", "30000"), "a refused update changed something");
}

/// Whether the containers of a killed shim keep running, and containerd has dropped them.
fn forgets_containers(engine: &Engine) -> bool {
    let versions = engine.containerd.ctr_in("k8s.io", &["version"]).unwrap().stdout;
    String::from_utf8_lossy(&versions).contains(" v2.2.")
}

/// Kills the shim of a pod. containerd cleans up by the runtime; if it does not, the pod ends as
/// usual.
async fn a_killed_shim_is_reported_once(
    engine: &Engine,
    cri: &mut Cri,
    (pod, app): (&str, &str),
    received: &Arc<Mutex<Vec<String>>>,
) {
    let shim = shim_of(pod);
    let sockets = leftovers::shim_sockets(shim.as_raw());
    if forgets_containers(engine) {
        cri::end_container(cri, app).await;
    } else {
        kill(shim, Signal::SIGKILL).unwrap();
        engine.wait_until("the pod's end is reported", || {
            has_received(received, "StopPodSandbox web")
        });
        pods::ends(cri, app).await;
    }
    cri::end_pod(cri, pod).await;
    engine.wait_until("the pod's removal is reported", || {
        has_received(received, "RemovePodSandbox web")
    });
    for socket in sockets {
        let _what_a_killed_shim_leaves = std::fs::remove_file(socket);
    }
    let received = received.lock().unwrap().clone();
    let of = |name: &str| -> Vec<String> {
        let events = received.iter().filter_map(|event| event.strip_suffix(name));
        events.map(|event| event.trim_end().to_owned()).collect()
    };
    let updated = ["UpdateContainer", "PostUpdateContainer"];
    let begin = ["CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer"];
    let end = ["UpdateContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(of(" app"), [&begin[..], &updated, &updated, &updated, &end].concat());
    assert_eq!(of(" web"), ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]);
}

fn shim_of(pod: &str) -> Pid {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut shims = pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("containerd-shim-runc-v2") && line.contains(pod)
    });
    Pid::from_raw(shims.next().unwrap())
}

async fn is_registered_and_unregistered(parts: &Parts<'_>, setup: ContainerdSetup) {
    let mut registered = Registered::new(parts, setup);
    registered.registers();
    let engine = &registered.engine;
    let mut daemon = engine.start_daemon();
    let received = test_support::scripted_plugin::connect(
        engine.path("nri.sock"),
        "10",
        "adjust",
        adjusting(engine),
    );
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let mut cri = engine.client().await;
    let config = cri::pod(engine.cgroup(), "web");
    let pod = cri::run_pod_with(&mut cri, config.clone(), registered.setup.handler()).await;
    let app = cri::create(&mut cri, &pod, config, container("app", &["/bin/sleep", "1000"])).await;
    cri::start(&mut cri, &app).await.unwrap();
    let pid = pid_of(&mut cri, &app).await;
    look_inside(engine, &app, pid);
    assert_eq!(engine.admin(&["pods"])[0]["engine"], "containerd-cri");
    // The cgroup driver is that of the entry that `install` copied.
    let has_scope =
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap().contains(".scope");
    assert_eq!(has_scope, registered.before.contains("SystemdCgroup = true"));
    updates_of_both_hold(engine, &mut cri, &app).await;
    registered.refuses_to_uninstall(&[&app, &pod]);
    a_killed_shim_is_reported_once(engine, &mut cri, (&pod, &app), &received).await;
    registered.forgets().await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// A configuration of version 2, written manually in unusual TOML; `runtimes` has its runtimes.
fn by_hand(dir: &Path, runtimes: &str) -> String {
    let dir = dir.display();
    format!(
        r#"# kept by hand since 2021   (ask before you change this)
version=2
root   = "{dir}/root"   # the big disk
	state="{dir}/state"
disabled_plugins = [ "io.containerd.internal.v1.opt",
   "io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.zfs",
   "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs" ] # we have none


[ grpc ]
address = '{dir}/containerd.sock'
[ttrpc]
	address="{dir}/containerd.sock.ttrpc"

[plugins]
   [plugins."io.containerd.grpc.v1.cri"]
 sandbox_image = "localhost/busybox:1" # no registry here
     restrict_oom_score_adj=true
	disable_apparmor = true
	disable_hugetlb_controller =true
	stream_server_port = "0"
     cni = {{ conf_dir = "{dir}/cni", bin_dir='{dir}/cni' }}
    [plugins."io.containerd.grpc.v1.cri".containerd]
      snapshotter = 'native'
{runtimes}
# the end; no line feed after this"#
    )
}

#[tokio::test]
async fn a_containerd_handler_is_registered_and_restored_exactly() {
    let Some(tools) = host::tools() else { return };
    let named = |dir: &Path| {
        let entry = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc";
        let root = dir.join("runc").display().to_string();
        let runtimes = format!(
            "      [{entry}]   # the only one\n        runtime_type = 'io.containerd.runc.v2'\n\
             \n        [{entry}.options]\n\t\tRoot=\"{root}\"\n\t\tSystemdCgroup = {}\n",
            test_support::cgroup::has_systemd()
        );
        by_hand(dir, &runtimes)
    };
    let runc = tools.join("runc");
    let parts =
        Parts { tools: &tools, containerd: &tools, runc: &runc, configuration: Some(&named) };
    is_registered_and_unregistered(&parts, ContainerdSetup { is_default: false, drops_in: false })
        .await;
}

#[tokio::test]
async fn containerds_default_is_registered_and_restored_exactly() {
    let Some(tools) = host::tools() else { return };
    let none = |dir: &Path| by_hand(dir, "");
    let runc = tools.join("runc");
    let parts =
        Parts { tools: &tools, containerd: &tools, runc: &runc, configuration: Some(&none) };
    is_registered_and_unregistered(&parts, ContainerdSetup { is_default: true, drops_in: false })
        .await;
}

async fn newer_is_registered_and_unregistered(version: u8, runc: &str, setup: ContainerdSetup) {
    let Some(tools) = host::tools() else { return };
    let Some(containerd) = tools::newer("containerd-2.4.2") else { return };
    let Some(runc) = tools::newer(runc).map(|dir| dir.join("runc")) else { return };
    let handlers = [("runc", Passes::All)];
    let text = |dir: &Path| {
        let wanted = Wanted { version, handlers: &handlers, runtime: &runc, has_nri: false };
        config::containerd(dir, &wanted)
    };
    let parts =
        Parts { tools: &tools, containerd: &containerd, runc: &runc, configuration: Some(&text) };
    is_registered_and_unregistered(&parts, setup).await;
}

#[tokio::test]
async fn live_containerd_2_4_is_registered_by_a_drop_in_and_restored() {
    let setup = ContainerdSetup { is_default: true, drops_in: true };
    newer_is_registered_and_unregistered(4, "runc-1.5.2", setup).await;
}

#[tokio::test]
async fn live_containerd_2_4_is_registered_in_version_3_and_restored() {
    let setup = ContainerdSetup { is_default: false, drops_in: false };
    newer_is_registered_and_unregistered(3, "runc-1.6.0-rc.1", setup).await;
}
