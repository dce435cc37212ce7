// SPDX-License-Identifier: Apache-2.0
//! The configuration as it meets an operator: mistakes in what protects, defaults for every
//! plugin, files that are missing, changed or beside the executable, and a daemon that is stopped,
//! restarted or older than its files. All with the built binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod files;
mod protect;
mod resident;

use serde_json::Value;
use test_support::TestHost;

fn started(more: &str) -> TestHost {
    let mut host = TestHost::new(more);
    host.start_daemon();
    host
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
fn finding(host: &TestHost, check: &str) -> Value {
    let findings = host.admin(&["check"]);
    let mut findings = findings.as_array().into_iter().flatten();
    findings.find(|finding| finding["check"] == check).cloned().unwrap_or_default()
}
