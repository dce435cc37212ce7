// SPDX-License-Identifier: Apache-2.0
//! Compares two accounts of the same pod, field by field. PIDs and times are replaced by words;
//! every other difference must be in the table of `docs/compatibility.md`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Requests by event, container and occurrence, as in `StopContainer app 1`.
pub type EventsByKey = BTreeMap<String, Value>;

/// A row of the table of intended differences.
#[derive(Debug)]
pub struct Meant {
    engine: String,
    events: String,
    field: String,
}

/// The rows in the document.
pub fn meant(page: &str) -> Vec<Meant> {
    let table = page.split("## Intended differences").nth(1).unwrap_or_default();
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        let mut next = || cells.next().unwrap();
        Meant { engine: next(), events: next(), field: next() }
    });
    rows.collect()
}

/// Follows the engine in a row that applies only to comparisons with a running engine.
const LIVE: &str = " live";

impl Meant {
    /// Whether it applies only to a comparison with a running engine, whose timing differs.
    pub fn is_live(&self) -> bool {
        self.engine.ends_with(LIVE)
    }

    /// Whether it applies only to a comparison with this running engine.
    pub fn is_of(&self, engine: &str) -> bool {
        self.is_live() && self.engine == engine
    }

    pub fn covers(&self, engine: &str, event: &str, field: &str) -> bool {
        let is_field = field == self.field
            || field.strip_prefix(&self.field).is_some_and(|rest| rest.starts_with(['.', '[']));
        let recorded = engine.strip_suffix(LIVE).unwrap_or(engine);
        let is_a_version =
            recorded.strip_prefix(&self.engine).is_some_and(|rest| rest.starts_with('-'));
        (self.engine == engine || self.engine == recorded || is_a_version)
            && is_field
            && (self.events == "all" || self.events.contains(event))
    }
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Result {
    pub native: usize,
    pub equal: usize,
    /// Fields that differ, are absent or are additional, without an intended difference.
    pub wrong: Vec<String>,
    pub absent: Vec<String>,
    pub more: Vec<String>,
    pub used: BTreeSet<usize>,
}

impl Result {
    pub fn percent(&self) -> f64 {
        100.0 * f64::from(u32::try_from(self.equal).unwrap())
            / f64::from(u32::try_from(self.native).unwrap())
    }
}

pub fn compare(engine: &str, native: &EventsByKey, ours: &EventsByKey, meant: &[Meant]) -> Result {
    let mut result = Result::default();
    let nothing = Value::Null;
    let keys: BTreeSet<&String> = native.keys().chain(ours.keys()).collect();
    for key in keys {
        let event = key.split(' ').next().unwrap();
        let (theirs, own) =
            (flat(native.get(key).unwrap_or(&nothing)), flat(ours.get(key).unwrap_or(&nothing)));
        result.native += theirs.len();
        let fields: BTreeSet<&String> = theirs.keys().chain(own.keys()).collect();
        for field in fields {
            let (received, got) = (theirs.get(field), own.get(field));
            if received == got {
                result.equal += 1;
                continue;
            }
            let line = format!("{key} {field}: native {received:?}, ours {got:?}");
            if let Some(at) = meant.iter().position(|row| row.covers(engine, event, field)) {
                result.used.insert(at);
                continue;
            }
            match (received, got) {
                (Some(_), None) => result.absent.push(line),
                (None, Some(_)) => result.more.push(line),
                _ => result.wrong.push(line),
            }
        }
    }
    result
}

/// Returns the innermost values by path; an empty message is a value too.
fn flat(value: &Value) -> BTreeMap<String, Value> {
    fn walk(path: String, value: &Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                for (key, value) in members {
                    let key = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    walk(key, value, into);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (at, value) in items.iter().enumerate() {
                    walk(format!("{path}[{at}]"), value, into);
                }
            }
            Value::Null => {}
            Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => drop(into.insert(path, value.clone())),
        }
    }
    let mut into = BTreeMap::new();
    walk(String::new(), value, &mut into);
    for (path, value) in &mut into {
        match path.rsplit('.').next().unwrap() {
            "pid" => *value = Value::from("PID"),
            "created_at" | "started_at" | "finished_at" => *value = Value::from("TIME"),
            _ => {}
        }
    }
    into
}
