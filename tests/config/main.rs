// SPDX-License-Identifier: Apache-2.0
//! The configuration as it meets an operator: mistakes in what protects, defaults for every
//! plugin, files that are missing, changed or beside the executable, and a daemon that is stopped,
//! restarted or older than its files. All with the built binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
#[path = "../support/player.rs"]
mod player;
mod protect;
mod resident;
#[path = "../bundle/rig.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod rig;

use serde_json::Value;

use rig::Rig;

fn started(more: &str) -> Rig {
    let mut rig = Rig::new(more);
    rig.start_daemon();
    rig
}

#[track_caller]
fn succeeds(output: &std::process::Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Fails with one line that has all these words.
#[track_caller]
fn fails(output: &std::process::Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.lines().count() == 1, "{line}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

/// One finding of `check`.
fn finding(rig: &Rig, check: &str) -> Value {
    let findings = rig.admin(&["check"]);
    let mut findings = findings.as_array().into_iter().flatten();
    findings.find(|finding| finding["check"] == check).cloned().unwrap_or_default()
}
