// SPDX-License-Identifier: Apache-2.0
//! The form of nested values: the members of a table, and the form of each. A value of the right
//! form is converted to JSON; each mistake is reported with its position. Nothing here reads a
//! file.

use serde_json::{Map, Value as Json};
use toml_edit::{ArrayOfTables, Item, TableLike, Value};

use super::lists::TableMistake;
use super::spelling::did_you_mean;

/// The form of a value.
pub(super) enum Shape {
    /// A string.
    Text,
    /// An absolute path, so it cannot begin with `-`, which would remove a value.
    Path,
    /// A non-empty string.
    Name,
    /// An integer in this inclusive range.
    Integer(i64, i64),
    /// An integer from 0, or `"unlimited"`.
    Limit,
    /// A boolean.
    Truth,
    /// A table with these members.
    Table(&'static [Member]),
    /// A table whose keys the operator chooses. The function returns the mistake in a key.
    Map(&'static Self, fn(&str) -> Option<&'static str>),
    /// A list of values with this form.
    List(&'static Self),
}

/// One member of a table.
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) is_needed: bool,
}

/// Creates an optional member.
pub(super) const fn may(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, is_needed: false }
}

/// Creates a required member.
pub(super) const fn must(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, is_needed: true }
}

/// A value in any of TOML's spellings.
#[derive(Clone, Copy)]
enum Node<'t> {
    Value(&'t Value),
    Table(&'t dyn TableLike),
    Tables(&'t ArrayOfTables),
}

impl<'t> Node<'t> {
    fn of(item: &'t Item) -> Option<Self> {
        match item {
            Item::None => None,
            Item::Value(Value::InlineTable(table)) => Some(Self::Table(table)),
            Item::Value(value) => Some(Self::Value(value)),
            Item::Table(table) => Some(Self::Table(table)),
            Item::ArrayOfTables(tables) => Some(Self::Tables(tables)),
        }
    }

    fn of_value(value: &'t Value) -> Self {
        match value.as_inline_table() {
            Some(table) => Self::Table(table),
            None => Self::Value(value),
        }
    }
}

/// Reads the values of one section, and collects its mistakes.
pub(super) struct ShapeReader<'m> {
    pub(super) mistakes: &'m mut Vec<TableMistake>,
}

impl ShapeReader<'_> {
    /// Returns the value of `item` as JSON, if it has this form. `path` is its name for mistakes,
    /// `at` the offset of its key.
    pub(super) fn read(
        &mut self,
        shape: &Shape,
        item: &Item,
        at: usize,
        path: &str,
    ) -> Option<Json> {
        let at = item.span().map_or(at, |span| span.start);
        self.node(shape, Node::of(item)?, at, path)
    }

    fn wrong(&mut self, at: usize, path: &str, what: &str) -> Option<Json> {
        self.mistakes.push(TableMistake::new(at, format!("{path}: {what}")));
        None
    }

    fn node(&mut self, shape: &Shape, node: Node<'_>, at: usize, path: &str) -> Option<Json> {
        let value = match node {
            Node::Value(value) => Some(value),
            Node::Table(_) | Node::Tables(_) => None,
        };
        let text = value.and_then(Value::as_str);
        let number = value.and_then(Value::as_integer);
        match shape {
            Shape::Text => match text {
                Some(text) => Some(text.into()),
                None => self.wrong(at, path, "expected a string in quotes"),
            },
            Shape::Name => match text {
                Some(text) if !text.is_empty() => Some(text.into()),
                _ => self.wrong(at, path, "expected a string in quotes that is not empty"),
            },
            Shape::Path => match text {
                Some(text) if text.starts_with('/') => Some(text.into()),
                _ => self.wrong(at, path, "expected an absolute path in quotes"),
            },
            Shape::Integer(least, most) => match number {
                Some(number) if (*least..=*most).contains(&number) => Some(number.into()),
                _ if *most == i64::MAX && *least == i64::MIN => {
                    self.wrong(at, path, "expected an integer")
                }
                _ if *most == i64::MAX => {
                    self.wrong(at, path, &format!("expected an integer from {least}"))
                }
                _ => self.wrong(at, path, &format!("expected an integer from {least} to {most}")),
            },
            Shape::Limit => match (number, text) {
                (Some(number), _) if number >= 0 => Some(number.into()),
                (_, Some("unlimited")) => Some(u64::MAX.into()),
                _ => self.wrong(at, path, "expected an integer from 0, or \"unlimited\""),
            },
            Shape::Truth => match value.and_then(Value::as_bool) {
                Some(truth) => Some(truth.into()),
                None => self.wrong(at, path, "expected true or false"),
            },
            Shape::Table(members) => match node {
                Node::Table(table) => self.table(members, table, at, path),
                Node::Value(_) | Node::Tables(_) => {
                    self.wrong(at, path, &format!("expected a table, {}", written(members)))
                }
            },
            Shape::Map(shape, check) => match node {
                Node::Table(table) => self.map(shape, *check, table, at, path),
                Node::Value(_) | Node::Tables(_) => {
                    self.wrong(at, path, "expected a table, { KEY = VALUE }")
                }
            },
            Shape::List(shape) => self.list(shape, node, at, path),
        }
    }

    fn list(&mut self, shape: &Shape, node: Node<'_>, at: usize, path: &str) -> Option<Json> {
        let mut entries = Vec::new();
        let mut is_whole = true;
        let mut take = |entry: Option<Json>| match entry {
            Some(entry) => entries.push(entry),
            None => is_whole = false,
        };
        match node {
            Node::Value(Value::Array(list)) => {
                for value in list {
                    let at = value.span().map_or(at, |span| span.start);
                    take(self.node(shape, Node::of_value(value), at, path));
                }
            }
            Node::Tables(tables) => {
                for table in tables {
                    let at = table.span().map_or(at, |span| span.start);
                    take(self.node(shape, Node::Table(table), at, path));
                }
            }
            Node::Value(_) | Node::Table(_) => return self.wrong(at, path, "expected a list"),
        }
        is_whole.then_some(Json::Array(entries))
    }

    fn table(
        &mut self,
        members: &[Member],
        table: &dyn TableLike,
        at: usize,
        path: &str,
    ) -> Option<Json> {
        let mut read = Map::new();
        let mut is_whole = true;
        for (name, item) in table.iter() {
            let at = key_place(table, name).unwrap_or(at);
            let Some(member) = members.iter().find(|member| member.name == name) else {
                let hint = did_you_mean(name, members.iter().map(|member| member.name));
                let what = format!("unknown key {path}.{name}{hint}");
                self.mistakes.push(TableMistake::new(at, what));
                is_whole = false;
                continue;
            };
            match self.read(&member.shape, item, at, &format!("{path}.{name}")) {
                Some(value) => drop(read.insert(name.to_owned(), value)),
                None => is_whole = false,
            }
        }
        // A required member that is misspelled is not reported as missing too.
        let is_missing = |member: &&Member| member.is_needed && table.get(member.name).is_none();
        if is_whole && let Some(member) = members.iter().find(is_missing) {
            return self.wrong(at, path, &format!("{} is missing", member.name));
        }
        is_whole.then_some(Json::Object(read))
    }

    fn map(
        &mut self,
        shape: &Shape,
        check: fn(&str) -> Option<&'static str>,
        table: &dyn TableLike,
        at: usize,
        path: &str,
    ) -> Option<Json> {
        let mut read = Map::new();
        let mut is_whole = true;
        for (name, item) in table.iter() {
            let at = key_place(table, name).unwrap_or(at);
            let value = self.read(shape, item, at, &format!("{path}.{name}"));
            if let Some(why) = check(name) {
                self.wrong(at, path, &format!("the key {name:?} {why}"));
                is_whole = false;
            }
            match value {
                Some(value) => drop(read.insert(name.to_owned(), value)),
                None => is_whole = false,
            }
        }
        is_whole.then_some(Json::Object(read))
    }
}

/// Returns the offset of a key.
pub(super) fn key_place(table: &dyn TableLike, name: &str) -> Option<usize> {
    let (key, _) = table.get_key_value(name)?;
    key.span().map(|span| span.start)
}

fn written(members: &[Member]) -> String {
    let names: Vec<&str> = members.iter().map(|member| member.name).collect();
    format!("{{ {} }}", names.iter().map(|n| format!("{n} = …")).collect::<Vec<_>>().join(", "))
}
