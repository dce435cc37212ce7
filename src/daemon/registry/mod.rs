// SPDX-License-Identifier: Apache-2.0
//! The registered plugins: which plugin receives which event, in which order, and which pods and
//! containers each knows. How plugins are asked is `chain`'s.
//!
//! Invariant: each plugin sees each pod and container exactly once, by Synchronize or by event.
//! No event waits for a plugin that is still being synchronized: the events are queued for it and
//! sent afterwards.
//!
//! It never accepts a connection and changes no record. It imports `watch`.

pub(crate) mod connected;
pub(crate) mod recording;
pub(crate) mod returning;
pub(crate) mod roster;
pub(crate) mod socket;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use serde_json::Value;
use tracing::{info, warn};

use crate::adaptation::{DefaultValidator, Updated};
use crate::chain::{
    self, ChainError, ChainObserver, ChainedPlugin, Notification, PluginFailure, RuleScope,
};
use crate::config::Config;
use crate::plugin::{Event, api};
use crate::rules::{PodsOfContainers, RuledPod, Rules};
use crate::state::Skipped;

use connected::{ConnectedPlugin, Subject};
use recording::Recorders;
use returning::ReturningPlugins;
use roster::Roster;
use socket::PluginSocket;

/// The NRI version that the daemon speaks.
pub(crate) const NRI_VERSION: &str = "v0.12.5";

/// The plugins that were skipped in one request, and why.
#[derive(Default)]
pub(crate) struct Skips(pub(crate) RefCell<Vec<Skipped>>);

impl ChainObserver for Skips {
    fn skipped(&self, plugin: &str, why: &str) {
        let (plugin, reason) = (plugin.to_owned(), why.to_owned());
        self.0.borrow_mut().push(Skipped { plugin, reason });
    }
}

/// All registered plugins, in the order in which they are asked.
pub(crate) struct Registry {
    connected: RefCell<Vec<Rc<ConnectedPlugin>>>,
    /// Connections that are not registered yet, and plugins that disconnected lately.
    pub(crate) roster: Roster,
    /// Recordings of the requests to plugins.
    pub(crate) recorders: Recorders,
    /// The state of the socket to which plugins connect.
    pub(crate) socket: PluginSocket,
    /// Plugins that creates wait for.
    pub(crate) returning: ReturningPlugins,
    /// The operator's default validator.
    builtin: RefCell<Rc<DefaultValidator>>,
    rules: RefCell<Rc<Rules>>,
}

impl Registry {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            connected: RefCell::default(),
            roster: Roster::default(),
            recorders: Recorders::default(),
            socket: PluginSocket::default(),
            returning: ReturningPlugins::default(),
            builtin: RefCell::new(Rc::new(DefaultValidator::from(&config.default_validator))),
            rules: RefCell::new(Rc::new(Rules::new(&config.rules))),
        }
    }

    /// The operator's default validator, as the configuration in force has it.
    pub(crate) fn builtin(&self) -> Rc<DefaultValidator> {
        Rc::clone(&self.builtin.borrow())
    }

    /// Applies a configuration to the default validator, the rules and every connected plugin.
    pub(crate) fn apply(&self, config: &Config) {
        self.builtin.replace(Rc::new(DefaultValidator::from(&config.default_validator)));
        self.rules.replace(Rc::new(Rules::new(&config.rules)));
        for connected in self.connected.borrow().iter() {
            connected.chained.reconfigure(config);
        }
    }

    /// The operator's rules.
    pub(crate) fn rules(&self) -> Rc<Rules> {
        Rc::clone(&self.rules.borrow())
    }

    /// Every connected plugin, in order.
    pub(crate) fn connected(&self) -> Vec<Rc<ConnectedPlugin>> {
        self.connected.borrow().clone()
    }

    /// Every synchronized plugin, in order.
    pub(crate) fn synchronized(&self) -> Vec<Rc<ChainedPlugin>> {
        let connected = self.connected.borrow();
        let synchronized = connected.iter().filter(|plugin| plugin.is_synchronized());
        synchronized.map(|plugin| Rc::clone(&plugin.chained)).collect()
    }

    /// The plugin `NN-name`, unless it is gone.
    pub(crate) fn find(&self, id: &str) -> Option<Rc<ConnectedPlugin>> {
        let connected = self.connected.borrow();
        connected.iter().find(|plugin| plugin.chained.id() == id && !plugin.is_gone()).cloned()
    }

    /// Whether `NN-name` (or the bare name) is synchronized.
    pub(crate) fn is_present(&self, name: &str) -> bool {
        self.synchronized()
            .iter()
            .any(|chained| chained.id() == name || chained.plugin.name() == name)
    }

    /// The same for a pod: a plugin that is not to hear of it takes no part.
    pub(crate) fn is_present_for(&self, name: &str, pod: &RuledPod) -> bool {
        self.synchronized().iter().any(|chained| {
            (chained.id() == name || chained.plugin.name() == name)
                && self.rules().hidden_by(&chained.id(), pod).is_none()
        })
    }

    /// Waits for the plugins that are expected back, bounded (D14); returns at once if there is
    /// none.
    pub(crate) async fn wait_for_returning(&self) {
        self.returning.wait(|name| self.is_present(name)).await;
    }

    /// The rows of `nri-runc nri plugins`.
    pub(crate) fn rows(&self) -> Value {
        self.roster.rows(&self.connected())
    }

    /// What a launched plugin printed, for `nri-runc nri plugins --logs`.
    ///
    /// # Errors
    /// One line if no launched plugin is meant.
    pub(crate) fn output_of(&self, wanted: &str) -> Result<Value, String> {
        let connected = self.connected.borrow();
        let ids: Vec<String> = connected.iter().map(|plugin| plugin.chained.id()).collect();
        self.roster.output(wanted, &ids)
    }

    /// Adds a plugin that knows `snapshot` from the Synchronize that it is about to get. Events
    /// reach it from here on, queued until it has caught up.
    pub(crate) fn add(
        &self,
        chained: ChainedPlugin,
        snapshot: HashSet<Subject>,
    ) -> Rc<ConnectedPlugin> {
        self.insert(ConnectedPlugin::new(chained, snapshot))
    }

    /// Adds a plugin that takes part already and knows `known`: another program of this process has
    /// synchronized it.
    pub(crate) fn resume(
        &self,
        chained: ChainedPlugin,
        known: HashSet<Subject>,
    ) -> Rc<ConnectedPlugin> {
        self.insert(ConnectedPlugin::new(chained, known).resumed())
    }

    fn insert(&self, plugin: ConnectedPlugin) -> Rc<ConnectedPlugin> {
        let plugin = Rc::new(plugin);
        let mut connected = self.connected.borrow_mut();
        // Plugins may share an index. Keep them in connection order, so a host behaves the same
        // twice. NRI: the reference sorts by index only, and not stably.
        let index = plugin.chained.plugin.index();
        let at = connected.partition_point(|other| other.chained.plugin.index() <= index);
        connected.insert(at, Rc::clone(&plugin));
        plugin
    }

    /// Removes a plugin: it receives no request and no event any more.
    pub(crate) fn remove(&self, plugin: &Rc<ConnectedPlugin>, why: &str) {
        plugin.mark_gone();
        let mut connected = self.connected.borrow_mut();
        if let Some(at) = connected.iter().position(|other| Rc::ptr_eq(other, plugin)) {
            connected.remove(at);
            self.roster.note_departure(plugin, why);
        }
    }

    /// The plugins to be notified now; for plugins still being synchronized the event is queued.
    /// That it makes its subject known or forgotten is noted in the same step.
    pub(crate) fn subscribers(&self, notification: &Notification) -> Vec<Rc<ChainedPlugin>> {
        self.recorders.notification(notification);
        let subject = Subject::about(notification);
        let connected = self.connected.borrow();
        // What a plugin knows it goes on hearing of, until the end: rules hide beginnings.
        let rules = self.rules();
        let begins = matches!(notification.event, Event::RunPodSandbox | Event::CreateContainer);
        let pod = (begins && rules.hides_anything()).then(|| notification.ruled_pod());
        let is_hidden = |plugin: &ConnectedPlugin| {
            pod.as_ref().is_some_and(|pod| rules.hidden_by(&plugin.chained.id(), pod).is_some())
        };
        let subscribers = connected
            .iter()
            .filter(|plugin| !is_hidden(plugin) && plugin.admits(notification, &subject));
        subscribers.map(|plugin| Rc::clone(&plugin.chained)).collect()
    }

    /// These plugins were not asked about a beginning that failed: they must not receive its
    /// rollback.
    pub(crate) fn forget_unasked(
        &self,
        plugins: &[Rc<ChainedPlugin>],
        notification: &Notification,
    ) {
        let subject = Subject::about(notification);
        for plugin in self.connected.borrow().iter() {
            if plugins.iter().any(|chained| Rc::ptr_eq(chained, &plugin.chained)) {
                plugin.forget(&subject);
            }
        }
    }

    /// Plugins that were too busy to be asked about this beginning receive no later events of it.
    pub(crate) fn forget_busy(
        &self,
        subscribers: &[Rc<ChainedPlugin>],
        notification: &Notification,
    ) {
        let busy = crate::plugin::busy_plugins();
        let plugins = subscribers.iter().filter(|chained| busy.contains(&chained.id()));
        let plugins: Vec<Rc<ChainedPlugin>> = plugins.cloned().collect();
        self.forget_unasked(&plugins, notification);
    }

    /// Notifies every subscriber in turn; the first failure ends it. The first value has the
    /// plugins that were skipped.
    pub(crate) async fn notify_until_refused(
        &self,
        notification: &Notification,
    ) -> (Vec<Skipped>, Result<(), PluginFailure>) {
        let subscribers = self.subscribers(notification);
        let skips = Skips::default();
        let asked = chain::notify_until_refused(&subscribers, notification, &skips).await;
        if notification.event == Event::RunPodSandbox {
            self.forget_busy(&subscribers, notification);
        }
        let skipped = skips.0.into_inner();
        let Err(ChainError { failure, asked }) = asked else { return (skipped, Ok(())) };
        if notification.event == Event::RunPodSandbox {
            self.forget_unasked(&subscribers[asked.min(subscribers.len())..], notification);
        }
        (skipped, Err(failure))
    }

    /// Notifies every subscriber in turn, whatever they reply; returns the failures.
    pub(crate) async fn notify_each(&self, notification: &Notification) -> Vec<PluginFailure> {
        chain::notify_all(&self.subscribers(notification), notification).await
    }

    /// Notifies plugins that do not know a beginning which happened without the daemon.
    pub(crate) async fn notify_late(&self, notification: &Notification) {
        let subject = Subject::about(notification);
        let connected = self.connected();
        let knowing: Vec<_> = connected.iter().filter(|plugin| plugin.knows(&subject)).collect();
        let knows = |chained: &Rc<ChainedPlugin>| {
            knowing.iter().any(|plugin| Rc::ptr_eq(&plugin.chained, chained))
        };
        // A plugin that knows it from its snapshot must not find it in its backlog either.
        let backlogs: Vec<usize> = knowing.iter().map(|plugin| plugin.backlog()).collect();
        let mut subscribers = self.subscribers(notification);
        subscribers.retain(|chained| !knows(chained));
        for (plugin, length) in knowing.iter().zip(backlogs) {
            plugin.truncate_backlog(length);
        }
        for failure in chain::notify_all(&subscribers, notification).await {
            info!("{failure} (ignored: {} was created without the daemon)", subject.id());
        }
    }

    /// Notifies every subscriber in turn, whatever they reply: the event has happened. Returns the
    /// updates of other containers that they ask for.
    pub(crate) async fn notify_all(
        &self,
        notification: &Notification,
        pods: &dyn PodsOfContainers,
    ) -> Option<Updated> {
        let subscribers = self.subscribers(notification);
        let (updates, failures) = if notification.event == Event::StopContainer {
            let request = api::StopContainerRequest {
                pod: Some(notification.pod.clone()).into(),
                container: notification.container.clone().into(),
                ..api::StopContainerRequest::default()
            };
            let (rules, pod) = (self.rules(), notification.ruled_pod());
            let subject = Some((request.container.id.as_str(), &pod));
            let scope = RuleScope { rules: &rules, subject, pods };
            let (updated, failures) = chain::stop(&subscribers, &request, scope).await;
            (Some(updated), failures)
        } else {
            (None, chain::notify_all(&subscribers, notification).await)
        };
        for failure in failures {
            warn!(
                "{} of {}: {failure}",
                notification.event.name(),
                Subject::about(notification).id()
            );
        }
        updates
    }
}
