// SPDX-License-Identifier: Apache-2.0
//! Merges entries that are set and removed by name: mounts, variables, devices, namespaces; and
//! maps: annotations, sysctls, network devices.
//!
//! A name with a leading dash requests removal. The plugin that removes another's entry owns the
//! name from then on (`owners.rs`). A removal removes the values of earlier plugins and leaves its
//! mark in the combined adjustment, so that the entry is also removed from the original container;
//! for a list, not if the same reply sets the entry again. Within one reply all removals are
//! applied first, wherever they are in the list. In the container that the next plugin receives,
//! only maps are changed here; the caller changes lists.

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
    /// Whether the mark of an earlier plugin stays when a later one sets the entry again.
    const MARKER_STAYS: bool = false;

    /// Returns the name as the plugin wrote it.
    fn name(&self) -> &str;

    /// Returns the key that all spellings of one name share.
    fn key(name: &str) -> String {
        name.to_owned()
    }
}

impl Listed for api::Mount {
    const FIELD: NriField = NriField::Mounts;
    // NRI: one plugin's `-d` followed by a later plugin's `d` reaches the runtime as both.
    const MARKER_STAYS: bool = true;

    fn name(&self) -> &str {
        &self.destination
    }

    fn key(name: &str) -> String {
        keys::destination(name)
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

/// A change to one key of a list.
pub(crate) enum ListChange<T> {
    Removed(String),
    Set(String, T),
}

impl<T> ListChange<T> {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Removed(key) | Self::Set(key, _) => key,
        }
    }
}

/// Merges one plugin's entries into the combined adjustment and returns the change of each key,
/// removals first.
///
/// NRI: for variables and devices the reference loses the mark, so an original value cannot be
/// removed (BUG-01, BUG-02); namespaces cannot be overridden (BUG-06). Here, entries of all four
/// lists can be removed and overridden.
pub(crate) fn merge_list<T: Listed>(
    claims: &mut FieldClaims<'_>,
    given: &[T],
    combined: &mut Vec<T>,
) -> Result<Vec<ListChange<T>>, MergeError> {
    let mut removals: Vec<(String, &T)> = Vec::new();
    let mut additions: Vec<(String, &T)> = Vec::new();
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
    let set = additions.into_iter().map(|(key, entry)| ListChange::Set(key, entry.clone()));
    Ok(removed.chain(set).collect())
}

/// Applies removals and additions to the combined list, in one pass for any number of them.
fn combine<T: Listed>(
    removals: &[(String, &T)],
    additions: &[(String, &T)],
    combined: &mut Vec<T>,
) {
    if removals.is_empty() && additions.is_empty() {
        return;
    }
    let removed: HashSet<&str> = removals.iter().map(|(key, _)| key.as_str()).collect();
    let added: HashSet<&str> = additions.iter().map(|(key, _)| key.as_str()).collect();
    let mut marked: HashSet<String> = HashSet::new();
    combined.retain(|entry| match keys::marked(entry.name()) {
        Some(name) => {
            let key = T::key(name);
            let stays = T::MARKER_STAYS || !added.contains(key.as_str());
            if stays && removed.contains(key.as_str()) {
                marked.insert(key);
            }
            stays
        }
        None => !removed.contains(T::key(entry.name()).as_str()),
    });
    for (key, marker) in removals {
        if !added.contains(key.as_str()) && marked.insert(key.clone()) {
            combined.push((*marker).clone());
        }
    }
    combined.extend(additions.iter().map(|(_, entry)| (*entry).clone()));
}

/// Merges one plugin's map into the combined adjustment and the next plugin's container.
///
/// When a key was removed and set again, the combined map has both the mark and the new value;
/// removals are applied first. NRI: after a removal alone, the reference still shows the value,
/// with its old owner (BUG-03, BUG-04, BUG-05).
pub(crate) fn merge_map<V: Clone + Default>(
    claims: &mut FieldClaims<'_>,
    field: NriField,
    given: &HashMap<String, V>,
    combined: &mut HashMap<String, V>,
    visible: &mut HashMap<String, V>,
) -> Result<(), MergeError> {
    // Sorted, so that equal replies fail with equal messages. `-` sorts before any letter, but not
    // before every possible first character of a key, so there are two passes.
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
