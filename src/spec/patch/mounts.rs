// SPDX-License-Identifier: Apache-2.0
//! Applies mounts.
//!
//! A new mount replaces all mounts with the same destination. If anything changed, mounts are
//! sorted in the reference's order, by depth and then by destination, so that parents precede their
//! children. Sources are not checked, because the runtime reports missing ones. Reference: NRI
//! `AdjustMounts`, except for BUG-G8 (docs/nri-differences.md).

use std::collections::HashMap;

use oci_document::{Item, Object};
use serde_json::Value;

use super::{Changes, Patch, PatchError, Result, clean, object_of, propagation, unmark};
use crate::plugin::api;

/// Applies the adjustment's mounts: a `-destination` removes, anything else adds or replaces.
pub(super) fn patch(patch: &mut Patch<'_, '_>, mounts: &[api::Mount]) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let mut placed = Placed::take(patch.root)?;
    placed.apply(patch, mounts)?;
    placed.put_back(patch.root, |place| (depth(place), place.to_owned()))
}

/// A document's mounts while they are edited: read once and written once, for any number of
/// changes.
pub(super) struct Placed<'t> {
    /// Destination and mount; `None` for a removed one.
    mounts: Vec<Option<(String, Item<'t>)>>,
    by_place: HashMap<String, Vec<usize>>,
    is_changed: bool,
}

impl<'t> Placed<'t> {
    /// Takes the document's mounts out; the document has none until they are put back.
    pub(super) fn take(root: &mut Object<'t>) -> Result<Self> {
        let items = std::mem::take(root.array("mounts")?.items());
        let (mounts, by_place) = (Vec::with_capacity(items.len()), HashMap::new());
        let mut placed = Self { mounts, by_place, is_changed: false };
        for item in items {
            let destination = item.open("mounts[]")?.value("destination")?;
            let destination = destination.as_ref().and_then(Value::as_str).unwrap_or_default();
            placed.push(clean(destination), item);
        }
        Ok(placed)
    }

    /// Writes the mounts into the document, sorted by `order` if anything changed.
    pub(super) fn put_back<K: Ord>(
        self,
        root: &mut Object<'t>,
        order: impl Fn(&str) -> K,
    ) -> Result<()> {
        let mut mounts: Vec<_> = self.mounts.into_iter().flatten().collect();
        if self.is_changed {
            mounts.sort_by_cached_key(|(place, _)| order(place));
        }
        *root.array("mounts")?.items() = mounts.into_iter().map(|(_, item)| item).collect();
        Ok(())
    }

    /// Applies these mounts, and their propagation if any of them changed.
    pub(super) fn apply(&mut self, patch: &mut Patch<'_, 't>, mounts: &[api::Mount]) -> Result<()> {
        let mut is_changed = false;
        for mount in mounts {
            is_changed |= self.place(mount, &mut patch.changes)?;
        }
        self.is_changed |= is_changed;
        if is_changed {
            for mount in mounts {
                propagation::patch(patch, mount)?;
            }
        }
        Ok(())
    }

    /// Applies one mount; returns whether anything changed.
    fn place(&mut self, mount: &api::Mount, changes: &mut Changes) -> Result<bool> {
        let (destination, is_removal) = unmark(&mount.destination);
        // The owner is recorded under the normalized destination, however the plugin spells it.
        let cleaned = clean(destination);
        let nri_field = field_of(destination);
        if destination.is_empty() {
            return Err(PatchError::invalid(nri_field, "a mount needs a destination"));
        }
        let there = self.by_place.get(&cleaned).map(Vec::as_slice).unwrap_or_default();
        // If a destination has several mounts, the last one is visible.
        let last = there.last().and_then(|at| self.mounts.get(*at)?.as_ref());
        let before = last.map(|(_, item)| item.value());
        let after = if is_removal { None } else { Some(mount_value(&nri_field, mount)?) };
        if there.len() <= 1 && before == after {
            return Ok(false);
        }
        for at in self.by_place.remove(&cleaned).unwrap_or_default() {
            if let Some(mount) = self.mounts.get_mut(at) {
                *mount = None;
            }
        }
        if let Some(value) = &after {
            self.push(cleaned, Item::new(value));
        }
        changes.note(format!("mounts[{destination}]"), nri_field, before, after);
        Ok(true)
    }

    fn push(&mut self, place: String, item: Item<'t>) {
        self.by_place.entry(place.clone()).or_default().push(self.mounts.len());
        self.mounts.push(Some((place, item)));
    }
}

fn mount_value(nri_field: &str, mount: &api::Mount) -> Result<Value> {
    let api::Mount { destination, type_, source, options, special_fields: _ } = mount;
    if [destination, type_, source].into_iter().chain(options).any(|word| word.contains('\0')) {
        return Err(PatchError::invalid(nri_field, "it contains NUL"));
    }
    Ok(object_of([
        ("destination", destination.as_str().into()),
        ("type", type_.as_str().into()),
        ("source", source.as_str().into()),
        ("options", options.as_slice().into()),
    ]))
}

/// Returns the NRI field of the mount at `destination`, under which its owner is recorded (D25).
pub(crate) fn field_of(destination: &str) -> String {
    format!("Mounts[{}]", clean(destination))
}

pub(super) fn depth(destination: &str) -> usize {
    if destination == "/" { 0 } else { destination.matches('/').count() }
}
