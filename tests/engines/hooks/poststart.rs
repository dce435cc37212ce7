// SPDX-License-Identifier: Apache-2.0
//! The reason why RunPodSandbox precedes the start of a pod's infrastructure process, instead of following it by a
//! blocking `poststart` hook (docs/decisions/0008-run-pod-sandbox-before-the-start.md): how real runtimes run such a
//! hook.

use std::process::{Command, Stdio};

use serde_json::json;
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, cgroup, tools};

/// Writes the current command of the runtime, and the program of the init process; a started one gets a second to
/// execute its program.
const HOOK: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
for _ in 1 2 3 4 5 6 7 8 9 10; do
    program=$(tr '\0' ' ' <"/proc/$pid/cmdline")
    case $program in sleep*) break ;; esac
    sleep 0.1
done
echo "$(cat command) $program" >said
sleep 0.2
touch done
exit "$(cat code)"
"#;

/// How a runtime ran the hook.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The command that ran the hook.
    during: String,
    /// Whether the container's own process ran by then.
    has_started: bool,
    /// Whether the command waited for the hook.
    waits: bool,
    /// Whether its failure failed that command.
    refuses: bool,
}

fn seen(runtime: &str) -> Option<Seen> {
    let host = TestHost::default();
    let (name, version) = runtime.split_once('-').unwrap_or((runtime, ""));
    let mut real = RealRuntime::with(&host.path(""), name)?;
    let newer = match (name, version) {
        (_, "") => None,
        ("crun", _) => Some(tools::later_crun(runtime)?),
        _ => Some(tools::newer(runtime)?.join(name)),
    };
    newer.iter().for_each(|program| real.becomes(program));
    host.put_program("hook/hook.sh", HOOK);
    let mut document = real.document("c1", &["sleep", "1000"]);
    document["hooks"] = json!({"poststart": [{"path": host.path("hook/hook.sh")}]});
    host.write("bundle/config.json", &document.to_string());
    let root = host.path("root").display().to_string();
    let bundle = host.path("bundle").display().to_string();
    let run = |words: &[&str]| {
        host.write("hook/command", words[0]);
        let mut called = Command::new(real.runc());
        let called = called.args(["--root", &root]).args(words).stdin(Stdio::null());
        called.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    let life = |code: &str| {
        host.write("hook/code", code);
        let is_made = run(&["create", "--bundle", &bundle, "c1"]) && run(&["start", "c1"]);
        let (printed, waits) = (host.read("hook/said"), host.path("hook/done").exists());
        let _may_be_gone = run(&["delete", "--force", "c1"]);
        (is_made, printed, waits)
    };
    let (is_made, printed, waits) = life("0");
    assert!(is_made, "{printed}");
    let (is_made_all_the_same, ..) = life("1");
    let (during, program) = printed.split_once(' ').unwrap();
    Some(Seen {
        during: during.to_owned(),
        has_started: program.starts_with("sleep"),
        waits,
        refuses: !is_made_all_the_same,
    })
}

/// Checks that the hook runs inside `create`, before the process: its failure fails the creation.
fn is_inside_create(runtime: &str) {
    let wanted =
        Seen { during: "create".to_owned(), has_started: false, waits: true, refuses: true };
    if let Some(seen) = seen(runtime) {
        assert_eq!(seen, wanted);
    }
}

/// Checks that the hook runs inside `start`, when the process runs.
fn is_inside_start(runtime: &str, refuses: bool) {
    cgroup::leave_v2_beside_v1();
    let wanted = Seen { during: "start".to_owned(), has_started: true, waits: true, refuses };
    if let Some(seen) = seen(runtime) {
        assert_eq!(seen, wanted);
    }
}

#[test]
fn runc_runs_a_poststart_hook_inside_create() {
    is_inside_create("runc");
}

#[test]
fn runc_1_5_runs_a_poststart_hook_inside_create() {
    is_inside_create("runc-1.5.2");
}

#[test]
fn crun_runs_a_poststart_hook_inside_start() {
    is_inside_start("crun", false);
    is_inside_start("crun-1.21", false);
}

#[test]
fn a_newer_crun_fails_the_start_if_a_poststart_hook_fails() {
    is_inside_start("crun-1.28", true);
}
