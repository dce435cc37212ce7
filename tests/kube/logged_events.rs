// SPDX-License-Identifier: Apache-2.0
//! The events in the file of the event logger, a plugin that subscribes to everything, over all
//! daemons of the test.

use std::collections::BTreeMap;

use serde_json::Value;

use super::machine::wait_for;
use super::node::EVENTS;

/// The events of a container from start to end.
pub(super) const LIFE: [&str; 6] = [
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "RemoveContainer",
];
pub(super) const POD_LIFE: [&str; 3] = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];

/// The events of one pod or container, in order.
type Events = Vec<String>;

/// The events of a namespace, without updates, which kubelet may send at any time.
pub(super) struct LoggedEvents(Vec<Value>);

impl LoggedEvents {
    pub(super) fn of(namespace: &str) -> Self {
        let text = std::fs::read_to_string(EVENTS).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let pod = format!("{namespace}/");
        let is_of = |line: &Value| {
            let event = line["event"].as_str().unwrap_or_default();
            let is_update = event.contains("Update");
            !is_update && line["pod"].as_str().is_some_and(|name| name.starts_with(&pod))
        };
        Self(lines.filter(is_of).collect())
    }

    /// Returns the events as `EVENT CONTAINER`, in order.
    pub(super) fn order(&self) -> Vec<String> {
        let of_containers = self.0.iter().filter(|line| line["container"].is_string());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        of_containers
            .map(|line| format!("{} {}", text(&line["event"]), text(&line["container"])))
            .collect()
    }

    /// Returns the events by container ID: a restarted container has another ID.
    pub(super) fn containers(&self) -> BTreeMap<String, Events> {
        self.by("container")
    }

    /// Returns the events by pod ID.
    pub(super) fn pods(&self) -> BTreeMap<String, Events> {
        let mut pods = self.by("pod");
        for events in pods.values_mut() {
            events.retain(|event| event.contains("PodSandbox"));
        }
        pods
    }

    fn by(&self, subject: &str) -> BTreeMap<String, Events> {
        let mut all = BTreeMap::<String, Events>::new();
        for line in &self.0 {
            if let Some(id) = line["request"][subject]["id"].as_str() {
                let event = line["event"].as_str().unwrap_or_default().to_owned();
                all.entry(id.to_owned()).or_default().push(event);
            }
        }
        all
    }
}

/// Waits until every pod and container of the namespace has ended, and checks that each was sent
/// once. Returns their numbers.
#[track_caller]
pub(super) fn whole_lives(namespace: &str) -> (usize, usize) {
    let is_whole = |received: &LoggedEvents| {
        let pods = received.pods();
        !pods.is_empty()
            && pods.values().all(|events| events.len() >= POD_LIFE.len())
            && received.containers().values().all(|events| events.len() >= LIFE.len())
    };
    let look = || Some(LoggedEvents::of(namespace)).filter(is_whole);
    let received = std::panic::catch_unwind(|| wait_for("the ends are reported", look));
    let received = received.unwrap_or_else(|_too_late| LoggedEvents::of(namespace));
    let (pods, containers) = (received.pods(), received.containers());
    for (id, events) in &pods {
        assert_eq!(events.iter().map(String::as_str).collect::<Vec<_>>(), POD_LIFE, "pod {id}");
    }
    for (id, events) in &containers {
        assert_eq!(events.iter().map(String::as_str).collect::<Vec<_>>(), LIFE, "container {id}");
    }
    assert!(!pods.is_empty() && !containers.is_empty(), "no event of {namespace} was received");
    (pods.len(), containers.len())
}

/// Like [`whole_lives`], if the daemon was replaced: its plugins are launched again and receive
/// running containers by Synchronize, instead of the events that they missed. No event comes twice
/// or out of order, and every started container has ended.
#[track_caller]
pub(super) fn lives_in_order(namespace: &str) -> (usize, usize) {
    let received = LoggedEvents::of(namespace);
    let (pods, containers) = (received.pods(), received.containers());
    let all = pods.iter().map(|life| (life, &POD_LIFE[..]));
    for ((id, events), wanted) in all.chain(containers.iter().map(|life| (life, &LIFE[..]))) {
        let place = |event: &String| wanted.iter().position(|one| one == event).unwrap();
        let is_in_order = events.iter().map(place).is_sorted_by(|one, next| one < next);
        let was_started = events.iter().any(|event| event.contains("Start"));
        let has_ended = events.last().is_some_and(|event| event == wanted[wanted.len() - 1]);
        assert!(is_in_order && (has_ended || !was_started), "{id} of {namespace}: {events:?}");
    }
    assert!(!pods.is_empty() && !containers.is_empty(), "no event of {namespace} was received");
    (pods.len(), containers.len())
}
