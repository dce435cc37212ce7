// SPDX-License-Identifier: Apache-2.0
//! Compares the messages of engines' own NRI about a pod with those of nri-runc for the same calls.
//! The captures of `fixtures/captures` are played through the built binary, with the engine's files
//! below a private root, containerd's records on a socket and a small runtime. Prints the share of
//! equal fields.

mod messages;
mod store;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::kill;
use nix::unistd::Pid;
use protobuf_json_mapping::PrintOptions;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::compare::{self, EventsByKey};
use test_support::{BUSY, TestHost, wait_until};

/// A runtime with the effects of runc that the tests need, and both spellings of its options.
const RUNTIME: &str = include_str!("../../../fixtures/runtime/replayed.sh");

/// The root in which Docker's runtime keeps its containers.
const DOCKERS_ROOT: &str = "/var/run/docker/runtime-runc/moby";

#[derive(Deserialize)]
struct Capture {
    variables: BTreeMap<String, String>,
    exits: BTreeMap<String, i32>,
    removes: Vec<String>,
    calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    verb: String,
    id: String,
    argv: Vec<String>,
    #[serde(default)]
    parent: Vec<String>,
    config: Option<String>,
    stdin: Option<String>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/captures").join(name)
}

/// A capture while it is played.
struct Play {
    host: TestHost,
    folder: PathBuf,
    capture: Capture,
}

impl Play {
    fn new(name: &str) -> Self {
        let folder = folder(name);
        let calls = std::fs::read(folder.join("calls.json")).unwrap();
        Self::of(folder, serde_json::from_slice(&calls).unwrap())
    }

    /// The lifecycle of a container whose creation is a folder of `fixtures/engines`, with this
    /// root of the runtime.
    fn life(name: &str, root: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/engines").join(name);
        let made: Value =
            serde_json::from_slice(&std::fs::read(folder.join("call.json")).unwrap()).unwrap();
        let (id, bundle) = (made["id"].as_str().unwrap(), made["bundle"].as_str().unwrap());
        let pid_file = format!("{bundle}/init.pid");
        let resources = r#"{"cpu": {"shares": 256}, "memory": {"limit": 201326592}}"#;
        let calls = [
            (
                "create",
                &["--bundle", bundle, "--pid-file", &pid_file][..],
                None,
                Some("config.json"),
            ),
            ("start", &[], None, None),
            ("update", &["--resources", "-"], Some(resources), None),
            ("kill", &[], None, None),
            ("delete", &[], None, None),
        ];
        let calls = calls.map(|(verb, options, stdin, config)| {
            let words = ["--root", root, verb].into_iter().chain(options.iter().copied());
            Call {
                verb: verb.to_owned(),
                id: id.to_owned(),
                argv: words.chain([id]).map(str::to_owned).collect(),
                parent: serde_json::from_value(made["parent"].clone()).unwrap(),
                config: config.map(str::to_owned),
                stdin: stdin.map(str::to_owned),
            }
        });
        let variables = serde_json::from_value(made["variables"].clone()).unwrap();
        // The exit code of a process that SIGKILL ended.
        let exits = [(id.to_owned(), 137)].into();
        Self::of(folder, Capture { variables, exits, removes: Vec::new(), calls: calls.into() })
    }

    /// Creates a host with the engine's files from `folder` and a running daemon.
    fn of(folder: PathBuf, capture: Capture) -> Self {
        let mut host = TestHost::default();
        host.put_program("fake/runc", RUNTIME);
        let root = host.path("").display().to_string();
        let root = root.trim_end_matches('/');
        let more = format!("{BUSY}host_root = \"{root}\"\n");
        host.configure(&host.path("fake/runc"), &more);
        for kernels in ["proc", "sys"] {
            std::os::unix::fs::symlink(format!("/{kernels}"), host.path(kernels)).unwrap();
        }
        copy(&folder.join("host"), &host.path(""));
        if folder.join("records.json").exists() {
            std::fs::create_dir_all(host.path("run/containerd")).unwrap();
            let socket = host.path("run/containerd/containerd.sock");
            store::serve(&folder.join("records.json"), socket);
        }
        host.start_daemon();
        Self { host, folder, capture }
    }

    /// Moves a path of the recording below the private root.
    fn moved(&self, word: &str) -> String {
        let root = self.host.path("").display().to_string();
        let root = root.trim_end_matches('/');
        match word.split_once("=/") {
            Some((option, path)) if option.starts_with("--") => format!("{option}={root}/{path}"),
            _ if word.starts_with('/') => format!("{root}{word}"),
            _ => word.to_owned(),
        }
    }

    /// Makes one call, by a process with the recorded parent's command line.
    fn call(&self, call: &Call) {
        let argv: Vec<String> = call.argv.iter().map(|word| self.moved(word)).collect();
        if let Some(config) = &call.config {
            let at = argv.iter().position(|word| word == "--bundle").unwrap();
            std::fs::create_dir_all(&argv[at + 1]).unwrap();
            let to = Path::new(&argv[at + 1]).join("config.json");
            test_support::program::copy(&self.folder.join(config), &to);
        }
        self.host.write("argv", &argv.iter().map(|word| format!("{word}\n")).collect::<String>());
        let script = "while IFS= read -r word; do set -- \"$@\" \"$word\"; done <\"$ARGV\"; \
                      while [ \"$1\" != -- ]; do shift; done; shift; \"$NRI_RUNC\" \"$@\"; exit $?";
        let none = ["sh", "engine"].map(ToOwned::to_owned);
        let parent = if call.parent.is_empty() { &none[..] } else { call.parent.as_slice() };
        let mut command = Command::new("/bin/sh");
        command.arg0(&parent[0]).args(["-c", script]).args(&parent[1..]).arg("--");
        command.env("ARGV", self.host.path("argv")).env("NRI_RUNC", env!("CARGO_BIN_EXE_nri-runc"));
        command.env("NRI_RUNC_CONFIG", self.host.path("config.toml"));
        command.envs(&self.capture.variables).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(call.stdin.as_deref().unwrap_or_default().as_bytes()).unwrap();
        drop(stdin);
        let ended = child.wait().unwrap();
        let may_fail = matches!(call.verb.as_str(), "kill" | "delete");
        assert!(ended.success() || may_fail, "{} {}: {ended}", call.verb, call.id);
    }

    /// Writes the exit code as the engine's monitor does at the end of a process.
    fn leave_exit_code(&self, call: &Call) {
        let Some(code) = self.capture.exits.get(&call.id) else { return };
        let tasks = "run/containerd/io.containerd.runtime.v2.task";
        if !self.host.path(tasks).is_dir() {
            for exits in ["var/run/crio/exits", "run/libpod/exits"] {
                std::fs::create_dir_all(self.host.path(exits)).unwrap();
                self.host.write(&format!("{exits}/{}", call.id), &code.to_string());
            }
            return;
        }
        let Some(pid) = Self::process(&self.host.path(""), &call.id) else { return };
        let namespace = if self.host.path(tasks).join("moby").is_dir() { "moby" } else { "k8s.io" };
        let exit = json!({"Timestamp": "2026-01-02T03:04:05Z", "Pid": pid, "Status": code});
        self.host.write(&format!("{tasks}/{namespace}/{}/exit.json", call.id), &exit.to_string());
    }

    /// The PID of a container, from the runtime's state.
    fn process(root: &Path, id: &str) -> Option<i32> {
        let states =
            ["run/runc", "run/containerd/runc/k8s.io", DOCKERS_ROOT.trim_start_matches('/')];
        let states = states.map(|state| root.join(state));
        let texts = states.map(|state| std::fs::read_to_string(state.join(id).join("pid")));
        texts.into_iter().flatten().find_map(|text| text.trim().parse().ok())
    }

    /// Makes all calls. Returns the events that a plugin received, and whether the pod's
    /// infrastructure process was running at StopPodSandbox.
    fn play(&self) -> (EventsByKey, bool) {
        let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let observer = Arc::clone(&requests);
        let ran = Arc::new(AtomicBool::new(false));
        let (runs, root) = (Arc::clone(&ran), self.host.path(""));
        let on_request: test_support::scripted_plugin::OnRequest =
            Arc::new(move |event, request| {
                let request = json_of(request);
                if event == "StopPodSandbox" {
                    let pid = Self::process(&root, request["pod"]["id"].as_str().unwrap());
                    let is_there = |pid| kill(Pid::from_raw(pid), None).is_ok();
                    runs.store(pid.is_some_and(is_there), Ordering::Relaxed);
                }
                observer.lock().unwrap().push((event.to_owned(), request));
            });
        let script = test_support::Script {
            on_request: Some(on_request),
            ..test_support::Script::default()
        };
        let _names_only = self.host.plugin("10", "recorder", script);
        for call in &self.capture.calls {
            if matches!(call.verb.as_str(), "kill" | "delete") {
                self.leave_exit_code(call);
            }
            self.call(call);
        }
        for path in &self.capture.removes {
            // The engine removes the pod's files; until then the pod exists.
            let _absent_without_infra = std::fs::remove_file(self.moved(path));
        }
        wait_until("the pod is gone", || self.host.admin(&["pods"]) == json!([]));
        let requests = std::mem::take(&mut *requests.lock().unwrap());
        (events_by_key(requests.into_iter()), ran.load(Ordering::Relaxed))
    }
}

/// A message as JSON, with the members' names as in the protocol.
fn json_of(message: &dyn protobuf::MessageDyn) -> Value {
    let options = PrintOptions { proto_field_name: true, ..PrintOptions::default() };
    let text = protobuf_json_mapping::print_to_string_with_options(message, &options).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            test_support::program::copy(&entry.path(), &target);
        }
    }
}

/// The events by name, container and count.
fn events_by_key(events: impl Iterator<Item = (String, Value)>) -> EventsByKey {
    let mut received = EventsByKey::new();
    for (event, request) in events {
        let name = request["container"]["name"].as_str().unwrap_or("pod").to_owned();
        let key = (1..).map(|n| format!("{event} {name} {n}"));
        let key = key.into_iter().find(|key| !received.contains_key(key)).unwrap();
        received.insert(key, request);
    }
    received
}

fn native(name: &str) -> EventsByKey {
    let text = std::fs::read_to_string(folder(name).join("native.jsonl")).unwrap();
    events_by_key(text.lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let event = value.as_object_mut().unwrap().remove("event").unwrap();
        (event.as_str().unwrap().to_owned(), value)
    }))
}

#[test]
fn plugins_receive_the_messages_of_the_engines_own_nri() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let meant = compare::meant(&std::fs::read_to_string(page).unwrap());
    let mut table = String::from("capture                        fields  equal  percent\n");
    let (mut problems, mut used) = (Vec::new(), std::collections::BTreeSet::new());
    for name in [
        "containerd-2.4.2-pod",
        "containerd-2.4.2-pod-default",
        "crio-1.37-pod",
        "crio-1.37-pod-noinfra",
    ] {
        let (mut ours, is_stopped_in_time) = Play::new(name).play();
        // The captures call this member `resources`.
        for request in ours.values_mut().filter_map(Value::as_object_mut) {
            if let Some(resources) = request.remove("linux_resources") {
                request.insert("resources".to_owned(), resources);
            }
        }
        // Without an infrastructure container no process holds the pod's namespaces.
        if is_stopped_in_time == name.ends_with("-noinfra") {
            problems.push(format!("{name}: StopPodSandbox in time: {is_stopped_in_time}"));
        }
        let engine = name.split("-pod").next().unwrap();
        let result = compare::compare(engine, &native(name), &ours, &meant);
        let (native, equal, percent) = (result.native, result.equal, result.percent());
        table += &format!("{name:<30} {native:>6} {equal:>6}   {percent:>6.2}\n");
        let lists = [("wrong", &result.wrong), ("absent", &result.absent), ("more", &result.more)];
        for (what, lines) in lists {
            problems.extend(lines.iter().map(|line| format!("{name} {what}: {line}")));
        }
        if percent < 99.0 {
            problems.push(format!("{name}: only {percent:.2} % of the fields are equal"));
        }
        used.extend(result.used);
    }
    let _nobody_reads = std::io::stderr().write_all(table.as_bytes());
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
    let idle = meant.iter().enumerate();
    let idle: Vec<_> =
        idle.filter(|(at, row)| !used.contains(at) && !row.is_live()).map(|(_, row)| row).collect();
    assert!(idle.is_empty(), "rows of docs/compatibility.md that nothing needs: {idle:?}");
}

/// A pod's author can shadow CRI-O's list of labels; then no separate annotation confirms them.
#[test]
fn ignored_crio_labels_cause_few_log_lines_and_record_entries() {
    let mut play = Play::new("crio-1.37-pod");
    let at = play.capture.calls.iter().position(|call| call.config.is_some()).unwrap();
    let call = play.capture.calls.swap_remove(at);
    let config = call.config.clone().unwrap();
    let mut document: Value =
        serde_json::from_slice(&std::fs::read(play.folder.join(&config)).unwrap()).unwrap();
    let labels: BTreeMap<String, String> =
        (0..15_000).map(|number| (format!("k{number}"), "v".to_owned())).collect();
    document["annotations"]["io.kubernetes.cri-o.Labels"] = json!(labels).to_string().into();
    play.folder = play.host.path("changed");
    std::fs::create_dir(&play.folder).unwrap();
    play.host.write(&format!("changed/{config}"), &document.to_string());
    play.call(&call);
    let lines = play.host.logged(&["is ignored"]);
    assert_eq!((lines, play.host.logged(&["14992 more"])), (8, 1));
    let records = std::fs::read_dir(play.host.path("run/state/containers")).unwrap().flatten();
    let records: Vec<String> =
        records.map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect();
    let skipped = |record: &String| {
        let record: Value = serde_json::from_str(record).unwrap();
        record["skipped"].as_array().unwrap().len()
    };
    assert_eq!(records.iter().map(skipped).collect::<Vec<_>>(), [9]);
}
