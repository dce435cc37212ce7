// SPDX-License-Identifier: Apache-2.0
//! All pods and containers, in memory and on disk. An intended change is written to disk first; a
//! past event is kept in memory even if the write fails, and written later.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tracing::error;

use crate::error::{Context, Result};
use crate::files;
use crate::limits;
use crate::presence;

use super::disk::{self, LoadedRecords, RecordFolders};
use super::index::Index;
use super::remembered::{Remembered, drop_unexplained, size};
use super::{Container, ContainerKey, Lifecycle, Pod, Wire};

/// Failed writes after which a retry stops; the remaining records wait for the next retry.
const REFUSALS: usize = 8;

/// All pods and containers, in memory and on disk.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    folders: RecordFolders,
    boot_id: String,
    /// The containers. A record is read much more often than changed, so readers share it.
    containers: BTreeMap<Rc<ContainerKey>, Rc<Container>>,
    index: Index,
    pods: BTreeMap<Rc<str>, Rc<Pod>>,
    gone: Remembered<Container>,
    gone_pods: Remembered<Pod>,
    /// Removed containers whose records are still on disk, oldest first, with each record's bytes.
    kept: VecDeque<(ContainerKey, usize)>,
    incarnations: u64,
    /// Containers whose record could not be written.
    unwritten: BTreeSet<ContainerKey>,
    /// Pods whose record could not be written.
    unwritten_pods: BTreeSet<Rc<str>>,
    is_stamped: bool,
}

impl Store {
    /// Opens the store in `dir`, with this boot's earlier records. The second value has a line for
    /// each unusable file.
    ///
    /// # Errors
    /// Fails when the directory cannot be created or read, or a resource is short.
    pub fn open(dir: &Path, boot_id: &str) -> Result<(Self, Vec<String>)> {
        let folders = RecordFolders::open(dir)?;
        let is_stamped = presence::insist(|| disk::is_stamped(dir, boot_id))?;
        let LoadedRecords { containers, pods, gone, problems } = disk::load(dir, boot_id)?;
        let known = containers.iter().chain(&gone);
        let incarnations = known.map(|c| c.incarnation).max().unwrap_or(0);
        let mut store = Self {
            dir: dir.to_owned(),
            index: Index::default(),
            unwritten: BTreeSet::new(),
            unwritten_pods: BTreeSet::new(),
            folders,
            boot_id: boot_id.to_owned(),
            containers: BTreeMap::new(),
            pods: pods.into_iter().map(|pod| (pod.id.as_str().into(), pod.into())).collect(),
            kept: gone.iter().map(|one| (one.key.clone(), size(one))).collect(),
            gone: Remembered::default(),
            gone_pods: Remembered::default(),
            incarnations,
            is_stamped,
        };
        gone.into_iter().for_each(|container| store.gone.push(container));
        containers.into_iter().for_each(|container| store.take_over(container));
        for container in store.containers.values() {
            if store.folders.write_mark(container).is_err() {
                store.unwritten.insert(container.key.clone());
            }
        }
        store.folders.sweep_marks(dir);
        Ok((store, problems))
    }

    /// Whether a daemon of this boot has stamped the directory; if not, this boot's records are lost,
    /// or there are none.
    pub fn is_stamped(&self) -> bool {
        self.is_stamped
    }

    /// Stamps the directory as complete: it has all records of this boot.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub fn stamp(&mut self) -> Result<()> {
        disk::stamp(&self.dir, &self.boot_id)?;
        self.is_stamped = true;
        Ok(())
    }

    /// Returns the files with unusable records, for an operator to examine.
    pub fn set_aside(&self) -> Vec<PathBuf> {
        disk::set_aside_before(&self.dir)
    }

    /// Whether the open folders are still at their paths, with the stamp if it was written.
    ///
    /// # Errors
    /// Fails when the path cannot be examined.
    pub fn is_in_place(&self) -> Result<bool> {
        let has_stamp = !self.is_stamped || disk::is_stamped(&self.dir, &self.boot_id)?;
        Ok(has_stamp && self.folders.are_at(&self.dir)?)
    }

    /// Creates missing folders again, and writes every record to them. The engines' documents were
    /// lost with the old folders.
    ///
    /// # Errors
    /// Fails when a write fails.
    pub fn rebuild(&mut self) -> Result<()> {
        self.folders = RecordFolders::open(&self.dir)?;
        self.unwritten = self.containers.keys().map(|key| ContainerKey::clone(key)).collect();
        self.unwritten_pods = self.pods.keys().cloned().collect();
        // The newest of several records with one ID is written last.
        let gone = self.gone.containing("");
        for container in gone.filter(|gone| gone.was_made() && self.is_kept(&gone.key)) {
            self.folders.write_kept(&container)?;
        }
        self.write_what_is_not()?;
        // Stamped last, because a daemon that finds the stamp relies on complete records.
        self.stamp()
    }

    /// Returns the ID of this boot.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Returns an incarnation number that no container on record has.
    pub fn next_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    /// Returns the container, if it is known.
    pub fn container(&self, key: &ContainerKey) -> Option<&Container> {
        self.containers.get(key).map(Rc::as_ref)
    }

    /// Returns a shared snapshot of the container.
    pub fn shared(&self, key: &ContainerKey) -> Option<Rc<Container>> {
        self.containers.get(key).cloned()
    }

    /// Returns the container's key, shared with the store.
    pub fn shared_key(&self, key: &ContainerKey) -> Option<Rc<ContainerKey>> {
        self.containers.get_key_value(key).map(|(key, _)| Rc::clone(key))
    }

    /// Returns all containers, sandboxes included.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().map(Rc::as_ref)
    }

    /// Returns shared snapshots of all containers.
    pub fn all_shared(&self) -> Vec<Rc<Container>> {
        self.containers.values().cloned().collect()
    }

    /// Returns all containers with their keys, in the order of the keys, shared with the store.
    pub fn containers_shared(&self) -> impl Iterator<Item = (&Rc<ContainerKey>, &Rc<Container>)> {
        self.containers.iter()
    }

    /// Returns the containers of this id, below any root.
    pub fn of_id<'s>(&'s self, id: &'s str) -> impl Iterator<Item = &'s Container> {
        let found = self.index.of_id(id).filter_map(|key| self.containers.get(key));
        found.map(Rc::as_ref).filter(move |container| container.key.id == id)
    }

    /// Returns the containers of this pod, its sandbox included.
    pub fn of_pod<'s>(&'s self, pod: &'s str) -> impl Iterator<Item = &'s Container> {
        let found = self.index.of_pod(pod).filter_map(|key| self.containers.get(key));
        found.map(Rc::as_ref).filter(move |container| container.pod == pod)
    }

    /// Returns the containers whose document is in this directory.
    pub fn of_folder<'s>(&'s self, folder: &'s str) -> impl Iterator<Item = &'s Container> {
        let found = self.index.of_folder(folder).filter_map(|key| self.containers.get(key));
        found.map(Rc::as_ref).filter(move |container| container.folder() == folder)
    }

    /// Returns all pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(Rc::as_ref)
    }

    /// Returns all pods with their IDs, in the order of the IDs, shared with the store.
    pub fn pods_shared(&self) -> impl Iterator<Item = (&Rc<str>, &Rc<Pod>)> {
        self.pods.iter()
    }

    /// Returns the pod, if it is known.
    pub fn pod(&self, id: &str) -> Option<&Pod> {
        self.pods.get(id).map(Rc::as_ref)
    }

    /// Returns removed or refused containers that may contain this text in a string, newest last.
    pub fn gone<'s>(
        &'s self,
        text: &'s str,
    ) -> impl DoubleEndedIterator<Item = Cow<'s, Container>> {
        self.gone.containing(text)
    }

    /// Returns the newest removed or refused container of this key that `is_meant` accepts. A kept
    /// record that is no longer in memory is read from disk.
    pub fn newest_gone(
        &self,
        key: &ContainerKey,
        is_meant: impl Fn(&Container) -> bool,
    ) -> Option<Cow<'_, Container>> {
        let newest =
            self.gone.newest(&key.id, |container| container.key == *key && is_meant(container));
        if newest.is_some() || !self.is_kept(key) {
            return newest;
        }
        let kept = self.folders.kept(key);
        let kept = kept.inspect_err(|error| error!("{error}")).ok()?;
        is_meant(&kept).then_some(Cow::Owned(kept))
    }

    /// Writes the record to disk, then adds it.
    ///
    /// # Errors
    /// Fails when the write fails; memory is then unchanged.
    pub fn put(&mut self, container: Container) -> Result<()> {
        let mut written = write(&self.folders, &container);
        if written.is_err() && matches!(self.is_in_place(), Ok(false)) {
            // The folders were deleted a moment ago. The stamp is missing too, so the daemon will
            // write all records again.
            written = RecordFolders::open(&self.dir).and_then(|folders| {
                self.folders = folders;
                write(&self.folders, &container)
            });
        }
        if written.is_err() {
            // The mark is rewritten for the record that is still in force.
            match self.containers.get(&container.key).map(|known| self.folders.write_mark(known)) {
                Some(_as_before) => {}
                None => self.folders.remove_mark(&container.key),
            }
        }
        written.doing(|| self.place())?;
        self.unwritten.remove(&container.key);
        self.take_over(container);
        Ok(())
    }

    /// Names the folder of the records, for an operator who must free space there.
    fn place(&self) -> String {
        format!("recording in {}", self.dir.display())
    }

    fn take_over(&mut self, container: Container) {
        let known = self.containers.get_key_value(&container.key);
        let (key, old) = match known {
            Some((key, old)) => (Rc::clone(key), Some(Rc::clone(old))),
            None => (Rc::new(container.key.clone()), None),
        };
        let is_elsewhere =
            |old: &Rc<Container>| old.pod != container.pod || old.folder() != container.folder();
        if let Some(old) = old.filter(is_elsewhere) {
            self.index.remove(&key, &old);
        }
        self.index.add(&key, &container);
        self.containers.insert(key, Rc::new(container));
    }

    /// Changes a record, on disk first. An unknown key is ignored: its container was removed
    /// meanwhile.
    ///
    /// # Errors
    /// Fails when the write fails; memory is then unchanged.
    pub fn change(
        &mut self,
        key: &ContainerKey,
        change: impl FnOnce(&mut Container),
    ) -> Result<()> {
        let Some(container) = self.containers.get(key) else { return Ok(()) };
        let mut container = Container::clone(container);
        change(&mut container);
        self.put(container)
    }

    /// Changes a record after an event: in memory even if the write fails, because the event is not
    /// repeated. A failed write is repeated when the next event of any container or pod is noted.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub fn note(&mut self, key: &ContainerKey, change: impl FnOnce(&mut Container)) -> Result<()> {
        if let Some(container) = self.containers.get_mut(key) {
            change(Rc::make_mut(container));
            self.unwritten.insert(key.clone());
        }
        self.write_what_is_not()
    }

    /// Writes the records whose writes failed before, and repeats failed removals of files.
    ///
    /// # Errors
    /// Fails when a write or removal fails again.
    pub fn write_what_is_not(&mut self) -> Result<()> {
        let (folders, containers, pods) = (&self.folders, &self.containers, &self.pods);
        let mut refusals = Vec::new();
        // Pods first, so that a daemon that is killed in between leaves no container without its
        // pod.
        self.unwritten_pods.retain(|id| {
            let Some(pod) = pods.get(id) else { return false };
            refusals.len() >= REFUSALS
                || folders.write_pod(pod).map_err(|why| refusals.push(why)).is_err()
        });
        self.unwritten.retain(|key| {
            let Some(container) = containers.get(key) else { return false };
            refusals.len() >= REFUSALS
                || write(folders, container).map_err(|why| refusals.push(why)).is_err()
        });
        let removed = folders.remove_what_is_left();
        refusals.into_iter().next().map_or(removed, Err)
    }

    /// Whether the removal of a file failed; [`write_what_is_not`](Self::write_what_is_not) retries it.
    pub fn has_leftovers(&self) -> bool {
        self.folders.has_leftovers()
    }

    /// Tests whether a record can be written; leaves no file.
    ///
    /// # Errors
    /// Fails when a record cannot be written.
    pub fn try_disk(&self) -> Result<()> {
        files::try_write(&self.dir)
    }

    /// Returns the IDs of containers and pods whose records could not be written.
    pub fn unwritten(&self) -> Vec<&str> {
        let containers = self.unwritten.iter().map(|key| key.id.as_str());
        containers.chain(self.unwritten_pods.iter().map(Rc::as_ref)).collect()
    }

    /// Changes a record without writing it, for values that a crash may lose because the request is
    /// lost too. The next [`Store::change`] also writes them.
    pub fn change_in_memory(&mut self, key: &ContainerKey, change: impl FnOnce(&mut Container)) {
        if let Some(container) = self.containers.get_mut(key) {
            change(Rc::make_mut(container));
        }
    }

    /// Removes a container's record; `explain` shows it for a while.
    pub fn forget(&mut self, key: &ContainerKey) {
        let Some((key, container)) = self.containers.remove_entry(key) else { return };
        self.folders.remove_container(&container);
        self.index.remove(&key, &container);
        self.unwritten.remove(&key);
        self.remember(Rc::unwrap_or_clone(container));
    }

    /// Keeps the record of a container that is removed, or was never recorded, for `explain`.
    pub fn remember(&mut self, mut container: Container) {
        container.state = Lifecycle::Removed;
        container.pending.in_flight = None;
        if !self.is_kept(&container.key) {
            drop_unexplained(&mut container);
        }
        self.gone.push(container);
    }

    fn is_kept(&self, key: &ContainerKey) -> bool {
        self.kept.iter().any(|(kept, _)| kept == key)
    }

    /// Keeps the record of a container on disk too when the container is removed, because a
    /// container may be re-created under its ID.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub fn keep(&mut self, container: &Container) -> Result<()> {
        self.kept.retain(|(key, _)| *key != container.key);
        self.kept.push_back((container.key.clone(), size(container)));
        self.drop_oldest_kept(limits::KEPT_RECORDS, limits::KEPT_RECORDS_BYTES);
        self.folders.write_kept(container)
    }

    /// Removes the oldest kept records until their number and bytes are within these limits; never
    /// the newest.
    fn drop_oldest_kept(&mut self, most: usize, bytes: usize) {
        let mut total: usize = self.kept.iter().map(|(_, size)| size).sum();
        while self.kept.len() > most || total > bytes && self.kept.len() > 1 {
            let Some((oldest, size)) = self.kept.pop_front() else { return };
            total = total.saturating_sub(size);
            self.folders.remove_kept(&oldest);
        }
    }

    /// Drops the kept record of an earlier container of this ID.
    pub fn drop_kept(&mut self, key: &ContainerKey) {
        if self.is_kept(key) {
            self.kept.retain(|(other, _)| other != key);
            self.folders.remove_kept(key);
        }
    }

    /// Writes the pod to disk, then adds it.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub fn put_pod(&mut self, pod: Pod) -> Result<()> {
        self.folders.write_pod(&pod).doing(|| self.place())?;
        self.unwritten_pods.remove(pod.id.as_str());
        self.pods.insert(pod.id.as_str().into(), pod.into());
        Ok(())
    }

    /// Changes a pod's record after an event, like [`note`](Self::note) for a container.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub fn note_pod(&mut self, pod: Pod) -> Result<()> {
        let id: Rc<str> = pod.id.as_str().into();
        self.unwritten_pods.insert(Rc::clone(&id));
        self.pods.insert(id, pod.into());
        self.write_what_is_not()
    }

    /// Changes a pod's record without writing it to disk.
    pub fn change_pod_in_memory(&mut self, id: &str, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.get_mut(id) {
            change(Rc::make_mut(pod));
        }
    }

    /// Removes a pod's record; `explain` shows it for a while.
    pub fn forget_pod(&mut self, id: &str) {
        let Some(mut pod) = self.pods.remove(id).map(Rc::unwrap_or_clone) else { return };
        (pod.message, pod.limits) = (Wire::default(), BTreeMap::new());
        self.unwritten_pods.remove(id);
        self.folders.remove_pod(id);
        self.gone_pods.push(pod);
    }

    /// Returns removed pods that may contain this text in a string, newest last.
    pub fn gone_pods<'s>(&'s self, text: &'s str) -> impl DoubleEndedIterator<Item = Cow<'s, Pod>> {
        self.gone_pods.containing(text)
    }

    /// Returns the pod of this ID, or the last removed one.
    pub fn newest_pod(&self, id: &str) -> Option<Cow<'_, Pod>> {
        let gone = || self.gone_pods.newest(id, |_| true);
        self.pod(id).map(Cow::Borrowed).or_else(gone)
    }

    /// Stores the engine's document of a container; returns the file's name.
    ///
    /// # Errors
    /// Fails when the write fails.
    pub fn keep_pristine(&self, incarnation: u64, bytes: &[u8]) -> Result<String> {
        self.folders.keep_pristine(incarnation, bytes).doing(|| self.place())
    }

    /// Removes a document that no record names.
    pub fn drop_pristine(&self, name: &str) {
        self.folders.remove_pristine(name);
    }

    /// Returns the engine's document of a container.
    ///
    /// # Errors
    /// Fails when it is gone or cannot be read.
    pub fn pristine(&self, name: &str) -> Result<Vec<u8>> {
        self.folders.pristine(name)
    }
}

/// Writes a container's mark and its record. The mark comes first, so that every record that is
/// found has its mark.
fn write(folders: &RecordFolders, container: &Container) -> Result<()> {
    folders.write_mark(container)?;
    folders.write_container(container)
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::container;
    use super::*;

    fn pod(id: &str) -> Pod {
        let json = serde_json::json!({
            "schema": 1, "boot_id": "boot", "id": id, "name": id, "namespace": "", "uid": "",
            "engine": "plain", "state": "ready", "sandbox": null, "message": ""
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_snapshot_of_a_pod_does_not_change_with_its_record() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put_pod(Pod { name: "before".to_owned(), ..pod("p") }).unwrap();
        let kept = Rc::clone(store.pods_shared().next().unwrap().1);
        store.change_pod_in_memory("p", |pod| "after".clone_into(&mut pod.name));
        assert_eq!(
            (kept.name.as_str(), store.pod("p").unwrap().name.as_str()),
            ("before", "after")
        );
        store.forget_pod("p");
        assert_eq!(kept.name, "before");
    }

    #[test]
    fn the_size_of_removed_pods_is_limited() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        let megabyte = 1 << 20;
        for number in 0..70 {
            let id = format!("p{number:02}");
            let name = "x".repeat(megabyte);
            store.put_pod(Pod { name, ..pod(&id) }).unwrap();
            store.forget_pod(&id);
        }
        let left: Vec<String> = store.gone_pods("").map(|pod| pod.id.clone()).collect();
        let most = limits::REMEMBERED_BYTES / megabyte;
        assert!(left.len() < most && left.last().unwrap() == "p69", "{left:?}");
        store.put_pod(pod("short")).unwrap();
        store.forget_pod("short");
        assert!(store.newest_pod("short").is_some());
    }

    #[test]
    fn kept_records_have_a_bound_in_bytes_and_the_newest_stays() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        ["a", "b", "c"].into_iter().for_each(|id| store.keep(&container(id)).unwrap());
        let all: usize = store.kept.iter().map(|(_, size)| size).sum();
        let files = || std::fs::read_dir(temp.path().join("kept")).unwrap().count();
        for (bytes, left) in [(all, 3), (all - 1, 2), (1, 1)] {
            store.drop_oldest_kept(9, bytes);
            assert_eq!((store.kept.len(), files()), (left, left), "{bytes}");
        }
        assert!(store.is_kept(&container("c").key) && !store.is_kept(&container("a").key));
        let (store, _) = Store::open(temp.path(), "boot").unwrap();
        assert_eq!((store.kept.len(), store.gone("").count()), (1, 1));
    }

    #[test]
    fn a_kept_record_outlives_its_copy_in_memory() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        for id in ["a", "b"] {
            let record = Container { name: "x".repeat(1 << 20), ..container(id) };
            store.put(record.clone()).unwrap();
            store.keep(&record).unwrap();
            store.forget(&record.key);
        }
        for number in 0..limits::REMEMBERED + limits::REMEMBERED_TOGETHER {
            store.remember(container(&format!("other-{number}")));
        }
        let (a, b) = (container("a").key, container("b").key);
        assert!(!store.gone("xxx").any(|found| found.key == a));
        assert!(store.newest_gone(&a, |found| found.name.len() == 1 << 20).is_some());
        assert!(store.newest_gone(&a, |_| false).is_none());
        store.drop_kept(&a);
        let mut kept = std::fs::read_dir(temp.path().join("kept")).unwrap();
        files::replace(&kept.next().unwrap().unwrap().path(), b"{").unwrap();
        assert!(store.newest_gone(&a, |_| true).is_none());
        assert!(store.newest_gone(&b, |_| true).is_none());
    }
}
