// SPDX-License-Identifier: Apache-2.0
//! Processes that come later: what plugins set on a container's process holds for `exec` too, also
//! while the daemon is away, and `exec` of every other container stays as it came (D36). A `kill`
//! that ends a pod's infrastructure container is preceded by StopPodSandbox (D37).

mod captured;
mod command_lines;
mod marks;
mod real;

use std::process::Output;

use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::{Script, TestHost};

/// The document of a process that the usual bundle's engine would write.
const PROCESS: &str = r#"{"user":{"uid":0,"gid":0},  "args":["id"], "cwd":"/","env":["PATH=/bin","A=1"], "x-odd":1.0e3}"#;

/// A plugin that sets one variable of each container, changes one and removes one.
fn changing() -> Script {
    Adjustment::new().env("HELLO", "there").env("A", "2").remove_env("PATH").into()
}

/// What becomes of [`PROCESS`] then.
const CHANGED: &str = r#"{"user":{"uid":0,"gid":0},  "args":["id"], "cwd":"/","env":["A=2","HELLO=there"], "x-odd":1.0e3}"#;

/// Writes a document of a process; its path.
fn process(host: &TestHost, document: &str) -> String {
    host.write("process", document);
    host.path("process").display().to_string()
}

/// `exec` in a container with that document, detached, as engines call it.
fn exec(host: &TestHost, id: &str, document: &str) -> Output {
    let file = process(host, document);
    host.verb(&["exec", "--process", &file, "--detach", id])
}

/// What the runtime was given as the process, as JSON.
fn seen(host: &TestHost) -> Value {
    serde_json::from_str(&host.read("fake/process.json")).unwrap_or(json!(null))
}

/// The words of the runtime's last call.
fn last_words(host: &TestHost) -> Vec<String> {
    let calls = host.read("fake/argv");
    let last = calls.trim_end().trim_end_matches("--").trim_end().rsplit("\n--\n").next();
    last.unwrap_or_default().lines().map(ToOwned::to_owned).collect()
}

/// The files with what `exec` and `kill` have to know.
fn marks(host: &TestHost) -> Vec<String> {
    let entries = std::fs::read_dir(host.path("run/state/marks")).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
