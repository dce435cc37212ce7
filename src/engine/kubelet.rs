// SPDX-License-Identifier: Apache-2.0
//! Kubelet's allocations to the containers of a pod. Data only.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Kubelet's allocations to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocated {
    /// The DRA drivers of the container's claims.
    pub claims: BTreeSet<String>,
    /// The container's extended resources.
    pub resources: BTreeSet<String>,
}

/// Kubelet's allocations to a pod's containers, by name.
pub(crate) type PodAllocations = BTreeMap<String, Allocated>;

/// The result of asking kubelet about a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Allocations {
    /// The pod is not kubelet's.
    #[default]
    None,
    /// The allocations are unknown, for this reason.
    Unreadable(String),
    /// All allocations to the pod.
    Listed(PodAllocations),
}
