// SPDX-License-Identifier: Apache-2.0
//! Finds containers of the plain runtime: one that the engine called without nri-runc, before the installation or for
//! another handler. With `[nri] scope = "node"` plugins receive them too (D65). The daemon watches the runtimes' state
//! directories, finds the containers there, and describes them from their bundles and the engines' records like any
//! other. Synchronize, updates and evictions include them, and plugins receive their end. No plugin receives their
//! CreateContainer, because it is too late to adjust them; connected plugins receive PostCreateContainer.
//!
//! This module never changes such a container, and never blocks the event loop on an engine's file.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::answers::Unseen;
use crate::config::{Config, Scope};
use crate::daemon::lifecycle::{notify, removal, state};
use crate::daemon::pods::{life, own_process};
use crate::daemon::recovery::catch_up;
use crate::daemon::recovery::rediscover::{self, Look, RediscoveredContainer, Wanted};
use crate::daemon::runtime::exit_status;
use crate::daemon::runtime::state_dir::{self, RuntimeState};
use crate::daemon::shared::queues::Watches;
use crate::daemon::shared::{Daemon, Records};
use crate::daemon::watch::folders::{FolderEvent, WatchedFolder};
use crate::error::Result;
use crate::limits;
use crate::plugin::Event;
use crate::presence::{self, Backoff};
use crate::state::{Container, ContainerKey, Lifecycle};

/// The note in the record of each container that the plain runtime made.
const WHY: &str = "created without nri-runc: no plugin adjusted it";

/// Name under which hanging calls on the state directories are counted. The directories share it,
/// because normally they are on one file system.
const ROOTS: &str = "the runtimes' state directories";

/// Time limit for a starting daemon's search for the plain runtime's containers, because wrappers wait
/// meanwhile. The remaining containers follow while the daemon serves requests.
const START_WAIT: Duration = Duration::from_secs(3);

fn is_wanted(config: &Config) -> bool {
    config.scope == Scope::Node
}

/// Records the plain runtime's containers before any plugin registers; without node scope, drops
/// the records that an earlier daemon made of them.
pub(crate) async fn adopt(daemon: &Rc<Daemon>) {
    if !is_wanted(&daemon.config()) {
        leave_out(daemon).await;
        return;
    }
    for found in find(daemon, Some(Instant::now() + START_WAIT)).await {
        take(daemon, found, Notified::AtStart).await;
    }
}

/// Updates the records after a change of scope. Returns whether there were any to add or drop; plugins
/// must then be synchronized again.
pub(crate) async fn apply(daemon: &Rc<Daemon>) -> bool {
    if !is_wanted(&daemon.config()) {
        return leave_out(daemon).await;
    }
    let found = find(daemon, None).await;
    let is_any = !found.is_empty();
    for found in found {
        let key = found.key().clone();
        take(daemon, found, Notified::BySynchronize).await;
        if let Some(record) = daemon.container(&key) {
            daemon.watch_init(&record);
        }
    }
    is_any
}

/// Follows the state directories as long as the scope is `node`; returns at once if another task
/// already follows them.
pub(crate) async fn follow(daemon: Rc<Daemon>) {
    if daemon.watches.node_scope.is_followed.replace(true) {
        return;
    }
    daemon.registry.wait_for_returning().await;
    while is_wanted(&daemon.config()) {
        watch_roots(&daemon).await;
        look_at_all(&daemon).await;
        let pause = tokio::time::sleep(daemon.config().debug_look_every);
        tokio::select! {
            () = daemon.watches.node_scope.again.notified() => {}
            () = pause => {}
        }
    }
    daemon.watches.node_scope.is_followed.set(false);
}

/// Requests a check of the directories: after a reload, or when a directory appeared or vanished.
pub(crate) fn look_again(watches: &Watches) {
    watches.node_scope.again.notify_one();
}

/// Watches the state directories that are not watched yet, and their parent folders.
async fn watch_roots(daemon: &Rc<Daemon>) {
    let config = Config::clone(&daemon.config());
    let list = move || {
        let roots = rediscover::roots(&config)?.into_iter().map(|root| (root.path, true));
        let above = rediscover::above_roots(&config)?.into_iter().map(|path| (path, false));
        Ok(roots.chain(above).collect::<Vec<(PathBuf, bool)>>())
    };
    let folders = daemon.off_loop(ROOTS, list).await;
    let folders = folders.unwrap_or_else(|error| {
        debug!("the runtimes' state directories are not known: {error}");
        Vec::new()
    });
    for (folder, has_containers) in folders.into_iter().take(limits::RUNTIME_ROOTS) {
        if daemon.watches.node_scope.watched.borrow().contains(&folder) {
            continue;
        }
        match daemon.watch_folder(&folder).await {
            Ok(Some(watched)) => {
                daemon.watches.node_scope.watched.borrow_mut().insert(folder.clone());
                let daemon = Rc::clone(daemon);
                tokio::task::spawn_local(async move {
                    if has_containers {
                        follow_root(&daemon, &folder, watched).await;
                    } else {
                        follow_above(&daemon, watched).await;
                    }
                    daemon.watches.node_scope.watched.borrow_mut().remove(&folder);
                    look_again(&daemon.watches);
                });
            }
            Ok(None) => {}
            // Without a watch, the directory is checked at intervals.
            Err(error) => debug!("{} is not watched: {error}", folder.display()),
        }
    }
}

/// Waits for new state directories, such as those of another namespace.
async fn follow_above(daemon: &Daemon, mut watched: WatchedFolder) {
    while is_wanted(&daemon.config()) && watched.next().await != FolderEvent::Gone {
        look_again(&daemon.watches);
    }
}

/// A new folder of a state directory whose container is not on record yet.
#[derive(Default)]
struct Arrival {
    /// The folder's number: another folder of this name may appear while an earlier one is checked.
    number: u64,
    backoff: Backoff,
    looks: u32,
    /// Time of the next check; `None` during a check.
    due: Option<Instant>,
}

/// The new folders of a state directory, and the checks in progress: a bundle or engine that does
/// not respond delays only its own container.
#[derive(Default)]
struct Arrivals {
    number: u64,
    folders: BTreeMap<OsString, Arrival>,
    looks: JoinSet<(OsString, u64, bool)>,
}

impl Arrivals {
    fn came(&mut self, name: OsString) {
        if self.folders.len() < limits::ARRIVING && !self.folders.contains_key(&name) {
            self.number += 1;
            let mut arrival = Arrival { number: self.number, ..Arrival::default() };
            arrival.due = Some(Instant::now() + arrival.backoff.next());
            self.folders.insert(name, arrival);
        }
    }

    /// Returns when the next check begins, unless too many are in progress.
    fn next(&self) -> Option<Instant> {
        let has_room = self.looks.len() < limits::ARRIVALS_LOOKED_AT;
        self.folders.values().filter_map(|arrival| arrival.due).min().filter(|_| has_room)
    }

    fn look_at_due(&mut self, daemon: &Rc<Daemon>, root: &Path) {
        let now = Instant::now();
        let room = limits::ARRIVALS_LOOKED_AT.saturating_sub(self.looks.len());
        let due = self.folders.iter_mut();
        let due = due.filter(|(_, arrival)| arrival.due.is_some_and(|due| due <= now));
        for (name, arrival) in due.take(room) {
            arrival.due = None;
            let (daemon, root) = (Rc::clone(daemon), root.to_owned());
            let (name, number) = (name.clone(), arrival.number);
            self.looks.spawn_local(async move {
                let is_done = arrives(&daemon, &root, &name).await;
                (name, number, is_done)
            });
        }
    }

    fn note_look(&mut self, name: &OsStr, number: u64, is_done: bool) {
        let arrival = self.folders.get_mut(name).filter(|arrival| arrival.number == number);
        let Some(arrival) = arrival else { return };
        arrival.looks += 1;
        arrival.due = Some(Instant::now() + arrival.backoff.next());
        if is_done || arrival.looks >= limits::ARRIVAL_LOOKS {
            self.folders.remove(name);
        }
    }
}

async fn follow_root(daemon: &Rc<Daemon>, root: &Path, mut watched: WatchedFolder) {
    let mut arrivals = Arrivals::default();
    while is_wanted(&daemon.config()) {
        let next = arrivals.next();
        let pause = tokio::time::sleep_until(next.unwrap_or_else(Instant::now));
        tokio::select! {
            event = watched.next() => match event {
                FolderEvent::Came(name) => {
                    if !is_ours(&daemon.records, root, &name) {
                        arrivals.came(name);
                    }
                }
                FolderEvent::Went(name) => {
                    arrivals.folders.remove(&name);
                    remove_gone(daemon, Some(&name)).await;
                }
                FolderEvent::Unknown => look_again(&daemon.watches),
                FolderEvent::Gone => break,
            },
            Some(looked) = arrivals.looks.join_next() => {
                if let Ok((name, number, is_done)) = looked {
                    arrivals.note_look(&name, number, is_done);
                }
            }
            () = pause, if next.is_some() => arrivals.look_at_due(daemon, root),
        }
    }
    // Detached, so that a check in progress still records its whole result.
    arrivals.looks.detach_all();
}

/// Whether a container that nri-runc made has this root and ID: it is recorded before the runtime
/// makes the folder. The record of a plain runtime's container may be of an earlier one.
fn is_ours(records: &Records, root: &Path, name: &OsStr) -> bool {
    let key = ContainerKey {
        root: root.to_string_lossy().into_owned(),
        id: name.to_string_lossy().into_owned(),
    };
    records.container(&key).is_some_and(|record| !record.by_plain_runtime)
}

/// Checks a new folder and records its container; returns false if the folder must be checked again.
async fn arrives(daemon: &Rc<Daemon>, root: &Path, name: &OsStr) -> bool {
    let Some(id) = name.to_str().map(ToOwned::to_owned) else { return true };
    let (place, path, one) = (root.to_string_lossy().into_owned(), root.to_owned(), id.clone());
    let folder = match daemon.off_loop(&place, move || rediscover::folder(&path, one)).await {
        Ok(Some(folder)) => folder,
        Ok(None) => return true,
        Err(_unknown) => return false,
    };
    let is_settled = remove_gone(daemon, Some(name)).await;
    if !matches!(rediscover::is_on_record(daemon, &folder), Ok(false)) {
        return is_settled;
    }
    if has_all(&daemon.records) {
        return true;
    }
    match rediscover::look_at(daemon, &folder.key, (Wanted::Plain, false), WHY).await {
        Ok(Look::Found(found)) => {
            take(daemon, *found, Notified::ByEvent).await;
            true
        }
        Ok(Look::NotYet) => false,
        Ok(Look::NotMeant) => true,
        Err(error) => {
            debug!("{id} cannot be described: {error}");
            !error.may_pass()
        }
    }
}

/// How connected plugins learn of a container.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notified {
    /// No plugin is connected, and the addresses of all pods are looked up together.
    AtStart,
    /// Connected plugins are synchronized again afterwards.
    BySynchronize,
    ByEvent,
}

/// Records a container, unless another task has done so.
async fn take(daemon: &Rc<Daemon>, found: RediscoveredContainer, notified: Notified) {
    let key = found.key().clone();
    let lane = daemon.lane(&key);
    let turn = lane.turn.lock().await;
    let was_ready = life::is_ready(&daemon.records, &found.record.pod);
    // A reload may have narrowed the scope since the search.
    if is_wanted(&daemon.config()) && daemon.container(&key).is_none() && found.record(daemon) {
        match notified {
            Notified::AtStart => drop(own_process::take(daemon, &key)),
            Notified::BySynchronize | Notified::ByEvent => {
                catch_up::learn_process(daemon, &key).await;
            }
        }
        if notified == Notified::ByEvent {
            announce(daemon, &key, was_ready).await;
        }
        // The container may have ended since it was found.
        if presence::is_absent(&state_dir::folder(&daemon.host, &key)) {
            removal::handle_delete(daemon, &key).await;
        }
    }
    drop(turn);
    daemon.lanes.release(&key, lane);
}

/// Notifies plugins of a container's past events, and watches the container. `was_ready`: its pod
/// was already on record as running.
async fn announce(daemon: &Rc<Daemon>, key: &ContainerKey, was_ready: bool) {
    let Some(record) = daemon.container(key) else { return };
    life::announce_plain(daemon, &record.pod, was_ready).await;
    state::emit_found(daemon, &record);
    if !record.is_sandbox
        && let Some(created) = daemon.notification(Event::PostCreateContainer, key)
    {
        daemon.registry.notify_late(&created.first()).await;
        if record.state == Lifecycle::Running {
            notify::notify(daemon, Event::StartContainer, key).await;
            notify::notify(daemon, Event::PostStartContainer, key).await;
        }
    }
    daemon.watch_init(&record);
}

/// Checks all state directories, because inotify may have missed changes.
async fn look_at_all(daemon: &Rc<Daemon>) {
    // Done first, because the record of an earlier container hides a new one with its ID.
    remove_gone(daemon, None).await;
    for found in find(daemon, None).await {
        take(daemon, found, Notified::ByEvent).await;
    }
}

/// Finds the plain runtime's containers that are not on record; with those on record, at most
/// [`limits::PLAIN_CONTAINERS`]. The search ends at the deadline `until`.
async fn find(daemon: &Rc<Daemon>, until: Option<Instant>) -> Vec<RediscoveredContainer> {
    let folders = match unknown_folders(daemon).await {
        Ok(folders) => folders,
        Err(error) => {
            debug!("containers of the plain runtime cannot be found now: {error}");
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    let room = limits::PLAIN_CONTAINERS.saturating_sub(plain(&daemon.records).len());
    for key in folders {
        if all.len() >= room {
            let only = limits::PLAIN_CONTAINERS;
            warn!("plugins see only {only} containers that were created without nri-runc");
            break;
        }
        if until.is_some_and(|until| Instant::now() > until) {
            info!("the search for containers created without nri-runc continues later");
            break;
        }
        match rediscover::look_at(daemon, &key, (Wanted::Plain, false), WHY).await {
            Ok(Look::Found(found)) => all.push(*found),
            Ok(Look::NotYet | Look::NotMeant) => {}
            Err(error) => debug!("{} in {} cannot be described: {error}", key.id, key.root),
        }
    }
    rediscover::sort(&mut all);
    all
}

/// Returns the folders of the state directories that belong to no container on record.
async fn unknown_folders(daemon: &Rc<Daemon>) -> Result<Vec<ContainerKey>> {
    let config = Config::clone(&daemon.config());
    let list = move || rediscover::list(&rediscover::roots(&config)?, limits::RUNTIME_FOLDERS);
    let mut unknown = Vec::new();
    for folder in daemon.off_loop(ROOTS, list).await? {
        if !rediscover::is_on_record(daemon, &folder)? {
            unknown.push(folder.key);
        }
    }
    Ok(unknown)
}

fn plain(records: &Records) -> Vec<Rc<Container>> {
    let mut all = records.read().all_shared();
    all.retain(|record| record.by_plain_runtime);
    all
}

fn has_all(records: &Records) -> bool {
    plain(records).len() >= limits::PLAIN_CONTAINERS
}

/// Removes the plain runtime's containers (of this ID, or all) that are deleted, or replaced by another of the same
/// ID. Returns false if a folder may belong to another container whose runtime has not written its state yet.
async fn remove_gone(daemon: &Rc<Daemon>, id: Option<&OsStr>) -> bool {
    let mut known = plain(&daemon.records);
    known.retain(|record| id.is_none_or(|id| id == OsStr::new(&record.key.id)));
    let mut is_settled = true;
    for record in known {
        let key = &record.key;
        let lane = daemon.lane(key);
        let turn = lane.turn.lock().await;
        let is_same = |now: &Rc<Container>| now.incarnation == record.incarnation;
        if let Some(now) = daemon.container(key).filter(is_same).filter(|now| !now.is_deleted) {
            if presence::is_absent(&state_dir::folder(&daemon.host, key)) {
                removal::handle_delete(daemon, key).await;
            } else {
                match is_replaced(daemon, &now).await {
                    Some(true) => removal::remove(daemon, key).await,
                    Some(false) => {}
                    None => is_settled = false,
                }
            }
        }
        drop(turn);
        daemon.lanes.release(key, lane);
    }
    is_settled
}

/// Whether the folder belongs to another container, made under the ID of one that has ended, as on a restart by Docker
/// or Podman; `None` if that is still unknown.
async fn is_replaced(daemon: &Rc<Daemon>, record: &Container) -> Option<bool> {
    let has_ended =
        record.state == Lifecycle::Stopped || exit_status::has_exited(&daemon.host, record);
    if !has_ended {
        return Some(false);
    }
    let folder = state_dir::folder(&daemon.host, &record.key);
    let read = move || Ok(RuntimeState::read(&folder)?);
    let state = daemon.off_loop(&record.key.root, read).await.ok()??;
    let pid = state.pid?;
    let is_later = state.start.is_some() && state.start != record.process.init_start;
    Some(record.process.init_pid != Some(pid) || is_later)
}

/// Drops the records of the plain runtime's containers without notifying plugins; returns whether
/// there were any.
async fn leave_out(daemon: &Rc<Daemon>) -> bool {
    let all = plain(&daemon.records);
    for record in &all {
        let key = &record.key;
        let lane = daemon.lane(key);
        let turn = lane.turn.lock().await;
        if daemon.container(key).is_some_and(|now| now.by_plain_runtime) {
            state::leave_out(daemon, key);
            life::forget_if_orphan(daemon, &record.pod);
        }
        drop(turn);
        daemon.lanes.release(key, lane);
    }
    !all.is_empty()
}

/// Counts the containers of the plain runtime that plugins do not receive, for `check`.
///
/// # Errors
/// Fails when the state directories cannot be read.
pub(crate) async fn unseen(daemon: &Rc<Daemon>) -> Result<Unseen> {
    let (unknown, host) = (unknown_folders(daemon).await?, daemon.host.clone());
    let count = move || {
        let lives = |key: &&ContainerKey| rediscover::lives(&host, key);
        Ok(Unseen { count: unknown.iter().filter(lives).count() })
    };
    daemon.off_loop(ROOTS, count).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin_endless_look(arrivals: &mut Arrivals, name: &str) {
        arrivals.folders.get_mut(OsStr::new(name)).unwrap().due = None;
        arrivals.looks.spawn(std::future::pending());
    }

    #[tokio::test]
    async fn a_hanging_check_delays_no_other_folder() {
        let mut arrivals = Arrivals::default();
        arrivals.came("hung".into());
        begin_endless_look(&mut arrivals, "hung");
        assert_eq!(arrivals.next(), None);
        arrivals.came("other".into());
        assert!(arrivals.next().is_some());
        for number in 1..limits::ARRIVALS_LOOKED_AT {
            assert!(arrivals.next().is_some(), "{number} looks are under way");
            let name = format!("hung{number}");
            arrivals.came(name.clone().into());
            begin_endless_look(&mut arrivals, &name);
        }
        assert_eq!(arrivals.next(), None, "no more at once");
    }

    #[test]
    fn a_check_of_a_replaced_folder_does_not_end_the_new_one() {
        let mut arrivals = Arrivals::default();
        let name = OsStr::new("c1");
        arrivals.came(name.to_owned());
        let earlier = arrivals.folders.remove(name).unwrap().number;
        arrivals.came(name.to_owned());
        arrivals.note_look(name, earlier, true);
        let present = arrivals.folders[name].number;
        assert_ne!(present, earlier);
        arrivals.note_look(name, present, false);
        assert!(arrivals.folders.contains_key(name));
        arrivals.note_look(name, present, true);
        assert!(arrivals.folders.is_empty());
    }
}
