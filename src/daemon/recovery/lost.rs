// SPDX-License-Identifier: Apache-2.0
//! Removes records without a container: an engine that crashed, or failed to call the runtime, abandons a container
//! without a `delete`. Once the container's bundle, the runtime's state and the init process are gone, the daemon
//! removes the record and sends plugins the outstanding events. It also ends a pod whose last container vanished.
//!
//! Gone means that the kernel reports "no such file"; a folder that cannot be read may exist. Two
//! consecutive checks must find all gone, so that a creation or removal in progress is not mistaken
//! for an abandoned container. An operator drops other records with `nri-runc nri forget`.

use std::collections::HashSet;
use std::rc::Rc;

use tracing::warn;

use crate::answers::{Forgotten, ForgottenContainer};
use crate::daemon::lifecycle::{removal, settle, until_removed};
use crate::daemon::pods::life;
use crate::daemon::runtime::{exit_status, state_dir};
use crate::daemon::shared::{Daemon, Records};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::presence;
use crate::state::{Container, ContainerKey, Lifecycle};

/// Records checked in a row before other tasks get a turn; a check is usually one system call.
const AT_ONCE: usize = 64;

/// The warning in the answer to `forget`.
const WARNING: &str = "plugins were notified of the removal; if the container still exists, plugins receive no \
                       further events of it";

/// The records whose container was gone at the last check, and the pods without a container.
#[derive(Debug, Default)]
pub(crate) struct SeenGone {
    containers: HashSet<(ContainerKey, u64)>,
    pods: HashSet<String>,
}

/// Checks periodically for records without a container. Never ends.
pub(crate) async fn look_out(daemon: Rc<Daemon>) {
    let mut seen = SeenGone::default();
    loop {
        tokio::time::sleep(daemon.config().debug_look_every).await;
        look(&daemon, &mut seen).await;
    }
}

/// Removes the records of containers, and ends the pods, that are gone now and were gone at the last check.
async fn look(daemon: &Rc<Daemon>, seen: &mut SeenGone) {
    let records = daemon.records.read().all_shared();
    let mut gone = SeenGone::default();
    for (number, record) in records.iter().enumerate() {
        if number % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        if !is_gone(daemon, record).await {
            continue;
        }
        let subject = (record.key.clone(), record.incarnation);
        if seen.containers.contains(&subject) {
            remove(daemon, record).await;
        } else {
            gone.containers.insert(subject);
        }
    }
    for id in pods_without_containers(&daemon.records) {
        if seen.pods.contains(&id) {
            life::end_if_empty(daemon, &id).await;
        } else {
            gone.pods.insert(id);
        }
    }
    *seen = gone;
}

/// Whether neither the engine nor the runtime has files of the container, and no process of it
/// lives. False for a deleted container that its engine keeps: `until_removed.rs` watches it.
async fn is_gone(daemon: &Rc<Daemon>, record: &Container) -> bool {
    presence::is_absent(&state_dir::folder(&daemon.host, &record.key))
        && !is_alive(&daemon.host, record)
        && daemon.is_absent(&daemon.host.path(&record.call.bundle)).await
        && !(record.is_deleted && until_removed::is_kept(daemon, record).await.unwrap_or(true))
}

fn is_alive(host: &Host, record: &Container) -> bool {
    record.process.init_pid.is_some() && !exit_status::has_exited(host, record)
}

fn pods_without_containers(records: &Records) -> Vec<String> {
    let store = records.read();
    let pods = store.pods().filter(|pod| store.of_pod(&pod.id).next().is_none());
    pods.map(|pod| pod.id.clone()).collect()
}

/// Removes a container that is still gone, unless another one now has its ID or a verb is pending.
async fn remove(daemon: &Rc<Daemon>, record: &Container) {
    let key = &record.key;
    let lane = daemon.lane(key);
    let turn = lane.turn.lock().await;
    settle::settle_exited(daemon, key, &lane).await;
    let now = daemon.container(key).filter(|now| now.incarnation == record.incarnation);
    if let Some(now) = now
        && lane.pending.borrow().is_empty()
        && is_gone(daemon, &now).await
    {
        warn!("{} is removed: its bundle and the runtime's state of it are gone", key.id);
        removal::handle_delete(daemon, key).await;
    }
    drop(turn);
    daemon.lanes.release(key, lane);
}

/// Drops, for an operator, the record of a container, or of a pod with its containers; plugins
/// receive the outstanding events. `is_forced`: even if the runtime still has the container, or the engine the pod.
///
/// # Errors
/// Fails when no record or several match, while a container's process or runtime command runs, and, unless forced,
/// while the container or pod exists.
pub(crate) async fn forget(
    daemon: &Rc<Daemon>,
    wanted: &str,
    is_forced: bool,
) -> Result<Forgotten> {
    let (pod, members) = find(&daemon.records, wanted)?;
    if let Some(path) =
        pod.as_ref().and_then(|id| daemon.records.read().pod(id)?.lives_with.clone())
        && !is_forced
        && !daemon.is_absent(&daemon.host.path(&path)).await
    {
        return Err(Error::new(format!("the engine still has the pod {wanted}: {path}"))
            .hint("remove it there, or drop the record with --force"));
    }
    for record in &members {
        require_gone(daemon, record, is_forced)?;
    }
    let mut forgotten = Vec::new();
    for record in &members {
        let key = &record.key;
        let lane = daemon.lane(key);
        let turn = lane.turn.lock().await;
        settle::settle_exited(daemon, key, &lane).await;
        let now = daemon.container(key).filter(|now| now.incarnation == record.incarnation);
        let gone = now.as_ref().map(|now| require_gone(daemon, now, is_forced));
        if matches!(gone, Some(Ok(()))) {
            removal::remove(daemon, key).await;
            let (id, root) = (key.id.clone(), key.root.clone());
            forgotten.push(ForgottenContainer { id, root, name: record.name.clone() });
        }
        drop(turn);
        daemon.lanes.release(key, lane);
        gone.transpose()?;
    }
    let mut pods = Vec::new();
    if let Some(id) = pod {
        let lane = daemon.pod_lane(&id);
        let turn = lane.turn.lock().await;
        // A container may have joined the pod meanwhile; the pod then stays.
        let is_left = |container: &Container| container.state != Lifecycle::Removed;
        let is_empty = !daemon.records.read().of_pod(&id).any(is_left);
        if is_empty {
            life::end(daemon, &id).await;
            pods.push(id);
        }
        drop(turn);
    }
    warn!("an operator dropped the record of {wanted}");
    Ok(Forgotten { containers: forgotten, pods, warning: WARNING.to_owned() })
}

/// Finds the one container or pod of this ID or ID prefix. Returns the pod's ID, if it is a pod, and the containers
/// whose records to remove, a sandbox last.
fn find(records: &Records, wanted: &str) -> Result<(Option<String>, Vec<Rc<Container>>)> {
    let store = records.read();
    let pods = store.pods().map(|pod| (pod.id.clone(), None));
    // A sandbox is removed with its pod.
    let containers = store.all_shared().into_iter().filter(|known| !known.is_sandbox);
    let containers = containers.map(|known| (known.key.id.clone(), Some(known)));
    let mut meant: Vec<(String, Option<Rc<Container>>)> = pods.chain(containers).collect();
    meant.retain(|(id, _)| !wanted.is_empty() && id.starts_with(wanted));
    let has_exact = meant.iter().any(|(id, _)| id == wanted);
    meant.retain(|(id, _)| !has_exact || id == wanted);
    // A container of an engine without pods has a pod with the same ID; both are removed together.
    meant.sort_by_key(|(_, container)| container.is_some());
    if let [(pod, None), rest @ ..] = meant.as_slice() {
        let is_member = |(_, known): &(_, Option<Rc<Container>>)| {
            known.as_ref().is_some_and(|known| known.pod == *pod)
        };
        if rest.iter().all(is_member) {
            let mut members = store.all_shared();
            members.retain(|known| known.pod == *pod);
            members.sort_by_key(|known| (known.is_sandbox, known.incarnation));
            return Ok((Some(pod.clone()), members));
        }
    }
    match meant.as_slice() {
        [(_, Some(only))] => Ok((None, vec![Rc::clone(only)])),
        [] => Err(Error::new(format!("no container or pod has the ID {wanted}"))
            .hint("see: nri-runc nri pods")),
        several => Err(Error::new(format!("{wanted} matches {} records", several.len()))
            .hint("give the whole ID")),
    }
}

/// Fails while the container's process runs or a runtime command is in progress, and, unless forced, while the runtime
/// still has the container.
fn require_gone(daemon: &Daemon, record: &Container, is_forced: bool) -> Result<()> {
    let ContainerKey { root, id } = &record.key;
    if let Some(pid) = record.process.init_pid.filter(|_| is_alive(&daemon.host, record)) {
        return Err(Error::new(format!("{id} is still running as process {pid}"))
            .hint("stop and remove it with its engine"));
    }
    if !daemon.lane(&record.key).pending.borrow().is_empty() {
        return Err(Error::new(format!("a runtime command is in progress for {id}"))
            .hint("try again once it has ended"));
    }
    if is_forced || presence::is_absent(&state_dir::folder(&daemon.host, &record.key)) {
        return Ok(());
    }
    Err(Error::new(format!("the runtime still has {id}, in {root}")).hint(format!(
        "remove it with its engine, or: {} --root {root} delete {id}; --force drops the record alone",
        record.call.runtime
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::state::{Pod, Store};

    /// A temporary directory for the files of containers.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            for folder in ["root", "bundles"] {
                std::fs::create_dir(place.0.path().join(folder)).unwrap();
            }
            place
        }

        fn folder(&self, above: &str, id: &str) -> std::path::PathBuf {
            self.0.path().join(above).join(id)
        }

        /// Returns a daemon with records of these containers, whose init process is `init`.
        fn daemon(&self, ids: &[&str], init: Option<u32>) -> Rc<Daemon> {
            let config = Config { run_dir: self.0.path().join("run"), ..Config::default() };
            let host = config.host();
            let start = init.and_then(|pid| crate::procfs::start_time(&host, pid).unwrap());
            let store = Store::open(&self.0.path().join("state"), "boot").unwrap().0;
            let daemon = Daemon::new(config, host, store);
            for id in ids {
                let json = json!({
                    "schema": 1, "boot_id": "boot", "key": {"root": self.folder("root", ""), "id": id},
                    "incarnation": 1, "runtime": "/usr/bin/runc", "global_flags": [],
                    "bundle": self.folder("bundles", id), "is_sandbox": false, "pod": "p",
                    "name": "c", "state": "running", "pid_file": null, "init_pid": init,
                    "init_start": start, "engine": "cri-o", "evidence": [], "variables": [],
                    "message": "", "engine_resources": {}, "overlay": {}, "owners": {},
                    "patched": null, "changes": [], "refused": [], "skipped": [],
                    "in_flight": null
                });
                daemon.records.put(serde_json::from_value::<Container>(json).unwrap()).unwrap();
            }
            daemon.records.put_pod(pod(self.0.path())).unwrap();
            daemon
        }
    }

    fn pod(dir: &Path) -> Pod {
        let json = json!({
            "schema": 1, "boot_id": "boot", "id": "p", "name": "", "namespace": "", "uid": "",
            "engine": "cri-o", "lives_with": dir.join("pod"), "state": "ready", "sandbox": null,
            "message": ""
        });
        serde_json::from_value(json).unwrap()
    }

    /// Returns how many containers and pods are on record after this many checks.
    async fn known_after(looks: usize, daemon: &Rc<Daemon>) -> (usize, usize) {
        let mut seen = SeenGone::default();
        for _look in 0..looks {
            look(daemon, &mut seen).await;
        }
        let store = daemon.records.read();
        (store.containers().count(), store.pods().count())
    }

    fn run(story: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(story));
    }

    #[test]
    fn containers_missing_at_two_checks_are_removed_with_their_pod() {
        run(async {
            let place = Place::new();
            let daemon = place.daemon(&["a", "b"], None);
            assert_eq!(known_after(1, &daemon).await, (2, 1), "once may be chance");
            assert_eq!(known_after(2, &daemon).await, (0, 0));
        });
    }

    #[test]
    fn a_remaining_bundle_or_state_keeps_the_record() {
        run(async {
            for above in ["root", "bundles"] {
                let place = Place::new();
                std::fs::create_dir(place.folder(above, "a")).unwrap();
                let daemon = place.daemon(&["a"], None);
                assert_eq!(known_after(3, &daemon).await, (1, 1), "{above}");
            }
        });
    }

    #[test]
    fn a_living_process_keeps_a_record_without_files() {
        run(async {
            let place = Place::new();
            let daemon = place.daemon(&["a"], Some(std::process::id()));
            assert_eq!(known_after(3, &daemon).await, (1, 1));
        });
    }

    #[test]
    fn an_unreadable_path_does_not_count_as_gone() {
        run(async {
            for above in ["root", "bundles"] {
                let place = Place::new();
                std::fs::remove_dir(place.0.path().join(above)).unwrap();
                std::os::unix::fs::symlink(above, place.0.path().join(above)).unwrap();
                let daemon = place.daemon(&["a"], None);
                assert_eq!(known_after(3, &daemon).await, (1, 1), "{above}");
            }
        });
    }

    #[test]
    fn a_pod_without_containers_lasts_as_long_as_its_folder() {
        run(async {
            let place = Place::new();
            std::fs::create_dir(place.0.path().join("pod")).unwrap();
            let daemon = place.daemon(&[], None);
            assert_eq!(known_after(3, &daemon).await, (0, 1));
            std::fs::remove_dir(place.0.path().join("pod")).unwrap();
            assert_eq!(known_after(2, &daemon).await, (0, 0));
        });
    }
}
