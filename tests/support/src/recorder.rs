// SPDX-License-Identifier: Apache-2.0
//! A plugin that writes down all it hears, on whoever's NRI; and what it heard in a form in which
//! two lives of the same pod can be compared: their ids become words.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nri_runc::plugin::stub::{PluginHandler, Stub};
use nri_runc::plugin::{ALL_EVENTS, Event};
use protobuf::MessageDyn;
use protobuf_json_mapping::PrintOptions;
use serde_json::Value;
use test_support::compare::Told;

/// What it heard so far, in order.
#[derive(Clone, Default)]
pub(super) struct Recorder {
    heard: Arc<Mutex<Vec<(String, Value)>>>,
}

impl PluginHandler for Recorder {
    fn events(&self) -> &[Event] {
        &ALL_EVENTS
    }

    fn observe(&self, method: &'static str, message: &dyn MessageDyn) {
        let options = PrintOptions { proto_field_name: true, ..PrintOptions::default() };
        let text = protobuf_json_mapping::print_to_string_with_options(message, &options);
        let value = serde_json::from_str(&text.unwrap()).unwrap();
        self.heard.lock().unwrap().push((method.to_owned(), value));
    }
}

impl Recorder {
    /// Connects as `10-recorder`, and waits until it is synchronized.
    pub(super) fn connect(socket: PathBuf) -> Self {
        let recorder = Self::default();
        let handler = Arc::new(recorder.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
                let stub = Stub::serve(stream, "10-recorder", "", handler).await.unwrap();
                stub.closed().await;
            });
        });
        recorder.wait_for("Synchronize");
        recorder
    }

    #[track_caller]
    pub(super) fn wait_for(&self, event: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.heard.lock().unwrap().iter().any(|(heard, _)| heard == event) {
            assert!(Instant::now() < deadline, "waited too long for {event}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All events of a pod's life, with the ids of the pod and of its containers as words.
    pub(super) fn life(&self, ids: &[(String, &str)]) -> Vec<(String, Value)> {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        let events = heard.into_iter().filter(|(event, _)| is_of_a_life(event));
        events.map(|(event, value)| (event, as_recorded(plain(value, ids)))).collect()
    }
}

/// Requests call their resources as recordings and the table of differences do.
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

/// Without what no two lives have in common.
fn plain(value: Value, ids: &[(String, &str)]) -> Value {
    match value {
        Value::String(text) => Value::String(words(text, ids)),
        Value::Array(items) => items.into_iter().map(|item| plain(item, ids)).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            members.map(|(key, value)| (words(key, ids), plain(value, ids))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn words(mut text: String, ids: &[(String, &str)]) -> String {
    for (id, word) in ids {
        text = text.replace(id, word);
    }
    // Namespaces are named by a process, or by a random name of containerd's.
    for (before, is_random) in [
        ("/proc/", (|c: char| c.is_ascii_digit()) as fn(char) -> bool),
        ("/netns/cni-", |c: char| c.is_ascii_hexdigit() || c == '-'),
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

/// Events by name, container and count, as the comparison wants them.
pub(super) fn told(life: &[(String, Value)]) -> Told {
    let mut told = Told::new();
    for (event, request) in life {
        let key = (1..).map(|n| format!("{event} {} {n}", subject(request)));
        let key = key.into_iter().find(|key| !told.contains_key(key)).unwrap();
        told.insert(key, request.clone());
    }
    told
}

/// The events of one container, or of the pod itself, in order.
pub(super) fn order(life: &[(String, Value)], of: &str) -> Vec<String> {
    let events = life.iter().filter(|(_, request)| subject(request) == of);
    events.map(|(event, _)| event.clone()).collect()
}

fn subject(request: &Value) -> &str {
    request["container"]["name"].as_str().unwrap_or("pod")
}
