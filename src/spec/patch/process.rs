// SPDX-License-Identifier: Apache-2.0
//! The process: environment, arguments, resource limits, OOM score.
//!
//! What a plugin does not name stays, also entries that are no `NAME=value`. It never expands or
//! merges values: a variable is replaced as a whole.
//! Reference: NRI `AdjustEnv`, `AdjustArgs`, `AdjustOomScoreAdj`, `AdjustRlimits`, but for BUG-01,
//! BUG-18, BUG-G2, BUG-G5, BUG-G17 (docs/nri-differences.md).

use std::collections::HashMap;

use oci_spec::runtime::{PosixRlimitBuilder, PosixRlimitType};
use serde_json::Value;

use super::{Changes, PatchError, fragment, invalid_fragment, unmark};
use crate::plugin::api;
use crate::spec::array::Item;
use crate::spec::document::Object;

/// What an adjustment wants one variable to be, and what was found of it.
struct Variable<'a> {
    name: &'a str,
    wanted: Option<&'a str>,
    before: Option<String>,
    /// How often the document has it.
    count: usize,
}

/// Sets and removes variables. A removed one is gone however often it was there; a new value
/// takes the place of the first.
pub(super) fn patch_env(
    root: &mut Object<'_>,
    env: &[api::KeyValue],
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let mut variables = variables(env)?;
    if variables.is_empty() {
        return Ok(());
    }
    let by_name: HashMap<&str, usize> =
        variables.iter().enumerate().map(|(index, v)| (v.name, index)).collect();
    let items = root.object("process")?.array("env")?.items();
    items.retain_mut(|item| {
        let Some(entry) = item.as_string() else { return true };
        let Some((name, value)) = entry.split_once('=') else { return true };
        let Some(variable) = by_name.get(name).and_then(|index| variables.get_mut(*index)) else {
            return true;
        };
        variable.count += 1;
        variable.before = Some(value.to_owned());
        match variable.wanted {
            Some(wanted) if variable.count == 1 => {
                if wanted != value {
                    item.replace(&Value::from(format!("{name}={wanted}")));
                }
                true
            }
            _ => false,
        }
    });
    for Variable { name, wanted, before, count } in variables {
        let is_same = count <= 1 && before.as_deref() == wanted;
        if is_same {
            continue;
        }
        if let (Some(wanted), 0) = (wanted, count) {
            items.push(Item::new(&Value::from(format!("{name}={wanted}"))));
        }
        let after = wanted.map(Value::from);
        let (field, nri_field) = (format!("process.env[{name}]"), format!("Env[{name}]"));
        changes.note(field, nri_field, before.map(Value::from), after);
    }
    Ok(())
}

fn variables(env: &[api::KeyValue]) -> Result<Vec<Variable<'_>>, PatchError> {
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
            return Err(PatchError::invalid(field, "\"=\" in a name and NUL cannot be passed on"));
        }
        let index = *by_name.entry(name).or_insert_with(|| {
            variables.push(Variable { name, wanted: None, before: None, count: 0 });
            variables.len() - 1
        });
        if let (false, Some(variable)) = (is_removal, variables.get_mut(index)) {
            variable.wanted = Some(value);
        }
    }
    Ok(variables)
}

/// Replaces the whole command line.
pub(super) fn patch_args(
    root: &mut Object<'_>,
    args: &[String],
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let Some(program) = args.first() else { return Ok(()) };
    if program.is_empty() {
        return Err(PatchError::invalid("Args", "the first argument, the program, is empty"));
    }
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(PatchError::invalid("Args", "an argument contains NUL"));
    }
    let process = root.object("process")?;
    Ok(changes.set(process, "args", Value::from(args), ("process.args", "Args"))?)
}

/// Sets the OOM score adjustment.
pub(super) fn patch_oom_score_adj(
    root: &mut Object<'_>,
    score: Option<i64>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let Some(score) = score else { return Ok(()) };
    if !(-1000..=1000).contains(&score) {
        let problem = format!("{score} is outside -1000 to 1000");
        return Err(PatchError::invalid("OomScoreAdj", problem));
    }
    let names = ("process.oomScoreAdj", "OomScoreAdj");
    Ok(changes.set(root.object("process")?, "oomScoreAdj", Value::from(score), names)?)
}

/// Sets resource limits, each in place of what the document has of its type.
pub(super) fn patch_rlimits(
    root: &mut Object<'_>,
    rlimits: &[api::POSIXRlimit],
    changes: &mut Changes,
) -> Result<(), PatchError> {
    if rlimits.is_empty() {
        return Ok(());
    }
    let items = root.object("process")?.array("rlimits")?.items();
    for rlimit in rlimits {
        let api::POSIXRlimit { type_, hard, soft, special_fields: _ } = rlimit;
        let name = rlimit_name(type_);
        let nri_field = format!("Rlimits[{name}]");
        if soft > hard {
            let problem = format!("its soft limit {soft} is above its hard limit {hard}");
            return Err(PatchError::invalid(nri_field, problem));
        }
        let typ: PosixRlimitType = serde_json::from_value(Value::from(name.as_str()))
            .map_err(|_unknown| PatchError::invalid(&nri_field, "Linux has no such limit"))?;
        let limit = PosixRlimitBuilder::default()
            .typ(typ)
            .hard(*hard)
            .soft(*soft)
            .build()
            .map_err(|error| invalid_fragment(&nri_field, &error))?;
        let value = fragment(&nri_field, &limit)?;
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
) -> Result<(), PatchError> {
    let mut matching = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let typ = item.open("process.rlimits[]")?.value("type")?;
        if typ.as_ref().and_then(Value::as_str).is_some_and(|typ| rlimit_name(typ) == name) {
            matching.push(index);
        }
    }
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

/// `nofile`, `NOFILE` and `RLIMIT_NOFILE` are one limit; runtimes know the last only.
fn rlimit_name(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    if name.starts_with("RLIMIT_") { name } else { format!("RLIMIT_{name}") }
}
