// SPDX-License-Identifier: Apache-2.0
//! The answer to `pods`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A row of `pods`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PodRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) engine: String,
    /// What identified the engine.
    pub(crate) evidence: Vec<String>,
    pub(crate) state: String,
    /// A daemon of an earlier version does not list them.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) created_at: i64,
    pub(crate) created_time: Option<String>,
    pub(crate) containers: Vec<ContainerRow>,
}

impl PodRow {
    /// `NAMESPACE/NAME`, as other verbs take it; the ID of a pod without a name of its own.
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
#[serde(default)]
pub(crate) struct ContainerRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) pid: Option<u32>,
    /// Its record was lost, and it was found by the runtime's state.
    pub(crate) found: bool,
    #[serde(flatten)]
    pub(crate) times: Times,
}

/// When a container was created, started, exited and refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
