// SPDX-License-Identifier: Apache-2.0
//! Watches containers that the runtime has deleted but their engine still keeps: containerd's CRI
//! plugin has a folder for each container and sandbox until it removes them. Such a container
//! is removed, and plugins are notified, once that folder is gone.
//!
//! One watch serves all folders with the same parent. Without a watch, and for every other engine, the
//! runtime's `delete` is the removal. This module never writes to these folders.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tracing::{debug, info};

use crate::daemon::lifecycle::{removal, settle};
use crate::daemon::shared::Daemon;
use crate::daemon::watch::folders::{FolderEvent, WatchedFolder};
use crate::engine::EngineKind;
use crate::error::Result;
use crate::host::Host;
use crate::limits::UNTIL_REMOVED;
use crate::presence::{self, Backoff};
use crate::state::{Container, ContainerKey};

/// Returns the engine's folder of this container, if the engine has one.
fn folder(host: &Host, record: &Container) -> Option<PathBuf> {
    let (id, is_sandbox) = (&record.key.id, record.is_sandbox);
    let folder =
        (record.engine.behaviour().folder_until_removed)(&record.call.bundle, id, is_sandbox)?;
    Some(host.path(folder))
}

/// Whether the engine still keeps this container, and the daemon will see its removal.
///
/// # Errors
/// Fails when the folder cannot be examined.
pub(crate) async fn is_kept(daemon: &Rc<Daemon>, record: &Container) -> Result<bool> {
    let Some(folder) = folder(&daemon.host, record) else { return Ok(false) };
    // Watched before the check, so that no removal in between is missed.
    let Some(home) = folder.parent() else { return Ok(false) };
    Ok(daemon.look(&folder, presence::is_dir).await?
        && watch(daemon, home).await
        && daemon.look(&folder, presence::is_dir).await?)
}

/// Removes a deleted container unless its engine keeps it; checks at growing intervals until that is known.
pub(crate) fn look_again(daemon: &Rc<Daemon>, record: &Rc<Container>) {
    let (daemon, record) = (Rc::clone(daemon), Rc::clone(record));
    tokio::task::spawn_local(async move {
        let mut backoff = Backoff::default();
        loop {
            tokio::time::sleep(backoff.next()).await;
            match remove_unless_kept(&daemon, &record, false).await {
                Ok(()) => return,
                Err(unknown) => debug!("{}: {unknown}", record.key.id),
            }
        }
    });
}

/// Watches the folder of the engine's containers; false if that fails or the folder does not exist.
async fn watch(daemon: &Rc<Daemon>, home: &Path) -> bool {
    if daemon.watches.kept_homes.borrow().contains(home) {
        return true;
    }
    match daemon.watch_folder(home).await {
        Ok(Some(watched)) => {
            // Another container's removal may have added the watch meanwhile.
            if daemon.watches.kept_homes.borrow_mut().insert(home.to_owned()) {
                tokio::task::spawn_local(follow(Rc::clone(daemon), home.to_owned(), watched));
            }
            true
        }
        Ok(None) => false,
        Err(_no_watch) => {
            let what = "cannot watch for removed containers (inotify limit reached): plugins are \
                        notified of their removal when the runtime deletes them";
            daemon.report.note_missing(EngineKind::ContainerdCri.name(), what, "");
            false
        }
    }
}

async fn follow(daemon: Rc<Daemon>, home: PathBuf, mut watched: WatchedFolder) {
    loop {
        match watched.next().await {
            FolderEvent::Came(_) => {}
            FolderEvent::Went(name) => remove_all(&daemon, deleted(&daemon, &home, Some(&name))),
            FolderEvent::Unknown => remove_all(&daemon, deleted(&daemon, &home, None)),
            FolderEvent::Gone => break,
        }
    }
    // Another folder may have the path by now; the next deleted container adds a watch of it.
    daemon.watches.kept_homes.borrow_mut().remove(&home);
    remove_all(&daemon, deleted(&daemon, &home, None));
}

/// Returns the deleted containers with a folder in `home`, oldest first: those of this name, or all.
fn deleted(daemon: &Daemon, home: &Path, name: Option<&OsStr>) -> Vec<Rc<Container>> {
    let id = name.map(|name| name.to_string_lossy().into_owned());
    let mut records: Vec<Rc<Container>> = {
        let store = daemon.records.read();
        match &id {
            Some(id) => {
                let keys: Vec<ContainerKey> = store.of_id(id).map(|c| c.key.clone()).collect();
                keys.iter().filter_map(|key| store.shared(key)).collect()
            }
            None => store.all_shared(),
        }
    };
    records.retain(|record| {
        record.is_deleted
            && folder(&daemon.host, record).is_some_and(|path| path.parent() == Some(home))
    });
    records.sort_by_key(|record| record.incarnation);
    records
}

/// Removes each of these containers, unless its engine still keeps it; in a task, because plugins may
/// be slow.
fn remove_all(daemon: &Rc<Daemon>, records: Vec<Rc<Container>>) {
    if records.is_empty() {
        return;
    }
    let (daemon, active) = (Rc::clone(daemon), daemon.process.activity.begin());
    tokio::task::spawn_local(async move {
        for record in records {
            if remove_unless_kept(&daemon, &record, false).await.is_err() {
                look_again(&daemon, &record);
            }
        }
        drop(active);
    });
}

/// Removes a deleted container, unless its engine still keeps it; with `in_any_case`, even then.
async fn remove_unless_kept(
    daemon: &Rc<Daemon>,
    record: &Container,
    in_any_case: bool,
) -> Result<()> {
    let key = &record.key;
    let lane = daemon.lane(key);
    let turn = lane.turn.lock().await;
    settle::settle_exited(daemon, key, &lane).await;
    let now = daemon.container(key).filter(|now| now.incarnation == record.incarnation);
    let now = now.filter(|now| now.is_deleted);
    let is_kept = match now {
        Some(now) if !in_any_case => is_kept(daemon, &now).await.map(Some),
        now => Ok(now.map(|_in_any_case| false)),
    };
    if matches!(is_kept, Ok(Some(false))) {
        removal::remove(daemon, key).await;
    }
    drop(turn);
    daemon.lanes.release(key, lane);
    is_kept.map(|_known| ())
}

/// Limits the number of deleted containers that are kept, because an engine may never remove them.
pub(crate) fn bound(daemon: &Rc<Daemon>) {
    let mut kept = daemon.records.read().all_shared();
    kept.retain(|record| record.is_deleted);
    let surplus = kept.len().saturating_sub(UNTIL_REMOVED);
    if surplus == 0 {
        return;
    }
    kept.sort_by_key(|record| record.incarnation);
    kept.truncate(surplus);
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        for record in kept {
            let id = &record.key.id;
            info!(
                "{id} counts as removed: its engine keeps more than {UNTIL_REMOVED} exited containers"
            );
            let _is_removed = remove_unless_kept(&daemon, &record, true).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::state::Store;

    /// Returns a deleted container that containerd still keeps.
    fn record(dir: &Path, number: usize) -> Container {
        let id = format!("c{number}");
        let bundle = dir.join("io.containerd.runtime.v2.task/k8s.io").join(&id);
        let json = serde_json::json!({
            "schema": 1, "boot_id": "boot", "key": {"root": dir.join("root"), "id": id},
            "incarnation": number, "runtime": "/usr/bin/runc", "global_flags": [],
            "bundle": bundle, "is_sandbox": false, "pod": "p", "name": "c", "state": "stopped",
            "pid_file": null, "init_pid": 5, "init_start": 2, "engine": "containerd-cri",
            "evidence": [], "variables": [], "message": "", "engine_resources": {}, "overlay": {},
            "owners": {}, "patched": null, "changes": [], "refused": [], "skipped": [],
            "in_flight": null, "is_deleted": true
        });
        let record: Container = serde_json::from_value(json).unwrap();
        let folder = format!("io.containerd.grpc.v1.cri/containers/{}", record.key.id);
        std::fs::create_dir_all(dir.join(folder)).unwrap();
        record
    }

    #[tokio::test]
    async fn stopped_containers_that_are_never_removed_are_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { run_dir: temp.path().join("run"), ..Config::default() };
        let host = config.host();
        let store = Store::open(&temp.path().join("state"), "boot").unwrap().0;
        let daemon = Daemon::new(config, host, store);
        for number in 0..UNTIL_REMOVED + 3 {
            daemon.records.put(record(temp.path(), number)).unwrap();
        }
        let known = || daemon.records.read().containers().count();
        let story = async {
            bound(&daemon);
            while known() > UNTIL_REMOVED {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            bound(&daemon);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        tokio::task::LocalSet::new().run_until(story).await;
        assert_eq!(known(), UNTIL_REMOVED);
        let oldest = daemon.records.read().containers().map(|c| c.incarnation).min();
        assert_eq!(oldest, Some(3), "the oldest counted as removed");
    }
}
