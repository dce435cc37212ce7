// SPDX-License-Identifier: Apache-2.0
//! Tables for people, from the very documents that `--json` prints.

use std::fmt::Write as _;

use serde_json::Value;

use crate::text::printable;

/// Stands for the value of an environment variable (decision D27).
pub(super) const REDACTED: &str = "(hidden; --show-env shows it)";

/// A cell: whatever a tenant called its things stays on one line and is no command to a terminal.
fn text(value: &Value) -> String {
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

/// Columns as wide as their widest word.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let head: Vec<String> = head.iter().map(|word| word.to_uppercase()).collect();
    let mut page = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:<w$}", w = width(column)));
        let line = cells.collect::<Vec<_>>().join("  ");
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page
}

fn rows(document: &Value, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    document.as_array().into_iter().flatten().map(row).collect()
}

/// `status`.
pub(super) fn status(document: &Value) -> String {
    let mut page = String::new();
    for key in [
        "version",
        "nri_version",
        "pid",
        "run_dir",
        "uptime_seconds",
        "plugin_socket",
        "plugins",
        "pods",
        "containers",
        "bypassed",
        "found",
        "requests",
    ] {
        let _infallible = writeln!(page, "{key:<16}{}", text(&document[key]));
    }
    for (key, title) in [("set_aside", "set aside"), ("unwritten", "unwritten")] {
        for name in document[key].as_array().into_iter().flatten() {
            let _infallible = writeln!(page, "{title:<16}{}", text(name));
        }
    }
    for failure in document["failures"].as_array().into_iter().flatten() {
        let _infallible = writeln!(page, "failure         {}", text(&failure["what"]));
    }
    page
}

/// One line below `plugins`, where the socket is not open.
pub(super) fn plugin_socket(status: &Value) -> String {
    match text(&status["plugin_socket"]) {
        open if open == "open" => String::new(),
        why => format!("plugin socket: {why}\n"),
    }
}

/// `plugins`.
pub(super) fn plugins(document: &Value) -> String {
    let rows = rows(document, |plugin| {
        vec![
            format!("{}-{}", text(&plugin["index"]), text(&plugin["name"])),
            text(&plugin["state"]),
            text(&plugin["pid"]),
            text(&plugin["requests"]),
            text(&plugin["timeouts"]),
            text(&plugin["events"]),
        ]
    });
    table(&["plugin", "state", "pid", "requests", "timeouts", "events"], &rows)
}

/// `pods`.
pub(super) fn pods(document: &Value) -> String {
    let mut lines = Vec::new();
    for pod in document.as_array().into_iter().flatten() {
        let name = format!("{}/{}", text(&pod["namespace"]), text(&pod["name"]));
        lines.push(vec![name, text(&pod["state"]), text(&pod["engine"]), text(&pod["id"])]);
        for container in pod["containers"].as_array().into_iter().flatten() {
            let mark = if container["found"] == true { " (found again)" } else { "" };
            let name = format!("  {}{mark}", text(&container["name"]));
            let pid = format!("pid {}", text(&container["pid"]));
            lines.push(vec![name, text(&container["state"]), pid, text(&container["id"])]);
        }
    }
    table(&["name", "state", "engine", "id"], &lines)
}

/// `explain`.
pub(super) fn explain(document: &Value) -> String {
    let mut page = format!(
        "{} ({}), {} in pod {}\n",
        text(&document["id"]),
        text(&document["name"]),
        text(&document["state"]),
        text(&document["pod"])
    );
    let changes = rows(&document["changes"], |change| {
        vec![
            text(&change["plugin"]),
            text(&change["field"]),
            text(&change["before"]),
            text(&change["after"]),
        ]
    });
    if document["found"] == true {
        page.push_str("found again, owners unknown\n");
    }
    if changes.is_empty() && document["found"] == true {
        page.push_str("what plugins had changed is not known\n");
    } else if changes.is_empty() {
        page.push_str("no plugin changed anything\n");
    } else {
        page.push_str(&table(&["plugin", "field", "before", "after"], &changes));
    }
    for refused in document["refused"].as_array().into_iter().flatten() {
        let _infallible = writeln!(page, "refused: {}", text(refused));
    }
    for skipped in document["skipped"].as_array().into_iter().flatten() {
        let _infallible =
            writeln!(page, "skipped: {} {}", text(&skipped["plugin"]), text(&skipped["reason"]));
    }
    page
}

/// `check`.
pub(super) fn check(document: &Value) -> String {
    let rows = rows(document, |finding| {
        let mark = match (finding["ok"] == true, finding["warning"] == true) {
            (false, _) => "NO",
            (true, true) => "!!",
            (true, false) => "ok",
        };
        vec![
            mark.to_owned(),
            text(&finding["check"]),
            text(&finding["detail"]),
            text(&finding["hint"]),
        ]
    });
    table(&["", "check", "detail", "hint"], &rows)
}

/// Hides the values of environment variables, those of hooks too.
pub(super) fn redact(document: &mut Value) {
    for change in document["changes"].as_array_mut().into_iter().flatten() {
        let is_env = change["field"].as_str().is_some_and(|field| field.starts_with("process.env"));
        for side in ["before", "after"] {
            if is_env && !change[side].is_null() {
                change[side] = Value::from(REDACTED);
            } else {
                redact_inside(&mut change[side]);
            }
        }
    }
}

/// A hook is shown whole, and has `"env": ["NAME=value"]`.
fn redact_inside(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(redact_inside),
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_array_mut().filter(|_| name == "env") {
                    Some(words) => words.iter_mut().for_each(redact_word),
                    None => redact_inside(member),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn redact_word(word: &mut Value) {
    let name = word.as_str().and_then(|word| word.split_once('=')).map(|(name, _)| name);
    *word = Value::from(format!("{}={REDACTED}", name.unwrap_or_default()));
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
    fn environment_values_of_hooks_are_hidden_and_their_names_are_not() {
        let hook = json!({"path": "/bin/h", "args": ["h", "A=b"], "env": ["TOKEN=secret"]});
        let mut document = json!({"changes": [
            {"field": "hooks.prestart", "before": [hook], "after": [hook, hook]}]});
        redact(&mut document);
        let text = document.to_string();
        assert!(!text.contains("secret") && text.contains("TOKEN=(hidden"), "{text}");
        assert!(text.contains("/bin/h") && text.contains("A=b"), "{text}");
    }

    #[test]
    fn an_unexpected_document_is_an_empty_table() {
        assert_eq!(plugins(&json!({"no": "list"})).lines().count(), 1);
    }
}
