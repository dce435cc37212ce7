// SPDX-License-Identifier: Apache-2.0
//! A real containerd, 1.6 or 2.x, with private root, state, sockets and cgroup, controlled through
//! its CRI (`cri.rs`). No registry is contacted, no network is created. It is stopped by PID, and
//! all its mounts and files are removed on drop.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tonic::transport::Channel;

use crate::cri::generated::runtime_service_client::RuntimeServiceClient;
use crate::{cri, leftovers, registry};

/// The properties of a containerd.
pub struct Setup<'a> {
    /// A private folder, which exists.
    pub dir: &'a Path,
    /// The folder of containerd, its shim and ctr.
    pub programs: &'a Path,
    pub busybox: &'a Path,
    /// The program that its shims call.
    pub runtime: &'a Path,
    /// The environment of its shims and their runtime.
    pub environment: Vec<(&'static str, OsString)>,
    /// Whether its own NRI serves plugins, on `nri.sock` in `dir`.
    pub has_nri: bool,
    pub snapshotter: &'a str,
    /// The cgroup of its pods.
    pub cgroup: &'a str,
}

pub struct Containerd {
    dir: PathBuf,
    programs: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    cgroup: String,
    child: Option<Child>,
    _folders: leftovers::EngineFolders,
}

impl Containerd {
    /// Starts it and imports the image `localhost/busybox:1`.
    pub fn start(setup: &Setup<'_>) -> Self {
        Self::start_with(setup, &configuration(setup))
    }

    /// Starts it with a configuration file of the test.
    pub fn start_with(setup: &Setup<'_>, configuration: &str) -> Self {
        let it = Self::start_empty(setup, configuration);
        it.import_image(setup.busybox);
        it
    }

    /// Starts it without an image, for an engine above it.
    pub fn start_empty(setup: &Setup<'_>, configuration: &str) -> Self {
        let file = setup.dir.join("containerd.toml");
        nri_runc::testing::files::replace(&file, configuration.as_bytes()).unwrap();
        let mut it = Self {
            dir: setup.dir.to_owned(),
            programs: setup.programs.to_owned(),
            environment: setup.environment.clone(),
            cgroup: setup.cgroup.to_owned(),
            child: None,
            _folders: leftovers::EngineFolders::hold(),
        };
        it.run();
        it
    }

    /// Runs it with the existing configuration file, until it responds.
    pub fn run(&mut self) {
        let mut log = std::fs::OpenOptions::new();
        let log = log.create(true).append(true).open(self.dir.join("containerd.log")).unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.programs.display());
        let child = command(&self.programs.join("containerd"))
            .arg("--config")
            .arg(self.dir.join("containerd.toml"))
            .env("PATH", path)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let deadline = Instant::now() + crate::PATIENCE;
        while !self.ctr(&["version"]) {
            assert!(Instant::now() < deadline, "containerd does not answer\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops it; its shims keep running.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let _plugin = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(20);
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _if_it_would_not = child.kill();
        let _reaped = child.wait();
    }

    /// The cgroup of its pods.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// Runs `ctr` with these words, in a namespace of containerd.
    pub fn ctr_in(&self, namespace: &str, words: &[&str]) -> std::io::Result<Output> {
        let mut command = command(&self.programs.join("ctr"));
        command.arg("--address").arg(self.dir.join("containerd.sock"));
        command.args(["--namespace", namespace]).args(words);
        command.stdin(Stdio::null()).output()
    }

    fn ctr(&self, words: &[&str]) -> bool {
        self.ctr_in("k8s.io", words).is_ok_and(|output| output.status.success())
    }

    /// Imports an image of one layer with busybox.
    fn import_image(&self, busybox: &Path) {
        let image = self.dir.join("image");
        registry::pack(&image, busybox);
        let tar = image.join("image.tar").display().to_string();
        // Without `--local`, containerd since 2.0 guesses the platform and the snapshotter. 1.6
        // lacks the flag.
        let is_there = self.ctr(&["images", "import", "--local", &tar])
            || self.ctr(&["images", "import", &tar]);
        assert!(is_there, "{}", self.log_tail());
        // The CRI plugin receives images by events, a moment later.
        std::thread::sleep(Duration::from_millis(300));
    }

    /// Returns the end of its log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    pub async fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel().await)
    }

    /// A connection to its socket.
    pub async fn channel(&self) -> Channel {
        cri::connect(self.dir.join("containerd.sock")).await
    }
}

/// Version 2, which every containerd from 1.3 to 2.x reads.
fn configuration(setup: &Setup<'_>) -> String {
    let Setup { runtime, snapshotter, has_nri, .. } = setup;
    let (dir, runtime, has_no_nri) = (setup.dir.display(), runtime.display(), !has_nri);
    let plain = setup.busybox.with_file_name("runc");
    let (plain, systemd) = (plain.display(), crate::cgroup::has_systemd());
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{dir}/containerd.sock"
[ttrpc]
  address = "{dir}/containerd.sock.ttrpc"
[plugins."io.containerd.nri.v1.nri"]
  disable = {has_no_nri}
  socket_path = "{dir}/nri.sock"
  plugin_path = "{dir}/plugins"
  plugin_config_path = "{dir}/plugins"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/busybox:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{dir}/cni"
    bin_dir = "{dir}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "tested"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.tested]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["*", "*/*"]
      container_annotations = ["*", "*/*"]
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.tested.options]
        BinaryName = "{runtime}"
        SystemdCgroup = {systemd}
        Root = "{dir}/runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.plain]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.plain.options]
        BinaryName = "{plain}"
        SystemdCgroup = {systemd}
        Root = "{dir}/runc"
"#
    )
}

fn command(program: &Path) -> Command {
    Command::new(program)
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.stop();
        // Shims have the private folder on their command line; their leftovers are in its cgroups.
        leftovers::clear(&self.dir.display().to_string(), self.cgroup());
    }
}
