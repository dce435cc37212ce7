// SPDX-License-Identifier: Apache-2.0
//! Docker, unpacked and not installed: its daemon with private folders and socket, its own containerd
//! below it, and nri-runc registered by `install`. It creates no bridge and contacts no registry.
//! Everything ends with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use test_support::containerd::{Containerd, Setup};
use test_support::{TestHost, wait_until};
use test_support::{cgroup, leftovers, skip, tools};

/// The image of every container.
pub(super) const IMAGE: &str = "localhost/busybox:1";

/// Settings that an operator may have written: odd blanks, an escape, unordered members.
const SETTINGS: &str = "{\n   \"data-root\" : \"DIR/data\",   \"exec-root\":\"DIR/exec\",\n\
    \t\"pidfile\": \"DIR/docker.pid\", \"hosts\": [ \"unix://DIR/docker.sock\" ],\n\n\
    \"storage-driver\": \"vfs\", \"iptables\": false, \"bridge\" : \"none\", \"userland-proxy\":false,\n\
    \x20 \"cgroup-parent\": \"CGROUP\", \"shutdown-timeout\":2,SCORE\n\
    \"exec-opts\":[\"native.cgroupdriver=DRIVER\"], \"deprecated-key-path\":\"DIR/key\",\n\
    \"labels\": [\"place=caf\\u00e9\"],\n\
    \"runtimes\": {\n \"other\" :{ \"path\":\"RUNC\" } },\n\
    \"live-restore\": true , \"log-opts\":{\"max-size\":\"1m\"}}  \n\n";

/// Docker lowered its own score, which its children inherit; this key was removed in version 25.
const SCORE: &str = " \"oom-score-adjust\": 0,";

/// A containerd that runs as a service: without its CRI, with its images in the folder of Docker's own
/// containerd.
const CONTAINERD: &str = r#"version = 2
root = "DIR/data/containerd/daemon"
state = "DIR/exec/containerd/daemon"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.internal.v1.opt"]
[grpc]
  address = "DIR/containerd.sock"
[ttrpc]
  address = "DIR/containerd.sock.ttrpc"
"#;

pub(crate) struct Docker {
    pub(super) host: TestHost,
    tools: PathBuf,
    pub(super) major_version: u32,
    dockerd: Option<Child>,
    /// The containerd beside it, if that is a service; otherwise Docker starts one itself, and gives it
    /// fifteen seconds.
    containerd: Option<Containerd>,
    _folders: leftovers::EngineFolders,
}

impl Docker {
    /// Starts Docker with nri-runc as one of its runtimes; `None` after printing why the test is
    /// skipped.
    pub(super) fn new() -> Option<Self> {
        Self::before_install().map(Self::set_up)
    }

    /// Starts Docker with its images in containerd's store, the default of new installations since
    /// version 29.
    pub(super) fn with_containerds_store() -> Option<Self> {
        let docker = Self::before_install()?;
        if docker.major_version < 28 {
            skip::machine_lacks("Docker before 28 does not say which manifest a container is of");
            return None;
        }
        let own = "\"storage-driver\": \"vfs\"";
        let settings = docker.host.read("etc/daemon.json");
        assert!(settings.contains(own), "{settings}");
        let feature = "\"features\": {\"containerd-snapshotter\": true}";
        let instead = format!("\"storage-driver\": \"native\", {feature}");
        docker.host.write("etc/daemon.json", &settings.replace(own, &instead));
        Some(docker.set_up())
    }

    fn set_up(mut self) -> Self {
        // Containers of other tests do not belong to this daemon, which searches for its own at its first
        // start.
        let none = self.host.path("no-roots").display().to_string();
        let config = self.host.read("config.toml");
        self.host.write("config.toml", &format!("debug.runtime_roots = [\"{none}\"]\n{config}"));
        self.host.start_daemon();
        self.installs(&[]);
        self.start();
        self.import_image();
        self
    }

    /// Prepares Docker's settings; no process runs.
    pub(super) fn before_install() -> Option<Self> {
        let tools = tools::find(&[
            "busybox",
            "containerd",
            "containerd-shim-runc-v2",
            "docker",
            "dockerd",
            "runc",
        ])?;
        let host = TestHost::default();
        host.configure(&tools.join("runc"), "[log]\nlevel = \"debug\"");
        let _folders = leftovers::EngineFolders::hold();
        let mut docker =
            Self { host, tools, major_version: 0, dockerd: None, containerd: None, _folders };
        let version = docker.command("dockerd").arg("--version").output().unwrap();
        if version.status.success() {
            docker.major_version = major(&String::from_utf8(version.stdout).unwrap());
            docker.lay_out();
            return Some(docker);
        }
        let why = format!("dockerd does not run: {}", String::from_utf8_lossy(&version.stderr));
        skip::setup_lacks(&why);
        None
    }

    /// Writes the settings, the program at the engine's path, and a root for `install` in which every file
    /// is at its real path except for the undo record.
    fn lay_out(&self) {
        let dir = self.dir();
        for folder in ["etc", "bin", "host"] {
            std::fs::create_dir(self.host.path(folder)).unwrap();
        }
        let link = |to: &Path, from: PathBuf| std::os::unix::fs::symlink(to, from).unwrap();
        link(Path::new(env!("CARGO_BIN_EXE_nri-runc")), self.program());
        let above = Path::new(&dir).parent().unwrap();
        let same = self.host.path("host").join(above.strip_prefix("/").unwrap());
        std::fs::create_dir_all(&same).unwrap();
        std::fs::remove_dir(&same).unwrap();
        link(above, same);
        for folder in ["proc", "sys"] {
            link(&Path::new("/").join(folder), self.host.path("host").join(folder));
        }
        let settings = SETTINGS.replace("DIR", &dir).replace("CGROUP", &self.cgroup());
        let runc = self.tools.join("runc").display().to_string();
        let driver = if cgroup::has_systemd() { "systemd" } else { "cgroupfs" };
        let settings = settings.replace("DRIVER", driver);
        let score = if self.major_version < 25 { SCORE } else { "" };
        let settings = settings.replace("SCORE", score);
        self.host.write("etc/daemon.json", &settings.replace("RUNC", &runc));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
        std::fs::set_permissions(self.settings(), mode).unwrap();
    }

    /// Returns Docker's private folder.
    pub(super) fn dir(&self) -> String {
        self.host.path("").display().to_string().trim_end_matches('/').to_owned()
    }

    /// The program as Docker calls it.
    pub(super) fn program(&self) -> PathBuf {
        self.host.path("bin/nri-runc")
    }

    /// The path of `daemon.json`.
    pub(super) fn settings(&self) -> PathBuf {
        self.host.path("etc/daemon.json")
    }

    /// The cgroup above its containers.
    pub(super) fn cgroup(&self) -> String {
        let name = self.host.path("").components().next_back().unwrap().as_os_str().to_owned();
        let name = cgroup::of_engine(&name.to_string_lossy());
        if name.ends_with(".slice") { name } else { format!("/{name}") }
    }

    /// Runs `install` or `uninstall` of nri-runc.
    pub(super) fn registers(&self, verb: &str, more: &[&str]) -> Output {
        let (settings, program) = (self.settings(), self.program());
        let config = self.on_its_host();
        let mut words = vec!["nri", "--config", &config, verb, "docker"];
        if verb == "install" {
            words.extend(["--engine-config", settings.to_str().unwrap()]);
            words.extend(["--binary", program.to_str().unwrap()]);
        }
        words.extend(more);
        self.host.call(&words)
    }

    /// A configuration for admin verbs that see this Docker's host.
    pub(super) fn on_its_host(&self) -> String {
        let host_root = self.host.path("host").display().to_string();
        let config = self.host.read("config.toml");
        // Above all sections, because the configuration may have other keys for tests there.
        self.host.write("host.toml", &format!("debug.host_root = \"{host_root}\"\n{config}"));
        self.host.path("host.toml").display().to_string()
    }

    /// The rows of `check` with this name, when the runtime is found by its name.
    pub(super) fn checked(&self, check: &str) -> Vec<Value> {
        let (config, runc) = (self.on_its_host(), self.tools.join("runc"));
        let by_name = self.host.read("host.toml").replace(&runc.display().to_string(), "runc");
        self.host.write("host.toml", &by_name);
        let output = self.host.call(&["nri", "--config", &config, "--json", "check"]);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = all.as_array().unwrap().iter().filter(|finding| finding["check"] == check);
        found.cloned().collect()
    }

    /// The folder of programs at the beginning of its PATH.
    pub(super) fn tools(&self) -> &Path {
        &self.tools
    }

    pub(super) fn installs(&self, more: &[&str]) {
        let output = self.registers("install", more);
        assert!(output.status.success(), "{}", text(&output));
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.tools.join(program));
        command
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.tools.display()))
            .env("NRI_RUNC_CONFIG", self.host.path("config.toml"))
            .env("HOME", self.dir())
            .env_remove("DOCKER_HOST")
            .stdin(Stdio::null());
        command
    }

    /// Starts its daemon and waits until it responds.
    pub(super) fn start(&mut self) {
        let mut options = std::fs::OpenOptions::new();
        let log = options.append(true).create(true).open(self.host.path("dockerd.log")).unwrap();
        let mut dockerd = self.command("dockerd");
        dockerd.arg("--config-file").arg(self.settings());
        if cgroup::has_systemd() {
            dockerd.arg("--containerd").arg(self.host.path("containerd.sock"));
            let its = self.containerd.take();
            self.containerd = its.or_else(|| Some(self.start_containerd()));
        }
        dockerd.stdout(log.try_clone().unwrap()).stderr(log);
        self.dockerd = Some(dockerd.spawn().unwrap());
        wait_until("Docker answers", || {
            let ended = self.dockerd.as_mut().and_then(|child| child.try_wait().unwrap());
            if ended.is_some() {
                // No daemon is there that could list its containers or be stopped.
                self.dockerd = None;
            }
            assert!(ended.is_none(), "dockerd has ended: {}", self.log_tail());
            self.call(&["version"]).status.success()
        });
    }

    /// Starts the containerd below it, with its tasks in the folder of Docker's own containerd.
    fn start_containerd(&self) -> Containerd {
        let dir = self.host.path("");
        let setup = Setup {
            dir: &dir,
            programs: &self.tools,
            busybox: &self.tools.join("busybox"),
            runtime: &self.program(),
            environment: vec![("NRI_RUNC_CONFIG", self.host.path("config.toml").into())],
            has_nri: false,
            snapshotter: "native",
            cgroup: &self.cgroup(),
        };
        Containerd::start_empty(&setup, &CONTAINERD.replace("DIR", &self.dir()))
    }

    /// Stops its daemon as its unit does; containers keep running (`live-restore`).
    pub(super) fn stop(&mut self) {
        let Some(mut dockerd) = self.dockerd.take() else { return };
        signal(i32::try_from(dockerd.id()).unwrap(), nix::sys::signal::Signal::SIGTERM);
        let mut has_ended = || dockerd.try_wait().is_ok_and(|status| status.is_some());
        for _tenth in 0..200 {
            if has_ended() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ended = dockerd.kill();
        let _reaped = dockerd.wait();
    }

    /// Makes it read its settings again, as `systemctl reload docker` does.
    pub(super) fn reload(&self) {
        let pid = self.dockerd.as_ref().unwrap().id();
        signal(i32::try_from(pid).unwrap(), nix::sys::signal::Signal::SIGHUP);
    }

    /// The last lines of its log.
    pub(super) fn log_tail(&self) -> String {
        let log = self.host.read("dockerd.log");
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub(super) fn call(&self, words: &[&str]) -> Output {
        let socket = format!("unix://{}/docker.sock", self.dir());
        self.command("docker").args(["--host", &socket]).args(words).output().unwrap()
    }

    /// Runs docker successfully; returns its output.
    #[track_caller]
    pub(super) fn output_of(&self, words: &[&str]) -> String {
        let output = self.call(words);
        assert!(output.status.success(), "{words:?}: {}\n{}", text(&output), self.log_tail());
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Starts a container through nri-runc that keeps running; returns its ID.
    #[track_caller]
    pub(super) fn runs(&self, name: &str, more: &[&str]) -> String {
        let begin = ["run", "--detach", "--runtime", "nri-runc", "--name", name];
        self.output_of(&[&begin[..], more, &[IMAGE, "/bin/sleep", "1000"]].concat())
    }

    pub(super) fn inspect(&self, name: &str) -> Value {
        let all: Value = serde_json::from_str(&self.output_of(&["inspect", name])).unwrap();
        all[0].clone()
    }

    /// A container's document, as the runtime received it.
    pub(super) fn document(&self, id: &str) -> Value {
        serde_json::from_str(&self.task(id, "config.json")).unwrap()
    }

    /// A file of a container's bundle.
    pub(super) fn task(&self, id: &str, file: &str) -> String {
        let tasks = "exec/containerd/daemon/io.containerd.runtime.v2.task/moby";
        self.host.read(&format!("{tasks}/{id}/{file}"))
    }

    /// Checks that no part knows of any container, and that no file of one is left.
    #[track_caller]
    pub(super) fn nothing_is_left(&self) {
        wait_until("no pod is known", || self.host.admin(&["pods"]) == json!([]));
        assert_eq!(self.host.admin(&["status"])["failures"], json!([]));
        self.no_container_is_left();
    }

    /// Checks that nothing of a container is left on the host.
    #[track_caller]
    pub(super) fn no_container_is_left(&self) {
        assert_eq!(self.output_of(&["ps", "--all", "--quiet"]), "");
        let state = self.host.path("exec/runtime-runc/moby");
        let states = || std::fs::read_dir(&state).into_iter().flatten().flatten().count();
        wait_until("the runtime has nothing on record", || states() == 0);
        let cgroup = self.cgroup();
        wait_until("its cgroups have gone", || leftovers::cgroups(&cgroup).is_empty());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        // While Docker runs, its data root is mounted on itself, and the host's network is held.
        let below = ["data", "exec"].map(|folder| format!("{}/{folder}/", self.dir()));
        let is_below = |line: &&str| {
            below.iter().any(|dir| line.contains(dir)) && !line.contains("/netns/default ")
        };
        let left: Vec<&str> = mounts.lines().filter(is_below).collect();
        assert_eq!(left, Vec::<&str>::new());
    }

    /// Returns the digest of the image's configuration, from the archive in which Docker saves the
    /// image.
    pub(super) fn digest_of_configuration(&self) -> String {
        let tar = self.host.path("saved.tar").display().to_string();
        self.output_of(&["image", "save", "--output", &tar, IMAGE]);
        let mut busybox = self.command("busybox");
        let manifest = busybox.args(["tar", "-xOf", &tar, "manifest.json"]).output().unwrap();
        let images: Value = serde_json::from_slice(&manifest.stdout).unwrap();
        images[0]["Config"].as_str().unwrap().replace("blobs/sha256/", "sha256:")
    }

    /// Imports an image of one layer with busybox; no registry is contacted.
    pub(super) fn import_image(&self) {
        let folder = self.host.path("image/bin");
        std::fs::create_dir_all(&folder).unwrap();
        test_support::program::copy(&self.tools.join("busybox"), &folder.join("busybox"));
        for applet in ["cat", "env", "head", "sh", "sleep", "true", "wc"] {
            std::os::unix::fs::symlink("busybox", folder.join(applet)).unwrap();
        }
        let tar = self.host.path("image.tar").display().to_string();
        let image = self.host.path("image").display().to_string();
        let mut busybox = self.command("busybox");
        busybox.args(["tar", "-C", &image, "-cf", &tar, "."]);
        assert!(busybox.status().unwrap().success());
        let env = "ENV FROM=image";
        self.output_of(&["import", "--change", env, "--change", "LABEL vendor=us", &tar, IMAGE]);
    }
}

/// Both streams, for assertion messages.
pub(super) fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Returns 20 for `Docker version 20.10.24+dfsg1, build 297e128`.
fn major(version: &str) -> u32 {
    let number = version.strip_prefix("Docker version ").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).expect(version)
}

/// The first line on standard error that is not a warning: newer clients first warn of features that a
/// host lacks for networks.
pub(super) fn reason(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stderr);
    // Docker's client may also log that it no longer waits.
    let is_noise = |line: &&str| line.starts_with("WARNING: ") || line.starts_with("time=");
    let line = printed.lines().find(|line| !is_noise(line));
    line.unwrap_or_default().to_owned()
}

pub(super) fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

impl Drop for Docker {
    fn drop(&mut self) {
        if self.dockerd.is_some() {
            let ids = self.call(&["ps", "--all", "--quiet"]).stdout;
            let ids = String::from_utf8_lossy(&ids).into_owned();
            let ids: Vec<&str> = ids.split_whitespace().collect();
            if !ids.is_empty() {
                let _gone = self.call(&[&["rm", "--force"][..], &ids].concat());
            }
            self.stop();
        }
        leftovers::clear(&self.dir(), &self.cgroup());
    }
}
