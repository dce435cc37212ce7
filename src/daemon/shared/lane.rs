// SPDX-License-Identifier: Apache-2.0
//! Gives each container and pod a lane (decision D3): verbs of one container run one after another, and each first
//! settles the previous verb; a `delete` or `kill` waits at most a second for that. Verbs of different containers run
//! concurrently, apart from steps in their pod's lane or in a shared bundle.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::task::JoinHandle;

use crate::argv::Verb;
use crate::daemon::runtime::error_log::RuntimeLog;
use crate::daemon::runtime::state_dir::{self, FoundInit, Stamp};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::bundle_turns::{BundleTurn, Bundles};
use crate::daemon::shared::messages::Classes;
use crate::daemon::watch::pidfd;
use crate::daemon::watch::start_watch::StartWatch;
use crate::error::Result;
use crate::host::Host;
use crate::state::{Change, ContainerKey, RepeatedValue, Store};

/// A verb that the daemon has decided and whose runtime process is not known to have exited.
pub(crate) struct PendingVerb {
    pub(crate) verb: Verb,
    pub(crate) incarnation: u64,
    /// The runtime's process, which is the wrapper's after execve(2).
    pub(crate) pid: u32,
    pub(crate) process: OwnedFd,
    /// Set if the wrapper may have run the verb without its response, because an earlier daemon died or,
    /// at a creation, the connection broke: then the wrapper's note about its call takes precedence.
    pub(crate) by_wrapper: Option<WrappersAccount>,
    pub(crate) pid_file: Option<PathBuf>,
    /// The stamp of the PID file before the verb, if known.
    pub(crate) pid_file_before: std::io::Result<Option<Stamp>>,
    /// `update`: the stamp of the runtime's state file before the verb, if known; unknown for other verbs.
    pub(crate) state_before: std::io::Result<Option<Stamp>>,
    /// The log to which the runtime writes the reason of a refusal.
    pub(crate) log: Option<RuntimeLog>,
    /// Shows whether the container was started.
    pub(crate) start_watch: RefCell<StartWatch>,
    /// `create`, `run`, `restore`: prevents other creates in this bundle until the runtime has read its document.
    pub(crate) bundle: RefCell<Option<BundleTurn>>,
    /// `update`: values that are in force once the runtime has accepted the update; until then no
    /// other request writes the container's resources.
    pub(crate) proposed: RefCell<Option<ProposedUpdate>>,
    /// `update`: its result, until plugins are notified.
    pub(crate) concluded: RefCell<Option<ConcludedUpdate>>,
}

impl PendingVerb {
    /// Creates a verb that is pending until its runtime process has exited.
    pub(crate) fn new(
        host: &Host,
        key: &ContainerKey,
        (verb, incarnation): (Verb, u64),
        (pid, process): (u32, OwnedFd),
    ) -> Self {
        Self {
            verb,
            incarnation,
            pid,
            process,
            by_wrapper: None,
            pid_file: None,
            pid_file_before: Ok(None),
            state_before: if verb == Verb::Update {
                state_dir::state_stamp(host, key)
            } else {
                Err(std::io::ErrorKind::Unsupported.into())
            },
            log: None,
            start_watch: RefCell::new(StartWatch::new(state_dir::folder(host, key))),
            bundle: RefCell::default(),
            proposed: RefCell::default(),
            concluded: RefCell::default(),
        }
    }

    /// Returns the init process that this verb created: from the runtime's state, else from the call's PID file.
    ///
    /// # Errors
    /// Fails when the PID file cannot be read, or when the state cannot and no PID file has the PID.
    pub(crate) async fn init(
        &self,
        daemon: &Daemon,
        key: &ContainerKey,
    ) -> Result<Option<FoundInit>> {
        let state = state_dir::init(&daemon.host, key);
        let (Some(file), Ok(before), Ok(None) | Err(_)) =
            (&self.pid_file, &self.pid_file_before, &state)
        else {
            return Ok(state?);
        };
        match daemon.pid_in_file(file, *before).await {
            Ok(None) => Ok(state?),
            in_file => Ok(in_file?.map(FoundInit::of_pid)),
        }
    }

    /// Takes the watch of the container's folder, and leaves a new one in its place.
    pub(crate) fn take_start_watch(&self, host: &Host, key: &ContainerKey) -> StartWatch {
        self.start_watch.replace(StartWatch::new(state_dir::folder(host, key)))
    }
}

/// Handles the notes about this container that wrappers wrote to the run directory because they continued
/// without the daemon; returns whether there were any. Fails while they cannot be read.
pub(crate) type WrappersAccount = Box<dyn Fn() -> LocalBoxFuture<'static, Result<bool>>>;

/// Values that are in force once the runtime has accepted an update, and the turn to write, held
/// until then.
#[derive(Debug)]
pub(crate) struct ProposedUpdate {
    pub(crate) engine: Map<String, Value>,
    pub(crate) overlay: Map<String, Value>,
    pub(crate) owners: BTreeMap<String, String>,
    /// The fields that plugins set in their responses to this update, each with its plugin.
    pub(crate) answered: BTreeMap<String, String>,
    pub(crate) changes: Vec<Change>,
    /// Values that the engine requests and that do not take effect.
    pub(crate) repeated: Vec<RepeatedValue>,
    pub(crate) classes: Classes,
    /// Whether plugins were asked; then they are notified of the result.
    pub(crate) is_told: bool,
    pub(crate) writing: OwnedMutexGuard<()>,
}

/// An `update` whose runtime has exited.
#[derive(Debug)]
pub(crate) struct ConcludedUpdate {
    /// Whether plugins were asked; then they are notified.
    pub(crate) is_told: bool,
    /// The resources that a failed update tried to set.
    pub(crate) failed: Option<Map<String, Value>>,
    /// The task that restores the plugins' values after a failure.
    pub(crate) restoring: Option<JoinHandle<()>>,
}

/// The work in progress for one container or pod.
#[derive(Default)]
pub(crate) struct Lane {
    /// Held while a verb is decided or settled, or plugins are notified of a start or exit.
    pub(crate) turn: Mutex<()>,
    /// Verbs whose outcome is still open, oldest first.
    pub(crate) pending: RefCell<Vec<Rc<PendingVerb>>>,
    /// Held while a runtime or the daemon writes the container's resources; never while a plugin is asked or while
    /// waiting for a turn.
    pub(crate) writing: Arc<Mutex<()>>,
    /// The patched document of a creation, until the runtime has made the container.
    pub(crate) written: RefCell<Option<Vec<u8>>>,
}

/// The lanes of all containers and pods with work in progress.
#[derive(Default)]
pub(crate) struct Lanes {
    all: RefCell<HashMap<ContainerKey, Rc<Lane>>>,
    /// Allows one create at a time in each bundle.
    pub(crate) bundles: Bundles,
    /// The containers of whose exit plugins are being notified.
    reported_now: RefCell<Vec<ContainerKey>>,
    /// Wakes all waiting tasks when a report has ended.
    pub(crate) report_ended: Notify,
}

/// A report of a container's exit that is being sent.
pub(crate) struct ExitReport<'l> {
    lanes: &'l Lanes,
    key: ContainerKey,
}

impl Drop for ExitReport<'_> {
    fn drop(&mut self) {
        let mut reported = self.lanes.reported_now.borrow_mut();
        if let Some(at) = reported.iter().position(|key| *key == self.key) {
            reported.swap_remove(at);
        }
        self.lanes.report_ended.notify_waiters();
    }
}

impl Lanes {
    /// Returns the lane of a container, which is created if needed.
    pub(crate) fn container(&self, key: &ContainerKey) -> Rc<Lane> {
        Rc::clone(self.all.borrow_mut().entry(key.clone()).or_default())
    }

    /// Returns the lane of a pod, so that the pod is announced once and ends before it begins
    /// again. Acquire it after a container's lane, never before.
    pub(crate) fn pod(&self, id: &str) -> Rc<Lane> {
        self.container(&pod_key(id))
    }

    /// Drops the lanes of a container and of its pod: each if it has no record and no work is in progress.
    pub(crate) fn drop_idle(&self, store: &Store, key: &ContainerKey, pod: &str) {
        let mut lanes = self.all.borrow_mut();
        for (key, is_known) in [
            (key.clone(), store.container(key).is_some()),
            (pod_key(pod), store.pod(pod).is_some()),
        ] {
            if !is_known && lanes.get(&key).is_some_and(is_idle) {
                lanes.remove(&key);
            }
        }
    }

    /// Drops the lane of a pod without a record, if no work is in progress.
    pub(crate) fn drop_idle_pod(&self, store: &Store, id: &str) {
        self.drop_idle(store, &pod_key(id), id);
    }

    /// Marks that plugins are being notified of a container's exit, until the value is dropped.
    pub(crate) fn begin_report(&self, key: &ContainerKey) -> ExitReport<'_> {
        self.reported_now.borrow_mut().push(key.clone());
        ExitReport { lanes: self, key: key.clone() }
    }

    /// Whether plugins are being notified of a container's exit.
    pub(crate) fn is_reported_now(&self, key: &ContainerKey) -> bool {
        self.reported_now.borrow().contains(key)
    }

    /// Drops the lane of a living container if no work is in progress: thousands of idle containers
    /// need none.
    pub(crate) fn release(&self, key: &ContainerKey, lane: Rc<Lane>) {
        drop(lane);
        let mut lanes = self.all.borrow_mut();
        if lanes.get(key).is_some_and(is_idle) {
            lanes.remove(key);
        }
    }
}

impl Lanes {
    /// Whether no lane is in use, and each pending verb is a foreground run that has not ended, of a
    /// container for which `is_followed` is true.
    pub(crate) fn are_quiet(&self, is_followed: impl Fn(&ContainerKey) -> bool) -> bool {
        let lanes = self.all.borrow();
        lanes.iter().all(|(key, lane)| {
            let is_free = lane.turn.try_lock().is_ok() && lane.writing.try_lock().is_ok();
            let pending = lane.pending.borrow();
            let is_open = |pending: &Rc<PendingVerb>| {
                let has_ended = pidfd::has_ended(&pending.process);
                has_ended || !pending.verb.creates_and_starts() || !is_followed(key)
            };
            is_free && !pending.iter().any(is_open)
        })
    }

    /// Whether a runtime is changing a container. `run` and `restore` do not count, since in the
    /// foreground they last as long as their containers.
    pub(crate) fn have_runtimes(&self) -> bool {
        let is_short = |pending: &Rc<PendingVerb>| !pending.verb.creates_and_starts();
        self.all.borrow().values().any(|lane| lane.pending.borrow().iter().any(is_short))
    }
}

/// Whether no task holds or awaits the lane and no verb is pending, so that it can be dropped.
fn is_idle(lane: &Rc<Lane>) -> bool {
    let is_held = Rc::strong_count(lane) > 1 || Arc::strong_count(&lane.writing) > 1;
    !is_held && lane.pending.borrow().is_empty()
}

/// Returns the key of a pod's lane; it cannot collide with a container, because a runtime's root is never relative.
fn pod_key(id: &str) -> ContainerKey {
    ContainerKey { root: "pods".to_owned(), id: id.to_owned() }
}
