// SPDX-License-Identifier: Apache-2.0
//! Added time and memory against bare runc, measured in the same run, interleaved.
//!
//! `make bench` calls it with the release binary and the real runc. It reports ratios and never
//! fails on one: a busy machine is no reason to.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a measuring program that stops at the first surprise"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nri_runc::plugin::api;
use nri_runc::plugin::stub::Stub;
use serde_json::{Value, json};
use ttrpc::r#async::TtrpcContext;

const ROUNDS: usize = 60;

struct Greeter;

#[async_trait]
impl api::Plugin for Greeter {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        // CreateContainer alone.
        Ok(api::ConfigureResponse { events: 1 << 3, ..Default::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        _: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        Ok(Default::default())
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        _: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        let env = api::KeyValue { key: "A".into(), value: "b".into(), ..Default::default() };
        let adjust = api::ContainerAdjustment {
            env: vec![env],
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            ..Default::default()
        };
        Ok(api::CreateContainerResponse { adjust: Some(adjust).into(), ..Default::default() })
    }
}

/// A private world with a bundle of thirty mounts, as engines make them.
struct Place {
    temp: tempfile::TempDir,
    binary: PathBuf,
    runc: PathBuf,
    daemon: Option<Child>,
}

impl Place {
    fn new(binary: PathBuf, tools: &Path) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let place = Self { temp, binary, runc: tools.join("runc"), daemon: None };
        let bin = place.path("bundle/rootfs/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::copy(tools.join("busybox"), bin.join("sleep")).unwrap();
        // runc itself needs /proc inside.
        let proc = json!({"destination": "/proc", "type": "proc", "source": "proc"});
        let mounts: Vec<Value> = (0..30)
            .map(|n| json!({"destination": format!("/m{n}"), "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=4k"]}))
            .chain([proc])
            .collect();
        let bundle = json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sleep", "1000"], "env": ["PATH=/bin"]},
            "root": {"path": "rootfs"}, "mounts": mounts,
            "linux": {"cgroupsPath": "/nri-runc-bench/c", "namespaces": [{"type": "mount"}, {"type": "pid"}]}
        });
        place.write("bundle/config.json", &bundle.to_string());
        place.configure(&place.runc);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        nri_runc::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    fn configure(&self, runtime: &Path) {
        let dir = self.temp.path().display();
        self.write("config.toml", &format!(
            "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\nautostart = false\n[nri]\nsocket_path = \"{dir}/nri.sock\"\nplugin_path = \"{dir}/none\"\n",
            runtime.display()
        ));
    }

    fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.env("NRI_RUNC_CONFIG", self.path("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.args(["--root".as_ref(), self.path("root").as_os_str()]).args(words);
        command
    }

    fn timed(&self, program: &Path, words: &[&str]) -> f64 {
        let mut command = self.command(program, words);
        let begun = Instant::now();
        let status = command.status().unwrap();
        let taken = begun.elapsed();
        assert!(status.success(), "{} {words:?} failed", program.display());
        taken.as_secs_f64()
    }

    fn start_daemon(&mut self) {
        let mut command = Command::new(&self.binary);
        command.args(["nri", "daemon"]).env("NRI_RUNC_CONFIG", self.path("config.toml"));
        self.daemon = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        while !self.path("run/daemon.sock").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect_plugin(&self) {
        let socket = self.path("nri.sock");
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
                let stub =
                    Stub::register(stream, "10", "greeter", Arc::new(Greeter)).await.unwrap();
                stub.closed().await;
            });
        });
        std::thread::sleep(Duration::from_millis(300));
    }

    /// Wrapped against bare, in turns; the bundle is made by neither.
    fn create(&self, name: &str) -> (String, Value) {
        let bundle = self.path("bundle").display().to_string();
        let words = ["create", "--bundle", &bundle, "c"];
        let mut pairs = Vec::new();
        for round in 0..ROUNDS {
            let mut pair = [0.0; 2];
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let program = if which == 0 { &self.runc } else { &self.binary };
                pair[which] = self.timed(program, &words);
                self.timed(program, &["delete", "--force", "c"]);
            }
            pairs.push((pair[0], pair[1]));
        }
        report(name, &pairs, "runc create")
    }

    fn passthrough(&self) -> (String, Value) {
        let bundle = self.path("bundle").display().to_string();
        self.timed(&self.runc, &["create", "--bundle", &bundle, "c"]);
        let mut pairs = Vec::new();
        for round in 0..ROUNDS * 3 {
            let mut pair = [0.0; 2];
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let program = if which == 0 { &self.runc } else { &self.binary };
                pair[which] = self.timed(program, &["state", "c"]);
            }
            pairs.push((pair[0], pair[1]));
        }
        self.timed(&self.runc, &["delete", "--force", "c"]);
        report("passthrough", &pairs, "runc state")
    }

    /// Peak memory in KiB of a command, its children included.
    fn peak(&self, program: &Path, words: &[&str]) -> f64 {
        let mut peaks: Vec<i64> =
            (0..9).map(|_| max_rss(&mut self.command(program, words))).collect();
        peaks.sort_unstable();
        peaks[peaks.len() / 2] as f64
    }
}

impl Place {
    /// Peak memory in KiB of the wrapper in a whole `create`, read while it is held right before
    /// exec: what `wait4` tells would include the process that started it.
    fn peak_before_exec(&self) -> f64 {
        let text = std::fs::read_to_string(self.path("config.toml")).unwrap();
        self.write("config.toml", &format!("{text}[debug]\nfault = \"wrapper.exec:stall\"\n"));
        let bundle = self.path("bundle").display().to_string();
        let mut child =
            self.command(&self.binary, &["create", "--bundle", &bundle, "x"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let peak = status_kib(child.id(), "VmHWM");
        child.kill().unwrap();
        child.wait().unwrap();
        peak
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ended = daemon.kill();
            let _reaped = daemon.wait();
        }
    }
}

#[expect(
    unsafe_code,
    clippy::zombie_processes,
    reason = "wait4 is the one call that tells a single child's peak memory"
)]
fn max_rss(command: &mut Command) -> i64 {
    let child = command.spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which all zeroes is a value.
    let mut usage: nix::libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals; the child is ours and was not waited for.
    unsafe { nix::libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    usage.ru_maxrss
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The ratio of the medians, and the smallest and largest ratio of a round.
fn report(name: &str, pairs: &[(f64, f64)], baseline: &str) -> (String, Value) {
    let mut bare: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
    let mut wrapped: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
    let ratios = pairs.iter().map(|(bare, wrapped)| wrapped / bare);
    let min = ratios.clone().fold(f64::MAX, f64::min);
    let max = ratios.fold(0.0, f64::max);
    let ratio = median(&mut wrapped) / median(&mut bare);
    let told =
        json!({"median": ratio, "min": min, "max": max, "runs": pairs.len(), "baseline": baseline});
    (name.to_owned(), told)
}

fn memory(name: &str, ours: f64, theirs: f64, baseline: &str) -> (String, Value) {
    let ratio = ours / theirs;
    (
        name.to_owned(),
        json!({"median": ratio, "min": ratio, "max": ratio, "runs": 1, "baseline": baseline}),
    )
}

fn status_kib(pid: u32, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn main() {
    let (Some(binary), Some(tools)) =
        (std::env::var_os("NRI_RUNC_BINARY"), std::env::var_os("NRI_RUNC_TOOLS"))
    else {
        println!("skipped: run it by `make bench`, which sets NRI_RUNC_BINARY and NRI_RUNC_TOOLS");
        return;
    };
    let mut place = Place::new(binary.into(), Path::new(&tools));
    place.start_daemon();
    let mut ratios = vec![place.passthrough(), place.create("create_no_plugin")];
    place.connect_plugin();
    ratios.push(place.create("create_one_plugin"));
    let runc = place.peak(&place.runc, &["--version"]);
    ratios.push(memory(
        "daemon_rss",
        status_kib(place.daemon.as_ref().map_or(0, Child::id), "VmRSS"),
        runc,
        "peak of runc --version",
    ));
    let wrapper = place.peak_before_exec();
    ratios.push(memory("wrapper_rss", wrapper, runc, "peak of runc --version"));
    tell(&ratios);
}

fn tell(ratios: &[(String, Value)]) {
    println!("{:<20}{:>8}{:>8}{:>8}{:>6}  baseline", "ratio", "median", "min", "max", "runs");
    for (name, ratio) in ratios {
        let number = |key: &str| ratio[key].as_f64().unwrap_or(0.0);
        println!(
            "{name:<20}{:>8.3}{:>8.3}{:>8.3}{:>6}  {}",
            number("median"),
            number("min"),
            number("max"),
            ratio["runs"],
            ratio["baseline"].as_str().unwrap_or_default()
        );
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let machine = json!({"kernel": kernel.trim(), "cpus": cpus});
    let ratios: serde_json::Map<String, Value> = ratios.iter().cloned().collect();
    let document = json!({"machine": machine, "ratios": ratios});
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&dir).unwrap();
    nri_runc::files::replace(&dir.join("report.json"), document.to_string().as_bytes()).unwrap();
}
