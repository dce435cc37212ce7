// SPDX-License-Identifier: Apache-2.0
//! Removes nri-runc's values from a file that was edited after `install` wrote it. It compares
//! values, which stay the same if an editor sorts keys or reformats the file. The file's other values
//! stay, and its layout too if removing lines is enough. This module does no I/O.
//!
//! A handler's entry is removed as a whole if it still names nri-runc's program, and a default that
//! names the removed entry is removed too. From a list that was extended only the handler's name is
//! removed. Any other value that was edited stays. A distribution's template and a unit file are
//! neither JSON nor TOML: in a template the addition is found by its comments, in a unit file the
//! settings by their lines.

use oci_document::{DocumentError, Object, SpecDocument};
use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, TableLike};

use super::edit;
use super::rendered;
use crate::error::{Error, Result, quoted};

/// The file without nri-runc's values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reverted {
    /// The text; `None` if `install` created the file, and it contains nothing else.
    pub(super) text: Option<String>,
    /// Values of nri-runc that were edited since.
    pub(super) edited: Vec<EditedValue>,
}

/// A value that nri-runc wrote and that was edited since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EditedValue {
    /// The dotted keys of the value.
    pub(super) keys: String,
    pub(super) fate: EditedFate,
}

/// What becomes of an edited value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EditedFate {
    Kept,
    /// It is removed, because it still names nri-runc's program, is between nri-runc's comments, or names the removed
    /// handler as the default.
    Removed,
    /// The handler's name is removed from a list.
    Shortened,
}

/// The change that `install` made to a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written<'w> {
    pub(super) path: &'w str,
    /// The text before; `None` if the file did not exist.
    pub(super) before: Option<&'w str>,
    pub(super) after: &'w str,
    /// The handler's name.
    pub(super) name: &'w str,
    /// The path of nri-runc in the entry.
    pub(super) binary: &'w str,
}

/// Docker's and containerd's keys for the default handler, beside `runtimes`.
const DEFAULT_KEYS: [&str; 2] = ["default-runtime", "default_runtime_name"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Json,
    Toml,
    Template,
    Unit,
}

/// One value that `install` set.
#[derive(Debug)]
struct Setting {
    keys: Vec<String>,
    before: Option<Value>,
    after: Value,
    is_entry: bool,
}

/// One step of the reversal.
#[derive(Debug)]
enum Step {
    Remove(Vec<String>),
    Set(Vec<String>, Value),
}

impl Written<'_> {
    fn syntax(&self) -> Syntax {
        if self.path.ends_with(".tmpl") {
            Syntax::Template
        } else if self.after.trim_start().starts_with('{') {
            Syntax::Json
        } else if self.after.parse::<DocumentMut>().is_ok() {
            Syntax::Toml
        } else {
            Syntax::Unit
        }
    }

    /// Removes nri-runc's values from the file's current text `now`.
    ///
    /// # Errors
    /// Fails when `now` does not parse in the file's original format, or when nri-runc's values cannot be
    /// separated from the rest.
    pub(super) fn revert(&self, now: &str) -> Result<Reverted> {
        match self.syntax() {
            Syntax::Template => self.revert_template(now),
            Syntax::Unit => Ok(self.revert_unit(now)),
            syntax @ (Syntax::Json | Syntax::Toml) => self.revert_values(syntax, now),
        }
    }

    /// Returns the names of the values that `install` set, for an operator who must remove them.
    pub(super) fn names(&self) -> Vec<String> {
        let syntax = self.syntax();
        if matches!(syntax, Syntax::Template | Syntax::Unit) {
            return vec!["the lines that name nri-runc".to_owned()];
        }
        let settings = self.settings(syntax).unwrap_or_default();
        settings.iter().map(|setting| dotted(&setting.keys)).collect()
    }

    fn settings(&self, syntax: Syntax) -> Result<Vec<Setting>> {
        let before = value_of(syntax, self.path, self.before.unwrap_or_default())?;
        let after = value_of(syntax, self.path, self.after)?;
        let mut settings = Vec::new();
        self.collect(Some(&before), &after, &mut Vec::new(), &mut settings);
        Ok(settings)
    }

    /// Collects the values of `after` that differ from `before`; the handler's entry is one value.
    fn collect(
        &self,
        before: Option<&Value>,
        after: &Value,
        keys: &mut Vec<String>,
        found: &mut Vec<Setting>,
    ) {
        let is_named =
            matches!(keys.as_slice(), [.., table, key] if table == "runtimes" && key == self.name);
        let is_entry = before.is_none() && is_named && contains_text(after, self.binary);
        match after.as_object().filter(|_| !is_entry) {
            Some(members) if before.is_none_or(Value::is_object) => {
                for (key, value) in members {
                    keys.push(key.clone());
                    self.collect(before.and_then(|table| table.get(key)), value, keys, found);
                    keys.pop();
                }
            }
            Some(_) | None if before == Some(after) => {}
            Some(_) | None => found.push(Setting {
                keys: keys.clone(),
                before: before.cloned(),
                after: after.clone(),
                is_entry,
            }),
        }
    }

    fn revert_values(&self, syntax: Syntax, now: &str) -> Result<Reverted> {
        let before = value_of(syntax, self.path, self.before.unwrap_or_default())?;
        let mut value = value_of(syntax, self.path, now)?;
        let (mut steps, mut edited) = (Vec::new(), Vec::new());
        let settings = self.settings(syntax)?;
        for setting in &settings {
            let Some(there) = at(&value, &setting.keys) else { continue };
            // `version` stays while the file has other content.
            if self.before.is_none() && setting.keys == ["version"] {
                continue;
            }
            let is_ours = *there == setting.after;
            let (step, fate) = self.step(setting, there);
            if !is_ours {
                edited.push(EditedValue { keys: dotted(&setting.keys), fate });
            }
            steps.extend(step);
        }
        steps.iter().for_each(|step| step.apply(&mut value));
        for keys in self.defaults_left(&settings, &value) {
            edited.push(EditedValue { keys: dotted(&keys), fate: EditedFate::Removed });
            let step = Step::Remove(keys);
            step.apply(&mut value);
            steps.push(step);
        }
        for keys in emptied(&settings, &before, &value) {
            let step = Step::Remove(keys);
            step.apply(&mut value);
            steps.push(step);
        }
        if self.before.is_none() && is_nothing(&value) {
            return Ok(Reverted { text: None, edited });
        }
        let text = self.write(syntax, now, &steps, &value)?;
        Ok(Reverted { text: Some(text), edited })
    }

    /// Returns the keys that still name the handler as the default after its entry was removed:
    /// with such a key, dockerd does not start, and containerd starts without its CRI plugin.
    fn defaults_left(&self, settings: &[Setting], value: &Value) -> Vec<Vec<String>> {
        let is_gone = |setting: &&Setting| setting.is_entry && at(value, &setting.keys).is_none();
        let tables =
            settings.iter().filter(is_gone).filter_map(|setting| match &setting.keys[..] {
                [above @ .., _runtimes, _name] => Some(above),
                [] | [_] => None,
            });
        let keys = tables.flat_map(|above| {
            DEFAULT_KEYS.map(|key| above.iter().cloned().chain([key.to_owned()]).collect())
        });
        keys.filter(|keys: &Vec<String>| at(value, keys).is_some_and(|name| *name == self.name))
            .collect()
    }

    /// Returns the step that reverts a setting whose current value is `there`, and what becomes of the value.
    fn step(&self, setting: &Setting, there: &Value) -> (Option<Step>, EditedFate) {
        let keys = setting.keys.clone();
        if *there == setting.after || setting.is_entry && contains_text(there, self.binary) {
            let step = match &setting.before {
                Some(before) => Step::Set(keys, before.clone()),
                None => Step::Remove(keys),
            };
            return (Some(step), EditedFate::Removed);
        }
        // Only nri-runc's handler is removed from a list that was extended.
        let list = there.as_array().filter(|_| setting.before.is_none());
        if let Some(list) = list.filter(|list| list.iter().any(|word| *word == self.name)) {
            let rest = list.iter().filter(|word| **word != self.name).cloned().collect();
            return (Some(Step::Set(keys, Value::Array(rest))), EditedFate::Shortened);
        }
        (None, EditedFate::Kept)
    }

    /// Changes the text `now` so that its content is `value`: removes lines if that is enough, else takes `steps`
    /// in place.
    fn write(&self, syntax: Syntax, now: &str, steps: &[Step], value: &Value) -> Result<String> {
        if steps.is_empty() {
            return Ok(now.to_owned());
        }
        // An implicit TOML table disappears with its last member.
        let content = |value: &Value| match syntax {
            Syntax::Json => value.clone(),
            Syntax::Toml | Syntax::Template | Syntax::Unit => without_empty_tables(value),
        };
        let wanted = content(value);
        let is_it = |text: &String| {
            value_of(syntax, self.path, text).is_ok_and(|value| content(&value) == wanted)
        };
        let by_lines = self.before.and_then(|before| edit::reverse(before, self.after, now));
        if let Some(text) = by_lines.filter(is_it) {
            return Ok(text);
        }
        let text = match syntax {
            Syntax::Json => json_with(self.path, now, steps)?,
            Syntax::Toml | Syntax::Template | Syntax::Unit => toml_with(self.path, now, steps)?,
        };
        Some(text).filter(is_it).ok_or_else(|| {
            Error::new(format!(
                "{}: the values that `install` set cannot be separated from the others",
                self.path
            ))
        })
    }

    /// Reverts a template: removes the text between nri-runc's comments.
    fn revert_template(&self, now: &str) -> Result<Reverted> {
        let old = self.before.map(str::to_owned).or_else(|| rendered::template_alone(self.after));
        let by_lines = old.and_then(|old| edit::reverse(&old, self.after, now));
        let (text, edited) = match (by_lines, rendered::template_alone(now)) {
            (Some(text), _) => (text, Vec::new()),
            (None, Some(text)) if text != now => {
                let keys = "the addition of nri-runc".to_owned();
                (text, vec![EditedValue { keys, fate: EditedFate::Removed }])
            }
            (None, _) if !now.contains(self.binary) => (now.to_owned(), Vec::new()),
            (None, _) => {
                return Err(Error::new(format!(
                    "{}: the marker comments around nri-runc's lines are missing",
                    self.path
                )));
            }
        };
        // A template that `install` created is removed if it now only includes the built-in one.
        let is_left = self.before.is_some() || !rendered::is_base(&text);
        Ok(Reverted { text: Some(text).filter(|_| is_left), edited })
    }

    /// Reverts a unit file: removes nri-runc's settings, by their lines.
    fn revert_unit(&self, now: &str) -> Reverted {
        let is_header = |line: &str| line.trim_start().starts_with('[') || line.trim().is_empty();
        let before: Vec<&str> = self.before.unwrap_or_default().lines().collect();
        let is_ours = |line: &&str| !is_header(line) && !before.contains(line);
        let ours: Vec<&str> = self.after.lines().filter(is_ours).collect();
        let rest: String = now
            .split_inclusive('\n')
            .filter(|line| !ours.contains(&line.trim_end_matches(['\r', '\n'])))
            .collect();
        let is_left = self.before.is_some() || !rest.lines().all(is_header);
        Reverted { text: Some(rest).filter(|_| is_left), edited: Vec::new() }
    }
}

impl Step {
    fn keys(&self) -> &[String] {
        match self {
            Self::Remove(keys) | Self::Set(keys, _) => keys,
        }
    }

    fn apply(&self, value: &mut Value) {
        let Some((last, above)) = self.keys().split_last() else { return };
        let table = above.iter().try_fold(value, |table, key| table.get_mut(key));
        let Some(Value::Object(table)) = table else { return };
        match self {
            Self::Remove(_) => {
                table.shift_remove(last);
            }
            Self::Set(_, new) => {
                table.insert(last.clone(), new.clone());
            }
        }
    }
}

/// Returns the tables that `install` added and that are now empty, the innermost first.
fn emptied(settings: &[Setting], before: &Value, now: &Value) -> Vec<Vec<String>> {
    let prefixes = settings.iter().flat_map(|setting| {
        (1..setting.keys.len()).filter_map(|length| setting.keys.get(..length))
    });
    let mut tables: Vec<&[String]> = prefixes.filter(|keys| at(before, keys).is_none()).collect();
    tables.sort_by_key(|keys| std::cmp::Reverse(keys.len()));
    tables.dedup();
    let (mut now, mut emptied) = (now.clone(), Vec::new());
    for keys in tables {
        if at(&now, keys).is_some_and(|table| *table == Value::Object(Map::new())) {
            let step = Step::Remove(keys.to_vec());
            step.apply(&mut now);
            emptied.push(keys.to_vec());
        }
    }
    emptied
}

/// Whether a file has no content besides its version.
fn is_nothing(value: &Value) -> bool {
    value.as_object().is_none_or(|table| table.keys().all(|key| key == "version"))
}

fn without_empty_tables(value: &Value) -> Value {
    let Value::Object(members) = value else { return value.clone() };
    let members = members.iter().map(|(key, value)| (key.clone(), without_empty_tables(value)));
    let is_left = |(_, value): &(String, Value)| !value.as_object().is_some_and(Map::is_empty);
    Value::Object(members.filter(is_left).collect())
}

fn at<'v>(value: &'v Value, keys: &[String]) -> Option<&'v Value> {
    keys.iter().try_fold(value, |table, key| table.get(key))
}

fn contains_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(there) => there == text,
        Value::Array(list) => list.iter().any(|value| contains_text(value, text)),
        Value::Object(table) => table.values().any(|value| contains_text(value, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn dotted(keys: &[String]) -> String {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    edit::dotted(&keys)
}

/// Parses a file's content; a blank text is an empty object.
fn value_of(syntax: Syntax, path: &str, text: &str) -> Result<Value> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    if syntax == Syntax::Json {
        return serde_json::from_str(text).map_err(|error| {
            Error::new(format!("{path} is not well-formed JSON: {}", quoted(&error.to_string())))
        });
    }
    let document = edit::parse(path, text).map_err(|error| Error::new(error.why()))?;
    Ok(value_of_table(document.as_table()))
}

fn value_of_table(table: &dyn TableLike) -> Value {
    let members = table.iter().map(|(key, item)| (key.to_owned(), value_of_item(item)));
    Value::Object(members.collect())
}

fn value_of_item(item: &Item) -> Value {
    if let Some(table) = item.as_table_like() {
        return value_of_table(table);
    }
    match item {
        Item::ArrayOfTables(tables) => tables.iter().map(|table| value_of_table(table)).collect(),
        Item::Value(value) => value_of_scalar(value),
        Item::None | Item::Table(_) => Value::Null,
    }
}

fn value_of_scalar(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => text.value().as_str().into(),
        toml_edit::Value::Integer(number) => (*number.value()).into(),
        toml_edit::Value::Boolean(word) => (*word.value()).into(),
        toml_edit::Value::Array(list) => list.iter().map(value_of_scalar).collect(),
        toml_edit::Value::InlineTable(table) => value_of_table(table),
        // These forms are only compared; `install` writes no such value.
        toml_edit::Value::Float(number) => Value::from(format!("float {}", number.value())),
        toml_edit::Value::Datetime(time) => Value::from(format!("time {}", time.value())),
    }
}

fn json_with(path: &str, now: &str, steps: &[Step]) -> Result<String> {
    let unreadable = |error: DocumentError| {
        let what = error.to_string().replace("config.json", path);
        Error::new(what)
    };
    let mut document = SpecDocument::parse(now.as_bytes()).map_err(unreadable)?;
    for step in steps {
        change_json(document.root(), step).map_err(unreadable)?;
    }
    String::from_utf8(document.to_bytes()).map_err(|_not_text| super::engine_files::not_text(path))
}

fn change_json(root: &mut Object<'_>, step: &Step) -> std::result::Result<(), DocumentError> {
    let Some((last, above)) = step.keys().split_last() else { return Ok(()) };
    let mut table = root;
    for key in above {
        table = table.map(key)?;
    }
    match step {
        Step::Remove(_) => table.remove(last),
        Step::Set(_, value) => table.set(last, value),
    }
}

fn toml_with(path: &str, now: &str, steps: &[Step]) -> Result<String> {
    let mut document = edit::parse(path, now)?.into_mut();
    for step in steps {
        change_toml(document.as_table_mut(), step);
    }
    let text = document.to_string();
    // toml_edit ends the lines that it writes with a line feed alone.
    let is_crlf = now.contains("\r\n");
    Ok(if is_crlf { text.replace("\r\n", "\n").replace('\n', "\r\n") } else { text })
}

fn change_toml(root: &mut dyn TableLike, step: &Step) -> Option<()> {
    let (last, above) = step.keys().split_last()?;
    let mut table = root;
    for key in above {
        table = table.get_mut(key)?.as_table_like_mut()?;
    }
    match step {
        Step::Remove(_) => {
            table.remove(last);
        }
        Step::Set(_, new) => {
            let there = table.get_mut(last)?.as_value_mut()?;
            let decor = there.decor().clone();
            *there = toml_of(new)?;
            *there.decor_mut() = decor;
        }
    }
    Some(())
}

/// Converts a JSON value of the ledger to TOML.
fn toml_of(value: &Value) -> Option<toml_edit::Value> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Bool(word) => Some((*word).into()),
        Value::Number(number) => number.as_i64().map(toml_edit::Value::from),
        Value::Array(list) => {
            let list: Option<toml_edit::Array> = list.iter().map(toml_of).collect();
            list.map(toml_edit::Value::from)
        }
        Value::Null | Value::Object(_) => None,
    }
}
