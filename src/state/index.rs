// SPDX-License-Identifier: Apache-2.0
//! Containers by what they are looked for: their id below any root, their pod, their bundle. With
//! it the cost of a request does not grow with what is known. It holds names only.

use std::collections::{BTreeSet, HashMap};

use super::{Container, Key};

/// The three ways.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_id: Keys,
    by_pod: Keys,
    by_bundle: Keys,
}

type Keys = HashMap<String, BTreeSet<Key>>;

impl Index {
    /// Takes a container in; one that is there already changes nothing.
    pub(super) fn add(&mut self, container: &Container) {
        for (keys, name) in self.ways(container) {
            // Looked for first: the names are mostly there, and need no copy then.
            match keys.get_mut(name) {
                Some(found) => {
                    if !found.contains(&container.key) {
                        found.insert(container.key.clone());
                    }
                }
                None => {
                    keys.insert(name.to_owned(), BTreeSet::from([container.key.clone()]));
                }
            }
        }
    }

    /// Strikes a container off.
    pub(super) fn remove(&mut self, container: &Container) {
        for (keys, name) in self.ways(container) {
            if let Some(found) = keys.get_mut(name) {
                found.remove(&container.key);
                if found.is_empty() {
                    keys.remove(name);
                }
            }
        }
    }

    fn ways<'c>(&mut self, container: &'c Container) -> [(&mut Keys, &'c str); 3] {
        [
            (&mut self.by_id, &container.key.id),
            (&mut self.by_pod, &container.pod),
            (&mut self.by_bundle, &container.bundle),
        ]
    }

    pub(super) fn of_id(&self, id: &str) -> impl Iterator<Item = &Key> {
        self.by_id.get(id).into_iter().flatten()
    }

    pub(super) fn of_pod(&self, pod: &str) -> impl Iterator<Item = &Key> {
        self.by_pod.get(pod).into_iter().flatten()
    }

    pub(super) fn of_bundle(&self, bundle: &str) -> impl Iterator<Item = &Key> {
        self.by_bundle.get(bundle).into_iter().flatten()
    }
}
