// SPDX-License-Identifier: Apache-2.0
//! Applies changes of the process: environment, arguments, resource limits, OOM score.
//!
//! Entries that a plugin does not name stay, even those without `=`. Values are never expanded or merged: a
//! variable is replaced as a whole. Reference: NRI `AdjustEnv`, `AdjustArgs`, `AdjustOomScoreAdj`,
//! `AdjustRlimits`, except for BUG-01, BUG-18, BUG-G2, BUG-G5, BUG-G17 (docs/nri-differences.md).

use std::collections::HashMap;

use nri_adaptation::keys;
use oci_document::{Item, Object};
use oci_spec::runtime::PosixRlimitType;
use serde_json::{Value, json};

use super::{Changes, Patch, PatchError, Result, unmark};
use crate::plugin::api;

/// A variable of an adjustment; it is removed if it has no value.
struct Variable<'a> {
    name: &'a str,
    wanted: Option<&'a str>,
}

/// Sets and removes variables. A removal removes all occurrences; a new value replaces the first
/// occurrence and removes the others.
pub(super) fn patch_env(patch: &mut Patch<'_, '_>, env: &[api::KeyValue]) -> Result<()> {
    if variables(env)?.is_empty() {
        return Ok(());
    }
    let process = patch.root.object("process")?;
    let mut environment = Environment::take(process)?;
    environment.apply(env, &mut patch.changes)?;
    environment.put_back(process)
}

/// A document's environment while it is edited: read once and written once.
pub(super) struct Environment<'t> {
    /// The entries; `None` for a removed one.
    entries: Vec<Option<Item<'t>>>,
    by_name: HashMap<String, Vec<usize>>,
}

impl<'t> Environment<'t> {
    /// Takes the environment of a process out; the document has none until it is put back.
    pub(super) fn take(process: &mut Object<'t>) -> Result<Self> {
        let items = std::mem::take(process.array("env")?.items());
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let entry = item.as_string();
            if let Some((name, _)) = entry.as_deref().and_then(|entry| entry.split_once('=')) {
                by_name.entry(name.to_owned()).or_default().push(place);
            }
        }
        Ok(Self { entries: items.into_iter().map(Some).collect(), by_name })
    }

    /// Writes the environment into the document.
    pub(super) fn put_back(self, process: &mut Object<'t>) -> Result<()> {
        let entries = self.entries.into_iter().flatten().collect();
        *process.array("env")?.items() = entries;
        Ok(())
    }

    /// Sets and removes these variables.
    pub(super) fn apply(&mut self, env: &[api::KeyValue], changes: &mut Changes) -> Result<()> {
        for Variable { name, wanted } in variables(env)? {
            let (there, before) = self.find(name);
            if there.len() <= 1 && before.as_deref() == wanted {
                continue;
            }
            self.place(name, wanted, there);
            let after = wanted.map(Value::from);
            let (field, nri_field) = (format!("process.env[{name}]"), format!("Env[{name}]"));
            changes.note(field, nri_field, before.map(Value::from), after);
        }
        Ok(())
    }

    /// Finds the positions of a variable, and its value, which is that of the last occurrence.
    fn find(&self, name: &str) -> (Vec<usize>, Option<String>) {
        let there = self.by_name.get(name).cloned().unwrap_or_default();
        let last = there.last().and_then(|at| self.entries.get(*at)?.as_ref()?.as_string());
        let value = last.as_deref().and_then(|entry| Some(entry.split_once('=')?.1));
        let value = value.map(str::to_owned);
        (there, value)
    }

    /// Sets a variable to `wanted` (`None` removes it) if it is absent or has the value `replaced`;
    /// returns whether the document changed.
    pub(super) fn replace(
        &mut self,
        name: &str,
        replaced: Option<&str>,
        wanted: Option<&str>,
    ) -> bool {
        let (there, value) = self.find(name);
        let is_due = value.is_none() || value.as_deref() == replaced;
        if !is_due || value.as_deref() == wanted {
            return false;
        }
        self.place(name, wanted, there);
        true
    }

    fn place(&mut self, name: &str, wanted: Option<&str>, there: Vec<usize>) {
        let mut places = there.into_iter();
        let first = places.next().filter(|_| wanted.is_some());
        if first.is_none() {
            self.by_name.get(name).into_iter().flatten().for_each(|at| self.entries[*at] = None);
        }
        places.for_each(|at| self.entries[at] = None);
        let entry = wanted.map(|wanted| Value::from(format!("{name}={wanted}")));
        let place = match (first, &entry) {
            (Some(first), Some(entry)) => {
                let item = self.entries.get_mut(first).and_then(Option::as_mut);
                item.filter(|item| item.value() != *entry)
                    .into_iter()
                    .for_each(|i| i.replace(entry));
                Some(first)
            }
            (_, Some(entry)) => {
                self.entries.push(Some(Item::new(entry)));
                Some(self.entries.len() - 1)
            }
            (_, None) => None,
        };
        self.by_name.insert(name.to_owned(), place.into_iter().collect());
    }
}

fn variables(env: &[api::KeyValue]) -> Result<Vec<Variable<'_>>> {
    let mut variables: Vec<Variable<'_>> = Vec::with_capacity(env.len());
    let mut by_name: HashMap<&str, usize> = HashMap::with_capacity(env.len());
    for api::KeyValue { key, value, special_fields: _ } in env {
        let (name, is_removal) = unmark(key);
        // NRI: an entry without a name is ignored.
        if name.is_empty() {
            continue;
        }
        if name.contains('=') || name.contains('\0') || value.contains('\0') {
            let field = format!("Env[{name}]");
            return Err(PatchError::invalid(field, "\"=\" in a name, or NUL, cannot be passed on"));
        }
        let index = *by_name.entry(name).or_insert_with(|| {
            variables.push(Variable { name, wanted: None });
            variables.len() - 1
        });
        if let (false, Some(variable)) = (is_removal, variables.get_mut(index)) {
            variable.wanted = Some(value);
        }
    }
    Ok(variables)
}

pub(super) fn patch_args(patch: &mut Patch<'_, '_>, args: &[String]) -> Result<()> {
    if args.is_empty() {
        return Ok(());
    }
    patch_args_of(patch.root.object("process")?, args, &mut patch.changes)
}

/// Like [`patch_args`], for the process in any document.
pub(super) fn patch_args_of(
    process: &mut Object<'_>,
    args: &[String],
    changes: &mut Changes,
) -> Result<()> {
    let Some(program) = args.first() else { return Ok(()) };
    if program.is_empty() {
        return Err(PatchError::invalid("Args", "the first argument, the program, is empty"));
    }
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(PatchError::invalid("Args", "an argument contains NUL"));
    }
    Ok(changes.set(process, "args", Value::from(args), ("process.args", "Args"))?)
}

pub(super) fn patch_oom_score_adj(patch: &mut Patch<'_, '_>, score: Option<i64>) -> Result<()> {
    let Some(score) = score else { return Ok(()) };
    if !(-1000..=1000).contains(&score) {
        let problem = format!("{score} is outside -1000 to 1000");
        return Err(PatchError::invalid("OomScoreAdj", problem));
    }
    let names = ("process.oomScoreAdj", "OomScoreAdj");
    Ok(patch.changes.set(
        patch.root.object("process")?,
        "oomScoreAdj",
        Value::from(score),
        names,
    )?)
}

/// Sets resource limits; each replaces the document's limit of the same type.
pub(super) fn patch_rlimits(patch: &mut Patch<'_, '_>, rlimits: &[api::POSIXRlimit]) -> Result<()> {
    if rlimits.is_empty() {
        return Ok(());
    }
    patch_rlimits_of(patch.root.object("process")?, rlimits, &mut patch.changes)
}

/// Like [`patch_rlimits`], for the process in any document.
pub(super) fn patch_rlimits_of(
    process: &mut Object<'_>,
    rlimits: &[api::POSIXRlimit],
    changes: &mut Changes,
) -> Result<()> {
    let items = process.array("rlimits")?.items();
    for rlimit in rlimits {
        let api::POSIXRlimit { type_, hard, soft, special_fields: _ } = rlimit;
        let name = keys::rlimit(type_);
        let nri_field = format!("Rlimits[{name}]");
        if soft > hard {
            let problem = format!("its soft limit {soft} is above its hard limit {hard}");
            return Err(PatchError::invalid(nri_field, problem));
        }
        if serde_json::from_value::<PosixRlimitType>(name.as_str().into()).is_err() {
            return Err(PatchError::invalid(nri_field, "Linux has no such limit"));
        }
        let value = json!({"type": name, "hard": hard, "soft": soft});
        put_rlimit(items, &name, nri_field, value, changes)?;
    }
    Ok(())
}

fn put_rlimit(
    items: &mut Vec<Item<'_>>,
    name: &str,
    nri_field: String,
    value: Value,
    changes: &mut Changes,
) -> Result<()> {
    let matching = places_of_rlimit(items, name)?;
    let before = matching.first().and_then(|first| items.get(*first)).map(Item::value);
    if matching.len() == 1 && before.as_ref() == Some(&value) {
        return Ok(());
    }
    match matching.first().and_then(|first| items.get_mut(*first)) {
        Some(first) => first.replace(&value),
        None => items.push(Item::new(&value)),
    }
    for extra in matching.iter().skip(1).rev() {
        items.remove(*extra);
    }
    changes.note(format!("process.rlimits[{name}]"), nri_field, before, Some(value));
    Ok(())
}

/// If the limit is absent or equals `replaced`, sets it to `wanted` (`null` removes it). Returns
/// whether the document changed.
pub(super) fn replace_rlimit(
    items: &mut Vec<Item<'_>>,
    name: &str,
    replaced: &Value,
    wanted: &Value,
) -> Result<bool> {
    let there = places_of_rlimit(items, name)?;
    let values: Vec<Value> =
        there.iter().filter_map(|at| items.get(*at)).map(Item::value).collect();
    let is_due = values.iter().all(|value| is_same_limit(value, replaced));
    if !is_due || values.iter().any(|value| is_same_limit(value, wanted)) {
        return Ok(false);
    }
    match (there.first().and_then(|first| items.get_mut(*first)), wanted) {
        (None, Value::Null) => return Ok(false),
        (None, _) => items.push(Item::new(wanted)),
        (Some(first), _) => first.replace(wanted),
    }
    let gone = there.iter().skip(usize::from(!wanted.is_null())).rev();
    gone.for_each(|extra| drop(items.remove(*extra)));
    Ok(true)
}

fn is_same_limit(one: &Value, other: &Value) -> bool {
    let number = |limit: &Value, member: &str| limit.get(member).and_then(Value::as_u64);
    ["hard", "soft"].into_iter().all(|member| {
        let (one, other) = (number(one, member), number(other, member));
        one.is_some() && one == other
    })
}

fn places_of_rlimit(items: &[Item<'_>], name: &str) -> Result<Vec<usize>> {
    let mut places = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let typ = item.open("process.rlimits[]")?.value("type")?;
        if typ.as_ref().and_then(Value::as_str).is_some_and(|typ| keys::rlimit(typ) == name) {
            places.push(index);
        }
    }
    Ok(places)
}
