// SPDX-License-Identifier: Apache-2.0
//! Compares the events that one connection of a plugin received with the history of each container.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use test_support::ORDER;

/// The history of one container.
#[derive(Debug, Default)]
pub(super) struct Fate {
    pub(super) id: String,
    /// Time of its first call.
    pub(super) begun: Duration,
    pub(super) is_created: bool,
    pub(super) is_started: bool,
    /// Whether no process was killed during it.
    pub(super) is_clear: bool,
}

/// One connection.
pub(super) struct View {
    pub(super) name: String,
    /// Time since which it is synchronized.
    pub(super) since: Duration,
    pub(super) received: Arc<Mutex<Vec<String>>>,
    /// Whether its daemon exited before the end, or another connection took its place.
    pub(super) is_cut: bool,
}

/// The time in which a plugin is connected, by any connection.
pub(super) struct Presence {
    pub(super) name: String,
    pub(super) since: Duration,
    pub(super) until: Option<Duration>,
    /// Number of takeovers of its place.
    pub(super) takeovers: usize,
}

impl Presence {
    /// Whether it is connected throughout.
    pub(super) fn spans(&self, from: Duration, to: Duration) -> bool {
        self.since <= from && self.until.is_none_or(|until| to <= until)
    }
}

impl View {
    /// Whether it has received the end of every container that it received.
    pub(super) fn is_whole(&self) -> bool {
        let received = self.received.lock().unwrap();
        let mut last: HashMap<&str, &str> = HashMap::new();
        for (event, id) in received.iter().filter_map(|line| line.split_once(' ')) {
            if ORDER.contains(&event) {
                last.insert(id, event);
            }
        }
        last.values().all(|event| *event == "RemoveContainer")
    }
}

impl Fate {
    /// The events that a connection receives if it lasts throughout.
    fn life(&self) -> Vec<&'static str> {
        let events = ORDER.into_iter().skip(1).filter(|event| match *event {
            "PostCreateContainer" => self.is_created,
            "StartContainer" | "PostStartContainer" => self.is_started,
            _ => true,
        });
        events.collect()
    }
}

/// Checks the events of a connection; returns their number.
#[track_caller]
pub(super) fn check(view: &View, fates: &[Fate]) -> usize {
    let received = view.received.lock().unwrap().clone();
    super::pods::in_order(&view.name, &received);
    let mut lives: HashMap<&str, Vec<Vec<&str>>> = HashMap::new();
    for line in &received {
        let Some((event, id)) = line.split_once(' ') else { continue };
        if !ORDER.contains(&event) {
            continue;
        }
        let lives = lives.entry(id).or_default();
        if matches!(event, "Synchronize" | "CreateContainer") {
            lives.push(Vec::new());
        }
        let name = &view.name;
        let life = lives.last_mut();
        assert!(life.is_some(), "{name}: {line} comes before its beginning in {received:#?}");
        if let Some(life) = life {
            life.push(event);
        }
    }
    for (id, lives) in &lives {
        for (place, life) in lives.iter().enumerate() {
            let what = format!("{}, {id}, its life {place}: {life:?}", view.name);
            in_order(life, &what);
            let is_last = place + 1 == lives.len();
            let is_over = life.last() == Some(&"RemoveContainer");
            assert!(is_over || is_last, "{what} was begun anew before it was over");
        }
        let mut fates = fates.iter().filter(|fate| fate.id == **id);
        if let (Some(fate), None) = (fates.next(), fates.next())
            && fate.is_clear
            && fate.begun >= view.since
        {
            let (requests, whole) = (lives.concat(), fate.life());
            let what = format!("{}, {id}: {requests:?} of {whole:?}", view.name);
            assert!(whole.starts_with(&requests), "{what}");
            assert!(view.is_cut || whole == requests, "{what}");
        }
    }
    received.len()
}

/// Checks that each event comes once and in order; a failed start may be asked about again. Between
/// the first and the last event nothing is missing.
#[track_caller]
fn in_order(life: &[&str], what: &str) {
    let place = |event: &str| ORDER.iter().position(|known| *known == event).unwrap();
    for pair in life.windows(2) {
        let is_asked_again = pair[0] == "StartContainer" && pair[1] == "StartContainer";
        assert!(place(pair[0]) < place(pair[1]) || is_asked_again, "{what} is out of order");
    }
    if life.last() == Some(&"RemoveContainer") {
        assert!(life.contains(&"StopContainer") || life[0] == "Synchronize", "{what}: no stop");
    }
    if life[0] == "CreateContainer" && life.contains(&"PostStartContainer") {
        for event in ["PostCreateContainer", "StartContainer"] {
            assert!(life.contains(&event), "{what}: no {event}");
        }
    }
}
