// SPDX-License-Identifier: Apache-2.0
//! Reads the tables of a list such as `[[rule]]` with a table of keys. Sections of such a list
//! protect, so a section with a mistake is replaced by one that refuses or hides everything.
//! Nothing here reads a file.

use std::collections::BTreeSet;

use toml_edit::{ArrayOfTables, Item, TableLike, Value};

use super::lists::TableMistake;
use super::selectors::{Mistake, PodSelectors};
use super::settings::Config;
use super::spelling::did_you_mean;
use crate::error::quoted;

/// One key of a list's section.
pub(super) struct ListKey<S: 'static> {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    pub(super) meaning: &'static str,
    pub(super) set: fn(&mut S, &Value) -> Result<(), Mistake>,
}

/// Defines the keys of a section: name, default, meaning, and setter.
macro_rules! list_keys {
    ($keys:ident: $section:ty; $($name:literal = $default:literal, $meaning:literal, |$rule:ident, $value:ident| $set:expr;)*) => {
        const $keys: &[super::tables::ListKey<$section>] = &[$(super::tables::ListKey {
            name: $name,
            default: $default,
            meaning: $meaning,
            set: |$rule, $value| { $set; Ok(()) },
        }),*];
    };
}
pub(super) use list_keys;

/// The type of a list's sections.
pub(super) trait ListedSection: Default + 'static {
    /// The name of the list.
    const LIST: &'static str;
    const KEYS: &'static [ListKey<Self>];

    /// Returns the sections of a configuration.
    fn list(config: &mut Config) -> &mut Vec<Self>;
    /// Returns the section's name, and the pods that it selects.
    fn head(&mut self) -> (&mut String, &mut PodSelectors);

    /// Creates the replacement for a section with a mistake. It has no conditions, so it applies to
    /// everything: an exec rule refuses, and a promise needs the plugin `""`, which cannot exist.
    fn closed(name: &str) -> Self {
        let mut closed = Self::default();
        name.clone_into(closed.head().0);
        closed
    }

    /// Checks that the section's values are compatible.
    fn check(&self) -> Result<(), Mistake> {
        Ok(())
    }

    /// Reads the tables of one file into the configuration; `place` returns the `FILE:LINE` of an
    /// offset.
    fn read_list(
        config: &mut Config,
        tables: &ArrayOfTables,
        place: &dyn Fn(usize) -> String,
    ) -> Vec<TableMistake> {
        let mut mistakes = Vec::new();
        for table in tables {
            let at = table.span().map_or(0, |span| span.start);
            let (section, mut wrong) = read::<Self>(table, at);
            let name = place(at);
            if wrong.is_empty() {
                let added = add(config, section, &name);
                wrong.extend(added.err().map(|what| TableMistake::new(at, what.into_owned())));
            }
            if !wrong.is_empty() {
                config.section_names.add(Self::LIST, &name);
                Self::list(config).push(Self::closed(&name));
            }
            mistakes.extend(wrong);
        }
        mistakes
    }

    /// Adds a table whose keys and values need no parser; returns false if it has a mistake.
    fn add_plain(config: &mut Config, settings: &[(String, Value)], place: &str) -> bool {
        let (mut section, mut names) = (Self::default(), BTreeSet::new());
        let mut set = settings.iter().map(|(name, value)| {
            let key = Self::KEYS.iter().find(|key| key.name == name);
            names.insert(name) && key.is_some_and(|key| (key.set)(&mut section, value).is_ok())
        });
        set.all(|is_set| is_set) && add(config, section, place).is_ok()
    }

    /// Returns the keys as `docs/config.md` shows them.
    fn markdown(introduction: &str) -> String {
        let mut page = format!("\n{introduction}\n\n| key | default | meaning |\n|---|---|---|\n");
        for ListKey { name, default, meaning, set: _ } in Self::KEYS {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            page.push_str(&format!("| `{}.{name}` | {default} | {meaning} |\n", Self::LIST));
        }
        page
    }
}

fn read<S: ListedSection>(table: &dyn TableLike, at: usize) -> (S, Vec<TableMistake>) {
    let (mut section, mut mistakes) = (S::default(), Vec::new());
    for (name, item) in table.iter() {
        let key = table.get_key_value(name).and_then(|(key, _)| key.span());
        let at_key = key.map_or(at, |span| span.start);
        let Some(key) = S::KEYS.iter().find(|key| key.name == name) else {
            let hint = did_you_mean(name, S::KEYS.iter().map(|key| key.name));
            let what = format!("unknown key {}.{name}{hint}", S::LIST);
            mistakes.push(TableMistake::new(at_key, what));
            continue;
        };
        let set = match item {
            Item::Value(value) => (key.set)(&mut section, value),
            Item::Table(table) if name == "labels" => section.head().1.set_labels(table),
            Item::None | Item::Table(_) | Item::ArrayOfTables(_) => {
                Err("expected a value, not a table".into())
            }
        };
        if let Err(what) = set {
            let at = item.span().map_or(at_key, |span| span.start);
            mistakes.push(TableMistake::new(at, format!("{}.{name}: {what}", S::LIST)));
        }
    }
    (section, mistakes)
}

/// Adds a section of valid values; fails if they are incompatible, or its name is taken.
fn add<S: ListedSection>(config: &mut Config, mut section: S, place: &str) -> Result<(), Mistake> {
    section.check()?;
    let (name, _) = section.head();
    if name.is_empty() {
        place.clone_into(name);
    }
    if !config.section_names.add(S::LIST, name) {
        let what = S::LIST.replace('_', " ");
        return Err(format!("another {what} has the name \"{}\"", quoted(name)).into());
    }
    S::list(config).push(section);
    Ok(())
}
