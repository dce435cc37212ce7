// SPDX-License-Identifier: Apache-2.0
//! Handles a plugin that connects with the identity of a connected one, to take its place (D41): a rolling DaemonSet,
//! a restarted pod whose old process lingers, an upgraded file. The newcomer is configured and synchronized while the
//! old connection stays in use; it replaces the old one once it has caught up.
//!
//! A newcomer that fails earlier changes nothing. If processes repeatedly replace each other, a newcomer is refused.
//! The registry keeps the plugins' order and their event queues.

use std::cell::Cell;
use std::rc::Rc;

use tokio::time::Instant;
use tracing::{error, info};

use crate::clock::now;
use crate::daemon::connections::returning;
use crate::daemon::registry::connected::ConnectedPlugin;
use crate::daemon::registry::takeovers::{MOST, WINDOW};
use crate::daemon::registry::{process_name, taken_over_by};
use crate::daemon::shared::{Daemon, Report, log_failure};
use crate::host::{Host, Point};
use crate::plugin::Plugin;

/// The failure under which operators see all refused newcomers, whichever processes they are.
const CONTESTED: &str = "several processes connect as one plugin";

/// A newcomer: a new connection with the identity of a connected plugin, until it replaces that plugin.
pub(super) struct Takeover {
    id: String,
    /// The newcomer's process.
    pid: Option<i32>,
    /// The pod in which the newcomer's process runs.
    pod: Option<String>,
    /// Whether the newcomer is an upgrade and not a competitor: the daemon launched both processes, or the name
    /// belongs to the newcomer's file.
    is_upgrade: bool,
    /// `completed`, `failed` or `refused`.
    outcome: Cell<&'static str>,
}

impl Takeover {
    /// Begins a takeover if a plugin with the identity of `plugin` is connected.
    ///
    /// # Errors
    /// Fails with the reason why the newcomer is refused, which is already reported.
    pub(super) fn begin(
        daemon: &Daemon,
        plugin: &Plugin,
        is_launched: bool,
    ) -> Result<Option<Self>, String> {
        let id = plugin.id();
        let Some(old) = daemon.registry.find(id) else {
            daemon.registry.takeovers.forget_all_displaced(id, Instant::now());
            return Ok(None);
        };
        let takeover = Self {
            pod: returning::pod_of_process(daemon, plugin.pid()),
            pid: plugin.pid(),
            is_upgrade: is_launched
                && (old.is_launched() || daemon.registry.pre_installed.owns(id)),
            outcome: Cell::new("failed"),
            id: id.to_owned(),
        };
        takeover.refuse_fight(daemon, &old).inspect_err(|_why| takeover.count(&daemon.report))?;
        info!(
            "{}: {} connected beside {} and takes over from it once it is synchronized",
            takeover.id,
            process_name(takeover.pid),
            process_name(old.pid())
        );
        Ok(Some(takeover))
    }

    /// Refuses a newcomer if the plugin was replaced too often, or if a process outside the newcomer's pod has replaced
    /// the process of that pod. Never refuses an upgrade, nor any newcomer while `old` has a strike or is gone.
    fn refuse_fight(&self, daemon: &Daemon, old: &ConnectedPlugin) -> Result<(), String> {
        if self.is_upgrade || old.is_failing() {
            return Ok(());
        }
        let (takeovers, at) = (&daemon.registry.takeovers, Instant::now());
        let old_pid = old.pid();
        let why = if takeovers.is_contested(&self.id, at) {
            format!("this plugin was replaced {MOST} times within {} seconds", WINDOW.as_secs())
        } else if self.comes_back(daemon, old_pid) {
            "a process outside its pod has since replaced its pod's process".to_owned()
        } else {
            return Ok(());
        };
        let reason = format!(
            "{} was refused, since {} has this name and {why}: stop one of the two",
            process_name(self.pid),
            process_name(old_pid)
        );
        let line = format!("{}: {reason}", self.id);
        self.outcome.set("refused");
        if takeovers.note_refusal(&self.id, at) {
            error!("{line}");
        }
        daemon.report.count_failure(&line, CONTESTED, &self.id, now());
        Err(reason)
    }

    /// Whether a process outside the newcomer's pod has replaced the process of that pod: if a plugin exits
    /// when it is replaced, its pod restarts it until the pod is deleted.
    fn comes_back(&self, daemon: &Daemon, old_pid: Option<i32>) -> bool {
        let Some(pod) = self.pod.as_deref() else { return false };
        daemon.registry.takeovers.has_displaced(&self.id, pod)
            && returning::pod_of_process(daemon, old_pid).as_deref() != Some(pod)
    }

    pub(super) fn count(&self, report: &Report) {
        report.metrics.plugins().count_takeover(&self.id, self.outcome.get());
    }
}

/// Fails if a test has set a fault at this point of a takeover; does nothing if no plugin is replaced.
pub(super) fn pass(host: &Host, takeover: Option<&Takeover>, point: Point) -> Result<(), String> {
    match takeover {
        Some(_) => host.point(point).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// Adds a plugin that has caught up to the chain, replacing earlier connections of its identity, which are returned.
///
/// # Errors
/// Fails with the reason why the plugin is not added.
pub(super) fn take_place(
    daemon: &Daemon,
    connected: &Rc<ConnectedPlugin>,
    takeover: Option<&Takeover>,
) -> Result<Vec<Rc<ConnectedPlugin>>, String> {
    if !connected.is_synchronizing() {
        return Err("it disconnected, or a later connection took its place".to_owned());
    }
    let predecessor = daemon.registry.predecessor(connected);
    if let (Some(old), Some(takeover)) = (&predecessor, takeover) {
        if connected.has_strikes() {
            return Err("it did not answer an event in time".to_owned());
        }
        // Another newcomer may have replaced the old plugin while this newcomer was being synchronized.
        takeover.refuse_fight(daemon, old)?;
    }
    let old = daemon.registry.take_place(connected);
    if let Some(takeover) = takeover {
        takeover.outcome.set("completed");
        predecessor.iter().for_each(|predecessor| note(daemon, takeover, predecessor));
    }
    Ok(old)
}

/// Logs a takeover from `old` and, unless it is an upgrade, records it for later decisions.
fn note(daemon: &Daemon, takeover: &Takeover, old: &ConnectedPlugin) {
    let (id, old_pid, at) = (&takeover.id, old.pid(), Instant::now());
    info!("{id}: {} took over from {}", process_name(takeover.pid), process_name(old_pid));
    let takeovers = &daemon.registry.takeovers;
    takeover.pod.iter().for_each(|pod| takeovers.forget_displaced(id, pod));
    if !takeover.is_upgrade {
        let lost = returning::pod_of_process(daemon, old_pid);
        takeovers.note(id, lost.filter(|pod| takeover.pod.as_ref() != Some(pod)), at);
    }
}

/// Ends a replaced connection: it first answers its requests in flight, up to a time limit, then receives Shutdown.
pub(super) async fn retire(daemon: Rc<Daemon>, old: Rc<ConnectedPlugin>, by: Rc<ConnectedPlugin>) {
    let passed = daemon.host.point(Point::DaemonTakeoverDone);
    log_failure("ending a replaced plugin", passed);
    // No wrapper waits longer for its request.
    let _ended = tokio::time::timeout(daemon.config().debug_create_cap, old.requests_ended()).await;
    let passed = daemon.host.point(Point::DaemonTakeoverShutdown);
    log_failure("ending a replaced plugin", passed);
    old.shutdown(&taken_over_by(&by)).await;
}
