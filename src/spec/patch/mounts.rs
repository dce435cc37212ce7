// SPDX-License-Identifier: Apache-2.0
//! Mounts.
//!
//! A new mount takes the place of all that had its destination. Only when something changed are
//! mounts brought into the reference's order, by depth and then by destination, in which parents
//! come before what is mounted beneath them. It never looks at a source: whether it exists is
//! for the runtime to say.
//! Reference: NRI `AdjustMounts`, but for BUG-G8 (docs/nri-differences.md).

use oci_spec::runtime::MountBuilder;
use serde_json::Value;

use super::{
    Changes, HostFacts, PatchError, clean, fragment, invalid_fragment, propagation, unmark,
};
use crate::plugin::api;
use crate::spec::array::Item;
use crate::spec::document::Object;

/// Applies the adjustment's mounts: a `-destination` removes, anything else adds or replaces.
pub(super) fn patch(
    root: &mut Object<'_>,
    mounts: &[api::Mount],
    facts: &HostFacts,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    if mounts.is_empty() {
        return Ok(());
    }
    let items = root.array("mounts")?.items();
    let mut placed: Vec<(String, Item<'_>)> = Vec::with_capacity(items.len() + mounts.len());
    for item in items.iter() {
        let destination = item.open("mounts[]")?.value("destination")?;
        let destination = destination.as_ref().and_then(Value::as_str).unwrap_or_default();
        placed.push((clean(destination), item.clone()));
    }
    let mut is_changed = false;
    for mount in mounts {
        is_changed |= place(&mut placed, mount, changes)?;
    }
    if !is_changed {
        return Ok(());
    }
    placed.sort_by(|(one, _), (other, _)| (depth(one), one).cmp(&(depth(other), other)));
    *items = placed.into_iter().map(|(_, item)| item).collect();
    for mount in mounts {
        propagation::patch(root, mount, facts, changes)?;
    }
    Ok(())
}

/// Applies one entry; tells whether it changed anything.
fn place(
    placed: &mut Vec<(String, Item<'_>)>,
    mount: &api::Mount,
    changes: &mut Changes,
) -> Result<bool, PatchError> {
    let (destination, is_removal) = unmark(&mount.destination);
    // Owned by the place that it means, however it is spelt.
    let cleaned = clean(destination);
    let nri_field = field_of(destination);
    if destination.is_empty() {
        return Err(PatchError::invalid(nri_field, "a mount needs a destination"));
    }
    let is_there = |(there, _): &&(String, Item<'_>)| *there == cleaned;
    let count = placed.iter().filter(is_there).count();
    // The last of several mounts at one place is the one that is seen.
    let before = placed.iter().rfind(is_there).map(|(_, item)| item.value());
    let after = if is_removal { None } else { Some(mount_value(&nri_field, mount)?) };
    if count <= 1 && before == after {
        return Ok(false);
    }
    placed.retain(|(there, _)| *there != cleaned);
    if let Some(value) = &after {
        placed.push((cleaned, Item::new(value)));
    }
    changes.note(format!("mounts[{destination}]"), nri_field, before, after);
    Ok(true)
}

fn mount_value(nri_field: &str, mount: &api::Mount) -> Result<Value, PatchError> {
    let api::Mount { destination, type_, source, options, special_fields: _ } = mount;
    if [destination, type_, source].into_iter().chain(options).any(|word| word.contains('\0')) {
        return Err(PatchError::invalid(nri_field, "it contains NUL"));
    }
    let mut builder = MountBuilder::default().destination(destination.as_str());
    if !type_.is_empty() {
        builder = builder.typ(type_.as_str());
    }
    if !source.is_empty() {
        builder = builder.source(source.as_str());
    }
    if !options.is_empty() {
        builder = builder.options(options.clone());
    }
    let mount = builder.build().map_err(|error| invalid_fragment(nri_field, &error))?;
    fragment(nri_field, &mount)
}

/// The NRI field of the mount at `destination`, as its owner is found by (D25).
pub fn field_of(destination: &str) -> String {
    let place = if destination.is_empty() { String::new() } else { clean(destination) };
    format!("Mounts[{place}]")
}

fn depth(destination: &str) -> usize {
    if destination == "/" { 0 } else { destination.matches('/').count() }
}
