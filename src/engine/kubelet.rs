// SPDX-License-Identifier: Apache-2.0
//! Kubelet's word on a pod: what it allocated to the containers. Data only.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What kubelet allocated to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocated {
    /// The DRA drivers of its claims.
    pub claims: BTreeSet<String>,
    /// Its extended resources.
    pub resources: BTreeSet<String>,
}

/// What kubelet allocated to the containers of a pod, by name.
pub(crate) type PodAllocations = BTreeMap<String, Allocated>;

/// Kubelet's word on a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Allocations {
    /// The pod is not kubelet's.
    #[default]
    None,
    /// Why it cannot be known.
    Unreadable(String),
    /// All of the pod's.
    Listed(PodAllocations),
}
