// SPDX-License-Identifier: Apache-2.0
//! Converts a container adjustment to edits of `config.json`, one area per file.
//!
//! The fields are applied in the reference's order: annotations, environment, arguments, hooks, CDI
//! devices, devices, cgroup path, OOM score, I/O priority, scheduler, seccomp, namespaces, sysctls, network
//! devices, memory policy, resources, classes, RDT, mounts, resource limits. Edits go to a copy, so the
//! first failure leaves the document as it was. A field that cannot be applied is refused by name (D23),
//! never skipped. Reference: NRI `pkg/runtime-tools/generate`; docs/nri-differences.md.

use std::collections::{BTreeMap, HashMap};

use oci_document::{DocumentError, Object, SpecDocument};
use protobuf::{EnumFull, EnumOrUnknown};
use serde_json::Value;

use nri_adaptation::keys::destination as clean;

use crate::error::{Error, quoted};
use crate::plugin::api;

mod annotations;
mod devices;
mod hooks;
mod later;
mod linux;
mod memory_policy;
mod mounts;
mod net_devices;
mod process;
mod propagation;
mod rdt;
mod resolved;
pub(super) mod resources;
mod scheduling;
mod seccomp;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use annotations::is_acted_on;
pub(crate) use later::patch_exec;
pub use later::patch_later_process;
pub(crate) use mounts::field_of as mount_field;
pub use propagation::{HostFacts, HostMounts, propagating_sources};
pub use resolved::{CdiDevice, Resolved};
pub(crate) use resolved::{Class, is_plain_path};

/// The result of applying an adjustment to a document.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchedSpec {
    /// The new document; `None` when nothing changed.
    pub bytes: Option<Vec<u8>>,
    /// The changes, in order.
    pub changes: Vec<SpecChange>,
}

/// One changed value.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecChange {
    /// Path in config.json: `process.env[PATH]`, `mounts[/data]`, `linux.resources.cpu.cpus`.
    pub field: String,
    /// NRI's field, as the owner table names it (D25): `Env[PATH]`, `CPUSetCPUs`.
    pub nri_field: String,
    /// The value before.
    pub before: Option<Value>,
    /// The value now.
    pub after: Option<Value>,
}

/// A result that fails with the reason why an adjustment cannot be applied.
pub(crate) type Result<T, E = PatchError> = std::result::Result<T, E>;

/// The reason why an adjustment cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The document cannot be edited as required.
    #[error(transparent)]
    SpecDocument(#[from] DocumentError),
    /// An NRI field that this version does not apply.
    #[error("{} is set, but this version of nri-runc cannot apply it", quoted(field))]
    NotApplied {
        /// The NRI field, as in D25.
        field: String,
    },
    /// A value that no runtime accepts, or that must not reach one.
    #[error("{} cannot be applied: {problem}", quoted(field))]
    Invalid {
        /// The NRI field, as in D25.
        field: String,
        /// The reason.
        problem: String,
    },
}

impl PatchError {
    fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    /// Returns the NRI field that cannot be applied, as the owner table names it.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::SpecDocument(_) => None,
            Self::NotApplied { field } | Self::Invalid { field, .. } => Some(field),
        }
    }
}

impl From<PatchError> for Error {
    fn from(error: PatchError) -> Self {
        Self::new(error.to_string())
    }
}

/// Applies `adjustment` to the config.json in `document`, for a host with these `facts`.
pub fn patch_on(
    document: &[u8],
    adjustment: &api::ContainerAdjustment,
    facts: &HostFacts,
) -> Result<PatchedSpec> {
    let (patched, doubts) = patch_anyway(document, adjustment, facts)?;
    match doubts.into_iter().next() {
        Some(doubt) => Err(doubt),
        None => Ok(patched),
    }
}

/// Like [`patch_on`], but also applies values that the kernel or runtime will probably refuse, and returns the
/// reason for each. Callers other than [`patch_on`] only show the document.
pub fn patch_anyway(
    document: &[u8],
    adjustment: &api::ContainerAdjustment,
    facts: &HostFacts,
) -> Result<(PatchedSpec, Vec<PatchError>)> {
    let api::ContainerAdjustment {
        annotations,
        mounts,
        env,
        hooks,
        linux,
        rlimits,
        CDI_devices: cdi_devices,
        args,
        special_fields: _,
    } = adjustment;
    if *adjustment == api::ContainerAdjustment::default() {
        // Even an invalid document is accepted here, because the runtime refuses it.
        return Ok((PatchedSpec { bytes: None, changes: Vec::new() }, Vec::new()));
    }
    let mut document = SpecDocument::parse(document)?;
    let mut patch = Patch { root: document.root(), changes: Changes::default(), facts };
    annotations::patch(&mut patch, annotations)?;
    process::patch_env(&mut patch, env)?;
    process::patch_args(&mut patch, args)?;
    if let Some(hooks) = hooks.as_ref() {
        hooks::patch(&mut patch, hooks)?;
    }
    resolved::patch_cdi(&mut patch, cdi_devices)?;
    if let Some(linux) = linux.as_ref() {
        linux::patch(&mut patch, linux)?;
    }
    mounts::patch(&mut patch, mounts)?;
    process::patch_rlimits(&mut patch, rlimits)?;
    let Changes(changes, doubts) = patch.changes;
    let bytes = (!changes.is_empty()).then(|| document.to_bytes());
    Ok((PatchedSpec { bytes, changes }, doubts))
}

struct Patch<'p, 't> {
    root: &'p mut Object<'t>,
    changes: Changes,
    facts: &'p HostFacts,
}

/// The changes so far, and the values among them that a runtime probably refuses.
#[derive(Debug, Default)]
struct Changes(Vec<SpecChange>, Vec<PatchError>);

impl Changes {
    /// Records a value that was applied but will probably be refused.
    fn doubt(&mut self, field: &str, checked: Result<(), impl Into<String>>) {
        self.1.extend(checked.err().map(|problem| PatchError::invalid(field, problem)));
    }

    fn note(
        &mut self,
        field: impl Into<String>,
        nri_field: impl Into<String>,
        before: Option<Value>,
        after: Option<Value>,
    ) {
        let (field, nri_field) = (field.into(), nri_field.into());
        self.0.push(SpecChange { field, nri_field, before, after });
    }

    /// Sets a member, unless it already has the value.
    fn set(
        &mut self,
        object: &mut Object<'_>,
        key: &str,
        value: Value,
        names: (&str, &str),
    ) -> Result<(), DocumentError> {
        let before = object.value(key)?;
        if before.as_ref() != Some(&value) {
            object.set(key, &value)?;
            self.note(names.0, names.1, before, Some(value));
        }
        Ok(())
    }

    /// Removes a member, if it exists.
    fn remove(
        &mut self,
        object: &mut Object<'_>,
        key: &str,
        names: (&str, &str),
    ) -> Result<(), DocumentError> {
        if let Some(before) = object.value(key)? {
            object.remove(key)?;
            self.note(names.0, names.1, Some(before), None);
        }
        Ok(())
    }

    /// Sets a member, or removes it if there is no value.
    fn put(
        &mut self,
        object: &mut Object<'_>,
        key: &str,
        value: Option<Value>,
        names: (&str, &str),
    ) -> Result<(), DocumentError> {
        match value {
            Some(value) => self.set(object, key, value, names),
            None => self.remove(object, key, names),
        }
    }
}

/// Returns the key without its removal mark, and whether it had the mark.
fn unmark(key: &str) -> (&str, bool) {
    match key.strip_prefix('-') {
        Some(name) => (name, true),
        None => (key, false),
    }
}

/// Returns the wanted value of each key of a map with removal marks, in a fixed order. A key that
/// is both removed and set is set, because plugins replace each other's values in this way.
fn wanted_by_key<V>(
    map: &HashMap<String, V>,
    to_json: impl Fn(&V) -> Value,
) -> BTreeMap<&str, Option<Value>> {
    let mut wanted: BTreeMap<&str, Option<Value>> = BTreeMap::new();
    for (key, value) in map {
        let (name, is_removal) = unmark(key);
        let entry = wanted.entry(name).or_default();
        if !is_removal {
            *entry = Some(to_json(value));
        }
    }
    wanted
}

/// Sets and removes members of a map; `names` are the prefixes of the changes' names.
fn patch_map(
    object: &mut Object<'_>,
    wanted: &BTreeMap<&str, Option<Value>>,
    names: (&str, &str),
    changes: &mut Changes,
) -> Result<()> {
    for (key, value) in wanted {
        let field = format!("{}[{key}]", names.0);
        let nri_field = format!("{}[{key}]", names.1);
        changes.put(object, key, value.clone(), (&field, &nri_field))?;
    }
    Ok(())
}

/// Returns the name of an enumeration's value, which is also OCI's name. An unknown number (of a
/// newer NRI) is refused, because it would become an absent member, or a removal.
fn known<E: EnumFull>(field: &str, what: &str, value: EnumOrUnknown<E>) -> Result<(E, Value)> {
    let value = value
        .enum_value()
        .map_err(|number| PatchError::invalid(field, format!("{number} is an unknown {what}")))?;
    Ok((value, Value::from(value.descriptor().name())))
}

/// Returns the names of a list of enumeration values.
fn all_known<E: EnumFull>(field: &str, values: &[EnumOrUnknown<E>]) -> Result<Value> {
    values.iter().map(|value| known(field, "flag", *value).map(|(_, name)| name)).collect()
}

/// Builds an object of these members, without those that are absent: `null`, empty strings and empty lists.
fn object_of<const N: usize>(members: [(&str, Value); N]) -> Value {
    let is_absent = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
    };
    members.into_iter().filter(|(_, value)| !is_absent(value)).collect()
}

/// Returns a number; `null` for zero, which means absent.
fn nonzero<T: Into<Value> + Default + PartialEq>(number: T) -> Value {
    Some(number).filter(|number| *number != T::default()).map_or(Value::Null, Into::into)
}
