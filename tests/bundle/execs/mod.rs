// SPDX-License-Identifier: Apache-2.0
//! Processes that `exec` starts in a container: the audit log has a line for each if configured,
//! rules refuse some, and a call that nothing concerns reaches the runtime unchanged.

mod adjusted;
mod audited;
mod guarded;
mod plugins;
mod results;
mod ruled;

use serde_json::{Value, json};
use test_support::{TestHost, wait_until};

/// The document of a process, as engines write it.
fn document(process: &Value) -> Value {
    let mut whole = json!({"user": {"uid": 0, "gid": 0}, "args": ["/bin/sh"], "cwd": "/"});
    for (name, value) in process.as_object().unwrap() {
        whole[name] = value.clone();
    }
    whole
}

/// A host with an audit log: `audit` is added to the section `[audit]`, `more` to the end of the
/// file.
fn host(audit: &str, more: &str) -> TestHost {
    let mut host = TestHost::default();
    reconfigure(&host, audit, more);
    host.start_daemon();
    host
}

fn reconfigure(host: &TestHost, audit: &str, more: &str) {
    let path = host.path("log/audit.log").display().to_string();
    let text = format!("[audit]\ntarget = \"file\"\npath = \"{path}\"\n{audit}{more}");
    host.configure(&host.path("fake/runc"), &text);
}

/// Waits for `count` lines about execs in the audit log, and returns them.
#[track_caller]
fn lines(host: &TestHost, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    wait_until(&format!("there are {count} lines"), || {
        let lines = host.admin(&["audit", "--action", "exec"]);
        found = lines.as_array().cloned().unwrap_or_default();
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// The command line of the runtime's last call.
fn last_words(host: &TestHost) -> Vec<String> {
    let calls = host.read("fake/argv");
    let last = calls.trim_end().trim_end_matches("--").trim_end().rsplit("\n--\n").next();
    last.unwrap_or_default().lines().map(ToOwned::to_owned).collect()
}
