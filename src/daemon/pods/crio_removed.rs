// SPDX-License-Identifier: Apache-2.0
//! Follows pods that end without a runtime call: without infrastructure containers, CRI-O
//! represents a pod by a folder (decision D20). The daemon watches the folder: the pod is stopped
//! when CRI-O has marked it and its last container has exited, and removed when its document and
//! its last container are gone. This module writes nothing to CRI-O's folders, and polls only while the
//! kernel has no inotify watch left, or a folder cannot be examined.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::select_all;

use crate::error::Result;
use crate::presence::{self, Backoff, IfThere};

use crate::daemon::pods::{life, stopping};
use crate::daemon::shared::Daemon;
use crate::daemon::watch::folders::WatchedFolder;

/// Interval of checks of a pod while the kernel has no inotify watch left, or the pod's folder cannot be examined.
const UNWATCHED_CHECK: Duration = Duration::from_secs(5);

/// The file with which CRI-O marks a pod as stopped.
const MARK: &str = "stopped";
/// CRI-O's default roots: the mark may be below either.
const ROOTS: [&str; 2] = ["/run/containers/storage/", "/var/lib/containers/storage/"];

/// Watches a pod that CRI-O represents by a folder, and stops and ends it as CRI-O does; does nothing for other pods.
pub(crate) fn follow(daemon: &Rc<Daemon>, id: &str) {
    let path = daemon.records.read().pod(id).and_then(|pod| pod.lives_with.clone());
    let Some(path) = path.map(|path| daemon.host.path(path)) else { return };
    let (daemon, id) = (Rc::clone(daemon), id.to_owned());
    tokio::task::spawn_local(async move {
        // `None` if the kernel has no watch left; then the pod is checked at intervals.
        let mut watched = watch(&daemon, &path).await;
        loop {
            // Registered before the check, so that no notification in between is missed.
            let forgotten = daemon.watches.crio.forgotten.notified();
            let is_there = daemon.look(&path, presence::exists).await;
            if matches!(is_there, Ok(false)) || daemon.records.read().pod(&id).is_none() {
                break;
            }
            let is_known = stop_if_marked(&daemon, &id).await.is_ok() && is_there.is_ok();
            let again = async {
                match &mut watched {
                    Some(watched) if is_known => something_changes(watched).await,
                    _ => tokio::time::sleep(UNWATCHED_CHECK).await,
                }
            };
            tokio::select! {
                () = again => {}
                () = forgotten => {}
            }
            if watched.is_none() {
                watched = watch(&daemon, &path).await;
            }
        }
        life::end_if_empty(&daemon, &id).await;
        daemon.lanes.drop_idle_pod(&daemon.records.read(), &id);
    });
}

/// Watches the folders of the pod; `None` if the kernel has no watch left for one of them.
async fn watch(daemon: &Daemon, document: &Path) -> Option<Vec<WatchedFolder>> {
    let mut watched = Vec::new();
    for folder in folders(document) {
        watched.extend(daemon.watch_folder(&folder).await.or_absent()?);
    }
    Some(watched)
}

async fn something_changes(watched: &mut [WatchedFolder]) {
    if watched.is_empty() {
        return tokio::time::sleep(UNWATCHED_CHECK).await;
    }
    select_all(watched.iter_mut().map(|folder| Box::pin(folder.next()))).await;
    watched.iter_mut().for_each(WatchedFolder::drain);
}

/// Follows every pod that an earlier daemon recorded.
pub(crate) fn follow_all(daemon: &Rc<Daemon>) {
    let ids: Vec<String> = daemon.records.read().pods().map(|pod| pod.id.clone()).collect();
    for id in ids {
        follow(daemon, &id);
    }
}

/// Checks a pod whose container has exited, in a task, because the caller still holds the
/// container's turn.
pub(crate) fn check_pod(daemon: &Rc<Daemon>, id: &str) {
    if daemon.records.read().pod(id).is_some_and(|pod| pod.lives_with.is_some()) {
        let (daemon, id) = (Rc::clone(daemon), id.to_owned());
        tokio::task::spawn_local(async move {
            let mut backoff = Backoff::default();
            while stop_if_marked(&daemon, &id).await.is_err() {
                tokio::time::sleep(backoff.next()).await;
            }
        });
    }
}

/// Sends StopPodSandbox if the engine has stopped the pod and plugins know that every member has
/// exited.
///
/// # Errors
/// Fails when CRI-O's mark cannot be examined.
async fn stop_if_marked(daemon: &Rc<Daemon>, id: &str) -> Result<()> {
    let path = daemon.records.read().pod(id).and_then(|pod| pod.lives_with.clone());
    let Some(path) = path.map(|path| daemon.host.path(path)) else { return Ok(()) };
    let mut is_marked = false;
    for folder in folders(&path) {
        is_marked |= daemon.look(&folder.join(MARK), presence::exists).await?;
    }
    if !is_marked {
        return Ok(());
    }
    stopping::stop_after(daemon, id, |_| true, || true).await;
    Ok(())
}

/// Returns the pod's folders: the document's, and if that is below a default root of CRI-O's storage (run root or
/// graph root), the one below the other root.
fn folders(document: &Path) -> Vec<PathBuf> {
    let Some(folder) = document.parent() else { return Vec::new() };
    let text = folder.to_string_lossy();
    let others = [(ROOTS[0], ROOTS[1]), (ROOTS[1], ROOTS[0])];
    let other = others.iter().find(|(from, _)| text.contains(from));
    let other = other.map(|(from, to)| PathBuf::from(text.replacen(from, to, 1)));
    [Some(folder.to_owned()), other].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::state::{Pod, Store};

    fn daemon(dir: &Path) -> Rc<Daemon> {
        let config = Config { run_dir: dir.join("run"), ..Config::default() };
        let host = config.host();
        let mut store = Store::open(&dir.join("state"), "boot").unwrap().0;
        let json = serde_json::json!({
            "schema": 1, "boot_id": "boot", "id": "p", "name": "", "namespace": "", "uid": "",
            "engine": "cri-o", "lives_with": dir.join("pod/config.json"), "state": "ready",
            "sandbox": null, "message": ""
        });
        store.put_pod(serde_json::from_value::<Pod>(json).unwrap()).unwrap();
        Daemon::new(config, host, store)
    }

    /// Waits until no task follows any pod; false if that takes more than five seconds.
    async fn no_task_follows(daemon: &Rc<Daemon>) -> bool {
        let mut left = 500;
        while Rc::strong_count(daemon) > 1 && left > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            left -= 1;
        }
        left > 0
    }

    #[tokio::test]
    async fn a_pod_is_watched_until_forgotten_although_its_folder_stays() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("pod")).unwrap();
        crate::files::replace(&temp.path().join("pod/config.json"), b"{}").unwrap();
        let daemon = daemon(temp.path());
        let story = async {
            follow_all(&daemon);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(Rc::strong_count(&daemon), 2, "it is followed");
            life::end(&daemon, "p").await;
            assert!(no_task_follows(&daemon).await, "it is followed for ever");
        };
        tokio::task::LocalSet::new().run_until(story).await;
    }

    #[tokio::test]
    async fn a_pod_ends_with_its_folder() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("pod")).unwrap();
        crate::files::replace(&temp.path().join("pod/config.json"), b"{}").unwrap();
        let daemon = daemon(temp.path());
        let story = async {
            follow_all(&daemon);
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::fs::remove_file(temp.path().join("pod/config.json")).unwrap();
            assert!(no_task_follows(&daemon).await);
            assert!(daemon.records.read().pod("p").is_none());
        };
        tokio::task::LocalSet::new().run_until(story).await;
    }
}
