// SPDX-License-Identifier: Apache-2.0
//! Containers of `nerdctl run --runtime`, as in `docs/install.md`: the messages of plugins are
//! compared with nerdctl's output, and their values are found inside.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use nri_plugin::{Adjustment, Resources};
use serde_json::{Value, json};
use test_support::scripted_plugin::{ReceivedRequests, listening};
use test_support::{LIFE, Script, has_received};

use super::host::{self, Engine, Parts};

const IMAGE: &str = "localhost/busybox:1";
const MIB: u64 = 1 << 20;

/// nerdctl on a separate containerd.
struct Nerdctl {
    engine: Engine,
    program: PathBuf,
    /// containerd's namespace. The runtime's state directory has its name, below one of the
    /// machine's.
    namespace: String,
}

impl Nerdctl {
    /// Starts containerd and imports the image; `None` after printing why the test is skipped.
    fn new() -> Option<Self> {
        let tools = host::tools()?;
        let program = tools.join("nerdctl");
        if !program.exists() {
            test_support::skip::machine_lacks("nerdctl is not there (make engines builds it)");
            return None;
        }
        let containerd = test_support::tools::newer("containerd-2.4.2")?;
        let runc = tools.join("runc");
        let parts =
            Parts { tools: &tools, containerd: &containerd, runc: &runc, configuration: None };
        let engine = Engine::of(&parts);
        let namespace = engine.cgroup().to_owned();
        let nerdctl = Self { engine, program, namespace };
        let tar = nerdctl.path("image/image.tar");
        nerdctl.good(&["load", "--quiet", "--input", &tar]);
        Some(nerdctl)
    }

    fn path(&self, name: &str) -> String {
        self.engine.path(name).display().to_string()
    }

    fn call(&self, words: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command
            .args(["--address", &self.path("containerd.sock"), "--namespace", &self.namespace])
            .args(["--data-root", &self.path("nerdctl"), "--snapshotter", "native"])
            .args(["--cni-path", &self.path("cni"), "--cni-netconfpath", &self.path("cni")])
            .args(["--cgroup-manager", "cgroupfs"])
            .args(words)
            .env("NERDCTL_TOML", self.path("nerdctl.toml"))
            .stdin(Stdio::null());
        command.output().unwrap()
    }

    /// Runs nerdctl successfully; returns its output.
    #[track_caller]
    fn good(&self, words: &[&str]) -> String {
        let output = self.call(words);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {printed}\n{}", self.engine.log_tail());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// `nerdctl run` of the image's own program, through nri-runc.
    fn run(&self, name: &str, more: &[&str]) -> Output {
        let us = env!("CARGO_BIN_EXE_nri-runc");
        let cgroup = format!("/{}", self.engine.cgroup());
        let run = ["run", "--detach", "--runtime", us, "--name", name, "--network", "none"];
        let where_to = ["--pull", "never", "--cgroup-parent", &cgroup];
        self.call(&[&run[..], &where_to, more, &[IMAGE]].concat())
    }

    fn inspect(&self, words: &[&str]) -> Value {
        let all: Value = serde_json::from_str(&self.good(words)).unwrap();
        all[0].clone()
    }

    /// Connects a plugin; returns its events, and each with its request.
    fn plugin(&self, script: Script) -> (Arc<Mutex<Vec<String>>>, ReceivedRequests) {
        let (script, requests) = listening(script);
        let socket = self.engine.path("nri.sock");
        let received = test_support::scripted_plugin::connect(socket, "10", "adjust", script);
        self.engine.wait_until("the plugin is synchronized", || {
            self.engine.admin(&["plugins"])[0]["state"] == "synchronized"
        });
        (received, requests)
    }

    /// A value in the container's cgroup, by its files of v1 and v2.
    fn limit(&self, id: &str, v1: &str, v2: &str) -> Option<u64> {
        let cgroup = format!("{}/{id}", self.engine.cgroup());
        let controller = v1.split('.').next().unwrap();
        let files = [format!("{controller}/{cgroup}/{v1}"), format!("{cgroup}/{v2}")];
        let read = |file: &String| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
        files.iter().find_map(read)?.trim().parse().ok()
    }
}

impl Drop for Nerdctl {
    fn drop(&mut self) {
        let _gone = self.call(&["rm", "--force", "web"]);
        let _gone = std::fs::remove_dir(format!("/run/containerd/runc/{}", self.namespace));
    }
}

/// The first request of an event.
fn first(requests: &ReceivedRequests, event: &str) -> Value {
    let requests = requests.lock().unwrap();
    requests.iter().find(|(name, _)| name == event).unwrap().1.clone()
}

/// A plugin that sets a variable and owns the pids limit.
fn adjusting() -> Script {
    Adjustment::new().env("HELLO", "there").resources(Resources::new().pids_limit(77)).into()
}

#[test]
fn a_nerdctl_container_is_adjusted_and_described_correctly() {
    let Some(nerdctl) = Nerdctl::new() else { return };
    let engine = &nerdctl.engine;
    let _daemon = engine.start_daemon();
    let (received, requests) = nerdctl.plugin(adjusting());
    let pin = ["--annotation", "nri-runc.dev/annotation/cpu.example/pin=yes"];
    let labels = ["--label", "app=web", "--label", "nri-runc.dev/pod-name=ignored"];
    let limits = ["--memory", "64m", "--pids-limit", "50"];
    let output = nerdctl.run("web", &[&pin[..], &labels, &limits].concat());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{}", engine.log_tail());
    engine
        .wait_until("its start is reported", || has_received(&received, "PostStartContainer web"));
    let inspect = nerdctl.inspect(&["inspect", "web"]);
    matches_nerdctls_inspect(&nerdctl, &inspect, &requests);

    let environ = nerdctl.good(&["exec", "web", "/bin/cat", "/proc/1/environ"]);
    assert!(environ.split('\0').any(|value| value == "HELLO=there"), "{environ:?}");
    let id = inspect["Id"].as_str().unwrap();
    let limits = || {
        let memory = nerdctl.limit(id, "memory.limit_in_bytes", "memory.max");
        (memory, nerdctl.limit(id, "pids.max", "pids.max"))
    };
    assert_eq!(limits(), (Some(64 * MIB), Some(77)));
    nerdctl.good(&["update", "--memory", "48m", "web"]);
    assert_eq!(limits(), (Some(48 * MIB), Some(77)), "what the plugin owns stays");
    assert_eq!(engine.admin(&["status"])["missing"], json!([]));
    nerdctl.good(&["rm", "--force", "web"]);
    engine.wait_until("no pod is known", || engine.admin(&["pods"]) == json!([]));
    let updated = ["UpdateContainer", "PostUpdateContainer"];
    let wanted = [&LIFE[..5], &updated, &LIFE[5..]].concat();
    let wanted: Vec<String> = wanted.iter().map(|event| format!("{event} web")).collect();
    assert_eq!(*received.lock().unwrap(), wanted);
}

fn matches_nerdctls_inspect(nerdctl: &Nerdctl, inspect: &Value, requests: &ReceivedRequests) {
    let create = first(requests, "CreateContainer");
    let (pod, container) = (&create["pod"], &create["container"]);
    let id = &inspect["Id"];
    assert_eq!([&pod["id"], &pod["uid"], &container["id"], &container["podSandboxId"]], [id; 4]);
    assert_eq!([&pod["name"], &container["name"]], [&inspect["Name"]; 2]);
    assert_eq!([&pod["name"], &pod["namespace"]], ["web", nerdctl.namespace.as_str()]);
    let us = env!("CARGO_BIN_EXE_nri-runc");
    assert_eq!((&pod["runtimeHandler"], &container["labels"]["app"]), (&json!(us), &json!("web")));
    // nerdctl's own labels are in containerd's record, but not among those that it shows.
    for (key, value) in inspect["Config"]["Labels"].as_object().unwrap() {
        assert_eq!([&pod["labels"][key], &container["labels"][key]], [value; 2], "{key}");
    }
    assert_eq!(pod["annotations"]["cpu.example/pin"], "yes");
    let image = nerdctl.inspect(&["image", "inspect", IMAGE]);
    let digest = image["RepoDigests"][0].as_str().unwrap().split_once('@').unwrap().1;
    assert_eq!(container["image"], json!({"name": IMAGE, "digest": digest}));
    let started = first(requests, "PostStartContainer");
    assert_eq!(started["container"]["pid"], inspect["State"]["Pid"]);
    let pods = nerdctl.engine.admin(&["pods"]);
    assert_eq!((pods.as_array().unwrap().len(), &pods[0]["engine"]), (1, &json!("nerdctl")));
}

#[test]
fn nerdctl_prints_a_plugins_refusal_and_makes_no_container() {
    let Some(nerdctl) = Nerdctl::new() else { return };
    let engine = &nerdctl.engine;
    let _daemon = engine.start_daemon();
    let guard = Script { refuses: Some("image is not signed"), ..Script::default() };
    let (received, _) = nerdctl.plugin(guard);
    let output = nerdctl.run("web", &[]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{printed}");
    for word in ["nri-runc: cannot create", "10-adjust", "image is not signed"] {
        assert!(printed.contains(word), "{word} is not in: {printed}");
    }
    engine.wait_until("no pod is known", || engine.admin(&["pods"]) == json!([]));
    assert!(
        has_received(&received, "RemoveContainer web")
            && !has_received(&received, "StartContainer web")
    );
    nerdctl.good(&["rm", "--force", "web"]);
}
