// SPDX-License-Identifier: Apache-2.0
//! The daemon's response to `drift`.

use serde::{Deserialize, Serialize};

/// The values that differ, and the reasons why others could not be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct DriftAnswer {
    pub(crate) drift: Vec<DriftRow>,
    /// Lines about values or containers that could not be compared; may be shortened.
    pub(crate) unread: Vec<String>,
    /// The number of values that could be compared.
    pub(crate) compared: usize,
}

/// A value that is not in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct DriftRow {
    pub(crate) container_id: String,
    /// NRI's name of the field.
    pub(crate) field: String,
    pub(crate) owner: String,
    pub(crate) expected: String,
    pub(crate) actual: String,
    /// The process that wrote the value. The kernel names writers only for watched files, and only
    /// files of pods are watched.
    pub(crate) writer: Option<String>,
    pub(crate) file: String,
    /// Whether this is a value of the container's init process, which may have changed it itself.
    pub(crate) process: bool,
}
