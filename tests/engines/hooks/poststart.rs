// SPDX-License-Identifier: Apache-2.0
//! The reason why RunPodSandbox precedes the start of a pod's infrastructure process, instead of following it by a
//! blocking `poststart` hook (docs/decisions/0008-run-pod-sandbox-before-the-start.md): how real runtimes run such a
//! hook.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, tools};

/// Writes the current command of the runtime, and the program of the init process.
const HOOK: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
echo "$(cat command) $(tr '\0' ' ' <"/proc/$pid/cmdline")" >said
sleep 0.2
exit "$(cat code)"
"#;

/// How a runtime ran the hook.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The command that ran the hook.
    during: String,
    /// Whether the container's own process ran by then.
    has_started: bool,
    /// Whether its failure failed that command and ended the container.
    refuses: bool,
}

fn seen(runtime: &Path) -> Option<Seen> {
    let host = TestHost::new("");
    let real = RealRuntime::new(&host.path(""))?;
    host.put_program("hook/hook.sh", HOOK);
    let mut document = real.document("c1", &["sleep", "1000"]);
    document["hooks"] = json!({"poststart": [{"path": host.path("hook/hook.sh")}]});
    host.write("bundle/config.json", &document.to_string());
    let root = host.path("root").display().to_string();
    let bundle = host.path("bundle").display().to_string();
    let run = |words: &[&str]| {
        host.write("hook/command", words[0]);
        let mut called = Command::new(runtime);
        let called = called.args(["--root", &root]).args(words).stdin(Stdio::null());
        called.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    let life = |code: &str| {
        host.write("hook/code", code);
        let is_made = run(&["create", "--bundle", &bundle, "c1"]) && run(&["start", "c1"]);
        let said = host.read("hook/said");
        let _may_be_gone = run(&["delete", "--force", "c1"]);
        (is_made, said)
    };
    let (is_made, said) = life("0");
    assert!(is_made, "{said}");
    let (is_made_all_the_same, _) = life("1");
    let (during, program) = said.split_once(' ')?;
    Some(Seen {
        during: during.to_owned(),
        has_started: program.starts_with("sleep"),
        refuses: !is_made_all_the_same,
    })
}

/// Inside `create`, before the process: its failure fails the creation.
fn is_inside_create(runtime: &Path) {
    let wanted = Seen { during: "create".to_owned(), has_started: false, refuses: true };
    assert_eq!(seen(runtime), Some(wanted));
}

#[test]
fn runc_runs_a_poststart_hook_inside_create() {
    let Some(tools) = tools::find(&["busybox", "runc"]) else { return };
    is_inside_create(&tools.join("runc"));
}

#[test]
fn runc_1_5_runs_a_poststart_hook_inside_create() {
    let Some(newer) = tools::newer("runc-1.5.2") else { return };
    is_inside_create(&newer.join("runc"));
}
