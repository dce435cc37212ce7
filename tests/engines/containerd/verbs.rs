// SPDX-License-Identifier: Apache-2.0
//! Calls of kubelet and kubectl for a running container, on containerd 2.4.2 through nri-runc, while
//! a plugin adjusts the container: ExecSync, Exec (with and without a terminal), Attach, PortForward,
//! ContainerStats, ReopenContainerLog, and repeated StopPodSandbox. The client is written in Go, with
//! the packages of kubectl (`tests/interop/cri`). Skipped without Go.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use test_support::cri::{self, Cri, container};
use test_support::{golang, has_received, tools};

use super::adjusting;
use super::config::{self, Passes, Wanted};
use super::host::{self, Engine, Parts};
use super::messages::{ContainerConfig, PodSandboxConfig};

const HANDLERS: [(&str, Passes); 1] = [("nri-runc", Passes::All)];

/// Answers each line of its input; prints a line when it has started.
const ANSWERS: &str = "echo started; while read -r line; do echo \"heard $line $HELLO\"; done";

/// An engine and a client of its CRI.
struct Node {
    engine: Engine,
    client: PathBuf,
}

impl Node {
    fn start() -> Option<Self> {
        let (tools, containerd) = (host::tools()?, tools::newer("containerd-2.4.2")?);
        let runc = tools::newer("runc-1.5.2")?.join("runc");
        let client = golang::program("cri")?;
        let program = Path::new(env!("CARGO_BIN_EXE_nri-runc"));
        let wanted = Wanted { version: 4, handlers: &HANDLERS, runtime: program, has_nri: false };
        let text = |dir: &Path| config::containerd(dir, &wanted);
        let (tools, runc, text) = (&tools, &runc, &text);
        let parts = Parts { tools, containerd: &containerd, runc, configuration: Some(text) };
        Some(Self { engine: Engine::of(&parts), client })
    }

    /// Runs the client with this input.
    fn run(&self, words: &[&str], input: &str) -> Output {
        let mut command = Command::new(&self.client);
        command.arg(self.engine.path("containerd.sock")).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs the client successfully; returns its output.
    #[track_caller]
    fn ask(&self, words: &[&str], input: &str) -> (String, String) {
        let output = self.run(words, input);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        let tail = || self.engine.log_tail();
        assert!(output.status.success(), "{words:?}: {printed}{errors}\n{}", tail());
        (printed, errors)
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ask(words, "").0).unwrap()
    }

    /// A pod whose containers have their logs in `logs`, on the host's network.
    fn pod(&self, name: &str) -> PodSandboxConfig {
        let mut config = cri::pod(self.engine.cgroup(), name);
        config.log_directory = self.engine.path("logs").display().to_string();
        config
    }

    async fn started(&self, cri: &mut Cri, pod: (&str, &str), mut app: ContainerConfig) -> String {
        app.log_path = "app.log".to_owned();
        let app = cri::create(cri, pod.0, self.pod(pod.1), app).await;
        cri::start(cri, &app).await.unwrap();
        app
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.engine.path("logs").join(name)).unwrap_or_default()
    }
}

/// Checks that each process sees the container with the plugin's mount.
fn commands_run_inside(node: &Node, app: &str) {
    let look = "cat /data/hello; echo oops >&2; exit 7";
    let got = node.json(&["execsync", app, "/bin/sh", "-c", look]);
    assert_eq!(got, json!({"stdout": "mounted by a plugin\n", "stderr": "oops\n", "code": 7}));

    let look = "cat; cat /data/hello; echo oops >&2; exit 3";
    let (printed, errors) = node.ask(&["exec", app, "/bin/sh", "-c", look], "typed\n");
    assert_eq!(
        (printed.as_str(), errors.as_str()),
        ("typed\nmounted by a plugin\n", "oops\nexit 3\n")
    );

    let look = "/bin/busybox tty; sleep 1; /bin/busybox stty size; exit 4";
    let (printed, errors) = node.ask(&["tty", app, "/bin/sh", "-c", look], "");
    assert!(printed.contains("/dev/pts/") && printed.contains("10 40"), "{printed}");
    assert_eq!(errors, "exit 4\n");

    let output = node.run(&["execsync", app, "/bin/none"], "");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("/bin/none"), "{error}");
}

/// Does what a log rotation does: renames the file, and asks the engine to open another one.
fn the_log_can_be_moved_away(node: &Node, app: &str) {
    let logs = node.engine.path("logs");
    assert!(node.log("app.log").contains("F started\n"));
    std::fs::rename(logs.join("app.log"), logs.join("app.log.1")).unwrap();
    node.ask(&["reopen", app], "");
    let (printed, _) = node.ask(&["attach", app, "heard two"], "one\ntwo\n");
    assert!(printed.starts_with("heard one there\nheard two"), "{printed}");
    node.engine.wait_until("the new log has the answers", || {
        node.log("app.log").contains("F heard two there\n")
    });
    assert!(!node.log("app.log").contains("F started\n"));
    assert!(!node.log("app.log.1").contains("heard"), "the old log was written to");
}

#[tokio::test]
async fn every_kubectl_command_works_on_a_container_of_nri_runc() {
    let Some(node) = Node::start() else { return };
    let engine = &node.engine;
    let _daemon = engine.start_daemon();
    let script = adjusting(engine);
    let received =
        test_support::scripted_plugin::connect(engine.path("nri.sock"), "10", "adjust", script);
    engine.wait_until("the plugin is synchronized", || {
        test_support::is_synchronized(&engine.admin(&["plugins"]), "10-adjust")
    });
    let mut cri = engine.client().await;
    let pod = cri::run_pod(&mut cri, node.pod("web")).await;
    let mut config = container("app", &["/bin/sh", "-c", ANSWERS]);
    config.stdin = true;
    let app = node.started(&mut cri, (&pod, "web"), config).await;
    engine.wait_until("it has started", || node.log("app.log").contains("F started\n"));

    commands_run_inside(&node, &app);
    let stats = node.json(&["stats", &app]);
    assert_eq!((&stats["id"], &stats["name"]), (&json!(app), &json!("app")));
    assert!(stats["cpu"].as_u64() > Some(0) && stats["memory"].as_u64() > Some(0), "{stats}");
    the_log_can_be_moved_away(&node, &app);

    for _again in 0..3 {
        node.ask(&["stop", &pod], "");
    }
    engine.wait_until("the stop is reported", || has_received(&received, "StopPodSandbox web"));
    cri::end_pod(&mut cri, &pod).await;
    engine.wait_until("the end is reported", || has_received(&received, "RemovePodSandbox web"));
    let received = received.lock().unwrap().clone();
    for event in ["StopContainer app", "StopPodSandbox web", "RemovePodSandbox web"] {
        assert_eq!(
            received.iter().filter(|line| *line == event).count(),
            1,
            "{event}: {received:?}"
        );
    }
    // Stopping a removed pod is not an error for an engine either.
    node.ask(&["stop", &pod], "");
}

/// The port is in the pod's own network, where no other process can have it.
#[tokio::test]
async fn a_port_of_a_pod_with_its_own_network_is_forwarded() {
    let Some(node) = Node::start() else { return };
    let engine = &node.engine;
    let _daemon = engine.start_daemon();
    let mut cri = engine.client().await;
    let serve = container("app", &["/bin/busybox", "nc", "-l", "-p", "8080", "-e", "/bin/cat"]);
    let (shape, serve) = cri::pods::on_own_network(node.pod("served"), serve);
    let pod = cri::run_pod(&mut cri, shape.clone()).await;
    let app = cri::create(&mut cri, &pod, shape, serve).await;
    cri::start(&mut cri, &app).await.unwrap();
    engine.wait_until("it listens", || {
        let got = node.json(&["execsync", &app, "/bin/cat", "/proc/net/tcp", "/proc/net/tcp6"]);
        got["stdout"].as_str().unwrap().contains(":1F90 ")
    });
    let (printed, _) = node.ask(&["forward", &pod, "8080"], "through the pod\n");
    assert_eq!(printed, "through the pod\n");
    let refused = node.run(&["forward", &pod, "8081"], "nobody listens\n");
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(text.is_empty(), "{text}");
    cri::end_pod(&mut cri, &pod).await;
}
