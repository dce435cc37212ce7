// SPDX-License-Identifier: Apache-2.0
//! The document of `policy test` for a recording or a manifest.

use serde::Serialize;

/// The result of `policy test` for a manifest or a recording.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(crate) struct Compared {
    /// Whether two configurations are compared.
    pub(crate) compared: bool,
    pub(crate) containers: usize,
    pub(crate) changed: usize,
    pub(crate) decisions: Vec<ComparedContainer>,
    pub(crate) not_listed: usize,
    /// Requests without a decision in the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unfinished: Option<usize>,
}

/// A container with decisions to list.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(crate) struct ComparedContainer {
    #[serde(flatten)]
    pub(crate) judged: JudgedContainer,
    pub(crate) container_id: String,
    pub(crate) time: Option<String>,
    /// The number of creations with this row.
    pub(crate) count: u64,
}

/// The members by which equal rows are merged.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(crate) struct JudgedContainer {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(super) decision: Decision,
    pub(crate) changes: Vec<ChangedDecision>,
}

/// A decision about a container as a whole.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(crate) struct Decision {
    pub(super) before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<String>,
}

/// A decision; with two configurations, one that differs or is undecided.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(crate) struct ChangedDecision {
    pub(crate) what: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}
