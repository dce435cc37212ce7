// SPDX-License-Identifier: Apache-2.0
//! Podman, unpacked and not installed, with the real runc and our definitions in its `--hooks-dir`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::player::Manner;
use super::rig::{Rig, wait_until};
use super::{Told, definitions, fails, ground::Ground, heard, sets_env, succeeds, tools};

struct Podman {
    _ground: Ground,
    rig: Rig,
    tools: PathBuf,
}

impl Podman {
    /// `None` after saying why the test is skipped.
    fn new() -> Option<Self> {
        let tools = tools::find(&["busybox", "conmon", "podman", "runc"])?;
        let mut rig = Rig::new("");
        let ground = Ground::new(&rig.path(""))?;
        let dir = rig.path("").display().to_string();
        let dir = dir.trim_end_matches('/');
        let (conmon, runc) = (tools.join("conmon"), tools.join("runc"));
        rig.write(
            "containers.conf",
            &format!(
                "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\ntmp_dir = \"{dir}/tmp\"\n\
                 conmon_path = [\"{}\"]\n[engine.runtimes]\nrunc = [\"{}\"]\n",
                conmon.display(),
                runc.display()
            ),
        );
        rig.write(
            "storage.conf",
            &format!("[storage]\ndriver = \"vfs\"\nrunroot = \"{dir}/run-root\"\ngraphroot = \"{dir}/graph\"\n"),
        );
        std::fs::create_dir(rig.path("hooks")).unwrap();
        for definition in definitions(&rig) {
            let stage = definition["stages"][0].as_str().unwrap();
            rig.write(&format!("hooks/{stage}.json"), &definition.to_string());
        }
        rig.configure(&runc, "");
        rig.start_daemon();
        let podman = Self { _ground: ground, rig, tools };
        let version = podman.call(&["--version"]);
        if version.status.success() {
            return Some(podman);
        }
        // Unpacked, it finds only what libraries the machine has.
        let why = format!("podman does not run: {}", String::from_utf8_lossy(&version.stderr));
        assert!(std::env::var_os("CI").is_none(), "required under CI: {why}");
        skip(&why);
        None
    }

    #[expect(clippy::disallowed_methods, reason = "the engine under test")]
    fn call(&self, words: &[&str]) -> Output {
        let (out, err) = (self.rig.path("out"), self.rig.path("err"));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true);
        let status = Command::new(self.tools.join("podman"))
            .args(["--runtime", "runc", "--hooks-dir"])
            .arg(self.rig.path("hooks"))
            .args(words)
            .env("LD_LIBRARY_PATH", self.tools.join("../lib"))
            .env("CONTAINERS_CONF", self.rig.path("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", self.rig.path("storage.conf"))
            .stdin(Stdio::null())
            .stdout(file.open(&out).unwrap())
            .stderr(file.open(&err).unwrap())
            .status()
            .unwrap();
        Output { status, stdout: std::fs::read(out).unwrap(), stderr: std::fs::read(err).unwrap() }
    }

    fn run(&self, name: &str) -> Output {
        let rootfs = self.rig.path("rootfs").display().to_string();
        let cgroup = format!("/nri-runc-test-{}", self.name());
        self.call(&[
            "run",
            "-d",
            "--name",
            name,
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1024:1024",
            "--network",
            "host",
            "--security-opt",
            "seccomp=unconfined",
            "--cgroup-parent",
            &cgroup,
            "--rootfs",
            &rootfs,
            "/bin/sleep",
            "1000",
        ])
    }

    fn name(&self) -> String {
        let dir = self.rig.path("");
        Path::new(&dir).file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn nobody_knows_of_it(&self) {
        wait_until("nobody knows of it", || self.rig.admin(&["pods"]) == json!([]));
    }
}

#[expect(clippy::print_stderr, reason = "a skip says why")]
fn skip(why: &str) {
    eprintln!("skipped: {}", why.trim());
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _gone = self.call(&["rm", "--all", "--force", "--time", "0"]);
    }
}

fn events(told: &Told) -> Vec<String> {
    told.lock().unwrap().iter().map(|event| event.replace(" web", "")).collect()
}

#[test]
fn podman_with_our_hooks_tells_a_life_once_and_in_order() {
    let Some(podman) = Podman::new() else { return };
    let told = podman.rig.plugin("10", "witness", Manner::default());
    succeeds(&podman.run("web"));
    wait_until("the start is told", || heard(&told, "PostStartContainer web"));
    let pods = podman.rig.admin(&["pods"]);
    assert_eq!(
        (&pods[0]["engine"], &pods[0]["containers"][0]["state"]),
        (&json!("podman"), &json!("running"))
    );
    succeeds(&podman.call(&["rm", "--force", "--time", "0", "web"]));
    podman.nobody_knows_of_it();
    let wanted = [
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ];
    assert_eq!(events(&told), wanted);
    assert_eq!(podman.rig.admin(&["status"])["failures"], json!([]));
}

#[test]
fn podman_shows_why_our_hook_refused_and_keeps_nothing() {
    let Some(podman) = Podman::new() else { return };
    let _told = podman.rig.plugin("10", "env", sets_env());
    fails(&podman.run("web"), &["nri-runc: cannot create", "10-env sets Env[HELLO]"]);
    podman.nobody_knows_of_it();
}
