// SPDX-License-Identifier: Apache-2.0
//! Merges entries that are set and removed by name: mounts, variables, devices, namespaces; and
//! maps: annotations, sysctls, network devices.
//!
//! A name with a leading dash requests removal. A removal removes the values of earlier plugins and leaves
//! its mark in the combined adjustment, so that the entry is also removed from the original container; a list
//! has no mark if the same reply sets the entry again. The plugin that removes another's entry owns the name
//! from then on (`owners.rs`). Within one reply all removals are applied first, wherever they are in the list.
//! In the container that the next plugin receives, only maps are changed here; the caller changes lists.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::claims::{FieldClaims, MergeError};
use crate::fields::NriField;
use crate::keys;
use nri_api as api;

/// An entry of a list in which each name can occur once.
pub(crate) trait Listed: Clone {
    /// The field to which the list belongs.
    const FIELD: NriField;
    /// Whether a plugin owns the removal of an entry even if no plugin had set the entry.
    const REMOVAL_IS_OWNED: bool = false;
    /// Whether an earlier plugin's removal mark stays when a later plugin sets the entry again.
    const MARKER_STAYS: bool = false;

    /// Returns the name as the plugin wrote it.
    fn name(&self) -> &str;

    /// Returns the key that all spellings of one name share.
    fn key(name: &str) -> Cow<'_, str> {
        Cow::Borrowed(name)
    }
}

impl Listed for api::Mount {
    const FIELD: NriField = NriField::Mounts;
    // NRI: one plugin's `-d` followed by a later plugin's `d` reaches the runtime as both.
    const MARKER_STAYS: bool = true;

    fn name(&self) -> &str {
        &self.destination
    }

    fn key(name: &str) -> Cow<'_, str> {
        Cow::Owned(keys::destination(name))
    }
}

impl Listed for api::KeyValue {
    const FIELD: NriField = NriField::Env;

    fn name(&self) -> &str {
        &self.key
    }
}

impl Listed for api::LinuxDevice {
    const FIELD: NriField = NriField::Devices;

    fn name(&self) -> &str {
        &self.path
    }
}

impl Listed for api::LinuxNamespace {
    const FIELD: NriField = NriField::Namespace;
    // A validator that guards namespaces must receive removals too.
    const REMOVAL_IS_OWNED: bool = true;

    fn name(&self) -> &str {
        &self.type_
    }
}

pub(crate) enum ListChange<'g, T> {
    Removed(Cow<'g, str>),
    Set(Cow<'g, str>, &'g T),
}

impl<T> ListChange<'_, T> {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Removed(key) | Self::Set(key, _) => key,
        }
    }
}

/// Merges one plugin's entries into the combined adjustment and returns the changes, removals first.
///
/// NRI: for variables and devices the reference loses the mark, so an original value cannot be
/// removed (BUG-01, BUG-02); namespaces cannot be overridden (BUG-06). Here, entries of all four
/// lists can be removed and overridden.
pub(crate) fn merge_list<'g, T: Listed>(
    claims: &mut FieldClaims<'_>,
    given: &'g [T],
    combined: &mut Vec<T>,
) -> Result<Vec<ListChange<'g, T>>, MergeError> {
    let mut removals: Vec<(Cow<'g, str>, &T)> = Vec::new();
    let mut additions: Vec<(Cow<'g, str>, &T)> = Vec::new();
    for entry in given {
        match keys::marked(entry.name()) {
            Some(name) => removals.push((T::key(name), entry)),
            None => additions.push((T::key(entry.name()), entry)),
        }
    }
    for (key, _) in &removals {
        if T::REMOVAL_IS_OWNED || claims.is_owned(T::FIELD, key) {
            claims.clear(T::FIELD, Some(key))?;
        } else {
            claims.note_removal(T::FIELD, key)?;
        }
    }
    for (key, _) in &additions {
        claims.claim_key(T::FIELD, key)?;
    }
    combine(&removals, &additions, combined);
    let removed = removals.into_iter().map(|(key, _)| ListChange::Removed(key));
    let set = additions.into_iter().map(|(key, entry)| ListChange::Set(key, entry));
    Ok(removed.chain(set).collect())
}

/// Applies removals and additions to the combined list, in one pass.
fn combine<T: Listed>(
    removals: &[(Cow<'_, str>, &T)],
    additions: &[(Cow<'_, str>, &T)],
    combined: &mut Vec<T>,
) {
    if removals.is_empty() && additions.is_empty() {
        return;
    }
    let removed: HashSet<&str> = removals.iter().map(|(key, _)| &**key).collect();
    let added: HashSet<&str> = additions.iter().map(|(key, _)| &**key).collect();
    let mut marked: HashSet<String> = HashSet::new();
    combined.retain(|entry| match keys::marked(entry.name()) {
        Some(name) => {
            let key = T::key(name);
            let stays = T::MARKER_STAYS || !added.contains(&*key);
            if removed.contains(&*key) {
                marked.insert(key.into_owned());
            }
            stays
        }
        None => removed.is_empty() || !removed.contains(&*T::key(entry.name())),
    });
    for (key, marker) in removals {
        if !added.contains(&**key) && marked.insert(key.clone().into_owned()) {
            combined.push((*marker).clone());
        }
    }
    combined.extend(additions.iter().map(|(_, entry)| (*entry).clone()));
}

/// Merges one plugin's map into the combined adjustment and the next plugin's container.
///
/// When a key was removed and set again, the combined map has both the mark and the new value, to be applied
/// in this order. NRI: after a removal, the reference still shows the value to the next plugin (BUG-03,
/// BUG-04, BUG-05).
pub(crate) fn merge_map<V: Clone + Default>(
    claims: &mut FieldClaims<'_>,
    field: NriField,
    given: &HashMap<String, V>,
    combined: &mut HashMap<String, V>,
    visible: &mut HashMap<String, V>,
) -> Result<(), MergeError> {
    // Sorted, so that equal replies fail with equal messages. Two passes put removals first: some characters
    // sort before `-`.
    let mut given: Vec<(&String, &V)> = given.iter().collect();
    given.sort_by_key(|(key, _)| *key);
    for key in given.iter().filter_map(|(key, _)| keys::marked(key)) {
        claims.clear(field, Some(key))?;
        visible.remove(key);
        combined.remove(key);
        combined.insert(format!("-{key}"), V::default());
    }
    for (key, value) in given.into_iter().filter(|(key, _)| keys::marked(key).is_none()) {
        claims.claim_key(field, key)?;
        visible.insert(key.clone(), value.clone());
        combined.insert(key.clone(), value.clone());
    }
    Ok(())
}
