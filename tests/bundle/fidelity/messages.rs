// SPDX-License-Identifier: Apache-2.0
//! `docs/messages.md`: one message of each event, as a plugin receives it for a captured pod of
//! containerd and of CRI-O, and for a container of Docker and of Podman. `UPDATE_GOLDEN=1` writes
//! them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::scripted_plugin::OnRequest;
use test_support::{Script, started, succeeds};

use super::{DOCKERS_ROOT, Play, json_of};

const BEGIN: &str = "<!-- messages: begin -->\n";
const END: &str = "<!-- messages: end -->";

/// The events in the order of a pod's life.
const EVENTS: [&str; 11] = [
    "RunPodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// Elements of a list and members of a map that the page shows.
const SHOWN: usize = 3;

/// Subscribes to ValidateContainerAdjustment, the 14th event, and to nothing else.
const VALIDATION: i32 = 1 << 13;

/// The message as the page shows it: shortened, and equal in every run.
fn shortened(value: &Value, name: &str, root: &str) -> Value {
    match value {
        Value::Array(list) => {
            let mut shown: Vec<Value> =
                list.iter().take(SHOWN).map(|value| shortened(value, name, root)).collect();
            if list.len() > SHOWN {
                shown.push(json!(format!("({} more)", list.len() - SHOWN)));
            }
            Value::Array(shown)
        }
        Value::Object(members)
            if matches!(name, "annotations" | "labels" | "sysctl" | "unified") =>
        {
            // A protobuf map has no order.
            let members: BTreeMap<&String, &Value> = members.iter().collect();
            let shown = members.iter().take(SHOWN);
            let mut shown: serde_json::Map<String, Value> =
                shown.map(|(key, value)| ((*key).clone(), shortened(value, key, root))).collect();
            if members.len() > SHOWN {
                shown.insert("…".to_owned(), json!(format!("({} more)", members.len() - SHOWN)));
            }
            Value::Object(shown)
        }
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| (key.clone(), shortened(value, key, root)))
            .collect::<serde_json::Map<String, Value>>()
            .into(),
        Value::Number(_) if name == "pid" => json!(4711),
        // protobuf's JSON writes 64-bit numbers as strings.
        Value::String(_) if matches!(name, "created_at" | "started_at" | "finished_at") => {
            json!("1767323045000000000")
        }
        Value::String(text) => json!(text.replace(root, "")),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// The members of `new` that differ from `before`; a removed one is `null`.
fn changed(before: &Value, new: &Value) -> Option<Value> {
    match (before, new) {
        _ if before == new => None,
        (Value::Object(before), Value::Object(new)) => {
            let null = Value::Null;
            let there = new.iter().filter_map(|(key, value)| {
                let changed = changed(before.get(key).unwrap_or(&null), value)?;
                Some((key.clone(), changed))
            });
            let gone = before.keys().filter(|key| !new.contains_key(*key));
            let gone = gone.map(|key| (key.clone(), Value::Null));
            Some(Value::Object(there.chain(gone).collect()))
        }
        (_, new) => Some(new.clone()),
    }
}

/// Puts each object with one plain member on one line, because most of them are wrapped numbers.
fn compact(json: &str) -> String {
    let lines: Vec<&str> = json.lines().collect();
    let (mut page, mut at) = (String::new(), 0);
    while let Some(line) = lines.get(at) {
        let end = lines.get(at + 2).map(|line| line.trim_start()).unwrap_or_default();
        let member = lines.get(at + 1).map(|line| line.trim_start()).unwrap_or_default();
        let is_plain = !member.ends_with(['{', '[', ',']);
        if line.ends_with('{') && is_plain && end.trim_end_matches(',') == "}" {
            let _ = writeln!(page, "{line}{member}{end}");
            at += 3;
        } else {
            let _ = writeln!(page, "{line}");
            at += 1;
        }
    }
    page
}

fn messages() -> String {
    let engines = [
        ("containerd", Play::new("containerd-2.4.2-pod")),
        ("CRI-O", Play::new("crio-1.37-pod")),
        ("Docker", Play::life("docker-20.10-run", DOCKERS_ROOT)),
        ("Podman", Play::life("podman-4.3.1-run", "/run/runc")),
    ];
    let received = engines.map(|(engine, play)| {
        let root = play.host.path("").display().to_string();
        let (received, _) = play.play();
        (engine, root.trim_end_matches('/').to_owned(), received)
    });
    let mut page = String::new();
    let mut last = [const { Value::Null }; 4];
    for event in EVENTS {
        let _ = write!(page, "\n## {event}\n");
        for ((engine, root, received), last) in received.iter().zip(&mut last) {
            let mut of_event =
                received.iter().filter(|(key, _)| key.starts_with(&format!("{event} ")));
            let Some((_, request)) = of_event.next() else {
                let _ = write!(page, "\n{engine}: not in this life.\n");
                continue;
            };
            let short = shortened(request, "", root);
            let Some(shown) = changed(last, &short) else {
                let _ = write!(page, "\n{engine}: the same as in the event before.\n");
                continue;
            };
            *last = short;
            let shown = serde_json::to_string_pretty(&shown).unwrap();
            let _ = write!(page, "\n{engine}:\n\n```json\n{}```\n", compact(&shown));
        }
    }
    page + &of_a_connection()
}

/// The message of a validator for a container whose variable another plugin sets, and that of a plugin
/// that connects later; shortened like the others.
fn of_a_connection() -> String {
    let host = started("");
    let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let on_request = || -> Option<OnRequest> {
        let requests = Arc::clone(&requests);
        Some(Arc::new(move |event, request| {
            requests.lock().unwrap().push((event.to_owned(), json_of(request)));
        }))
    };
    let _first = host.plugin("10", "setter", sets("HELLO", "there"));
    let events = Some(VALIDATION);
    let _second = host.plugin(
        "90",
        "judge",
        Script { events, on_request: on_request(), ..Script::default() },
    );
    succeeds(&host.create("c1"));
    let _third =
        host.plugin("50", "late", Script { events, on_request: on_request(), ..Script::default() });
    let root = host.path("").display().to_string();
    let mut page = String::new();
    for (event, request) in requests.lock().unwrap().iter() {
        let mut short = shortened(request, "", root.trim_end_matches('/'));
        let cut = |whole: &Value| json!({"id": whole["id"], "…": "(as above)"});
        for name in ["pod", "container"] {
            let _or_a_list = short.get_mut(name).map(|whole| *whole = cut(whole));
            let list = short.get_mut(format!("{name}s")).and_then(Value::as_array_mut);
            list.into_iter().flatten().for_each(|whole| *whole = cut(whole));
        }
        let shown = serde_json::to_string_pretty(&short).unwrap();
        let _ = write!(
            page,
            "\n## {event}\n\nA bundle without an engine:\n\n```json\n{}```\n",
            compact(&shown)
        );
    }
    page
}

#[test]
fn an_object_with_one_plain_member_is_one_line_of_the_page() {
    let shown = |value: Value| compact(&serde_json::to_string_pretty(&value).unwrap());
    let wide = json!({"a": {"value": "1"}, "b": {"c": {"d": 1}, "e": 2}, "f": [{"g": true}]});
    assert_eq!(
        shown(wide),
        "{\n  \"a\": {\"value\": \"1\"},\n  \"b\": {\n    \"c\": {\"d\": 1},\n    \"e\": 2\n  },\n  \
         \"f\": [\n    {\"g\": true}\n  ]\n}\n"
    );
    assert_eq!(shown(json!({})), "{}\n");
}

#[test]
fn the_page_of_messages_has_the_plugins_requests() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/messages.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("its beginning");
    let (there, tail) = rest.split_once(END).expect("its end");
    let wanted = messages();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let page = format!("{head}{BEGIN}{wanted}\n{END}{tail}");
        nri_runc::testing::files::replace(&path, page.as_bytes()).unwrap();
        return;
    }
    let lines = |text: &str| -> BTreeMap<usize, String> {
        text.trim().lines().map(str::to_owned).enumerate().collect()
    };
    let (there, wanted) = (lines(there), lines(&wanted));
    let first = wanted.iter().find(|(at, line)| there.get(at) != Some(line));
    assert!(
        first.is_none() && there.len() == wanted.len(),
        "docs/messages.md is stale at {first:?}: UPDATE_GOLDEN=1 cargo test --test bundle fidelity::messages"
    );
}
