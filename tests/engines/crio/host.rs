// SPDX-License-Identifier: Apache-2.0
//! CRI-O, built and not installed, on a private host: a mount namespace with separate `/etc`, `/run` and
//! `/var/lib`, so that every file is at its documented path. It is stopped by PID, and all its files are
//! removed on drop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::cri::{self, Cri, node};
use test_support::{
    Script, example, is_synchronized, leftovers, scripted_plugin, skip, tools, wait_until,
};

/// A process that holds the namespace as long as its standard input is open.
const HOLD: &str = r#"
set -e
mount --bind "$1/etc" /etc
mount --bind "$1/var-lib" /var/lib
OWN_RUN
touch "$1/nri-runc"
mount --bind "$2" "$1/nri-runc"
touch "$1/held"
exec cat
"#;

/// The configuration of a distribution's package, changed for a machine without a registry and with
/// only the programs of these tests.
const CRIO: &str = r#"# Ours. Ask ops before you change it.
[crio]
storage_driver = "vfs"

[crio.runtime]
cgroup_manager = "DRIVER"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = "TOOLS/pinns"
hooks_dir = []
disable_hostport_mapping = true
cdi_spec_dirs = ["DIR/cdi"]

[crio.runtime.runtimes.runc]
runtime_path = "DIR/runc"
monitor_path = "TOOLS/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = "localhost/busybox:1"

[crio.network]
plugin_dirs = ["DIR/cni-bin"]
"#;

/// runc, with a score of 0 instead of an infrastructure container's -998, which needs CAP_SYS_RESOURCE.
const RUNC: &str = r#"#!/bin/sh
before=
for word; do
    [ "$before" != --bundle ] || sed -i 's/"oomScoreAdj": *-998/"oomScoreAdj": 0/' "$word/config.json"
    before=$word
done
exec TOOLS/runc "$@"
"#;

/// crun in place of runc, with its library path: crun executes a copy of itself, from which $ORIGIN
/// does not lead to its library.
const CRUN: &str = "exec env LD_LIBRARY_PATH=TOOLS/../lib TOOLS/crun";

/// The files of CRI-O's configuration: its package's, and nri-runc's.
pub(super) const OF_PACKAGE: &str = "etc/crio/crio.conf.d/10-crio.conf";
pub(super) const OF_NRI_RUNC: &str = "etc/crio/crio.conf.d/50-nri-runc.conf";

/// The socket of its CRI.
pub(super) const SOCKET: &str = "/run/crio/crio.sock";

pub(super) struct CrioHost {
    temp: tempfile::TempDir,
    tools: PathBuf,
    holder: Child,
    crio: Option<Child>,
    /// Plugins and daemons.
    children: Mutex<Vec<Child>>,
    calls: AtomicUsize,
}

impl CrioHost {
    /// The host before any process; `None` after printing why the test is skipped.
    pub(super) fn new() -> Option<Self> {
        let tools = tools::find_built(&["busybox", "conmon", "crio", "pinns", "podman", "runc"])?;
        let temp = tempfile::Builder::new().prefix("nri").tempdir().unwrap();
        lay_out(temp.path(), &tools);
        let holder = command(Path::new("unshare"))
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg(HOLD.replace("OWN_RUN", test_support::cgroup::OWN_RUN))
            .arg("sh")
            .arg(temp.path())
            .arg(env!("CARGO_BIN_EXE_nri-runc"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(file(&temp.path().join("hold.err")))
            .spawn()
            .unwrap();
        let (children, calls) = (Mutex::default(), AtomicUsize::new(0));
        let mut host = Self { temp, tools, holder, crio: None, children, calls };
        wait_until("the namespace is held", || {
            host.path("held").exists() || host.holder.try_wait().unwrap().is_some()
        });
        if !host.path("held").exists() {
            skip::machine_lacks(&format!(
                "no mount namespace of our own: {}",
                host.read("hold.err")
            ));
            return None;
        }
        host.import_image();
        Some(host)
    }

    /// Imports the image with Podman, into the storage that it shares with CRI-O.
    fn import_image(&self) {
        // Podman's locks are in memory that all hosts share: two that create them at once fail.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let script = "mkdir -p image/bin image/data && cp \"$1\" image/bin/busybox && \
            for applet in sh sleep cat true; do ln -s busybox image/bin/$applet; done && \
            printf '#!/bin/sh\\ntrap exit TERM\\nsleep 100000 &\\nwait\\n' >image/pause && chmod 755 image/pause && \
            tar -C image -cf image.tar .";
        let mut pack = command(Path::new("sh"));
        pack.args(["-c", script, "sh"]).arg(self.tools.join("busybox"));
        assert!(pack.current_dir(self.temp.path()).status().unwrap().success());
        let [image, conmon, runc] =
            [self.path("image.tar"), self.tools.join("conmon"), self.tools.join("runc")];
        let [image, conmon, runc] = [image, conmon, runc].map(|path| path.display().to_string());
        let output = self.call(
            &self.tools.join("podman"),
            &[
                &["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"][..],
                &["--conmon", &conmon, "--runtime", &runc, "import", "--quiet"],
                &["--change", "ENV PATH=/bin", "--change", "CMD [\"/bin/sleep\",\"100000\"]"],
                &[&image, "localhost/busybox:1"],
            ]
            .concat(),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(super) fn tools(&self) -> &Path {
        &self.tools
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The cgroup of its pods.
    pub(super) fn cgroup(&self) -> String {
        let name = self.temp.path().file_name().unwrap().to_string_lossy();
        test_support::cgroup::of_engine(&name)
    }

    /// A file or socket of that host, by its path outside.
    pub(super) fn seen(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// A command for a program on that host.
    pub(super) fn inside(&self, program: &Path) -> Command {
        let mut call = command(Path::new("nsenter"));
        call.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).arg("--").arg(program);
        call.stdin(Stdio::null());
        call
    }

    /// Runs a program on that host. Output goes through files, because a monitor may keep a pipe open.
    pub(super) fn call(&self, program: &Path, words: &[&str]) -> Output {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let (out, err) = (self.path(&format!("out{number}")), self.path(&format!("err{number}")));
        let mut call = self.inside(program);
        let status = call.args(words).stdout(file(&out)).stderr(file(&err)).status().unwrap();
        Output { status, stdout: std::fs::read(out).unwrap(), stderr: std::fs::read(err).unwrap() }
    }

    /// Runs `nri-runc nri …`; returns its output, or its error line.
    pub(super) fn nri(&self, words: &[&str]) -> Result<Value, String> {
        let output = self.call(&self.path("nri-runc"), &[&["nri", "--json"], words].concat());
        if output.status.success() || words == ["check"] {
            return Ok(serde_json::from_slice(&output.stdout).unwrap());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// A row of `check`.
    pub(super) fn checked(&self, name: &str) -> (bool, String) {
        let all = self.nri(&["check"]).unwrap();
        let row = all.as_array().unwrap().iter().find(|row| row["check"] == name).unwrap().clone();
        (row["ok"] == true, format!("{} ({})", row["detail"], row["hint"]))
    }

    /// Starts CRI-O, and waits until it responds.
    pub(super) async fn start(&mut self) -> Cri {
        let log = file(&self.path("crio.log"));
        let mut crio = self.inside(&self.tools.join("crio"));
        crio.stdout(log.try_clone().unwrap()).stderr(log);
        self.crio = Some(crio.spawn().unwrap());
        let socket = self.seen(SOCKET);
        let deadline = Instant::now() + test_support::PATIENCE;
        // CRI-O's socket remains after its exit, so the file's existence proves nothing.
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            assert!(Instant::now() < deadline, "CRI-O does not answer\n{}", self.log_tail());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Cri::new(cri::connect(socket).await)
    }

    /// Stops CRI-O; its containers keep running.
    pub(super) fn stop(&mut self) {
        let Some(mut crio) = self.crio.take() else { return };
        let _plugin = kill(Pid::from_raw(i32::try_from(crio.id()).unwrap()), Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(20);
        while matches!(crio.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _if_it_would_not = crio.kill();
        let _reaped = crio.wait();
    }

    pub(super) async fn restart(&mut self) -> Cri {
        self.stop();
        self.start().await
    }

    /// Writes the setting that `install` requires if CRI-O's runtime is in no search path.
    pub(super) fn configure_runtime(&self) {
        self.configure(&self.path("runc"));
    }

    /// Configures crun as CRI-O ships it. Returns false after printing why the test is skipped.
    pub(super) fn configure_crun(&self) -> bool {
        if tools::find(&["crun"]).is_none() {
            return false;
        }
        if let Some(beside) = test_support::cgroup::v2_beside_v1() {
            assert!(self.call("umount".as_ref(), &[beside]).status.success());
        }
        let crun = RUNC.replace("exec TOOLS/runc", CRUN);
        let crun = crun.replace("TOOLS", &self.tools.display().to_string());
        test_support::program::put(&self.path("crun"), crun.as_bytes());
        self.configure(&self.path("crun"));
        true
    }

    fn configure(&self, runtime: &Path) {
        let line = format!("runtime = \"{}\"\n", runtime.display());
        let file = self.path("etc/nri-runc/config.toml");
        nri_runc::testing::files::replace(&file, line.as_bytes()).unwrap();
    }

    /// Starts the daemon, as its unit does.
    pub(super) fn start_daemon(&self) {
        let mut daemon = self.inside(&self.path("nri-runc"));
        let daemon = daemon.args(["nri", "daemon"]).stdout(Stdio::null());
        let daemon = daemon.stderr(file(&self.path("daemon.err"))).spawn().unwrap();
        let pid = daemon.id();
        self.children.lock().unwrap().push(daemon);
        self.wait_until("the daemon answers", || {
            self.nri(&["status"]).is_ok_and(|status| status["pid"] == pid)
        });
    }

    /// Kills the daemon, and waits until it no longer responds.
    pub(super) fn kill_daemon(&self) {
        let pid = self.nri(&["status"]).unwrap()["pid"].as_i64().unwrap();
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
        self.wait_until("the daemon is gone", || self.nri(&["status"]).is_err());
    }

    /// Starts the sample plugin of the quick start, which knows only the usual socket.
    pub(super) fn start_sample(&self) {
        let mut plugin = self.inside(&example("resource_defaults"));
        let plugin = plugin.arg("--reconnect").stdout(Stdio::null());
        let plugin = plugin.stderr(file(&self.path("sample.err")));
        self.children.lock().unwrap().push(plugin.spawn().unwrap());
    }

    /// Connects a plugin to nri-runc and waits until it is synchronized.
    pub(super) fn plugin(
        &self,
        index: &str,
        name: &str,
        script: impl Into<Script>,
    ) -> Arc<Mutex<Vec<String>>> {
        let socket = self.seen("/run/nri/nri.sock");
        let received = scripted_plugin::connect(socket, index, name, script);
        self.wait_for(&format!("{index}-{name}"));
        received
    }

    /// Waits until nri-runc has synchronized this plugin.
    pub(super) fn wait_for(&self, plugin: &str) {
        self.wait_until("the plugin is synchronized", || {
            self.nri(&["plugins"]).is_ok_and(|list| is_synchronized(&list, plugin))
        });
    }

    #[track_caller]
    pub(super) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + test_support::PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "waited too long until {what}\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.read("crio.log");
        let lines: Vec<&str> = log.lines().collect();
        let theirs = lines[lines.len().saturating_sub(15)..].join("\n");
        let of = |verb: &str| self.nri(&[verb]).unwrap_or(json!(null));
        format!("{theirs}\n{:#}\n{:#}", of("pods"), of("status"))
    }

    /// A file of a container's cgroup, by its name on version 1.
    pub(super) fn cgroup_file(&self, controller: &str, id: &str, file: &str) -> String {
        test_support::cgroup::read(&self.cgroup(), ("crio", id), (controller, file))
    }
}

/// Opens a file to append to it.
fn file(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap()
}

/// Fills the folders that become `/etc` and `/var/lib`, with the files that CRI-O needs on its
/// node.
fn lay_out(dir: &Path, tools: &Path) {
    for folder in [
        "var-lib",
        "data",
        "logs/app",
        "etc/nri-runc",
        "etc/containers",
        "etc/crio/crio.conf.d",
        "etc/cni/net.d",
    ] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    for file in ["passwd", "group", "hosts", "resolv.conf"] {
        if let Ok(text) = std::fs::read(Path::new("/etc").join(file)) {
            nri_runc::testing::files::replace(&dir.join("etc").join(file), &text).unwrap();
        }
    }
    let write = |name: &str, text: &str| {
        let text = text.replace("DIR", &dir.display().to_string());
        let text = text.replace("TOOLS", &tools.display().to_string());
        nri_runc::testing::files::replace(&dir.join(name), text.as_bytes()).unwrap();
    };
    write("data/hello", "mounted by a plugin\n");
    let driver = if test_support::cgroup::has_systemd() { "systemd" } else { "cgroupfs" };
    write(OF_PACKAGE, &CRIO.replace("DRIVER", driver));
    write(
        "etc/containers/policy.json",
        "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n",
    );
    let runc = RUNC.replace("TOOLS", &tools.display().to_string());
    test_support::program::put(&dir.join("runc"), runc.as_bytes());
    node::write_network(&dir.join("etc/cni/net.d"), &dir.join("cni-bin"));
    node::write_devices(&dir.join("cdi"));
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    command
}

impl Drop for CrioHost {
    fn drop(&mut self) {
        let status = self.nri(&["status"]).unwrap_or_default();
        self.stop();
        for child in self.children.lock().unwrap().iter_mut() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        if let Some(pid) = status["pid"].as_i64().filter(|pid| *pid > 1) {
            let _gone = kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL);
        }
        // Monitors and containers are in the pods' cgroup.
        leftovers::clear(&self.temp.path().display().to_string(), &self.cgroup());
        let _ended = self.holder.kill();
        let _reaped = self.holder.wait();
    }
}
