// SPDX-License-Identifier: Apache-2.0
//! `plugins` lists connected, connecting and launched plugins, and plugins that recently
//! disconnected or were refused; with `--logs` it prints the output of a launched plugin.

use clap::Args;
use serde_json::json;

use crate::answers::{
    AdminRequest, AnswerRow, PluginOutput, PluginRow, PluginState, Status, SynchronizeRow,
    TimeLimits,
};
use crate::config::Config;
use crate::error::Result;
use crate::text::printable;

use super::output::{Answer, Format, ListOutput, print_page, tell};
use super::show::{ago, fit, or_dash, screen, table, wrapped};
use super::watch::{ListRow, WatchedList, watch};
use super::{ask, ask_status, paint, show};

/// The arguments of `plugins`.
#[derive(Debug, Args)]
pub(super) struct Plugins {
    /// Show a launched plugin's output (NAME may be a prefix).
    #[arg(long, value_name = "NAME")]
    logs: Option<String>,
    /// List, then print changes until Ctrl-C.
    #[arg(short, long, conflicts_with = "logs")]
    watch: bool,
    #[command(flatten)]
    pub(super) output: ListOutput,
}

/// Lists the plugins, or prints the output of one.
pub(super) fn plugins(config: &Config, wanted: &Plugins, format: Format) -> Result<u8> {
    if let Some(name) = &wanted.logs {
        return tell(format, &output_of(config, name)?);
    }
    let request = AdminRequest::Plugins;
    if wanted.watch {
        let list = WatchedList {
            request,
            head: HEAD.to_vec(),
            rows: &|plugins: Vec<_>| Ok(watched(&plugins)),
            gone: None,
        };
        return watch(config, &list, format);
    }
    let plugins: Vec<PluginRow> = ask(config, &request)?;
    match format {
        Format::Name => print_page(&names(&plugins), paint::plain),
        Format::Json | Format::Yaml => tell(format, &plugins),
        Format::Page | Format::Wide | Format::Junit => {
            let status = ask_status(config)?;
            let page = plugins.page(format) + &missing_plugins(&status) + &plugin_socket(&status);
            print_page(&page, paint::states)
        }
    }
}

impl Answer for Vec<PluginRow> {
    fn page(&self, format: Format) -> String {
        page(self, format == Format::Wide, screen().filter(|_| format == Format::Page))
    }
}

/// Asks for the output of a launched plugin.
pub(super) fn output_of(config: &Config, plugin: &str) -> Result<PluginOutput> {
    ask(config, &AdminRequest::PluginOutput { plugin: plugin.to_owned() })
}

/// Length of a time without fractions of a second, in characters.
const SECONDS: usize = 19;

impl Answer for PluginOutput {
    /// Formats the lines of the previous run and of the current one, each with its time.
    fn page(&self, _: Format) -> String {
        let mut page = String::new();
        let id = printable(&format!("{}-{}", self.index, self.name));
        for run in &self.runs {
            for line in &run.lines {
                let time: String =
                    line.time.iter().flat_map(|time| time.chars()).take(SECONDS).collect();
                page.push_str(&format!("{time}Z  {}\n", printable(&line.line)));
            }
            let ended = run.exit_status.as_deref().map(printable);
            page.extend(ended.map(|status| format!("({id}: {status})\n")));
        }
        if page.is_empty() { format!("{id} has printed nothing\n") } else { page }
    }
}

const HEAD: [&str; 6] = ["plugin", "state", "pid", "requests", "failures", "on failure"];

/// The indexes of columns of names, which are shortened if the list is wider than the screen.
const SHORTENED: [usize; 1] = [0];

fn cells(plugin: &PluginRow) -> Vec<String> {
    let policy = plugin.failure_policy.as_ref();
    let policy =
        policy.map(|policy| format!("{} ({})", policy.on_failure.name(), policy.on_failure_from));
    vec![
        shown_id(plugin),
        plugin.state.name().to_owned(),
        or_dash(plugin.pid),
        plugin.requests.to_string(),
        plugin.failures.to_string(),
        or_dash(policy),
    ]
}

fn shown_id(plugin: &PluginRow) -> String {
    match plugin.index.is_empty() && plugin.name.is_empty() {
        true => "(not registered)".to_owned(),
        false => printable(&plugin.id()),
    }
}

/// Renders the page; if `wide`, with strikes, NRI versions, time limits and events below the table.
fn page(plugins: &[PluginRow], wide: bool, screen: Option<usize>) -> String {
    let mut rows: Vec<_> = plugins.iter().map(cells).collect();
    fit(&HEAD, &mut rows, &SHORTENED, screen);
    let mut page = table(&HEAD, &rows);
    for plugin in plugins {
        let id = shown_id(plugin);
        let (title, about) = (|what: &str| format!("{id}: {what}"), about(plugin));
        if wide {
            page.push_str(&format!("{id}: {}\n", terms(plugin)));
            let limits = plugin.time_limits.as_ref().map(time_limits);
            limits.iter().for_each(|limits| page.push_str(&wrapped(&title("time limits"), limits)));
            page.push_str(&wrapped(&title("events"), &printable(&plugin.events.join(" "))));
        }
        if !plugin.deprecated_events.is_empty() {
            let events = printable(&plugin.deprecated_events.join(" "));
            page.push_str(&wrapped(&title("receives as StateChange (deprecated)"), &events));
        }
        about.iter().for_each(|line| page.push_str(&format!("{id}: {line}\n")));
    }
    page
}

/// Describes a plugin's strikes, its NRI version, and how long it has been connected.
fn terms(plugin: &PluginRow) -> String {
    let strikes = plugin.failure_policy.as_ref();
    let strikes = strikes.map(|policy| format!("{} ({})", policy.strikes, policy.strikes_from));
    let version = Some(&plugin.nri_version).filter(|version| !version.is_empty());
    let since = match plugin.connected_at {
        at if at > 0 => format!(", connected {} ago", ago(at)),
        _ => String::new(),
    };
    format!("strikes {}, NRI version {}{since}", or_dash(strikes), or_dash(version))
}

/// Returns lines about a plugin: its Synchronize, response times and failures, an outdated program or
/// configuration, and why it disconnected, did not start, or exited.
fn about(plugin: &PluginRow) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(plugin.synchronizing.as_ref().map(synchronizing));
    lines.extend(plugin.answers.as_ref().map(answer_times));
    if let Some(failure) = &plugin.last_failure {
        lines.push(format!("last failure {} ago: {}", ago(failure.at), printable(&failure.what)));
    }
    if plugin.unresponsive {
        lines.push("its last requests all timed out".to_owned());
    }
    lines.extend(plugin.outdated.as_deref().map(printable));
    if let Some(at) = plugin.gone_at {
        lines.push(format!("disconnected {} ago: {}", ago(at), or_dash(plugin.reason.as_ref())));
    }
    match &plugin.exit_status {
        None if plugin.state != PluginState::Synchronized => {
            lines.extend(plugin.start_failure.as_deref().map(printable));
        }
        Some(status) if plugin.state == PluginState::Gone => {
            let last = plugin.last_words.last();
            let last = last.map(|words| format!("; its last line: {}", printable(words)));
            let (status, last) = (printable(status), last.unwrap_or_default());
            lines.push(format!("{status}{last} (restarts: {})", plugin.restarts));
        }
        None | Some(_) => {}
    }
    lines
}

fn answer_times(answers: &AnswerRow) -> String {
    let [p50, p99, limit] =
        [answers.p50_ms, answers.p99_ms, answers.limit_ms].map(show::milliseconds);
    format!("answers within {p50} (p50), {p99} (p99), limit {limit}")
}

/// Formats the time limits of a plugin's requests. Without `sync_timeout`, each request of a
/// Synchronize has the usual limit.
fn time_limits(limits: &TimeLimits) -> String {
    let whole = limits.synchronize_ms.map(show::milliseconds);
    let whole = whole.map(|time| format!(", {time} for Synchronize")).unwrap_or_default();
    format!("{} a request{whole}", show::milliseconds(limits.request_ms))
}

fn synchronizing(progress: &SynchronizeRow) -> String {
    let [passed, limit] = [progress.for_ms, progress.limit_ms].map(show::milliseconds);
    let answered = match progress.answered {
        0 => String::new(),
        count => format!(", {count} parts answered"),
    };
    format!("is being synchronized for {passed}, limit {limit}{answered}")
}

/// Returns a line to print below the list if the socket is not open.
fn plugin_socket(status: &Status) -> String {
    match status.plugin_socket.as_str() {
        "open" => String::new(),
        why => format!("plugin socket: {}\n", printable(why)),
    }
}

/// Lists the required plugins that are not connected now, even if they have never connected.
fn missing_plugins(status: &Status) -> String {
    let line = |plugin: &str| {
        let plugin = printable(plugin);
        format!(
            "{plugin}: required but not connected: creates are refused, except in exempt namespaces\n"
        )
    };
    status.missing_plugins().map(line).collect()
}

/// Lists the names of connected plugins; if two connections share a name during a replacement, only
/// once.
fn names(plugins: &[PluginRow]) -> String {
    let is_connected = |row: &&PluginRow| {
        matches!(row.state, PluginState::Synchronized | PluginState::Synchronizing)
    };
    let connected = plugins.iter().filter(is_connected);
    let mut names: Vec<String> = connected.map(|row| shown_id(row) + "\n").collect();
    names.dedup();
    names.concat()
}

/// Returns the rows to watch. Request counts are not compared, because they change continuously.
fn watched(plugins: &[PluginRow]) -> Vec<ListRow> {
    let mut rows: Vec<ListRow> = Vec::new();
    for row in plugins {
        let name = shown_id(row);
        let same = rows.iter().filter(|other| other.name == name).count();
        let compared = (row.state.name(), row.pid, row.failures, &row.exit_status, row.restarts);
        rows.push(ListRow {
            key: format!("{name} {same}"),
            compared: format!("{compared:?}"),
            cells: cells(row),
            name,
            document: json!(row),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use crate::config::OnFailure;

    use super::*;
    use crate::answers::{PolicyRow, RequiredPlugin};

    fn row(name: &str, state: PluginState, pid: i32) -> PluginRow {
        PluginRow {
            index: "10".to_owned(),
            name: name.to_owned(),
            state,
            pid: Some(pid),
            ..PluginRow::default()
        }
    }

    #[test]
    fn each_connected_plugin_is_named_once() {
        let list = [
            row("a", PluginState::Synchronized, 1),
            row("a", PluginState::Synchronizing, 2),
            row("b", PluginState::Gone, 3),
            row("", PluginState::Registering, 4),
            row("c\nforged", PluginState::Synchronized, 5),
        ];
        assert_eq!(names(&list), "10-a\n10-c\\nforged\n");
    }

    #[test]
    fn each_process_has_a_row_and_a_new_count_is_no_change() {
        let rows = |rows: &[PluginRow]| watched(rows);
        let one = row("a", PluginState::Synchronized, 1);
        let both = rows(&[one.clone(), row("a", PluginState::Synchronizing, 2)]);
        assert_ne!(both[0].key, both[1].key);
        let more = PluginRow { requests: 100, ..one };
        assert_eq!(rows(&[more])[0].compared, both[0].compared);
        assert_ne!(rows(&[row("a", PluginState::Gone, 1)])[0].compared, both[0].compared);
    }

    #[test]
    fn plugins_lists_a_required_plugin_that_never_connected() {
        let required = [("10-there", true), ("20-guard", false)]
            .map(|(plugin, connected)| RequiredPlugin { connected, plugin: plugin.to_owned() });
        let status = Status { required: required.to_vec(), ..Status::default() };
        let page = missing_plugins(&status);
        assert!(page.starts_with("20-guard: required but not connected"), "{page}");
        assert_eq!(page.lines().count(), 1);
        assert_eq!(missing_plugins(&Status { pass_through: true, ..status }), "");
    }

    #[test]
    fn no_line_of_the_list_is_longer_than_a_terminal() {
        let events = ["RunPodSandbox", "CreateContainer", "PostCreateContainer", "StopContainer"];
        let limits = TimeLimits { request_ms: 2000.0, synchronize_ms: Some(90_000.0) };
        let policy = PolicyRow {
            on_failure: OnFailure::Refuse,
            on_failure_from: "configuration".to_owned(),
            strikes: 1,
            strikes_from: "default".to_owned(),
        };
        let plugin = PluginRow {
            nri_version: "v0.12.5".to_owned(),
            events: [events, events].concat().into_iter().map(str::to_owned).collect(),
            failure_policy: Some(policy),
            time_limits: Some(limits),
            ..row("resource-defaults", PluginState::Synchronized, 7)
        };
        let page = page(&[plugin], true, Some(show::TERMINAL_WIDTH));
        assert!(page.lines().all(|line| line.len() <= show::TERMINAL_WIDTH), "{page}");
        assert_eq!(page.matches("PostCreateContainer").count(), 2, "{page}");
        assert!(page.contains("strikes 1 (default), NRI version v0.12.5"), "{page}");
        assert!(page.contains("\n10-reso...efaults  synchronized  7 "), "{page}");
        let limits = "10-resource-defaults: time limits 2s a request, 90s for Synchronize\n";
        assert!(page.contains(limits), "{page}");
        let only = TimeLimits { request_ms: 500.0, synchronize_ms: None };
        assert_eq!(time_limits(&only), "500ms a request");
    }
}
