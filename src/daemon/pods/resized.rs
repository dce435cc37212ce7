// SPDX-License-Identifier: Apache-2.0
//! Handles pods that kubelet resizes (decision D38): no OCI runtime is executed for it, so no wrapper reports it;
//! kubelet writes the limits of the pod's cgroup. The daemon watches these files, refreshes the pod's resources in its
//! record, and sends UpdatePodSandbox and PostUpdatePodSandbox. The resize has already happened, so a plugin's refusal
//! is only reported. Plugins and node agents write these files too; only kubelet's writes are resizes (`kubelet.rs`,
//! decision D57).
//!
//! This module costs nothing between two writes, for any number of pods, and writes no cgroup.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::debug;

use crate::cgroup::{CgroupFiles, Cgroups, Layout};
use crate::daemon::pods::kubelet::{self, LimitWriter};
use crate::daemon::shared::{Daemon, log_failure, messages};
use crate::daemon::watch::writers::{WatchedFile, Writer};
use crate::describe::resized::{PodLimits, V1, V2, resized};
use crate::engine::{EngineKind, cgroup_of_pod};
use crate::error::Error;
use crate::host::Point;
use crate::limits;
use crate::plugin::{Event, api};
use crate::presence::IfThere;
use crate::state::{Pod, PodState};
use crate::stream::{EventKind, NodeEvent};

/// Delay between a write and reading the files: kubelet writes several in succession.
const SETTLE: Duration = Duration::from_millis(100);

/// The line of `check` if it is unknown which process wrote a limit.
const UNKNOWN_WRITER: &str =
    "limits of a pod were written by an unidentified process, so this is not a resize";
/// The line of `check` if it is unknown which value kubelet wrote.
const OVERWRITTEN: &str =
    "limits of a pod were overwritten right after kubelet wrote them, so this is not a resize";

/// Returns the current limits of the pod's cgroup; none if the cgroup is not kubelet's.
pub(crate) fn limits(daemon: &Daemon, engine: EngineKind, pod: &api::PodSandbox) -> PodLimits {
    cgroups(daemon, engine, pod).map(|cgroups| read(&cgroups)).unwrap_or_default()
}

fn cgroups(daemon: &Daemon, engine: EngineKind, pod: &api::PodSandbox) -> Option<Cgroups> {
    if !engine.behaviour().has_pods {
        return None;
    }
    let linux = pod.linux.as_ref()?;
    let path = match (linux.cgroups_path.as_str(), linux.cgroup_parent.as_str()) {
        ("", "") => return None,
        // `cgroup_of_pod` takes a container's cgroup path and returns the parent, so any name will do.
        ("", parent) if parent.starts_with('/') => format!("{parent}/-"),
        ("", parent) => format!("{parent}:-:-"),
        (path, _) => path.to_owned(),
    };
    let mounts = daemon.caches.cgroup_mounts(&daemon.host).or_absent()?;
    Cgroups::at(&daemon.host, &mounts, &cgroup_of_pod(&path, &pod.uid)?)
}

/// Returns the files of this layout, with their controllers.
fn files(cgroups: &Cgroups) -> &'static [(&'static str, &'static str)] {
    match cgroups.layout() {
        Layout::V1 => &V1,
        Layout::V2 => &V2,
    }
}

fn read(cgroups: &Cgroups) -> PodLimits {
    let text = |(controller, file): &(&str, &str)| {
        // If the file is unreadable or empty, the limit on record stays.
        let text = cgroups.text(controller, file).or_absent().flatten();
        let text = text.filter(|text| !text.is_empty())?;
        Some(((*file).to_owned(), text))
    };
    files(cgroups).iter().filter_map(text).collect()
}

/// The watch of one pod's limits, and the writes since the limits were last read.
pub(crate) struct LimitWatch {
    cgroups: Cgroups,
    _files: Vec<WatchedFile>,
    writes: Rc<Writes>,
}

/// The written limits, by file name.
#[derive(Default)]
struct Writes {
    written: RefCell<BTreeMap<&'static str, Written>>,
    come: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// By kubelet, and not by another process since.
    ByKubelet,
    /// Only by another process, or by an unknown one.
    ByOther,
    /// By kubelet, and later by another or unknown process: kubelet's value is unknown.
    Overwritten,
}

impl Writes {
    fn note(&self, file: &'static str, writer: LimitWriter) {
        let mut written = self.written.borrow_mut();
        let before = written.get(file).copied();
        let now = match (writer, before) {
            // systemd repeats kubelet's value.
            (LimitWriter::ServiceManager, _) => return,
            (LimitWriter::Kubelet, _) => Written::ByKubelet,
            (_, None | Some(Written::ByOther)) => Written::ByOther,
            (_, Some(Written::ByKubelet | Written::Overwritten)) => Written::Overwritten,
        };
        if written.insert(file, now) != Some(now) {
            self.come.notify_one();
        }
    }
}

/// Watches the limits of a pod; `None` if it has no separate cgroup, or the kernel does not report
/// writers. [`follow_with`] handles the writes.
pub(crate) fn watch(daemon: &Rc<Daemon>, id: &str) -> Option<LimitWatch> {
    let pod = daemon.records.read().pod(id).cloned()?;
    let engine = pod.engine.kind()?;
    let cgroups = cgroups(daemon, engine, &messages::pod(&pod))?;
    let writes = Rc::new(Writes::default());
    let mut watched = Vec::new();
    for (controller, file) in files(&cgroups) {
        let Some(dir) = cgroups.dir(controller) else { continue };
        // A weak reference, because the daemon owns the watch.
        let (daemon_of, writes_of) = (Rc::downgrade(daemon), Rc::clone(&writes));
        let pod = id.to_owned();
        let on_write = move |writer: Option<&Writer>| {
            let Some(daemon) = daemon_of.upgrade() else { return };
            let writer = kubelet::identify(&daemon.host, writer, &daemon.config().kubelet);
            if writer == LimitWriter::Unknown {
                daemon.report.note_missing(engine.name(), UNKNOWN_WRITER, &pod);
            }
            writes_of.note(file, writer);
        };
        match daemon.watches.limit_writes.watch(&dir.join(file), on_write) {
            Ok(file) => watched.extend(file),
            Err(errno) => {
                let what = format!(
                    "cannot watch the limits of pods (fanotify: {errno}): plugins receive no UpdatePodSandbox"
                );
                daemon.report.note_missing(engine.name(), &what, "");
                return None;
            }
        }
    }
    (!watched.is_empty()).then_some(LimitWatch { cgroups, _files: watched, writes })
}

/// Watches the limits of a pod that was announced, until the pod is forgotten.
pub(crate) fn follow(daemon: &Rc<Daemon>, id: &str) {
    follow_with(daemon, id, None);
}

/// Like [`follow`], with a watch that was begun before RunPodSandbox. Without such a watch, plugins are notified of
/// limits that differ from the record.
pub(crate) fn follow_with(daemon: &Rc<Daemon>, id: &str, begun: Option<LimitWatch>) {
    let is_begun = begun.is_some();
    let Some(watch) = begun.or_else(|| watch(daemon, id)) else { return };
    let ended = daemon.watches.pod_cgroups.begin(id);
    let (daemon, id) = (Rc::clone(daemon), id.to_owned());
    tokio::task::spawn_local(async move {
        if !is_begun {
            // Boxed: it calls plugins, and there may be many pods.
            Box::pin(catch_up(&daemon, &id, &watch)).await;
        }
        loop {
            tokio::select! {
                () = watch.writes.come.notified() => {}
                () = ended.notified() => break,
            }
            tokio::time::sleep(SETTLE).await;
            Box::pin(take_writes(&daemon, &id, &watch)).await;
        }
    });
}

/// Follows every pod that an earlier daemon recorded, once its plugins have returned or the wait for them is over.
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

/// Handles limits that changed since they were recorded: before this watch, or while no daemon ran. A file
/// that another process has written too is ignored, because the writer of its value is unknown.
async fn catch_up(daemon: &Rc<Daemon>, id: &str, watch: &LimitWatch) {
    let lane = daemon.pod_lane(id);
    let _turn = lane.turn.lock().await;
    let Some(pod) = daemon.records.read().pod(id).cloned() else { return };
    let mut limits = read(&watch.cgroups);
    if pod.limits.is_empty() {
        // The cgroup is newer than the record.
        return daemon.note_pod(id, |pod| pod.limits = limits);
    }
    let is_anothers = |file: &str| {
        let by = watch.writes.written.borrow().get(file).copied();
        pod.foreign_limits.contains(file) || by.is_some_and(|by| by != Written::ByKubelet)
    };
    limits.retain(|file, _| !is_anothers(file));
    notify_if_changed(daemon, &pod, limits).await;
}

/// Handles the limits that kubelet wrote.
async fn take_writes(daemon: &Rc<Daemon>, id: &str, watch: &LimitWatch) {
    let lane = daemon.pod_lane(id);
    let _turn = lane.turn.lock().await;
    let Some(mut pod) = daemon.records.read().pod(id).cloned() else { return };
    let mut limits = read(&watch.cgroups);
    // The writes are taken after the values were read, so that a later write is handled next time.
    let written = watch.writes.written.take();
    let by = |file: &str| written.get(file).copied();
    limits.retain(|file, _| by(file) == Some(Written::ByKubelet));
    if written.values().any(|by| *by == Written::Overwritten) {
        let engine = pod.engine.kind().map_or("", EngineKind::name);
        daemon.report.note_missing(engine, OVERWRITTEN, id);
    }
    let foreign = written.iter().filter(|(_, by)| **by != Written::ByKubelet);
    let before = pod.foreign_limits.clone();
    pod.foreign_limits.retain(|file| by(file) != Some(Written::ByKubelet));
    pod.foreign_limits.extend(foreign.map(|(file, _)| (*file).to_owned()));
    if pod.foreign_limits != before {
        daemon.note_pod(id, |record| record.foreign_limits.clone_from(&pod.foreign_limits));
    }
    notify_if_changed(daemon, &pod, limits).await;
}

/// Updates the limits of a pod before it is announced: changes until then are not resizes.
pub(crate) fn refresh(daemon: &Daemon, id: &str) {
    let Some(pod) = daemon.records.read().pod(id).cloned() else { return };
    let Some(engine) = pod.engine.kind() else { return };
    let message = messages::pod(&pod);
    let mut limits = pod.limits.clone();
    limits.extend(self::limits(daemon, engine, &message));
    if limits == pod.limits {
        return;
    }
    // A cgroup that is newer than the record still has the engine's values.
    let known = !pod.limits.is_empty();
    let resources = resized(&message, &pod.limits, &limits).filter(|_| known);
    daemon.note_pod(id, |pod| {
        if let Some(resources) = resources {
            pod.message = messages::with_pod_resources(pod, resources);
        }
        pod.limits = limits;
    });
}

/// Sends UpdatePodSandbox and PostUpdatePodSandbox if these limits differ from the record; the
/// caller holds the pod's lane. The record changes first, so that a resize is not reported twice if
/// the daemon dies meanwhile.
async fn notify_if_changed(daemon: &Rc<Daemon>, pod: &Pod, written: PodLimits) {
    let id = pod.id.as_str();
    let mut limits = pod.limits.clone();
    // A cgroup that is being removed has no values; the recorded ones then stay.
    limits.extend(written);
    if pod.state != PodState::Ready || limits == pod.limits {
        return;
    }
    let message = messages::pod(pod);
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
    daemon.emit_pod(id, NodeEvent::new(EventKind::PodUpdated));
    log_failure("notifying plugins of a resize", daemon.host.point(Point::DaemonResized));
    for failure in daemon.registry.notify_each(&update).await {
        note_refusal(daemon, id, &failure.into_error());
    }
    if let Some(done) = daemon.pod_notification(Event::PostUpdatePodSandbox, id) {
        daemon.registry.notify_all(&done, &()).await;
    }
}

/// Reports that a plugin refused a resize that is already in force.
fn note_refusal(daemon: &Daemon, id: &str, error: &Error) {
    let event = Event::UpdatePodSandbox.name();
    daemon.report.note_refusal(event, id, error);
    daemon.audit_pod_refusal(id, event, error);
    daemon.note_pod(id, |pod: &mut Pod| {
        let line = format!("{event}: {error}; the resize is in force nevertheless");
        limits::keep_latest(&mut pod.refused, line, limits::REFUSALS);
    });
}
