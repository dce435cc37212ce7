// SPDX-License-Identifier: Apache-2.0
//! The built binary on a private host: its own configuration, daemon, sockets, bundle, a small
//! runtime in place of runc, and plugins in this process. All of it is removed on drop.

use std::io::{BufRead, BufReader, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Script, scripted_plugin, skip};

/// A script that acts like runc as far as the tests need, and records its calls. The files
/// `version` and `features` beside it contain its output for these verbs; `asked` has the number of
/// such calls.
const RUNTIME: &str = include_str!("../../../fixtures/runtime/fake.sh");

/// The time-out of a plugin that never answers one request; it answers all others within that time,
/// even on a busy machine.
pub const SILENT: &str = "[nri]\nplugin_request_timeout = \"3s\"\n";

/// A setting for a daemon so busy that a wrapper would give up on it.
pub const BUSY: &str = "[debug]\nsilence = \"60s\"\n";

/// The events of a plain container from start to end, with its pod's events around it.
pub const LIFE: [&str; 9] = [
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

/// The events of [`LIFE`] for a container that is its own pod.
pub fn life(id: &str) -> Vec<String> {
    LIFE.iter().map(|event| format!("{event} {id}")).collect()
}

/// The bundle of this container, at a path as containerd's CRI plugin chooses it.
pub fn task(id: &str) -> String {
    format!("io.containerd.runtime.v2.task/k8s.io/{id}")
}

/// The events of a container, in the only order that is possible on one connection.
pub const ORDER: [&str; 7] = ["Synchronize", LIFE[1], LIFE[2], LIFE[3], LIFE[4], LIFE[5], LIFE[6]];

/// Holds a mount namespace with empty folders at the default paths, as long as its standard input
/// is open.
const HOLD: &str = "mount -t tmpfs run /run && mount -t tmpfs opt /opt && echo held && exec cat";

/// The program at a path that every user reaches, in a host's folder.
const SHARED_PROGRAM: &str = "nri-runc";

/// A private host.
pub struct TestHost {
    temp: tempfile::TempDir,
    daemon: Option<Child>,
    holder: Option<Child>,
}

/// A host without further configuration.
impl Default for TestHost {
    fn default() -> Self {
        Self::new("")
    }
}

impl TestHost {
    /// Prepares it, with `more` configuration, as an operator would write it; the daemon does not
    /// run yet.
    pub fn new(more: &str) -> Self {
        let host = Self { temp: tempfile::tempdir().unwrap(), daemon: None, holder: None };
        std::fs::create_dir_all(host.path("bundle/rootfs")).unwrap();
        std::fs::create_dir_all(host.path("fake")).unwrap();
        host.put_program("fake/runc", RUNTIME);
        host.configure(&host.path("fake/runc"), more);
        host.write("bundle/config.json", BUNDLE);
        host
    }

    /// Prepares a host for an unreadable configuration: all paths are the defaults, in a private
    /// mount namespace. `None` after printing why the test is skipped.
    #[track_caller]
    pub fn with_default_paths(more: &str) -> Option<Self> {
        let mut host = Self::new(more);
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--propagation", "private", "sh", "-c", HOLD]);
        holder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = holder.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(holder.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let is_held = !line.is_empty();
        host.holder = Some(holder);
        if !is_held {
            skip::machine_lacks("no mount namespace of the test's own can be made");
        }
        is_held.then_some(host)
    }

    /// Replaces the configuration. Keys of `[nri]` in `more` are added to those of every host.
    pub fn configure(&self, runtime: &Path, more: &str) {
        let dir = self.temp.path().display();
        // A response may take long on a busy machine.
        let timeout = "plugin_request_timeout = \"60s\"";
        let timeout = if more.contains("plugin_request_timeout") { "" } else { timeout };
        // Wrappers must not give up on the daemon in a guest without KVM.
        let is_guest = crate::cgroup::has_systemd() && !more.contains("[debug]");
        let silence = if is_guest { "debug.silence = \"60s\"\n" } else { "" };
        let [top, nri, tables] = tables_of(more);
        let text = format!(
            "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\n{silence}{top}\n[nri]\nsocket_path = \"{dir}/nri.sock\"\n\
             plugin_path = \"{dir}/plugins\"\nplugin_config_path = \"{dir}\"\n{timeout}\n{nri}{tables}",
            runtime.display(),
        );
        self.write("config.toml", &text);
    }

    /// Kills the daemon.
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        nri_runc::testing::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    /// Writes an executable file.
    pub fn put_program(&self, name: &str, text: &str) {
        crate::program::put(&self.path(name), text.as_bytes());
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn command(&self) -> Command {
        let program = crate::program::nri_runc();
        let mut command = match &self.holder {
            None => Command::new(program),
            Some(holder) => {
                let mut inside = Command::new("nsenter");
                inside.arg(format!("--mount=/proc/{}/ns/mnt", holder.id())).arg("--").arg(program);
                inside
            }
        };
        command.env("NRI_RUNC_CONFIG", self.path("config.toml")).stdin(Stdio::null());
        command
    }

    /// Starts the daemon in the foreground and waits until it responds: then its sockets are open.
    pub fn start_daemon(&mut self) {
        self.daemon = Some(self.spawn_daemon());
    }

    /// Starts a daemon that the caller stops. A daemon that is being killed may hold the lock for a
    /// moment longer.
    pub fn spawn_daemon(&self) -> Child {
        let mut options = std::fs::OpenOptions::new();
        let printed = options.append(true).create(true).open(self.path("daemon.err")).unwrap();
        let start = || {
            let mut command = self.command();
            let printed = printed.try_clone().unwrap();
            command.args(["nri", "daemon"]).stdout(Stdio::null()).stderr(printed);
            command.spawn().unwrap()
        };
        let mut daemon = start();
        wait_until("the daemon answers", || {
            if daemon.try_wait().unwrap().is_some() {
                daemon = start();
            }
            self.admin(&["status"])["pid"] == daemon.id()
        });
        daemon
    }

    /// The number of lines of the daemon's log with all of `words`.
    pub fn logged(&self, words: &[&str]) -> usize {
        let log = self.read("daemon.err");
        log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// Waits for `count` lines with these words, and fails for more. A line may come a moment after
    /// the state that the test has seen.
    #[track_caller]
    pub fn logs(&self, words: &[&str], count: usize) {
        self.logs_at_least(words, count);
        assert_eq!(self.logged(words), count, "{words:?}: {}", self.read("daemon.err"));
    }

    /// Waits for at least `count` lines with these words.
    #[track_caller]
    pub fn logs_at_least(&self, words: &[&str], count: usize) {
        wait_until(&format!("{words:?} is logged"), || self.logged(words) >= count);
    }

    /// The PID of the daemon that was started in the foreground.
    pub fn daemon_pid(&self) -> i32 {
        self.daemon.as_ref().map_or(0, |daemon| i32::try_from(daemon.id()).unwrap())
    }

    /// Calls the wrapper (or an admin verb). Output goes through files, because the runtime's
    /// children may keep a pipe open.
    pub fn call(&self, words: &[&str]) -> Output {
        self.call_with(words, "")
    }

    pub fn call_with(&self, words: &[&str], stdin: &str) -> Output {
        self.call_by(&[], words, stdin)
    }

    /// Puts the program into this host's folder, so that other users can execute it; `call_by` then calls it there.
    pub fn share_program(&self) -> PathBuf {
        let (program, shared) = (crate::program::nri_runc(), self.path(SHARED_PROGRAM));
        // A link has the file's mode, and is not possible on another file system.
        let is_for_all = std::fs::metadata(program).unwrap().permissions().mode() & 0o5 == 0o5;
        if !is_for_all || std::fs::hard_link(program, &shared).is_err() {
            crate::program::copy(program, &shared);
        }
        shared
    }

    /// Calls the binary through another program, such as a tracer, whose words come first.
    pub fn call_by(&self, tracer: &[String], words: &[&str], stdin: &str) -> Output {
        // The file has no name, because several calls may run at once.
        let mut input = tempfile::tempfile_in(self.temp.path()).unwrap();
        input.write_all(stdin.as_bytes()).unwrap();
        input.rewind().unwrap();
        let (out, err) = (self.path("stdout"), self.path("stderr"));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true);
        let mut command = self.command();
        if let Some((program, more)) = tracer.split_first() {
            command = Command::new(program);
            command.env("NRI_RUNC_CONFIG", self.path("config.toml"));
            let shared = self.path(SHARED_PROGRAM);
            let is_shared = shared.exists();
            let is_by_user = tracer.iter().any(|word| word == "--reuid");
            assert!(
                is_shared || !is_by_user,
                "a user may not reach the program that was built: share_program"
            );
            let program = if is_shared { &shared } else { crate::program::nri_runc() };
            command.args(more).arg(program);
        }
        let status = command
            .args(words)
            .stdin(input)
            .stdout(file.open(&out).unwrap())
            .stderr(file.open(&err).unwrap())
            .status()
            .unwrap();
        Output { status, stdout: std::fs::read(out).unwrap(), stderr: std::fs::read(err).unwrap() }
    }

    /// Calls the binary with words that need not be text, below this host's root.
    pub fn call_with_bytes(&self, words: &[std::ffi::OsString]) -> Output {
        let mut command = self.command();
        command.arg("--root").arg(self.path("root")).args(words).output().unwrap()
    }

    /// Calls a runtime verb with this host's root.
    pub fn verb(&self, words: &[&str]) -> Output {
        let root = self.path("root").display().to_string();
        self.call(&[&["--root", &root][..], words].concat())
    }

    /// Starts a verb that runs in the background; `BUNDLE` is replaced by the bundle's path.
    pub fn spawn(&self, words: &[&str]) -> Child {
        let bundle = self.path("bundle").display().to_string();
        let words = words.iter().map(|word| word.replace("BUNDLE", &bundle));
        let mut command = self.command();
        command.arg("--root").arg(self.path("root")).args(words);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts any command line of the binary in the background.
    pub fn spawn_plain(&self, words: &[&str]) -> Child {
        let mut command = self.command();
        command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Starts it with a separate standard input and output, such as a terminal.
    pub fn spawn_on(&self, words: &[&str], input: Stdio, output: Stdio) -> Child {
        let mut command = self.command();
        command.args(words).stdin(input).stdout(output).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Starts it with all three streams on a terminal, and with these variables.
    pub fn spawn_at(
        &self,
        words: &[&str],
        terminal: &OwnedFd,
        variables: &[(&str, &str)],
    ) -> Child {
        let end = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = self.command();
        command.args(words).env_remove("NO_COLOR").env("TERM", "xterm");
        command.envs(variables.iter().copied()).stdin(end()).stdout(end()).stderr(end());
        command.spawn().unwrap()
    }

    /// Starts it with its standard error in a file of this host.
    pub fn spawn_kept(&self, words: &[&str], out: Option<Stdio>, err: &str) -> Child {
        let mut options = std::fs::OpenOptions::new();
        let err = options.append(true).create(true).open(self.path(err)).unwrap();
        let mut command = self.command();
        command.args(words).stdout(out.unwrap_or(Stdio::null())).stderr(err).spawn().unwrap()
    }

    pub fn create(&self, id: &str) -> Output {
        self.create_from("bundle", id)
    }

    /// Creates a container from another bundle than the usual one.
    pub fn create_from(&self, bundle: &str, id: &str) -> Output {
        let bundle = self.path(bundle).display().to_string();
        let log = self.path("log.json").display().to_string();
        let pid_file = self.path("pid").display().to_string();
        self.verb(&[
            "--log",
            &log,
            "--log-format",
            "json",
            "create",
            "--bundle",
            &bundle,
            "--pid-file",
            &pid_file,
            id,
        ])
    }

    pub fn admin(&self, words: &[&str]) -> Value {
        let output = self.call(&[&["nri", "--json"][..], words].concat());
        serde_json::from_slice(&output.stdout).unwrap_or(json!(null))
    }

    /// Connects a plugin and waits until it is synchronized.
    pub fn plugin(
        &self,
        index: &str,
        name: &str,
        script: impl Into<Script>,
    ) -> Arc<Mutex<Vec<String>>> {
        let received = scripted_plugin::connect(self.path("nri.sock"), index, name, script);
        wait_until("the plugin is synchronized", || {
            is_synchronized(&self.admin(&["plugins"]), &format!("{index}-{name}"))
        });
        received
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        for name in std::fs::read_dir(self.path("root")).into_iter().flatten().flatten() {
            let pid = std::fs::read_to_string(name.path().join("pid")).unwrap_or_default();
            end(pid.trim().parse().unwrap_or(0));
        }
        let pid = self.admin(&["status"])["pid"].as_i64().unwrap_or(0);
        end(i32::try_from(pid).unwrap_or(0));
        if let Some(daemon) = &mut self.daemon {
            let _ended = daemon.kill();
            let _reaped = daemon.wait();
        }
        if let Some(holder) = &mut self.holder {
            let _ended = holder.kill();
            let _reaped = holder.wait();
        }
    }
}

/// Returns the keys outside of tables, those of `[nri]`, and all other tables.
pub(crate) fn tables_of(configuration: &str) -> [String; 3] {
    let (mut parts, mut part) = ([const { String::new() }; 3], 0);
    for line in configuration.lines() {
        if line == "[nri]" {
            part = 1;
            continue;
        }
        if line.starts_with('[') {
            part = 2;
        }
        parts[part].extend([line, "\n"]);
    }
    parts
}

/// Kills a process and waits for its end: a daemon that is still there creates its folders again.
fn end(pid: i32) {
    if pid <= 1 {
        return;
    }
    let process = nix::unistd::Pid::from_raw(pid);
    let _gone = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    let limit = Instant::now() + Duration::from_secs(5);
    while lives() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the answer to `plugins` shows a plugin, as `10-name`, as synchronized.
pub fn is_synchronized(plugins: &Value, id: &str) -> bool {
    plugins.as_array().into_iter().flatten().any(|plugin| {
        let text = |member: &str| plugin[member].as_str().unwrap_or_default();
        format!("{}-{}", text("index"), text("name")) == id && text("state") == "synchronized"
    })
}

/// A host with `more` lines of configuration, on which the daemon runs.
pub fn started(more: &str) -> TestHost {
    let mut host = TestHost::new(more);
    host.start_daemon();
    host
}

/// Waits for a condition.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + crate::PATIENCE;
    let mut pause = Duration::from_millis(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(pause);
        // The pauses grow, because a check may start a program, and frequent checks would keep the
        // machine busy.
        pause = (pause * 5 / 4).min(Duration::from_millis(100));
    }
}

/// A document with unusual but valid parts: blanks, an unknown member, an odd number, an escape.
pub const BUNDLE: &str = r#"{
  "ociVersion": "1.0.2", "x-vendor": {"n": 1.0e3, "u": "\u00e9"},
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["sleep", "1"],
    "env": ["PATH=/bin", "A=1"]},
  "root": {"path": "rootfs"},
  "mounts": [ {"destination": "/proc", "type": "proc", "source": "proc"} ],
  "linux": {"resources": {"cpu": {"shares": 1024, "x-future": true}, "memory": {"limit": 1000000}}}
}
"#;
