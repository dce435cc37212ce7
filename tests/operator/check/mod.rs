// SPDX-License-Identifier: Apache-2.0
//! The state table of `check`: each fault of an operator with the row that reports it, its next
//! step, and whether that step fixes it. A next step that is a command is executed as printed.
//!
//! Each fault has a separate host, whose `/etc` and engines are in a private folder; `/proc` and
//! `/sys` are the machine's.
#![expect(clippy::needless_update, reason = "each row of a table ends alike")]

mod daemon;
mod node;
mod plugins;
mod run_dir;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use test_support::{TestHost, skip, wait_until};

/// A fault and its row.
struct Fault {
    name: &'static str,
    /// The configuration as an operator would write it. `DIR` is the host's folder.
    config: &'static str,
    /// Whether the daemon runs before.
    runs: bool,
    /// Causes the fault.
    seed: fn(&mut World),
    /// The row that reports it, and words of its detail.
    row: &'static str,
    says: &'static str,
    /// The beginning of its next step.
    next: &'static str,
    mend: Fix,
}

/// How it is fixed.
enum Fix {
    /// The next step is a command that fixes it.
    Command,
    /// An operator does what the next step says.
    By(fn(&mut World)),
    /// The cause ends first; then the next step fixes the rest.
    Then(fn(&mut World)),
}

/// The default fault: nothing configured, no daemon.
const FAULT: Fault = Fault {
    name: "",
    config: "",
    runs: false,
    seed: |_| {},
    row: "",
    says: "",
    next: "",
    mend: Fix::Command,
};

/// The host of a fault, and objects that end before it.
struct World {
    host: TestHost,
    children: Vec<Child>,
    mounts: Vec<PathBuf>,
    /// Values that a fault keeps alive.
    kept: Mutex<Vec<Box<dyn Send>>>,
}

impl World {
    fn new(config: &str) -> Self {
        let host = TestHost::default();
        let mut world =
            Self { host, children: Vec::new(), mounts: Vec::new(), kept: Mutex::default() };
        std::fs::create_dir_all(world.path("host/etc")).unwrap();
        std::fs::create_dir(world.path("plugins")).unwrap();
        for folder in ["proc", "sys"] {
            let link = world.path("host").join(folder);
            std::os::unix::fs::symlink(format!("/{folder}"), link).unwrap();
        }
        world.configure(config);
        world
    }

    fn configure(&mut self, config: &str) {
        self.configure_with(&self.path("fake/runc"), config);
    }

    /// Like [`Self::configure`], with another runtime.
    fn configure_with(&self, runtime: &std::path::Path, config: &str) {
        let dir = self.host.path("").display().to_string();
        let dir = dir.trim_end_matches('/');
        let mut config = config.replace("DIR", dir);
        // The state of a container is searched below the host's root.
        let is_isolated = !config.contains("# the machine's root");
        if !config.contains("[debug]") {
            config.push_str("\n[debug]\n");
        }
        let root = format!("[debug]\nhost_root = \"{dir}/host\"\n");
        let root = if is_isolated { &root } else { "[debug]\n" };
        self.host.configure(runtime, &config.replace("[debug]\n", root));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.path(name)
    }

    fn make_run_dir(&self) {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().mode(0o700).create(self.path("run")).unwrap();
    }

    /// Executes a command line with `nri-runc` as the program under test.
    fn shell(&mut self, line: &str) {
        let child = self.shell_command(line).spawn().unwrap();
        self.children.push(child);
    }

    fn shell_command(&self, line: &str) -> Command {
        let program = env!("CARGO_BIN_EXE_nri-runc");
        let line = line.replace("nri-runc nri ", &format!("{program} nri "));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &line]).env("NRI_RUNC_CONFIG", self.path("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Mounts a small disk at `run`, for this thread and its children; false after a skip.
    fn disk(&mut self, options: &str) -> bool {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            skip::setup_lacks(&format!("a mount namespace is refused: {errno}"));
            return false;
        }
        let (nothing, run) = (None::<&str>, self.path("run"));
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        std::fs::create_dir_all(&run).unwrap();
        let options = Some(format!("mode=0700,{options}"));
        mount(Some("tmpfs"), &run, Some("tmpfs"), MsFlags::empty(), options.as_deref()).unwrap();
        self.mounts.push(run);
        true
    }

    fn remount(&self, flags: MsFlags, options: &str) {
        let nothing = None::<&str>;
        let flags = flags | MsFlags::MS_REMOUNT;
        mount(nothing, &self.path("run"), nothing, flags, Some(options)).unwrap();
    }

    fn keep(&self, value: impl Send + 'static) {
        self.kept.lock().unwrap().push(Box::new(value));
    }

    /// The findings of `check`.
    fn check(&self) -> Vec<Value> {
        let output = self.host.call(&["nri", "check", "--json"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let findings: Option<Vec<Value>> = serde_json::from_str(&text).ok();
        assert!(findings.is_some(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        findings.unwrap_or_default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        let _stopped = self.host.call(&["nri", "stop"]);
        for mounted in &self.mounts {
            let _or_with_its_namespace = umount2(mounted, MntFlags::MNT_DETACH);
        }
    }
}

fn text<'v>(finding: &'v Value, key: &str) -> &'v str {
    finding[key].as_str().unwrap_or_default()
}

/// Whether an operator would ignore it.
fn is_green(finding: &Value) -> bool {
    finding["ok"] == true && finding["warning"] != true
}

/// The row that reports a fault.
fn row<'f>(findings: &'f [Value], fault: &Fault) -> Option<&'f Value> {
    findings.iter().find(|finding| {
        text(finding, "check") == fault.row
            && text(finding, "detail").contains(fault.says)
            && !is_green(finding)
    })
}

/// Waits until the daemon detects a change by itself, for a shorter time than a test's usual limit.
fn within<T>(mut look: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match look() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            looked => return looked,
        }
    }
}

/// Causes the fault, reads the row, follows its next step, and checks that the row becomes ok. The
/// error is the failure.
fn try_fault(fault: &Fault) -> Result<(), String> {
    let mut world = World::new(fault.config);
    if fault.runs {
        world.host.start_daemon();
    }
    (fault.seed)(&mut world);
    if world.path("skipped").exists() {
        return Ok(());
    }
    let hint = within(|| {
        let findings = world.check();
        let row = row(&findings, fault).ok_or_else(|| format!("no such row: {findings:#?}"))?;
        Ok(text(row, "hint").to_owned())
    })?;
    if !hint.starts_with(fault.next) || hint.is_empty() {
        return Err(format!("the next step is {hint:?}"));
    }
    let next_step = world.check().pop().map(|row| text(&row, "detail").to_owned());
    if !next_step.is_some_and(|step| step.contains(": ")) {
        return Err("the last row names no next step".to_owned());
    }
    let is_command = match fault.mend {
        Fix::Command => true,
        Fix::By(mend) => {
            mend(&mut world);
            false
        }
        Fix::Then(mend) => {
            mend(&mut world);
            true
        }
    };
    if is_command {
        let output = world.shell_command(&hint).output().unwrap();
        if !output.status.success() {
            return Err(format!("{hint}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    within(|| {
        let findings = world.check();
        let is_left = |finding: &&Value| text(finding, "check") == fault.row && !is_green(finding);
        findings.iter().find(is_left).map_or(Ok(()), |left| Err(format!("it stays: {left}")))
    })
}

/// Tries each of these faults, and reports all failures.
#[track_caller]
fn try_all(faults: &[Fault]) {
    let failed: Vec<String> = faults
        .iter()
        .filter_map(|fault| Some(format!("{}: {}", fault.name, try_fault(fault).err()?)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_healthy_node_passes_before_and_while_the_daemon_runs() {
    let mut world = World::new("");
    let red = |world: &World| -> Vec<Value> {
        world.check().into_iter().filter(|finding| !is_green(finding)).collect()
    };
    assert_eq!(red(&world), Vec::<Value>::new());
    assert!(!world.path("run").exists(), "check leaves nothing behind");
    world.host.start_daemon();
    wait_until("all is green", || red(&world).is_empty());
    let names = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(world.path(folder)).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("try")).collect()
    };
    assert_eq!((names("run"), names("run/state")), (vec![], vec![]));
}
