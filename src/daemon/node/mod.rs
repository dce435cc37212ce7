// SPDX-License-Identifier: Apache-2.0
//! The daemon's shared state: what is known, who is at the table, and one lane per container.
//!
//! A lane puts the verbs of one container in a row (decision D3): each waits for the one before,
//! and first settles what the runtime of an earlier verb came to. Different containers never
//! wait for each other here. It makes no decision about events; the verb files do.

pub(crate) mod bundle_turns;
pub(crate) mod messages;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{Mutex, Notify};
use tracing::{error, info, warn};

use crate::adaptation::DefaultValidator;
use crate::argv::Verb;
use crate::cgroup::{Cgroups, Mounts};
use crate::chain::Told;
use crate::config::Config;
use crate::error::{Error, Result, quoted};
use crate::host::Host;
use crate::plugin::{Encoded, api};
use crate::runtime::features::KnownRuntimes;
use crate::sources::Sources;
use crate::state::{Container, Key, Lifecycle, Pod, PodState, Store};

use crate::daemon::node::bundle_turns::{BundleTurn, Bundles};
use crate::daemon::plugins::returning::Expected;
use crate::daemon::plugins::socket::PluginSocket;
use crate::daemon::process::reload::StartedWith;
use crate::daemon::process::subreaper::StandIn;
use crate::daemon::registry::relay::{Relay, Subject};
use crate::daemon::request::identity::Contradiction;
use crate::daemon::runtime::error_log::RuntimeLog;
use crate::daemon::runtime::state_dir::Stamp;
use crate::daemon::server::drain::Drain;
use crate::daemon::watch::folders::Folders;
use crate::daemon::watch::start_watch::Gate;
use crate::plugin::Event;

/// How often a disk that was full is looked at.
const ROOM: Duration = Duration::from_secs(1);

/// How many failures `status` shows.
const FAILURES: usize = 20;

/// A verb whose runtime process was seen to start and not yet seen to end.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) verb: Verb,
    pub(crate) incarnation: u64,
    /// The runtime's process: the wrapper's, after exec.
    pub(crate) pid: u32,
    pub(crate) process: OwnedFd,
    /// An earlier daemon decided it, and may have died before the wrapper heard of it.
    pub(crate) is_recovered: bool,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) pid_file_before: Option<Stamp>,
    pub(crate) state_before: Option<Stamp>,
    /// Where the runtime says why it refuses.
    pub(crate) log: Option<RuntimeLog>,
    /// `run`, `restore`: whether the container was started.
    pub(crate) gate: RefCell<Gate>,
    /// `create`, `run`, `restore`: nobody else creates in this bundle until the runtime has read
    /// its document.
    pub(crate) bundle: RefCell<Option<BundleTurn>>,
    /// `update`: what holds once the runtime took it; until then nobody else writes.
    pub(crate) holds: RefCell<Option<crate::daemon::verbs::update::Holds>>,
    /// `update`: it was taken, and plugins wait to hear of it.
    pub(crate) is_told: Cell<bool>,
}

/// What is under way for one container.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Held by the verb that is being answered or settled.
    pub(crate) turn: Mutex<()>,
    /// Verbs whose outcome is still open, oldest first.
    pub(crate) pending: RefCell<Vec<Rc<Pending>>>,
    /// Held while the container's resources are written, by a runtime or by us: never while a
    /// plugin is asked, and never while waiting for a turn.
    pub(crate) writing: Arc<Mutex<()>>,
}

/// How many different things that could not be read are kept.
const MISSING: usize = 64;

/// One failure, as `status` shows it.
#[derive(Debug, Clone)]
pub(crate) struct FailureNote {
    /// When it happened last, and first.
    pub(crate) at: i64,
    pub(crate) first: i64,
    pub(crate) count: u64,
    /// What makes two failures the same one: the line without what it was about.
    kind: String,
    pub(crate) what: String,
    pub(crate) plugin: String,
}

/// What of an engine could not be read, as `status` shows it: how often, and the last time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Missing {
    pub(crate) count: u64,
    pub(crate) at: i64,
    /// The container of the last time, empty where it is none's.
    pub(crate) id: String,
}

/// The daemon.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) builtin: DefaultValidator,
    pub(crate) host: Host,
    pub(crate) store: RefCell<Store>,
    pub(crate) relay: Relay,
    /// Shared with the threads that ask runtimes what they can do.
    pub(crate) runtimes: Arc<KnownRuntimes>,
    pub(crate) started: Instant,
    pub(crate) started_with: OnceCell<StartedWith>,
    pub(crate) requests: RefCell<BTreeMap<&'static str, u64>>,
    pub(crate) failures: RefCell<VecDeque<FailureNote>>,
    /// Who has the socket that plugins connect to.
    pub(crate) plugin_socket: PluginSocket,
    pub(crate) plugins_came: Notify,
    pub(crate) expected: RefCell<BTreeMap<String, Expected>>,
    pub(crate) wait_until: Cell<Option<tokio::time::Instant>>,
    /// Until when the wait lasts that was logged.
    pub(crate) logged_wait: Cell<Option<tokio::time::Instant>>,
    /// Nothing is started any more.
    pub(crate) ending: Cell<bool>,
    /// Requests that are answered before the daemon ends, and those that wait for the next one.
    pub(crate) drain: Drain,
    pub(crate) sources: Sources,
    /// Engine and what of it could not be read; each is logged once.
    pub(crate) missing: RefCell<BTreeMap<(&'static str, String), Missing>>,
    /// What tenants claimed of who they are, against what their engines say: the latest.
    pub(crate) contradictions: RefCell<VecDeque<Contradiction>>,
    pub(crate) cgroup_mounts: RefCell<Option<Rc<Mounts>>>,
    pub(crate) own_cgroups: OnceCell<Option<Rc<Cgroups>>>,
    /// Engine and runtime root whose monitor writes no exit codes.
    pub(crate) mute_monitors: RefCell<BTreeSet<(String, String)>>,
    /// Whenever the disk refused a record of what has happened.
    pub(crate) refused: Notify,
    /// Whenever a pod was forgotten.
    pub(crate) pod_forgotten: Notify,
    pub(crate) folders: Folders,
    pub(crate) bundles: Bundles,
    /// Where pods may come without a call, as far as that is watched.
    pub(crate) homes: RefCell<BTreeSet<PathBuf>>,
    /// Ids of folders there that are looked at.
    pub(crate) arriving: RefCell<BTreeSet<String>>,
    /// Folders that were there before the first daemon of this boot.
    pub(crate) older_than_us: RefCell<BTreeSet<String>>,
    /// When containers were evicted lately.
    pub(crate) evicted: RefCell<VecDeque<Instant>>,
    lanes: RefCell<HashMap<Key, Rc<Lane>>>,
    /// Whose child this process is until it can be init's.
    pub(crate) stand_in: RefCell<Option<StandIn>>,
}

impl Node {
    pub(crate) fn new(config: Config, host: Host, store: Store) -> Rc<Self> {
        Rc::new(Self {
            builtin: DefaultValidator::from(&config.default_validator),
            config,
            host,
            store: RefCell::new(store),
            relay: Relay::default(),
            runtimes: Arc::default(),
            started: Instant::now(),
            started_with: OnceCell::new(),
            requests: RefCell::default(),
            failures: RefCell::default(),
            plugin_socket: PluginSocket::default(),
            plugins_came: Notify::new(),
            expected: RefCell::default(),
            wait_until: Cell::new(None),
            logged_wait: Cell::new(None),
            ending: Cell::new(false),
            drain: Drain::default(),
            sources: Sources::default(),
            missing: RefCell::default(),
            contradictions: RefCell::default(),
            cgroup_mounts: RefCell::new(None),
            own_cgroups: OnceCell::new(),
            mute_monitors: RefCell::default(),
            refused: Notify::new(),
            pod_forgotten: Notify::new(),
            folders: Folders::default(),
            bundles: Bundles::default(),
            homes: RefCell::default(),
            arriving: RefCell::default(),
            older_than_us: RefCell::default(),
            evicted: RefCell::default(),
            lanes: RefCell::default(),
            stand_in: RefCell::default(),
        })
    }

    /// A container has ended, or came to nothing: who watched over it must not wait for us.
    pub(crate) fn let_go(&self) {
        if let Some(stand_in) = &*self.stand_in.borrow() {
            stand_in.wake();
        }
    }

    /// The lane of a container.
    pub(crate) fn lane(&self, key: &Key) -> Rc<Lane> {
        Rc::clone(self.lanes.borrow_mut().entry(key.clone()).or_default())
    }

    /// The lane of a pod: announced once, and over before it may begin anew. It is taken after a
    /// container's, never before.
    pub(crate) fn pod_lane(&self, id: &str) -> Rc<Lane> {
        self.lane(&pod_key(id))
    }

    /// Drops the lanes of a container that was removed and of its pod, if nothing is under way.
    pub(crate) fn drop_idle_lanes(&self, key: &Key, pod: &str) {
        let mut lanes = self.lanes.borrow_mut();
        let store = self.store.borrow();
        for (key, is_known) in [
            (key.clone(), store.container(key).is_some()),
            (pod_key(pod), store.pod(pod).is_some()),
        ] {
            if !is_known && lanes.get(&key).is_some_and(is_idle) {
                lanes.remove(&key);
            }
        }
    }

    /// Gives back the lane of a container that goes on living: thousands of them need none.
    pub(crate) fn leave(&self, key: &Key, lane: Rc<Lane>) {
        drop(lane);
        let mut lanes = self.lanes.borrow_mut();
        if lanes.get(key).is_some_and(is_idle) {
            lanes.remove(key);
        }
    }

    /// Drops the lane of a pod that is not known any more.
    pub(crate) fn drop_idle_pod_lane(&self, id: &str) {
        self.drop_idle_lanes(&pod_key(id), id);
    }

    /// What is known about a container now; it does not change in the hands of who asks.
    pub(crate) fn container(&self, key: &Key) -> Option<Rc<Container>> {
        self.store.borrow().shared(key)
    }

    /// Changes a record; a disk that refuses is an operator's business, not the container's.
    pub(crate) fn change(&self, key: &Key, change: impl FnOnce(&mut Container)) {
        let written = self.store.borrow_mut().note(key, change);
        self.is_written(&key.id, written);
    }

    /// The same for a pod.
    pub(crate) fn note_pod(&self, id: &str, change: impl FnOnce(&mut Pod)) {
        let Some(mut pod) = self.store.borrow().pod(id).cloned() else { return };
        change(&mut pod);
        let written = self.store.borrow_mut().note_pod(pod);
        self.is_written(id, written);
    }

    fn is_written(&self, id: &str, written: Result<()>) {
        let Err(error) = written else { return };
        self.refused.notify_one();
        let what = format!("the record of {id} could not be written: {error}");
        if self.failures.borrow().back().is_none_or(|last| last.what != what) {
            self.note_failure(&what, "");
        }
    }

    /// Writes what the disk refused as soon as it takes it, whether anything happens or not.
    pub(crate) async fn write_when_there_is_room(self: Rc<Self>) {
        loop {
            self.refused.notified().await;
            let mut written = self.store.borrow_mut().write_what_is_not();
            while written.is_err() {
                tokio::time::sleep(ROOM).await;
                written = self.store.borrow_mut().write_what_is_not();
            }
            info!("every record is written");
        }
    }

    /// Creates wait for the plugin `id`, which is started anew, as they do after a daemon start.
    pub(crate) fn expect(&self, id: &str) {
        let mut expected = self.expected.borrow_mut();
        if self.wait_until.get().is_none() {
            expected.clear();
        }
        expected.insert(id.to_owned(), Expected::default());
        let until = tokio::time::Instant::now() + self.config.registration_timeout;
        self.wait_until.set(Some(until));
    }

    /// When the caller of a creation that begins now gives up, and a moment before: the answer
    /// has its way to go.
    pub(crate) fn caller_waits_until(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.config.debug_create_cap.mul_f32(0.95)
    }

    /// Whether the plugins are the engine's own: then we are nothing but the runtime (D12).
    pub(crate) fn is_bystander(&self) -> bool {
        self.plugin_socket.is_bystander()
    }

    /// No create waits for any plugin.
    pub(crate) fn expect_nobody(&self) {
        self.expected.borrow_mut().clear();
        self.wait_until.set(None);
    }

    /// Counts a request for `status`.
    pub(crate) fn count(&self, verb: &'static str) {
        *self.requests.borrow_mut().entry(verb).or_default() += 1;
    }

    /// Keeps a failure for `status` and says it in the log.
    pub(crate) fn note_failure(&self, what: &str, plugin: &str) {
        error!("{what}");
        self.count_failure(what, what, plugin, now());
    }

    /// A call that was refused. The same refusal of another container is counted, not listed
    /// again: a kubelet tries for ever, each time under a new id.
    pub(crate) fn note_refusal(&self, verb: &str, id: &str, error: &Error) {
        let why = error.why();
        let kind = format!("{verb}: {why}");
        let what = format!("{verb} {id}: {why}");
        error!("{what}");
        self.count_failure(&what, &kind, error.plugin(), now());
    }

    /// Keeps a failure for `status`, without a line in the log. Those of one kind are one.
    pub(crate) fn count_failure(&self, what: &str, kind: &str, plugin: &str, at: i64) {
        let mut failures = self.failures.borrow_mut();
        let same = failures.iter().position(|note| note.kind == kind && note.plugin == plugin);
        let earlier = same.and_then(|index| failures.remove(index));
        if failures.len() >= FAILURES {
            failures.pop_front();
        }
        failures.push_back(FailureNote {
            at,
            first: earlier.as_ref().map_or(at, |earlier| earlier.first),
            count: earlier.map_or(1, |earlier| earlier.count.saturating_add(1)),
            kind: kind.to_owned(),
            what: what.to_owned(),
            plugin: plugin.to_owned(),
        });
    }

    /// Notes what of an engine could not be read for a container; logs it the first time.
    pub(crate) fn note_missing(&self, engine: &'static str, what: &str, id: &str) {
        let mut missing = self.missing.borrow_mut();
        let known = missing.len();
        let note = missing.entry((engine, what.to_owned()));
        let note = note.and_modify(|note| note.count += 1).or_insert_with(|| {
            match id {
                "" => warn!("{engine}: {what}"),
                id => warn!("{engine}: {what} (container {})", quoted(id)),
            }
            Missing { count: 1, ..Missing::default() }
        });
        (note.at, note.id) = (now(), id.to_owned());
        if known >= MISSING {
            let oldest = missing.iter().min_by_key(|(_, note)| note.at).map(|(key, _)| key.clone());
            missing.retain(|key, _| Some(key) != oldest.as_ref());
        }
    }

    /// Tells every plugin that knows the container about something that has happened to it.
    pub(crate) async fn tell(self: &Rc<Self>, event: Event, key: &Key) {
        let Some(told) = self.told(event, key) else { return };
        if let Some(updated) = self.relay.notify_all(&told).await {
            crate::daemon::resources::updates::carry_out(self, updated, event.name(), key).await;
        }
    }

    /// An event about a container in its present state.
    pub(crate) fn told(&self, event: Event, key: &Key) -> Option<Told> {
        let store = self.store.borrow();
        let container = store.container(key)?;
        let pod = store.pod(&container.pod).map(messages::pod);
        let pod = pod.unwrap_or_else(|| messages::only_pod_id(&container.pod));
        let mut message = messages::container(container);
        messages::as_told_at(event, container, &mut message);
        Some(Told::new(event, pod, Some(message)).below(&key.root))
    }

    /// An event about a pod.
    pub(crate) fn told_pod(&self, event: Event, id: &str) -> Option<Told> {
        let store = self.store.borrow();
        let pod = store.pod(id)?;
        let mut message = messages::pod(pod);
        messages::as_told_at_the_end(event, pod, &mut message);
        Some(Told::new(event, message, None))
    }

    /// Everything a newcomer is synchronized with: pods that were announced, and containers, those
    /// that have ended but are not removed among them. NRI: engines leave these out.
    pub(crate) fn snapshot(&self) -> (Vec<api::PodSandbox>, Vec<api::Container>) {
        let store = self.store.borrow();
        let (pods, containers) = shown(&store);
        (pods.map(messages::pod).collect(), containers.map(messages::container).collect())
    }

    /// The same to hold, its pods as they are sent, and whom it is about.
    pub(crate) fn snapshot_shared(&self) -> (Vec<Encoded>, Vec<Rc<Container>>, HashSet<Subject>) {
        let store = self.store.borrow();
        let (pods, _) = shown(&store);
        let mut containers = store.all_shared();
        containers.retain(|container| is_shown(container));
        let keys = containers.iter().map(|container| container.key.clone());
        let mut about: HashSet<Subject> = keys.map(Subject::Container).collect();
        let pods = pods.inspect(|pod| {
            about.insert(Subject::Pod(pod.id.clone()));
        });
        let pods = pods.map(messages::pod_encoded).collect();
        (pods, containers, about)
    }
}

/// Pods and containers that plugins are shown.
fn shown(store: &Store) -> (impl Iterator<Item = &Pod>, impl Iterator<Item = &Container>) {
    let pods = store.pods().filter(|pod| pod.state != PodState::Created);
    (pods, store.containers().filter(|container| is_shown(container)))
}

fn is_shown(container: &Container) -> bool {
    // One that was refused while it was being made will not be there.
    let comes = container.state != Lifecycle::Creating || container.refused.is_empty();
    !container.is_sandbox && comes && container.state != Lifecycle::Removed
}

/// Whether nobody has the lane or waits for it: one made anew does as well.
fn is_idle(lane: &Rc<Lane>) -> bool {
    let is_held = Rc::strong_count(lane) > 1 || Arc::strong_count(&lane.writing) > 1;
    !is_held && lane.pending.borrow().is_empty()
}

/// No runtime's root is relative.
fn pod_key(id: &str) -> Key {
    Key { root: "pods".to_owned(), id: id.to_owned() }
}

/// Unix time in nanoseconds.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Logs a failure that nobody can be told about.
pub(crate) fn log_failure(what: &str, result: Result<()>) {
    if let Err(error) = result {
        error!("{what}: {error}");
    }
}
