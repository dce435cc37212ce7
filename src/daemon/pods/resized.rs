// SPDX-License-Identifier: Apache-2.0
//! Pods that kubelet resizes (decision D38): no runtime call shows it, but kubelet writes the
//! limits of the pod's cgroup. The daemon watches these files, refreshes the pod's resources in its
//! record, and sends UpdatePodSandbox and PostUpdatePodSandbox. The resize has happened before: a
//! plugin's refusal is reported and undoes nothing.
//!
//! Between two writes it costs nothing, however many pods there are. It writes no cgroup.

use std::ffi::OsStr;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::select_all;
use tracing::debug;

use crate::cgroup::{CgroupFiles, Cgroups, Layout};
use crate::daemon::shared::{Daemon, log_failure, messages};
use crate::daemon::watch::folders::{FolderEvent, WatchedFolder};
use crate::describe::resized::{PodLimits, V1, V2, resized};
use crate::engine::{EngineKind, cgroup_of_pod};
use crate::error::Error;
use crate::host::Point;
use crate::limits;
use crate::plugin::{Event, api};
use crate::presence::IfThere;
use crate::state::{Pod, PodState};

/// Delay between a write and reading the files: kubelet writes several, one after the other.
const SETTLE: Duration = Duration::from_millis(100);

/// The limits of the pod's cgroup now; none where the cgroup is not kubelet's.
pub(crate) fn limits(daemon: &Daemon, engine: EngineKind, pod: &api::PodSandbox) -> PodLimits {
    cgroups(daemon, engine, pod).map(|cgroups| read(&cgroups)).unwrap_or_default()
}

fn cgroups(daemon: &Daemon, engine: EngineKind, pod: &api::PodSandbox) -> Option<Cgroups> {
    if !engine.has_pods() {
        return None;
    }
    let linux = pod.linux.as_ref()?;
    let path = match (linux.cgroups_path.as_str(), linux.cgroup_parent.as_str()) {
        ("", "") => return None,
        // Any name in it has this parent.
        ("", parent) if parent.starts_with('/') => format!("{parent}/-"),
        ("", parent) => format!("{parent}:-:-"),
        (path, _) => path.to_owned(),
    };
    let mounts = daemon.caches.cgroup_mounts(&daemon.host).or_absent()?;
    Cgroups::at(&daemon.host, &mounts, &cgroup_of_pod(&path, &pod.uid)?)
}

/// The files of this layout, with their controllers.
fn files(cgroups: &Cgroups) -> &'static [(&'static str, &'static str)] {
    match cgroups.layout() {
        Layout::V1 => &V1,
        Layout::V2 => &V2,
    }
}

fn read(cgroups: &Cgroups) -> PodLimits {
    let text = |(controller, file): &(&str, &str)| {
        // A file that is just being replaced may be empty; without one the known limit stays.
        let text = cgroups.text(controller, file).or_absent().flatten();
        let text = text.filter(|text| !text.is_empty())?;
        Some(((*file).to_owned(), text))
    };
    files(cgroups).iter().filter_map(text).collect()
}

/// Watches the cgroup of a pod that was announced, until the pod is forgotten. Plugins are notified
/// at once of limits that changed since they were recorded.
pub(crate) fn follow(daemon: &Rc<Daemon>, id: &str) {
    let Some(pod) = daemon.records.read().pod(id).cloned() else { return };
    let Some(engine) = EngineKind::named(&pod.engine) else { return };
    let Some(cgroups) = cgroups(daemon, engine, &messages::pod(&pod)) else { return };
    let mut watched = watch(daemon, engine, &cgroups);
    if watched.is_empty() {
        return;
    }
    let ended = daemon.watches.pod_cgroups.begin(id);
    let (daemon, id) = (Rc::clone(daemon), id.to_owned());
    tokio::task::spawn_local(async move {
        loop {
            // Boxed: it calls plugins, and there may be many pods.
            Box::pin(tell_if_changed(&daemon, &id, &cgroups)).await;
            tokio::select! {
                is_there = next_write(&mut watched) => if !is_there { break },
                () = ended.notified() => break,
            }
            tokio::time::sleep(SETTLE).await;
            watched.iter_mut().for_each(WatchedFolder::drain);
        }
    });
}

/// Follows every pod that an earlier daemon recorded, once its plugins are back.
pub(crate) fn follow_all(daemon: &Rc<Daemon>) {
    let ids: Vec<String> = daemon.records.read().pods().map(|pod| pod.id.clone()).collect();
    if ids.is_empty() {
        return;
    }
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        daemon.registry.wait_for_returning().await;
        for id in ids.iter().filter(|id| !daemon.watches.pod_cgroups.has(id)) {
            follow(&daemon, id);
        }
    });
}

/// The folders of the cgroup, each once; none if the kernel has no watch left.
fn watch(daemon: &Daemon, engine: EngineKind, cgroups: &Cgroups) -> Vec<WatchedFolder> {
    let mut dirs: Vec<_> =
        files(cgroups).iter().filter_map(|(controller, _)| cgroups.dir(controller)).collect();
    dirs.dedup();
    let mut watched = Vec::new();
    for dir in dirs {
        match daemon.watches.folders.watch_if_there(dir) {
            Ok(folder) => watched.extend(folder),
            Err(_no_watch) => {
                let what = "cannot watch the cgroups of pods (inotify limit reached): plugins do \
                            not hear of their resizes";
                daemon.report.note_missing(engine.name(), what, "");
            }
        }
    }
    watched
}

/// Waits for a write to a limit; false once no folder is left.
async fn next_write(watched: &mut Vec<WatchedFolder>) -> bool {
    while !watched.is_empty() {
        let next = watched.iter_mut().map(|folder| Box::pin(folder.next()));
        let (event, index, others) = select_all(next).await;
        drop(others);
        match event {
            FolderEvent::Came(file) if is_limit(&file) => return true,
            FolderEvent::Unknown => return true,
            FolderEvent::Gone => drop(watched.remove(index)),
            FolderEvent::Came(_) | FolderEvent::Went(_) => {}
        }
    }
    false
}

fn is_limit(file: &OsStr) -> bool {
    V1.iter().chain(&V2).any(|(_, limit)| file == *limit)
}

/// Refreshes the limits of a pod to announce: a change until then is not a resize.
pub(crate) fn refresh(daemon: &Daemon, id: &str) {
    let Some(pod) = daemon.records.read().pod(id).cloned() else { return };
    let Some(engine) = EngineKind::named(&pod.engine) else { return };
    let message = messages::pod(&pod);
    let mut limits = pod.limits.clone();
    limits.extend(self::limits(daemon, engine, &message));
    if limits == pod.limits {
        return;
    }
    // A cgroup that is younger than the record still has the engine's values.
    let known = !pod.limits.is_empty();
    let resources = resized(&message, &pod.limits, &limits).filter(|_| known);
    daemon.note_pod(id, |pod| {
        if let Some(resources) = resources {
            pod.message = messages::with_pod_resources(pod, resources);
        }
        pod.limits = limits;
    });
}

/// UpdatePodSandbox and PostUpdatePodSandbox, if the limits are not those on record. The record
/// changes first: no resize is reported twice if the daemon dies meanwhile.
async fn tell_if_changed(daemon: &Rc<Daemon>, id: &str, cgroups: &Cgroups) {
    let lane = daemon.pod_lane(id);
    let _turn = lane.turn.lock().await;
    let Some(pod) = daemon.records.read().pod(id).cloned() else { return };
    let mut limits = pod.limits.clone();
    // A cgroup that is being removed has no values left.
    limits.extend(read(cgroups));
    if pod.state != PodState::Ready || limits == pod.limits {
        return;
    }
    if pod.limits.is_empty() {
        // The cgroup is younger than the record.
        return daemon.note_pod(id, |pod| pod.limits = limits);
    }
    let message = messages::pod(&pod);
    let Some(resources) = resized(&message, &pod.limits, &limits) else { return };
    debug!("pod {id} was resized: {limits:?}");
    let overhead = message.linux.pod_overhead.clone().into_option();
    let Some(mut update) = daemon.pod_notification(Event::UpdatePodSandbox, id) else { return };
    update.resources = Some((overhead, Some(resources.clone())));
    log_failure("recording a resize", daemon.host.point(Point::DaemonResize));
    daemon.note_pod(id, |pod| {
        pod.message = messages::with_pod_resources(pod, resources);
        pod.limits = limits;
    });
    log_failure("notifying plugins of a resize", daemon.host.point(Point::DaemonResized));
    for failure in daemon.registry.notify_each(&update).await {
        note_refusal(daemon, id, &failure.into_error());
    }
    if let Some(done) = daemon.pod_notification(Event::PostUpdatePodSandbox, id) {
        daemon.registry.notify_all(&done, &()).await;
    }
}

/// A plugin refused a resize that is in force.
fn note_refusal(daemon: &Daemon, id: &str, error: &Error) {
    let event = Event::UpdatePodSandbox.name();
    daemon.report.note_refusal(event, id, error);
    daemon.audit_pod_refusal(id, event, error);
    daemon.note_pod(id, |pod: &mut Pod| {
        let line = format!("{event}: {error}; the pod was resized all the same");
        limits::keep_latest(&mut pod.refused, line, limits::REFUSALS);
    });
}
