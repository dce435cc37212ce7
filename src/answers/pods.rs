// SPDX-License-Identifier: Apache-2.0
//! The daemon's response to `pods`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ContainerState, SandboxState};

/// A row of `pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PodRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) engine: String,
    /// The evidence for the engine.
    pub(crate) evidence: Vec<String>,
    pub(crate) state: SandboxState,
    /// Null from a daemon of an earlier version, which does not list them.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) created_at: i64,
    pub(crate) created_time: Option<String>,
    pub(crate) containers: Vec<ContainerRow>,
}

impl PodRow {
    /// Returns `NAMESPACE/NAME`, as other verbs accept it, or the ID of a pod without a name.
    pub(crate) fn full_name(&self) -> String {
        match (self.namespace.as_str(), self.name.as_str()) {
            (_, name) if name.is_empty() || name == self.id => self.id.clone(),
            ("", name) => name.to_owned(),
            (namespace, name) => format!("{namespace}/{name}"),
        }
    }
}

/// A container in a row of `pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct ContainerRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: ContainerState,
    pub(crate) pid: Option<u32>,
    /// Whether the container's record was lost and then recovered from the runtime's state.
    pub(crate) found: bool,
    #[serde(flatten)]
    pub(crate) times: Times,
}

/// The times of a container's creation, start, exit and refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct Times {
    pub(crate) created_at: i64,
    pub(crate) created_time: Option<String>,
    pub(crate) started_at: i64,
    pub(crate) started_time: Option<String>,
    pub(crate) finished_at: i64,
    pub(crate) finished_time: Option<String>,
    pub(crate) refused_at: i64,
    pub(crate) refused_time: Option<String>,
}
