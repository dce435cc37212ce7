// SPDX-License-Identifier: Apache-2.0
//! Later processes: the values that plugins set on a container's process also apply to `exec`, even
//! without a daemon, and `exec` in every other container is unchanged (D36). StopPodSandbox
//! precedes a `kill` that ends a pod's infrastructure container (D37).

mod captured;
mod command_lines;
mod marks;
mod real;

use std::process::Output;

use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::{Script, TestHost};

/// The document of a process, as an engine writes it for the usual bundle.
const PROCESS: &str = r#"{"user":{"uid":0,"gid":0},  "args":["id"], "cwd":"/","env":["PATH=/bin","A=1"], "x-odd":1.0e3}"#;

/// A plugin that sets one variable of each container, changes one and removes one.
fn changing() -> Script {
    Adjustment::new().env("HELLO", "there").env("A", "2").remove_env("PATH").into()
}

/// [`PROCESS`] with the changes of [`changing`].
const CHANGED: &str = r#"{"user":{"uid":0,"gid":0},  "args":["id"], "cwd":"/","env":["A=2","HELLO=there"], "x-odd":1.0e3}"#;

/// Writes the document of a process; returns its path.
fn process(host: &TestHost, document: &str) -> String {
    host.write("process", document);
    host.path("process").display().to_string()
}

/// Calls `exec` in a container with that document, detached, as engines do.
fn exec(host: &TestHost, id: &str, document: &str) -> Output {
    let file = process(host, document);
    host.verb(&["exec", "--process", &file, "--detach", id])
}

/// The process document that the runtime received.
fn seen(host: &TestHost) -> Value {
    serde_json::from_str(&host.read("fake/process.json")).unwrap_or(json!(null))
}

/// The command line of the runtime's last call.
fn last_words(host: &TestHost) -> Vec<String> {
    let calls = host.read("fake/argv");
    let last = calls.trim_end().trim_end_matches("--").trim_end().rsplit("\n--\n").next();
    last.unwrap_or_default().lines().map(ToOwned::to_owned).collect()
}

/// The mark files, which `exec` and `kill` read.
fn marks(host: &TestHost) -> Vec<String> {
    let entries = std::fs::read_dir(host.path("run/state/marks")).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
