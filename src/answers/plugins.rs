// SPDX-License-Identifier: Apache-2.0
//! The daemon's response to `plugins`, and the output of a launched plugin.

use serde::{Deserialize, Serialize};

use crate::config::OnFailure;
use crate::named::named;

named! {
    /// How far a plugin's connection has got.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum PluginState {
        /// The connection has not sent a name yet.
        Registering => "registering",
        Configuring => "configuring",
        Synchronizing => "synchronizing",
        Synchronized => "synchronized",
        Gone => "gone",
        /// A state that only a later version knows.
        #[default]
        #[serde(other)]
        Unknown => "unknown",
    }
}

/// A row of `plugins`: a plugin that is connected, is connecting, or disconnected recently.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PluginRow {
    /// Two digits; empty before the plugin has registered.
    pub(crate) index: String,
    pub(crate) name: String,
    pub(crate) state: PluginState,
    /// Whether the daemon launched the plugin from a file.
    pub(crate) launched: bool,
    pub(crate) pid: Option<i32>,
    pub(crate) connected_at: i64,
    pub(crate) connected_time: Option<String>,
    /// The PID of the process that the plugin is about to replace.
    pub(crate) replaces: Option<i32>,
    /// Events to which the plugin is subscribed.
    pub(crate) events: Vec<String>,
    pub(crate) nri_version: String,
    /// Events that the plugin receives as the deprecated StateChange.
    pub(crate) deprecated_events: Vec<String>,
    /// Methods of the extension to which the plugin is subscribed.
    pub(crate) extension_events: Vec<String>,
    pub(crate) requests: u64,
    pub(crate) timeouts: u64,
    pub(crate) failures: u64,
    pub(crate) last_failure: Option<PluginFailure>,
    pub(crate) failure_policy: Option<PolicyRow>,
    /// Null before the plugin has registered.
    pub(crate) time_limits: Option<TimeLimits>,
    /// Null before the first response.
    pub(crate) answers: Option<AnswerRow>,
    pub(crate) synchronizing: Option<SynchronizeRow>,
    pub(crate) restarts: u64,
    /// How the last process that the daemon started ended.
    pub(crate) exit_status: Option<String>,
    /// The last lines that the last process printed.
    pub(crate) last_words: Vec<String>,
    pub(crate) restart_in_seconds: Option<f32>,
    /// Whether the plugin's last requests all timed out.
    pub(crate) unresponsive: bool,
    /// Whether a request had timed out since the plugin's last answer when it disconnected.
    pub(crate) struck: bool,
    /// Why the plugin runs an older program or configuration than its files.
    pub(crate) outdated: Option<String>,
    pub(crate) start_failure: Option<String>,
    /// Whether the plugin's connection was refused.
    pub(crate) refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gone_time: Option<String>,
    /// Why the plugin disconnected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl PluginRow {
    /// Returns `NN-name`.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }

    /// Whether both rows are of plugins with the same identity.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.index == other.index && self.name == other.name
    }
}

/// The output of a launched plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PluginOutput {
    pub(crate) index: String,
    pub(crate) name: String,
    /// The previous run, and the current one.
    pub(crate) runs: Vec<PluginRun>,
}

/// One process of a launched plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PluginRun {
    /// How the process ended.
    pub(crate) exit_status: Option<String>,
    pub(crate) lines: Vec<PrintedLine>,
}

/// A line that a plugin has printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PrintedLine {
    pub(crate) at: i64,
    pub(crate) time: Option<String>,
    pub(crate) line: String,
}

/// The last failure of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PluginFailure {
    pub(crate) at: i64,
    pub(crate) time: Option<String>,
    pub(crate) what: String,
}

/// What a plugin's missing response means, and whether the configuration, the plugin or the default
/// decides that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PolicyRow {
    pub(crate) on_failure: OnFailure,
    pub(crate) on_failure_from: String,
    /// Consecutive time-outs after which the plugin is disconnected; 0 for never.
    pub(crate) strikes: u32,
    pub(crate) strikes_from: String,
}

/// The limits of a plugin's requests, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct TimeLimits {
    pub(crate) request_ms: f64,
    /// For the whole Synchronize; null if each of its requests has the usual limit.
    pub(crate) synchronize_ms: Option<f64>,
}

/// The response times of a plugin within about the last hour.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct AnswerRow {
    pub(crate) count: u32,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) limit_ms: f64,
    /// Whether p99 was above half of the limit during the whole hour.
    pub(crate) busy_for_an_hour: bool,
}

/// The progress of a plugin's Synchronize.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct SynchronizeRow {
    pub(crate) for_ms: f64,
    pub(crate) limit_ms: f64,
    /// Requests that were answered; a long snapshot has several.
    pub(crate) answered: usize,
}
