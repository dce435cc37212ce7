// SPDX-License-Identifier: Apache-2.0
//! Tables for operators, made from the documents that `--json` prints.

use std::fmt::Write as _;
use std::time::SystemTime;

use rustix::termios::{isatty, tcgetwinsize};
use serde_json::Value;

use crate::audit;
use crate::limits;
use crate::messages;
use crate::text::{age, printable, span};

/// Returns the metrics as the daemon wrote them.
pub(super) fn metrics(document: &Value) -> String {
    document["text"].as_str().unwrap_or_default().to_owned()
}

/// Placeholder for the value of an environment variable (decision D27).
pub(super) const REDACTED: &str = "(hidden; --show-env shows it)";

/// Columns that every terminal has.
const TERMINAL_WIDTH: usize = 80;

/// Stands for the middle of a text.
const LEFT_OUT: &str = "...";

/// Formats a cell: on one line, without characters that control a terminal, as tenants choose
/// names.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Array(list) => list.iter().map(text_of).collect::<Vec<_>>().join(" "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => printable(&value.to_string()),
    }
}

fn text_of(value: &Value) -> String {
    text(value)
}

/// Renders a table whose columns are as wide as their widest word.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths = widths_of(head, &rows.iter().collect::<Vec<_>>());
    let head: Vec<String> = head.iter().map(|word| word.to_uppercase()).collect();
    std::iter::once(&head).chain(rows).map(|row| line_of(row, &widths)).collect()
}

/// Computes the widths of a table's columns.
pub(super) fn widths_of(head: &[&str], rows: &[&Vec<String>]) -> Vec<usize> {
    let width = |(column, word): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        // A longer cell overflows its column; the formatter refuses widths above 65,535.
        cells.chain([word.len()]).max().unwrap_or(0).min(limits::COLUMN)
    };
    head.iter().enumerate().map(width).collect()
}

/// Renders a row of a table, with its line feed.
pub(super) fn line_of(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
}

pub(super) fn rows(document: &Value, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    document.as_array().into_iter().flatten().map(row).collect()
}

/// Adds a line of `status`: a title and its value.
fn line(page: &mut String, title: &str, words: &str) {
    let _infallible = writeln!(page, "{:<16}{words}", format!("{title}:"));
}

/// Renders the page of `status`.
pub(super) fn status(document: &Value) -> String {
    let mut page = String::new();
    let of = |key: &str| text(&document[key]);
    line(&mut page, "version", &format!("{} (NRI {})", of("version"), of("nri_version")));
    let uptime = span(document["uptime_seconds"].as_u64().unwrap_or_default());
    line(&mut page, "daemon", &format!("running for {uptime} (process {})", of("pid")));
    line(&mut page, "switched on", &switched_on(document));
    line(&mut page, "run directory", &of("run_dir"));
    let log = match document["log_failure"].as_str() {
        Some(why) => format!("{} ({})", of("log"), printable(why)),
        None => of("log"),
    };
    line(&mut page, "log", &log);
    line(&mut page, "plugin socket", &socket_with_path(document));
    line(&mut page, "plugins", &of("plugins"));
    line(&mut page, "pods", &of("pods"));
    line(&mut page, "containers", &of("containers"));
    let counts = document["requests"].as_object().into_iter().flatten();
    let counts = counts.map(|(verb, count)| format!("{} {}", printable(verb), text(count)));
    let counts = counts.collect::<Vec<_>>().join(", ");
    line(&mut page, "requests", if counts.is_empty() { "none yet" } else { &counts });
    for (key, words) in [
        ("bypassed", "ran without plugins because the daemon was away"),
        ("found", "recovered after their records were lost; plugin changes unknown"),
    ] {
        let count = document[key].as_u64().unwrap_or_default();
        let words = if count == 0 { "none".to_owned() } else { format!("{count} {words}") };
        line(&mut page, key, &words);
    }
    troubles(&mut page, document);
    page
}

/// Adds the lines of `status` about present and past failures.
fn troubles(page: &mut String, document: &Value) {
    for (key, title) in [("set_aside", "set aside"), ("unwritten", "unwritten")] {
        for name in document[key].as_array().into_iter().flatten() {
            line(page, title, &text(name));
        }
    }
    if let Some(count) = document["records_refused"]["count"].as_u64() {
        let why = text(&document["records_refused"]["why"]);
        line(page, "unwritten", &format!("records of {count} failed requests: {why}"));
    }
    for plugin in document["outdated_plugins"].as_array().into_iter().flatten() {
        line(page, "outdated", &format!("{}: {}", text(&plugin["plugin"]), text(&plugin["why"])));
    }
    for plugin in document["absent_plugins"].as_array().into_iter().flatten() {
        line(page, "absent", &format!("{} took part before and has not returned", text(plugin)));
    }
    if let Some(why) = document["audit"]["failure"].as_str() {
        line(page, "audit log", &printable(why));
    }
    for missing in document["missing"].as_array().into_iter().flatten() {
        line(
            page,
            "not read",
            &format!("{}: {}", text(&missing["engine"]), text(&missing["what"])),
        );
    }
    for failure in document["failures"].as_array().into_iter().flatten() {
        let times = failure["count"].as_u64().filter(|count| *count > 1);
        let times = times.map_or_else(String::new, |count| format!(" ({count} times)"));
        line(
            page,
            "failure",
            &format!(
                "{} ago: {}{times}",
                ago(&failure["at"]),
                messages::with_code(&text(&failure["what"]))
            ),
        );
    }
}

/// Describes whether plugins can connect, and where: a daemon keeps the path of its start.
fn socket_with_path(document: &Value) -> String {
    let (state, path) =
        (text(&document["plugin_socket"]), text(&document["plugin_socket_state"]["path"]));
    let until = match document["pass_through"] == true {
        true => "; until then containers are created unchanged",
        false => "",
    };
    if path == "-" || state.contains(&path) {
        return format!("{state}{until}");
    }
    format!("{state}{until} ({path})")
}

fn switched_on(document: &Value) -> String {
    match document["disabled_by"].as_str() {
        None => "yes".to_owned(),
        Some(by) => {
            format!("NO, disabled by {}: every command goes straight to the runtime", printable(by))
        }
    }
}

/// Formats the age of a time in nanoseconds.
pub(super) fn ago(at: &Value) -> String {
    age(at.as_i64().unwrap_or_default(), SystemTime::now())
}

/// Returns a line below `plugins`, if the socket is not open.
pub(super) fn plugin_socket(status: &Value) -> String {
    match text(&status["plugin_socket"]) {
        open if open == "open" => String::new(),
        why => format!("plugin socket: {why}\n"),
    }
}

/// Lists the required plugins that are not connected, also if they never were.
pub(super) fn missing_plugins(status: &Value) -> String {
    let mut page = String::new();
    if status["pass_through"] == true || status["disabled"] == true {
        return page;
    }
    for row in status["required"].as_array().into_iter().flatten() {
        if row["connected"] != true {
            let _infallible = writeln!(
                page,
                "{}: required but not connected: creates are refused, except in exempt namespaces",
                text(&row["plugin"])
            );
        }
    }
    page
}

pub(super) const PLUGINS_HEAD: [&str; 6] =
    ["plugin", "state", "pid", "requests", "failures", "on failure"];

/// Returns a row of `plugins`.
pub(super) fn plugin_row(plugin: &Value) -> Vec<String> {
    vec![
        plugin_id(plugin),
        text(&plugin["state"]),
        text(&plugin["pid"]),
        text(&plugin["requests"]),
        text(&plugin["failures"]),
        policy(plugin, "on_failure", "on_failure_from"),
    ]
}

/// Formats how long a plugin took to answer, and its limit.
fn answer_times(answers: &Value) -> Option<String> {
    let time = |member: &str| Some(milliseconds(answers[member].as_f64()?));
    let (p50, p99, limit) = (time("p50_ms")?, time("p99_ms")?, time("limit_ms")?);
    Some(format!("answers within {p50} (p50), {p99} (p99), limit {limit}"))
}

/// Formats the limits of a plugin's requests. Without one for the whole Synchronize, each of its requests has
/// that of any other.
fn time_limits(limits: &Value) -> Option<String> {
    let time = |member: &str| Some(milliseconds(limits[member].as_f64()?));
    let whole = time("synchronize_ms").map(|time| format!(", {time} for Synchronize"));
    Some(format!("{} a request{}", time("request_ms")?, whole.unwrap_or_default()))
}

/// Formats a time with two digits.
pub(super) fn milliseconds(millis: f64) -> String {
    match millis {
        _ if millis >= 9950.0 => format!("{:.0}s", millis / 1000.0),
        _ if millis >= 1000.0 && millis % 1000.0 == 0.0 => format!("{:.0}s", millis / 1000.0),
        _ if millis >= 1000.0 => format!("{:.1}s", millis / 1000.0),
        _ if millis >= 9.95 => format!("{millis:.0}ms"),
        _ => format!("{millis:.1}ms"),
    }
}

/// Formats how far a Synchronize is; requests are counted where it has several.
fn synchronizing(progress: &Value) -> Option<String> {
    let time = |member: &str| Some(milliseconds(progress[member].as_f64()?));
    let (passed, limit) = (time("for_ms")?, time("limit_ms")?);
    let answered = progress["answered"].as_u64().filter(|count| *count > 0);
    let answered = answered.map(|count| format!(", {count} parts answered")).unwrap_or_default();
    Some(format!("is being synchronized for {passed}, limit {limit}{answered}"))
}

/// Renders the page of `plugins`; the wide one adds events, strikes and NRI versions below the
/// table.
pub(super) fn plugins(document: &Value, wide: bool) -> String {
    let mut page = table(&PLUGINS_HEAD, &rows(document, plugin_row));
    for plugin in document.as_array().into_iter().flatten() {
        let (id, failure) = (plugin_id(plugin), &plugin["last_failure"]);
        if wide {
            let strikes = policy(plugin, "strikes", "strikes_from");
            let version = text(&plugin["nri_version"]);
            let version = if version.is_empty() { "-" } else { &version };
            let since = match plugin["connected_at"].as_i64().filter(|at| *at > 0) {
                Some(_) => format!(", connected {} ago", ago(&plugin["connected_at"])),
                None => String::new(),
            };
            let _infallible =
                writeln!(page, "{id}: strikes {strikes}, NRI version {version}{since}");
            let limits = time_limits(&plugin["time_limits"]);
            limits.iter().for_each(|limits| {
                page.push_str(&wrapped(&format!("{id}: time limits"), limits));
            });
            page.push_str(&wrapped(&format!("{id}: events"), &text(&plugin["events"])));
        }
        if plugin["deprecated_events"].as_array().is_some_and(|events| !events.is_empty()) {
            let events = text(&plugin["deprecated_events"]);
            page.push_str(&wrapped(&format!("{id}: takes as deprecated StateChange"), &events));
        }
        let times = [synchronizing(&plugin["synchronizing"]), answer_times(&plugin["answers"])];
        times.iter().flatten().for_each(|line| page.push_str(&format!("{id}: {line}\n")));
        if failure.is_object() {
            let (ago, what) = (ago(&failure["at"]), text(&failure["what"]));
            let _infallible = writeln!(page, "{id}: last failure {ago} ago: {what}");
        }
        if plugin["unresponsive"] == true {
            let _infallible = writeln!(page, "{id}: its last requests all timed out");
        }
        if let Some(why) = plugin["outdated"].as_str() {
            let _infallible = writeln!(page, "{id}: {}", printable(why));
        }
        if plugin["gone_at"].is_number() {
            let (ago, why) = (ago(&plugin["gone_at"]), text(&plugin["reason"]));
            let _infallible = writeln!(page, "{id}: disconnected {ago} ago: {why}");
        }
        if plugin["state"] != "synchronized" && plugin["exit_status"].is_null() {
            let why = plugin["start_failure"].as_str().map(printable);
            why.iter().for_each(|why| page.push_str(&format!("{id}: {why}\n")));
        }
        if plugin["state"] == "gone" && !plugin["exit_status"].is_null() {
            let _infallible = write!(page, "{id}: {}", text(&plugin["exit_status"]));
            if let Some(words) = plugin["last_words"].as_array().and_then(|lines| lines.last()) {
                let _infallible = write!(page, "; its last line: {}", text(words));
            }
            let _infallible = writeln!(page, " (restarts: {})", text(&plugin["restarts"]));
        }
    }
    page
}

/// Renders `plugins --logs`: the lines of the present run and of the one before, each with its
/// time.
pub(super) fn plugin_output(document: &Value) -> String {
    let mut page = String::new();
    let id = plugin_id(document);
    for run in document["runs"].as_array().into_iter().flatten() {
        for line in run["lines"].as_array().into_iter().flatten() {
            let time: String = text(&line["time"]).chars().take(SECONDS).collect();
            let _infallible = writeln!(page, "{time}Z  {}", text(&line["line"]));
        }
        if !run["exit_status"].is_null() {
            let _infallible = writeln!(page, "({id}: {})", text(&run["exit_status"]));
        }
    }
    if page.is_empty() { format!("{id} has printed nothing\n") } else { page }
}

/// The characters of a time up to its seconds.
const SECONDS: usize = 19;

/// Formats a value of a plugin's failure policy, and its origin.
fn policy(plugin: &Value, key: &str, origin: &str) -> String {
    let policy = &plugin["failure_policy"];
    match text(&policy[key]) {
        none if none == "-" => none,
        value => format!("{value} ({})", text(&policy[origin])),
    }
}

/// Wraps words to the terminal's width, indented after the first line.
pub(super) fn wrapped(title: &str, words: &str) -> String {
    lines_of(title, words, TERMINAL_WIDTH, "    ").join("\n") + "\n"
}

/// The words in lines of this width, after `title` in the first one and indented in the others; a word
/// that is longer has a line of its own.
pub(super) fn lines_of(title: &str, words: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines = vec![title.to_owned()];
    for word in words.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        let is_full = line.chars().count() + 1 + word.chars().count() > width;
        match line.is_empty() {
            true => line.push_str(word),
            false if is_full => lines.push(format!("{indent}{word}")),
            false => line.extend([" ", word]),
        }
    }
    lines
}

/// The width of the screen, if a person reads the output at one; whole words go into a pipe.
pub(super) fn screen() -> Option<usize> {
    let out = std::io::stdout();
    if !isatty(&out) {
        return None;
    }
    let width = tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    Some(width.max(TERMINAL_WIDTH))
}

/// Shortens the cells of these columns, always those of the widest one, until the table fits the screen.
pub(super) fn fit(
    head: &[&str],
    rows: &mut [Vec<String>],
    columns: &[usize],
    screen: Option<usize>,
) {
    let mut widths = widths_of(head, &rows.iter().collect::<Vec<_>>());
    let gaps = 2 * widths.len().saturating_sub(1);
    let screen = screen.unwrap_or(usize::MAX);
    while widths.iter().sum::<usize>() + gaps > screen {
        let widest = columns.iter().copied().max_by_key(|column| widths.get(*column));
        let Some(width) = widest.and_then(|column| widths.get_mut(column)) else { return };
        if *width <= limits::SHORTEST_COLUMN {
            return;
        }
        *width -= 1;
    }
    for row in rows {
        for column in columns {
            if let (Some(cell), Some(width)) = (row.get_mut(*column), widths.get(*column)) {
                *cell = shortened(cell, *width);
            }
        }
    }
}

/// The text in at most so many characters; of a longer one the middle is left out, since names differ at
/// their ends.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(LEFT_OUT.len());
    let begin: String = text.chars().take(kept / 2).collect();
    let end: String = text.chars().skip(count - (kept - kept / 2)).collect();
    format!("{begin}{LEFT_OUT}{end}")
}

/// Formats `NN-name`.
pub(super) fn plugin_id(plugin: &Value) -> String {
    match (text(&plugin["index"]), text(&plugin["name"])) {
        (index, name) if index.is_empty() && name.is_empty() => "(not registered)".to_owned(),
        (index, name) => format!("{index}-{name}"),
    }
}

/// Formats NAMESPACE/NAME, or the name alone without a namespace.
pub(super) fn name_of_pod(namespace: &Value, name: &Value) -> String {
    match text(namespace) {
        none if none.is_empty() || none == "-" => text(name),
        namespace => format!("{namespace}/{}", text(name)),
    }
}

/// Renders the page of `check`.
pub(super) fn check(document: &Value) -> String {
    let mut lines = Vec::new();
    for finding in document.as_array().into_iter().flatten() {
        let mark = match (finding["ok"] == true, finding["warning"] == true) {
            (false, _) => "NO",
            (true, true) => "!!",
            (true, false) => "ok",
        };
        lines.push(vec![mark.to_owned(), text(&finding["check"]), text(&finding["detail"])]);
        // Below its row: as a column it would make every line longer than a terminal.
        if let Some(hint) = finding["hint"].as_str().filter(|hint| !hint.is_empty()) {
            lines.push(vec![String::new(), String::new(), format!("fix: {}", printable(hint))]);
        }
    }
    table(&["", "check", "detail"], &lines)
}

/// Hides the values of environment variables, also those of hooks.
pub(super) fn redact(document: &mut Value) {
    for change in document["changes"].as_array_mut().into_iter().flatten() {
        let field = change["field"].as_str().unwrap_or_default().to_owned();
        for side in ["before", "after"] {
            audit::redact(&field, &mut change[side], REDACTED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn environment_values_are_hidden_and_nothing_else() {
        let mut document = json!({"changes": [
            {"field": "process.env[TOKEN]", "before": null, "after": "secret"},
            {"field": "annotations[a]", "before": null, "after": "b"}]});
        redact(&mut document);
        assert!(!document.to_string().contains("secret"));
        assert_eq!(document["changes"][0]["before"], Value::Null);
        assert_eq!(document["changes"][1]["after"], "b");
    }

    #[test]
    fn environment_values_of_hooks_are_hidden_but_names_are_shown() {
        let hook = json!({"path": "/bin/h", "args": ["h", "A=b"], "env": ["TOKEN=secret"]});
        let mut document = json!({"changes": [
            {"field": "hooks.prestart", "before": [hook], "after": [hook, hook]}]});
        redact(&mut document);
        let text = document.to_string();
        assert!(!text.contains("secret") && text.contains("TOKEN=(hidden"), "{text}");
        assert!(text.contains("/bin/h") && text.contains("A=b"), "{text}");
    }

    #[test]
    fn plugins_lists_a_required_plugin_that_never_connected() {
        let status = json!({"required": [
            {"plugin": "10-there", "connected": true}, {"plugin": "20-guard", "connected": false}]});
        let page = missing_plugins(&status);
        assert!(page.starts_with("20-guard: required but not connected"), "{page}");
        assert_eq!(page.lines().count(), 1);
        let mut passing = status;
        passing["pass_through"] = json!(true);
        assert_eq!(missing_plugins(&passing), "");
    }

    #[test]
    fn the_wide_list_of_plugins_fits_a_terminal() {
        let events = ["RunPodSandbox", "CreateContainer", "PostCreateContainer", "StopContainer"];
        let events = [events, events].concat();
        let document = json!([{"index": "10", "name": "resource-defaults", "state": "ready",
            "pid": 7, "requests": 12, "failures": 0, "nri_version": "v0.12.5",
            "events": events,
            "failure_policy": {"on_failure": "refuse", "on_failure_from": "configuration",
                "strikes": 1, "strikes_from": "default"},
            "time_limits": {"request_ms": 2000.0, "synchronize_ms": 90_000.0}}]);
        let page = plugins(&document, true);
        assert!(page.lines().all(|line| line.len() <= TERMINAL_WIDTH), "{page}");
        assert_eq!(page.matches("PostCreateContainer").count(), 2, "{page}");
        assert!(page.contains("strikes 1 (default), NRI version v0.12.5"), "{page}");
        let limits = "10-resource-defaults: time limits 2s a request, 90s for Synchronize\n";
        assert!(page.contains(limits), "{page}");
        let only = time_limits(&json!({"request_ms": 500.0, "synchronize_ms": null}));
        assert_eq!(only.unwrap(), "500ms a request");
        assert_eq!(time_limits(&Value::Null), None, "it is not registered, or the daemon older");
    }

    #[test]
    fn a_cell_of_any_length_keeps_its_row_and_widens_no_other() {
        let long = "x".repeat(70_000);
        let rows = [(&*long, "a"), ("short", "b")];
        let rows = rows.map(|(name, state)| vec![name.to_owned(), state.to_owned()]);
        let page = table(&["name", "state"], &rows);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], format!("{long}  a"));
        assert_eq!(lines[2].len(), limits::COLUMN + 3, "{}", lines[2]);
    }

    #[test]
    fn words_are_wrapped_between_them_and_a_longer_one_stays_whole() {
        let lines = |words: &str, width| lines_of("", words, width, "");
        assert_eq!(lines("a bc def", 4), ["a bc", "def"]);
        assert_eq!(lines("a", usize::MAX), ["a"]);
        assert_eq!(lines("", 0), [""]);
        assert_eq!(lines("long words stay", 1), ["long", "words", "stay"]);
        assert_eq!(lines_of("  of:", "a bcd", 7, "  "), ["  of: a", "  bcd"]);
    }

    #[test]
    fn a_table_fits_the_screen_and_keeps_both_ends_of_its_names() {
        let head = ["name", "state", "id"];
        let long = "kube-system/coredns-5d78c9869d-x2xk9".repeat(2);
        let rows = || vec![vec![long.clone(), "ready".to_owned(), "short".to_owned()]];
        let (mut cut, mut whole) = (rows(), rows());
        fit(&head, &mut cut, &[0, 2], Some(40));
        let page = table(&head, &cut);
        assert!(page.lines().all(|line| line.chars().count() <= 40), "{page}");
        assert!(cut[0][0].starts_with("kube-system") && cut[0][0].ends_with("-x2xk9"), "{page}");
        assert_eq!(cut[0][2], "short", "the widest column alone is cut");
        fit(&head, &mut whole, &[0, 2], None);
        assert_eq!(whole, rows(), "a pipe gets whole names");
        // A screen on which nothing fits.
        fit(&head, &mut cut, &[0, 2], Some(1));
        assert_eq!(shortened("\u{e4}bcdefgh", 5), "\u{e4}...h");
        assert_eq!((shortened("abc", 3).as_str(), shortened("abcd", 0).as_str()), ("abc", "..."));
    }

    #[test]
    fn an_unexpected_document_is_an_empty_table() {
        assert_eq!(plugins(&json!({"no": "list"}), false).lines().count(), 1);
    }
}
