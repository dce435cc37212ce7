// SPDX-License-Identifier: Apache-2.0
//! The daemon asks the runtime for its features once, and only if they matter; a runtime that does
//! not respond delays no request for long.

use serde_json::json;
use test_support::adjustments::adjusts;
use test_support::{Script, TestHost};

use crate::{refused, sets, started, succeeds};

/// Requests a setting that not every runtime supports.
fn schedules() -> Script {
    adjusts(&json!({"linux": {"scheduler": {"policy": "SCHED_BATCH"}}}))
}

fn times_asked(host: &TestHost) -> usize {
    host.read("fake/asked").lines().count()
}

#[test]
fn a_runtimes_features_are_queried_once_until_it_is_replaced() {
    let host = started("");
    host.write("fake/version", "runc version 1.4.0\n");
    let _plugin = host.plugin("10", "sched", schedules());
    for id in ["c1", "c2", "c3"] {
        succeeds(&host.create(id));
        succeeds(&host.verb(&["delete", "--force", id]));
        assert_eq!(host.read("fake/asked"), "--version\nfeatures\n", "{id}");
    }
    host.write("fake/version", "runc version 1.1.5\n");
    let program = host.read("fake/runc");
    host.put_program("fake/runc", &format!("{program}# another build\n"));
    host.write("fake/argv", "");
    host.write("log.json", "");
    refused(&host, &host.create("c4"), &["10-sched", "LinuxSched", "runc 1.1.5"]);
    assert_eq!(times_asked(&host), 4);
}

#[test]
fn usual_adjustments_and_verbs_query_no_runtime() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("A", "1"));
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    assert_eq!(times_asked(&host), 0);
}

#[test]
fn a_runtime_that_does_not_answer_is_trusted_after_two_seconds() {
    let host = started("");
    host.write("fake/version", "runc version 1.1.5\n");
    host.write("fake/mute", "");
    let _plugin = host.plugin("10", "sched", schedules());
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("SCHED_BATCH"));
    host.logs(&["c1", "does not report its features"], 1);
    std::fs::remove_file(host.path("fake/mute")).unwrap();
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    let late = host.create("c2");
    let line = String::from_utf8_lossy(&late.stderr);
    assert!(line.contains("runc 1.1.5"), "what was not known is asked again: {line}");
}
