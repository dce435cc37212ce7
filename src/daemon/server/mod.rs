// SPDX-License-Identifier: Apache-2.0
//! Serves wrappers, hooks and operators: frames, heartbeats, verdicts, admin responses.
//!
//! This module never decides about a container. It imports `lifecycle`, `shared`, `process`, `recovery`,
//! `registry`, `request`, `resources`, `runtime`, `verbs` and `watch`.

mod admin;
pub(crate) mod drain;
mod events;
mod exec_plugins;
mod explain;
mod explain_pod;
mod exposed;
mod frames;
mod holdings;
mod hook;
pub(crate) mod http;
mod later;
mod policy;
mod recent;
mod recording;
mod rows;
pub(crate) mod session;
mod verb;

use std::io;

use tracing::warn;

use crate::daemon::shared::Report;
use crate::daemon::shared::few_lines::FewOf;
use crate::error::in_our_words;

/// Logs that a listener could not accept a connection, at most a few times a minute.
fn report_unaccepted(report: &Report, listener: &str, error: &io::Error) {
    if report.few_lines.admit(FewOf::Unaccepted, listener) {
        warn!("{listener}: {}", in_our_words(error));
    }
}
