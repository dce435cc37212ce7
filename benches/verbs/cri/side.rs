// SPDX-License-Identifier: Apache-2.0
//! One of the sides: a containerd with pods for the containers, and plugins on the side's
//! socket.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::containerd::{Containerd, Setup};
use test_support::cri::{self, Cri};

use super::plugin::{self, Policies};

/// As many pods as workers, because kubelet creates the containers of one pod one after the other.
pub(super) const WORKERS: usize = 8;

/// Time for plugins to be synchronized.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Side {
    has_plugins: bool,
    plugins: Option<(usize, Policies)>,
    containerd: Containerd,
    daemon: Option<Child>,
    client: Cri,
    dir: PathBuf,
    /// ID and name.
    pods: Vec<(String, String)>,
}

/// The programs of both sides.
pub(super) struct Programs<'a> {
    pub(super) containerd: &'a Path,
    pub(super) runc: &'a Path,
    pub(super) busybox: &'a Path,
    /// nri-runc.
    pub(super) binary: &'a Path,
}

impl Side {
    /// containerd's own NRI and the bare runtime.
    pub(super) async fn theirs(programs: &Programs<'_>, dir: PathBuf) -> Self {
        Self::start(programs, dir, programs.runc, true, None).await
    }

    /// The same containerd without its own NRI, and the bare runtime.
    pub(super) async fn bare(programs: &Programs<'_>, dir: PathBuf) -> Self {
        Self::start(programs, dir, programs.runc, false, None).await
    }

    /// The same containerd without its own NRI, and nri-runc as its runtime.
    pub(super) async fn ours(programs: &Programs<'_>, dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let (path, config) = (dir.display(), dir.join("nri-runc.toml"));
        let text = format!(
            "runtime = [\"{}\"]\nrun_dir = \"{path}/run\"\nautostart = false\n[nri]\nsocket_path = \"{path}/nri.sock\"\nplugin_path = \"{path}/plugins\"\nplugin_config_path = \"{path}/plugins\"\n[plugin.reentrant]\nconcurrency = {WORKERS}\n[log]\ntarget = \"file\"\n",
            programs.runc.display()
        );
        nri_runc::testing::files::replace(&config, text.as_bytes()).unwrap();
        let mut daemon = Command::new(programs.binary);
        daemon.args(["nri", "daemon"]).env("NRI_RUNC_CONFIG", &config);
        let daemon = daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self::start(programs, dir, programs.binary, false, Some((daemon, config))).await
    }

    async fn start(
        programs: &Programs<'_>,
        dir: PathBuf,
        runtime: &Path,
        has_nri: bool,
        ours: Option<(Child, PathBuf)>,
    ) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let (daemon, config) = ours.unzip();
        let name = dir.file_name().unwrap().to_string_lossy();
        let cgroup = format!("nri-runc-bench-{}-{name}", std::process::id());
        let containerd = Containerd::start(&Setup {
            dir: &dir,
            programs: programs.containerd,
            busybox: programs.busybox,
            runtime,
            environment: config.map(|file| ("NRI_RUNC_CONFIG", file.into())).into_iter().collect(),
            has_nri,
            snapshotter: "overlayfs",
            cgroup: &cgroup,
        });
        let mut client = containerd.client().await;
        let mut pods = Vec::new();
        for number in 0..WORKERS {
            let name = format!("pod-{number}");
            pods.push((cri::run_pod(&mut client, cri::pod(&cgroup, &name)).await, name));
        }
        let has_plugins = has_nri || daemon.is_some();
        Self { has_plugins, plugins: None, containerd, daemon, client, dir, pods }
    }

    /// Replaces its plugins by these, and waits until all are synchronized.
    pub(super) async fn connect_plugins(&mut self, count: usize, name: &str, thinks: Duration) {
        if !self.has_plugins {
            return;
        }
        self.plugins = None;
        let socket = self.dir.join("nri.sock");
        self.plugins = Some((count, Policies::start(&socket, count, name, thinks)));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (id, _) = self.wait_for_container(0).await;
            let missing = self.missing(&id, 0);
            self.end(&id).await;
            if missing.is_empty() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "in {}: no container with {missing:?}\n{}",
                self.dir.display(),
                self.containerd.log_tail()
            );
        }
    }

    /// The wait of a user: a container in the pod of this number, created and started, with every
    /// plugin's adjustment in it. In milliseconds.
    pub(super) async fn container(&self, pod: usize) -> f64 {
        let (id, took) = self.wait_for_container(pod).await;
        let missing = self.missing(&id, pod);
        assert!(missing.is_empty(), "in {}: without {missing:?}", self.dir.display());
        self.end(&id).await;
        took
    }

    /// Creates and starts containers with these numbers, which stay; two at once.
    pub(super) async fn run_more(&self, numbers: Range<usize>) {
        let half = |odd: usize| {
            let numbers = numbers.clone().filter(move |number| number % 2 == odd);
            async move {
                for number in numbers {
                    let name = format!("known-{number}");
                    self.run(number % WORKERS, &name).await;
                }
            }
        };
        tokio::join!(half(0), half(1));
    }

    async fn run(&self, pod: usize, name: &str) -> String {
        let (pod_id, pod_name) = &self.pods[pod];
        let mut client = self.client.clone();
        let pod = cri::pod(self.containerd.cgroup(), pod_name);
        let container = cri::container(name, &["/bin/sleep", "100000"]);
        let id = cri::create(&mut client, pod_id, pod, container).await;
        cri::start(&mut client, &id).await.unwrap();
        id
    }

    async fn wait_for_container(&self, pod: usize) -> (String, f64) {
        let begun = Instant::now();
        let id = self.run(pod, "app").await;
        (id, begun.elapsed().as_secs_f64() * 1e3)
    }

    /// The plugins whose variables are missing in the runtime's document.
    fn missing(&self, id: &str, pod: usize) -> Vec<String> {
        let path = format!("state/io.containerd.runtime.v2.task/k8s.io/{id}/config.json");
        let bytes = std::fs::read(self.dir.join(path)).unwrap();
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let count = self.plugins.as_ref().map_or(0, |(count, _)| *count);
        let env = document["process"]["env"].as_array().unwrap();
        let mounts = document["mounts"].as_array().unwrap();
        let mounted = |mount: &&Value| {
            mount["destination"].as_str().is_some_and(|at| at.starts_with("/added-"))
        };
        let mut missing = plugin::variables(count, &self.pods[pod].1, "app");
        missing.retain(|wanted| !env.contains(&Value::from(wanted.as_str())));
        if mounts.iter().filter(mounted).count() < count {
            missing.push("all mounts".to_owned());
        }
        missing
    }

    async fn end(&self, id: &str) {
        let mut client = self.client.clone();
        cri::end_container(&mut client, id).await;
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ended = daemon.kill();
            let _reaped = daemon.wait();
        }
    }
}
