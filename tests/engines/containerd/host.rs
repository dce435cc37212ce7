// SPDX-License-Identifier: Apache-2.0
//! A containerd with nri-runc as its runtime, and a configuration of the test: Debian's, or a newer one that
//! `scripts/newer.sh` has built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use test_support::Started;
use test_support::containerd::{Containerd, Setup};
use test_support::cri::Cri;

use super::config::{self, Passes, Wanted};

/// The folder of the programs that an engine needs; `None` after printing why a test is skipped.
pub(super) fn tools() -> Option<PathBuf> {
    test_support::tools::find(&["busybox", "containerd", "containerd-shim-runc-v2", "ctr", "runc"])
}

/// The programs of an engine.
pub(super) struct Parts<'a> {
    /// The path from `tools`.
    pub(super) tools: &'a Path,
    /// The folder of containerd, its shim and ctr.
    pub(super) containerd: &'a Path,
    /// The runtime behind nri-runc.
    pub(super) runc: &'a Path,
    /// Writes its configuration for the folder of all its files; by default a configuration of version 2 that
    /// names nri-runc.
    pub(super) configuration: Option<&'a dyn Fn(&Path) -> String>,
}

pub(super) struct Engine {
    pub(super) containerd: Containerd,
    temp: tempfile::TempDir,
}

impl Engine {
    /// Debian's containerd, with Debian's runc behind nri-runc.
    pub(super) fn start(tools: &Path) -> Self {
        let runc = tools.join("runc");
        Self::of(&Parts { tools, containerd: tools, runc: &runc, configuration: None })
    }

    pub(super) fn of(parts: &Parts<'_>) -> Self {
        let temp = tempfile::Builder::new().prefix("nri").tempdir_in("/tmp").unwrap();
        let dir = temp.path().display().to_string();
        std::fs::create_dir_all(temp.path().join("data")).unwrap();
        let write = |name: &str, text: &str| {
            nri_runc::testing::files::replace(&temp.path().join(name), text.as_bytes()).unwrap();
        };
        write("data/hello", "mounted by a plugin\n");
        // A guest without KVM is slow: no plugin is late there.
        let is_guest = test_support::cgroup::has_systemd();
        let patience = if is_guest { "plugin_request_timeout = \"20s\"\n" } else { "" };
        write(
            "nri-runc.toml",
            &format!(
                "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\n[nri]\nsocket_path = \"{dir}/nri.sock\"\nplugin_path = \"{dir}/plugins\"\nplugin_config_path = \"{dir}\"\n{patience}[log]\ntarget = \"file\"\nlevel = \"debug\"\n",
                parts.runc.display()
            ),
        );
        stamp(&temp.path().join("run"));
        let setup = Setup {
            dir: temp.path(),
            programs: parts.containerd,
            busybox: &parts.tools.join("busybox"),
            runtime: Path::new(env!("CARGO_BIN_EXE_nri-runc")),
            environment: vec![("NRI_RUNC_CONFIG", temp.path().join("nri-runc.toml").into())],
            has_nri: false,
            snapshotter: "native",
            cgroup: &cgroup_of(&temp),
        };
        let containerd = match parts.configuration {
            Some(configuration) => Containerd::start_with(&setup, &configuration(temp.path())),
            None => Containerd::start(&setup),
        };
        Self { containerd, temp }
    }

    /// A containerd of config version 4 whose plugins connect to its own NRI, or to nri-runc; also the socket
    /// of that NRI. `edit` changes its configuration.
    pub(super) fn of_nri(
        (tools, containerd): (&Path, &Path),
        has_nri: bool,
        edit: impl Fn(String) -> String,
    ) -> (Self, PathBuf) {
        let runc = &*tools.join("runc");
        let runtime = if has_nri { runc } else { env!("CARGO_BIN_EXE_nri-runc").as_ref() };
        let handlers = [("tested", Passes::All)];
        let wanted = Wanted { version: 4, handlers: &handlers, runtime, has_nri };
        let configuration = |dir: &Path| edit(config::containerd(dir, &wanted));
        let configuration = Some(&configuration as &dyn Fn(&Path) -> String);
        let engine = Self::of(&Parts { tools, containerd, runc, configuration });
        let socket = engine.path(if has_nri { "own.sock" } else { "nri.sock" });
        (engine, socket)
    }

    /// The cgroup of this engine's pods.
    pub(super) fn cgroup(&self) -> &str {
        self.containerd.cgroup()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(super) fn log_tail(&self) -> String {
        let ours = std::fs::read_to_string(self.path("run/daemon.log")).unwrap_or_default();
        let theirs = self.containerd.log_tail();
        format!("{theirs}\n{ours}\n{}\n{}", self.admin(&["status"]), self.admin(&["pods"]))
    }

    #[track_caller]
    pub(super) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + test_support::PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "waited too long until {what}\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) async fn client(&self) -> Cri {
        self.containerd.client().await
    }

    /// Runs `nri-runc nri` with these words.
    pub(super) fn nri(&self, words: &[&str]) -> std::process::Output {
        let mut program = command(Path::new(env!("CARGO_BIN_EXE_nri-runc")));
        program.args(["nri", "--json"]).args(words);
        program.env("NRI_RUNC_CONFIG", self.path("nri-runc.toml")).output().unwrap()
    }

    /// Sends an admin verb to the daemon of this engine's wrappers.
    pub(super) fn admin(&self, words: &[&str]) -> serde_json::Value {
        let output = self.nri(words);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Starts the daemon, as its unit does.
    pub(super) fn start_daemon(&self) -> Started {
        let mut daemon = command(Path::new(env!("CARGO_BIN_EXE_nri-runc")));
        daemon.args(["nri", "daemon"]).env("NRI_RUNC_CONFIG", self.path("nri-runc.toml"));
        let child = daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let daemon = Started(child);
        self.wait_until("the daemon answers", || self.admin(&["status"])["pid"].is_u64());
        daemon
    }
}

/// Marks the directory as one that a daemon of this boot has used: otherwise a new daemon would search for
/// containers without records, and find those of concurrent tests.
fn stamp(run_dir: &Path) {
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::create_dir_all(run_dir.join("state")).unwrap();
    std::fs::set_permissions(run_dir, private).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let (mut store, _) =
        nri_runc::testing::state::Store::open(&run_dir.join("state"), boot.trim()).unwrap();
    store.stamp().unwrap();
}

fn cgroup_of(temp: &tempfile::TempDir) -> String {
    let name = temp.path().file_name().unwrap_or_default();
    test_support::cgroup::of_engine(&name.to_string_lossy())
}

fn command(program: &Path) -> Command {
    Command::new(program)
}
