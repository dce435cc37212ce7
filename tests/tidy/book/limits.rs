// SPDX-License-Identifier: Apache-2.0
//! The page of limits has the numbers of the code.

use super::Page;
use crate::root;

/// A row of the page, and its constant with its file.
const LIMITS: [(&str, &str, &str); 35] = [
    ("connected plugins", "src/limits.rs", "PLUGINS"),
    ("a plugin's name", "crates/nri-api/src/identity.rs", "PLUGIN_NAME"),
    ("a message of a plugin", "crates/nri-transport/src/frame.rs", "TTRPC_LIMIT"),
    (
        "bytes of a connection that has not registered",
        "crates/nri-transport/src/mux.rs",
        "UNREGISTERED",
    ),
    ("connections to the plugin socket that have not registered", "src/limits.rs", "REGISTERING"),
    ("entries of one list of an adjustment", "crates/nri-adaptation/src/bounds.rs", "MOST_IN_ONE"),
    ("entries of all lists of an adjustment", "crates/nri-adaptation/src/bounds.rs", "MOST_IN_ALL"),
    ("updates of plugins that wait for a container's start", "src/limits.rs", "DEFERRED"),
    ("bytes of these updates", "src/limits.rs", "DEFERRED_BYTES"),
    ("events that wait for a plugin to be synchronized", "src/limits.rs", "EVENT_BACKLOG"),
    ("bytes of these events", "src/limits.rs", "EVENT_BACKLOG_BYTES"),
    ("snapshots on their way to all plugins", "src/limits.rs", "SNAPSHOTS"),
    ("annotations of a container", "src/limits.rs", "ANNOTATIONS"),
    (
        "plugins that a pod's annotations may require",
        "crates/nri-adaptation/src/validator.rs",
        "MOST_REQUIRED_PLUGINS",
    ),
    ("`config.json`", "src/limits.rs", "DOCUMENT"),
    ("the resources of an `update`", "src/limits.rs", "RESOURCES"),
    (
        "a file of settings (configuration, CDI, classes, a plugin's own)",
        "src/limits.rs",
        "SETTINGS_FILE",
    ),
    ("a failure's line", "src/limits.rs", "LINE"),
    ("a foreign text within a line", "src/limits.rs", "QUOTED"),
    ("an audit line", "src/limits.rs", "AUDIT_LINE"),
    ("audit lines that wait for the disk", "src/limits.rs", "AUDIT_QUEUE"),
    ("bytes of these audit lines", "src/limits.rs", "AUDIT_QUEUE_BYTES"),
    ("log lines that wait for their reader", "src/limits.rs", "LOG_QUEUE"),
    ("bytes of these log lines", "src/limits.rs", "LOG_QUEUE_BYTES"),
    ("requests that wait for the reader of a recording", "src/limits.rs", "RECORDING_BACKLOG"),
    ("bytes of these requests", "src/limits.rs", "RECORDING_BACKLOG_BYTES"),
    ("notes of commands that ran without the daemon", "src/limits.rs", "BYPASS_NOTES"),
    ("bytes of these notes", "src/limits.rs", "NOTES"),
    ("one such note", "src/limits.rs", "NOTE"),
    ("removed containers that `explain` shows", "src/limits.rs", "REMEMBERED"),
    ("bytes of their records", "src/limits.rs", "REMEMBERED_BYTES"),
    ("connections to the metrics or probe port", "src/limits.rs", "HTTP_CONNECTIONS"),
    ("a request's head on such a port", "src/limits.rs", "HTTP_HEAD"),
    (
        "log lines within a minute about updates, evictions or observed rule hits of one plugin, each",
        "src/limits.rs",
        "LISTED",
    ),
    (
        "other log lines of one kind within a minute about one plugin",
        "src/limits.rs",
        "LOG_LINES_OF_PLUGIN",
    ),
];

/// The value of a constant as the page writes it: `128`, `64 bytes`, `4 MiB`.
fn value(file: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    let (_, rest) = text.split_once(&format!("const {name}: ")).expect(name);
    let (_, value) = rest.split_once(" = ").expect(name);
    let (value, _) = value.split_once(';').expect(name);
    match value.split_once(" << ") {
        Some((count, "10")) => vec![format!("{count} KiB")],
        Some((count, "20")) => vec![format!("{count} MiB")],
        _ => {
            let number = value.replace('_', "");
            vec![number.clone(), format!("{number} bytes")]
        }
    }
}

#[test]
fn the_page_of_limits_has_the_numbers_of_the_code() {
    let page = Page::read("docs/sizing.md");
    let (_, table) = page.text.split_once("| limit | value | beyond it |").expect("a table");
    let rows = table.lines().skip(2).filter(|line| line.starts_with('|'));
    let rows: Vec<(&str, &str)> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
            (cells.next().unwrap(), cells.next().unwrap())
        })
        .collect();
    assert_eq!(rows.len(), LIMITS.len(), "each row has its constant here");
    for (limit, file, name) in LIMITS {
        let (_, written) = rows.iter().find(|(row, _)| *row == limit).expect(limit);
        let values = value(file, name);
        assert!(values.contains(&(*written).to_owned()), "{limit}: {written}, not {values:?}");
    }
}
