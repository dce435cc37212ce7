// SPDX-License-Identifier: Apache-2.0
//! Finds why the real runtime refused a container: the last error in the engine's `--log` file,
//! read once the runtime has exited; and the plugin whose change the error is about, if the error
//! shows that. Without a log, only the engine has the reason. This module only reads.

use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::files;
use crate::limits;
use crate::presence::IfThere;
use crate::state::Change;
use serde_json::Value;

/// Names that runtimes' errors use for parts of paths in config.json.
const ALIASES: [(&str, &str); 12] = [
    ("oomscoreadj", "oom_score_adj"),
    ("mounts", "mount"),
    ("rlimits", "rlimit"),
    ("devices", "device"),
    ("hugepagelimits", "hugetlb"),
    ("namespaces", "namespace"),
    ("hooks", "hook"),
    ("cpus", "cpuset"),
    ("mems", "cpuset"),
    ("intelrdt", "resctrl"),
    ("iopriority", "ioprio"),
    ("args", "exec:"),
];

/// Parts of paths that are too common to identify a change.
const VAGUE: [&str; 6] = ["linux", "resources", "process", "limit", "env", "annotations"];

/// The log of one runtime call, and its length before the call. The engine chooses its location, so reading it may
/// block.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeLog {
    path: PathBuf,
    before: u64,
}

impl RuntimeLog {
    /// Finds the engine's `--log` file, relative to the wrapper's working directory `cwd`, and notes its length; `None`
    /// if the log is not a file.
    pub(crate) fn open(log: Option<&OsStr>, cwd: &OsStr) -> Option<Self> {
        let text = log?.to_str()?;
        if text.is_empty() || text.starts_with("journald:") || text.starts_with("syslog:") {
            return None;
        }
        let cwd = Path::new(cwd);
        let path = cwd.join(text.strip_prefix("file:").unwrap_or(text));
        let before = std::fs::metadata(&path).map_or(0, |meta| meta.len());
        Some(Self { path, before })
    }

    /// Returns the folder of the log.
    pub(crate) fn folder(&self) -> String {
        self.path.parent().unwrap_or(&self.path).to_string_lossy().into_owned()
    }

    /// Returns the last error since this call began.
    pub(crate) fn last_error(&self) -> Option<String> {
        let mut file = files::open_regular(&self.path).or_absent()?;
        let meta = file.metadata().or_absent()?;
        let since = if meta.len() < self.before { 0 } else { self.before };
        file.seek(SeekFrom::Start(since.max(meta.len().saturating_sub(limits::RUNTIME_LOG_TAIL))))
            .ok()?;
        let mut bytes = Vec::new();
        file.take(limits::RUNTIME_LOG_TAIL).read_to_end(&mut bytes).ok()?;
        last_error_in(&String::from_utf8_lossy(&bytes))
    }
}

fn last_error_in(text: &str) -> Option<String> {
    let lines = || text.lines().rev().filter(|line| !line.trim().is_empty());
    let error = lines().find_map(error_of_line);
    // A runtime that logs in another format writes its error last.
    let is_structured = |line: &str| line.starts_with('{') || line.contains("level=");
    let last = lines().next().filter(|line| !is_structured(line)).map(str::to_owned);
    let words = error.or(last)?;
    let clean = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    Some(clean.take(limits::RUNTIME_MESSAGE).collect::<String>().trim().to_owned())
}

/// Returns the message of a line in one of runc's log formats, if it is an error.
fn error_of_line(line: &str) -> Option<String> {
    let is_error = |level: &str| matches!(level, "error" | "fatal" | "panic");
    if let Ok(entry) = serde_json::from_str::<Value>(line) {
        return entry["level"]
            .as_str()
            .filter(|level| is_error(level))
            .and_then(|_| entry["msg"].as_str())
            .map(str::to_owned);
    }
    let level = line.split("level=").nth(1)?.split(' ').next()?;
    let message = line.split_once("msg=").filter(|_| is_error(level))?.1;
    let mut quoted = serde_json::Deserializer::from_str(message).into_iter::<String>();
    match quoted.next() {
        Some(Ok(text)) => Some(text),
        _ => Some(message.to_owned()),
    }
}

/// Returns the change that an error message is about: the one whose path the message mentions most fully.
pub(crate) fn change_behind<'c>(changes: &'c [Change], words: &str) -> Option<&'c Change> {
    let words = words.to_lowercase();
    let by_plugins = changes.iter().filter(|change| !change.plugin.is_empty());
    let weighed = by_plugins.map(|change| (weight(&change.field.to_lowercase(), &words), change));
    let best = weighed.filter(|(weight, _)| *weight > 0).max_by_key(|(weight, _)| *weight);
    best.map(|(_, change)| change)
}

/// Returns how much of a path in config.json a message mentions.
fn weight(field: &str, words: &str) -> usize {
    let (path, key) =
        field.split_once('[').map_or((field, ""), |(path, key)| (path, key.trim_end_matches(']')));
    // The key identifies one entry: a mount's destination, a sysctl, a file of the cgroup.
    let by_key = if key.len() >= 3 && words.contains(key) { 100 + key.len() } else { 0 };
    let parts = path.split('.').filter(|part| !VAGUE.contains(part));
    let by_part = parts.map(|part| {
        let alias = ALIASES.iter().find(|(name, _)| *name == part).map(|(_, alias)| *alias);
        let is_named = words.contains(part) || alias.is_some_and(|alias| words.contains(alias));
        if is_named { part.len() } else { 0 }
    });
    by_key + by_part.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(plugin: &str, field: &str) -> Change {
        Change {
            at: 0,
            event: String::new(),
            plugin: plugin.to_owned(),
            field: field.to_owned(),
            before: Value::Null,
            after: Value::Null,
        }
    }

    #[test]
    fn the_last_error_is_found_in_each_form_of_a_log() {
        for (log, wanted) in [
            (
                "{\"level\":\"error\",\"msg\":\"old\"}\n{\"level\":\"error\",\"msg\":\"no\"}\n{\"level\":\"info\",\"msg\":\"bye\"}\n",
                Some("no"),
            ),
            (
                "time=\"t\" level=warning msg=\"hm\"\ntime=\"t\" level=error msg=\"a \\\"b\\\" c\"\n",
                Some("a \"b\" c"),
            ),
            ("2026-11-22T00:00:00Z: cannot write\n", Some("cannot write")),
            ("{\"level\":\"info\",\"msg\":\"bye\"}\n", None),
            ("\n", None),
        ] {
            let found = last_error_in(log);
            assert_eq!(found.is_some(), wanted.is_some(), "{log}");
            assert!(found.unwrap_or_default().ends_with(wanted.unwrap_or_default()), "{log}");
        }
        let long =
            last_error_in(&format!("\x1b{}", "x".repeat(limits::RUNTIME_MESSAGE * 2))).unwrap();
        assert!(long.len() < limits::RUNTIME_MESSAGE && !long.contains('\x1b'));
    }

    #[test]
    fn an_error_is_attributed_to_the_change_it_mentions_most() {
        let changes = [
            change("10-mem", "linux.resources.memory.limit"),
            change("20-v2", "linux.resources.unified[memory.high]"),
            change("30-mount", "mounts[/data]"),
            change("40-env", "process.env[HOME]"),
        ];
        for (words, wanted) in [
            ("cannot use unified on cgroup v1", Some("20-v2")),
            ("error mounting \"/x\" to rootfs at \"/data\": no such file", Some("30-mount")),
            ("failed to write memory.limit_in_bytes: device busy", Some("10-mem")),
            ("container with id exists", None),
        ] {
            let found = change_behind(&changes, words).map(|change| change.plugin.as_str());
            assert_eq!(found, wanted, "{words}");
        }
    }
}
