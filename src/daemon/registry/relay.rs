// SPDX-License-Identifier: Apache-2.0
//! The plugins at the table, and who of them is told what.
//!
//! Invariant: each plugin sees each pod and container exactly once, by Synchronize or by event.
//! A newcomer that is still being synchronized keeps nobody waiting: what happens meanwhile is
//! queued for it and told afterwards. How plugins are asked is `chain`'s.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use tracing::{info, warn};

use crate::adaptation::Updated;
use crate::chain::{self, ChainError, ChainObserver, ChainedPlugin, PluginFailure, Told};
use crate::plugin::{Event, api};
use crate::state::{Key, Skipped};

use crate::daemon::registry::recording::Recorders;
use crate::daemon::registry::roster::Roster;

/// How many events a newcomer may be behind.
const BACKLOG: usize = 10_000;

/// What an event is about. Plugins know a container by its id alone; who of them knows which one
/// is kept by root and id, or the end of one would be taken for that of another of the same id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Pod(String),
    Container(Key),
}

impl Subject {
    fn of(told: &Told) -> Self {
        match &told.container {
            Some(container) => {
                Self::Container(Key { root: told.root.clone(), id: container.id.clone() })
            }
            None => Self::Pod(told.pod.id.clone()),
        }
    }

    fn id(&self) -> &str {
        match self {
            Self::Pod(id) | Self::Container(Key { id, .. }) => id,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Synchronizing,
    Synchronized,
    Gone,
}

/// A plugin at the table.
pub(crate) struct Guest {
    pub(crate) seat: Rc<ChainedPlugin>,
    phase: Cell<Phase>,
    backlog: RefCell<VecDeque<Told>>,
    known: RefCell<HashSet<Subject>>,
}

impl Guest {
    /// `registering` and `configuring` come before a plugin has a seat (`roster.rs`).
    pub(crate) fn state(&self) -> &'static str {
        match self.phase.get() {
            _ if self.seat.plugin.is_gone() => "gone",
            Phase::Synchronizing => "synchronizing",
            Phase::Synchronized => "synchronized",
            Phase::Gone => "gone",
        }
    }

    /// Has it a strike, or is it gone: may a newcomer of the same name replace it (D13)?
    pub(crate) fn is_doubtful(&self) -> bool {
        self.seat.has_strikes() || self.is_gone()
    }

    fn is_gone(&self) -> bool {
        self.phase.get() == Phase::Gone || self.seat.plugin.is_gone()
    }

    /// Keeps an event until it is synchronized. One that is told of them more slowly than they
    /// happen would never be: it is given up.
    fn keep(&self, told: &Told) {
        let mut backlog = self.backlog.borrow_mut();
        if let Err(why) = push(&mut backlog, told, BACKLOG) {
            warn!("{} was disconnected: {why}", self.seat.id());
            self.seat.plugin.disconnect(&why);
        }
    }

    fn takes_part(&self) -> bool {
        self.phase.get() == Phase::Synchronized && !self.seat.plugin.is_gone()
    }
}

/// Which plugins were skipped in one request, and why.
#[derive(Default)]
pub(crate) struct Skips(pub(crate) RefCell<Vec<Skipped>>);

impl ChainObserver for Skips {
    fn skipped(&self, plugin: &str, why: &str) {
        let (plugin, reason) = (plugin.to_owned(), why.to_owned());
        self.0.borrow_mut().push(Skipped { plugin, reason });
    }
}

/// Adds to a backlog that holds so many; one that is full is of no use any more.
fn push<T: Clone>(backlog: &mut VecDeque<T>, next: &T, most: usize) -> Result<(), String> {
    if backlog.len() >= most {
        *backlog = VecDeque::new();
        return Err(format!("it was {most} events behind before it was synchronized"));
    }
    backlog.push_back(next.clone());
    Ok(())
}

/// All plugins, in the order in which they are asked.
#[derive(Default)]
pub(crate) struct Relay {
    guests: RefCell<Vec<Rc<Guest>>>,
    /// Who comes and who has left.
    pub(crate) roster: Roster,
    /// Who writes down what is told.
    pub(crate) recorders: Recorders,
}

impl Relay {
    /// Everybody at the table, in order.
    pub(crate) fn guests(&self) -> Vec<Rc<Guest>> {
        self.guests.borrow().clone()
    }

    /// Everybody who takes part in requests, in order.
    pub(crate) fn seats(&self) -> Vec<Rc<ChainedPlugin>> {
        let guests = self.guests.borrow();
        guests.iter().filter(|guest| guest.takes_part()).map(|g| Rc::clone(&g.seat)).collect()
    }

    /// The plugin `NN-name`, unless it is gone.
    pub(crate) fn find(&self, id: &str) -> Option<Rc<Guest>> {
        let guests = self.guests.borrow();
        guests.iter().find(|guest| guest.seat.id() == id && !guest.is_gone()).cloned()
    }

    /// Whether `NN-name` (or the bare name) is synchronized.
    pub(crate) fn is_present(&self, name: &str) -> bool {
        self.seats().iter().any(|seat| seat.id() == name || seat.plugin.name() == name)
    }

    /// Seats a newcomer that knows `snapshot` from the Synchronize it is about to get.
    /// From here on events reach it, queued until [`Relay::catch_up`].
    pub(crate) fn seat(&self, seat: ChainedPlugin, snapshot: HashSet<Subject>) -> Rc<Guest> {
        let guest = Rc::new(Guest {
            seat: Rc::new(seat),
            phase: Cell::new(Phase::Synchronizing),
            backlog: RefCell::default(),
            known: RefCell::new(snapshot),
        });
        let mut guests = self.guests.borrow_mut();
        // Plugins may share an index. Keep them in connection order, so a host behaves the same
        // twice. NRI: the reference sorts by index only, and not stably.
        let index = guest.seat.plugin.index();
        let at = guests.partition_point(|other| other.seat.plugin.index() <= index);
        guests.insert(at, Rc::clone(&guest));
        guest
    }

    /// Tells a synchronized newcomer what happened meanwhile, then lets it take part.
    pub(crate) async fn catch_up(&self, guest: &Rc<Guest>) {
        loop {
            let next = guest.backlog.borrow_mut().pop_front();
            let Some(told) = next else { break };
            // A CreateContainer comes too late to change anything; the plugin hears of the
            // container all the same, and its answer is not applied.
            let alone = [Rc::clone(&guest.seat)];
            for failure in chain::notify_all(&alone, &told).await {
                info!("{failure}, after the fact: it was not synchronized in time to be asked");
            }
        }
        if guest.phase.get() == Phase::Synchronizing {
            guest.phase.set(Phase::Synchronized);
        }
    }

    /// Takes a plugin from the table.
    pub(crate) fn remove(&self, guest: &Rc<Guest>, why: &str) {
        guest.phase.set(Phase::Gone);
        let mut guests = self.guests.borrow_mut();
        if let Some(at) = guests.iter().position(|other| Rc::ptr_eq(other, guest)) {
            guests.remove(at);
            self.roster.leaves(guest, why);
        }
    }

    /// Those who take part in `told`, now; newcomers get it into their backlog. What this event
    /// makes known or forgotten is noted here, in one step with the choice of the audience.
    pub(crate) fn audience(&self, told: &Told) -> Vec<Rc<ChainedPlugin>> {
        self.recorders.told(told);
        let subject = Subject::of(told);
        let begins = matches!(told.event, Event::RunPodSandbox | Event::CreateContainer);
        let ends = matches!(told.event, Event::RemovePodSandbox | Event::RemoveContainer);
        let mut audience = Vec::new();
        for guest in self.guests.borrow().iter() {
            let mut known = guest.known.borrow_mut();
            if begins {
                known.insert(subject.clone());
            } else if !known.contains(&subject) {
                continue;
            }
            if ends {
                known.remove(&subject);
            }
            if guest.is_gone() || !guest.seat.plugin.is_subscribed(told.event) {
                continue;
            }
            if guest.phase.get() == Phase::Synchronizing {
                guest.keep(told);
            } else {
                audience.push(Rc::clone(&guest.seat));
            }
        }
        audience
    }

    /// These were not asked about the beginning that failed: they must not hear of its undoing.
    pub(crate) fn never_heard(&self, seats: &[Rc<ChainedPlugin>], told: &Told) {
        let subject = Subject::of(told);
        for guest in self.guests.borrow().iter() {
            if seats.iter().any(|seat| Rc::ptr_eq(seat, &guest.seat)) {
                guest.known.borrow_mut().remove(&subject);
            }
        }
    }

    /// Those who were too busy to be asked about this beginning do not hear of what follows.
    pub(crate) fn forget_busy(&self, audience: &[Rc<ChainedPlugin>], told: &Told) {
        let busy = crate::plugin::busy_plugins();
        let seats = audience.iter().filter(|seat| busy.contains(&seat.id()));
        let seats: Vec<Rc<ChainedPlugin>> = seats.cloned().collect();
        self.never_heard(&seats, told);
    }

    /// Tells everybody in turn; the first failure ends it.
    /// The first value is which plugins were skipped.
    pub(crate) async fn notify_until_refused(
        &self,
        told: &Told,
    ) -> (Vec<Skipped>, Result<(), PluginFailure>) {
        let audience = self.audience(told);
        let skips = Skips::default();
        let asked = chain::notify_until_refused(&audience, told, &skips).await;
        if told.event == Event::RunPodSandbox {
            self.forget_busy(&audience, told);
        }
        let skipped = skips.0.into_inner();
        let Err(ChainError { failure, asked }) = asked else { return (skipped, Ok(())) };
        if told.event == Event::RunPodSandbox {
            self.never_heard(&audience[asked.min(audience.len())..], told);
        }
        (skipped, Err(failure))
    }

    /// Tells those of the beginning who do not know of it yet; it has happened without them.
    pub(crate) async fn tell_newcomers(&self, told: &Told) {
        let subject = Subject::of(told);
        let guests = self.guests();
        let knowing = guests.iter().filter(|guest| guest.known.borrow().contains(&subject));
        let knowing: Vec<Rc<Guest>> = knowing.cloned().collect();
        let knows =
            |seat: &Rc<ChainedPlugin>| knowing.iter().any(|guest| Rc::ptr_eq(&guest.seat, seat));
        // A newcomer that knows it from its snapshot must not find it in its backlog either.
        let backlogs: Vec<usize> = knowing.iter().map(|g| g.backlog.borrow().len()).collect();
        let mut audience = self.audience(told);
        audience.retain(|seat| !knows(seat));
        for (guest, length) in knowing.iter().zip(backlogs) {
            guest.backlog.borrow_mut().truncate(length);
        }
        for failure in chain::notify_all(&audience, told).await {
            info!("{failure}, after the fact: {} went past us", subject.id());
        }
    }

    /// Tells everybody in turn, whatever they say: it has happened. Returns what they want of
    /// other containers.
    pub(crate) async fn notify_all(&self, told: &Told) -> Option<Updated> {
        let audience = self.audience(told);
        let (updates, failures) = if told.event == Event::StopContainer {
            let request = api::StopContainerRequest {
                pod: Some(told.pod.clone()).into(),
                container: told.container.clone().into(),
                ..api::StopContainerRequest::default()
            };
            let (updated, failures) = chain::stop(&audience, &request).await;
            (Some(updated), failures)
        } else {
            (None, chain::notify_all(&audience, told).await)
        };
        for failure in failures {
            warn!("{} of {}: {failure}", told.event.name(), Subject::of(told).id());
        }
        updates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_that_only_grows_is_given_up() {
        let mut backlog = VecDeque::new();
        for event in 0..BACKLOG {
            assert_eq!(push(&mut backlog, &event, BACKLOG), Ok(()));
        }
        let why = push(&mut backlog, &BACKLOG, BACKLOG).unwrap_err();
        assert!(why.contains("10000 events behind"), "{why}");
        assert_eq!(backlog.capacity(), 0, "its memory is free again");
    }
}
