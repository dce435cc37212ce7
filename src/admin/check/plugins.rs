// SPDX-License-Identifier: Apache-2.0
//! The rows of `check` about plugins: the socket, the pre-installed plugins, and each plugin that
//! is missing, does not respond, is slow, or failed recently.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::show::{ago, milliseconds};
use super::{Daemon, Finding, finding, warning};
use crate::answers::{PluginRow, PluginState, Status};
use crate::clock;
use crate::config::Config;
use crate::files;
use crate::limits;
use crate::plugin::socket::{name_for_install, obstacle};
use crate::plugin::{PluginFile, Unusable, UnusableKind, discover};
use crate::text::counted;

/// Seconds after the daemon's start from which a pre-installed plugin that is not synchronized is
/// reported even if the cause is unknown.
const SETTLED: u64 = 10;

/// Maximum age of a recent failure, in nanoseconds.
pub(super) const RECENT_NANOS: i64 = 600 * 1_000_000_000;

/// Checks the plugin socket. `taken_over`: the command that makes an engine whose own NRI was switched off
/// release the socket.
pub(super) fn socket(config: &Config, running: &Daemon, taken_over: Option<&str>) -> Finding {
    if config.disable_connections {
        return finding("plugin socket", true, "disabled", "");
    }
    let path = config.socket_path.display();
    if running.problem.is_some() {
        // The process that listens on the plugin socket may be the daemon that does not respond.
        let detail = format!("{path}: unknown: the daemon gave no status");
        return warning("plugin socket", detail, "nri-runc nri restart");
    }
    let Some(status) = &running.status else { return socket_alone(config, taken_over) };
    let said = &status.plugin_socket;
    let mut detail = format!("{path}: {said}");
    if status.pass_through {
        detail.push_str("; until then containers are created without plugins");
    }
    if status.pass_through && config.requires_plugins() {
        detail.push_str(", and required plugins are not enforced");
    }
    let listener = status.plugin_socket_state.listener.as_ref();
    let engine = listener.and_then(|listener| listener.engine.as_deref());
    let hint = match (taken_over, engine.and_then(name_for_install)) {
        (Some(command), _) => command.to_owned(),
        (None, Some(engine)) => format!(
            "nri-runc nri install {engine} --take-over-nri, or with --beside; then restart the engine"
        ),
        (None, None) => "free the socket: the daemon retries every few seconds".to_owned(),
    };
    if said == "open"
        && let Some((wrong, hint)) = wrong_file(config)
    {
        return finding("plugin socket", false, wrong, &hint);
    }
    finding("plugin socket", said == "open", detail, &hint)
}

/// Checks whether a daemon could open the socket.
fn socket_alone(config: &Config, taken_over: Option<&str>) -> Finding {
    let path = &config.socket_path;
    if let Some(obstacle) = obstacle(path, &config.host()) {
        let hint = taken_over.map_or_else(|| obstacle.remedy(path), ToOwned::to_owned);
        return finding("plugin socket", false, obstacle.of(path), &hint);
    }
    let folder = path.parent().and_then(|folder| folder.ancestors().find(|folder| folder.exists()));
    if let Some(Err(error)) = folder.map(files::try_write) {
        let hint = "make the folder writable, or set another nri.socket_path";
        return finding("plugin socket", false, error.why(), hint);
    }
    finding("plugin socket", true, path.display().to_string(), "")
}

/// Returns how the socket file at the path of an open socket differs from the configuration, and the fix.
fn wrong_file(config: &Config) -> Option<(String, String)> {
    let path = &config.socket_path;
    let shown = path.display();
    let there = path.symlink_metadata().ok().filter(|there| there.file_type().is_socket());
    let Some(there) = there else {
        let wrong = format!("{shown} was removed or replaced");
        return Some((wrong, "nri-runc nri restart".to_owned()));
    };
    let (mode, wanted) = (there.mode() & 0o777, config.socket_mode);
    if mode != wanted {
        let wrong = format!("{shown} has mode {mode:04o}; nri.socket_mode is {wanted:04o}");
        return Some((wrong, format!("chmod {wanted:o} {shown}")));
    }
    let group = config.socket_gid.filter(|gid| *gid != there.gid())?;
    let wrong = format!("{shown} belongs to group {}; nri.socket_gid is {group}", there.gid());
    Some((wrong, format!("chgrp {group} {shown}")))
}

pub(super) fn rows(config: &Config, running: &Daemon) -> Vec<Finding> {
    let (found, problems) = discover(&config.plugin_path, &config.plugin_config_path);
    let names: Vec<String> = found.iter().map(PluginFile::id).collect();
    let detail = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let mut rows = vec![finding("pre-installed plugins", true, detail, "")];
    rows.extend(folder(&config.plugin_path));
    rows.extend(problems.iter().take(limits::LISTED).map(skipped));
    rows.extend(others_skipped(problems.get(limits::LISTED..).unwrap_or_default()));
    let Some(status) = running.status.as_ref().filter(|status| !status.pass_through) else {
        return rows;
    };
    rows.extend(names.iter().filter_map(|id| launched(id, status, &running.plugins)));
    rows.extend(running.plugins.iter().filter_map(|row| {
        let is_launched = names.contains(&row.id());
        let gone = || departed(row, config).filter(|_| !is_launched);
        connected(row).or_else(gone)
    }));
    rows.extend(absent(status));
    rows
}

/// Reports a file in the plugin directory that cannot be started, or the directory, if it cannot be read. A
/// file that is not meant as a plugin is only a warning.
fn skipped(problem: &Unusable) -> Finding {
    let hint = match problem.kind {
        UnusableKind::Folder => "make the folder readable, or set nri.plugin_path",
        UnusableKind::Plugin => "make its configuration file readable UTF-8 text",
        UnusableKind::NotExecutable => {
            "make it executable (chmod +x), or move it out of the folder"
        }
        UnusableKind::Misnamed => {
            "name it NN-name, with two digits (10-name), or move it out of the folder"
        }
        UnusableKind::Dangling => "restore the link's target, or remove the link",
        UnusableKind::NoPlugin => {
            let hint = "move it out of the folder";
            return warning("pre-installed plugins", problem.to_string(), hint);
        }
    };
    finding("pre-installed plugins", false, problem.to_string(), hint)
}

/// Reports how many more files cannot be used, with the fix of one of them.
fn others_skipped(others: &[Unusable]) -> Option<Finding> {
    let first = others.iter().find(|problem| !matches!(problem.kind, UnusableKind::NoPlugin));
    let row = skipped(first.or_else(|| others.first())?);
    let more = counted(others.len(), "more file");
    let detail = format!("{more} in the plugin folder cannot be used");
    let hint = &row.hint;
    Some(match first {
        Some(_) => finding("pre-installed plugins", false, detail, hint),
        None => warning("pre-installed plugins", detail, hint),
    })
}

/// Reports a configured plugin directory that does not exist; `discover` reports its other faults.
fn folder(path: &Path) -> Option<Finding> {
    let is_usual = path == Config::default().plugin_path;
    let is_missing = path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let detail = format!("none: {} is missing", path.display());
    let hint = "create the folder, or set nri.plugin_path";
    (is_missing && !is_usual).then(|| warning("pre-installed plugins", detail, hint))
}

/// Reports a pre-installed plugin that does not run, or runs an older program or configuration than its files.
fn launched(id: &str, status: &Status, plugins: &[PluginRow]) -> Option<Finding> {
    let is_settled = status.uptime_seconds >= SETTLED;
    let row = plugins.iter().find(|row| row.id() == id);
    let hint = format!("nri-runc nri plugins --logs {id} shows why; correct or reinstall {id}");
    let state = row.map_or("not started", |row| row.state.name());
    if let Some(why) = row.and_then(|row| row.outdated.as_ref()) {
        return Some(finding("pre-installed plugins", false, format!("{id}: {why}"), &hint));
    }
    if state == PluginState::Synchronized.name() {
        return None;
    }
    let mut why = Vec::from_iter(row.and_then(|row| row.start_failure.clone()));
    if why.is_empty()
        && let Some(PluginRow { exit_status: Some(status), last_words, .. }) = row
    {
        why.push(status.clone());
        why.extend(last_words.last().map(|line| format!("its last line: {line}")));
    }
    if why.is_empty() && !is_settled {
        return None;
    }
    why.extend((why.is_empty()).then(|| format!("it is {state}")));
    let detail = format!("{id} is not running: {}", why.join("; "));
    Some(warning("pre-installed plugins", detail, &hint))
}

/// Reports a plugin that does not respond or is slow, or a connected one that failed recently and of whose
/// requests any timed out.
fn connected(row: &PluginRow) -> Option<Finding> {
    let id = row.id();
    if row.unresponsive {
        let detail = format!("{id} does not answer: containers are created without it, or refused");
        return Some(finding("plugins", false, detail, &format!("restart {id}")));
    }
    if let Some(answers) = row.answers.as_ref().filter(|answers| answers.busy_for_an_hour) {
        let (p99, limit) = (milliseconds(answers.p99_ms), milliseconds(answers.limit_ms));
        let detail = format!(
            "{id} has needed more than half of its time limit for an hour: 99% of its answers come \
             within {p99}, its limit is {limit}"
        );
        let hint =
            format!("nri-runc nri top; restart {id}, or raise plugin.{}.request_timeout", row.name);
        return Some(warning("plugins", detail, &hint));
    }
    let is_recent = |at: i64| clock::now().saturating_sub(at) < RECENT_NANOS;
    let failure = row.last_failure.as_ref().filter(|failure| is_recent(failure.at))?;
    if row.state != PluginState::Synchronized || row.timeouts == 0 {
        return None;
    }
    let detail = format!("{id} failed lately; {} ago: {}", ago(failure.at), failure.what);
    Some(warning("plugins", detail, "nri-runc nri plugins"))
}

fn departed(row: &PluginRow, config: &Config) -> Option<Finding> {
    let id = row.id();
    // `access` reports refused connections.
    let is_gone = row.state == PluginState::Gone && !row.refused;
    let at = row.gone_at.filter(|_| is_gone)?;
    let reason = row.reason.as_deref().unwrap_or_default();
    let detail = format!("{id} disconnected {} ago: {reason}", ago(at));
    let hint = match row.launched {
        true => {
            let folder = config.plugin_path.display();
            format!("put {id} back into {folder}, unless it was removed on purpose")
        }
        false => format!("restart {id}, unless it was stopped on purpose"),
    };
    Some(match row.struck {
        true => finding("plugins", false, detail, &hint),
        false => warning("plugins", detail, &hint),
    })
}

fn absent(status: &Status) -> Vec<Finding> {
    let rows = status.absent_plugins.iter().map(|id| {
        let detail =
            format!("{id} was connected before the daemon started, and has not reconnected");
        warning("plugins", detail, &format!("start {id}, unless it was stopped on purpose"))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::AnswerRow;

    #[test]
    fn a_plugin_above_half_its_limit_is_reported_after_an_hour() {
        let row = |busy_for_an_hour: bool| PluginRow {
            index: "10".to_owned(),
            name: "a".to_owned(),
            state: PluginState::Synchronized,
            answers: Some(AnswerRow {
                count: 9,
                p50_ms: 900.0,
                p99_ms: 1681.79,
                limit_ms: 2000.0,
                busy_for_an_hour,
            }),
            ..PluginRow::default()
        };
        assert_eq!(connected(&row(false)), None);
        let finding = connected(&row(true)).unwrap();
        let (detail, hint) = (&finding.detail, &finding.hint);
        assert!(
            detail.contains("10-a has needed more than half of its time limit for an hour"),
            "{detail}"
        );
        assert!(detail.contains("within 1.7s, its limit is 2s"), "{detail}");
        assert!(hint.contains("plugin.a.request_timeout") && finding.ok, "{finding:?}");
    }
}
