// SPDX-License-Identifier: Apache-2.0
//! `replay --record`: the requests to a daemon's plugins become a script for `replay`.

use std::process::Stdio;

use nix::sys::signal::Signal;
use nri_plugin::api::extension::ExecAdjustment;
use serde_json::{Value, json};
use test_support::adjustments::env;
use test_support::exec_plugin::{ExecAnswer, ExecPlugin};
use test_support::replay::Replay;
use test_support::{Started, TestHost, wait_until};

use crate::{life, sets, started, succeeds};

/// Begins a recording, and waits until it records.
fn begin(host: &TestHost, more: &[&str]) -> Started {
    let file = host.path("script.jsonl").display().to_string();
    let words = [&["nri", "replay", "--record", &file][..], more].concat();
    let recording = Started(host.spawn_kept(&words, None, "recorder.err"));
    wait_until("the recording listens", || host.read("script.jsonl").ends_with('\n'));
    recording
}

/// Ends the recording once it has a request of this name.
fn end(mut recording: Started, host: &TestHost, last: &str) -> Vec<Value> {
    let call = format!("\"call\":\"{last}\"");
    wait_until("the last request is written", || host.read("script.jsonl").contains(&call));
    recording.signal(Signal::SIGTERM);
    recording.wait().unwrap();
    script(host)
}

/// The recorded lines.
fn script(host: &TestHost) -> Vec<Value> {
    let text = host.read("script.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The line with the number of recorded requests and the path.
fn summary(host: &TestHost) -> String {
    let requests = calls(&script(host)).len();
    let (bytes, path) = (host.read("script.jsonl").len(), host.path("script.jsonl"));
    let requests = format!("{requests} request{}", if requests == 1 { "" } else { "s" });
    format!("recorded {requests}, {bytes} bytes, to {}", path.display())
}

/// Runs a lifecycle with an update.
fn live(host: &TestHost, id: &str) {
    succeeds(&host.create(id));
    succeeds(&host.verb(&["start", id]));
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", id];
    succeeds(&host.call_with(&words, r#"{"cpu":{"shares":77}}"#));
    succeeds(&host.verb(&["kill", id, "9"]));
    succeeds(&host.verb(&["delete", id]));
}

fn calls(script: &[Value]) -> Vec<String> {
    let calls = script.iter().filter_map(|line| line["call"].as_str());
    calls.map(ToOwned::to_owned).collect()
}

#[test]
fn a_recorded_life_is_replayed_to_another_plugin() {
    let host = started("");
    succeeds(&host.create("c0"));
    let recording = begin(&host, &[]);
    live(&host, "c1");
    let script = end(recording, &host, "RemovePodSandbox");
    assert_eq!(script[0]["state"]["containers"][0]["id"], "c0");
    let mut wanted: Vec<String> =
        life("").iter().map(|event| event.trim_end().to_owned()).collect();
    let stop = wanted.iter().position(|event| event == "StopContainer").unwrap();
    wanted.insert(stop, "UpdateContainer".to_owned());
    wanted.insert(stop + 1, "PostUpdateContainer".to_owned());
    assert_eq!(calls(&script), wanted);
    let update = script.iter().find(|line| line["call"] == "UpdateContainer").unwrap();
    let shares = &update["request"]["linuxResources"]["cpu"]["shares"];
    assert_eq!(*shares, json!({"value": "77"}), "{update}");

    // A plugin of today receives the node's earlier requests.
    let mut file = host.read("script.jsonl");
    let wait = json!({"wait": {"synchronized": ["10-new"], "timeout": "60s"}});
    let at = file.find('\n').unwrap() + 1;
    file.insert_str(at, &format!("{wait}\n"));
    host.write("script.jsonl", &file);
    let socket = host.path("dry.sock");
    let received =
        test_support::scripted_plugin::connect(socket.clone(), "10", "new", sets("B", "2"));
    let script = host.path("script.jsonl").display().to_string();
    let socket = socket.display().to_string();
    let output = host.call(&["nri", "replay", "--socket", &socket, &script]);
    succeeds(&output);
    let answers = String::from_utf8(output.stdout).unwrap();
    assert!(answers.contains("\"Env[B]\":\"10-new\""), "{answers}");
    assert!(!answers.contains("\"error\""), "{answers}");
    let received = received.lock().unwrap();
    assert!(
        received[0].starts_with("Synchronize")
            && received.iter().any(|event| event == "CreateContainer c1")
    );
}

#[test]
fn a_recorded_exec_is_replayed_to_another_plugin() {
    let host = started("");
    succeeds(&host.create("c1"));
    let plugin = |value| {
        let adjust = ExecAdjustment { env: vec![env("A", value)], ..ExecAdjustment::default() };
        ExecPlugin::answering(ExecAnswer::Adjust(adjust))
    };
    let _stays_connected = plugin("1").connect(host.path("nri.sock"), "10-a");
    wait_until("it takes part", || host.admin(&["plugins"]).to_string().contains("ExecContainer"));
    let recording = begin(&host, &[]);
    succeeds(&host.verb(&["exec", "-e", "TOKEN=secret", "c1", "ls"]));
    let recorded = end(recording, &host, "ExecContainer");
    let line = recorded.iter().find(|line| line["call"] == "ExecContainer").unwrap();
    let (process, text) = (&line["request"]["process"], line.to_string());
    assert_eq!(process["args"], json!(["ls"]));
    assert!(text.contains("TOKEN=") && !text.contains("secret"), "{text}");
    assert_eq!(line["engine"], "plain", "{line}");

    let mut replay = Replay::start();
    replay.ask(&json!({"id": 0, "state": {}}));
    let _stays_connected = plugin("2").connect(replay.path("nri.sock"), "20-new");
    replay.event("synchronized", "20-new");
    let answer = replay.ask(line);
    assert_eq!(answer["owners"], json!({"Env[A]": "20-new"}), "{answer}");
}

#[test]
fn values_of_variables_are_recorded_only_on_request() {
    for (flags, is_shown) in [(&[][..], false), (&["--show-env"][..], true)] {
        let host = started("");
        let recording = begin(&host, flags);
        succeeds(&host.create("c1"));
        let script = end(recording, &host, "PostCreateContainer");
        let text = format!("{script:?}");
        assert!(text.contains("PATH="), "{text}");
        assert_eq!(text.contains("PATH=/bin"), is_shown, "{text}");
    }
}

#[test]
fn two_recordings_and_a_plugin_do_not_disturb_each_other() {
    let host = started("");
    let received = host.plugin("10", "a", sets("B", "2"));
    let first = begin(&host, &[]);
    let other = host.path("other.jsonl").display().to_string();
    let second = Started(host.spawn_plain(&["nri", "replay", "--record", &other]));
    wait_until("it listens", || !host.read("other.jsonl").is_empty());
    drop(second);
    live(&host, "c1");
    let script = end(first, &host, "RemovePodSandbox");
    let seen = received.lock().unwrap().clone();
    let seen: Vec<&str> = seen.iter().filter_map(|event| event.split(' ').next()).collect();
    assert_eq!(calls(&script), seen);
    let created = script.iter().find(|line| line["call"] == "CreateContainer").unwrap();
    assert!(!created.to_string().contains("B="), "what is asked, not what is answered");
}

#[test]
fn a_file_that_exists_is_not_overwritten() {
    let host = started("");
    host.write("script.jsonl", "precious");
    let file = host.path("script.jsonl").display().to_string();
    let output = host.call(&["nri", "replay", "--record", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    assert_eq!(host.read("script.jsonl"), "precious");
}

#[test]
fn without_a_daemon_there_is_nothing_to_record() {
    let host = TestHost::default();
    let file = host.path("script.jsonl").display().to_string();
    let output = host.call(&["nri", "replay", "--record", &file]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    assert!(!host.path("script.jsonl").exists());
}

#[test]
fn a_recording_ends_with_its_daemon_and_prints_that() {
    let mut host = started("");
    let mut recording = begin(&host, &[]);
    host.kill_daemon();
    assert_eq!(recording.wait().unwrap().code(), Some(1));
    assert!(host.read("script.jsonl").ends_with('\n'));
    let printed = host.read("recorder.err");
    assert!(printed.contains("the daemon exited") && printed.lines().count() == 1, "{printed}");
    assert!(printed.contains(&summary(&host)), "{printed}");
}

#[test]
fn a_signal_ends_a_recording_that_prints_its_size_and_place() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let host = started("");
        let mut recording = begin(&host, &[]);
        succeeds(&host.create("c1"));
        wait_until("it is written", || host.read("script.jsonl").contains("PostCreateContainer"));
        recording.signal(signal);
        assert_eq!(recording.wait().unwrap().code(), Some(0), "{signal}");
        assert!(!calls(&script(&host)).is_empty());
        assert_eq!(host.read("recorder.err"), format!("nri-runc: {}\n", summary(&host)));
    }
}

#[test]
fn a_slow_recorder_writes_everything_before_the_signal() {
    let host = started("");
    let mut recording = begin(&host, &[]);
    recording.signal(Signal::SIGSTOP);
    live(&host, "c1");
    let received = life("").len() + 2;
    recording.signal(Signal::SIGTERM);
    recording.signal(Signal::SIGCONT);
    assert_eq!(recording.wait().unwrap().code(), Some(0));
    assert_eq!(calls(&script(&host)).len(), received, "{:?}", calls(&script(&host)));
    assert!(host.read("recorder.err").contains(&summary(&host)));
}

#[test]
fn a_recording_on_an_unread_pipe_can_be_ended() {
    let host = started("");
    let (reader, writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let words = ["nri", "replay", "--record", "-"];
    let child = host.spawn_kept(&words, Some(Stdio::from(writer)), "recorder.err");
    let mut recording = Started(child);
    live(&host, "c1");
    live(&host, "c2");
    wait_until("it ends", || {
        recording.signal(Signal::SIGTERM);
        recording.try_wait().unwrap().is_some()
    });
    assert_eq!(recording.wait().unwrap().code(), Some(1));
    drop(reader);
    let printed = host.read("recorder.err");
    assert!(
        printed.contains("bytes, to standard output") && printed.lines().count() == 1,
        "{printed}"
    );
}

#[test]
fn a_recording_is_replayed_to_plugins_that_connect_later() {
    let host = started("");
    host.plugin("10", "a", sets("A", "1"));
    let recording = begin(&host, &[]);
    live(&host, "c1");
    let recorded = end(recording, &host, "RemovePodSandbox");
    assert_eq!(recorded[0]["plugins"], json!(["10-a"]), "{}", recorded[0]);
    let (socket, out) = (host.path("dry.sock"), host.path("answers"));
    let file = host.path("script.jsonl").display().to_string();
    let words = ["nri", "replay", "--socket", socket.to_str().unwrap(), &file];
    let out = std::fs::OpenOptions::new().append(true).create(true).open(out).unwrap();
    let mut replay = Started(host.spawn_kept(&words, Some(Stdio::from(out)), "replay.err"));
    wait_until("it waits", || host.read("replay.err").contains("waits up to 30s for 10-a"));
    let received = test_support::scripted_plugin::connect(socket, "10", "a", sets("B", "2"));
    assert_eq!(replay.wait().unwrap().code(), Some(0));
    assert!(host.read("answers").contains("\"Env[B]\":\"10-a\""), "{}", host.read("answers"));
    let received = received.lock().unwrap().clone();
    let received = received.iter().filter_map(|event| event.split(' ').next());
    let received: Vec<&str> = received.filter(|event| *event != "Synchronize").collect();
    assert_eq!(calls(&recorded), received);
}

#[test]
fn recording_allows_no_script_and_no_socket() {
    let host = TestHost::default();
    for words in [
        &["--record", "x", "script"] as &[&str],
        &["--record", "x", "--socket", "/s"],
        &["--show-env"],
    ] {
        let output = host.call(&[&["nri", "replay"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}
