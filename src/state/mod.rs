// SPDX-License-Identifier: Apache-2.0
//! The records of pods and containers.
//!
//! The store is the daemon's only list of pods and containers. An intended change is on disk before
//! the daemon acts on it, and a past event as soon as it can be written, so that a SIGKILL loses
//! nothing that the disk accepted. This module never communicates with plugins or examines a process.

mod compact;
mod container;
mod disk;
mod index;
mod notes;
mod remembered;
mod store;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::{EngineName, PodAllocations};
use crate::named::named;

pub(crate) use notes::{
    Change, ChangedMember, EVICTION, ExecChange, GaveWay, HiddenFrom, InFlight, Patched,
    PendingUpdate, Promise, RepeatedValue, RuleHit, Skipped, Updating, WouldInject,
};

pub(crate) use compact::CompactObject;
pub use container::Container;
pub(crate) use container::{Pending, Process, RuntimeCall};
pub use store::Store;
pub(crate) use wire::Wire;

/// Version of the records on disk. Of a record of the next version, the known members are read and
/// the others are kept; a record of any other version is set aside.
pub(crate) const SCHEMA: u32 = 1;

/// The verb of an [`InFlight`] call that starts a created container.
pub(crate) const START: &str = "start";

/// Identifies a container: its ID is unique only below one runtime root.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerKey {
    /// The runtime's state directory, `--root` or its default.
    pub root: String,
    /// The id on the command line.
    pub id: String,
}

named! {
    /// The state of a container, with its name in `nri-runc nri pods --json`.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Lifecycle {
        /// Plugins are being asked, or the runtime is creating it.
        #[default]
        Creating => "creating",
        /// The runtime has created it.
        Created => "created",
        /// The container's process was started.
        Running => "running",
        /// The container's process has exited.
        Stopped => "stopped",
        /// The runtime has deleted it, or never created it.
        Removed => "removed",
    }

    /// The state of a pod.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PodState {
        /// RunPodSandbox is not sent yet, or was refused and the engine keeps the pod: the next create sends it again.
        #[default]
        Created => "created",
        /// RunPodSandbox is being or was sent, or plugins receive the pod by Synchronize.
        Ready => "ready",
        /// StopPodSandbox was sent.
        Stopped => "stopped",
    }
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Schema of this record.
    pub schema: u32,
    /// Boot in which the record was written.
    pub boot_id: String,
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Namespace; on engines without pods a default if none is set.
    pub namespace: String,
    /// UID.
    pub uid: String,
    /// Engine.
    pub(crate) engine: EngineName,
    /// The evidence for the engine.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// PID of its infrastructure container, or of one of its containers on engines without pods; 0 if unknown.
    #[serde(default)]
    pub pid: u32,
    /// A path that exists as long as the pod does, for a pod whose end no command reports.
    pub lives_with: Option<String>,
    /// Whether the namespace is a default, or an untrusted party may have written it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_unproven_namespace: bool,
    /// Whether rules must doubt the pod: a tenant may have determined its engine or written its namespace,
    /// or the namespace is missing. A default namespace is not doubtful.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_doubtful: bool,
    /// Whether a trusted source puts it in a namespace that is exempt from required plugins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_exempt: bool,
    /// The pod's state.
    pub state: PodState,
    /// The pod's infrastructure container, if it has one.
    pub sandbox: Option<ContainerKey>,
    /// The part of its NRI message that the other members of the record do not contain.
    pub message: Wire,
    /// The latest refusals of RunPodSandbox, and of resizes, which are in force nevertheless; empty if there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Plugins that did not answer RunPodSandbox: skipped ones, and required ones that are missing or not yet
    /// asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// The promises about the whole pod, at RunPodSandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<Promise>,
    /// Kubelet's allocations to its containers, if a promise depends on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<PodAllocations>,
    /// The contents of its cgroup's limit files, by name, with which later contents are compared. Empty if the
    /// pod's cgroup is not kubelet's, or does not exist yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    /// The limit files that a process other than kubelet has written, until kubelet alone writes them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign_limits: BTreeSet<String>,
    /// The plugins from which rules hid it when it was announced, or when they connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_from: Vec<HiddenFrom>,
    /// Members that a newer version wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}
