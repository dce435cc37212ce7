// SPDX-License-Identifier: Apache-2.0
//! The lists of tables that a configuration file may have, such as `[[rule]]`: a row for each. The
//! parser, what protects, the suggestions and `docs/config.md` are derived from it. It reads no file.

use toml_edit::ArrayOfTables;

use super::settings::{Config, Consequence};
use super::spelling::nearest;
use super::{injections, rules};

/// Something wrong in a table, with the offset of its place.
pub(super) struct TableMistake {
    pub(super) at: usize,
    pub(super) what: String,
    pub(super) consequence: Consequence,
}

impl TableMistake {
    /// A mistake in a table that protects.
    pub(super) fn new(at: usize, what: String) -> Self {
        Self { at, what, consequence: Consequence::RefusesCreates }
    }
}

/// Takes over the tables of one file; `place` is `FILE:LINE` of an offset.
type ReadTables = fn(&mut Config, &ArrayOfTables, &dyn Fn(usize) -> String) -> Vec<TableMistake>;

/// One list of tables, `[[NAME]]`.
pub(super) struct TableList {
    pub(super) name: &'static str,
    /// Whether each table of it protects, so that a mistake in one refuses creates.
    pub(super) protects: bool,
    pub(super) read: ReadTables,
    /// Its keys, for `docs/config.md`.
    pub(super) markdown: fn() -> String,
}

/// Every list of tables there is.
pub(super) static LISTS: &[TableList] = &[
    TableList { name: "rule", protects: true, read: rules::read_list, markdown: rules::markdown },
    TableList {
        name: "inject",
        protects: false,
        read: injections::read_list,
        markdown: injections::markdown,
    },
];

/// The list of this name.
pub(super) fn named(name: &str) -> Option<&'static TableList> {
    LISTS.iter().find(|list| list.name == name)
}

/// The known list that is most like `name`.
pub(super) fn nearest_list(name: &str) -> &'static str {
    nearest(name, LISTS.iter().map(|list| list.name))
}
