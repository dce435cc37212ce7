// SPDX-License-Identifier: Apache-2.0
//! The keys by which a section (a rule, an exec rule, an injection, a promise) selects pods
//! (decisions D44, D59). An entry with a leading `!` excludes. Nothing here reads a file or matches
//! a pod.

use std::borrow::Cow;

use toml_edit::{TableLike, Value};

use super::spelling::did_you_mean;
use crate::engine::EngineKind;
use crate::glob;
use crate::limits::SECTION_NAME;
use crate::named::Named;

/// A description of a wrong value.
pub(super) type Mistake = Cow<'static, str>;

/// The first character of an entry that excludes.
const EXCLUDES: char = '!';

/// The pods that a section selects; an empty list selects any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSelectors {
    /// Patterns of namespaces.
    pub namespaces: Vec<String>,
    /// Labels that a pod must have: key, and a pattern of the value.
    pub labels: Vec<(String, String)>,
    /// Labels that a pod must not have.
    pub without_labels: Vec<(String, String)>,
    /// Patterns of engines.
    pub engines: Vec<String>,
    /// Patterns of runtime handlers.
    pub handlers: Vec<String>,
}

/// Returns the pattern in an entry that excludes.
pub(crate) fn excluded(entry: &str) -> Option<&str> {
    entry.strip_prefix(EXCLUDES)
}

impl PodSelectors {
    pub(super) fn set(&mut self, name: &str, value: &Value) -> Result<(), Mistake> {
        match name {
            "namespaces" => self.namespaces = read_patterns(value)?,
            "engines" => self.engines = read_engines(value)?,
            "handlers" => self.handlers = read_patterns(value)?,
            "labels" => match value.as_inline_table() {
                Some(table) => self.set_labels(table)?,
                None => self.read_labels(value)?,
            },
            _ => return Err(format!("{name} selects nothing").into()),
        }
        Ok(())
    }

    pub(super) fn set_labels(&mut self, table: &dyn TableLike) -> Result<(), Mistake> {
        let pairs = table.iter().map(|(key, item)| {
            let value = item.as_value().ok_or(Mistake::from("expected a string in quotes"))?;
            label_of(key, read_text(value)?)
        });
        self.labels = pairs.collect::<Result<_, Mistake>>()?;
        Ok(())
    }

    fn read_labels(&mut self, value: &Value) -> Result<(), Mistake> {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for entry in read_texts(value)? {
            let (label, list) = match excluded(entry) {
                Some(label) => (label, &mut without),
                None => (entry, &mut with),
            };
            let pair = label.split_once('=').filter(|(key, _)| !key.is_empty());
            let wrong = || Mistake::from(format!("expected \"KEY=VALUE\" in place of {entry:?}"));
            let (key, pattern) = pair.ok_or_else(wrong)?;
            list.push(label_of(key, pattern)?);
        }
        (self.labels, self.without_labels) = (with, without);
        Ok(())
    }
}

pub(super) fn read_text(value: &Value) -> Result<&str, Mistake> {
    value.as_str().ok_or_else(|| "expected a string in quotes".into())
}

pub(super) fn read_texts(value: &Value) -> Result<Vec<&str>, Mistake> {
    let list = value.as_array().ok_or(Mistake::from("expected a list of strings"))?;
    list.iter().map(read_text).collect()
}

pub(super) fn read_name(value: &Value) -> Result<String, Mistake> {
    let name = read_text(value)?;
    let is_fine = !name.trim().is_empty() && !name.contains(char::is_control);
    if !is_fine || name.chars().count() > SECTION_NAME {
        return Err(format!("expected a name of 1 to {SECTION_NAME} visible characters").into());
    }
    Ok(name.to_owned())
}

/// Refuses a pattern that can match nothing, because the section would never apply.
fn check_pattern(pattern: &str) -> Result<(), Mistake> {
    match glob::mistake(pattern) {
        Some(why) => Err(format!("the pattern {pattern:?} {why}").into()),
        None => Ok(()),
    }
}

/// Parses patterns; refuses invalid ones, and `!*`, because the section would never apply.
pub(super) fn read_patterns(value: &Value) -> Result<Vec<String>, Mistake> {
    let entries = read_texts(value)?;
    check_patterns(entries.iter().copied())?;
    Ok(entries.into_iter().map(ToOwned::to_owned).collect())
}

/// Refuses invalid entries of a list of patterns.
pub(super) fn check_patterns<'e>(entries: impl Iterator<Item = &'e str>) -> Result<(), Mistake> {
    for entry in entries {
        check_pattern(excluded(entry).unwrap_or(entry))?;
        if matches!(excluded(entry), Some("*")) {
            return Err("\"!*\" excludes everything".into());
        }
    }
    Ok(())
}

/// Parses patterns of engines' names, and refuses one that matches no engine, because it would
/// never apply.
fn read_engines(value: &Value) -> Result<Vec<String>, Mistake> {
    let patterns = read_patterns(value)?;
    for entry in &patterns {
        let pattern = excluded(entry).unwrap_or(entry);
        if !EngineKind::names().any(|name| glob::matches(pattern, name)) {
            let hint = did_you_mean(pattern, EngineKind::names());
            let what = format!("{pattern:?} is not the name of an engine{hint}");
            return Err(what.into());
        }
    }
    Ok(patterns)
}

fn label_of(key: &str, pattern: &str) -> Result<(String, String), Mistake> {
    if key.contains(['*', '?', '[']) || key.starts_with(EXCLUDES) {
        return Err(format!("the key {key:?} of a label cannot be a pattern").into());
    }
    check_pattern(pattern)?;
    Ok((key.to_owned(), pattern.to_owned()))
}
