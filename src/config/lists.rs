// SPDX-License-Identifier: Apache-2.0
//! The lists of tables that a configuration file may have, such as `[[rule]]`. The parser,
//! protections, suggestions and `docs/config.md` are derived from `LISTS`. Nothing here reads a file.

use toml_edit::{ArrayOfTables, Value};

use super::exec_rules::{self, ExecRuleSection};
use super::injections;
use super::promises::{self, PromiseSection};
use super::rules::{self, RuleSection};
use super::settings::{Config, Consequence};
use super::spelling::{did_you_mean, nearest};
use super::tables::ListedSection;

/// A mistake in a table, with its byte offset in the file.
pub(super) struct TableMistake {
    pub(super) at: usize,
    pub(super) what: String,
    pub(super) consequence: Consequence,
}

impl TableMistake {
    /// Creates a mistake with the consequence that it has in a table that protects.
    pub(super) fn new(at: usize, what: String) -> Self {
        Self { at, what, consequence: Consequence::RefusesCreates }
    }
}

/// Reads the tables of one file; `place` returns the `FILE:LINE` of an offset.
type ReadTables = fn(&mut Config, &ArrayOfTables, &dyn Fn(usize) -> String) -> Vec<TableMistake>;

/// Reads a table of plain values; returns false if the TOML parser must read the table.
type AddPlain = fn(&mut Config, settings: &[(String, Value)], place: &str) -> bool;

/// One list of tables, `[[NAME]]`.
pub(super) struct TableList {
    pub(super) name: &'static str,
    /// Whether every table protects, so that a mistake in any of them makes creates fail.
    pub(super) protects: bool,
    pub(super) read: ReadTables,
    pub(super) add_plain: AddPlain,
    /// Adds a table that refuses or hides everything, if the list protects; for files of which no
    /// value may be used.
    pub(super) close: fn(&mut Config),
    /// The keys of the list's tables, for `docs/config.md`.
    pub(super) markdown: fn() -> String,
}

/// All lists of tables.
pub(super) static LISTS: &[TableList] = &[
    protecting::<RuleSection>(rules::markdown),
    protecting::<ExecRuleSection>(exec_rules::markdown),
    protecting::<PromiseSection>(promises::markdown),
    TableList {
        name: "inject",
        protects: false,
        read: injections::read_list,
        add_plain: |_, _, _| false,
        close: |_| {},
        markdown: injections::markdown,
    },
];

const fn protecting<S: ListedSection>(markdown: fn() -> String) -> TableList {
    TableList {
        name: S::LIST,
        protects: true,
        read: S::read_list,
        add_plain: S::add_plain,
        close: |config| {
            let closed = S::closed("the configuration cannot be read");
            S::list(config).push(closed);
        },
        markdown,
    }
}

pub(super) fn named(name: &str) -> Option<&'static TableList> {
    LISTS.iter().find(|list| list.name == name)
}

/// Returns ` (did you mean LIST?)` for the nearest list, or nothing if none is similar.
pub(super) fn hint_of(name: &str) -> String {
    did_you_mean(name, LISTS.iter().map(|list| list.name))
}

/// Returns the known list whose name is nearest to `name`.
pub(super) fn nearest_list(name: &str) -> &'static str {
    nearest(name, LISTS.iter().map(|list| list.name))
}
