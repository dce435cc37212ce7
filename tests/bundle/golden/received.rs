// SPDX-License-Identifier: Apache-2.0
//! The messages that plugins received, as deterministic text: one line for each event, whole messages
//! the first time and only differences afterwards; PIDs and times are masked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use serde_json::{Map, Value};
use test_support::scripted_plugin::{OnRequest, json_of};

/// All received messages, in order of arrival.
#[derive(Clone, Default)]
pub(super) struct ReceivedMessages(Arc<Mutex<Vec<(String, String, Value)>>>);

impl ReceivedMessages {
    /// A recorder for the plugin `id`.
    pub(super) fn recorder(&self, id: &str) -> OnRequest {
        let (received, id) = (self.clone(), id.to_owned());
        Arc::new(move |event, request| {
            received.0.lock().unwrap().push((id.clone(), event.to_owned(), value(request)));
        })
    }

    /// Returns the messages as text, plugin by plugin, each in order of arrival.
    pub(super) fn lines(&self) -> String {
        let mut requests = self.0.lock().unwrap().clone();
        requests.sort_by(|a, b| a.0.cmp(&b.0));
        let mut before: HashMap<(String, String), Value> = HashMap::new();
        let mut text = String::new();
        for (plugin, event, request) in requests {
            let mut line = Map::new();
            line.insert("plugin".to_owned(), Value::from(plugin.as_str()));
            line.insert("event".to_owned(), Value::from(event));
            let Value::Object(request) = request else { continue };
            for (part, now) in request {
                match before.insert((plugin.clone(), part.clone()), now.clone()) {
                    None => line.insert(part, now),
                    Some(then) if then == now => line.insert(part, Value::from("as before")),
                    Some(then) => line.insert(format!("{part}+"), difference(&then, &now)),
                };
            }
            text.push_str(&Value::Object(line).to_string());
            text.push('\n');
        }
        text
    }
}

/// The differing members; `null` for a removed one.
fn difference(then: &Value, now: &Value) -> Value {
    let (Value::Object(then), Value::Object(now)) = (then, now) else { return now.clone() };
    let mut differs = Map::new();
    for (key, value) in now {
        match then.get(key) {
            Some(old) if old == value => {}
            Some(old) => drop(differs.insert(key.clone(), difference(old, value))),
            None => drop(differs.insert(key.clone(), value.clone())),
        }
    }
    for key in then.keys().filter(|key| !now.contains_key(*key)) {
        differs.insert(key.clone(), Value::Null);
    }
    differs.sort_keys();
    Value::Object(differs)
}

/// A message in protobuf's JSON, with sorted keys.
fn value(message: &dyn MessageDyn) -> Value {
    let mut value = json_of(message);
    mask(&mut value);
    value
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.sort_keys();
            hide_exit_code(members);
            for (key, value) in members.iter_mut() {
                match key.as_str() {
                    "pid" if value.is_u64() => *value = Value::from("PID"),
                    "createdAt" | "startedAt" | "finishedAt" => *value = Value::from("TIME"),
                    _ => mask(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Masks the exit code, because every case kills its process. Since Linux 6.15 the kernel keeps it,
/// but only once the process is reaped, and PID 1 of some machines is slow.
fn hide_exit_code(container: &mut Map<String, Value>) {
    let is_known = container.get("exitCode").is_some_and(|code| code == 137)
        && container.get("statusReason").is_some_and(|reason| reason == "Error");
    if is_known {
        container.remove("exitCode");
        container.insert("statusReason".to_owned(), Value::from("Unknown"));
        container.insert("statusMessage".to_owned(), Value::from("its exit code is not known"));
    }
}
