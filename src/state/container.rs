// SPDX-License-Identifier: Apache-2.0
//! A container's record consists of parts. On disk, the members of the parts are members of the
//! record itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::EngineName;
use crate::files::{self, Original};
use crate::limits;
use crate::mark::{self, ExecSubject, Mark, ProcessValue};

use super::{
    Change, ChangedMember, CompactObject, ContainerKey, ExecChange, GaveWay, HiddenFrom, InFlight,
    Lifecycle, Patched, PendingUpdate, Promise, RepeatedValue, RuleHit, START, Skipped, Updating,
    Wire, WouldInject,
};

/// Defines a record of parts, its parts, and [`OnDisk`], in which the members of all parts are on
/// one level: serde reads flattened parts at half the speed, and a starting daemon reads thousands
/// of records.
macro_rules! record {
    (
        $(#[$about:meta])*
        pub struct $Record:ident {
            $($(#[$own_meaning:meta])* $vis:vis $own:ident: $Own:ty,)+
        }
        $(
            $(#[$part_meaning:meta])*
            $part:ident: pub struct $Part:ident {
                $($(#[$meaning:meta])* pub $member:ident: $Type:ty,)+
            }
        )+
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(from = "OnDisk")]
        pub struct $Record {
            $($(#[$own_meaning])* $vis $own: $Own,)+
            $($(#[$part_meaning])* #[serde(flatten)] pub $part: $Part,)+
        }

        $(
            $(#[$part_meaning])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize)]
            pub struct $Part {
                $($(#[$meaning])* pub $member: $Type,)+
            }
        )+

        /// A record as it is read.
        #[derive(Deserialize)]
        struct OnDisk {
            $($(#[$own_meaning])* $own: $Own,)+
            $($($(#[$meaning])* $member: $Type,)+)+
        }

        impl From<OnDisk> for $Record {
            fn from(disk: OnDisk) -> Self {
                Self {
                    $($own: disk.$own,)+
                    $($part: $Part { $($member: disk.$member),+ },)+
                }
            }
        }
    };
}

record! {
    /// Everything about one incarnation of a container (decision D17).
    pub struct Container {
        /// Schema of this record on disk.
        pub schema: u32,
        /// Boot in which the record was written; in another boot it has no meaning.
        pub boot_id: String,
        /// Root and id.
        pub key: ContainerKey,
        /// Number that distinguishes containers with the same ID.
        pub incarnation: u64,
        /// The container's name in the pod.
        pub name: String,
        /// The ID of its pod.
        pub pod: String,
        /// The name of its pod, for `explain`, because the pod's record may be removed earlier.
        #[serde(default)]
        pub pod_name: String,
        /// The namespace of its pod, for the same reason.
        #[serde(default)]
        pub pod_namespace: String,
        /// Whether the container is its pod's infrastructure container, about which no container
        /// event is sent.
        pub is_sandbox: bool,
        /// The engine.
        pub(crate) engine: EngineName,
        /// The evidence for the engine.
        pub evidence: Vec<String>,
        /// The part of its NRI message that the other members of the record do not contain.
        pub message: Wire,
        /// The container's state.
        pub state: Lifecycle,
        /// Whether an OCI hook reported its creation; then no wrapper reports its start.
        #[serde(default)]
        pub by_hook: bool,
        /// Whether the runtime has deleted it while its engine keeps it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub is_deleted: bool,
        /// Whether the container was found in the runtime's state after its record was lost; the
        /// plugins' changes are then unknown.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub is_found: bool,
        /// Whether the plain runtime made it, so that none of its commands reaches the daemon
        /// (D65).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub by_plain_runtime: bool,
        /// Members that a newer version wrote.
        #[serde(flatten)]
        pub unknown: Map<String, Value>,
    }

    /// How the runtime was called to create a container.
    call: pub struct RuntimeCall {
        /// The real runtime.
        pub runtime: String,
        /// Arguments between argv[0] and the verb, for calling the runtime again.
        pub global_flags: Vec<String>,
        /// The bundle directory, absolute.
        pub bundle: String,
        /// The path of `--pid-file`, absolute.
        pub pid_file: Option<String>,
        /// The environment variables of the call that its engine or runtime needs.
        pub variables: Vec<(String, String)>,
        /// The PID of the call's process.
        #[serde(default)]
        pub made_by: u32,
    }

    /// A container's init process. Times are Unix times in nanoseconds.
    process: pub struct Process {
        /// PID of the init process, once known.
        pub init_pid: Option<u32>,
        /// Init's start time in clock ticks since boot, which distinguishes it from a later process
        /// of that PID.
        pub init_start: Option<u64>,
        /// When the runtime created it.
        #[serde(default, with = "zero_for_none")]
        pub created_at: Option<i64>,
        /// When it was started.
        #[serde(default, with = "zero_for_none")]
        pub started_at: Option<i64>,
        /// When it exited.
        #[serde(default, with = "zero_for_none")]
        pub finished_at: Option<i64>,
        /// The exit code, if known.
        pub exit_code: Option<i32>,
        /// Why it no longer runs, in the CRI's words, if known.
        #[serde(default)]
        pub status_reason: String,
        /// A message for operators.
        #[serde(default)]
        pub status_message: String,
    }

    /// A container's resources.
    resources: pub struct Resources {
        /// The engine's own resources.
        #[serde(rename = "engine_resources")]
        pub of_engine: CompactObject,
        /// The resources that plugins and injections own.
        pub overlay: Map<String, Value>,
        /// The part of the overlay that was set when the container was created.
        #[serde(default)]
        pub at_creation: Map<String, Value>,
        /// The owners: fields, such as `Env[PATH]`, with their plugin (`10-foo`) or injection.
        pub owners: BTreeMap<String, String>,
    }

    /// The decisions about a container.
    outcome: pub struct Outcome {
        /// The document that replaces the engine's, if there is one.
        pub patched: Option<Patched>,
        /// The changes that plugins and injections made.
        pub changes: Vec<Change>,
        /// Members of the patched document that another wrapper changed afterwards.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub changed_behind: Vec<ChangedMember>,
        /// The values that `exec` applies; `None` if `changes` suffices to compute them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub process_values: Option<Vec<ProcessValue>>,
        /// The resctrl group that its creation makes, if it did not exist before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub makes_group: Option<String>,
        /// Facts that a wrapper needs for `exec`; set as long as each `exec` involves the daemon.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exec_subject: Option<Box<ExecSubject>>,
        /// The latest refusals of commands on the container: of its creation and start, and also of updates and
        /// `exec`s of a running container. Empty if none was refused.
        pub refused: Vec<String>,
        /// Time of the last refusal: Unix time in nanoseconds.
        #[serde(default, with = "zero_for_none")]
        pub refused_at: Option<i64>,
        /// Skipped plugins, values that were not applied, rejected claims about the pod, and commands that
        /// bypassed the daemon.
        pub skipped: Vec<Skipped>,
        /// Changes that were made although a rule in audit mode would refuse them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub would_refuse: Vec<RuleHit>,
        /// Values that injections in audit mode would have set.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub would_inject: Vec<WouldInject>,
        /// Values that injections did not set, because the container or another owner has set them.
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
    }

    /// A container's calls in progress, and updates that wait.
    pending: pub struct Pending {
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
    }
}

impl Container {
    /// Records the reason and time of a refusal; only the latest reasons are kept.
    pub fn refuse(&mut self, why: String, at: i64) {
        limits::keep_latest(&mut self.outcome.refused, why, limits::REFUSALS);
        self.outcome.refused_at = Some(at);
    }

    /// Whether the runtime made the container. If not, a container of this ID that the runtime has
    /// is an earlier one.
    pub fn was_made(&self) -> bool {
        self.process.init_pid.is_some() || self.process.started_at.is_some()
    }

    /// Whether plugins are being asked about its start, or its runtime is starting it.
    pub fn is_starting(&self) -> bool {
        let starts = |flight: &InFlight| flight.verb == START;
        self.state == Lifecycle::Created && self.pending.in_flight.as_ref().is_some_and(starts)
    }

    /// Returns the mark for `exec` and `kill`; `None` if none is needed, or the container has
    /// stopped.
    pub fn mark(&self) -> Option<Mark> {
        if matches!(self.state, Lifecycle::Stopped | Lifecycle::Removed) {
            return None;
        }
        let values = match &self.outcome.process_values {
            Some(values) => values.clone(),
            None => {
                let changes = self.outcome.changes.iter();
                let changes = changes.map(|c| (c.field.as_str(), &c.before, &c.after));
                mark::process_values(changes)
            }
        };
        let ContainerKey { root, id } = self.key.clone();
        let subject = self.outcome.exec_subject.as_deref().cloned();
        let is_needed = self.is_sandbox || !values.is_empty() || subject.is_some();
        is_needed.then_some(Mark { root, id, is_sandbox: self.is_sandbox, values, subject })
    }

    /// Returns the directory of its document.
    pub fn folder(&self) -> &str {
        let folder = self.outcome.patched.as_ref().map(|patched| patched.folder.as_str());
        folder.filter(|folder| !folder.is_empty()).unwrap_or(&self.call.bundle)
    }

    /// Whether `there` is the document that was put in place for this container. Its content
    /// decides, because a file may be edited in place, and an inode may be reused.
    pub fn is_patched_document(&self, there: &Original) -> bool {
        let Some(patched) = &self.outcome.patched else { return false };
        if patched.fingerprint.is_empty() {
            // Earlier versions recorded only the inode; then a file that was written after the
            // container's creation is treated as edited.
            let is_older = self.process.created_at.is_none_or(|created| there.modified <= created);
            return patched.inode == there.inode && is_older;
        }
        patched.fingerprint == files::fingerprint(&there.bytes)
    }
}

/// A time on disk: 0 for none.
mod zero_for_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes a reference to the member")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<i64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.unwrap_or(0).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<i64>, D::Error> {
        i64::deserialize(deserializer).map(|time| (time != 0).then_some(time))
    }
}
