// SPDX-License-Identifier: Apache-2.0
//! The records of pods and containers.
//!
//! The store is the daemon's only memory. An intended change is on disk before the daemon acts on
//! it, and a past event as soon as it can be written, so that a SIGKILL loses nothing. This module
//! never communicates with plugins or examines a process.

mod compact;
mod disk;
mod index;
mod notes;
mod remembered;
mod store;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::PodAllocations;
use crate::files::{self, Original};
use crate::limits;
use crate::mark::{self, ExecSubject, Mark, ProcessValue};
use crate::named::named;

pub(crate) use notes::{
    Change, ChangedMember, EVICTION, ExecChange, GaveWay, HiddenFrom, InFlight, Patched,
    PendingUpdate, Promise, RepeatedValue, RuleHit, Skipped, Updating, WouldInject,
};

pub(crate) use compact::CompactObject;
pub use store::Store;
pub(crate) use wire::Wire;

/// Version of the records on disk. Of a record of the next version, the known members are read and
/// the others are kept; a record of any other version is set aside.
pub(crate) const SCHEMA: u32 = 1;

/// The verb of an [`InFlight`] call that starts a created container.
pub(crate) const START: &str = "start";

/// A container as the runtime knows it: IDs are unique only below one runtime root.
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
        /// The runtime has deleted it.
        Removed => "removed",
    }

    /// The state of a pod.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PodState {
        /// The pod's sandbox is being made; plugins have not been notified.
        #[default]
        Created => "created",
        /// RunPodSandbox was sent.
        Ready => "ready",
        /// StopPodSandbox was sent.
        Stopped => "stopped",
    }
}

/// Everything about one incarnation of a container (decision D17).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Schema of this record on disk.
    pub schema: u32,
    /// Boot in which the record was written; in another boot it has no meaning.
    pub boot_id: String,
    /// Root and id.
    pub key: ContainerKey,
    /// Number that distinguishes containers with the same ID.
    pub incarnation: u64,
    /// The real runtime.
    pub runtime: String,
    /// Arguments between argv[0] and the verb, for calling the runtime again.
    pub global_flags: Vec<String>,
    /// The bundle directory, absolute.
    pub bundle: String,
    /// Whether the container is its pod's infrastructure container, about which no container event is sent.
    pub is_sandbox: bool,
    /// The ID of its pod.
    pub pod: String,
    /// The name of its pod, for `explain`, because the pod's record may be removed earlier.
    #[serde(default)]
    pub pod_name: String,
    /// The namespace of its pod, for the same reason.
    #[serde(default)]
    pub pod_namespace: String,
    /// The container's name in the pod.
    pub name: String,
    /// The container's state.
    pub state: Lifecycle,
    /// The path of `--pid-file`, absolute.
    pub pid_file: Option<String>,
    /// Whether an OCI hook reported it, so that no wrapper reports its start.
    #[serde(default)]
    pub by_hook: bool,
    /// PID of the init process, once known.
    pub init_pid: Option<u32>,
    /// Init's start time in clock ticks since boot, which distinguishes it from a later process of that PID.
    pub init_start: Option<u64>,
    /// When the runtime created it: Unix time in nanoseconds, 0 before.
    #[serde(default)]
    pub created_at: i64,
    /// When its process was started: Unix time in nanoseconds, 0 if never.
    #[serde(default)]
    pub started_at: i64,
    /// When its process exited: Unix time in nanoseconds, 0 if not.
    #[serde(default)]
    pub finished_at: i64,
    /// The exit code, if known.
    pub exit_code: Option<i32>,
    /// Why its process no longer runs, in the CRI's words, if known.
    #[serde(default)]
    pub status_reason: String,
    /// A message for operators.
    #[serde(default)]
    pub status_message: String,
    /// The engine.
    pub engine: String,
    /// The evidence for the engine.
    pub evidence: Vec<String>,
    /// The engine's variables in the call that created it.
    pub variables: Vec<(String, String)>,
    /// The NRI message as plugins last received it.
    pub message: Wire,
    /// The engine's own resources (E).
    pub engine_resources: CompactObject,
    /// The resources that plugins own (O).
    pub overlay: Map<String, Value>,
    /// The part of the overlay that plugins set when the container was created.
    #[serde(default)]
    pub at_creation: Map<String, Value>,
    /// The owners: fields with their plugins, such as `Env[PATH]` with `10-foo`.
    pub owners: BTreeMap<String, String>,
    /// The document put in the bundle, if there is one.
    pub patched: Option<Patched>,
    /// The plugins' changes.
    pub changes: Vec<Change>,
    /// Members of the patched document that another wrapper changed afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_behind: Vec<ChangedMember>,
    /// The values that `exec` applies, if the list of changes is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_values: Option<Vec<ProcessValue>>,
    /// The resctrl group that its creation makes, if it did not exist before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub makes_group: Option<String>,
    /// Facts that a wrapper needs for `exec`, while each `exec` involves the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_subject: Option<Box<ExecSubject>>,
    /// Why the container was refused; empty if it was not.
    pub refused: Vec<String>,
    /// Time of the last refusal: Unix time in nanoseconds, 0 if there was none.
    #[serde(default)]
    pub refused_at: i64,
    /// Skipped plugins, and values that were not applied.
    pub skipped: Vec<Skipped>,
    /// Changes that were made although a rule in audit mode would refuse them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_refuse: Vec<RuleHit>,
    /// Values that injections in audit mode would have set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_inject: Vec<WouldInject>,
    /// Values that injections left to the container or to other owners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gave_way: Vec<GaveWay>,
    /// The promises that apply to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<Promise>,
    /// Values that the engine repeats and that do not take effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeated: Vec<RepeatedValue>,
    /// The latest processes that `exec` started and plugins changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exec_changes: Vec<ExecChange>,
    /// The plugins from which rules hid it when it was created, or when they connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_from: Vec<HiddenFrom>,
    /// The verb in progress.
    pub in_flight: Option<InFlight>,
    /// Updates that wait for its creation or start.
    #[serde(default)]
    pub deferred: Vec<PendingUpdate>,
    /// The `update` in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updating: Option<Box<Updating>>,
    /// The PID of the `delete` in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting: Option<u32>,
    /// Whether the runtime has deleted it while its engine keeps it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
    /// The PID of the call that made it.
    #[serde(default)]
    pub made_by: u32,
    /// Whether the container was found in the runtime's state after its record was lost; the
    /// plugins' changes are then unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_found: bool,
    /// Whether the plain runtime made it, so that none of its commands reaches the daemon (D65).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_plain_runtime: bool,
    /// Members that a newer version wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl Container {
    /// Records the reason and time of a refusal; only the latest reasons are kept.
    pub fn refuse(&mut self, why: String, at: i64) {
        limits::keep_latest(&mut self.refused, why, limits::REFUSALS);
        self.refused_at = at;
    }

    /// Whether the runtime made it. If the creation failed, an earlier container of its ID may still exist.
    pub fn was_made(&self) -> bool {
        self.init_pid.is_some() || self.started_at != 0
    }

    /// Whether plugins are being asked about its start, or its runtime is starting it.
    pub fn is_starting(&self) -> bool {
        let starts = |flight: &InFlight| flight.verb == START;
        self.state == Lifecycle::Created && self.in_flight.as_ref().is_some_and(starts)
    }

    /// The mark for `exec` and `kill`; `None` if they need none, or none of its processes runs.
    pub fn mark(&self) -> Option<Mark> {
        if matches!(self.state, Lifecycle::Stopped | Lifecycle::Removed) {
            return None;
        }
        let values = match &self.process_values {
            Some(values) => values.clone(),
            None => {
                let changes = self.changes.iter();
                let changes = changes.map(|c| (c.field.as_str(), &c.before, &c.after));
                mark::process_values(changes)
            }
        };
        let ContainerKey { root, id } = self.key.clone();
        let subject = self.exec_subject.as_deref().cloned();
        let is_needed = self.is_sandbox || !values.is_empty() || subject.is_some();
        is_needed.then_some(Mark { root, id, is_sandbox: self.is_sandbox, values, subject })
    }

    /// The directory of its document.
    pub fn folder(&self) -> &str {
        let folder = self.patched.as_ref().map(|patched| patched.folder.as_str());
        folder.filter(|folder| !folder.is_empty()).unwrap_or(&self.bundle)
    }

    /// Whether `there` is the document that was put in place for this container. Its content
    /// decides, because a file may be edited in place, and an inode may be reused.
    pub fn is_patched_document(&self, there: &Original) -> bool {
        let Some(patched) = &self.patched else { return false };
        if patched.fingerprint.is_empty() {
            // Earlier versions recorded only the inode; then a file that was written after the
            // container's creation counts as edited.
            let is_older = self.created_at == 0 || there.modified <= self.created_at;
            return patched.inode == there.inode && is_older;
        }
        patched.fingerprint == files::fingerprint(&there.bytes)
    }
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Schema of this record.
    pub schema: u32,
    /// Boot in which the record was written.
    pub boot_id: String,
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Namespace, empty without Kubernetes.
    pub namespace: String,
    /// Uid.
    pub uid: String,
    /// Engine.
    pub engine: String,
    /// The evidence for the engine.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// PID of its infrastructure container, once known.
    #[serde(default)]
    pub pid: u32,
    /// A path that exists as long as the pod does, for a pod whose end no call marks.
    pub lives_with: Option<String>,
    /// Whether an untrusted party may have written the namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_unproven_namespace: bool,
    /// Whether a tenant may have written facts that rules examine: the namespace, or the engine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_doubtful: bool,
    /// Whether a trusted source puts it in an exempt namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_exempt: bool,
    /// The pod's state.
    pub state: PodState,
    /// The pod's infrastructure container, if it has one.
    pub sandbox: Option<ContainerKey>,
    /// The NRI message.
    pub message: Wire,
    /// Why the pod was refused; empty if it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Plugins that did not answer RunPodSandbox: skipped ones, and required ones that were not asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// The promises about the whole pod, at RunPodSandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<Promise>,
    /// Kubelet's allocations to its containers, if a promise depends on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<PodAllocations>,
    /// The contents of its cgroup's limit files, as plugins know them, by name. Empty if the pod's cgroup is not
    /// kubelet's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    /// The limits that a process other than kubelet has written.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign_limits: BTreeSet<String>,
    /// The plugins from which rules hid it when it was announced, or when they connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_from: Vec<HiddenFrom>,
    /// Members that a newer version wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}
