// SPDX-License-Identifier: Apache-2.0
//! A recording waits a limited time for the plugins that were connected when it was made; a
//! handwritten script waits only for the plugins that it names.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use test_support::replay::{Replay, ReplayPlugin, command, create, prepared, setting};

/// The first line of a recording, with the plugins that were connected.
fn recorded_state(plugins: &[&str]) -> Value {
    let state = json!({"pods": [{"id": "p0"}], "containers": []});
    json!({"at": 1_763_000_000_000_000_000_u64, "plugins": plugins, "state": state})
}

/// Writes a script below `temp`.
fn write(temp: &tempfile::TempDir, lines: &[Value]) -> String {
    let file = temp.path().join("script.jsonl");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    nri_runc::testing::files::replace(&file, text.as_bytes()).unwrap();
    file.display().to_string()
}

/// Replays a script to its end, without plugins.
fn replay_alone(more: &str, lines: &[Value], flags: &[&str]) -> Output {
    let temp = prepared(more);
    let file = write(&temp, lines);
    let words = [&["replay", &file][..], flags].concat();
    command(&temp, &words).stderr(Stdio::piped()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until a running replay has printed this.
fn wait_until_printed(file: &Path, wanted: &str) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let printed = std::fs::read_to_string(file).unwrap_or_default();
        if printed.contains(wanted) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "no {wanted}: {printed}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_recordings_first_call_waits_for_its_plugins() {
    let temp = prepared("");
    let file = write(&temp, &[recorded_state(&["10-a", "20-b"]), create(json!(1))]);
    let mut replay = Replay::on(temp, &[&file]);
    wait_until_printed(&replay.path("stderr"), "waits up to 30s for 10-a, 20-b");
    let first = replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
    replay.plugin("20-b", ReplayPlugin::new().creating(setting("B", "2")));
    let answer = replay.answer(&json!(1));
    assert_eq!(answer["owners"], json!({"Env[A]": "10-a", "Env[B]": "20-b"}), "{answer}");
    assert!(first.last("Synchronize").contains("p0"), "it is reported the recorded state");
    let printed = std::fs::read_to_string(replay.path("stderr")).unwrap();
    assert!(!printed.contains("not connected"), "{printed}");
}

#[test]
fn a_recording_continues_without_a_missing_plugin() {
    let lines = [recorded_state(&["10-a", "20\u{1b}[2J"]), create(json!(1)), create(json!(2))];
    let output = replay_alone("", &lines, &["--wait-timeout", "300ms"]);
    let printed = stderr(&output);
    assert!(printed.contains("not connected within 300ms: 10-a, 20"), "{printed}");
    assert_eq!(printed.matches("waits up to").count(), 1, "once, not for every call: {printed}");
    assert!(!printed.contains('\u{1b}'), "{printed}");
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(answers.contains("{\"id\":1,\"reply\"") && answers.contains("{\"id\":2,\"reply\""));
    assert!(output.status.success(), "{printed}");
}

#[test]
fn a_recording_that_names_no_plugin_waits_for_any() {
    let mut older = recorded_state(&[]);
    older.as_object_mut().unwrap().remove("plugins");
    for state in [recorded_state(&[]), older] {
        let temp = prepared("");
        let file = write(&temp, &[state, create(json!(1))]);
        let mut replay = Replay::on(temp, &[&file]);
        wait_until_printed(&replay.path("stderr"), "for a plugin to connect");
        replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
        assert_eq!(replay.answer(&json!(1))["owners"], json!({"Env[A]": "10-a"}));
    }
}

#[test]
fn a_wait_in_the_script_replaces_that_of_the_recording() {
    let wait = json!({"wait": {"gone": ["10-a"]}});
    let lines = [recorded_state(&["10-a"]), wait, create(json!(1))];
    let output = replay_alone("", &lines, &["--wait-timeout", "50s"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn no_plugin_is_awaited_if_none_can_connect_or_is_wanted() {
    let lines = [recorded_state(&["10-a"]), create(json!(1))];
    let by_hand = [json!({"state": {}}), create(json!(1))];
    for (more, lines, flags) in [
        ("disable_connections = true", &lines, ["--wait-timeout", "50s"]),
        ("", &lines, ["--wait-timeout", "0s"]),
        ("", &by_hand, ["--wait-timeout", "50s"]),
    ] {
        let output = replay_alone(more, lines, &flags);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("\"reply\""));
    }
}

#[test]
fn a_handwritten_script_names_its_plugins_only_with_wait() {
    let mut replay = Replay::start();
    let line = json!({"id": 1, "plugins": ["10-a"], "state": {}});
    let answer = replay.ask(&line);
    assert!(answer["error"].as_str().is_some_and(|why| why.starts_with("line 1: ")), "{answer}");
}

#[test]
fn an_invalid_time_is_a_usage_error() {
    let output = replay_alone("", &[], &["--wait-timeout", "soon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("such as 30s"), "{}", stderr(&output));
}

#[test]
fn a_state_of_several_lines_is_one_state_for_a_plugin() {
    let temp = prepared("");
    let adds = |id: &str| json!({"at": 2, "adds": true, "state": {"containers": [{"id": id}]}});
    let lines = [recorded_state(&["10-a"]), adds("c1"), adds("c2"), create(json!(1))];
    let file = write(&temp, &lines);
    let mut replay = Replay::on(temp, &[&file]);
    wait_until_printed(&replay.path("stderr"), "waits up to 30s for 10-a");
    let plugin = replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
    let answer = replay.answer(&json!(1));
    assert_eq!(answer["owners"], json!({"Env[A]": "10-a"}), "{answer}");
    let received = plugin.last("Synchronize");
    assert!(["p0", "c1", "c2"].iter().all(|id| received.contains(id)), "{received}");
    assert_eq!(received.matches("c1").count(), 1, "each line counts once: {received}");
}
