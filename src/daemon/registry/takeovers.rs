// SPDX-License-Identifier: Apache-2.0
//! Keeps the takeovers of each plugin identity within the last minute, and the pods whose process
//! was replaced (D41). They distinguish an upgrade from two processes that repeatedly replace each
//! other. This module only stores them; `connections` refuses newcomers.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::connected::ConnectedPlugin;

use crate::limits;

/// Takeovers of one identity within [`WINDOW`] after which the next newcomer is refused, because
/// processes replace each other.
pub(crate) const MOST: usize = 3;
/// Period in which takeovers of an identity are counted, and in which one refused newcomer of it is logged.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// The recent takeovers of one identity.
#[derive(Debug, Default)]
struct History {
    at: VecDeque<Instant>,
    /// Pods whose process was replaced; cleared once no connected plugin has the identity.
    displaced: VecDeque<String>,
    /// Time of the last refusal that was logged.
    logged: Option<Instant>,
}

/// The histories by `NN-name`.
#[derive(Debug, Default)]
pub(crate) struct Takeovers(RefCell<BTreeMap<String, History>>);

impl Takeovers {
    /// Records a takeover of the identity `id`; `displaced` is the pod of the replaced process, if it differs from the
    /// newcomer's.
    pub(crate) fn note(&self, id: &str, displaced: Option<String>, now: Instant) {
        let mut places = self.0.borrow_mut();
        let history = history_of(&mut places, id, now);
        history.at.push_back(now);
        history.drop_old(now);
        if let Some(pod) = displaced.filter(|pod| !history.displaced.contains(pod)) {
            if history.displaced.len() >= limits::TAKEOVER_PODS {
                history.displaced.pop_front();
            }
            history.displaced.push_back(pod);
        }
    }

    /// Whether the identity `id` was taken over [`MOST`] times within [`WINDOW`], so that processes must
    /// be replacing each other.
    pub(crate) fn is_contested(&self, id: &str, now: Instant) -> bool {
        let recent =
            |history: &History| history.at.iter().filter(|at| is_recent(**at, now)).count();
        self.0.borrow().get(id).map_or(0, recent) >= MOST
    }

    /// Records a refused newcomer; returns whether to log it: a newcomer that reconnects at once is
    /// refused many times a second.
    pub(crate) fn note_refusal(&self, id: &str, now: Instant) -> bool {
        let mut places = self.0.borrow_mut();
        let history = history_of(&mut places, id, now);
        let is_news = !history.logged.is_some_and(|at| is_recent(at, now));
        if is_news {
            history.logged = Some(now);
        }
        is_news
    }

    /// Whether a process of this pod was replaced, and since then other processes have always had
    /// the identity `id`.
    pub(crate) fn has_displaced(&self, id: &str, pod: &str) -> bool {
        let places = self.0.borrow();
        places.get(id).is_some_and(|history| history.displaced.iter().any(|lost| lost == pod))
    }

    /// Records that a process of this pod has the identity `id` again.
    pub(crate) fn forget_displaced(&self, id: &str, pod: &str) {
        if let Some(history) = self.0.borrow_mut().get_mut(id) {
            history.displaced.retain(|lost| lost != pod);
        }
    }

    /// Records that no process has the identity `id`.
    pub(crate) fn forget_all_displaced(&self, id: &str, now: Instant) {
        let mut places = self.0.borrow_mut();
        let Some(history) = places.get_mut(id) else { return };
        history.displaced.clear();
        history.drop_old(now);
        // Plugins choose their names, so an identity without takeovers must take no memory.
        if history.at.is_empty() {
            places.remove(id);
        }
    }
}

/// Returns the history of an identity. Makes space for a new one, because any connecting plugin chooses its name: at
/// the limit, drops the identities without recent takeovers and refusals, and if there are none, the oldest one.
fn history_of<'p>(
    places: &'p mut BTreeMap<String, History>,
    id: &str,
    now: Instant,
) -> &'p mut History {
    let is_full = |places: &BTreeMap<_, _>| places.len() >= limits::TAKEOVER_PLACES;
    if !places.contains_key(id) && is_full(places) {
        places.retain(|_, history| {
            history.drop_old(now);
            history.last().is_some_and(|at| is_recent(at, now))
        });
        // With so many identities in a minute, two processes hardly compete for the oldest one.
        let oldest = places.iter().filter(|_| is_full(places)).min_by_key(|(_, it)| it.last());
        if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
            places.remove(&oldest);
        }
    }
    places.entry(id.to_owned()).or_default()
}

impl History {
    fn drop_old(&mut self, now: Instant) {
        self.at.retain(|at| is_recent(*at, now));
    }

    /// Returns the time of the last takeover or logged refusal.
    fn last(&self) -> Option<Instant> {
        self.at.back().copied().max(self.logged)
    }
}

/// Whether this time is within [`WINDOW`] before `now`.
fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < WINDOW
}

/// Returns the reason for ending a connection that `plugin` replaced.
pub(crate) fn taken_over_by(plugin: &ConnectedPlugin) -> String {
    format!("{} took over from it", process_name(plugin.pid()))
}

/// Returns a process's name for operators; the kernel shows no PID of a process in another PID namespace.
pub(crate) fn process_name(pid: Option<i32>) -> String {
    match pid.filter(|pid| *pid > 0) {
        Some(pid) => format!("process {pid}"),
        None => "a process that the kernel does not show".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_takeovers_in_a_minute_make_an_identity_contested() {
        let (takeovers, begun) = (Takeovers::default(), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        for seconds in [0, 20, 40] {
            assert!(!takeovers.is_contested("10-a", after(seconds)), "{seconds}");
            takeovers.note("10-a", None, after(seconds));
        }
        assert!(takeovers.is_contested("10-a", after(41)));
        assert!(takeovers.is_contested("10-a", after(59)));
        assert!(!takeovers.is_contested("10-a", after(60)), "the first is a minute old");
        assert!(!takeovers.is_contested("20-b", after(41)), "another place");
    }

    #[test]
    fn infrequent_takeovers_do_not_refuse_a_newcomer() {
        let (takeovers, begun) = (Takeovers::default(), Instant::now());
        for round in 0..100 {
            let now = begun + Duration::from_secs(round * 21);
            assert!(!takeovers.is_contested("10-a", now), "{round}");
            takeovers.note("10-a", None, now);
        }
    }

    #[test]
    fn displaced_pods_are_remembered_until_each_is_forgotten() {
        let (takeovers, now) = (Takeovers::default(), Instant::now());
        takeovers.note("10-a", Some("old".to_owned()), now);
        takeovers.note("10-a", Some("older".to_owned()), now);
        assert!(takeovers.has_displaced("10-a", "old") && takeovers.has_displaced("10-a", "older"));
        assert!(!takeovers.has_displaced("10-a", "new") && !takeovers.has_displaced("20-b", "old"));
        takeovers.forget_displaced("10-a", "old");
        assert!(!takeovers.has_displaced("10-a", "old"));
        assert!(takeovers.has_displaced("10-a", "older"));
        takeovers.forget_all_displaced("10-a", now);
        assert!(!takeovers.has_displaced("10-a", "older"));
        assert!(!takeovers.0.borrow().is_empty(), "the times count on");
        takeovers.forget_all_displaced("10-a", now + WINDOW);
        assert!(takeovers.0.borrow().is_empty(), "nothing is kept of it");
    }

    #[test]
    fn at_the_limit_the_oldest_other_history_is_dropped() {
        let (takeovers, begun) = (Takeovers::default(), Instant::now());
        let count = u64::try_from(limits::TAKEOVER_PLACES).unwrap();
        let at = |number| begun + Duration::from_millis(number);
        let id = |number: u64| format!("{:02}-x{number:06}", (count - number) % 100);
        (0..count).for_each(|number| takeovers.note(&id(number), None, at(number)));
        let first = takeovers.0.borrow().keys().next().cloned().unwrap();
        takeovers.note(&first, None, at(count));
        takeovers.note(&first, None, at(count));
        assert!(takeovers.is_contested(&first, at(count)), "its history was kept");
        takeovers.note("00-new", None, at(count));
        assert_eq!(takeovers.0.borrow().len(), limits::TAKEOVER_PLACES);
        assert!(!takeovers.0.borrow().contains_key(&id(0)), "the oldest one");
        assert!(takeovers.0.borrow().contains_key(&first));
        assert!(takeovers.note_refusal(&id(1), at(count)));
        assert!(!takeovers.note_refusal(&id(1), at(count)), "it was logged");
    }

    #[test]
    fn refusals_are_logged_once_a_minute() {
        let (takeovers, now) = (Takeovers::default(), Instant::now());
        assert!(takeovers.note_refusal("10-a", now));
        assert!(!takeovers.note_refusal("10-a", now + WINDOW / 2));
        assert!(takeovers.note_refusal("20-b", now), "another place");
        assert!(takeovers.note_refusal("10-a", now + WINDOW));
    }

    #[test]
    fn remembered_displaced_pods_are_bounded() {
        let (takeovers, now) = (Takeovers::default(), Instant::now());
        for pod in 0..limits::TAKEOVER_PODS + 3 {
            takeovers.note("10-a", Some(pod.to_string()), now);
        }
        assert_eq!(takeovers.0.borrow()["10-a"].displaced.len(), limits::TAKEOVER_PODS);
        assert!(!takeovers.has_displaced("10-a", "0"), "the oldest went");
    }
}
