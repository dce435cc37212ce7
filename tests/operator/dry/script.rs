// SPDX-License-Identifier: Apache-2.0
//! The script: which lines wait for which, which are answered, its beginning and its end.

use std::time::Duration;

use nri_runc::plugin::Event;
use serde_json::{Value, json};
use test_support::example::example;
use test_support::replay::{Action, Replay, ReplayPlugin, command, create, prepared, setting};
use test_support::wait_until;

#[test]
fn script_calls_run_concurrently_and_wait_delays_later_ones() {
    let mut replay = Replay::with("plugin_request_timeout = \"60s\"", &[]);
    let slow = replay.plugin("10-slow", ReplayPlugin::new().creating(Action::Hang));
    replay.send(&create(json!("held")));
    slow.wait_for("CreateContainer");
    let run = json!({"id": "run", "call": "RunPodSandbox", "request": {"pod": {"id": "p1"}}});
    // The plugin's turn is taken, so the second call waits for it; the third line is not a call.
    replay.send(&run);
    replay.send(&json!({"id": "wait", "wait": {"synchronized": ["20-late"], "timeout": "60s"}}));
    replay.send(&json!({"id": "after", "state": {}}));
    replay.plugin("20-late", ReplayPlugin::new());
    assert_eq!(replay.answer(&json!("wait"))["ok"], true);
    assert_eq!(replay.answer(&json!("after"))["ok"], true);
    // A cancelled call is answered immediately, and is not recorded as a failure of its plugin.
    replay.send(&json!({"cancel": "held"}));
    let answer = replay.answer(&json!("held"));
    assert_eq!(answer["cause"], "cancelled", "{answer}");
    assert!(!answer["error"].as_str().unwrap().contains("slow"), "{answer}");
    assert!(replay.answer(&json!("run")).get("error").is_none());
}

#[test]
fn a_cancelled_call_disconnects_no_plugin() {
    let mut replay = Replay::with("plugin_request_timeout = \"3s\"", &[]);
    let slow = replay.plugin("10-slow", ReplayPlugin::new().creating(Action::Hang));
    replay.send(&create(json!(1)));
    slow.wait_for("CreateContainer");
    replay.send(&json!({"cancel": 1}));
    assert_eq!(replay.answer(&json!(1))["cause"], "cancelled");
    // Longer than the time-out.
    std::thread::sleep(Duration::from_millis(3500));
    let start = json!({"id": 2, "call": "StartContainer", "request": {"container": {"id": "c0"}}});
    assert!(replay.ask(&start).get("error").is_none());
    slow.wait_for("StartContainer");
    let (rest, _) = replay.end();
    let gone = |line: &&Value| line["event"] == "gone" && line["reason"] != "shutdown";
    assert!(rest.iter().find(gone).is_none_or(|line| !line.to_string().contains("time")));
}

#[test]
fn cancelling_a_finished_or_unknown_call_does_nothing() {
    let mut replay = Replay::start();
    replay.create();
    replay.send(&json!({"cancel": "create"}));
    replay.send(&json!({"cancel": {"never": "seen"}}));
    assert_eq!(replay.ask(&json!({"id": 2, "state": {}}))["ok"], true);
    assert!(replay.end().0.is_empty());
}

#[test]
fn ids_of_any_kind_are_echoed_and_may_be_missing() {
    let mut replay = Replay::start();
    for id in [json!(0), json!("x"), json!([1, {"a": null}]), json!(null), json!(1.5)] {
        let answer = replay.ask(&json!({"id": id, "state": {}}));
        assert_eq!(answer, json!({"id": id, "ok": true}));
    }
    replay.send(&json!({"state": {}}));
    replay.line("an answer without an id", |line| *line == json!({"ok": true}));
}

#[test]
fn malformed_lines_are_reported_by_number_and_skipped() {
    let mut replay = Replay::start();
    for (number, (line, id)) in [
        ("{", None),
        ("\"text\"", None),
        ("\u{1}\u{2}", None),
        ("{\"id\": 4}", Some(json!(4))),
        ("{\"id\": 5, \"call\": \"Explode\"}", Some(json!(5))),
        ("{\"id\": 6, \"call\": \"CreateContainer\", \"request\": {\"odd\": 1}}", Some(json!(6))),
        ("{\"id\": 7, \"state\": 7}", Some(json!(7))),
        ("{\"id\": 8, \"wait\": {\"timeout\": \"soon\"}}", Some(json!(8))),
        ("{\"answer\": 99, \"error\": \"nobody asked\"}", None),
    ]
    .into_iter()
    .enumerate()
    {
        replay.send_text(line);
        let wanted = format!("line {}: ", number + 1);
        let answer = replay.line(&wanted, |answer| {
            answer["error"].as_str().is_some_and(|error| error.starts_with(&wanted))
        });
        assert_eq!(answer.get("id"), id.as_ref(), "{line}");
    }
    replay.send_text("");
    assert_eq!(replay.ask(&json!({"id": "still", "state": {}}))["ok"], true);
}

#[test]
fn bytes_that_are_not_text_are_one_malformed_line() {
    use std::io::Write;
    let temp = prepared("");
    let mut child = command(&temp, &["replay"]).spawn().unwrap();
    let mut script = child.stdin.take().unwrap();
    script.write_all(b"\xff\xfe\n{\"id\":1,\"state\":{}}").unwrap();
    drop(script);
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("{\"error\":\"line 1: "), "{printed}");
    assert_eq!((lines[1], lines.len()), ("{\"id\":1,\"ok\":true}", 2));
}

/// Runs a script that ends immediately.
fn run(temp: &tempfile::TempDir, words: &[&str], script: &[u8]) -> std::process::Output {
    let mut child = command(temp, words).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, script).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn a_script_of_which_no_line_is_valid_is_answered_line_by_line() {
    let temp = prepared("");
    let garbage = b"\x7fELF\xff\n\n{\"id\": 4}\nnonsense";
    let file = temp.path().join("garbage");
    nri_runc::testing::files::replace(&file, garbage).unwrap();
    for (words, script) in [
        (&["replay"] as &[&str], garbage as &[u8]),
        (&["replay", "-"], garbage),
        (&["replay", file.to_str().unwrap()], b""),
    ] {
        let output = run(&temp, words, script);
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
        let answers = String::from_utf8(output.stdout).unwrap();
        let answers: Vec<&str> = answers.lines().collect();
        assert_eq!(answers.len(), 3, "{answers:?}");
        assert!(answers[1].starts_with("{\"id\":4,\"error\":\"line 3: "), "{answers:?}");
    }
}

#[test]
fn a_script_that_cannot_be_read_is_an_error() {
    let temp = prepared("");
    let folder = temp.path().display().to_string();
    let output = run(&temp, &["replay", &folder], b"");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}

#[test]
fn an_empty_script_or_one_with_a_valid_line_succeeds() {
    let temp = prepared("");
    for script in [
        "",
        "\n \n",
        "nonsense\n{\"state\":{}}\nnonsense\n",
        "{\"answer\":9,\"error\":\"nobody asked\"}\n",
        "{\"cancel\":1}\n",
    ] {
        let output = run(&temp, &["replay"], script.as_bytes());
        assert!(output.status.success() && output.stderr.is_empty(), "{script}");
    }
}

#[test]
fn at_the_end_pending_calls_finish_and_plugins_are_shut_down() {
    let mut replay = Replay::with("plugin_request_timeout = \"3s\"", &[]);
    let received =
        replay.plugin("10-a", ReplayPlugin::new().at(Event::StopContainer, Action::Hang));
    replay.send(&json!({"id": 1, "call": "StopContainer", "request": {"container": {"id": "c"}}}));
    let socket = replay.path("nri.sock");
    replay.send(&create(json!(2)));
    let temp_outlives = socket.clone();
    let (rest, status) = replay.end();
    assert!(status.success());
    for id in [1, 2] {
        assert!(rest.iter().any(|line| line["id"] == id), "{rest:?}");
    }
    assert!(!temp_outlives.exists(), "the socket is gone");
    assert_eq!(received.methods().last().unwrap(), "StopContainer");
}

#[test]
fn responsive_plugins_receive_shutdown() {
    let mut replay = Replay::start();
    let received = replay.plugin("10-a", ReplayPlugin::new());
    assert!(replay.end().1.success());
    received.wait_for("Shutdown");
}

#[test]
fn a_signal_ends_a_replay_like_the_end_of_the_script() {
    let mut replay = Replay::start();
    let received = replay.plugin("10-a", ReplayPlugin::new());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(replay.pid()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    received.wait_for("Shutdown");
    assert!(replay.end().1.success());
}

#[test]
fn a_signal_ends_a_replay_that_is_still_starting_plugins() {
    let temp = prepared("plugin_registration_timeout = \"300s\"");
    let is_launched = temp.path().join("launched");
    let text = format!("#!/bin/sh\n: >{}\nexec sleep 300\n", is_launched.display());
    test_support::program::put(&temp.path().join("plugins/10-hangs"), text.as_bytes());
    let mut child = command(&temp, &["replay"]).spawn().unwrap();
    wait_until("the plugin is launched", || is_launched.exists());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    // Its stdin is still open.
    wait_until("the replay ends", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_script_is_read_from_a_file() {
    let temp = prepared("");
    let file = temp.path().join("script");
    nri_runc::testing::files::replace(&file, create(json!(1)).to_string().as_bytes()).unwrap();
    let output = command(&temp, &["replay", file.to_str().unwrap()]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["id"] == 1 && answer.get("reply").is_some(), "{answer}");
}

#[test]
fn a_failed_start_is_one_line_and_exit_code_1() {
    let temp = prepared("");
    let long = "/".to_owned() + &"x".repeat(200);
    for words in [
        &["replay", "/nowhere/script"] as &[&str],
        &["replay", "--socket", "/proc/nri.sock"],
        &["replay", "--socket", long.as_str()],
    ] {
        let mut child = command(&temp, words).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut script = child.stdin.take().unwrap();
        let _not_read = std::io::Write::write_all(&mut script, b"{}\nnonsense\n");
        drop(script);
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), printed.lines().count()),
            (Some(1), 1),
            "{words:?}: {printed}"
        );
        assert!(output.stdout.is_empty(), "not even a malformed line is answered");
    }
}

#[test]
fn a_broken_configuration_prevents_a_replay() {
    let temp = prepared("plugin_request_timeout = \"soon\"");
    let output = command(&temp, &["replay"]).stderr(std::process::Stdio::piped()).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        printed.contains("plugin_request_timeout") && printed.lines().count() == 1,
        "{printed}"
    );
}

#[test]
fn a_pre_installed_plugin_is_connected_before_the_first_line() {
    let temp = prepared("");
    std::os::unix::fs::symlink(example("event_logger"), temp.path().join("plugins/10-logger"))
        .unwrap();
    let log = temp.path().join("events.jsonl");
    let config = format!("file = {}\n", log.display());
    nri_runc::testing::files::replace(&temp.path().join("10-logger.conf"), config.as_bytes())
        .unwrap();
    let mut replay = Replay::on(temp, &[]);
    replay.send_text("nonsense");
    let synchronized = replay.line("plugin", |line| {
        assert!(line["error"].is_null(), "answered before the plugin took part");
        line["event"] == "synchronized"
    });
    assert_eq!(
        (&synchronized["plugin"], &synchronized["updates"]),
        (&json!("10-logger"), &json!([]))
    );
    replay.line("answer to nonsense", |line| line["error"].to_string().contains("line 1: "));
    replay.create();
    let lines = std::fs::read_to_string(&log).unwrap();
    assert!(lines.contains("CreateContainer"), "{lines}");
}

#[test]
fn a_pre_installed_file_that_cannot_run_is_skipped() {
    let temp = prepared("plugin_registration_timeout = \"300ms\"");
    let file = temp.path().join("plugins/10-broken");
    test_support::program::put(&file, b"#!/nowhere/at/all\n");
    let mut replay = Replay::on(temp, &[]);
    assert!(replay.create().get("error").is_none());
    let printed = std::fs::read_to_string(replay.path("stderr")).unwrap();
    assert!(printed.contains("10-broken"), "{printed}");
}

#[test]
fn calls_after_a_disconnect_do_not_reach_the_plugin() {
    let mut replay = Replay::start();
    let received = replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
    assert_eq!(replay.ask(&json!({"id": 1, "disconnect": "10-a"})), json!({"id": 1, "ok": true}));
    replay.event("gone", "10-a");
    let answer = replay.create();
    assert!(answer["reply"]["adjust"].get("env").is_none(), "{answer}");
    assert!(!received.methods().iter().any(|method| method == "CreateContainer"));
}
