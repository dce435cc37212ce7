// SPDX-License-Identifier: Apache-2.0
//! The plugins at the table, and telling them what happens, in index order.
//!
//! Invariants: no lock is held across a plugin call, but that one plugin's own (one request at a
//! time, first come first served), so different containers are pipelined along the chain; each
//! plugin sees each pod and container exactly once, by Synchronize or by event. A newcomer that
//! is still being synchronized keeps nobody waiting: what happens meanwhile is queued for it and
//! told afterwards.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use tracing::{info, warn};

use crate::config::{Config, OnFailure};
use crate::error::quoted;
use crate::plugin::api;
use crate::plugin::{Event, Outcome, Plugin};

/// Something that happened, as it is told to plugins.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) event: Event,
    pub(super) pod: api::PodSandbox,
    pub(super) container: Option<api::Container>,
}

impl Told {
    /// What the event is about, as plugins know it.
    fn subject(&self) -> Subject {
        match &self.container {
            Some(container) => Subject::Container(container.id.clone()),
            None => Subject::Pod(self.pod.id.clone()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Pod(String),
    Container(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Synchronizing,
    Synchronized,
    Gone,
}

/// A plugin at the table.
pub(super) struct Seat {
    pub(super) plugin: Plugin,
    pub(super) launched: bool,
    phase: Cell<Phase>,
    backlog: RefCell<VecDeque<Told>>,
    known: RefCell<HashSet<Subject>>,
    pub(super) requests: Cell<u64>,
    pub(super) timeouts: Cell<u64>,
    strikes: Cell<u32>,
}

impl Seat {
    /// `registering` and `configuring` come before a plugin has a seat.
    pub(super) fn state(&self) -> &'static str {
        match self.phase.get() {
            Phase::Synchronizing => "synchronizing",
            Phase::Synchronized => "synchronized",
            Phase::Gone => "gone",
        }
    }

    /// Has it a strike, or is it gone: may a newcomer of the same name replace it (D13)?
    pub(super) fn is_doubtful(&self) -> bool {
        self.strikes.get() > 0 || self.phase.get() == Phase::Gone || self.plugin.is_gone()
    }

    fn wants(&self, told: &Told) -> bool {
        self.phase.get() != Phase::Gone && self.plugin.is_subscribed(told.event)
    }
}

/// A plugin, or its silence, that makes an operation fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) plugin: String,
    /// One line without the plugin's name.
    pub(super) why: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.plugin, self.why)
    }
}

/// What one plugin's part in a request came to.
pub(super) enum Said<T> {
    /// It answered.
    Answer(T),
    /// It did not, and the request goes on without it; says why.
    Skipped(String),
    /// The request fails.
    Refusal(Refusal),
}

/// All plugins, in the order in which they are asked.
#[derive(Default)]
pub(super) struct Relay {
    seats: RefCell<Vec<Rc<Seat>>>,
    pub(super) skipped_ever: Cell<u64>,
}

impl Relay {
    /// Everybody at the table, in order.
    pub(super) fn seats(&self) -> Vec<Rc<Seat>> {
        self.seats.borrow().clone()
    }

    /// The plugin `NN-name`, unless it is gone.
    pub(super) fn find(&self, id: &str) -> Option<Rc<Seat>> {
        let seats = self.seats.borrow();
        seats.iter().find(|seat| seat.plugin.id() == id && !seat.plugin.is_gone()).cloned()
    }

    /// Whether `NN-name` (or the bare name) is synchronized.
    pub(super) fn is_present(&self, name: &str) -> bool {
        self.seats.borrow().iter().any(|seat| {
            seat.phase.get() == Phase::Synchronized
                && !seat.plugin.is_gone()
                && (seat.plugin.id() == name || seat.plugin.name() == name)
        })
    }

    /// Seats a newcomer that knows `snapshot` from the Synchronize it is about to get.
    /// From here on events reach it, queued until [`Relay::catch_up`].
    pub(super) fn seat(
        &self,
        plugin: Plugin,
        launched: bool,
        snapshot: HashSet<Subject>,
    ) -> Rc<Seat> {
        let seat = Rc::new(Seat {
            plugin,
            launched,
            phase: Cell::new(Phase::Synchronizing),
            backlog: RefCell::default(),
            known: RefCell::new(snapshot),
            requests: Cell::new(0),
            timeouts: Cell::new(0),
            strikes: Cell::new(0),
        });
        let mut seats = self.seats.borrow_mut();
        // Plugins may share an index. Keep them in connection order, so a host behaves the same
        // twice. NRI: the reference sorts by index only, and not stably.
        let at = seats.partition_point(|other| other.plugin.index() <= seat.plugin.index());
        seats.insert(at, Rc::clone(&seat));
        seat
    }

    /// Tells a synchronized newcomer what happened meanwhile, then lets it take part.
    pub(super) async fn catch_up(&self, config: &Config, seat: &Rc<Seat>) {
        loop {
            let next = seat.backlog.borrow_mut().pop_front();
            let Some(told) = next else { break };
            // A CreateContainer comes too late to change anything; the plugin hears of the
            // container all the same, and its answer is not applied.
            let said = self.tell_one(config, seat, &told).await;
            if let Said::Refusal(refusal) = said {
                info!("{refusal}, after the fact: it was not synchronized in time to be asked");
            }
        }
        if seat.phase.get() == Phase::Synchronizing {
            seat.phase.set(Phase::Synchronized);
        }
    }

    /// Takes a plugin from the table.
    pub(super) fn remove(&self, seat: &Rc<Seat>) {
        seat.phase.set(Phase::Gone);
        self.seats.borrow_mut().retain(|other| !Rc::ptr_eq(other, seat));
    }

    /// Those who take part in `told`, now; newcomers get it into their backlog. What this event
    /// makes known or forgotten is noted here, in one step with the choice of the audience.
    pub(super) fn audience(&self, told: &Told) -> Vec<Rc<Seat>> {
        let subject = told.subject();
        let begins = matches!(told.event, Event::RunPodSandbox | Event::CreateContainer);
        let ends = matches!(told.event, Event::RemovePodSandbox | Event::RemoveContainer);
        let mut audience = Vec::new();
        for seat in self.seats.borrow().iter() {
            let mut known = seat.known.borrow_mut();
            if begins {
                known.insert(subject.clone());
            } else if !known.contains(&subject) {
                continue;
            }
            if ends {
                known.remove(&subject);
            }
            if !seat.wants(told) {
                continue;
            }
            if seat.phase.get() == Phase::Synchronizing {
                seat.backlog.borrow_mut().push_back(told.clone());
            } else {
                audience.push(Rc::clone(seat));
            }
        }
        audience
    }

    /// Nobody after `seat` in `audience` was asked about the creation that failed: they must not
    /// hear of its undoing.
    pub(super) fn never_heard(&self, audience: &[Rc<Seat>], told: &Told) {
        let subject = told.subject();
        for seat in audience {
            seat.known.borrow_mut().remove(&subject);
        }
    }

    /// Tells everybody in turn; the first refusal ends it.
    pub(super) async fn ask_leave(&self, config: &Config, told: &Told) -> Result<(), Refusal> {
        let audience = self.audience(told);
        for (index, seat) in audience.iter().enumerate() {
            if let Said::Refusal(refusal) = self.tell_one(config, seat, told).await {
                if matches!(told.event, Event::RunPodSandbox) {
                    self.never_heard(&audience[index + 1..], told);
                }
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Tells everybody in turn, whatever they say: it has happened. The first plugin that its
    /// operator wants to fail such a request is returned after all were told.
    pub(super) async fn tell_all(&self, config: &Config, told: &Told) -> Vec<api::ContainerUpdate> {
        let mut updates = Vec::new();
        for seat in self.audience(told) {
            match self.stop_or_tell(config, &seat, told).await {
                Said::Answer(more) => updates.extend(more),
                Said::Skipped(_) => {}
                Said::Refusal(refusal) => {
                    warn!("{} of {}: {refusal}", told.event.name(), subject_id(told));
                }
            }
        }
        updates
    }

    async fn stop_or_tell(
        &self,
        config: &Config,
        seat: &Rc<Seat>,
        told: &Told,
    ) -> Said<Vec<api::ContainerUpdate>> {
        if told.event != Event::StopContainer {
            return match self.tell_one(config, seat, told).await {
                Said::Answer(()) => Said::Answer(Vec::new()),
                Said::Skipped(why) => Said::Skipped(why),
                Said::Refusal(refusal) => Said::Refusal(refusal),
            };
        }
        let request = api::StopContainerRequest {
            pod: Some(told.pod.clone()).into(),
            container: told.container.clone().into(),
            ..api::StopContainerRequest::default()
        };
        let outcome = seat.plugin.stop_container(request).await;
        match self.judge(config, seat, told.event, outcome) {
            Said::Answer(response) => Said::Answer(response.update),
            Said::Skipped(why) => Said::Skipped(why),
            Said::Refusal(refusal) => Said::Refusal(refusal),
        }
    }

    async fn tell_one(&self, config: &Config, seat: &Rc<Seat>, told: &Told) -> Said<()> {
        let outcome = seat.plugin.notify(told.event, &told.pod, told.container.as_ref()).await;
        self.judge(config, seat, told.event, outcome)
    }

    /// What an outcome means: strikes, disconnection, and the policy for silence.
    pub(super) fn judge<T>(
        &self,
        config: &Config,
        seat: &Rc<Seat>,
        event: Event,
        outcome: Outcome<T>,
    ) -> Said<T> {
        seat.requests.set(seat.requests.get() + 1);
        let id = seat.plugin.id();
        let policy = seat.plugin.policy(&config.plugin(seat.plugin.index(), seat.plugin.name()));
        let silence = match outcome {
            Outcome::Answered(answer) => {
                seat.strikes.set(0);
                return Said::Answer(answer);
            }
            Outcome::Refused(text) => {
                let why = format!("refused: {}", quoted(&text));
                return Said::Refusal(Refusal { plugin: id, why });
            }
            Outcome::TimedOut => {
                seat.timeouts.set(seat.timeouts.get() + 1);
                seat.strikes.set(seat.strikes.get() + 1);
                if policy.strikes > 0 && seat.strikes.get() >= policy.strikes {
                    warn!("{id} did not answer {} in time and is disconnected", event.name());
                    seat.plugin.disconnect();
                    self.remove(seat);
                }
                format!("did not answer {} in time", event.name())
            }
            Outcome::Gone(why) => {
                self.remove(seat);
                format!("went away during {} ({})", event.name(), quoted(&why))
            }
        };
        self.skipped_ever.set(self.skipped_ever.get() + 1);
        if policy.on_failure == OnFailure::Refuse {
            return Said::Refusal(Refusal { plugin: id, why: silence });
        }
        warn!("{id} {silence}; it was skipped");
        Said::Skipped(silence)
    }
}

fn subject_id(told: &Told) -> &str {
    told.container.as_ref().map_or(&told.pod.id, |container| &container.id)
}
