// SPDX-License-Identifier: Apache-2.0
//! Encodes, decodes and finds a container's mark: the few facts that `exec` and `kill` need without
//! asking the daemon (decisions D36 and D37).
//!
//! With the record of a container that needs a mark, the daemon writes one file in a folder beside
//! the records; it removes the file when the container stops. A wrapper finds it by a hash of
//! runtime root and ID, so a container without a mark costs one failing `openat`. A mark is
//! never read from the bundle, so the container's author cannot forge it.
//!
//! The file is a line with the format's version, then fields (`tagged.rs`); process values and the
//! subject are JSON. Unknown tags are skipped; a file of another version or container, or a damaged
//! one, is ignored.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Context, Result};
use crate::files;
use crate::fnv::fnv128;
use crate::limits;
use crate::presence::IfThere;
use crate::tagged::{fields, put};

/// The folder of the marks, in the records' folder of the run directory.
pub(crate) const MARKS: &str = "marks";

/// The first line of a mark's file.
const FORMAT: &[u8] = b"nri-runc mark 1\n";

const TAG_ROOT: u8 = 1;
const TAG_ID: u8 = 2;
const TAG_SANDBOX: u8 = 3;
const TAG_FIELD: u8 = 4;
const TAG_ENGINE: u8 = 5;
const TAG_PLUGIN: u8 = 6;
const TAG_SUBJECT: u8 = 7;

/// Facts about a container whose `exec`s involve the daemon; if no daemon answers, a wrapper decides
/// from these facts alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecSubject {
    /// The directory of the container's document.
    pub bundle: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// Whether the labels are incomplete because the pod has no record.
    pub lacks_labels: bool,
    /// The engine's name.
    pub engine: String,
    /// The runtime handler.
    pub handler: String,
    /// Whether a tenant may have written the namespace, or disguised the engine.
    pub is_doubtful: bool,
    /// Whether the pod is in an exempt namespace.
    pub is_exempt: bool,
}

/// A value of the process that plugins changed at the container's creation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessValue {
    /// The field's path in config.json, as `explain` shows it: `process.env[PATH]`.
    pub field: String,
    /// The engine's value; null if it set none. For groups, the engine's user.
    pub engine: Value,
    /// The plugin's value; null if it removed the engine's. For groups, the added ones.
    pub plugin: Value,
}

/// Members of the process that plugins set as a whole.
pub(crate) const PROCESS_MEMBERS: [&str; 3] = ["oomScoreAdj", "scheduler", "ioPriority"];

impl ProcessValue {
    /// Returns the variable's name if the value is an environment variable.
    pub(crate) fn variable(&self) -> Option<&str> {
        self.field.strip_prefix("process.env[")?.strip_suffix(']')
    }

    /// Returns the resource limit's name if the value is one.
    pub(crate) fn rlimit(&self) -> Option<&str> {
        self.field.strip_prefix("process.rlimits[")?.strip_suffix(']')
    }

    /// Returns the engine's user and the added groups if the value is the list of groups.
    pub(crate) fn groups(&self) -> Option<(&Value, &Value)> {
        (self.field == GROUPS).then_some((&self.engine, &self.plugin))
    }

    /// Returns the member's name if the value is a whole member.
    pub(crate) fn member(&self) -> Option<&'static str> {
        let name = self.field.strip_prefix("process.")?;
        PROCESS_MEMBERS.into_iter().find(|member| *member == name)
    }
}

/// The groups of the process, as a field of config.json.
const GROUPS: &str = "process.user.additionalGids";

/// Returns the groups that plugins' changes (field, value after) added for the engine's user.
/// `exec` needs that user too: for any other user, the caller of `exec` chooses the groups.
pub(crate) fn added_groups<'a>(
    user: Value,
    changes: impl Iterator<Item = (&'a str, &'a Value)>,
) -> Option<ProcessValue> {
    let added = changes.filter(|(field, _)| *field == GROUPS);
    let added = added.flat_map(|(_, after)| after.as_array().into_iter().flatten());
    let plugin: Vec<Value> = added.cloned().collect();
    let field = GROUPS.to_owned();
    (!plugin.is_empty()).then_some(ProcessValue { field, engine: user, plugin: plugin.into() })
}

/// Returns the values that `exec` applies, from changes (field, value before, value after). If
/// several changes set one field, the result has the first value before and the last value after; no
/// entry if the two are equal.
pub(crate) fn process_values<'a>(
    changes: impl Iterator<Item = (&'a str, &'a Value, &'a Value)>,
) -> Vec<ProcessValue> {
    let mut values: Vec<ProcessValue> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (field, before, after) in changes.filter(|(field, ..)| field.starts_with("process.")) {
        if let Some(known) = places.get(field).and_then(|place| values.get_mut(*place)) {
            known.plugin = after.clone();
            continue;
        }
        let (engine, plugin) = (before.clone(), after.clone());
        let value = ProcessValue { field: field.to_owned(), engine, plugin };
        if (value.variable().or(value.rlimit()).or(value.member())).is_some() {
            places.insert(field, values.len());
            values.push(value);
        }
    }
    values.retain(|value| value.engine != value.plugin);
    values
}

/// A mark, read or to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mark {
    /// The runtime's state directory.
    pub root: String,
    /// The container's ID.
    pub id: String,
    /// Whether the container is its pod's infrastructure container; a `kill` of such a container
    /// notifies the daemon.
    pub is_sandbox: bool,
    /// The values that `exec` applies.
    pub values: Vec<ProcessValue>,
    /// Facts about the container, if its `exec`s involve the daemon.
    pub subject: Option<ExecSubject>,
}

impl Mark {
    /// Encodes the file's content; `None` if it would exceed the limit for reading.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = FORMAT.to_vec();
        put(&mut bytes, TAG_ROOT, self.root.as_bytes());
        put(&mut bytes, TAG_ID, self.id.as_bytes());
        if self.is_sandbox {
            put(&mut bytes, TAG_SANDBOX, &[]);
        }
        for ProcessValue { field, engine, plugin } in &self.values {
            put(&mut bytes, TAG_FIELD, field.as_bytes());
            put(&mut bytes, TAG_ENGINE, engine.to_string().as_bytes());
            put(&mut bytes, TAG_PLUGIN, plugin.to_string().as_bytes());
        }
        if let Some(subject) = &self.subject {
            put(&mut bytes, TAG_SUBJECT, &serde_json::to_vec(subject).unwrap_or_default());
        }
        (bytes.len() <= limits::MARK).then_some(bytes)
    }

    /// Decodes a file's content; `None` if it is of another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut mark = Self::default();
        for field in fields(bytes.strip_prefix(FORMAT)?) {
            let (tag, value) = field.ok()?;
            match tag {
                TAG_ROOT => mark.root = text(value)?,
                TAG_ID => mark.id = text(value)?,
                TAG_SANDBOX => mark.is_sandbox = true,
                TAG_SUBJECT => mark.subject = Some(serde_json::from_slice(value).ok()?),
                TAG_FIELD => {
                    let field = text(value)?;
                    let (engine, plugin) = (Value::Null, Value::Null);
                    mark.values.push(ProcessValue { field, engine, plugin });
                }
                TAG_ENGINE => {
                    mark.values.last_mut()?.engine = serde_json::from_slice(value).ok()?;
                }
                TAG_PLUGIN => {
                    mark.values.last_mut()?.plugin = serde_json::from_slice(value).ok()?;
                }
                _ => {}
            }
        }
        Some(mark)
    }
}

fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(str::to_owned)
}

/// Returns the file name of a container's mark.
pub(crate) fn file_name(root: &str, id: &str) -> String {
    let mut bytes = Vec::with_capacity(root.len() + 1 + id.len());
    bytes.extend_from_slice(root.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(id.as_bytes());
    format!("{:032x}", fnv128(&bytes))
}

/// Returns the path of a container's mark in this run directory.
pub(crate) fn place(run_dir: &Path, root: &str, id: &str) -> PathBuf {
    run_dir.join("state").join(MARKS).join(file_name(root, id))
}

/// Returns the container's mark, if it has one.
///
/// # Errors
/// Fails when the file cannot be read.
pub(crate) fn find(run_dir: &Path, root: &str, id: &str) -> Result<Option<Mark>> {
    let path = place(run_dir, root, id);
    let bytes = match files::read_own(&path, limits::MARK) {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => None,
        read => read.if_there().doing(|| format!("reading {}", path.display()))?,
    };
    // Two containers may have the same hash.
    Ok(bytes
        .and_then(|bytes| Mark::decode(&bytes))
        .filter(|mark| mark.root == root && mark.id == id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn mark() -> Mark {
        let value =
            |field: &str, engine, plugin| ProcessValue { field: field.to_owned(), engine, plugin };
        Mark {
            root: "/run/runc".to_owned(),
            id: "c1".to_owned(),
            is_sandbox: false,
            values: vec![
                value("process.env[A]", Value::Null, json!("b\n\u{e9}\0")),
                value("process.oomScoreAdj", json!(100), Value::Null),
                value("process.rlimits[RLIMIT_NOFILE]", json!({"soft": 1}), json!({"soft": 2})),
            ],
            subject: None,
        }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let labels = [("app".to_owned(), "a\"\n".to_owned())].into();
        let subject = ExecSubject { labels, is_exempt: true, ..ExecSubject::default() };
        for mark in [
            mark(),
            Mark { is_sandbox: true, values: Vec::new(), ..mark() },
            Mark { subject: Some(subject), ..mark() },
        ] {
            assert_eq!(Mark::decode(&mark.encode().unwrap()), Some(mark));
        }
    }

    #[test]
    fn only_lasting_process_changes_reach_later_execs() {
        let (no, one, two) = (Value::Null, json!("1"), json!("2"));
        let changes = [
            ("annotations[process.env[A]]", &no, &one),
            ("process.env[A]", &no, &one),
            ("process.args", &one, &two),
            ("process.env[A]", &one, &two),
            ("process.env[B]", &one, &two),
            ("process.env[B]", &two, &one),
            ("process.user.additionalGids", &no, &one),
            ("process.ioPriority", &one, &no),
        ];
        let values = process_values(changes.into_iter());
        let found = values.iter().map(|v| (v.field.as_str(), &v.engine, &v.plugin));
        let wanted = [("process.env[A]", &no, &two), ("process.ioPriority", &one, &no)];
        assert!(found.eq(wanted), "{values:?}");
    }

    #[test]
    fn a_mark_has_the_added_groups_and_the_engines_user() {
        let user = json!({"uid": 7, "gid": 0, "additionalGids": [1]});
        let (one, two, other) = (json!([44]), json!([45, 46]), json!("x"));
        let changes = [(GROUPS, &one), ("process.env[A]", &other), (GROUPS, &two)];
        let value = added_groups(user.clone(), changes.into_iter()).unwrap();
        assert_eq!(value.groups(), Some((&user, &json!([44, 45, 46]))));
        assert_eq!(added_groups(user, [("process.env[A]", &other)].into_iter()), None);
    }

    #[test]
    fn a_mark_may_have_unknown_fields_but_no_other_format() {
        let mut bytes = mark().encode().unwrap();
        put(&mut bytes, 200, b"more");
        assert_eq!(Mark::decode(&bytes), Some(mark()));
        let newer = [b"nri-runc mark 2\n", &bytes[FORMAT.len()..]].concat();
        assert_eq!(Mark::decode(&newer), None);
        assert_eq!(Mark::decode(b""), None);
    }

    #[test]
    fn a_truncated_mark_is_ignored() {
        let bytes = mark().encode().unwrap();
        let value = bytes.len() - 1;
        assert_eq!(Mark::decode(&bytes[..value]), None);
        let damaged = [FORMAT, &[TAG_SUBJECT, 1, 0, 0, 0, b'{']].concat();
        assert_eq!(Mark::decode(&damaged), None, "of which pod it is would not be known");
        let lone = [FORMAT, &[TAG_PLUGIN, 1, 0, 0, 0, b'1']].concat();
        assert_eq!(Mark::decode(&lone), None, "a value of no field");
    }

    #[test]
    fn a_mark_applies_only_to_its_own_container() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("state").join(MARKS)).unwrap();
        let bytes = mark().encode().unwrap();
        files::replace(&place(temp.path(), "/run/runc", "c1"), &bytes).unwrap();
        files::replace(&place(temp.path(), "/run/runc", "c2"), &bytes).unwrap();
        assert_eq!(find(temp.path(), "/run/runc", "c1").unwrap(), Some(mark()));
        for (root, id) in [("/run/runc", "c2"), ("/run/other", "c1"), ("/run/runc", "")] {
            assert_eq!(find(temp.path(), root, id).unwrap(), None, "{root} {id}");
        }
        let unreadable = place(temp.path(), "/run/runc", "c3");
        std::fs::create_dir(&unreadable).unwrap();
        assert!(find(temp.path(), "/run/runc", "c3").is_err(), "not the absence of a mark");
        assert_ne!(file_name("/a", "b"), file_name("/ab", ""));
    }

    #[test]
    fn a_mark_over_the_limit_is_not_written() {
        let mut mark = mark();
        mark.values[0].plugin = json!("x".repeat(limits::MARK));
        assert_eq!(mark.encode(), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(Mark::decode(&bytes));
            drop(Mark::decode(&[FORMAT, &bytes].concat()));
        }
    }
}
