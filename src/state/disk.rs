// SPDX-License-Identifier: Apache-2.0
//! The store's form on disk, below `RUN_DIR/state`: containers' marks, the engine's documents (`pristine`),
//! a JSON file, replaced in one step, for each pod (`pods`), container (`containers`) and removed container
//! whose ID may be used again (`kept`), the boot's stamp (`boot_id`) and the connected plugins (`plugins.json`).
//! An unusable record is moved to the folder `aside`, reported in one line, and never prevents the daemon's
//! start. If a file cannot be read for a temporary reason, the daemon's start fails and is retried, so that no
//! container is lost for lack of a descriptor.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::error::{Context, Error, Result};
use crate::files;
use crate::fnv::fnv64;
use crate::limits;
use crate::mark::{self, MARKS};
use crate::presence::{self, IfThere, MayPass};

use super::{Container, ContainerKey, Lifecycle, Pod, SCHEMA};

const CONTAINERS: &str = "containers";
const PODS: &str = "pods";
const PRISTINE: &str = "pristine";
const ASIDE: &str = "aside";
const KEPT: &str = "kept";

/// The file with the ID of the boot to which the records belong. It is written last, so a folder
/// without it may be incomplete.
const STAMP: &str = "boot_id";

/// The list of connected plugins (decision D14). The daemon writes it, and it has no meaning after
/// a reboot.
pub(super) const CONNECTED: &str = "plugins.json";

/// The schema of the next version: its records are read too, so that a downgrade by one version
/// loses nothing.
const NEXT: u32 = SCHEMA + 1;

/// The folders, opened once, because a record is written many times in a container's life.
#[derive(Debug)]
pub(super) struct RecordFolders {
    containers: OwnedFd,
    pods: OwnedFd,
    pristine: OwnedFd,
    kept: OwnedFd,
    marks: OwnedFd,
    /// The existing marks: file name, and hash of the content.
    marked: RefCell<HashMap<String, u64>>,
    /// Files whose removal failed: folder and name.
    unremoved: RefCell<BTreeSet<(&'static str, String)>>,
}

/// The records of an earlier daemon of this boot.
#[derive(Debug)]
pub(super) struct LoadedRecords {
    pub(super) containers: Vec<Container>,
    pub(super) pods: Vec<Pod>,
    /// Removed containers whose records were kept, oldest first.
    pub(super) gone: Vec<Container>,
    /// Unusable files, one line each.
    pub(super) problems: Vec<String>,
}

impl RecordFolders {
    /// Opens the folders, and creates missing ones.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let open = |name: &str| {
            let path = dir.join(name);
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.doing(|| format!("making {}", path.display()))?;
            files::open_dir(&path)
        };
        open(ASIDE)?;
        Ok(Self {
            containers: open(CONTAINERS)?,
            pods: open(PODS)?,
            pristine: open(PRISTINE)?,
            kept: open(KEPT)?,
            marks: open(MARKS)?,
            marked: RefCell::default(),
            unremoved: RefCell::default(),
        })
    }

    fn folder(&self, kind: &str) -> &OwnedFd {
        match kind {
            PODS => &self.pods,
            PRISTINE => &self.pristine,
            KEPT => &self.kept,
            MARKS => &self.marks,
            _ => &self.containers,
        }
    }

    /// Removes a file, or if that fails, leaves it to
    /// [`remove_what_is_left`](Self::remove_what_is_left).
    fn remove(&self, kind: &'static str, name: &str) {
        if files::try_remove_at(self.folder(kind), name).is_err() {
            self.unremoved.borrow_mut().insert((kind, name.to_owned()));
        }
    }

    /// Replaces a file, and cancels its pending removal.
    fn replace(&self, kind: &'static str, name: &str, bytes: &[u8]) -> Result<()> {
        files::replace_at(self.folder(kind), name, bytes)?;
        self.unremoved.borrow_mut().remove(&(kind, name.to_owned()));
        Ok(())
    }

    fn write(&self, kind: &'static str, name: &str, record: &impl serde::Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(record).map_err(|error| Error::new(error.to_string()))?;
        self.replace(kind, name, &bytes)
    }

    /// Removes the files whose removal failed earlier.
    ///
    /// # Errors
    /// Fails when a removal fails again.
    pub(super) fn remove_what_is_left(&self) -> Result<()> {
        let mut outcome = Ok(());
        self.unremoved.borrow_mut().retain(|(kind, name)| {
            let removed = files::try_remove_at(self.folder(kind), name);
            let stays = removed.is_err();
            if outcome.is_ok() {
                outcome = removed;
            }
            stays
        });
        outcome
    }

    /// Whether the removal of a file failed.
    pub(super) fn has_leftovers(&self) -> bool {
        !self.unremoved.borrow().is_empty()
    }

    /// Whether the open folders are still at this path.
    ///
    /// # Errors
    /// Fails when the path cannot be examined.
    pub(super) fn are_at(&self, dir: &Path) -> std::io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let ours = [&self.containers, &self.pods, &self.pristine, &self.kept, &self.marks];
        let ours = ours.map(nix::sys::stat::fstat);
        let there = [CONTAINERS, PODS, PRISTINE, KEPT, MARKS].map(|name| dir.join(name).metadata());
        let ours = ours.into_iter().map(|stat| stat.map(|stat| (stat.st_dev, stat.st_ino)));
        for (ours, there) in ours.zip(there) {
            let there = there.if_there()?.map(|meta| (meta.dev(), meta.ino()));
            if there != Some(ours?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn write_container(&self, container: &Container) -> Result<()> {
        self.write(CONTAINERS, &file_name(&container.key), container)
    }

    /// Writes a container's current mark, or removes it.
    pub(super) fn write_mark(&self, container: &Container) -> Result<()> {
        let Some(mark) = container.mark() else {
            self.remove_mark(&container.key);
            return Ok(());
        };
        let name = mark::file_name(&mark.root, &mark.id);
        let Some(bytes) = mark.encode() else {
            self.remove_mark(&container.key);
            return Err(Error::new("the values for processes of exec are too large"));
        };
        let hash = fnv64(bytes.iter().copied());
        if self.marked.borrow().get(&name) != Some(&hash) {
            self.replace(MARKS, &name, &bytes)?;
            self.marked.borrow_mut().insert(name, hash);
        }
        Ok(())
    }

    /// Removes a container's mark, if it has one.
    pub(super) fn remove_mark(&self, key: &ContainerKey) {
        if self.marked.borrow().is_empty() {
            return;
        }
        let name = mark::file_name(&key.root, &key.id);
        if self.marked.borrow_mut().remove(&name).is_some() {
            self.remove(MARKS, &name);
        }
    }

    /// Removes the marks of an earlier daemon that belong to no container.
    pub(super) fn sweep_marks(&self, dir: &Path) {
        let marked = self.marked.borrow();
        for entry in presence::entries(&dir.join(MARKS)).or_absent().into_iter().flatten() {
            if !entry.file_name().to_str().is_some_and(|name| marked.contains_key(name)) {
                let _stale = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Removes a container's record and mark, and the engine's document stored for it.
    pub(super) fn remove_container(&self, container: &Container) {
        self.remove_mark(&container.key);
        self.remove(CONTAINERS, &file_name(&container.key));
        if let Some(patched) = &container.outcome.patched {
            self.remove(PRISTINE, &patched.pristine);
        }
    }

    /// Writes the record of a removed container.
    pub(super) fn write_kept(&self, container: &Container) -> Result<()> {
        self.write(KEPT, &file_name(&container.key), container)
    }

    /// Reads the record of a removed container.
    pub(super) fn kept(&self, key: &ContainerKey) -> Result<Container> {
        let file = file_name(key);
        let found = files::read_at(&self.kept, &file)?;
        serde_json::from_slice(&found.bytes)
            .map_err(|why| Error::new(format!("{KEPT}/{file}: {why}")))
    }

    /// Removes the record of a removed container.
    pub(super) fn remove_kept(&self, key: &ContainerKey) {
        self.remove(KEPT, &file_name(key));
    }

    pub(super) fn write_pod(&self, pod: &Pod) -> Result<()> {
        self.write(PODS, &pod_file(&pod.id), pod)
    }

    pub(super) fn remove_pod(&self, id: &str) {
        self.remove(PODS, &pod_file(id));
    }

    /// Stores an engine's document; returns the file's name. Until the container's record names the
    /// file, nothing refers to it, so it need not be written in one step.
    pub(super) fn keep_pristine(&self, incarnation: u64, bytes: &[u8]) -> Result<String> {
        let name = format!("{incarnation}.json");
        let written = files::write_at(&self.pristine, &name, bytes);
        if written.is_err() {
            // An incomplete file is of no use, and the disk may be full.
            files::remove_at(&self.pristine, &name);
        }
        written.map(|()| name)
    }

    pub(super) fn remove_pristine(&self, name: &str) {
        self.remove(PRISTINE, name);
    }

    pub(super) fn pristine(&self, name: &str) -> Result<Vec<u8>> {
        Ok(files::read_at(&self.pristine, name)?.bytes)
    }
}

/// Whether the records are of this boot, and complete.
///
/// # Errors
/// Fails when the stamp cannot be read.
pub(super) fn is_stamped(dir: &Path, boot_id: &str) -> Result<bool> {
    Ok(stamp_of(dir)?.is_some_and(|boot| boot == boot_id))
}

fn stamp_of(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(STAMP);
    match files::read_own_text(&path, limits::OWN_FILE).if_there() {
        // A stamp that will stay unreadable is treated as absent, and replaced.
        Err(error) if !error.may_pass() => Ok(None),
        read => read.doing(|| format!("reading {}", path.display())),
    }
}

/// Writes the ID of the boot to which these records belong.
pub(super) fn stamp(dir: &Path, boot_id: &str) -> Result<()> {
    files::replace(&dir.join(STAMP), boot_id.as_bytes())
}

/// Returns the files that were set aside, now or earlier.
pub(super) fn set_aside_before(dir: &Path) -> Vec<PathBuf> {
    // An unreadable folder is treated as empty, because the list is only shown to operators.
    let entries = presence::entries(&dir.join(ASIDE)).or_absent().into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Reads every record of this boot.
///
/// # Errors
/// Fails when the stamp or a folder cannot be read, or a record is unreadable for lack of a resource.
pub(super) fn load(dir: &Path, boot_id: &str) -> Result<LoadedRecords> {
    if presence::insist(|| stamp_of(dir))?.is_some_and(|boot| boot != boot_id) {
        // Files that were set aside in another boot are removed, with that boot's list of plugins,
        // because creates must not wait for those plugins.
        set_aside_before(dir).iter().for_each(|path| drop(std::fs::remove_file(path)));
        let _stale = std::fs::remove_file(dir.join(CONNECTED));
    }
    let mut problems = Vec::new();
    let mut containers = load_containers(dir, CONTAINERS, boot_id, &mut problems)?;
    let pods = load_all::<Pod>(dir, PODS, &mut problems, |pod| pod_file(&pod.id))?;
    let mut pods = keep(dir, pods, &mut problems, |pod| (pod.schema, pod.boot_id == boot_id));
    pods.iter_mut().for_each(|pod| pod.schema = SCHEMA);
    sweep(dir, &containers);
    let mut gone = load_containers(dir, KEPT, boot_id, &mut problems)?;
    gone.iter_mut().for_each(|container| container.state = Lifecycle::Removed);
    gone.sort_by_key(|container| container.incarnation);
    containers.sort_by_key(|container| container.incarnation);
    Ok(LoadedRecords { containers, pods, gone, problems })
}

fn load_containers(
    dir: &Path,
    kind: &str,
    boot_id: &str,
    problems: &mut Vec<String>,
) -> Result<Vec<Container>> {
    let containers = load_all::<Container>(dir, kind, problems, |found| file_name(&found.key))?;
    let is_now = |container: &Container| (container.schema, container.boot_id == boot_id);
    let mut containers = keep(dir, containers, problems, is_now);
    // From here on the records have this version's schema, whichever version wrote them.
    containers.iter_mut().for_each(|container| container.schema = SCHEMA);
    Ok(containers)
}

/// Removes engines' documents that no record names: the daemon was killed before it wrote the
/// record. While the directory of unusable records is not empty, all documents stay, because such a
/// record may name one.
fn sweep(dir: &Path, containers: &[Container]) {
    // If that directory cannot be listed, it may contain a record.
    if !matches!(presence::entries(&dir.join(ASIDE)), Ok(aside) if aside.is_empty()) {
        return;
    }
    let wanted: HashSet<&str> = containers
        .iter()
        .filter_map(|container| Some(container.outcome.patched.as_ref()?.pristine.as_str()))
        .collect();
    for entry in presence::entries(&dir.join(PRISTINE)).or_absent().into_iter().flatten() {
        if !entry.file_name().to_str().is_some_and(|name| wanted.contains(name)) {
            let _gone = std::fs::remove_file(entry.path());
        }
    }
}

fn load_all<T: DeserializeOwned>(
    dir: &Path,
    kind: &str,
    problems: &mut Vec<String>,
    name: impl Fn(&T) -> String,
) -> Result<Vec<(PathBuf, T)>> {
    let mut found = Vec::new();
    let folder = dir.join(kind);
    let entries = presence::insist(|| presence::entries(&folder));
    for entry in entries.doing(|| format!("reading {}", folder.display()))? {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            let _leftover_of_a_kill = std::fs::remove_file(&path);
            continue;
        }
        let read = presence::insist(|| files::read_own(&path, limits::OWN_FILE));
        let read = read.map_err(Error::from);
        let parsed = read
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| Error::json(&error)));
        match parsed {
            // A file that is unreadable for good is set aside; if only a resource is short, the
            // start fails and is retried.
            Err(error) if error.is_shortage() => {
                return Err(error.doing(format!("reading {}", path.display())));
            }
            // Later writes and removals would use the file name that belongs to the record.
            Ok(record) if !path.ends_with(name(&record)) => {
                set_aside(dir, &path, "its content and its name differ", problems);
            }
            Ok(record) => found.push((path, record)),
            Err(error) => set_aside(dir, &path, &error.to_string(), problems),
        }
    }
    Ok(found)
}

fn keep<T>(
    dir: &Path,
    records: Vec<(PathBuf, T)>,
    problems: &mut Vec<String>,
    check: impl Fn(&T) -> (u32, bool),
) -> Vec<T> {
    let mut kept = Vec::new();
    for (path, record) in records {
        match check(&record) {
            (SCHEMA | NEXT, true) => kept.push(record),
            // The record is of another boot, whose containers no longer exist.
            (_, false) => {
                let _stale = std::fs::remove_file(&path);
            }
            (schema, true) => set_aside(dir, &path, &format!("schema {schema}"), problems),
        }
    }
    kept
}

fn set_aside(dir: &Path, path: &Path, why: &str, problems: &mut Vec<String>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let names = (1..100).map(|again| format!("{name}.{again}"));
    let free = std::iter::once(name.to_string()).chain(names);
    let is_free = |aside: &PathBuf| matches!(presence::exists(aside), Ok(false));
    let mut free = free.map(|name| dir.join(ASIDE).join(name)).filter(is_free);
    if let Some(aside) = free.next() {
        let _or_leave_it = std::fs::rename(path, aside);
    }
    problems.push(format!("{} cannot be used and was set aside: {why}", path.display()));
}

/// Returns a file name for a key: there are several roots, and an ID may contain anything that the
/// runtime accepts.
fn file_name(key: &ContainerKey) -> String {
    // The hash covers the root and the end of the ID that is cut off; it is short and the same in
    // every version. The ID makes the name readable.
    let cut = key.id.bytes().skip(limits::ID_IN_FILE_NAME);
    let hash = fnv64(key.root.bytes().chain(cut));
    format!("{}-{hash:016x}.json", escaped(&key.id))
}

fn pod_file(id: &str) -> String {
    format!("{}.json", escaped(id))
}

fn escaped(id: &str) -> String {
    let mut name = String::new();
    for byte in id.bytes().take(limits::ID_IN_FILE_NAME) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+') {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    name
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Store, Wire};
    use super::*;

    pub(crate) fn container(id: &str) -> Container {
        let json = serde_json::json!({
            "schema": SCHEMA, "boot_id": "boot", "key": {"root": "/run/runc", "id": id},
            "incarnation": 7, "runtime": "/usr/bin/runc", "global_flags": [], "bundle": "/b",
            "is_sandbox": false, "pod": id, "name": id, "state": "created", "pid_file": null,
            "init_pid": 1, "init_start": 2, "engine": "plain", "evidence": [], "variables": [],
            "message": "", "engine_resources": {}, "overlay": {}, "owners": {}, "patched": null,
            "changes": [], "refused": [], "skipped": [], "in_flight": null
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_new_daemon_finds_the_old_ones_records() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("../odd/id")).unwrap();
        let (mut store, problems) = Store::open(temp.path(), "boot").unwrap();
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(store.containers().next(), Some(&container("../odd/id")));
        assert_eq!(store.next_incarnation(), 8);
    }

    #[test]
    fn every_member_of_a_record_keeps_its_name_and_form() {
        let text = include_str!("../../fixtures/records/whole_container.json");
        let record: Container = serde_json::from_str(text).unwrap();
        let on_disk: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&record).unwrap(), on_disk);
        assert_eq!(record.unknown.keys().collect::<Vec<_>>(), ["newer"]);
        // The file has every member that is always written, none with its default value. Of the
        // other members, only the form is compared.
        let [whole, empty] =
            [record, Container::default()].map(|c| serde_json::to_value(c).unwrap());
        let same =
            empty.as_object().unwrap().iter().filter(|(name, value)| whole[*name] == **value);
        assert_eq!(same.collect::<Vec<_>>(), []);
    }

    #[test]
    fn records_of_another_boot_are_ignored() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("a")).unwrap();
        let (store, problems) = Store::open(temp.path(), "another").unwrap();
        assert_eq!((store.containers().count(), problems.len()), (0, 0));
    }

    #[test]
    fn garbage_is_set_aside_with_one_line_and_the_rest_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("good")).unwrap();
        files::replace(&temp.path().join("containers/bad.json"), b"{\"schema\": ").unwrap();
        let mut newer = container("newer");
        newer.schema = SCHEMA + 2;
        RecordFolders::open(temp.path()).unwrap().write_container(&newer).unwrap();
        let (store, problems) = Store::open(temp.path(), "boot").unwrap();
        assert_eq!(store.containers().count(), 1);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(temp.path().join("aside/bad.json").exists());
    }

    #[test]
    fn a_record_of_the_next_version_is_used_and_keeps_its_members() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        let mut newer = container("newer");
        newer.schema = SCHEMA + 1;
        newer.unknown.insert("mood".to_owned(), "fine".into());
        store.put(newer.clone()).unwrap();
        for _twice in 0..2 {
            let (mut store, problems) = Store::open(temp.path(), "boot").unwrap();
            assert_eq!(problems, Vec::<String>::new());
            store.change(&newer.key, |record| record.state = Lifecycle::Stopped).unwrap();
            assert_eq!(store.container(&newer.key).unwrap().unknown["mood"], "fine");
        }
    }

    #[test]
    fn unused_documents_are_removed_unless_a_record_was_set_aside() {
        let temp = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(temp.path(), "boot").unwrap();
        store.keep_pristine(3, b"{}").unwrap();
        assert!(Store::open(temp.path(), "boot").unwrap().0.pristine("3.json").is_err());
        store.keep_pristine(3, b"{}").unwrap();
        files::replace(&temp.path().join("containers/bad.json"), b"{").unwrap();
        assert!(Store::open(temp.path(), "boot").unwrap().0.pristine("3.json").is_ok());
    }

    #[test]
    fn containers_are_found_by_id_pod_and_bundle_until_forgotten() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        let (mut one, mut two) = (container("a"), container("a"));
        two.key.root = "/run/other".to_owned();
        (one.pod, two.pod) = ("p".to_owned(), "q".to_owned());
        store.put(one.clone()).unwrap();
        store.put(two.clone()).unwrap();
        store.change(&one.key, |record| record.pod = "q".to_owned()).unwrap();
        let counts = |store: &Store| {
            let pods = ["p", "q"].map(|pod| store.of_pod(pod).count());
            (store.of_id("a").count(), pods, store.of_folder("/b").count())
        };
        assert_eq!(counts(&store), (2, [0, 2], 2));
        store.forget(&one.key);
        assert_eq!(counts(&store), (1, [0, 1], 1));
        store.forget(&two.key);
        assert_eq!(counts(&store), (0, [0, 0], 0));
    }

    #[test]
    fn a_write_refused_by_a_full_disk_is_repeated_later() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        for id in ["a", "b"] {
            store.put(container(id)).unwrap();
        }
        // Blocks the name of the temporary file. (The folder itself is open, so moving it would
        // have no effect.)
        let name = format!(".{}.new", file_name(&container("a").key));
        let obstacle = temp.path().join("containers").join(name);
        std::fs::create_dir(&obstacle).unwrap();
        let stops = |c: &mut Container| c.state = Lifecycle::Stopped;
        assert!(store.note(&container("a").key, stops).is_err());
        let first = store.containers().next().map(|c| c.state);
        assert_eq!((first, store.unwritten()), (Some(Lifecycle::Stopped), vec!["a"]));
        std::fs::remove_dir(&obstacle).unwrap();
        store.note(&container("b").key, stops).unwrap();
        let (store, _) = Store::open(temp.path(), "boot").unwrap();
        assert!(store.containers().all(|c| c.state == Lifecycle::Stopped));
    }

    #[test]
    fn a_record_kept_after_removal_is_loaded_by_the_next_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        for id in ["a", "b"] {
            store.put(container(id)).unwrap();
            store.keep(&container(id)).unwrap();
            store.forget(&container(id).key);
        }
        store.drop_kept(&container("a").key);
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        let gone: Vec<_> = store.gone("").map(|c| (c.key.id.clone(), c.state)).collect();
        assert_eq!(gone, [("b".to_owned(), Lifecycle::Removed)]);
        assert_eq!((store.containers().count(), store.next_incarnation()), (0, 8));
        let (store, _) = Store::open(temp.path(), "another").unwrap();
        assert_eq!(store.gone("").count(), 0);
    }

    #[test]
    fn a_flood_of_short_lived_containers_is_not_kept_for_ever() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        for number in 0..300 {
            store.keep(&container(&number.to_string())).unwrap();
        }
        assert_eq!(std::fs::read_dir(temp.path().join("kept")).unwrap().count(), 256);
    }

    #[test]
    fn another_boot_has_neither_stamp_nor_records_set_aside() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        assert!(!store.is_stamped());
        store.stamp().unwrap();
        files::replace(&temp.path().join("aside/old.json"), b"{").unwrap();
        let (store, _) = Store::open(temp.path(), "boot").unwrap();
        assert!(store.is_stamped());
        assert_eq!(store.set_aside(), [temp.path().join("aside/old.json")]);
        let (store, _) = Store::open(temp.path(), "another").unwrap();
        assert!(!store.is_stamped() && store.set_aside().is_empty());
    }

    #[test]
    fn an_irregular_file_is_set_aside_and_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("a")).unwrap();
        let fifo = |name: &str| {
            let path = temp.path().join(name);
            let _earlier = std::fs::remove_file(&path);
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        };
        let names = ["containers/b.json", "pods/p.json", "kept/c.json", "containers/d", STAMP];
        names.into_iter().for_each(fifo);
        let (mut store, problems) = Store::open(temp.path(), "boot").unwrap();
        assert_eq!((store.containers().count(), store.set_aside().len()), (1, 3), "{problems:?}");
        assert!(
            problems.iter().all(|line| line.contains("it is not a regular file")),
            "{problems:?}"
        );
        assert!(!store.is_stamped());
        store.stamp().unwrap();
        assert!(Store::open(temp.path(), "boot").unwrap().0.is_stamped());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_quoted() {
        let temp = tempfile::tempdir().unwrap();
        drop(Store::open(temp.path(), "boot").unwrap());
        let path = temp.path().join("containers/a.json");
        for text in ["s3cret", "{\"schema\": \"s3cret\"}"] {
            files::replace(&path, text.as_bytes()).unwrap();
            let (_, problems) = Store::open(temp.path(), "boot").unwrap();
            assert!(problems[0].contains("in line 1, column "), "{problems:?}");
            assert!(!problems[0].contains("s3cret"), "{problems:?}");
        }
    }

    #[test]
    fn a_misnamed_record_is_set_aside_without_overwriting_another() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("a")).unwrap();
        let record = temp.path().join("containers").join(file_name(&container("a").key));
        for _twice in 0..2 {
            std::fs::copy(&record, temp.path().join("containers/b.json")).unwrap();
            let (store, problems) = Store::open(temp.path(), "boot").unwrap();
            assert_eq!((store.containers().count(), problems.len()), (1, 1), "{problems:?}");
        }
        assert_eq!(store.set_aside().len(), 2);
    }

    #[test]
    fn ids_that_differ_only_at_their_ends_have_separate_records() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        for end in ["a", "b"] {
            store.put(container(&format!("{}{end}", "x".repeat(200)))).unwrap();
        }
        assert_eq!(Store::open(temp.path(), "boot").unwrap().0.containers().count(), 2);
    }

    #[test]
    fn a_record_that_cannot_be_rewritten_is_not_reported_as_kept() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        let (mut store, _) = Store::open(&dir, "boot").unwrap();
        store.put(container("a")).unwrap();
        store.stamp().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let in_the_way = dir.join("containers").join(file_name(&container("a").key));
        std::fs::create_dir_all(in_the_way.join("full")).unwrap();
        assert!(store.rebuild().is_err());
        assert!(!is_stamped(&dir, "boot").unwrap());
        std::fs::remove_dir_all(&in_the_way).unwrap();
        store.rebuild().unwrap();
        assert!(is_stamped(&dir, "boot").unwrap());
    }

    #[test]
    fn removed_folders_are_restored_with_their_files() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        let (mut store, _) = Store::open(&dir, "boot").unwrap();
        store.put(container("a")).unwrap();
        store.keep(&container("b")).unwrap();
        store.put(container("b")).unwrap();
        store.forget(&container("b").key);
        // The runtime never created the next container of this ID.
        let mut not_started = container("b");
        not_started.process.init_pid = None;
        store.put(not_started).unwrap();
        store.forget(&container("b").key);
        std::fs::remove_dir_all(&dir).unwrap();
        let stops = |c: &mut Container| c.state = Lifecycle::Stopped;
        assert!(store.note(&container("a").key, stops).is_err());
        store.rebuild().unwrap();
        let (again, problems) = Store::open(&dir, "boot").unwrap();
        assert_eq!(problems, Vec::<String>::new());
        assert!(again.is_stamped() && again.containers().all(|c| c.state == Lifecycle::Stopped));
        assert_eq!(again.containers().count(), 1);
        assert_eq!(again.gone("").map(|gone| gone.process.init_pid).collect::<Vec<_>>(), [Some(1)]);
    }

    #[test]
    fn a_record_is_written_although_its_folder_was_deleted() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        let (mut store, _) = Store::open(&dir, "boot").unwrap();
        store.put(container("a")).unwrap();
        store.stamp().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        store.put(container("b")).unwrap();
        // The other records are still missing, and the next daemon must see that.
        assert!(
            !store.is_in_place().unwrap() && !Store::open(&dir, "boot").unwrap().0.is_stamped()
        );
        store.rebuild().unwrap();
        assert_eq!(Store::open(&dir, "boot").unwrap().0.containers().count(), 2);
    }

    #[test]
    fn a_record_is_refused_while_its_folder_cannot_be_created() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        let (mut store, _) = Store::open(&dir, "boot").unwrap();
        store.stamp().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        files::replace(&dir, b"in the way").unwrap();
        let refusal = store.put(container("a")).unwrap_err().to_string();
        assert!(refusal.contains(&format!("recording in {}", dir.display())), "{refusal}");
        assert_eq!(store.containers().count(), 0);
    }

    #[test]
    fn a_forgotten_container_is_still_explained_but_not_on_disk() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("a")).unwrap();
        store.forget(&container("a").key);
        assert_eq!(store.gone("").next().map(|c| c.state), Some(Lifecycle::Removed));
        assert_eq!(Store::open(temp.path(), "boot").unwrap().0.containers().count(), 0);
    }

    #[test]
    fn a_removed_containers_record_keeps_the_data_for_explain() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        let whole = |id: &str| {
            let mut record = Container { message: Wire(vec![1; 4096].into()), ..container(id) };
            record.resources.overlay = serde_json::from_str(r#"{"cpu": {"shares": 7}}"#).unwrap();
            record.outcome.refused = vec!["why".to_owned()];
            record
        };
        store.put(whole("a")).unwrap();
        store.forget(&whole("a").key);
        // A container that may be re-created under its ID needs its whole record.
        store.keep(&whole("b")).unwrap();
        store.put(whole("b")).unwrap();
        store.forget(&whole("b").key);
        let gone: Vec<_> = store.gone("").map(std::borrow::Cow::into_owned).collect();
        assert_eq!((gone[0].message.0.len(), gone[1].message.0.len()), (0, 4096));
        assert!(gone[0].resources.overlay.is_empty() && !gone[1].resources.overlay.is_empty());
        assert_eq!(gone[0].outcome.refused, ["why"]);
        assert_eq!(
            (&gone[0].name, &gone[0].outcome.changes),
            (&whole("a").name, &whole("a").outcome.changes)
        );
    }

    #[test]
    fn a_full_disk_leaves_memory_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(temp.path(), "boot").unwrap();
        store.put(container("a")).unwrap();
        std::fs::remove_dir_all(temp.path().join("containers")).unwrap();
        files::replace(&temp.path().join("containers"), b"in the way").unwrap();
        let key = container("a").key;
        assert!(store.change(&key, |c| c.state = Lifecycle::Stopped).is_err());
        assert_eq!(store.container(&key).map(|c| c.state), Some(Lifecycle::Created));
    }
}
