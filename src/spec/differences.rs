// SPDX-License-Identifier: Apache-2.0
//! Finds the members in which two documents differ, named like plugins' changes: `process.env[A]`,
//! `mounts[/x]`, `linux.resources.memory.limit`.
//!
//! A value that means the same as an absent member (`null`, `false`, `""`, an empty list, an object of only such
//! values) is treated as absent, because a program that rewrites a document may omit it. The result has no values,
//! so it contains no secrets.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Block;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) field: String,
    /// `added`, `changed` or `removed`.
    pub(crate) change: &'static str,
}

/// Lists with named entries, and the member that has the name; a variable's name is before `=`.
const LISTS: [(&str, &str); 6] = [
    ("process.env", "="),
    ("process.rlimits", "type"),
    ("mounts", "destination"),
    ("linux.devices", "path"),
    ("linux.namespaces", "type"),
    ("linux.resources.hugepageLimits", "pageSize"),
];

/// Objects whose members are named by their keys.
const MAPS: [&str; 4] =
    ["annotations", "linux.sysctl", "linux.resources.unified", "linux.netDevices"];

/// Returns the differing members, in the order of their names; `None` if either document is not JSON.
pub(crate) fn differences(before: &[u8], after: &[u8]) -> Option<Vec<Difference>> {
    let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let (before, after) = (parse(before)?, parse(after)?);
    let mut found = Vec::new();
    compare(String::new(), Some(&before), Some(&after), &mut found);
    found.sort_by(|one, other| one.field.cmp(&other.field));
    Some(found)
}

fn compare(
    path: String,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    let (before, after) = (before.filter(is_said), after.filter(is_said));
    if before == after {
        return;
    }
    if let Some((_, key)) = LISTS.iter().find(|(list, _)| *list == path) {
        let (before, after) = (entries(before, key), entries(after, key));
        return each(&path, (&before, &after), found);
    }
    let none = Block::new();
    let object = |value: Option<&Value>| match value {
        Some(Value::Object(members)) => Some(members.clone()),
        // A top-level member or map that one document lacks is treated as an empty object.
        None if !path.contains('.') || MAPS.contains(&path.as_str()) => Some(none.clone()),
        _ => None,
    };
    match (object(before), object(after)) {
        (Some(before), Some(after)) => each(&path, (&before, &after), found),
        _ => note(path, before, after, found),
    }
}

/// Compares the members or entries of `path`.
fn each(path: &str, (before, after): (&Block, &Block), found: &mut Vec<Difference>) {
    let is_list = LISTS.iter().any(|(list, _)| *list == path);
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (old, new) = (before.get(name), after.get(name));
        if is_list || MAPS.contains(&path) {
            note(format!("{path}[{name}]"), old, new, found);
        } else if path.is_empty() {
            compare(name.clone(), old, new, found);
        } else {
            compare(format!("{path}.{name}"), old, new, found);
        }
    }
}

fn note(field: String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    let change = match (before, after) {
        (before, after) if before == after => return,
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    };
    found.push(Difference { field, change });
}

/// Returns the entries of a list by name; of two with the same name, the later one.
fn entries(list: Option<&Value>, key: &str) -> Block {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    let named = list.map(|entry| {
        let name = match entry.as_str() {
            Some(text) => text.split_once('=').map_or(text, |(name, _)| name),
            None => entry[key].as_str().unwrap_or_default(),
        };
        (name.to_owned(), entry.clone())
    });
    named.collect()
}

/// Whether a value differs in meaning from an absent member.
fn is_said(value: &&Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(members) => members.values().any(|value| is_said(&value)),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn between(before: &Value, after: &Value) -> Vec<String> {
        let found = differences(before.to_string().as_bytes(), after.to_string().as_bytes());
        found.unwrap().iter().map(|member| format!("{} {}", member.change, member.field)).collect()
    }

    #[test]
    fn differing_members_are_named_as_in_plugins_changes() {
        let before = json!({
            "process": {"env": ["A=1", "B=2", "C=3"], "args": ["x"], "rlimits": [{"type": "RLIMIT_CORE", "hard": 1}]},
            "mounts": [{"destination": "/a", "source": "/x"}, {"destination": "/b"}],
            "annotations": {"k.v": "1"},
            "linux": {"resources": {"memory": {"limit": 1}, "unified": {"pids.max": "1"}}},
        });
        let after = json!({
            "process": {"env": ["C=3", "A=2", "D=4"], "args": ["x", "y"], "rlimits": [{"type": "RLIMIT_CORE", "hard": 2}]},
            "mounts": [{"destination": "/b"}, {"destination": "/a", "source": "/y"}, {"destination": "/c"}],
            "annotations": {"k.v": "2", "other": ""},
            "hooks": {"prestart": [{"path": "/h"}]},
            "linux": {"devices": [{"path": "/dev/x"}], "resources": {"memory": {"limit": 2}}, "sysctl": {"a.b": "1"}},
        });
        let wanted = [
            "changed annotations[k.v]",
            "added annotations[other]",
            "added hooks.prestart",
            "added linux.devices[/dev/x]",
            "changed linux.resources.memory.limit",
            "removed linux.resources.unified[pids.max]",
            "added linux.sysctl[a.b]",
            "changed mounts[/a]",
            "added mounts[/c]",
            "changed process.args",
            "changed process.env[A]",
            "removed process.env[B]",
            "added process.env[D]",
            "changed process.rlimits[RLIMIT_CORE]",
        ];
        assert_eq!(between(&before, &after), wanted);
        assert!(between(&before, &before).is_empty());
    }

    #[test]
    fn defaults_and_order_are_not_differences() {
        let before = json!({
            "hooks": null, "root": {"path": "/", "readonly": false}, "mounts": [],
            "process": {"terminal": false, "user": {"username": ""}, "env": ["A=1", "B=2"]},
            "linux": {"resources": {"memory": {}}},
        });
        let after = json!({"process": {"env": ["B=2", "A=1"]}, "root": {"path": "/"}});
        assert!(between(&before, &after).is_empty(), "{:?}", between(&before, &after));
    }

    #[test]
    fn odd_documents_are_compared_as_far_as_they_can_be() {
        assert!(differences(b"{}", b"{").is_none() && differences(b"", b"{}").is_none());
        assert_eq!(
            between(&json!({"process": {"env": ["A=1"]}}), &json!({"process": 7})),
            ["changed process"]
        );
        assert_eq!(
            between(&json!({"mounts": [7, "x"]}), &json!({"mounts": [7, "x=1"]})),
            ["changed mounts[x]"]
        );
        assert_eq!(between(&json!({"x": {"y": {"z": 1}}}), &json!({"x": {}})), ["removed x.y"]);
        assert_eq!(between(&json!([1]), &json!({"a": 1})), ["changed "]);
    }
}
