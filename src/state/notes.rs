// SPDX-License-Identifier: Apache-2.0
//! Parts of the records of containers and pods: about plugins, promises, the document and the call
//! in progress. Data only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The name by which `explain` shows an eviction, as event and as field.
pub(crate) const EVICTION: &str = "eviction";

/// One change that a plugin or injection made, as `explain` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Change {
    /// Unix time in nanoseconds.
    pub at: i64,
    /// The event in which it was made.
    pub event: String,
    /// `NN-name`, or `inject:NAME`.
    pub plugin: String,
    /// Path in config.json.
    pub field: String,
    /// Value before; null when it was absent.
    pub before: Value,
    /// Value after; null when it was removed.
    pub after: Value,
}

/// A request of a plugin that was not carried out, or a plugin that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Skipped {
    /// `NN-name`.
    pub plugin: String,
    /// The reason, in one line.
    pub reason: String,
}

/// Separates the verb of a command that bypassed the daemon from the reason why the daemon was
/// unavailable.
const BYPASSED: &str = " bypassed the daemon: ";

impl Skipped {
    /// Creates the note of a command that ran without plugins, because the daemon was unavailable.
    pub fn bypassed(verb: &str, why: &str) -> Self {
        Self { plugin: String::new(), reason: format!("{verb}{BYPASSED}{why}") }
    }

    /// Whether this says that the container was created by a command that bypassed the daemon.
    pub fn is_bypassed_create(&self) -> bool {
        let verb = self.reason.split_once(BYPASSED).map(|(verb, _)| verb);
        self.plugin.is_empty()
            && verb.is_some_and(|verb| ["create", "run", "restore"].contains(&verb))
    }
}

/// A plugin's change that a rule in audit mode would refuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RuleHit {
    /// Unix time in nanoseconds of the first such change.
    pub at: i64,
    /// The event.
    pub event: String,
    /// `NN-name`.
    pub plugin: String,
    /// The field by NRI's name, or `Eviction`.
    pub field: String,
    /// The rule's name.
    pub rule: String,
}

/// A value that an injection in audit mode would have set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldInject {
    /// Unix time in nanoseconds.
    pub at: i64,
    /// `inject:NAME`.
    pub plugin: String,
    /// The field, as the owner table names it.
    pub field: String,
}

/// A value that an injection did not set because another value takes precedence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GaveWay {
    /// `inject:NAME`.
    pub plugin: String,
    /// The field, as the owner table names it.
    pub field: String,
    /// The owner of the other value; empty if it is the container's.
    pub to: String,
}

/// A process of `exec` that plugins changed. Values are not stored, because they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExecChange {
    /// Unix time in nanoseconds.
    pub at: i64,
    /// The program that the engine requested.
    pub program: String,
    /// Fields with the plugins that set them, such as `Env[PATH]` with `10-foo`.
    pub owners: BTreeMap<String, String>,
}

/// A value that the engine requests in updates while a plugin's value stays in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepeatedValue {
    /// Unix time in nanoseconds of the first such update.
    pub at: i64,
    /// Path below `linux.resources`.
    pub field: String,
    /// The engine's value.
    pub engine: Value,
    /// The plugin or injection that owns the field.
    pub plugin: String,
}

/// A promise (`[[require]]`) that applies to a container or a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The promise's name.
    pub promise: String,
    /// The required plugin, as `name` or `NN-name`.
    pub plugin: String,
    /// Why the promise applies.
    pub why: String,
    /// Whether containers are refused without the plugin.
    pub is_enforced: bool,
    /// The outcome; empty until it is known.
    #[serde(default)]
    pub result: String,
}

impl Promise {
    /// The plugin was connected, and no rule hid the pod from it.
    pub(crate) const MET: &str = "met";
    /// The promise was not met, and the container or pod was refused.
    pub(crate) const REFUSED: &str = "refused";
    /// The promise was not met, and the container was created because the promise is in audit mode.
    pub(crate) const WOULD_REFUSE: &str = "would_refuse";
}

/// A member of the document that differed from what the daemon wrote once the runtime had made the
/// container, because another wrapper changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangedMember {
    /// The member's path, as in plugins' changes.
    pub field: String,
    /// The change: `added`, `changed` or `removed`.
    pub change: String,
}

/// A plugin that receives nothing about a pod or container, and the rule that hides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HiddenFrom {
    /// `NN-name`.
    pub plugin: String,
    /// The rule's name.
    pub rule: String,
}

/// An update of a container that plugins requested.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PendingUpdate {
    /// The values to set, as OCI resources.
    pub part: Map<String, Value>,
    /// The block I/O class from which values come; `None` if plugins named none, empty for the empty class.
    pub blockio_class: Option<String>,
    /// The RDT class, likewise.
    pub rdt_class: Option<String>,
    /// Fields with the plugins that set them.
    pub owners: BTreeMap<String, String>,
    /// The event during which plugins requested the update.
    pub event: String,
}

impl PendingUpdate {
    /// Returns the length of the update in a record, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |text| text.len())
    }
}

/// A verb whose runtime process may still be running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// `create`, `start`, …
    pub verb: String,
    /// The wrapper's PID, which is the runtime's after exec.
    pub pid: u32,
    /// Whether the wrapper sent `EXEC`.
    pub executed: bool,
}

/// An `update` whose runtime may still be running: values that are in force once the runtime has
/// accepted it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Updating {
    /// The wrapper's PID, which is the runtime's after exec.
    pub pid: u32,
    /// Inode and time (seconds, nanoseconds) of the runtime's state file before the update.
    pub state_before: Option<(u64, i64, i64)>,
    /// The engine's resources after the update.
    pub engine: Map<String, Value>,
    /// The resources that plugins own after the update.
    pub overlay: Map<String, Value>,
    /// The owners after the update.
    pub owners: BTreeMap<String, String>,
    /// The changes for `explain`.
    pub changes: Vec<Change>,
    /// The classes of block I/O and RDT that plugins named.
    #[serde(default)]
    pub classes: (Option<String>, Option<String>),
}

/// The patched document in place of the engine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patched {
    /// Name of the document in the bundle.
    pub document: String,
    /// Name of the temporary file beside it.
    pub temporary: String,
    /// Inode of the patched file.
    pub inode: u64,
    /// Name of the file with the engine's document, in the folder `pristine`.
    pub pristine: String,
    /// The directory of the document, as the kernel reports it; empty in records of versions that
    /// assumed the bundle.
    #[serde(default)]
    pub folder: String,
    /// Fingerprint of the patched file's content; empty in records of versions that compared
    /// inodes.
    #[serde(default)]
    pub fingerprint: String,
}
