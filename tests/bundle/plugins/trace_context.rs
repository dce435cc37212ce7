// SPDX-License-Identifier: Apache-2.0
//! A traced caller: plugins receive its trace context with the request, as from an engine's own NRI.

use std::process::Command;
use std::sync::{Arc, Mutex};

use test_support::{Script, TestHost};

use crate::{started, succeeds};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Creates a container by a caller with these variables; returns the trace context that a plugin
/// received.
fn received_traces(
    host: &TestHost,
    received: &Arc<Mutex<Vec<String>>>,
    variables: &[(&str, &str)],
) -> Vec<String> {
    received.lock().unwrap().clear();
    let path = |name: &str| host.path(name).display().to_string();
    let mut command = Command::new(test_support::program::nri_runc());
    command.env("NRI_RUNC_CONFIG", path("config.toml")).envs(variables.iter().copied());
    let root = path("root");
    let words =
        ["--root", &root, "create", "--bundle", &path("bundle"), "--pid-file", &path("p"), "c1"];
    succeeds(&command.args(words).output().unwrap());
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    let received = received.lock().unwrap();
    received.iter().filter(|line| line.starts_with("trace")).cloned().collect()
}

#[test]
fn plugins_receive_the_trace_of_a_traced_caller_and_no_other() {
    let host = started("");
    let plugin = host.plugin("10", "traced", Script::default());
    let parent = format!("traceparent {PARENT}");
    assert_eq!(received_traces(&host, &plugin, &[("TRACEPARENT", PARENT)]), [&*parent]);
    let with_state = [("TRACEPARENT", PARENT), ("TRACESTATE", "vendor=1")];
    let mut both = received_traces(&host, &plugin, &with_state);
    both.sort();
    assert_eq!(both, [&*parent, "tracestate vendor=1"]);
    assert_eq!(received_traces(&host, &plugin, &[]), [""; 0]);
    for malformed in ["", "yes", "00-0-0-0", &PARENT.to_uppercase()] {
        assert_eq!(
            received_traces(&host, &plugin, &[("TRACEPARENT", malformed)]),
            [""; 0],
            "{malformed}"
        );
    }
    assert_eq!(received_traces(&host, &plugin, &[("TRACESTATE", "vendor=1")]), [""; 0]);
}
