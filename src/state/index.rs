// SPDX-License-Identifier: Apache-2.0
//! An index of containers by ID below any root, by pod, and by their document's directory, so that
//! the cost of a request does not grow with the number of records.
//!
//! It stores hashes instead of names, because each of thousands of containers has three entries. A
//! match may be another container, so the caller must compare names.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use super::{Container, ContainerKey};

#[derive(Debug, Default)]
pub(super) struct Index {
    hasher: RandomState,
    by_id: HashedKeys,
    by_pod: HashedKeys,
    by_folder: HashedKeys,
}

type HashedKeys = BTreeSet<(u64, Rc<ContainerKey>)>;

impl Index {
    /// Adds a container; adding a known one changes nothing.
    pub(super) fn add(&mut self, key: &Rc<ContainerKey>, container: &Container) {
        for (keys, hash) in self.ways(container) {
            keys.insert((hash, Rc::clone(key)));
        }
    }

    pub(super) fn remove(&mut self, key: &Rc<ContainerKey>, container: &Container) {
        for (keys, hash) in self.ways(container) {
            keys.remove(&(hash, Rc::clone(key)));
        }
    }

    fn ways(&mut self, container: &Container) -> [(&mut HashedKeys, u64); 3] {
        let hash = |name: &str| self.hasher.hash_one(name);
        let (id, pod) = (hash(&container.key.id), hash(&container.pod));
        let folder = hash(container.folder());
        [(&mut self.by_id, id), (&mut self.by_pod, pod), (&mut self.by_folder, folder)]
    }

    pub(super) fn of_id(&self, id: &str) -> impl Iterator<Item = &Rc<ContainerKey>> {
        of(&self.by_id, self.hasher.hash_one(id))
    }

    pub(super) fn of_pod(&self, pod: &str) -> impl Iterator<Item = &Rc<ContainerKey>> {
        of(&self.by_pod, self.hasher.hash_one(pod))
    }

    pub(super) fn of_folder(&self, folder: &str) -> impl Iterator<Item = &Rc<ContainerKey>> {
        of(&self.by_folder, self.hasher.hash_one(folder))
    }
}

fn of(keys: &HashedKeys, hash: u64) -> impl Iterator<Item = &Rc<ContainerKey>> {
    let least = Rc::new(ContainerKey { root: String::new(), id: String::new() });
    let from = keys.range((hash, least)..);
    from.take_while(move |(other, _)| *other == hash).map(|(_, key)| key)
}
