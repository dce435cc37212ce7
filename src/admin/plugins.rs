// SPDX-License-Identifier: Apache-2.0
//! `plugins`: lists the plugins that are connected, are connecting, or disconnected recently, and
//! with `--logs` the output of a launched one. It only asks the daemon.

use clap::Args;
use serde_json::{Value, json};

use crate::config::Config;
use crate::error::Result;

use super::output::{Format, ListOutput, print_page, tell};
use super::watch::{ListRow, WatchedList, watch};
use super::{ask, paint, show};

/// The arguments of `plugins`.
#[derive(Debug, Args)]
pub(super) struct Plugins {
    /// Show the output of a launched plugin (a prefix will do).
    #[arg(long, value_name = "NAME")]
    logs: Option<String>,
    /// List, then print what changes, until Ctrl-C.
    #[arg(short, long, conflicts_with = "logs")]
    watch: bool,
    #[command(flatten)]
    pub(super) output: ListOutput,
}

/// Lists the plugins.
pub(super) fn plugins(config: &Config, wanted: &Plugins, format: Format) -> Result<u8> {
    if let Some(name) = &wanted.logs {
        let document = ask(config, &json!({"verb": "plugin_output", "plugin": name}))?;
        return tell(format, &document, show::plugin_output, paint::plain);
    }
    let question = json!({"verb": "plugins"});
    if wanted.watch {
        let list = WatchedList {
            question,
            head: show::PLUGINS_HEAD.to_vec(),
            rows: &|document: Value| Ok(watched(&document)),
            gone: None,
        };
        return watch(config, &list, format);
    }
    let document = ask(config, &question)?;
    match format {
        Format::Name => print_page(&names(&document), paint::plain),
        Format::Json | Format::Yaml => tell(format, &document, |_| String::new(), paint::plain),
        Format::Page | Format::Wide | Format::Junit => {
            let status = ask(config, &json!({"verb": "status"}))?;
            let page = show::plugins(&document, format == Format::Wide);
            let page = page + &show::missing_plugins(&status) + &show::plugin_socket(&status);
            print_page(&page, paint::states)
        }
    }
}

/// Lists the names of connected plugins; a name that two connections share, as during a
/// replacement, once.
fn names(document: &Value) -> String {
    let connected = document.as_array().into_iter().flatten().filter(|row| is_connected(row));
    let mut names: Vec<String> = connected.map(|row| show::plugin_id(row) + "\n").collect();
    names.dedup();
    names.concat()
}

fn is_connected(row: &Value) -> bool {
    row["state"] == "synchronized" || row["state"] == "synchronizing"
}

/// Returns the rows to watch; the request counts are not compared, as they change all the time.
fn watched(document: &Value) -> Vec<ListRow> {
    let mut rows: Vec<ListRow> = Vec::new();
    for row in document.as_array().into_iter().flatten() {
        let name = show::plugin_id(row);
        let same = rows.iter().filter(|other| other.name == name).count();
        let compared = ["state", "pid", "failures", "exit_status", "restarts"].map(|key| &row[key]);
        rows.push(ListRow {
            key: format!("{name} {same}"),
            compared: json!(compared).to_string(),
            cells: show::plugin_row(row),
            name,
            document: row.clone(),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: &str, pid: u32) -> Value {
        json!({"index": "10", "name": name, "state": state, "pid": pid, "requests": pid})
    }

    #[test]
    fn names_are_those_of_connected_plugins_each_once() {
        let list = json!([
            row("a", "synchronized", 1),
            row("a", "synchronizing", 2),
            row("b", "gone", 3),
            row("", "registering", 4),
            row("c\nforged", "synchronized", 5)
        ]);
        assert_eq!(names(&list), "10-a\n10-c\\nforged\n");
    }

    #[test]
    fn two_processes_of_a_plugin_are_two_rows_and_counts_no_change() {
        let rows = watched(&json!([row("a", "synchronized", 1), row("a", "synchronizing", 2)]));
        assert_ne!(rows[0].key, rows[1].key);
        let mut more = row("a", "synchronized", 1);
        more["requests"] = json!(100);
        assert_eq!(watched(&json!([more]))[0].compared, rows[0].compared);
        let gone = watched(&json!([row("a", "gone", 1)]));
        assert_ne!(gone[0].compared, rows[0].compared);
    }
}
