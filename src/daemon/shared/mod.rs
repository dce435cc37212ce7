// SPDX-License-Identifier: Apache-2.0
//! Holds the daemon's shared state: the records of pods and containers, the lanes in which their verbs wait, the
//! registered plugins, and the counts and failures for `status`.
//!
//! This module never decides about an event; the verbs do. It imports `process`, `registry`,
//! `runtime` and `watch`, because it contains their types.

mod audited;
pub(crate) mod bundle_turns;
pub(crate) mod caches;
mod emitted;
pub(crate) mod events;
pub(crate) mod eviction_rate;
pub(crate) mod few_lines;
pub(crate) mod flight_recorder;
pub(crate) mod lane;
pub(crate) mod messages;
mod off_loop;
mod paused;
pub(crate) mod queues;
pub(crate) mod records;
pub(crate) mod refused;
pub(crate) mod report;
mod snapshot_room;
pub(crate) mod update_backoff;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Mutex;
use tracing::error;

use crate::chain::Notification;
use crate::config::Config;
use crate::daemon::process::own::OwnProcess;
use crate::daemon::registry::Registry;
use crate::daemon::registry::connected::{ConnectedPlugin, Subject};
use crate::daemon::watch::start_watch::StartWatch;
use crate::error::Error;
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::link::{EXECS_FOR_AUDIT, EXECS_FOR_PLUGINS, EXECS_FOR_RULES, EXECS_PROTECTED};
use crate::plugin::Event;
use crate::presence::IfThere;
use crate::state::{Container, ContainerKey, Pod, Store};
use crate::stream::EventStream;

use caches::Caches;
use eviction_rate::EvictionRate;
use lane::{Lane, Lanes};
use off_loop::Unanswered;
use queues::{InitProcess, PodNews, Watches};
pub(crate) use records::Records;
pub(crate) use report::Report;
use snapshot_room::SnapshotRoom;
use update_backoff::UpdateBackoff;

/// The fraction of a caller's time-out in which the daemon answers; the rest is for the response to arrive.
const ANSWER_SHARE: f32 = 0.95;

/// The daemon's state, which all its modules share.
pub(crate) struct Daemon {
    /// The configuration in force; a reload replaces it as a whole.
    config: RefCell<Rc<Config>>,
    pub(crate) host: Host,
    pub(crate) records: Records,
    pub(crate) registry: Registry,
    pub(crate) lanes: Lanes,
    pub(crate) watches: Watches,
    pub(crate) caches: Caches,
    pub(crate) report: Report,
    /// The event stream for other programs.
    pub(crate) stream: Rc<EventStream>,
    pub(crate) process: OwnProcess,
    pub(crate) evictions: EvictionRate,
    pub(crate) update_backoff: UpdateBackoff,
    /// Memory reserved for snapshots that are being sent to plugins.
    pub(crate) snapshots: SnapshotRoom,
    /// A starting daemon holds this while it looks up the addresses of many pods, for at most 2 s: plugins are
    /// admitted afterwards, even if some addresses are still unknown.
    pub(crate) looking_up: Arc<Mutex<()>>,
    /// Running calls on engines' files.
    unanswered: Unanswered,
}

impl Daemon {
    pub(crate) fn new(config: Config, host: Host, store: Store) -> Rc<Self> {
        let report = Report::default();
        report.audit.apply(&config);
        let caches = Caches::default();
        caches.exit_codes.mute_kernel(!config.seams.kernel_exits);
        Rc::new(Self {
            registry: Registry::new(&config),
            config: RefCell::new(Rc::new(config)),
            host,
            records: Records::new(store),
            lanes: Lanes::default(),
            watches: Watches::default(),
            caches,
            report,
            stream: Rc::default(),
            process: OwnProcess::default(),
            evictions: EvictionRate::default(),
            update_backoff: UpdateBackoff::default(),
            snapshots: SnapshotRoom::default(),
            looking_up: Arc::default(),
            unanswered: Unanswered::default(),
        })
    }

    /// Returns the configuration in force. A caller that keeps the returned value does not see later reloads.
    pub(crate) fn config(&self) -> Rc<Config> {
        Rc::clone(&self.config.borrow())
    }

    /// Puts a configuration in force in one step. Returns the plugins to which the new rules show a
    /// pod that the old ones hid from them.
    #[must_use]
    pub(crate) fn replace_config(&self, config: Config) -> Vec<Rc<ConnectedPlugin>> {
        let before = self.registry.rules();
        self.registry.apply(&config);
        *self.config.borrow_mut() = Rc::new(config);
        self.watches.reloaded.notify_one();
        self.watches.drift_reloaded.notify_one();
        let (store, now) = (self.records.read(), self.registry.rules());
        let mut shown_more = self.registry.connected();
        shown_more.retain(|connected| events::is_shown_more(&store, &before, &now, connected.id()));
        shown_more
    }

    /// Writes to the run directory whether each `exec` involves the daemon, and updates the facts in the
    /// containers' marks, by which a wrapper decides if the daemon does not respond. Does nothing while the
    /// previous program's plugins are being resumed.
    pub(crate) fn keep_execs_file(&self) {
        if self.registry.returning.execs.are_resuming.get() {
            return;
        }
        let config = self.config();
        let path = config.execs_file();
        let plugins = self.registry.exec_interest();
        let text = match (config.exec_rules.is_empty(), config.audits_execs() || plugins.notes) {
            _ if plugins.protects => Some(EXECS_PROTECTED),
            _ if plugins.asks => Some(EXECS_FOR_PLUGINS),
            (false, _) => Some(EXECS_FOR_RULES),
            (true, true) => Some(EXECS_FOR_AUDIT),
            (true, false) => None,
        };
        let known = files::read_own(&path, limits::OWN_FILE).if_there().ok();
        if known.as_ref().is_none_or(|known| known.as_deref() != text) {
            let kept = match text {
                Some(text) => files::replace(&path, text),
                None => std::fs::remove_file(&path).if_there().map(drop).map_err(Error::from),
            };
            log_failure("writing the file that says whether each exec involves the daemon", kept);
        }
        self.mark_execs(text.is_some());
    }

    /// Determines, before the execs file is rewritten, whether former plugins may return. `are_resuming`:
    /// plugins of the previous program are about to be resumed. Otherwise, after a restart, plugins that
    /// protected execs may return; until they do, or time out, execs stay protected (D14).
    pub(crate) fn expect_former_execs(&self, are_resuming: bool) {
        self.registry.returning.execs.are_resuming.set(are_resuming);
        if are_resuming {
            return;
        }
        let config = self.config();
        let before = files::read_own(&config.execs_file(), limits::OWN_FILE).or_absent();
        if before.is_some_and(|before| before == EXECS_PROTECTED) {
            self.registry.returning.execs.expect(config.registration_timeout);
        }
    }

    /// Records that the plugins of the previous program are resumed.
    pub(crate) fn note_execs_resumed(&self) {
        self.registry.returning.execs.are_resuming.set(false);
        self.keep_execs_file();
    }

    /// Rewrites the execs file after a plugin has disconnected. A stopping daemon keeps the file: its
    /// plugins disconnect only because it stops, and their protection stays until the next daemon.
    pub(crate) fn keep_execs_file_while_it_runs(&self) {
        if !self.process.is_ending.get() {
            self.keep_execs_file();
        }
    }

    /// Adds the facts that `exec` needs to each container's mark, while each `exec` involves the
    /// daemon; else removes them (D51).
    fn mark_execs(&self, is_wanted: bool) {
        self.records.mark_execs(is_wanted);
        let keys: Vec<ContainerKey> = {
            let store = self.records.read();
            let is_other = |c: &&Container| c.outcome.exec_subject.is_some() != is_wanted;
            store.containers().filter(is_other).map(|c| c.key.clone()).collect()
        };
        keys.iter().for_each(|key| self.change(key, |_| ()));
    }

    pub(crate) fn container(&self, key: &ContainerKey) -> Option<Rc<Container>> {
        self.records.container(key)
    }

    /// Changes a record; a disk failure is reported to the operator and does not fail the container.
    pub(crate) fn change(&self, key: &ContainerKey, change: impl FnOnce(&mut Container)) {
        if let Err(error) = self.records.note(key, change) {
            self.report.note_unwritten(&key.id, &error);
        }
    }

    /// Changes a pod's record; a disk failure is reported to the operator and does not fail the pod.
    pub(crate) fn note_pod(&self, id: &str, change: impl FnOnce(&mut Pod)) {
        if let Err(error) = self.records.note_pod(id, change) {
            self.report.note_unwritten(id, &error);
        }
    }

    pub(crate) fn lane(&self, key: &ContainerKey) -> Rc<Lane> {
        self.lanes.container(key)
    }

    /// Returns the lane of a pod; acquire it after a container's, never before.
    pub(crate) fn pod_lane(&self, id: &str) -> Rc<Lane> {
        self.lanes.pod(id)
    }

    /// Drops the lanes of a container and of its pod: each if it has no record and no work is in progress.
    pub(crate) fn drop_idle_lanes(&self, key: &ContainerKey, pod: &str) {
        self.lanes.drop_idle(&self.records.read(), key, pod);
    }

    /// Returns the time shortly before the caller of a creation that begins now stops waiting.
    pub(crate) fn caller_waits_until(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.config().debug_create_cap.mul_f32(ANSWER_SHARE)
    }

    /// Whether another process, normally the engine, serves the node's NRI plugins, and the daemon has none (D12).
    pub(crate) fn is_bystander(&self) -> bool {
        self.registry.socket.is_bystander()
    }

    /// Returns an event about a pod.
    pub(crate) fn pod_notification(&self, event: Event, id: &str) -> Option<Notification> {
        events::of_pod(&self.records.read(), event, id)
    }

    /// Records that a container is no longer on record.
    pub(crate) fn note_forgotten(&self, key: &ContainerKey) {
        self.registry.note_ended(&Subject::Container(Rc::new(key.clone())));
    }

    /// Records that a pod is no longer on record.
    pub(crate) fn note_forgotten_pod(&self, id: &str) {
        self.registry.note_ended(&Subject::Pod(id.into()));
    }

    /// Queues the init process of a container to be watched until it exits.
    pub(crate) fn watch_init(&self, record: &Container) {
        self.watch_init_with(record, None);
    }

    /// Like [`watch_init`](Self::watch_init), with a watch of the container's folder that began at its creation.
    pub(crate) fn watch_init_with(&self, record: &Container, folder: Option<StartWatch>) {
        self.init_process(record, folder)
            .into_iter()
            .for_each(|init| self.watches.inits.send(init));
    }

    /// Returns the init process of a container, opened for the queue.
    pub(crate) fn init_process(
        &self,
        record: &Container,
        folder: Option<StartWatch>,
    ) -> Option<InitProcess> {
        let key = self.records.shared_key(&record.key);
        InitProcess::open(&self.host, key, record, folder, &self.watches.init_watches)
    }

    /// Drops the metrics of plugins that disconnected long ago.
    pub(crate) fn forget_gone_plugins(&self) {
        let is_connected = |id: &str| self.registry.find(id).is_some();
        self.report.metrics.plugins().forget_gone(is_connected, std::time::Instant::now());
    }

    /// Sends an event to the watch of CRI-O's folders.
    pub(crate) fn notify_crio_watch(&self, news: PodNews) {
        self.watches.crio.news.send(news);
    }
}

/// Logs a failure for which no caller waits.
pub(crate) fn log_failure(what: &str, result: Result<(), impl Into<Error>>) {
    if let Err(error) = result {
        let error: Error = error.into();
        error!("{what}: {error}");
    }
}
