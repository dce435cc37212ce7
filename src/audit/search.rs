// SPDX-License-Identifier: Apache-2.0
//! Searches the files of the audit log, oldest first, for the lines that an operator requests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use crate::config::parse_duration;
use crate::error::{Context, Result};
use crate::limits;
use crate::text::rfc3339_nanos;

use super::entry::AuditSubject;
use super::file::rotated;

/// A line of the audit log or of the event stream as commands read it. A member that the line does
/// not have is empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoggedLine {
    pub(crate) cursor: String,
    pub(crate) time: String,
    /// A text, because another version may have other actions.
    #[serde(alias = "kind")]
    pub(crate) action: String,
    pub(crate) event: String,
    pub(crate) plugin: String,
    pub(crate) field: String,
    pub(crate) from: Value,
    pub(crate) to: Value,
    pub(crate) user: Option<String>,
    pub(crate) caller: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) terminal: Option<bool>,
    pub(crate) result: Option<String>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) rule: String,
    pub(crate) reason: String,
    #[serde(flatten)]
    pub(crate) subject: AuditSubject,
    pub(crate) pod_uid: String,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) lost: Option<u64>,
}

/// The filter of an operator's search; `None` admits any line.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditFilter {
    /// `NAMESPACE/NAME`, a name, an ID or ID prefix.
    pub(crate) pod: Option<String>,
    /// A name, an ID or ID prefix.
    pub(crate) container: Option<String>,
    /// `NN-name`, or the bare name.
    pub(crate) plugin: Option<String>,
    /// Names of actions; empty means any.
    pub(crate) actions: Vec<String>,
    /// The earliest time, in the form that [`since`] returns.
    pub(crate) since: Option<String>,
}

impl AuditFilter {
    /// Whether the filter admits a line.
    pub(crate) fn admits(&self, line: &LoggedLine) -> bool {
        let AuditSubject { namespace, pod, pod_id, container, container_id, .. } = &line.subject;
        let is_pod = |wanted: &String| {
            let qualified = wanted.split_once('/');
            qualified.is_some_and(|(space, name)| namespace == space && pod == name)
                || pod == wanted
                || begins(pod_id, wanted)
        };
        let is_container = |wanted: &String| container == wanted || begins(container_id, wanted);
        let is_plugin = |wanted: &String| {
            // A line about an update may name several plugins.
            line.plugin.split(',').any(|plugin| {
                let name = plugin.split_once('-').map(|(_, name)| name);
                plugin == wanted || name == Some(wanted)
            })
        };
        // A line about missing lines passes every filter except `since`.
        let is_gap = line.action == "lost";
        let is_about = self.pod.as_ref().is_none_or(is_pod)
            && self.container.as_ref().is_none_or(is_container)
            && self.plugin.as_ref().is_none_or(is_plugin)
            && (self.actions.is_empty() || self.actions.contains(&line.action));
        let is_recent =
            self.since.as_ref().is_none_or(|since| comparable(&line.time) >= since.as_str());
        (is_about || is_gap) && is_recent
    }

    /// Returns the ID of the line's pod, if only an ID prefix matched it.
    pub(crate) fn pod_by_prefix<'l>(&self, line: &'l AuditSubject) -> Option<&'l String> {
        by_prefix(&line.pod, &line.pod_id, self.pod.as_deref()?)
    }

    /// Returns the ID of the line's container, if only an ID prefix matched it.
    pub(crate) fn container_by_prefix<'l>(&self, line: &'l AuditSubject) -> Option<&'l String> {
        by_prefix(&line.container, &line.container_id, self.container.as_deref()?)
    }
}

fn by_prefix<'l>(name: &str, id: &'l String, wanted: &str) -> Option<&'l String> {
    (name != wanted && id != wanted && begins(id, wanted)).then_some(id)
}

fn begins(id: &str, wanted: &str) -> bool {
    !wanted.is_empty() && id.starts_with(wanted)
}

/// Removes the `Z`, so that times compare as text: it sorts after the `.` of a fraction.
fn comparable(time: &str) -> &str {
    time.trim_end_matches('Z')
}

/// Parses an operator's time: an age such as `90s` or `7d`, or a UTC date or time such as
/// `2026-11-22` or `2026-11-22T10:15:00Z`. `None` if it is neither.
pub(crate) fn since(text: &str, now: SystemTime) -> Option<String> {
    let age = match text.strip_suffix('d').map(str::parse::<u32>) {
        Some(Ok(days)) => Some(std::time::Duration::from_secs(u64::from(days) * 86_400)),
        _ => parse_duration(text),
    };
    if let Some(age) = age {
        let at = now.checked_sub(age).unwrap_or(UNIX_EPOCH);
        let nanos = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let time = rfc3339_nanos(i64::try_from(nanos).unwrap_or(i64::MAX)).unwrap_or_default();
        return Some(comparable(&time).to_owned());
    }
    let time = comparable(text);
    let is_like = |(given, form): (char, char)| match form {
        '0' => given.is_ascii_digit(),
        form => given == form,
    };
    let form = "0000-00-00T00:00:00.000000000";
    let has_a_form = matches!(time.len(), 10 | 16 | 19) || (21..=form.len()).contains(&time.len());
    (has_a_form && time.chars().zip(form.chars()).all(is_like)).then(|| time.to_owned())
}

/// Returns the files of the log, oldest first. They are opened from the newest to the oldest, so
/// that a file that is rotated meanwhile is opened twice instead of missed; it is returned once.
/// During a rotation one number is free.
///
/// # Errors
/// Fails when a file is unreadable; a log without files is empty.
pub(crate) fn open_files(path: &Path) -> Result<Vec<File>> {
    let (mut files, mut seen, mut is_free) = (Vec::new(), Vec::new(), false);
    for number in 0.. {
        let name = rotated(path, number);
        let mut options = File::options();
        let opened = options.read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK);
        match opened.open(&name) {
            Ok(file) => {
                is_free = false;
                let there = file.metadata()?;
                if !seen.contains(&(there.dev(), there.ino())) {
                    seen.push((there.dev(), there.ino()));
                    files.push(file);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if std::mem::replace(&mut is_free, true) {
                    break;
                }
            }
            Err(error) => return Err(error).doing(|| format!("reading {}", name.display())),
        }
    }
    files.reverse();
    Ok(files)
}

/// Calls `found` with each line that the filter admits; returns the number of lines that cannot be
/// parsed.
///
/// # Errors
/// Fails when a read fails, or `found` does.
pub(crate) fn search(
    mut lines: impl BufRead,
    filter: &AuditFilter,
    mut found: impl FnMut(&str, &LoggedLine) -> Result<()>,
) -> Result<u64> {
    let (mut unreadable, mut bytes) = (0, Vec::new());
    let limit = u64::try_from(limits::AUDIT_LINE).unwrap_or(u64::MAX);
    let mut is_cut = false;
    loop {
        bytes.clear();
        let read = lines.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
        if read == 0 {
            return Ok(unreadable);
        }
        // Skips the rest of a line that is too long.
        let was_cut = std::mem::replace(&mut is_cut, !bytes.ends_with(b"\n"));
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim_end();
        match serde_json::from_str(text) {
            _ if was_cut => {}
            Ok(line) if filter.admits(&line) => found(text, &line)?,
            Ok(_) => {}
            Err(_) => unreadable += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LOG: &str = "\
        {\"time\":\"2026-11-22T10:00:00.000000001Z\",\"action\":\"applied\",\"plugin\":\"10-a\",\
         \"namespace\":\"shop\",\"pod\":\"web\",\"pod_id\":\"p1\",\"container\":\"c\",\"container_id\":\"abc123\"}\n\
        {\"time\":\"2026-11-22T10:00:05.5Z\",\"action\":\"connected\",\"plugin\":\"20-b\"}\n\
        half a li\n\
        {\"time\":\"2026-11-22T10:00:09.000000001Z\",\"action\":\"lost\"}\n\
        [1]\n\
        {\"time\":\"2026-11-22T10:00:10.000000001Z\",\"action\":\"refused\",\"plugin\":\"10-a\",\
         \"namespace\":\"ops\",\"pod\":\"web\"}\n";

    fn matching(filter: &AuditFilter) -> Vec<String> {
        let mut actions = Vec::new();
        let unreadable = search(LOG.as_bytes(), filter, |_, line| {
            actions.push(line.action.clone());
            Ok(())
        });
        assert_eq!(unreadable.unwrap(), 2);
        actions
    }

    #[test]
    fn audit_lines_are_found_by_pod_container_and_plugin_names() {
        let some = |text: &str| Some(text.to_owned());
        let none = AuditFilter::default;
        for (filter, wanted) in [
            (none(), "applied connected lost refused"),
            (AuditFilter { pod: some("shop/web"), ..none() }, "applied lost"),
            (AuditFilter { pod: some("web"), ..none() }, "applied lost refused"),
            (AuditFilter { pod: some("p1"), ..none() }, "applied lost"),
            (AuditFilter { pod: some("web/shop"), ..none() }, "lost"),
            (AuditFilter { container: some("abc"), ..none() }, "applied lost"),
            (AuditFilter { plugin: some("b"), ..none() }, "connected lost"),
            (AuditFilter { plugin: some("10-a"), ..none() }, "applied lost refused"),
            (
                AuditFilter { since: some("2026-11-22T10:00:05"), ..none() },
                "connected lost refused",
            ),
            (AuditFilter { since: some("2026-11-23"), ..none() }, ""),
        ] {
            assert_eq!(matching(&filter).join(" "), wanted, "{filter:?}");
        }
    }

    #[test]
    fn lines_of_other_versions_are_read_and_searched() {
        let text = "{\"action\":\"dreamt\",\"dreams\":[7],\"terminal\":null,\"to\":null}\n\
                    {\"kind\":\"dreamt\",\"labels\":null,\"exit_code\":null}\n{}\n[]\n\"text\"\n";
        let mut actions = Vec::new();
        let unreadable = search(text.as_bytes(), &AuditFilter::default(), |_, line| {
            actions.push(line.action.clone());
            Ok(())
        });
        assert_eq!(
            (unreadable.unwrap(), actions),
            (2, ["dreamt", "dreamt", ""].map(str::to_owned).into())
        );
    }

    #[test]
    fn a_time_is_an_age_or_a_time_of_day_in_utc() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_221_600);
        for (text, wanted) in [
            ("10m", "2026-11-21T00:30:00.000000000"),
            ("1d", "2026-11-20T00:40:00.000000000"),
            ("1h30m", "2026-11-20T23:10:00.000000000"),
            ("2026-11-22", "2026-11-22"),
            ("2026-11-22T10:15", "2026-11-22T10:15"),
            ("2026-11-22T10:15:00Z", "2026-11-22T10:15:00"),
            ("2026-11-22T10:15:00.5Z", "2026-11-22T10:15:00.5"),
        ] {
            assert_eq!(since(text, now).as_deref(), Some(wanted), "{text}");
        }
        for text in
            ["", "yesterday", "10", "2026-11", "2026-11-22T10:15:00+02:00", "22.11.2026", "-1h"]
        {
            assert_eq!(since(text, now), None, "{text}");
        }
    }

    #[test]
    fn rotated_files_are_read_oldest_first_even_without_the_newest() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("audit.log");
        for (number, text) in [(0, "new"), (1, "older"), (2, "oldest")] {
            crate::files::replace(&rotated(&path, number), text.as_bytes()).unwrap();
        }
        let read = |path: &Path| -> Vec<String> {
            let files = open_files(path).unwrap();
            files.into_iter().map(|file| std::io::read_to_string(file).unwrap()).collect()
        };
        assert_eq!(read(&path), ["oldest", "older", "new"]);
        // During a rotation one number is free: at first the last but one, at the end the current
        // file's.
        std::fs::rename(rotated(&path, 1), temp.path().join("kept")).unwrap();
        assert_eq!(read(&path), ["oldest", "new"]);
        std::fs::rename(temp.path().join("kept"), rotated(&path, 1)).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&path), ["oldest", "older"]);
        // A file that is rotated while the files are opened is returned once.
        std::fs::hard_link(rotated(&path, 1), &path).unwrap();
        assert_eq!(read(&path), ["oldest", "older"]);
        std::os::unix::fs::symlink("/etc/passwd", rotated(&path, 3)).unwrap();
        assert!(open_files(&path).is_err(), "a link is not followed");
    }

    #[test]
    fn an_overlong_line_is_one_unreadable_line() {
        let long = format!("{}\n{{\"action\":\"applied\"}}\n", "x".repeat(3 * limits::AUDIT_LINE));
        let mut found = 0;
        let unreadable = search(long.as_bytes(), &AuditFilter::default(), |_, _| {
            found += 1;
            Ok(())
        });
        assert_eq!((unreadable.unwrap(), found), (1, 1));
    }
}
