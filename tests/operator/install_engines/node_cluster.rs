// SPDX-License-Identifier: Apache-2.0
//! Reports of `nri node` to the cluster: conditions, taints and Events, with a test API server on a loopback
//! port. It merges as Kubernetes does, counts versions, and fails if a test requires it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::{BUNDLE, Started, TestHost, fails, started, succeeds, wait_until};

use super::node::{DockerNode, Running};

/// Forwards a request to the test server instead of HTTPS: sends words and body, returns exit code and body.
const HELPER: &str = r#"#!/bin/bash
here=$(dirname "$0")
LC_ALL=C
case "$1" in
systemd) [ ! -e "$here/root/etc/docker/daemon.json" ] || cp "$here/root/etc/docker/daemon.json" "$here/loaded" ;;
api)
    fails() { echo "nri-runc-node-helper: $2 $3: $1" >&2; exit "$4"; }
    body=$(cat)
    [ -e "$here/token" ] || fails "$here/token: no such file" "$2" "$3" 1
    exec 3<>/dev/tcp/127.0.0.1/@PORT@ || fails "cannot connect" "$2" "$3" 1
    printf '%s %s %s\n%s' "$2" "$3" "${#body}" "$body" >&3
    IFS= read -r -t "${4:-30}" code <&3 || fails "timeout: global" "$2" "$3" 1
    answer=$(cat <&3)
    [ "$code" = 0 ] || fails "$answer" "$2" "$3" "$code"
    printf '%s' "$answer" ;;
esac
"#;

const KEY: &str = "nri-runc.dev/missing-guard";
const REQUIRED: &str = "[plugin.guard]\nrequired = true\n";

const NO_PROCESSES: &str = "[[exec_rule]]\nname = \"no shells\"\nnamespaces = [\"shop\"]\n";

/// The server's behaviour for requests whose words begin with a text.
#[derive(Clone, Copy)]
enum Trouble {
    /// The exit code of the helper, and its line.
    Fails(i32, &'static str),
    /// The server never responds.
    Silent,
    /// Another client changes the node before this number of patches.
    Changes(u32),
}

/// The objects of the cluster.
struct Objects {
    node: Value,
    version: u64,
    events: BTreeMap<String, Value>,
    asked: Vec<String>,
    trouble: Option<(&'static str, Trouble)>,
    /// Connections without a response.
    silent: Vec<TcpStream>,
}

impl Objects {
    /// The helper's exit code for a request, and its output.
    fn answer(&mut self, method: &str, path: &str, body: &Value) -> (i32, String) {
        if path.ends_with("/events") && method == "POST" {
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            if self.events.contains_key(&name) {
                return (5, "409: it exists already".to_owned());
            }
            self.events.insert(name, body.clone());
            return (0, body.to_string());
        }
        let version = body["metadata"]["resourceVersion"].as_str();
        if version.is_some_and(|version| version != self.version.to_string()) {
            return (5, "409: the object has been modified".to_owned());
        }
        let before = self.node.clone();
        for change in body["status"]["conditions"].as_array().into_iter().flatten() {
            assert_eq!((method, path), ("STRATEGIC", "/api/v1/nodes/one/status"));
            let there = self.node["status"]["conditions"].as_array_mut().unwrap();
            there.retain(|one| one["type"] != change["type"]);
            if change["$patch"].is_null() {
                there.push(change.clone());
            }
        }
        if body["spec"]["taints"].is_array() {
            assert_eq!((method, path), ("PATCH", "/api/v1/nodes/one"));
            assert!(version.is_some(), "a list that is replaced needs the version that was read");
            self.node["spec"]["taints"] = body["spec"]["taints"].clone();
        }
        if self.node != before {
            self.version += 1;
        }
        self.node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        (0, self.node.to_string())
    }
}

/// The cluster, its node, and the node's daemon.
struct ClusterNode {
    objects: Arc<Mutex<Objects>>,
    node: DockerNode,
    host: TestHost,
}

impl ClusterNode {
    fn new(more: &str) -> Self {
        let (node, host) = (DockerNode::new(), started(more));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let helper = HELPER.replace("@PORT@", &port);
        test_support::program::put(&node.path("helper"), helper.as_bytes());
        node.write("token", "");
        std::os::unix::fs::symlink(host.path("run"), node.root().join("run/nri-runc")).unwrap();
        let objects = Objects {
            node: json!({"metadata": {"name": "one"}, "spec": {"taints": [{"key": "other", "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            version: 1,
            events: BTreeMap::new(),
            asked: Vec::new(),
            trouble: None,
            silent: Vec::new(),
        };
        let objects = Arc::new(Mutex::new(objects));
        let shared = Arc::clone(&objects);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _gone = serve(stream, &shared);
            }
        });
        Self { objects, node, host }
    }

    fn start(&self, words: &str) -> Running {
        self.node.start(&format!("--missing-after 0s {words}"))
    }

    fn set(&self, trouble: Option<(&'static str, Trouble)>) {
        self.objects.lock().unwrap().trouble = trouble;
    }

    /// The types of the node's conditions and the keys of its taints.
    fn has(&self) -> (Vec<String>, Vec<String>) {
        let objects = self.objects.lock().unwrap();
        let names = |list: &Value, member: &str| {
            let all = list.as_array().unwrap().iter();
            all.map(|one| one[member].as_str().unwrap().to_owned()).collect()
        };
        let node = &objects.node;
        (names(&node["status"]["conditions"], "type"), names(&node["spec"]["taints"], "key"))
    }

    /// Waits until the node has nri-runc's conditions and taints, or only foreign ones.
    #[track_caller]
    fn waits(&self, conditions: bool, taints: bool) {
        let with = |first: &str, ours: bool| {
            std::iter::once(first).chain(ours.then_some(KEY)).map(str::to_owned).collect::<Vec<_>>()
        };
        let wanted = (with("Ready", conditions), with("other", taints));
        wait_until(&format!("the node has {wanted:?}"), || self.has() == wanted);
    }

    fn events(&self) -> Vec<Value> {
        self.objects.lock().unwrap().events.values().cloned().collect()
    }

    fn asked(&self, what: &str) -> usize {
        let objects = self.objects.lock().unwrap();
        objects.asked.iter().filter(|line| line.starts_with(what)).count()
    }

    /// A pod whose start is refused while the plugin is missing, as containerd's CRI plugin creates it.
    fn pod(&self, pod: &str) -> std::process::Output {
        let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
        document["annotations"] = json!({
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": pod,
            "io.kubernetes.cri.sandbox-name": pod,
            "io.kubernetes.cri.sandbox-namespace": "shop",
            "io.kubernetes.cri.sandbox-uid": format!("uid-of-{pod}"),
        });
        let folder = format!("io.containerd.runtime.v2.task/k8s.io/{pod}");
        std::fs::create_dir_all(self.host.path(&folder).join("rootfs")).unwrap();
        self.host.write(&format!("{folder}/config.json"), &document.to_string());
        succeeds(&self.host.create_from(&folder, pod));
        self.host.verb(&["start", pod])
    }

    fn refused_process(&self, pod: &str) {
        self.host.write("process", r#"{"user":{"uid":0,"gid":0},"args":["sh"],"cwd":"/"}"#);
        let file = self.host.path("process").display().to_string();
        fails(&self.host.verb(&["exec", "--process", &file, "--detach", pod]), &["no shells"]);
    }

    fn refused(&self, pod: &str) {
        fails(&self.pod(pod), &["required plugin guard is not connected"]);
    }
}

fn serve(stream: TcpStream, objects: &Mutex<Objects>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [method, path, length] = words[..] else { return Ok(()) };
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let asked = format!("{method} {path}");
    let mut stream = reader.into_inner();
    let mut objects = objects.lock().unwrap();
    objects.asked.push(asked.clone());
    let trouble = objects.trouble.filter(|(what, _)| asked.starts_with(what));
    let (code, text) = match trouble.map(|(_, trouble)| trouble) {
        Some(Trouble::Silent) => {
            objects.silent.push(stream);
            return Ok(());
        }
        Some(Trouble::Fails(code, text)) => (code, text.to_owned()),
        Some(Trouble::Changes(left)) => {
            objects.version += 1;
            let next =
                (left > 1).then_some(("PATCH /api/v1/nodes/one", Trouble::Changes(left - 1)));
            objects.trouble = next;
            objects.answer(method, path, &body)
        }
        None => objects.answer(method, path, &body),
    };
    write!(stream, "{code}\n{text}")
}

const ALL: &str = "--conditions --taint NoSchedule --pod-events";

#[test]
fn a_missing_plugin_is_a_condition_and_a_taint_until_it_is_back() {
    let cluster = ClusterNode::new(REQUIRED);
    let mut running = cluster.start(ALL);
    cluster.waits(true, true);
    {
        let objects = cluster.objects.lock().unwrap();
        let condition = &objects.node["status"]["conditions"][1];
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("True"), &json!("RequiredPluginMissing"))
        );
        assert!(
            condition["message"].as_str().unwrap().contains("required plugin guard"),
            "{condition}"
        );
        assert_eq!(objects.node["spec"]["taints"][1], json!({"key": KEY, "effect": "NoSchedule"}));
    }
    let guard = Started::plugin(&cluster.host, "10-guard");
    cluster.waits(false, false);
    drop(guard);
    cluster.waits(true, true);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    cluster.waits(false, false);
    assert!(
        running.seen.iter().any(|line| line.contains("removed the condition")),
        "{:#?}",
        running.seen
    );
}

#[test]
fn conditions_alone_or_no_reports_can_be_configured() {
    let cluster = ClusterNode::new(REQUIRED);
    let mut running = cluster.start("--conditions");
    cluster.waits(true, false);
    cluster.refused("p1");
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    cluster.waits(false, false);
    assert!(cluster.events().is_empty());
    let before = cluster.asked("STRATEGIC");
    let mut running = cluster.start("");
    running.prints("ready");
    assert_eq!(running.ends(), Some(0));
    assert_eq!(cluster.asked("STRATEGIC"), before, "nothing is asked");
}

#[test]
fn leftovers_of_a_killed_pod_are_removed_by_the_next_one() {
    let cluster = ClusterNode::new(REQUIRED);
    let running = cluster.start(ALL);
    cluster.waits(true, true);
    kill(Pid::from_raw(i32::try_from(running.child.id()).unwrap()), Signal::SIGKILL).unwrap();
    drop(running);
    let guard = Started::plugin(&cluster.host, "10-guard");
    let mut running = cluster.start(&format!("{ALL} --uninstall-on-exit"));
    cluster.waits(false, false);
    drop(guard);
    cluster.waits(true, true);
    running.prints("ready");
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    cluster.waits(false, false);
}

#[test]
fn without_a_daemon_no_plugin_is_reported_missing() {
    let mut cluster = ClusterNode::new(REQUIRED);
    cluster.host.kill_daemon();
    let mut running = cluster.start(ALL);
    running.prints("ready");
    wait_until("the node was compared", || cluster.asked("STRATEGIC") > 0);
    cluster.waits(false, false);
    cluster.host.start_daemon();
    cluster.waits(true, true);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
}

#[test]
fn a_patch_that_conflicts_with_another_change_is_repeated() {
    let cluster = ClusterNode::new(REQUIRED);
    cluster.set(Some(("PATCH /api/v1/nodes/one", Trouble::Changes(3))));
    let mut running = cluster.start(ALL);
    cluster.waits(true, true);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    assert!(!running.seen.iter().any(|line| line.contains("not changed")), "{:#?}", running.seen);
    cluster.waits(false, false);
}

#[test]
fn a_missing_permission_is_named_once_and_the_rest_works() {
    let cluster = ClusterNode::new(REQUIRED);
    let words = "403: nodes \"one\" is forbidden: cannot patch resource \"nodes/status\"";
    cluster.set(Some(("STRATEGIC", Trouble::Fails(3, words))));
    let mut running = cluster.start(ALL);
    let line = running.prints("the conditions of the node one were not changed");
    assert!(line.contains("the pod's account needs: patch of nodes/status"), "{line}");
    cluster.refused("p1");
    wait_until("the pod has its event", || cluster.events().len() == 1);
    wait_until("it is tried again", || cluster.asked("STRATEGIC") > 2);
    cluster.set(Some(("POST", Trouble::Fails(3, "403: events is forbidden"))));
    cluster.waits(true, true);
    cluster.refused("p2");
    let line = running.prints("events about pods were not created");
    assert!(line.contains("the pod's account needs: create of events"), "{line}");
    cluster.set(None);
    cluster.refused("p3");
    wait_until("the next has its event", || cluster.events().len() == 2);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    let count = |what: &str| running.seen.iter().filter(|line| line.contains(what)).count();
    assert_eq!(count("the conditions of the node one were not changed"), 1, "{:#?}", running.seen);
}

#[test]
fn a_failing_or_unreachable_api_server_is_retried() {
    let cluster = ClusterNode::new(REQUIRED);
    std::fs::remove_file(cluster.node.path("token")).unwrap();
    let mut running = cluster.start(ALL);
    running.prints("token: no such file");
    cluster.set(Some(("", Trouble::Fails(1, "500: internal error"))));
    cluster.node.write("token", "");
    running.prints("500: internal error");
    cluster.refused("p1");
    running.prints("events about pods were not created: POST /api/v1/namespaces/shop/events: 500");
    cluster.set(None);
    cluster.waits(true, true);
    wait_until("no event is lost", || cluster.events().len() == 1);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
}

#[test]
fn a_silent_api_server_does_not_delay_the_end_of_the_pod() {
    let cluster = ClusterNode::new(REQUIRED);
    let mut running = cluster.start(ALL);
    cluster.waits(true, true);
    cluster.set(Some(("", Trouble::Silent)));
    let asked = cluster.objects.lock().unwrap().asked.len();
    cluster.refused("p1");
    wait_until("the event is asked for", || cluster.objects.lock().unwrap().asked.len() > asked);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    let printed = running.seen.join("\n");
    assert!(printed.contains("timeout: global"), "{printed}");
}

#[test]
fn a_refused_container_and_a_refused_process_are_one_event_each() {
    let mut cluster = ClusterNode::new(&format!("{REQUIRED}{NO_PROCESSES}"));
    let mut running = cluster.start(ALL);
    cluster.refused("p1");
    wait_until("the pod has its event", || cluster.events().len() == 1);
    let event = &cluster.events()[0];
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "p1", "uid": "uid-of-p1"});
    assert_eq!(event["involvedObject"], pod);
    assert_eq!(event["reason"], "RequiredPluginMissing", "{event}");
    assert_eq!(event["reportingInstance"], "one");
    let guard = Started::plugin(&cluster.host, "10-guard");
    succeeds(&cluster.pod("p2"));
    cluster.refused_process("p2");
    let refused = |cluster: &ClusterNode| {
        cluster.events().iter().filter(|event| event["reason"] == "ExecRefused").count()
    };
    wait_until("the refused process is an event", || refused(&cluster) == 1);
    drop(guard);
    // Another daemon begins another stream, a re-executed one continues it, and another pod reads it again.
    cluster.host.kill_daemon();
    cluster.host.start_daemon();
    cluster.refused("p3");
    wait_until("a restarted daemon is followed", || cluster.events().len() == 3);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
    let before = cluster.asked("POST");
    let mut running = cluster.start(ALL);
    wait_until("it has read them again", || cluster.asked("POST") > before);
    cluster.refused("p4");
    wait_until("a new one", || cluster.events().len() == 4);
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
}

#[test]
fn a_storm_of_refusals_is_limited_and_counted() {
    let cluster = ClusterNode::new(NO_PROCESSES);
    for pod in ["p1", "p2"] {
        succeeds(&cluster.pod(pod));
    }
    let mut running = cluster.start(ALL);
    for _ in 0..20 {
        cluster.refused_process("p1");
    }
    cluster.refused_process("p2");
    let of = |pod: &str| {
        cluster.events().iter().filter(|event| event["involvedObject"]["name"] == *pod).count()
    };
    wait_until("another pod has its event", || of("p2") == 1);
    // One more for each minute that the machine takes.
    let first = of("p1");
    assert!((5..20).contains(&first), "{first} events");
    running.prints("about pods could not be sent");
    assert_eq!(running.ends(), Some(0), "{:#?}", running.seen);
}

#[test]
fn incomplete_or_invalid_options_are_refused() {
    let cluster = ClusterNode::new("");
    for (words, why) in [
        ("--taint NoSchedule", "--conditions"),
        ("--conditions --taint NoExecute", "NoExecute"),
        ("--conditions --missing-after soon", "--missing-after requires a duration"),
    ] {
        let output = cluster.node.command(words).output().unwrap();
        assert!(!output.status.success());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(printed.contains(why), "{words}: {printed}");
    }
}
