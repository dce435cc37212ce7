// SPDX-License-Identifier: Apache-2.0
//! Caches facts about the host and its engines, so that they are not read for each container.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::cgroup::{Cgroups, Mounts};
use crate::daemon::runtime::exit_status::ExitCodes;
use crate::daemon::runtime::state_dir::{self, RecordedCgroups};
use crate::error::Result;
use crate::host::Host;
use crate::limits;
use crate::runtime::features::KnownRuntimes;
use crate::sources::Sources;
use crate::state::{Container, Lifecycle};

#[derive(Default)]
pub(crate) struct Caches {
    /// Known runtimes; shared with the threads that query runtimes' features.
    pub(crate) runtimes: Arc<KnownRuntimes>,
    /// The engines' files and sockets.
    pub(crate) sources: Sources,
    /// Exit codes that containerd published, and engines whose monitors write none.
    pub(crate) exit_codes: ExitCodes,
    mounts: RefCell<Option<Rc<Mounts>>>,
    /// The cgroups of updated containers, by incarnation.
    container_cgroups: RefCell<HashMap<u64, Rc<CachedCgroups>>>,
    own_cgroups: OnceCell<Option<Rc<Cgroups>>>,
}

/// A container's cgroups.
#[derive(Default)]
pub(crate) struct CachedCgroups {
    /// As its runtime recorded them.
    pub(crate) recorded: RecordedCgroups,
    /// Its process's membership when it was last read, and the cgroups that follow from it.
    pub(crate) latest: RefCell<Option<(Vec<u8>, Cgroups)>>,
}

impl Caches {
    /// Returns the mount points of cgroups; cached, because a host with many containers has many mounts.
    ///
    /// # Errors
    /// Fails when the mount table cannot be read.
    pub(crate) fn cgroup_mounts(&self, host: &Host) -> Result<Rc<Mounts>> {
        if let Some(known) = &*self.mounts.borrow() {
            return Ok(Rc::clone(known));
        }
        let read = Rc::new(Mounts::read(host)?);
        *self.mounts.borrow_mut() = Some(Rc::clone(&read));
        Ok(read)
    }

    /// Returns a container's cgroups, as its runtime recorded them and as they were last found. The runtime's state is
    /// read once for each container: it may be hundreds of kilobytes long, and its cgroups never change.
    ///
    /// # Errors
    /// Fails when the state cannot be read.
    pub(crate) fn container_cgroups(
        &self,
        host: &Host,
        record: &Container,
    ) -> io::Result<Rc<CachedCgroups>> {
        if let Some(known) = self.container_cgroups.borrow().get(&record.incarnation) {
            return Ok(Rc::clone(known));
        }
        let Some(recorded) = state_dir::cgroups(host, &record.key)? else {
            return Ok(Rc::default());
        };
        let new = Rc::new(CachedCgroups { recorded, latest: RefCell::default() });
        if record.state == Lifecycle::Creating {
            return Ok(new); // The runtime may complete its state.
        }
        let mut known = self.container_cgroups.borrow_mut();
        let any = known.keys().next().copied().filter(|_| known.len() >= limits::CACHED_CGROUPS);
        any.map(|any| known.remove(&any));
        known.insert(record.incarnation, Rc::clone(&new));
        Ok(new)
    }

    /// Drops the cached cgroups of a container whose record is removed.
    pub(crate) fn forget_cgroups(&self, incarnation: u64) {
        self.container_cgroups.borrow_mut().remove(&incarnation);
    }

    /// Returns the daemon's own cgroups, which do not change once it is ready; `None` if they cannot be found.
    ///
    /// # Errors
    /// Fails when they cannot be read now.
    pub(crate) fn own_cgroups(&self, host: &Host, mounts: &Mounts) -> Result<Option<Rc<Cgroups>>> {
        if let Some(known) = self.own_cgroups.get() {
            return Ok(known.clone());
        }
        let found = match Cgroups::find(host, mounts, std::process::id(), &BTreeMap::new()) {
            Ok(found) => Some(Rc::new(found)),
            Err(error) if error.may_pass() => return Err(error),
            Err(_none) => None,
        };
        Ok(self.own_cgroups.get_or_init(|| found).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::state::ContainerKey;

    #[test]
    fn a_runtimes_state_is_read_once_for_each_created_container() {
        let temp = tempfile::tempdir().unwrap();
        let (caches, host) = (Caches::default(), Host::default());
        let key = ContainerKey { root: temp.path().display().to_string(), id: "c".to_owned() };
        let record = |incarnation, state| Container {
            key: key.clone(),
            incarnation,
            state,
            ..Container::default()
        };
        let path_of = |record: &Container| {
            let known = caches.container_cgroups(&host, record).unwrap();
            known.recorded.paths.get("cpu").map(|path| path.display().to_string())
        };
        let write = |path: &str| {
            let text =
                format!("{{\"init_process_pid\":7,\"cgroup_paths\":{{\"cpu\":\"{path}\"}}}}");
            files::replace(&temp.path().join("c/state.json"), text.as_bytes()).unwrap();
        };
        let (first, running) = (record(1, Lifecycle::Creating), record(1, Lifecycle::Running));
        assert_eq!(path_of(&running), None, "there is no state yet");
        std::fs::create_dir(temp.path().join("c")).unwrap();
        for path in ["/a", "/b"] {
            write(path);
            assert_eq!(path_of(&first).as_deref(), Some(path));
        }
        assert_eq!(path_of(&running).as_deref(), Some("/b"));
        write("/c");
        assert_eq!(path_of(&running).as_deref(), Some("/b"), "it was read before");
        for incarnation in 0..limits::CACHED_CGROUPS {
            let later = record(2 + u64::try_from(incarnation).unwrap(), Lifecycle::Running);
            assert_eq!(path_of(&later).as_deref(), Some("/c"));
            assert!(caches.container_cgroups.borrow().len() <= limits::CACHED_CGROUPS);
        }
        assert_eq!(caches.container_cgroups.borrow().len(), limits::CACHED_CGROUPS);
        caches.forget_cgroups(1);
        assert_eq!(path_of(&running).as_deref(), Some("/c"), "it was forgotten");
    }

    #[test]
    fn an_unreadable_state_is_an_error_and_is_not_kept() {
        let temp = tempfile::tempdir().unwrap();
        let (caches, host) = (Caches::default(), Host::default());
        let key = ContainerKey { root: temp.path().display().to_string(), id: "c".to_owned() };
        let record = Container { key, state: Lifecycle::Running, ..Container::default() };
        let folder = temp.path().join("c");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("state.json", folder.join("state.json")).unwrap();
        assert!(caches.container_cgroups(&host, &record).is_err());
        std::fs::remove_file(folder.join("state.json")).unwrap();
        assert!(caches.container_cgroups(&host, &record).unwrap().recorded.paths.is_empty());
    }
}
