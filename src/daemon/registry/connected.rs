// SPDX-License-Identifier: Apache-2.0
//! Keeps the state of one registered plugin: whether it is synchronized, the pods and containers
//! that it knows, the events queued until it is synchronized, and its pending requests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::answers::PluginState;
use crate::chain::{self, ChainedPlugin, Member, Notification};
use crate::limits;
use crate::plugin::{Event, Plugin};
use crate::state::ContainerKey;

use super::peer::PluginPeer;

/// The pod or container of an event. Plugins identify a container by its ID alone; the daemon uses
/// root and ID, so that containers of the same ID are not confused. Plugins that know it from a snapshot share
/// the record's names; those that know it from one event share that event's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Subject {
    Pod(Rc<str>),
    Container(Rc<ContainerKey>),
}

impl Subject {
    pub(super) fn about(notification: &Notification) -> Self {
        match &notification.container {
            Some(container) => Self::Container(Rc::new(ContainerKey {
                root: notification.root.clone(),
                id: container.id.clone(),
            })),
            None => Self::Pod(notification.pod.id.as_str().into()),
        }
    }

    /// Returns the ID, as plugins know it.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Pod(id) => id,
            Self::Container(key) => &key.id,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Synchronizing,
    Synchronized,
    Gone,
}

/// A registered plugin.
pub(crate) struct ConnectedPlugin {
    pub(crate) chained: Rc<ChainedPlugin>,
    /// The process that connected; `None` for a plugin that the daemon launched.
    pub(crate) peer: Option<PluginPeer>,
    /// The number of this plugin, in the order of registration.
    pub(super) arrival: u64,
    /// The PID of the earlier connection of this identity, if one existed when this plugin registered
    /// (D41). `Some(None)` if the kernel shows no PID.
    replaces: Option<Option<i32>>,
    phase: Cell<Phase>,
    /// Wakes tasks that wait for the plugin's next phase.
    phase_changed: Notify,
    /// The number of pending requests that involve the plugin.
    requests: Cell<usize>,
    /// Wakes tasks that wait until no request involves the plugin.
    requests_ended: Notify,
    /// Events queued until the plugin is synchronized.
    backlog: RefCell<Backlog>,
    /// The pods and containers that the plugin knows: it receives later events only about these.
    known: RefCell<BTreeSet<Subject>>,
}

impl ConnectedPlugin {
    /// Creates a plugin that is not yet synchronized and knows the subjects in `snapshot`.
    pub(super) fn new(
        chained: ChainedPlugin,
        arrival: u64,
        predecessor: Option<&Self>,
        snapshot: BTreeSet<Subject>,
    ) -> Self {
        Self {
            chained: Rc::new(chained),
            peer: None,
            arrival,
            replaces: predecessor.map(|old| old.pid()),
            phase: Cell::new(Phase::Synchronizing),
            phase_changed: Notify::new(),
            requests: Cell::new(0),
            requests_ended: Notify::new(),
            backlog: RefCell::default(),
            known: RefCell::new(snapshot),
        }
    }

    /// Sets the external process that connected.
    pub(super) fn of(self, peer: Option<PluginPeer>) -> Self {
        Self { peer, ..self }
    }

    /// Marks the plugin as already synchronized.
    pub(super) fn resumed(self) -> Self {
        self.phase.set(Phase::Synchronized);
        self
    }

    pub(crate) fn connection(&self) -> &Plugin {
        &self.chained.plugin
    }

    /// Returns `NN-name`.
    pub(crate) fn id(&self) -> &str {
        self.chained.id()
    }

    /// Returns the plugin's PID, if the kernel shows one.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.connection().pid()
    }

    pub(crate) fn is_launched(&self) -> bool {
        self.chained.launched
    }

    /// Whether a request has timed out since the plugin's last answer (a strike).
    pub(crate) fn has_strikes(&self) -> bool {
        self.chained.has_strikes()
    }

    /// Closes the connection, and ends the process of a launched plugin.
    pub(crate) fn disconnect(&self, why: &str) {
        self.connection().disconnect(why);
    }

    /// Sends Shutdown, then disconnects.
    pub(crate) async fn shutdown(&self, why: &str) {
        self.connection().shutdown(why).await;
    }

    /// Waits until the connection is closed; returns the reason.
    pub(crate) async fn closed(&self) -> String {
        self.connection().closed().await
    }

    /// Returns the plugin's state; during its handshake, `roster.rs` reports `registering` and `configuring`.
    pub(crate) fn state(&self) -> PluginState {
        match self.phase.get() {
            _ if self.connection().is_gone() => PluginState::Gone,
            Phase::Synchronizing => PluginState::Synchronizing,
            Phase::Synchronized => PluginState::Synchronized,
            Phase::Gone => PluginState::Gone,
        }
    }

    /// Whether a connection of the same identity existed when this plugin registered (D41).
    pub(crate) fn is_successor(&self) -> bool {
        self.replaces.is_some()
    }

    /// Returns the PID of the connection that the plugin replaces, if the kernel shows one.
    pub(super) fn replaced_pid(&self) -> Option<i32> {
        self.replaces.flatten()
    }

    /// Whether the plugin has a strike or is gone; another process may then replace it (D41).
    pub(crate) fn is_failing(&self) -> bool {
        self.has_strikes() || self.is_gone()
    }

    /// Whether the plugin is disconnected, or was removed from the registry.
    pub(super) fn is_gone(&self) -> bool {
        self.phase.get() == Phase::Gone || self.connection().is_gone()
    }

    /// Whether the plugin's connection broke after it was synchronized, and the plugin was not removed yet.
    pub(super) fn is_lost(&self) -> bool {
        self.phase.get() == Phase::Synchronized && self.connection().is_gone()
    }

    /// Whether the plugin is still being synchronized or receiving its queued events.
    pub(crate) fn is_synchronizing(&self) -> bool {
        self.phase.get() == Phase::Synchronizing && !self.connection().is_gone()
    }

    /// Returns every pod and container that the plugin knows.
    pub(crate) fn known(&self) -> Vec<Subject> {
        self.known.borrow().iter().cloned().collect()
    }

    pub(super) fn knows(&self, subject: &Subject) -> bool {
        self.known.borrow().contains(subject)
    }

    /// Removes this pod or container from those that the plugin knows, so that the plugin receives
    /// no further events about it.
    pub(super) fn forget(&self, subject: &Subject) {
        self.known.borrow_mut().remove(subject);
    }

    /// Marks the plugin as removed from the registry.
    pub(super) fn mark_gone(&self) {
        self.phase.set(Phase::Gone);
        self.phase_changed.notify_waiters();
    }

    /// Marks the plugin as synchronized: requests involve it, and its events are no longer queued.
    pub(super) fn mark_synchronized(&self) {
        self.phase.set(Phase::Synchronized);
        self.phase_changed.notify_waiters();
    }

    /// Waits until the plugin is no longer being synchronized; returns whether it is synchronized.
    pub(crate) async fn wait_until_synchronized(&self) -> bool {
        loop {
            let changed = self.phase_changed.notified();
            if !self.is_synchronizing() {
                return self.is_synchronized();
            }
            tokio::select! {
                () = changed => {}
                _why = self.closed() => {}
            }
        }
    }

    /// Waits until no request involves the plugin.
    pub(crate) async fn requests_ended(&self) {
        loop {
            let ended = self.requests_ended.notified();
            if self.requests.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Counts a request that involves the plugin, until the returned value is dropped.
    pub(super) fn begin_request(self: &Rc<Self>) -> RequestUnderWay {
        self.requests.set(self.requests.get() + 1);
        RequestUnderWay(Rc::clone(self))
    }

    /// Records whether the plugin knows the event's subject from now on, and returns whether to
    /// notify the plugin now. While the plugin is being synchronized, the event is queued instead.
    pub(super) fn record_and_route(&self, notification: &Notification, subject: &Subject) -> bool {
        let ends = matches!(notification.event, Event::RemovePodSandbox | Event::RemoveContainer);
        let mut known = self.known.borrow_mut();
        if notification.begins() {
            known.insert(subject.clone());
        } else if !known.contains(subject) {
            return false;
        }
        if ends {
            known.remove(subject);
        }
        if self.is_gone() || !self.connection().is_subscribed(notification.event) {
            return false;
        }
        let is_synchronizing = self.phase.get() == Phase::Synchronizing;
        if is_synchronizing {
            self.queue(notification);
        }
        !is_synchronizing
    }

    /// Queues an event until the plugin is synchronized. Disconnects the plugin if its queue is full: it
    /// handles events more slowly than they happen.
    fn queue(&self, notification: &Notification) {
        let pushed = self.backlog.borrow_mut().push(notification.clone());
        if let Err(why) = pushed {
            warn!("{} was disconnected: {why}", self.id());
            self.disconnect(&why);
        }
    }

    /// Returns the number of queued events.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.borrow().events.len()
    }

    /// Drops the events that were queued after the first `length`.
    pub(super) fn truncate_backlog(&self, length: usize) {
        self.backlog.borrow_mut().truncate(length);
    }

    /// Sends the queued events until none is left. The caller must mark the plugin synchronized before
    /// any other task runs.
    pub(crate) async fn catch_up(&self) {
        loop {
            let next = self.backlog.borrow_mut().pop();
            let Some(notification) = next else { break };
            // The plugin receives CreateContainer although it is too late to change anything; its
            // reply is not applied.
            let alone = [Rc::clone(&self.chained)];
            for failure in chain::notify_all(&alone, &notification).await {
                info!("{failure} (ignored: the event came before the plugin was synchronized)");
            }
        }
    }
}

impl Member for ConnectedPlugin {
    fn chained(&self) -> &Rc<ChainedPlugin> {
        &self.chained
    }

    fn is_synchronized(&self) -> bool {
        self.phase.get() == Phase::Synchronized && !self.connection().is_gone()
    }
}

/// A request that involves a plugin, counted until this is dropped.
pub(super) struct RequestUnderWay(Rc<ConnectedPlugin>);

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        let requests = self.0.requests.get() - 1;
        self.0.requests.set(requests);
        if requests == 0 {
            self.0.requests_ended.notify_waiters();
        }
    }
}

/// Events that are queued until a plugin is synchronized, in order.
#[derive(Default)]
struct Backlog {
    /// Each event with its length in bytes.
    events: VecDeque<(Notification, usize)>,
    bytes: usize,
}

impl Backlog {
    /// Adds an event. If the events are too many or too long, drops all of them and fails with the reason.
    fn push(&mut self, next: Notification) -> Result<(), String> {
        let size = usize::try_from(next.size()).unwrap_or(usize::MAX);
        let (count, bytes) = (self.events.len(), self.bytes.saturating_add(size));
        let before = "before it was synchronized";
        if count >= limits::EVENT_BACKLOG {
            *self = Self::default();
            return Err(format!("more than {count} events were queued {before}"));
        }
        if bytes > limits::EVENT_BACKLOG_BYTES {
            *self = Self::default();
            let most = limits::EVENT_BACKLOG_BYTES;
            return Err(format!("more than {most} bytes of events were queued {before}"));
        }
        self.bytes = bytes;
        self.events.push_back((next, size));
        Ok(())
    }

    fn pop(&mut self) -> Option<Notification> {
        let (next, size) = self.events.pop_front()?;
        self.bytes = self.bytes.saturating_sub(size);
        Some(next)
    }

    fn truncate(&mut self, length: usize) {
        let dropped: usize = self.events.iter().skip(length).map(|(_, size)| size).sum();
        self.bytes = self.bytes.saturating_sub(dropped);
        self.events.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use crate::plugin::api;

    use super::*;

    /// Returns an event whose request has a few more bytes than `bytes`.
    fn event(bytes: usize) -> Notification {
        let pod = api::PodSandbox { id: "p".repeat(bytes), ..Default::default() };
        Notification::new(Event::RunPodSandbox, pod, None)
    }

    #[test]
    fn a_backlog_that_keeps_growing_is_dropped() {
        let mut backlog = Backlog::default();
        for _ in 0..limits::EVENT_BACKLOG {
            assert_eq!(backlog.push(event(1)), Ok(()));
        }
        let why = backlog.push(event(1)).unwrap_err();
        assert!(why.contains("more than 10000 events"), "{why}");
        assert_eq!((backlog.events.capacity(), backlog.bytes), (0, 0), "its memory is free again");
    }

    #[test]
    fn a_backlog_is_bounded_in_bytes() {
        let half = limits::EVENT_BACKLOG_BYTES / 2;
        let around = usize::try_from(event(half).size()).unwrap() - half;
        for (more, is_taken) in [(0, true), (1, false)] {
            let mut backlog = Backlog::default();
            backlog.push(event(half - around)).unwrap();
            let pushed = backlog.push(event(half - around + more));
            assert_eq!(pushed.is_ok(), is_taken, "{pushed:?}");
            assert_eq!(backlog.bytes, if is_taken { 2 * half } else { 0 });
        }
    }

    #[test]
    fn a_backlog_counts_the_bytes_that_are_still_in_it() {
        let mut backlog = Backlog::default();
        (1..=4).for_each(|bytes| backlog.push(event(100 * bytes)).unwrap());
        let all = backlog.bytes;
        backlog.truncate(2);
        assert_eq!(backlog.pop().map(|event| event.pod.id.len()), Some(100));
        assert!(backlog.bytes > 200 && all > 1000, "{} of {all}", backlog.bytes);
        assert!(backlog.pop().is_some() && backlog.pop().is_none());
        assert_eq!(backlog.bytes, 0);
    }
}
