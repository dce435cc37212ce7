// SPDX-License-Identifier: Apache-2.0
//! The built binary in a private world: its own configuration, daemon, sockets, bundle, a small
//! runtime in place of runc, and plugins in this process. Everything goes away with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nri_runc::plugin::api;
use nri_runc::plugin::stub::Stub;
use serde_json::{Value, json};
use ttrpc::r#async::TtrpcContext;

/// Does what runc does, as far as we look at it, and writes down what it was called with.
const RUNTIME: &str = r#"#!/bin/sh
dir=$(dirname "$0")
{ for word in "$@"; do printf '%s\n' "$word"; done; echo --; } >>"$dir/argv"
root=/run/runc verb= id= pidfile= bundle=.
while [ $# -gt 0 ]; do
  case $1 in
  --root) root=$2; shift ;;
  --bundle) bundle=$2; shift ;;
  --pid-file) pidfile=$2; shift ;;
  --log | --log-format | --resources) shift ;;
  -*) ;;
  *) if [ -z "$verb" ]; then verb=$1; elif [ -z "$id" ]; then id=$1; fi ;;
  esac
  shift
done
state=$root/$id
case $verb in
create)
  [ ! -e "$dir/fail" ] || { echo "runtime says no" >&2; exit 1; }
  mkdir -p "$state"
  cp "$bundle/config.json" "$dir/seen.json"
  sleep 300 </dev/null >/dev/null 2>&1 &
  echo $! >"$state/pid"
  echo "{\"init_process_pid\": $!}" >"$state/state.json"
  touch "$state/exec.fifo"
  [ -z "$pidfile" ] || echo $! >"$pidfile" ;;
start) rm -f "$state/exec.fifo" ;;
kill) kill -9 "$(cat "$state/pid")" ;;
update) cat >"$dir/update.json"; cp "$state/state.json" "$state/s"; mv "$state/s" "$state/state.json" ;;
delete) [ ! -e "$state/pid" ] || kill -9 "$(cat "$state/pid")" 2>/dev/null; rm -rf "$state" ;;
esac
exit 0
"#;

/// How a plugin behaves.
#[derive(Clone, Default)]
pub(super) struct Manner {
    pub(super) adjust: api::ContainerAdjustment,
    pub(super) refuses: Option<&'static str>,
    pub(super) hangs: bool,
    pub(super) leaves: bool,
}

struct Player {
    manner: Manner,
    told: Arc<Mutex<Vec<String>>>,
    leave: tokio::sync::mpsc::Sender<()>,
}

impl Player {
    fn note(&self, event: &str, subject: &str) {
        self.told.lock().unwrap().push(format!("{event} {subject}"));
    }
}

#[async_trait]
impl api::Plugin for Player {
    async fn configure(
        &self,
        _: &TtrpcContext,
        _: api::ConfigureRequest,
    ) -> ttrpc::Result<api::ConfigureResponse> {
        Ok(api::ConfigureResponse { events: 0x7ff, ..Default::default() })
    }

    async fn synchronize(
        &self,
        _: &TtrpcContext,
        request: api::SynchronizeRequest,
    ) -> ttrpc::Result<api::SynchronizeResponse> {
        for container in &request.containers {
            self.note("Synchronize", &container.name);
        }
        Ok(api::SynchronizeResponse { more: request.more, ..Default::default() })
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        request: api::CreateContainerRequest,
    ) -> ttrpc::Result<api::CreateContainerResponse> {
        self.note("CreateContainer", &request.container.name);
        if self.manner.hangs {
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        if self.manner.leaves {
            let _leaving = self.leave.send(()).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        if let Some(why) = self.manner.refuses {
            let status = ttrpc::get_status(ttrpc::Code::UNKNOWN, why.to_owned());
            return Err(ttrpc::Error::RpcStatus(status));
        }
        let adjust = Some(self.manner.adjust.clone()).into();
        Ok(api::CreateContainerResponse { adjust, ..Default::default() })
    }

    async fn run_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::RunPodSandboxRequest,
    ) -> ttrpc::Result<api::RunPodSandboxResponse> {
        self.note("RunPodSandbox", &request.pod.name);
        Ok(Default::default())
    }

    async fn stop_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::StopPodSandboxRequest,
    ) -> ttrpc::Result<api::StopPodSandboxResponse> {
        self.note("StopPodSandbox", &request.pod.name);
        Ok(Default::default())
    }

    async fn remove_pod_sandbox(
        &self,
        _: &TtrpcContext,
        request: api::RemovePodSandboxRequest,
    ) -> ttrpc::Result<api::RemovePodSandboxResponse> {
        self.note("RemovePodSandbox", &request.pod.name);
        Ok(Default::default())
    }

    async fn post_create_container(
        &self,
        _: &TtrpcContext,
        request: api::PostCreateContainerRequest,
    ) -> ttrpc::Result<api::PostCreateContainerResponse> {
        self.note("PostCreateContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn start_container(
        &self,
        _: &TtrpcContext,
        request: api::StartContainerRequest,
    ) -> ttrpc::Result<api::StartContainerResponse> {
        self.note("StartContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn post_start_container(
        &self,
        _: &TtrpcContext,
        request: api::PostStartContainerRequest,
    ) -> ttrpc::Result<api::PostStartContainerResponse> {
        self.note("PostStartContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn stop_container(
        &self,
        _: &TtrpcContext,
        request: api::StopContainerRequest,
    ) -> ttrpc::Result<api::StopContainerResponse> {
        self.note("StopContainer", &request.container.name);
        Ok(Default::default())
    }

    async fn remove_container(
        &self,
        _: &TtrpcContext,
        request: api::RemoveContainerRequest,
    ) -> ttrpc::Result<api::RemoveContainerResponse> {
        self.note("RemoveContainer", &request.container.name);
        Ok(Default::default())
    }
}

/// The private world.
pub(super) struct Rig {
    temp: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Rig {
    /// Makes it, with `more` lines of configuration; the daemon does not run yet.
    pub(super) fn new(more: &str) -> Self {
        let rig = Self { temp: tempfile::tempdir().unwrap(), daemon: None };
        std::fs::create_dir_all(rig.path("bundle/rootfs")).unwrap();
        std::fs::create_dir_all(rig.path("fake")).unwrap();
        rig.write("fake/runc", RUNTIME);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(rig.path("fake/runc"), mode).unwrap();
        rig.configure(&rig.path("fake/runc"), more);
        rig.write("bundle/config.json", BUNDLE);
        rig
    }

    /// Writes the configuration anew.
    pub(super) fn configure(&self, runtime: &Path, more: &str) {
        let dir = self.temp.path().display();
        let text = format!(
            "runtime = [\"{}\"]\nrun_dir = \"{dir}/run\"\n{}\n[nri]\nsocket_path = \"{dir}/nri.sock\"\n\
             plugin_path = \"{dir}/plugins\"\nplugin_config_path = \"{dir}\"\n\
             plugin_request_timeout = \"400ms\"\n{}\n",
            runtime.display(),
            more.split("---").next().unwrap_or_default(),
            more.split("---").nth(1).unwrap_or_default(),
        );
        self.write("config.toml", &text);
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        nri_runc::files::replace(&self.path(name), text.as_bytes()).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nri-runc"));
        command.env("NRI_RUNC_CONFIG", self.path("config.toml")).stdin(Stdio::null());
        command
    }

    /// Starts the daemon in the foreground and waits until it listens.
    pub(super) fn start_daemon(&mut self) {
        let mut command = self.command();
        command.args(["nri", "daemon"]).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemon = Some(command.spawn().unwrap());
        wait_until("the daemon listens", || self.path("run/daemon.sock").exists());
    }

    /// Calls the wrapper (or an admin verb). Output goes through files: the runtime's children
    /// may keep a pipe open.
    pub(super) fn call(&self, words: &[&str]) -> Output {
        self.call_with(words, "")
    }

    pub(super) fn call_with(&self, words: &[&str], stdin: &str) -> Output {
        self.write("stdin", stdin);
        let (out, err) = (self.path("stdout"), self.path("stderr"));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true);
        let status = self
            .command()
            .args(words)
            .stdin(std::fs::File::open(self.path("stdin")).unwrap())
            .stdout(file.open(&out).unwrap())
            .stderr(file.open(&err).unwrap())
            .status()
            .unwrap();
        Output { status, stdout: std::fs::read(out).unwrap(), stderr: std::fs::read(err).unwrap() }
    }

    /// A runtime verb with this rig's root.
    pub(super) fn verb(&self, words: &[&str]) -> Output {
        let root = self.path("root").display().to_string();
        self.call(&[&["--root", &root][..], words].concat())
    }

    pub(super) fn create(&self, id: &str) -> Output {
        let bundle = self.path("bundle").display().to_string();
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

    pub(super) fn admin(&self, words: &[&str]) -> Value {
        let output = self.call(&[&["nri", "--json"][..], words].concat());
        serde_json::from_slice(&output.stdout).unwrap_or(json!(null))
    }

    /// Connects a plugin and waits until it is synchronized.
    pub(super) fn plugin(
        &self,
        index: &str,
        name: &str,
        manner: Manner,
    ) -> Arc<Mutex<Vec<String>>> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (leave, mut left) = tokio::sync::mpsc::channel(1);
        let player = Arc::new(Player { manner, told: Arc::clone(&told), leave });
        let (socket, who) = (self.path("nri.sock"), (index.to_owned(), name.to_owned()));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
                let stub = Stub::register(stream, &who.0, &who.1, player).await.unwrap();
                tokio::select! {
                    _ = stub.closed() => {}
                    _ = left.recv() => stub.close(),
                }
                // Lets the closing reach the other side.
                tokio::time::sleep(Duration::from_millis(50)).await;
            });
        });
        wait_until("the plugin is synchronized", || {
            let plugins = self.admin(&["plugins"]);
            plugins.as_array().into_iter().flatten().any(|plugin| {
                plugin["index"] == index
                    && plugin["name"] == name
                    && plugin["state"] == "synchronized"
            })
        });
        told
    }
}

impl Drop for Rig {
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
    }
}

fn end(pid: i32) {
    if pid > 1 {
        let pid = nix::unistd::Pid::from_raw(pid);
        let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

/// Waits for something, at most ten seconds.
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Odd on purpose: blanks, an unknown member, an odd number, an escape.
pub(super) const BUNDLE: &str = r#"{
  "ociVersion": "1.0.2", "x-vendor": {"n": 1.0e3, "u": "\u00e9"},
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["sleep", "1"],
    "env": ["PATH=/bin", "A=1"]},
  "root": {"path": "rootfs"},
  "mounts": [ {"destination": "/proc", "type": "proc", "source": "proc"} ],
  "linux": {"resources": {"cpu": {"shares": 1024, "x-future": true}, "memory": {"limit": 1000000}}}
}
"#;
