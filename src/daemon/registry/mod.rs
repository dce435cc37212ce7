// SPDX-License-Identifier: Apache-2.0
//! Keeps the registered plugins (`chain/members.rs` keeps their order), and decides which receive an event, by the pods
//! and containers that each knows (`ConnectedPlugin::known`). `chain` sends the requests.
//!
//! Invariant: each plugin receives each pod and container that no rule hides from it exactly once, by
//! Synchronize or by event, unless it is too busy for the start event or an earlier plugin refuses it. No event waits
//! for a plugin that is still being synchronized: events are queued for it and sent afterwards.
//!
//! This module never accepts a connection and changes no record. It imports `watch`.

pub(crate) mod connected;
pub(crate) mod extension;
pub(crate) mod peer;
pub(crate) mod pre_installed;
pub(crate) mod recording;
pub(crate) mod returning;
pub(crate) mod roster;
pub(crate) mod socket;
mod subscribers;
pub(crate) mod takeovers;
mod times;

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::time::Duration;

use nri_adaptation::{DefaultValidator, Updated};
use tracing::{info, warn};

use crate::answers::{PluginOutput, PluginRow};
use crate::chain::{
    self, ChainError, ChainObserver, ChainedPlugin, Member, Members, Notification, PluginFailure,
    RuleScope,
};
use crate::config::Config;
use crate::error::Error;
use crate::inject::Injections;
use crate::plugin::{Event, api};
use crate::rules::{PodsOfContainers, RuledPod, Rules};
use crate::state::{HiddenFrom, Skipped};

use connected::{ConnectedPlugin, Subject};
use peer::PluginPeer;
use pre_installed::PreInstalled;
use recording::Recorders;
use returning::ReturningPlugins;
use roster::Roster;
use socket::PluginSocket;
use subscribers::Subscribers;
use takeovers::Takeovers;
pub(crate) use takeovers::{process_name, taken_over_by};

/// The plugins that one request skipped, and why.
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
    connected: Members<ConnectedPlugin>,
    /// Replaced plugins that are still connected, because they have requests to answer.
    replaced: RefCell<Vec<Rc<ConnectedPlugin>>>,
    /// Number of plugins registered so far.
    arrivals: Cell<u64>,
    /// Time for which requests wait for the successor of a disconnected plugin.
    successor_wait: Cell<Duration>,
    /// Pods and containers whose removal event is being sent: a plugin that connects now would not
    /// receive that event.
    ending: RefCell<HashSet<Subject>>,
    pub(crate) takeovers: Takeovers,
    /// Connections in their handshake, launched plugins, and plugins that disconnected recently.
    pub(crate) roster: Roster,
    /// Recordings of the requests to plugins.
    pub(crate) recorders: Recorders,
    /// The state of the socket to which plugins connect.
    pub(crate) socket: PluginSocket,
    /// Plugins for which requests wait.
    pub(crate) returning: ReturningPlugins,
    /// Identities that belong to plugin files.
    pub(crate) pre_installed: PreInstalled,
    /// The operator's default validator.
    builtin: RefCell<Rc<DefaultValidator>>,
    rules: RefCell<Rc<Rules>>,
    injections: RefCell<Rc<Injections>>,
}

impl Registry {
    pub(crate) fn new(config: &Config) -> Self {
        let pre_installed = PreInstalled::default();
        // As long as the folder is unreadable, any name may belong to a plugin file.
        let _looked_at_again = pre_installed.look(config);
        Self {
            connected: Members::default(),
            replaced: RefCell::default(),
            arrivals: Cell::new(0),
            successor_wait: Cell::new(config.registration_timeout),
            ending: RefCell::default(),
            takeovers: Takeovers::default(),
            roster: Roster::default(),
            recorders: Recorders::default(),
            socket: PluginSocket::default(),
            returning: ReturningPlugins::default(),
            pre_installed,
            builtin: RefCell::new(Rc::new(config.default_validator.clone())),
            rules: RefCell::new(Rc::new(Rules::of(config))),
            injections: RefCell::new(Rc::new(Injections::new(config))),
        }
    }

    /// Returns the operator's default validator, from the configuration in force.
    pub(crate) fn builtin(&self) -> Rc<DefaultValidator> {
        Rc::clone(&self.builtin.borrow())
    }

    /// Applies a configuration to the registry and every connected plugin.
    pub(crate) fn apply(&self, config: &Config) {
        self.successor_wait.set(config.registration_timeout);
        let _looked_at_again = self.pre_installed.look(config);
        self.builtin.replace(Rc::new(config.default_validator.clone()));
        self.rules.replace(Rc::new(Rules::of(config)));
        self.injections.replace(Rc::new(Injections::new(config)));
        for connected in self.connected.borrow().iter() {
            connected.chained.reconfigure(config);
        }
    }

    pub(crate) fn rules(&self) -> Rc<Rules> {
        Rc::clone(&self.rules.borrow())
    }

    pub(crate) fn injections(&self) -> Rc<Injections> {
        Rc::clone(&self.injections.borrow())
    }

    /// Returns the connected plugins from which the rules hide this pod, each with the rule.
    pub(crate) fn hidden_from(&self, pod: &RuledPod) -> Vec<HiddenFrom> {
        let rules = self.rules();
        if !rules.hides_anything() {
            return Vec::new();
        }
        let connected = self.connected.borrow();
        let hidden = connected.iter().filter_map(|plugin| {
            let plugin = plugin.id();
            let rule = rules.hidden_by(plugin, pod)?.rule.clone();
            Some(HiddenFrom { plugin: plugin.to_owned(), rule })
        });
        hidden.collect()
    }

    /// Returns every connected plugin, in order.
    pub(crate) fn connected(&self) -> Vec<Rc<ConnectedPlugin>> {
        self.connected.borrow().clone()
    }

    /// Returns every synchronized plugin, in order.
    pub(crate) fn synchronized(&self) -> Vec<Rc<ChainedPlugin>> {
        self.connected.synchronized()
    }

    /// Returns all connections, including those of replaced plugins.
    pub(crate) fn all_connections(&self) -> Vec<Rc<ConnectedPlugin>> {
        let mut all = self.connected();
        all.extend(self.replaced.borrow().iter().cloned());
        all
    }

    pub(crate) fn has_replaced(&self) -> bool {
        !self.replaced.borrow().is_empty()
    }

    /// Returns the number of plugins; a plugin and the connection that is about to replace it count as one.
    pub(crate) fn count(&self) -> usize {
        let connected = self.connected.borrow();
        let ids: HashSet<&str> = connected.iter().map(|plugin| plugin.id()).collect();
        ids.len()
    }

    /// Finds the connected plugin `NN-name`: of two connections, the current one, not the one that
    /// is about to replace it.
    pub(crate) fn find(&self, id: &str) -> Option<Rc<ConnectedPlugin>> {
        let connected = self.connected.borrow();
        connected.iter().find(|plugin| plugin.id() == id && !plugin.is_gone()).cloned()
    }

    /// Returns the earlier, synchronized connection that `plugin` is about to replace.
    pub(crate) fn predecessor(&self, plugin: &ConnectedPlugin) -> Option<Rc<ConnectedPlugin>> {
        let connected = self.connected.borrow();
        let old = connected.iter().find(|old| is_predecessor(old, plugin) && old.is_synchronized());
        old.cloned()
    }

    /// Waits up to a limit for the expected plugins (D14) and for successors of disconnected
    /// plugins (D41). Returns the missing ones; returns at once if none is expected.
    pub(crate) async fn wait_for_returning(&self) -> Vec<String> {
        self.expect_successors();
        self.returning.wait(|name| self.is_present(name)).await
    }

    /// Returns the expected plugins that are missing and may still return; none while requests still wait for them.
    pub(crate) fn absent(&self) -> Vec<String> {
        self.returning.absent(|name| self.is_present(name))
    }

    /// Makes requests wait for the successor of each disconnected plugin, if it is being configured or synchronized.
    fn expect_successors(&self) {
        let lost: Vec<String> = {
            let connected = self.connected.borrow();
            let lost = connected.iter().filter(|plugin| plugin.is_lost());
            lost.map(|plugin| plugin.id().to_owned()).collect()
        };
        lost.iter().for_each(|id| self.note_lost(id));
    }

    /// Handles the lost connection of `id`: requests wait for its successor, if one is connecting.
    fn note_lost(&self, id: &str) {
        if self.has_successor(id) && !self.returning.expects(id) {
            self.returning.expect_successor(id, self.successor_wait.get());
        }
    }

    /// Whether a connection of `id` is being configured or synchronized.
    fn has_successor(&self, id: &str) -> bool {
        let connected = self.connected.borrow();
        let is_it = |plugin: &Rc<ConnectedPlugin>| plugin.is_synchronizing() && plugin.id() == id;
        let is_a_files = self.pre_installed.owns(id);
        connected.iter().any(is_it) || self.roster.is_configuring(id, is_a_files)
    }

    /// Handles a failed connection of `id`: requests no longer wait for it, unless another one of
    /// `id` is connecting.
    pub(crate) fn note_failed(&self, id: &str) {
        if !self.has_successor(id) {
            self.returning.drop_successor(id);
        }
    }

    /// Returns the rows of `nri-runc nri plugins`.
    pub(crate) fn rows(&self) -> Vec<PluginRow> {
        self.roster.rows(&self.connected())
    }

    /// Returns the plugins in the rows of `nri-runc nri plugins`, as `NN-name`.
    pub(crate) fn known_plugins(&self) -> Vec<String> {
        self.rows().iter().map(PluginRow::id).collect()
    }

    /// Returns the output of a launched plugin, for `nri-runc nri plugins --logs`.
    ///
    /// # Errors
    /// Fails with one line unless `wanted` matches exactly one launched plugin.
    pub(crate) fn output_of(&self, wanted: &str) -> Result<PluginOutput, Error> {
        let connected = self.connected.borrow();
        let ids: Vec<&str> = connected.iter().map(|plugin| plugin.id()).collect();
        self.roster.output(wanted, &ids)
    }

    /// Adds a plugin that knows `snapshot` from the Synchronize that it is about to receive. Later events
    /// are queued until it has caught up; until then a connection of the same identity stays in use.
    pub(crate) fn add(
        &self,
        chained: ChainedPlugin,
        peer: Option<PluginPeer>,
        snapshot: BTreeSet<Subject>,
    ) -> Rc<ConnectedPlugin> {
        let predecessor = self.find(chained.id());
        let arrival = self.next_arrival();
        self.connected.insert(
            ConnectedPlugin::new(chained, arrival, predecessor.as_deref(), snapshot).of(peer),
        )
    }

    /// Adds a plugin that the previous program of this process synchronized, and that knows
    /// `known`.
    pub(crate) fn resume(
        &self,
        chained: ChainedPlugin,
        peer: Option<PluginPeer>,
        known: BTreeSet<Subject>,
    ) -> Rc<ConnectedPlugin> {
        let arrival = self.next_arrival();
        self.connected
            .insert(ConnectedPlugin::new(chained, arrival, None, known).of(peer).resumed())
    }

    fn next_arrival(&self) -> u64 {
        self.arrivals.set(self.arrivals.get() + 1);
        self.arrivals.get()
    }

    /// Adds to the chain a plugin that has received its queued events, in place of all earlier
    /// connections of its identity. Returns the replaced ones, which take part only in requests that have begun.
    pub(crate) fn take_place(&self, plugin: &Rc<ConnectedPlugin>) -> Vec<Rc<ConnectedPlugin>> {
        plugin.mark_synchronized();
        let old = self.connected.replace(|other| is_predecessor(other, plugin), plugin);
        let why = taken_over_by(plugin);
        for old in &old {
            old.mark_gone();
            self.roster.note_departure(old, &why);
            self.replaced.borrow_mut().push(Rc::clone(old));
        }
        old
    }

    /// Removes a plugin: it takes part in no request or event that begins later.
    pub(crate) fn remove(&self, plugin: &Rc<ConnectedPlugin>, why: &str) {
        plugin.mark_gone();
        self.replaced.borrow_mut().retain(|other| !Rc::ptr_eq(other, plugin));
        if self.connected.remove(plugin) {
            self.roster.note_departure(plugin, why);
            self.note_lost(plugin.id());
        }
    }

    /// Records which plugins know the event's subject from now on, and returns those to notify now;
    /// for plugins that are still being synchronized the event is queued.
    pub(crate) fn record_and_select(&self, notification: &Notification) -> Subscribers {
        self.recorders.record_notification(notification);
        let subject = Subject::about(notification);
        if matches!(notification.event, Event::RemovePodSandbox | Event::RemoveContainer) {
            self.ending.borrow_mut().insert(subject.clone());
        }
        let connected = self.connected.borrow();
        // Hiding applies only to start events: a plugin receives the later events of every subject
        // that it knows.
        let rules = self.rules();
        let pod =
            (notification.begins() && rules.hides_anything()).then(|| notification.ruled_pod());
        let is_hidden = |plugin: &ConnectedPlugin| {
            pod.as_ref().is_some_and(|pod| rules.hidden_by(plugin.id(), pod).is_some())
        };
        connected
            .iter()
            .filter(|plugin| !is_hidden(plugin) && plugin.record_and_route(notification, &subject))
            .collect()
    }

    /// Returns the subjects whose removal events are being sent and that are still on record.
    pub(crate) fn ending(&self) -> Ref<'_, HashSet<Subject>> {
        self.ending.borrow()
    }

    /// Records that the subject is no longer on record.
    pub(crate) fn note_ended(&self, subject: &Subject) {
        self.ending.borrow_mut().remove(subject);
    }

    /// Returns every synchronized plugin, for a request that may involve all of them.
    pub(crate) fn participants(&self) -> Subscribers {
        self.connected.borrow().iter().filter(|plugin| plugin.is_synchronized()).collect()
    }

    /// Makes `plugins`, which did not receive this RunPodSandbox or CreateContainer, forget the pod or container: they
    /// must not receive its later events, such as those of a rollback.
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

    /// Makes subscribers that were too busy to receive this start event forget the pod or container,
    /// so that they receive no later events about it.
    pub(crate) fn forget_busy(
        &self,
        subscribers: &[Rc<ChainedPlugin>],
        notification: &Notification,
    ) {
        let busy = crate::plugin::busy_plugins();
        let plugins = subscribers.iter().filter(|chained| busy.iter().any(|id| id == chained.id()));
        let plugins: Vec<Rc<ChainedPlugin>> = plugins.cloned().collect();
        self.forget_unasked(&plugins, notification);
    }

    /// Notifies every subscriber in turn until one refuses. Also returns the skipped plugins.
    pub(crate) async fn notify_until_refused(
        &self,
        notification: &Notification,
    ) -> (Vec<Skipped>, Result<(), PluginFailure>) {
        let subscribers = self.record_and_select(notification);
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

    /// Notifies every subscriber in turn, regardless of replies; returns the failures.
    pub(crate) async fn notify_each(&self, notification: &Notification) -> Vec<PluginFailure> {
        chain::notify_all(&self.record_and_select(notification), notification).await
    }

    /// Sends a pod's or container's start, which happened without the daemon, to the plugins that do not know it yet.
    pub(crate) async fn notify_late(&self, notification: &Notification) {
        let subject = Subject::about(notification);
        let connected = self.connected();
        let knowing: Vec<_> = connected.iter().filter(|plugin| plugin.knows(&subject)).collect();
        let knows = |chained: &Rc<ChainedPlugin>| {
            knowing.iter().any(|plugin| Rc::ptr_eq(&plugin.chained, chained))
        };
        // A plugin that knows the subject from its snapshot must not receive the event from its
        // backlog too.
        let backlogs: Vec<usize> = knowing.iter().map(|plugin| plugin.backlog()).collect();
        let mut subscribers = self.record_and_select(notification);
        subscribers.retain(|chained| !knows(chained));
        for (plugin, length) in knowing.iter().zip(backlogs) {
            plugin.truncate_backlog(length);
        }
        for failure in chain::notify_all(&subscribers, notification).await {
            info!("{failure} (ignored: {} was created without the daemon)", subject.id());
        }
    }

    /// Notifies every subscriber in turn of a past event, regardless of replies. Returns the
    /// updates of other containers that plugins request in reply to StopContainer.
    pub(crate) async fn notify_all(
        &self,
        notification: &Notification,
        pods: &dyn PodsOfContainers,
    ) -> Option<Updated> {
        let subscribers = self.record_and_select(notification);
        let (updates, failures) = if notification.event == Event::StopContainer {
            let request = api::StopContainerRequest {
                pod: Some(notification.pod.clone()).into(),
                container: notification.container.as_deref().cloned().into(),
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

/// Whether `old` is an earlier connection with the identity of `new`.
fn is_predecessor(old: &ConnectedPlugin, new: &ConnectedPlugin) -> bool {
    old.arrival < new.arrival && old.id() == new.id()
}
