// SPDX-License-Identifier: Apache-2.0
//! A plugin that records its events, on any NRI; and the events in a form in which two lifecycles
//! of the same pod can be compared: words replace their IDs.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nri_plugin::Handler;
use nri_runc::plugin::{ALL_EVENTS, Event};
use protobuf::MessageDyn;
use protobuf_json_mapping::PrintOptions;
use serde_json::Value;

use crate::compare::{self, EventsByKey, Meant};
use crate::play::play;

/// The events of a pod's lifecycle, each with its whole request.
pub type Life = Vec<(String, Value)>;

/// The events so far, in order.
#[derive(Clone, Default)]
pub struct Recorder {
    requests: Arc<Mutex<Life>>,
}

impl Handler for Recorder {
    fn events(&self) -> &[Event] {
        &ALL_EVENTS
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        let options = PrintOptions { proto_field_name: true, ..PrintOptions::default() };
        let text = protobuf_json_mapping::print_to_string_with_options(message, &options);
        let value = serde_json::from_str(&text.unwrap()).unwrap();
        self.requests.lock().unwrap().push((method.to_owned(), value));
    }
}

impl Recorder {
    /// Connects as `10-recorder`, and waits until it is synchronized.
    pub fn connect(socket: PathBuf) -> Self {
        Self::connect_as(socket, "10-recorder")
    }

    /// Connects with that index and name, and waits until it is synchronized.
    pub fn connect_as(socket: PathBuf, id: &'static str) -> Self {
        let recorder = Self::default();
        play(socket, id, Arc::new(recorder.clone()));
        recorder.wait_for("Synchronize");
        recorder
    }

    #[track_caller]
    pub fn wait_for(&self, event: &str) {
        let deadline = Instant::now() + crate::PATIENCE;
        while !self.requests.lock().unwrap().iter().any(|(requests, _)| requests == event) {
            assert!(Instant::now() < deadline, "waited too long for {event}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the containers in the Synchronize that it received.
    pub fn snapshot(&self, ids: &[(String, &str)]) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let parts = requests.iter().filter(|(event, _)| event == "Synchronize");
        let containers = parts.flat_map(|(_, part)| part["containers"].as_array());
        containers.flatten().map(|container| plain(container.clone(), ids)).collect()
    }

    /// All events of a pod's lifecycle, with the IDs of the pod and of its containers as words.
    pub fn life(&self, ids: &[(String, &str)]) -> Life {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        let events = requests.into_iter().filter(|(event, _)| is_of_a_life(event));
        events.map(|(event, value)| (event, as_recorded(plain(value, ids)))).collect()
    }
}

/// Renames a request's resources to the name in recordings and in the table of differences.
fn as_recorded(mut request: Value) -> Value {
    let members = request.as_object_mut().unwrap();
    if let Some(resources) = members.remove("linux_resources") {
        members.insert("resources".to_owned(), resources);
    }
    request
}

fn is_of_a_life(event: &str) -> bool {
    ALL_EVENTS.into_iter().any(|known| known.name() == event)
}

/// Replaces values that differ between any two lifecycles by words.
fn plain(value: Value, ids: &[(String, &str)]) -> Value {
    match value {
        Value::String(text) => Value::String(words(text, ids)),
        Value::Array(items) => items.into_iter().map(|item| plain(item, ids)).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| match key.as_str() {
                "io.kubernetes.cri-o.Created" => (key, Value::from("TIME")),
                _ => (words(key, ids), plain(value, ids)),
            });
            members.collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn words(mut text: String, ids: &[(String, &str)]) -> String {
    for (id, word) in ids {
        text = text.replace(id, word);
    }
    // The name of a namespace has a PID or is random, as is that of a layer.
    let is_random = |c: char| c.is_ascii_hexdigit() || c == '-';
    for (before, is_random) in [
        ("/proc/", (|c: char| c.is_ascii_digit()) as fn(char) -> bool),
        ("/netns/cni-", is_random),
        ("/run/netns/", is_random),
        ("/run/ipcns/", is_random),
        ("/run/utsns/", is_random),
        ("/storage/vfs/dir/", is_random),
    ] {
        if let Some((head, tail)) = text.split_once(before) {
            let rest = tail.trim_start_matches(is_random);
            if rest.len() < tail.len() {
                text = format!("{head}{before}N{rest}");
            }
        }
    }
    text
}

/// The events by name, container and count, as the comparison needs them.
fn events_by_key(life: &[(String, Value)]) -> EventsByKey {
    let mut received = EventsByKey::new();
    for (event, request) in life {
        let key = (1..).map(|n| format!("{event} {} {n}", subject(request)));
        let key = key.into_iter().find(|key| !received.contains_key(key)).unwrap();
        received.insert(key, request.clone());
    }
    received
}

/// The events of one container, or of the pod itself, in order.
fn order(life: &[(String, Value)], of: &str) -> Vec<String> {
    let events = life.iter().filter(|(_, request)| subject(request) == of);
    events.map(|(event, _)| event.clone()).collect()
}

/// Returns the container of a request, or `pod`. Its ID (here a word) identifies it, because some
/// engines send no name.
fn subject(request: &Value) -> &str {
    match request["container"]["id"].as_str() {
        Some("APP") => "app",
        Some("HELPER") => "helper",
        Some(other) => other,
        None => "pod",
    }
}

/// The result of comparing two lifecycles of a pod.
#[derive(Debug)]
pub struct Compared {
    /// For the table in `docs/compatibility.md`.
    pub line: String,
    pub problems: Vec<String>,
    /// The rows of differences that were needed.
    pub used: BTreeSet<usize>,
}

/// Compares a lifecycle by the engine's own NRI with one by nri-runc. The pod is named `name`.
pub fn compare_lives(
    engine: &str,
    name: &str,
    native: &[(String, Value)],
    ours: &[(String, Value)],
    meant: &[Meant],
) -> Compared {
    let mut problems = Vec::new();
    for of in ["pod", "app", "helper"] {
        let (theirs, own) = (order(native, of), order(ours, of));
        if theirs != own {
            problems.push(format!("{name}: {of} heard {own:?}, of the engine {theirs:?}"));
        }
    }
    let result = compare::compare(engine, &events_by_key(native), &events_by_key(ours), meant);
    let (fields, equal, percent) = (result.native, result.equal, result.percent());
    let lists = [("wrong", &result.wrong), ("absent", &result.absent), ("more", &result.more)];
    for (what, lines) in lists {
        problems.extend(lines.iter().map(|line| format!("{name} {what}: {line}")));
    }
    let line = format!("{name:<40} {fields:>6} {equal:>6}   {percent:>6.2}\n");
    Compared { line, problems, used: result.used }
}

/// Prints the lines, and fails for problems and for rows of `docs/compatibility.md` about this
/// engine that no lifecycle needed.
#[track_caller]
pub fn assert_alike(engine: &str, lives: &[Compared], meant: &[Meant]) {
    let mut table =
        String::from("live                                     fields  equal  percent\n");
    table.extend(lives.iter().map(|life| life.line.as_str()));
    let _nobody_reads = std::io::stderr().write_all(table.as_bytes());
    let problems: Vec<&String> = lives.iter().flat_map(|life| &life.problems).collect();
    assert!(problems.is_empty(), "{} problems\n{problems:#?}", problems.len());
    let is_used = |at: &usize| lives.iter().any(|life| life.used.contains(at));
    let is_idle = |(at, row): &(usize, &Meant)| row.is_of(engine) && !is_used(at);
    let idle: Vec<_> = meant.iter().enumerate().filter(is_idle).collect();
    assert!(idle.is_empty(), "rows of docs/compatibility.md that nothing needs: {idle:?}");
}
