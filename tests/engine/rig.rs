// SPDX-License-Identifier: Apache-2.0
//! A real containerd with private root, state and sockets, driven through its CRI, with nri-runc
//! as its runtime. Everything is stopped by pid and unmounted when it goes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

use super::cri;
use cri::runtime_service_client::RuntimeServiceClient;

/// The folder of the programs that an engine needs; `None` after saying why a test is skipped.
pub(super) fn tools() -> Option<PathBuf> {
    super::tools::find(&["busybox", "containerd", "containerd-shim-runc-v2", "ctr", "runc"])
}

pub(super) struct Engine {
    pub(super) temp: tempfile::TempDir,
    tools: PathBuf,
    containerd: Child,
}

impl Engine {
    pub(super) fn start(tools: &Path) -> Self {
        let temp = tempfile::Builder::new().prefix("nri").tempdir_in("/tmp").unwrap();
        let dir = temp.path().display().to_string();
        std::fs::create_dir_all(temp.path().join("data")).unwrap();
        let write = |name: &str, text: &str| {
            nri_runc::files::replace(&temp.path().join(name), text.as_bytes()).unwrap();
        };
        write("data/hello", "mounted by a plugin\n");
        write(
            "nri-runc.toml",
            &format!(
                "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\n[nri]\nsocket_path = \"{dir}/nri.sock\"\nplugin_path = \"{dir}/plugins\"\nplugin_config_path = \"{dir}\"\n[log]\ntarget = \"file\"\nlevel = \"debug\"\n",
                tools.join("runc").display()
            ),
        );
        write("containerd.toml", &configuration(&dir));
        let log = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(temp.path().join("containerd.log"))
            .unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.display());
        let containerd = command(&tools.join("containerd"))
            .args(["--config", &format!("{dir}/containerd.toml")])
            .env("PATH", path)
            .env("NRI_RUNC_CONFIG", temp.path().join("nri-runc.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let engine = Self { temp, tools: tools.to_owned(), containerd };
        engine.wait_until("containerd answers", || engine.ctr(&["version"]));
        engine.import_image();
        engine
    }

    /// The cgroup of this engine's pods.
    pub(super) fn cgroup(&self) -> String {
        let name = self.temp.path().file_name().unwrap_or_default();
        format!("nri-runc-test-{}", name.to_string_lossy())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn ctr(&self, words: &[&str]) -> bool {
        let socket = self.path("containerd.sock").display().to_string();
        let mut command = command(&self.tools.join("ctr"));
        command.args(["--address", &socket, "--namespace", "k8s.io"]).args(words);
        let output = command.stdin(Stdio::null()).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// An image layout of one layer with busybox; no registry is asked.
    fn import_image(&self) {
        let script = r#"
set -eu
mkdir -p layer/bin layer/data layer/proc layer/etc layout/blobs/sha256
cp "$1" layer/bin/busybox
for applet in sh sleep cat true; do ln -sf busybox layer/bin/$applet; done
tar -C layer -cf layer.tar .
put() { sum=$(sha256sum "$1" | cut -d' ' -f1); cp "$1" layout/blobs/sha256/$sum; echo $sum; }
size() { stat -c %s "$1"; }
layer=$(put layer.tar)
printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"],"Entrypoint":["/bin/sleep","100000"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' $layer >config
config=$(put config)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' $config $(size config) $layer $(size layer.tar) >manifest
manifest=$(put manifest)
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"localhost/busybox:1"},"platform":{"architecture":"amd64","os":"linux"}}]}' $manifest $(size manifest) >layout/index.json
printf '{"imageLayoutVersion":"1.0.0"}' >layout/oci-layout
tar -C layout -cf image.tar .
"#;
        let image = self.path("image");
        std::fs::create_dir_all(&image).unwrap();
        let busybox = self.tools.join("busybox");
        let status = command(Path::new("sh"))
            .args(["-c", script, "sh"])
            .arg(busybox)
            .current_dir(&image)
            .status()
            .unwrap();
        assert!(status.success());
        let tar = image.join("image.tar").display().to_string();
        assert!(self.ctr(&["images", "import", &tar]), "{}", self.log_tail());
        // The CRI plugin learns of images by events; a moment passes.
        std::thread::sleep(Duration::from_millis(300));
    }

    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.path("containerd.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let ours = std::fs::read_to_string(self.path("run/daemon.log")).unwrap_or_default();
        format!(
            "{}\n{ours}\n{}\n{}",
            lines[lines.len().saturating_sub(15)..].join("\n"),
            self.admin(&["status"]),
            self.admin(&["pods"])
        )
    }

    #[track_caller]
    pub(super) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "waited too long until {what}\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) async fn client(&self) -> RuntimeServiceClient<Channel> {
        let socket = self.path("containerd.sock");
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        RuntimeServiceClient::new(endpoint.connect_with_connector(connect).await.unwrap())
    }

    /// Asks the daemon of this engine's wrappers.
    pub(super) fn admin(&self, words: &[&str]) -> serde_json::Value {
        let output = command(Path::new(env!("CARGO_BIN_EXE_nri-runc")))
            .args(["nri", "--json"])
            .args(words)
            .env("NRI_RUNC_CONFIG", self.path("nri-runc.toml"))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Starts the daemon, as its unit would.
    pub(super) fn start_daemon(&self) -> Child {
        let mut daemon = command(Path::new(env!("CARGO_BIN_EXE_nri-runc")));
        daemon.args(["nri", "daemon"]).env("NRI_RUNC_CONFIG", self.path("nri-runc.toml"));
        let child = daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.wait_until("the daemon answers", || self.admin(&["status"])["pid"].is_u64());
        child
    }
}

fn configuration(dir: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_nri-runc");
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{dir}/containerd.sock"
[ttrpc]
  address = "{dir}/containerd.sock.ttrpc"
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
    snapshotter = "native"
    default_runtime_name = "nri-runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nri-runc]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["*", "*/*"]
      container_annotations = ["*", "*/*"]
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nri-runc.options]
        BinaryName = "{binary}"
        Root = "{dir}/runc"
"#
    )
}

#[expect(clippy::disallowed_methods, reason = "the engine under test")]
fn command(program: &Path) -> Command {
    Command::new(program)
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ended = self.containerd.kill();
        let _reaped = self.containerd.wait();
        let dir = self.temp.path().display().to_string();
        // Shims have our private folder on their command line; what they left is in our cgroups.
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let is_shim = String::from_utf8_lossy(&read("cmdline")).contains(&dir);
            let is_left = String::from_utf8_lossy(&read("cgroup")).contains(&self.cgroup());
            if (is_shim || is_left) && pid != i32::try_from(std::process::id()).unwrap_or(0) {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for line in mounts.lines().rev() {
            let Some(point) = line.split(' ').nth(4).filter(|point| point.starts_with(&dir)) else {
                continue;
            };
            let _gone = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
        for controller in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroup(&controller.path().join(self.cgroup()));
        }
    }
}

fn remove_cgroup(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    let _gone = std::fs::remove_dir(dir);
}
