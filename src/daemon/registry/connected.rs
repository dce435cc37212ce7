// SPDX-License-Identifier: Apache-2.0
//! One registered plugin: whether it is synchronized, the pods and containers that it knows, the
//! events that are queued until it is synchronized, and the requests that still involve it.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::answers::PluginState;
use crate::chain::{self, ChainedPlugin, Notification};
use crate::limits;
use crate::plugin::Event;
use crate::state::ContainerKey;

use super::peer::PluginPeer;

/// The pod or container of an event. Plugins know a container by its ID alone; the daemon keys what
/// each plugin knows by root and ID, so that containers of one ID are not confused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Subject {
    Pod(String),
    Container(ContainerKey),
}

impl Subject {
    /// The subject of this event.
    pub(super) fn about(notification: &Notification) -> Self {
        match &notification.container {
            Some(container) => Self::Container(ContainerKey {
                root: notification.root.clone(),
                id: container.id.clone(),
            }),
            None => Self::Pod(notification.pod.id.clone()),
        }
    }

    /// The ID, as plugins know it.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Pod(id) | Self::Container(ContainerKey { id, .. }) => id,
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
    /// The process that connected; none for a plugin that the daemon launched.
    pub(crate) peer: Option<PluginPeer>,
    /// Numbers the connections of this daemon.
    pub(super) arrival: u64,
    /// The process of the connection whose place it takes, if another connection with its identity
    /// was there when it registered (D41). `Some(None)` where the kernel shows no process.
    replaces: Option<Option<i32>>,
    phase: Cell<Phase>,
    /// Wakes tasks that wait for its next phase.
    phase_changed: Notify,
    /// Requests under way that involve it.
    requests: Cell<usize>,
    /// Wakes tasks that wait for the last of these requests.
    requests_ended: Notify,
    /// Events that it receives once it is synchronized.
    backlog: RefCell<Backlog>,
    /// The pods and containers that it knows.
    known: RefCell<HashSet<Subject>>,
}

impl ConnectedPlugin {
    /// A plugin that knows `snapshot` from the Synchronize that it is about to get.
    pub(super) fn new(
        chained: ChainedPlugin,
        arrival: u64,
        predecessor: Option<&Self>,
        snapshot: HashSet<Subject>,
    ) -> Self {
        Self {
            chained: Rc::new(chained),
            peer: None,
            arrival,
            replaces: predecessor.map(|old| old.chained.plugin.pid()),
            phase: Cell::new(Phase::Synchronizing),
            phase_changed: Notify::new(),
            requests: Cell::new(0),
            requests_ended: Notify::new(),
            backlog: RefCell::default(),
            known: RefCell::new(snapshot),
        }
    }

    /// Sets the process that connected from outside.
    pub(super) fn of(self, peer: Option<PluginPeer>) -> Self {
        Self { peer, ..self }
    }

    /// Marks it as taking part already.
    pub(super) fn resumed(self) -> Self {
        self.phase.set(Phase::Synchronized);
        self
    }

    /// Its state; `registering` and `configuring` come before it is connected (`roster.rs`).
    pub(crate) fn state(&self) -> PluginState {
        match self.phase.get() {
            _ if self.chained.plugin.is_gone() => PluginState::Gone,
            Phase::Synchronizing => PluginState::Synchronizing,
            Phase::Synchronized => PluginState::Synchronized,
            Phase::Gone => PluginState::Gone,
        }
    }

    /// Whether it replaces another connection with its identity, or would have (D41).
    pub(crate) fn is_successor(&self) -> bool {
        self.replaces.is_some()
    }

    /// The process of the connection that it replaces.
    pub(super) fn replaced_pid(&self) -> Option<i32> {
        self.replaces.flatten()
    }

    /// Whether it has a strike or is gone: nothing protects its place from a newcomer then (D41).
    pub(crate) fn is_doubtful(&self) -> bool {
        self.chained.has_strikes() || self.is_gone()
    }

    /// Whether it is disconnected, or was removed from the registry.
    pub(super) fn is_gone(&self) -> bool {
        self.phase.get() == Phase::Gone || self.chained.plugin.is_gone()
    }

    /// Whether its connection broke while it took part, and it was not removed yet.
    pub(super) fn is_lost(&self) -> bool {
        self.phase.get() == Phase::Synchronized && self.chained.plugin.is_gone()
    }

    /// Whether it is still being synchronized, its queued events included.
    pub(crate) fn is_synchronizing(&self) -> bool {
        self.phase.get() == Phase::Synchronizing && !self.chained.plugin.is_gone()
    }

    /// Whether requests and events go to it at once.
    pub(crate) fn is_synchronized(&self) -> bool {
        self.phase.get() == Phase::Synchronized && !self.chained.plugin.is_gone()
    }

    /// Everything that it knows.
    pub(crate) fn known(&self) -> Vec<Subject> {
        self.known.borrow().iter().cloned().collect()
    }

    /// Whether it knows this pod or container.
    pub(super) fn knows(&self, subject: &Subject) -> bool {
        self.known.borrow().contains(subject)
    }

    /// Makes it forget this pod or container, so that it receives no more of its events.
    pub(super) fn forget(&self, subject: &Subject) {
        self.known.borrow_mut().remove(subject);
    }

    /// It was removed from the registry.
    pub(super) fn mark_gone(&self) {
        self.phase.set(Phase::Gone);
        self.phase_changed.notify_waiters();
    }

    /// Requests and events go to it at once from here on.
    pub(super) fn mark_synchronized(&self) {
        self.phase.set(Phase::Synchronized);
        self.phase_changed.notify_waiters();
    }

    /// Waits until it is no longer being synchronized; returns whether it takes part.
    pub(crate) async fn takes_part(&self) -> bool {
        loop {
            let changed = self.phase_changed.notified();
            if !self.is_synchronizing() {
                return self.is_synchronized();
            }
            tokio::select! {
                () = changed => {}
                _why = self.chained.plugin.closed() => {}
            }
        }
    }

    /// Waits until it is in no request.
    pub(crate) async fn requests_ended(&self) {
        loop {
            let ended = self.requests_ended.notified();
            if self.requests.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Notes a request that involves it, until the value is dropped.
    pub(super) fn begin_request(self: &Rc<Self>) -> RequestUnderWay {
        self.requests.set(self.requests.get() + 1);
        RequestUnderWay(Rc::clone(self))
    }

    /// Records that this event makes its subject known or forgotten; returns whether to notify the
    /// plugin now. While it is being synchronized, the event is queued in its backlog.
    pub(super) fn admits(&self, notification: &Notification, subject: &Subject) -> bool {
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
        if self.is_gone() || !self.chained.plugin.is_subscribed(notification.event) {
            return false;
        }
        let is_synchronizing = self.phase.get() == Phase::Synchronizing;
        if is_synchronizing {
            self.queue(notification);
        }
        !is_synchronizing
    }

    /// Queues an event until the plugin is synchronized. A plugin that takes events more slowly
    /// than they happen would never catch up: it is disconnected.
    fn queue(&self, notification: &Notification) {
        let pushed = self.backlog.borrow_mut().push(notification.clone());
        if let Err(why) = pushed {
            warn!("{} was disconnected: {why}", self.chained.id());
            self.chained.plugin.disconnect(&why);
        }
    }

    /// The number of queued events.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.borrow().events.len()
    }

    /// Drops the events that were queued after the first `length`.
    pub(super) fn truncate_backlog(&self, length: usize) {
        self.backlog.borrow_mut().truncate(length);
    }

    /// Sends the queued events until none is left. No other task runs between that moment and the
    /// caller's next step, in which the plugin begins to take part.
    pub(crate) async fn catch_up(&self) {
        loop {
            let next = self.backlog.borrow_mut().pop();
            let Some(notification) = next else { break };
            // CreateContainer cannot change anything any longer; the plugin is notified of the
            // container all the same, and its reply is not applied.
            let alone = [Rc::clone(&self.chained)];
            for failure in chain::notify_all(&alone, &notification).await {
                info!("{failure} (ignored: the event came before the plugin was synchronized)");
            }
        }
    }
}

/// A request that involves a plugin, until this is dropped.
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
    /// Each with its bytes.
    events: VecDeque<(Notification, usize)>,
    bytes: usize,
}

impl Backlog {
    /// Adds an event. All are dropped, with the reason, if there are too many or too long ones.
    fn push(&mut self, next: Notification) -> Result<(), String> {
        let size = usize::try_from(next.size()).unwrap_or(usize::MAX);
        let (count, bytes) = (self.events.len(), self.bytes.saturating_add(size));
        let before = "before it was synchronized";
        if count >= limits::EVENT_BACKLOG {
            *self = Self::default();
            return Err(format!("it was {count} events behind {before}"));
        }
        if bytes > limits::EVENT_BACKLOG_BYTES {
            *self = Self::default();
            return Err(format!(
                "it was {count} events, of {bytes} bytes with the next, behind {before}"
            ));
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

    /// Drops the events after the first `length`.
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

    /// An event whose request has this many bytes, and four more.
    fn event(bytes: usize) -> Notification {
        let pod = api::PodSandbox { id: "p".repeat(bytes), ..Default::default() };
        Notification::new(Event::RunPodSandbox, pod, None)
    }

    #[test]
    fn a_backlog_that_only_grows_is_given_up() {
        let mut backlog = Backlog::default();
        for _ in 0..limits::EVENT_BACKLOG {
            assert_eq!(backlog.push(event(1)), Ok(()));
        }
        let why = backlog.push(event(1)).unwrap_err();
        assert!(why.contains("10000 events behind"), "{why}");
        assert_eq!((backlog.events.capacity(), backlog.bytes), (0, 0), "its memory is free again");
    }

    #[test]
    fn a_backlog_has_a_bound_in_bytes() {
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
