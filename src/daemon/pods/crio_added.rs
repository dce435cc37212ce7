// SPDX-License-Identifier: Apache-2.0
//! Finds pods for which no OCI runtime is executed (decision D20): without infrastructure containers, CRI-O
//! represents a pod by a folder with a document, and runs no runtime before the pod's first
//! container. The daemon watches the parent folder, and reads one file for each new pod.
//!
//! A pod is announced once, by its folder or its first container, whichever is seen first.
//! `crio_removed.rs` handles its end. This module writes nothing to CRI-O's folders, and never polls.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tracing::debug;

use crate::daemon::pods::life;
use crate::daemon::request::describe::{Description, describe_folder};
use crate::daemon::shared::{Daemon, log_failure};
use crate::daemon::watch::folders::{FolderEvent, WatchedFolder};
use crate::engine::EngineKind;
use crate::host::Host;
use crate::limits;
use crate::presence::{self, IfThere};
use crate::sources::registered;

/// CRI-O's default parent folder of pods. If CRI-O is configured otherwise, its first container shows the folder.
const HOME: &str = "/run/containers/storage/overlay-containers";

/// CRI-O's persistent root, which has a folder for each pod too; it is not watched for new pods.
const LASTING_ROOT: &str = "/var/lib/containers/storage";

/// Time limit for the document to appear in a folder: kubelet gives up after 4 minutes by default.
const DOCUMENT_WAIT: Duration = Duration::from_secs(300);

enum PodFolder {
    Pod(Box<Description>),
    SomethingElse,
    NotYet,
}

/// Records pods that appeared while no daemon ran: plugins see them when they are synchronized. The
/// first daemon of a boot records none: nri-runc may never run a container of an older pod, so such
/// a pod is announced with its first container. If plugins are required, or the default validator may
/// require some, no pod is recorded either, because these plugins must answer RunPodSandbox.
pub(crate) async fn adopt(daemon: &Rc<Daemon>, is_first: bool) {
    for home in known_homes(daemon) {
        let ids = unknown_pods(daemon, &home).await;
        if is_first
            || daemon.config().requires_plugins()
            || daemon.config().default_validator.enable
        {
            daemon.watches.crio.older_than_daemon.borrow_mut().extend(ids);
            continue;
        }
        for id in ids {
            if let PodFolder::Pod(seen) = read_folder(daemon, &home, &id).await {
                let adopted = life::adopt_arrived(daemon, &seen);
                log_failure("taking over a pod without containers", adopted);
            }
        }
    }
}

/// Starts watching for new pods.
pub(crate) fn look_out(daemon: &Rc<Daemon>) {
    // The registration is read once now, so that a later `uninstall` is noticed.
    let _is_default = note_and_check_handler(daemon, "");
    let homes = known_homes(daemon);
    for home in homes {
        look_out_at(daemon, home);
    }
}

/// Watches the parent folder of this pod document: further pods may appear in it.
pub(crate) fn learn(daemon: &Rc<Daemon>, document: &str) {
    if let Some(home) = home_of(&daemon.host, document) {
        look_out_at(daemon, home);
    }
}

fn look_out_at(daemon: &Rc<Daemon>, home: PathBuf) {
    if daemon.watches.crio.homes.borrow_mut().insert(home.clone()) {
        let daemon = Rc::clone(daemon);
        tokio::task::spawn_local(async move { follow(&daemon, &home).await });
    }
}

/// Returns the parent folders of pods: CRI-O's default, and those of the pods on record.
fn known_homes(daemon: &Daemon) -> BTreeSet<PathBuf> {
    let store = daemon.records.read();
    let documents = store.pods().filter_map(|pod| pod.lives_with.as_ref());
    let mut homes: BTreeSet<PathBuf> =
        documents.filter_map(|document| home_of(&daemon.host, document)).collect();
    homes.insert(daemon.host.path(HOME));
    homes
}

/// Returns the parent folder of all pods, from a document `HOME/ID/userdata/config.json`; `None` below the
/// persistent root.
fn home_of(host: &Host, document: &str) -> Option<PathBuf> {
    let home = host.path(document).ancestors().nth(3)?.to_owned();
    (!home.starts_with(host.path(LASTING_ROOT))).then_some(home)
}

async fn follow(daemon: &Rc<Daemon>, home: &Path) {
    loop {
        let Some(mut watched) = appears(daemon, home).await else {
            let what = "cannot watch for new pods (inotify limit reached): they are announced with their first container";
            return daemon.report.note_missing(EngineKind::Crio.name(), what, "");
        };
        consider_all(daemon, home).await;
        loop {
            match watched.next().await {
                FolderEvent::Came(name) => consider(daemon, home, &name).await,
                FolderEvent::Unknown => consider_all(daemon, home).await,
                FolderEvent::Went(_)
                    if !matches!(daemon.look(home, presence::is_dir).await, Ok(false)) => {}
                // If another folder has taken the path, `Gone` ends the watch.
                FolderEvent::Went(_) | FolderEvent::Gone => break,
            }
        }
    }
}

/// Waits for the folder and watches it; `None` if the folder, or one above it, exists and cannot be watched.
async fn appears(daemon: &Daemon, home: &Path) -> Option<WatchedFolder> {
    loop {
        if let Some(watched) = daemon.watch_folder(home).await.or_absent()? {
            return Some(watched);
        }
        let mut above = home.parent()?;
        while matches!(daemon.look(above, presence::is_dir).await, Ok(false)) {
            above = above.parent()?;
        }
        // The folder above may be removed between two checks; the loop then checks again.
        let Some(mut watched) = daemon.watch_folder(above).await.or_absent()? else { continue };
        let next = home.strip_prefix(above).ok()?.components().next()?;
        if matches!(daemon.look(&above.join(next), presence::is_dir).await, Ok(false)) {
            watched.next().await;
        }
    }
}

async fn consider_all(daemon: &Rc<Daemon>, home: &Path) {
    for id in unknown_pods(daemon, home).await {
        consider(daemon, home, OsStr::new(&id)).await;
        tokio::task::yield_now().await;
    }
}

/// Returns the IDs of folders that belong to no known pod or container.
async fn unknown_pods(daemon: &Daemon, home: &Path) -> Vec<String> {
    // A pod that is missed here is announced with its first container.
    let names = daemon.names_in(home).await.or_absent().into_iter().flatten();
    let names = names.filter_map(|name| id_of(&name));
    names.filter(|id| !is_known(daemon, id)).collect()
}

fn id_of(name: &OsStr) -> Option<String> {
    let id = name.to_str()?;
    crate::engine::is_id(id).then(|| id.to_owned())
}

fn is_known(daemon: &Daemon, id: &str) -> bool {
    let store = daemon.records.read();
    store.pod(id).is_some()
        || store.of_id(id).next().is_some()
        || daemon.watches.crio.older_than_daemon.borrow().contains(id)
}

/// Handles a folder that may be a new pod's, without waiting for plugins: other folders may appear meanwhile.
async fn consider(daemon: &Rc<Daemon>, home: &Path, name: &OsStr) {
    let Some(id) = id_of(name).filter(|id| !is_known(daemon, id)) else { return };
    if daemon.watches.crio.arriving.borrow().contains(&id) {
        return;
    }
    let folder = home.join(&id);
    let look = move || {
        let meta = std::fs::symlink_metadata(folder).or_absent();
        Ok(meta.is_some_and(|meta| meta.is_dir()))
    };
    if !daemon.off_loop(&home.to_string_lossy(), look).await.unwrap_or(false) {
        return;
    }
    let seen = read_folder(daemon, home, &id).await;
    // A concurrent check of the folder may have handled it.
    if matches!(seen, PodFolder::SomethingElse)
        || daemon.watches.crio.arriving.borrow().contains(&id)
    {
        return;
    }
    if daemon.watches.crio.arriving.borrow().len() >= limits::AWAITED_FOLDERS {
        let what = "too many folders without a document: their pods are announced with a container";
        return daemon.report.note_missing(EngineKind::Crio.name(), what, "");
    }
    daemon.watches.crio.arriving.borrow_mut().insert(id.clone());
    let (daemon, home) = (Rc::clone(daemon), home.to_owned());
    tokio::task::spawn_local(async move {
        let seen = match seen {
            PodFolder::NotYet => {
                tokio::time::timeout(DOCUMENT_WAIT, arrives(&daemon, &home, &id)).await
            }
            PodFolder::Pod(_) | PodFolder::SomethingElse => Ok(Some(seen)),
        };
        if let Ok(Some(PodFolder::Pod(seen))) = seen {
            match life::arrives(&daemon, &seen).await {
                Ok(()) => debug!("pod {id} appeared without a runtime call"),
                Err(error) => {
                    daemon.report.note_refusal("pod", &id, &error);
                    daemon.audit_pod_refusal(&id, "pod", &error);
                }
            }
        }
        daemon.watches.crio.arriving.borrow_mut().remove(&id);
    });
}

/// Waits for the folder's document; `None` if the folder is removed or cannot be watched, or the pod is known by now.
async fn arrives(daemon: &Rc<Daemon>, home: &Path, id: &str) -> Option<PodFolder> {
    let folder = home.join(id);
    let userdata = folder.join("userdata");
    // A folder that cannot be examined is not treated as gone. A pod that is missed here is
    // announced with its first container.
    let is_missing =
        async |folder: &Path| matches!(daemon.look(folder, presence::is_dir).await, Ok(false));
    if is_missing(&userdata).await {
        let mut watched = daemon.watch_folder(&folder).await.or_absent()??;
        while is_missing(&userdata).await {
            match watched.next().await {
                FolderEvent::Gone => return None,
                FolderEvent::Went(_) if is_missing(&folder).await => return None,
                FolderEvent::Went(_) | FolderEvent::Came(_) | FolderEvent::Unknown => {}
            }
        }
    }
    let mut watched = daemon.watch_folder(&userdata).await.or_absent()??;
    loop {
        let seen = read_folder(daemon, home, id).await;
        if !matches!(seen, PodFolder::NotYet) {
            return Some(seen);
        }
        let document = FolderEvent::Came(OsString::from("config.json"));
        loop {
            match watched.next().await {
                FolderEvent::Gone => return None,
                FolderEvent::Went(_) if is_known(daemon, id) || is_missing(&userdata).await => {
                    return None;
                }
                FolderEvent::Unknown => break,
                news if news == document => break,
                FolderEvent::Came(_) | FolderEvent::Went(_) => {}
            }
        }
    }
}

async fn read_folder(daemon: &Daemon, home: &Path, id: &str) -> PodFolder {
    if is_known(daemon, id) {
        return PodFolder::SomethingElse;
    }
    let userdata = home.join(id).join("userdata");
    let document = daemon.read_document(&userdata, "config.json").await;
    let Ok(document) = document else { return PodFolder::NotYet };
    match describe_folder(daemon, &userdata, id, &document.bytes).await {
        // The document is being written.
        Err(_) => PodFolder::NotYet,
        Ok(seen) => seen
            .filter(|seen| note_and_check_handler(daemon, &seen.pod.runtime_handler))
            .map_or(PodFolder::SomethingElse, |seen| PodFolder::Pod(Box::new(seen))),
    }
}

/// Returns whether CRI-O calls nri-runc for pods of this handler, according to `install`, and records whether CRI-O
/// was registered; other handlers' pods are not announced. If CRI-O was configured manually, returns true.
fn note_and_check_handler(daemon: &Daemon, handler: &str) -> bool {
    let was_registered = &daemon.watches.crio.was_registered;
    let is_recorded = registered::is_called_for(&daemon.host, "crio", handler);
    was_registered.set(was_registered.get() || is_recorded.is_some());
    is_recorded.unwrap_or(!was_registered.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::state::Store;

    #[test]
    fn a_folder_that_appears_and_vanishes_is_awaited_until_it_stays() {
        let temp = tempfile::tempdir().unwrap();
        let (top, home) = (temp.path().join("a"), temp.path().join("a/b/c"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let others = std::thread::spawn({
            let home = home.clone();
            move || {
                for _time in 0..2000 {
                    std::fs::create_dir_all(&home).unwrap();
                    std::fs::remove_dir_all(&top).unwrap();
                }
                std::fs::create_dir_all(&home).unwrap();
            }
        });
        let store = Store::open(&temp.path().join("state"), "boot").unwrap().0;
        let config = Config { run_dir: temp.path().join("run"), ..Config::default() };
        let host = config.host();
        let daemon = Daemon::new(config, host, store);
        let looks = async {
            let mut is_over = false;
            while !is_over {
                is_over = others.is_finished();
                let found = tokio::time::timeout(DOCUMENT_WAIT, appears(&daemon, &home)).await;
                assert!(matches!(found, Ok(Some(_))), "{found:?}");
            }
        };
        runtime.block_on(tokio::task::LocalSet::new().run_until(looks));
        others.join().unwrap();
    }
}
