// SPDX-License-Identifier: Apache-2.0
//! OCI hooks: each is added after the existing ones.
//!
//! The engine's hooks are never removed or moved; NRI has no request for that. Reference: OCI
//! runtime-spec `config.md`, POSIX-platform hooks; NRI `AdjustHooks`.

use oci_document::{Item, Object};
use serde_json::Value;

use super::{Changes, PatchError, object_of};
use crate::error::quoted;
use crate::plugin::api;

const FIELD: &str = "OciHooks";

/// Appends the adjustment's hooks, stage by stage.
pub(super) fn patch(
    root: &mut Object<'_>,
    hooks: &api::Hooks,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    for (stage, hooks) in stages(hooks) {
        if hooks.is_empty() {
            continue;
        }
        let before = root.object("hooks")?.array(stage)?.value();
        append_to(root, stage, hooks, changes)?;
        let after = root.object("hooks")?.array(stage)?.value();
        changes.note(format!("hooks.{stage}"), FIELD, before, after);
    }
    Ok(())
}

/// Appends the hooks of one of many devices; records only the added ones, not the whole list.
pub(super) fn append(
    root: &mut Object<'_>,
    hooks: &api::Hooks,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    for (stage, hooks) in stages(hooks) {
        if hooks.is_empty() {
            continue;
        }
        let added = append_to(root, stage, hooks, changes)?;
        changes.note(format!("hooks.{stage}"), FIELD, None, Some(Value::Array(added)));
    }
    Ok(())
}

fn append_to(
    root: &mut Object<'_>,
    stage: &str,
    hooks: &[api::Hook],
    changes: &mut Changes,
) -> Result<Vec<Value>, PatchError> {
    let mut added = Vec::with_capacity(hooks.len());
    let items = root.object("hooks")?.array(stage)?.items();
    for hook in hooks {
        let value = hook_value(stage, hook)?;
        items.push(Item::new(&value));
        changes.doubt(FIELD, check_timeout(stage, hook));
        added.push(value);
    }
    Ok(added)
}

fn stages(hooks: &api::Hooks) -> [(&'static str, &[api::Hook]); 6] {
    let api::Hooks {
        prestart,
        create_runtime,
        create_container,
        start_container,
        poststart,
        poststop,
        special_fields: _,
    } = hooks;
    [
        ("prestart", prestart),
        ("poststart", poststart),
        ("poststop", poststop),
        ("createRuntime", create_runtime),
        ("createContainer", create_container),
        ("startContainer", start_container),
    ]
}

fn hook_value(stage: &str, hook: &api::Hook) -> Result<Value, PatchError> {
    let api::Hook { path, args, env, timeout, special_fields: _ } = hook;
    if !path.starts_with('/') {
        let problem = format!("the path \"{}\" of a {stage} hook is not absolute", quoted(path));
        return Err(PatchError::invalid(FIELD, problem));
    }
    if [path].into_iter().chain(args).chain(env).any(|word| word.contains('\0')) {
        let problem = format!("a {stage} hook has NUL in its path, arguments or environment");
        return Err(PatchError::invalid(FIELD, problem));
    }
    Ok(object_of([
        ("path", path.as_str().into()),
        ("args", args.as_slice().into()),
        ("env", env.as_slice().into()),
        ("timeout", timeout.as_ref().map(|timeout| timeout.value).into()),
    ]))
}

/// Refuses a time-out with which a runtime ends the hook before it begins: zero means "at once",
/// and a value that overflows in nanoseconds means the past.
fn check_timeout(stage: &str, hook: &api::Hook) -> Result<(), String> {
    match hook.timeout.as_ref().map(|timeout| timeout.value) {
        Some(value) if !(1..=i64::from(i32::MAX)).contains(&value) => {
            let path = quoted(&hook.path);
            Err(format!("the timeout {value} of {stage} hook {path} is not a number of seconds"))
        }
        Some(_) | None => Ok(()),
    }
}
