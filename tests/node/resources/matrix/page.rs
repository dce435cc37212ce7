// SPDX-License-Identifier: Apache-2.0
//! The table of `docs/compatibility.md`: a column for each runtime and cgroup version. One machine
//! finds some of them; the others stay unchanged.

use std::collections::BTreeMap;

use test_support::program;

use super::Outcome;

const PAGE: &str = include_str!("../../../../docs/compatibility.md");

/// The text before and after the table.
const MARKS: (&str, &str) =
    ("<!-- fields by runtime: begin -->\n", "<!-- fields by runtime: end -->");

/// Cells by column and row.
type Table = BTreeMap<String, BTreeMap<String, String>>;

fn cell(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::InForce => "yes",
        // Another machine may have the missing feature.
        Outcome::Refused(why) if is_of_the_node(why) => "node",
        Outcome::Refused(_) => "refused",
    }
}

fn is_of_the_node(why: &str) -> bool {
    why.contains("needs resctrl") || (why.contains("on this node") && !why.contains("cgroup v"))
}

fn read(page: &str) -> Table {
    let inside = page.split(MARKS.0).nth(1).and_then(|rest| rest.split(MARKS.1).next());
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_matches('|');
        inner.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
    };
    let mut lines = inside.unwrap_or_default().lines().filter(|line| line.starts_with('|'));
    let columns = lines.next().map(cells).unwrap_or_default();
    let mut table = Table::new();
    for row in lines.skip(1).map(cells) {
        let cells = columns.iter().zip(&row).skip(1).filter(|(_, cell)| !cell.is_empty());
        for (column, cell) in cells {
            table.entry(column.clone()).or_default().insert(row[0].clone(), cell.clone());
        }
    }
    table
}

fn written(table: &Table) -> String {
    let mut rows: Vec<&String> = table.values().flat_map(BTreeMap::keys).collect();
    rows.sort();
    rows.dedup();
    let heads: Vec<&str> = table.keys().map(String::as_str).collect();
    let mut text =
        format!("| field | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        let cells: Vec<&str> =
            table.values().map(|column| column.get(row).map_or("", String::as_str)).collect();
        text.push_str(&format!("| `{row}` | {} |\n", cells.join(" | ")));
    }
    text
}

/// Writes the table into the page.
fn write(table: &Table) {
    let path = program::project().join("docs/compatibility.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKS.0).unwrap();
    let (_, after) = rest.split_once(MARKS.1).unwrap();
    let page = format!("{before}{}{}{}{after}", MARKS.0, written(table), MARKS.1);
    nri_runc::testing::files::replace(&path, page.as_bytes()).unwrap();
}

/// Sets a cell, and returns whether the table differed. A feature that one machine lacks does not
/// contradict another machine's result.
fn put(column: &mut BTreeMap<String, String>, row: &str, cell: &str) -> bool {
    let was = column.get(row).map(String::as_str);
    let is_other = was != Some(cell) && was != Some("node") && (cell != "node" || was.is_none());
    if was.is_none() || cell != "node" {
        column.insert(row.to_owned(), cell.to_owned());
    }
    is_other
}

/// Prints a column: a guest cannot write the page, and `scripts/vm.sh` passes the output to the test
/// below.
#[expect(clippy::print_stderr, reason = "the table for the host of a guest")]
pub(super) fn print(column: &str, outcomes: &BTreeMap<String, Outcome>) {
    for (row, outcome) in outcomes {
        eprintln!("table: {column} | {row} | {}", cell(outcome));
    }
}

/// Prints a failure immediately: a guest may be stopped before the test ends.
#[expect(clippy::print_stderr, reason = "the table for the host of a guest")]
pub(super) fn print_failure(runtime: &str, why: &str) {
    eprintln!("case {runtime}: failed: {why}");
}

/// Compares the results with the page, or writes them there.
pub(super) fn compare(found: &BTreeMap<String, BTreeMap<String, Outcome>>) {
    let (mut table, mut wrong) = (read(PAGE), Vec::new());
    for (column, outcomes) in found {
        let there = table.entry(column.clone()).or_default();
        there.retain(|row, _| outcomes.contains_key(row));
        for (row, outcome) in outcomes {
            if put(there, row, cell(outcome)) {
                wrong.push(format!("{row}, {column}"));
            }
        }
    }
    match std::env::var_os("UPDATE_GOLDEN") {
        Some(_) if program::project().is_dir() => write(&table),
        Some(_) => {}
        None => assert!(
            wrong.is_empty(),
            "docs/compatibility.md is stale in {wrong:?}: UPDATE_GOLDEN=1 cargo test --test node resources::matrix::\n{}",
            written(&table)
        ),
    }
}

#[test]
fn the_table_of_fields_and_runtimes_is_complete() {
    let mut table = read(PAGE);
    // The output of a guest (`UPDATE_GOLDEN=1 make vm`).
    if let Some(printed) = std::env::var_os("NRI_RUNC_FIELDS") {
        let printed = std::fs::read_to_string(printed).unwrap();
        for line in printed.lines().filter_map(|line| line.strip_prefix("table: ")) {
            let [column, row, cell] = line.split(" | ").collect::<Vec<_>>()[..] else { continue };
            let column = table.entry(column.to_owned()).or_default();
            put(column, row, cell.trim());
        }
        write(&table);
    }
    for version in ["cgroup v1", "cgroup v2"] {
        let columns = table.iter().filter(|(column, _)| column.ends_with(version));
        let columns: Vec<_> = columns.collect();
        assert!(columns.len() >= 2, "{version}: {columns:?}");
        let cells = columns.iter().flat_map(|(_, column)| column.values());
        assert!(cells.clone().all(|cell| ["yes", "refused", "node"].contains(&cell.as_str())));
        assert!(cells.filter(|cell| *cell == "yes").count() >= 60, "{version}");
    }
}
