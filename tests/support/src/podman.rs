// SPDX-License-Identifier: Apache-2.0
//! Podman, unpacked and not installed, on a private host: a mount namespace with separate `/etc`,
//! `/run`, `/var/lib` and `/dev/shm`, so that every file is at its documented path, and the
//! machine's own Podman is not visible. It ends with the test, even with one that is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::real_runtime::RealRuntime;
use crate::{Script, cgroup, is_synchronized, scripted_plugin, skip, tools, wait_until};

/// A process that holds the namespace as long as its standard input is open.
const HOLD: &str = r#"
set -e
mount --bind "$1/etc" /etc
mount --bind "$1/var-lib" /var/lib
OWN_RUN
mount -t tmpfs tmpfs /dev/shm
[ ! -d /usr/share/containers ] || mount -t tmpfs tmpfs /usr/share/containers
ldconfig
touch "$1/nri-runc"
mount --bind "$2" "$1/nri-runc"
touch "$1/held"
exec cat
"#;

/// An operator's configuration, with comments and a handwritten order.
const CONTAINERS: &str = r#"# Ours. Ask ops before you change it.
[containers]
default_ulimits = [ "nofile=1024:1024",   "nproc=1024:1024" ] # the house limits

[engine]
runtime = "runc"
cgroup_manager = "DRIVER"
events_logger = "file"
infra_image = "localhost/busybox:1"
infra_command = "/bin/sleep 100000"
conmon_path = ["TOOLS/conmon"]

  [engine.runtimes]
  runc = [
    "TOOLS/runc",
  ]
"#;

pub const IMAGE: &str = "localhost/busybox:1";

/// The host, with Podman on it.
pub struct PodmanHost {
    real: RealRuntime,
    temp: tempfile::TempDir,
    tools: PathBuf,
    pub major_version: u32,
    holder: Child,
    daemon: Option<Child>,
    calls: AtomicUsize,
}

impl PodmanHost {
    /// `more` has lines of nri-runc's configuration. `None` after printing why the test is skipped.
    pub fn new(more: &str) -> Option<Self> {
        let tools = tools::find(&["busybox", "conmon", "podman", "runc"])?;
        let temp = tempfile::tempdir().unwrap();
        let real = RealRuntime::new(temp.path())?;
        lay_out(temp.path(), &tools, more);
        let holder = command(Path::new("unshare"))
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg(HOLD.replace("OWN_RUN", cgroup::OWN_RUN))
            .arg("sh")
            .arg(temp.path())
            .arg(crate::program::nri_runc())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(file(&temp.path().join("hold.err")))
            .spawn()
            .unwrap();
        let calls = AtomicUsize::new(0);
        let mut host = Self { real, temp, tools, major_version: 0, holder, daemon: None, calls };
        wait_until("the namespace is held", || {
            host.path("held").exists() || host.holder.try_wait().unwrap().is_some()
        });
        if !host.path("held").exists() {
            skip::setup_lacks(&format!("no mount namespace of our own: {}", host.read("hold.err")));
            return None;
        }
        let version = host.podman(&["--version"]);
        if !version.status.success() {
            let printed = String::from_utf8_lossy(&version.stderr).into_owned();
            skip::setup_lacks(&format!("podman does not run: {}", printed.trim()));
            return None;
        }
        host.major_version = major(&String::from_utf8(version.stdout).unwrap());
        if host.major_version >= 6 && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            skip::machine_lacks("Podman 6 needs cgroup v2");
            return None;
        }
        if host.major_version >= 5 {
            host.stand_in_for_netavark();
        }
        host.import_image();
        Some(host)
    }

    /// Writes a program in place of netavark, without which newer versions do not start, and the
    /// network that `kube play` would create with it even for a pod on the host's network. Neither
    /// is used.
    fn stand_in_for_netavark(&self) {
        std::fs::create_dir(self.path("helpers")).unwrap();
        crate::program::put(&self.path("helpers/netavark"), b"#!/bin/sh\nexit 1\n");
        let helpers = format!("[engine]\nhelper_binaries_dir = [{:?}]\n", self.path("helpers"));
        let settings = self.read("etc/containers/containers.conf");
        self.write("etc/containers/containers.conf", &settings.replace("[engine]\n", &helpers));
        let network = json!({
            "name": "podman-default-kube-network",
            "id": "5".repeat(64),
            "driver": "bridge",
            "network_interface": "podman1",
            "created": "2026-01-01T00:00:00Z",
            "subnets": [{"subnet": "192.0.2.0/24", "gateway": "192.0.2.1"}],
            "ipv6_enabled": false,
            "internal": false,
            "dns_enabled": true,
            "ipam_options": {"driver": "host-local"},
        });
        let file = "etc/containers/networks/podman-default-kube-network.json";
        self.write(file, &network.to_string());
    }

    fn import_image(&self) {
        let script = "tar -C \"$1/rootfs\" -cf \"$1/rootfs.tar\" .";
        let mut pack = command(Path::new("sh"));
        pack.args(["-c", script, "sh"]).arg(self.temp.path());
        assert!(pack.status().unwrap().success());
        let tar = self.path("rootfs.tar").display().to_string();
        let changes =
            ["--change", "ENV FROM_IMAGE=yes", "--change", "CMD [\"/bin/sleep\",\"1000\"]"];
        let words = [&["import", "--quiet"][..], &changes, &[&tar, IMAGE]].concat();
        self.good(&words);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        nri_runc::testing::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    /// The cgroup of this host's containers.
    pub fn cgroup(&self) -> String {
        if cgroup::has_systemd() {
            let name = self.temp.path().file_name().unwrap_or_default();
            return cgroup::of_engine(&name.to_string_lossy());
        }
        self.real.cgroup("").trim_end_matches('/').to_owned()
    }

    /// Runs a program on that host. Output goes through files, because conmon may keep a pipe open.
    pub fn call(&self, program: &Path, words: &[&str]) -> Output {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let (out, err) = (self.path(&format!("out{number}")), self.path(&format!("err{number}")));
        let mut call = self.inside(program);
        call.args(words).stdin(Stdio::null());
        call.stdout(file(&out));
        let status = call.stderr(file(&err)).status().unwrap();
        Output { status, stdout: std::fs::read(out).unwrap(), stderr: std::fs::read(err).unwrap() }
    }

    fn inside(&self, program: &Path) -> Command {
        let mut call = command(Path::new("nsenter"));
        call.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).arg("--").arg(program);
        call
    }

    pub fn podman(&self, words: &[&str]) -> Output {
        self.call(&self.tools.join("podman"), words)
    }

    /// Runs Podman in the background.
    pub fn spawn_podman(&self, words: &[&str]) -> Child {
        let mut call = self.inside(&self.tools.join("podman"));
        call.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        call.spawn().unwrap()
    }

    /// Runs Podman successfully; returns its output.
    #[track_caller]
    pub fn good(&self, words: &[&str]) -> String {
        let output = self.podman(words);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {printed}\n{}", self.read("daemon.err"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs Podman, which fails with all of `wanted`.
    #[track_caller]
    pub fn bad(&self, words: &[&str], wanted: &[&str]) -> Output {
        let output = self.podman(words);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?}: {printed}");
        for word in wanted {
            assert!(printed.contains(word), "{word} is not in: {printed}");
        }
        output
    }

    /// Runs `nri-runc nri …`.
    pub fn nri(&self, words: &[&str]) -> Output {
        self.call(&self.program(), &[&["nri"], words].concat())
    }

    pub fn admin(&self, words: &[&str]) -> Value {
        let output = self.nri(&[&["--json"], words].concat());
        serde_json::from_slice(&output.stdout).unwrap_or(json!(null))
    }

    /// The program under test, at a path of this host: conmon's command line names it, and each
    /// host sees the processes of all others.
    pub fn program(&self) -> PathBuf {
        self.path("nri-runc")
    }

    pub fn tool(&self, name: &str) -> PathBuf {
        self.tools.join(name)
    }

    pub fn start_daemon(&mut self) {
        let printed = file(&self.path("daemon.err"));
        let mut daemon = self.inside(&self.program());
        daemon.args(["nri", "daemon"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(printed);
        let daemon = daemon.spawn().unwrap();
        self.wait_until("the daemon answers", || self.admin(&["status"])["pid"] == daemon.id());
        self.daemon = Some(daemon);
    }

    /// Kills the daemon.
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Connects a plugin and waits until it is synchronized.
    pub fn plugin(
        &self,
        index: &str,
        name: &str,
        script: impl Into<Script>,
    ) -> Arc<Mutex<Vec<String>>> {
        let received = scripted_plugin::connect(self.path("nri.sock"), index, name, script);
        self.wait_until("the plugin is synchronized", || {
            is_synchronized(&self.admin(&["plugins"]), &format!("{index}-{name}"))
        });
        received
    }

    /// Waits for a condition; on failure it shows the daemon's state and log.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + crate::PATIENCE;
        while !is_so() {
            let known = || format!("{:#}\n{:#}", self.admin(&["pods"]), self.admin(&["status"]));
            let printed = || format!("{}\n{}", known(), self.read("daemon.err"));
            assert!(Instant::now() < deadline, "waited too long until {what}\n{}", printed());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub fn wait_until_no_pods(&self) {
        self.wait_until("no pod is known", || self.admin(&["pods"]) == json!([]));
    }
}

/// Opens a file to append to it.
fn file(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap()
}

/// Returns 4 for `podman version 4.3.1`.
fn major(version: &str) -> u32 {
    let number = version.strip_prefix("podman version ").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).expect(version)
}

/// Fills the folders that become `/etc` and `/var/lib`.
fn lay_out(dir: &Path, tools: &Path, more: &str) {
    let etc = dir.join("etc");
    for folder in ["etc/containers", "etc/nri-runc", "var-lib"] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    for file in ["passwd", "group", "hosts"] {
        if let Ok(text) = std::fs::read(Path::new("/etc").join(file)) {
            nri_runc::testing::files::replace(&etc.join(file), &text).unwrap();
        }
    }
    let write = |name: &str, text: &str| {
        nri_runc::testing::files::replace(&etc.join(name), text.as_bytes()).unwrap();
    };
    // conmon runs its final program without an environment, so the libraries of Podman are in the
    // dynamic linker's list.
    let libraries = tools.join("../lib");
    let others = std::fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().flatten();
    let others = others.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let others: String = others.collect();
    write("ld.so.conf", &format!("{}\n{others}", libraries.display()));
    let tools = tools.display().to_string();
    let driver = if cgroup::has_systemd() { "systemd" } else { "cgroupfs" };
    let settings = CONTAINERS.replace("TOOLS", &tools).replace("DRIVER", driver);
    write("containers/containers.conf", &settings);
    write("containers/policy.json", "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n");
    write(
        "containers/storage.conf",
        "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
         graphroot = \"/var/lib/containers/storage\"\n",
    );
    let [top, nri, tables] = crate::test_host::tables_of(more);
    let dir = dir.display();
    // A guest without KVM is slow: wrappers must not give up on the daemon there.
    let patience = if cgroup::has_systemd() { "debug.silence = \"60s\"\n" } else { "" };
    write(
        "nri-runc/config.toml",
        &format!(
            "runtime = [\"{tools}/runc\"]\nrun_dir = \"{dir}/run\"\n{patience}{top}\n[nri]\n\
             socket_path = \"{dir}/nri.sock\"\nplugin_path = \"{dir}/plugins\"\n\
             plugin_config_path = \"{dir}\"\nplugin_request_timeout = \"10s\"\n{nri}{tables}"
        ),
    );
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    command
}

impl Drop for PodmanHost {
    fn drop(&mut self) {
        let _gone = self.podman(&["pod", "rm", "--all", "--force", "--time", "0"]);
        let _gone = self.podman(&["rm", "--all", "--force", "--time", "0"]);
        let daemon = self.admin(&["status"])["pid"].as_i64().unwrap_or(0);
        if let Some(pid) = i32::try_from(daemon).ok().filter(|pid| *pid > 1) {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        if let Some(daemon) = &mut self.daemon {
            let _ended = daemon.kill();
            let _reaped = daemon.wait();
        }
        let _ended = self.holder.kill();
        let _reaped = self.holder.wait();
    }
}
