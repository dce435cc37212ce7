// SPDX-License-Identifier: Apache-2.0
//! The configuration from an operator's view: mistakes in protections, defaults for every plugin,
//! files that are missing, changed or beside the executable, and a daemon that is stopped,
//! restarted or older than its files. All with the built binary.

mod added;
mod elsewhere;
mod files;
mod one_reading;
mod protect;
mod reload;
mod resident;
mod rootless;

use serde_json::Value;
use test_support::{TestHost, fails, started, succeeds};

/// One finding of `check`.
fn finding(host: &TestHost, check: &str) -> Value {
    let findings = host.admin(&["check"]);
    let mut findings = findings.as_array().into_iter().flatten();
    findings.find(|finding| finding["check"] == check).cloned().unwrap_or_default()
}
