// SPDX-License-Identifier: Apache-2.0
//! `forget`: drops the record of a container or pod that no engine has. The daemon checks
//! that, and notifies plugins.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::output::{Format, PlainOutput, tell_page};
use super::paint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::text::printable;
use crate::wrapper;

/// Time limit of the request: notified plugins may be slow, and the daemon sends heartbeats
/// meanwhile.
const FORGET_WAIT: Duration = Duration::from_secs(60);

/// `forget`.
#[derive(Debug, Args)]
pub(super) struct Forget {
    /// Container or pod ID, or an ID prefix.
    id: String,
    /// Drop the record although the runtime still has the container.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// Requests the daemon to drop the record, and prints what was dropped.
pub(super) fn forget(config: &Config, forget: &Forget, format: Format) -> Result<u8> {
    let question = json!({"verb": "forget", "id": forget.id, "force": forget.force});
    let answer = wrapper::admin_within(config, &question.to_string(), FORGET_WAIT)?;
    let document = serde_json::from_str(&answer);
    let document: Value = document.map_err(|error| Error::new(error.to_string()))?;
    tell_page(format, &document, show, paint::plain)
}

/// Formats the result for people.
fn show(document: &Value) -> String {
    let mut text = String::new();
    for container in document["containers"].as_array().into_iter().flatten() {
        let id = printable(container["id"].as_str().unwrap_or_default());
        text.push_str(&format!("forgot container {id}\n"));
    }
    for pod in document["pods"].as_array().into_iter().flatten() {
        text.push_str(&format!("forgot pod {}\n", printable(pod.as_str().unwrap_or_default())));
    }
    let warning = document["warning"].as_str().unwrap_or_default();
    text.push_str(&format!("warning: {}", printable(warning)));
    text
}
