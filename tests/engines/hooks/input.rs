// SPDX-License-Identifier: Apache-2.0
//! Manual input of a hook: invalid input causes one line and exit code 1, and nothing makes the
//! hook hang.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nri_runc::testing::error::RESERVED_PHRASES;
use serde_json::{Value, json};
use test_support::{BUNDLE, SILENT, Script, TestHost, wait_until};

use super::{fails, life, life_without, succeeds};

fn hook(host: &TestHost, stage: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_nri-runc"))
        .args(["nri", "hook", stage])
        .env("NRI_RUNC_CONFIG", host.path("config.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run_hook(host: &TestHost, stage: &str, state: &[u8]) -> Output {
    let mut child = hook(host, stage);
    let mut input = child.stdin.take().unwrap();
    let state = state.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&state));
    let output = child.wait_with_output().unwrap();
    let _may_be_cut_short = writer.join().unwrap();
    output
}

#[track_caller]
fn one_line(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    assert!(line.starts_with("nri-runc: ") && output.stdout.is_empty(), "{line}");
    for phrase in RESERVED_PHRASES {
        assert!(!line.to_lowercase().contains(phrase), "{line}");
    }
    line
}

fn state(host: &TestHost) -> Value {
    json!({
        "ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": std::process::id(),
        "bundle": host.path("bundle"), "annotations": {"a": "b"},
    })
}

#[test]
fn invalid_input_is_refused_in_one_line_without_a_request() {
    let host = TestHost::default();
    let with = |key: &str, value: Value| {
        let mut state = state(&host);
        state[key] = value;
        state.to_string()
    };
    let cases = [
        (String::new(), "not the state of a container"),
        ("{{{".to_owned(), "not the state of a container"),
        ("[]".to_owned(), "not the state of a container"),
        ("{\"id\": 5}\n\u{7}".to_owned(), "not the state of a container"),
        (with("id", json!("")), "invalid container id"),
        (with("id", json!("../../etc")), "invalid container id"),
        (with("id", json!("..")), "invalid container id"),
        (with("id", json!("x".repeat(2000))), "invalid container id"),
        (with("pid", json!("1")), "not the state of a container"),
        (with("pid", json!(0)), "invalid pid"),
        (with("pid", json!(-1)), "invalid pid"),
        (with("pid", json!(u64::from(u32::MAX) + 2)), "invalid pid"),
        (with("bundle", json!("bundle")), "not an absolute path"),
        (with("bundle", json!("/nowhere/at/all")), "the state's bundle"),
        (with("bundle", json!(host.path("fake"))), "config.json is missing"),
        (with("annotations", json!({"a": "x".repeat(5 << 20)})), "larger than"),
    ];
    for (state, wanted) in cases {
        let line = one_line(&run_hook(&host, "createRuntime", state.as_bytes()));
        assert!(line.contains(wanted), "{wanted} is not in: {line}");
    }
    one_line(&run_hook(&host, "poststop", b"null"));
    for stage in ["createContainer", "startContainer", "", "--"] {
        let output = run_hook(&host, stage, state(&host).to_string().as_bytes());
        assert!(!output.status.success(), "{stage}");
    }
    assert!(!host.path("run").exists(), "the daemon was asked");
}

#[test]
fn an_endless_state_on_standard_input_is_abandoned() {
    let host = TestHost::default();
    let mut child = hook(&host, "poststop");
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"id\":").unwrap();
    let begun = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(one_line(&output).contains("within 5 s"));
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    drop(input);
}

#[test]
fn the_end_of_an_unknown_container_is_ignored() {
    let mut host = TestHost::default();
    host.start_daemon();
    for stage in ["poststop", "poststart"] {
        succeeds(&run_hook(&host, stage, b"{\"id\": \"never-seen\", \"pid\": 0}"));
    }
    assert_eq!(host.admin(&["pods"]), json!([]));
    assert_eq!(host.admin(&["status"])["failures"], json!([]));
}

#[test]
fn a_hook_gives_up_on_a_silent_daemon_after_three_seconds() {
    let stalls = "[debug]\nfault = \"daemon.asked:stall\"\n";
    let mut host = TestHost::new(stalls);
    host.start_daemon();
    for stage in ["createRuntime", "poststop"] {
        let begun = Instant::now();
        succeeds(&run_hook(&host, stage, state(&host).to_string().as_bytes()));
        let waited = begun.elapsed();
        // The daemon stays silent for ten minutes.
        let bounds = Duration::from_millis(2900)..Duration::from_secs(120);
        assert!(bounds.contains(&waited), "{stage}: {waited:?}");
    }
    host.configure(&host.path("fake/runc"), &format!("on_daemon_failure = \"fail\"\n{stalls}"));
    let line = one_line(&run_hook(&host, "createRuntime", state(&host).to_string().as_bytes()));
    assert!(
        line.contains("cannot create c1") && line.contains("the daemon stopped responding"),
        "{line}"
    );
    succeeds(&run_hook(&host, "poststop", state(&host).to_string().as_bytes()));
}

/// A runtime as a shell script that calls hooks at the same stages as runc, with a handwritten state.
const RUNTIME: &str = r#"#!/bin/sh
dir=$(dirname "$0")
shift; root=$1; verb=$2; id=$3; bundle=$dir/../bundle
hook() { printf '{"ociVersion":"1.0.2","id":"%s","status":"%s","pid":%s,"bundle":"%s"}' "$id" "$2" "$3" "$bundle" |
  "$dir/nri-runc" nri hook "$1"; }
case $verb in
create)
  mkdir -p "$root/$id"
  sleep 300 </dev/null >/dev/null 2>&1 &
  mkfifo "$root/$id/exec.fifo"
  hook createRuntime creating $! || { kill -9 $!; rm -rf "$root/$id"; hook poststop stopped 0; exit 1; }
  echo $! >"$root/$id/pid"
  echo "{\"init_process_pid\": $!}" >"$root/$id/state.json" ;;
start) rm -f "$root/$id/exec.fifo"; touch "$root/$id/started" ;;
delete) kill -9 "$(cat "$root/$id/pid")"; rm -rf "$root/$id"; hook poststop stopped 0 ;;
esac
"#;

fn scripted(more: &str) -> TestHost {
    let mut host = TestHost::new(more);
    host.put_program("fake/hooking", RUNTIME);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nri-runc"), host.path("fake/nri-runc")).unwrap();
    host.start_daemon();
    host
}

fn runtime(host: &TestHost, verb: &str) -> Output {
    Command::new(host.path("fake/hooking"))
        .arg("--root")
        .arg(host.path("root"))
        .args([verb, "c1"])
        .env("NRI_RUNC_CONFIG", host.path("config.toml"))
        .output()
        .unwrap()
}

#[test]
fn a_hook_finds_a_runtime_that_is_a_script() {
    let host = scripted("");
    let received = host.plugin("10", "witness", Script::default());
    succeeds(&runtime(&host, "create"));
    wait_until("the creation is reported", || received.lock().unwrap().len() >= 3);
    assert_eq!(*received.lock().unwrap(), life("c1")[..3]);
    succeeds(&runtime(&host, "delete"));
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    assert_eq!(*received.lock().unwrap(), life_without(&["StartContainer", "PostStart"]));
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_hanging_plugin_is_skipped_and_a_refusal_fails_the_script() {
    let host = scripted(SILENT);
    let hangs = Script { hangs: true, ..Script::default() };
    let _hanging = host.plugin("10", "slow", hangs);
    succeeds(&runtime(&host, "create"));
    succeeds(&runtime(&host, "delete"));
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    let guard = Script { refuses: Some("not signed"), ..Script::default() };
    let received = host.plugin("90", "guard", guard);
    fails(&runtime(&host, "create"), &["cannot create c1", "90-guard", "not signed"]);
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    assert_eq!(*received.lock().unwrap(), life_without(&["Start", "Post"]));
}
