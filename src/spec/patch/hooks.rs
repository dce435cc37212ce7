// SPDX-License-Identifier: Apache-2.0
//! Adds OCI hooks after the existing ones.
//!
//! The engine's hooks are never removed or moved; NRI has no request for that. Reference: OCI
//! runtime-spec `config.md`, POSIX-platform hooks; NRI `AdjustHooks`.

use oci_document::Item;
use serde_json::Value;

use super::{Patch, PatchError, Result, object_of};
use crate::error::quoted;
use crate::plugin::api;

const FIELD: &str = "OciHooks";

/// Appends the adjustment's hooks, stage by stage.
pub(super) fn patch(patch: &mut Patch<'_, '_>, hooks: &api::Hooks) -> Result<()> {
    for (stage, hooks) in stages(hooks) {
        if hooks.is_empty() {
            continue;
        }
        let before = patch.root.object("hooks")?.array(stage)?.value();
        append_to(patch, stage, hooks)?;
        let after = patch.root.object("hooks")?.array(stage)?.value();
        patch.changes.note(format!("hooks.{stage}"), FIELD, before, after);
    }
    Ok(())
}

/// Appends the hooks of a CDI device; records only the added ones, not the whole list.
pub(super) fn append(patch: &mut Patch<'_, '_>, hooks: &api::Hooks) -> Result<()> {
    for (stage, hooks) in stages(hooks) {
        if hooks.is_empty() {
            continue;
        }
        let added = append_to(patch, stage, hooks)?;
        patch.changes.note(format!("hooks.{stage}"), FIELD, None, Some(Value::Array(added)));
    }
    Ok(())
}

fn append_to(patch: &mut Patch<'_, '_>, stage: &str, hooks: &[api::Hook]) -> Result<Vec<Value>> {
    let mut added = Vec::with_capacity(hooks.len());
    let items = patch.root.object("hooks")?.array(stage)?.items();
    for hook in hooks {
        let value = hook_value(stage, hook)?;
        items.push(Item::new(&value));
        patch.changes.doubt(FIELD, check_timeout(stage, hook));
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

fn hook_value(stage: &str, hook: &api::Hook) -> Result<Value> {
    let api::Hook { path, args, env, timeout, special_fields: _ } = hook;
    if !path.starts_with('/') {
        let problem = format!("the path \"{}\" of a {stage} hook is not absolute", quoted(path));
        return Err(PatchError::invalid(FIELD, problem));
    }
    if [path].into_iter().chain(args).chain(env).any(|word| word.contains('\0')) {
        let problem =
            format!("a {stage} hook has a NUL byte in its path, arguments or environment");
        return Err(PatchError::invalid(FIELD, problem));
    }
    Ok(object_of([
        ("path", path.as_str().into()),
        ("args", args.as_slice().into()),
        ("env", env.as_slice().into()),
        ("timeout", timeout.as_ref().map(|timeout| timeout.value).into()),
    ]))
}

/// Describes a time-out with which a runtime would end the hook at once: zero or less, or a value
/// that may overflow in nanoseconds.
fn check_timeout(stage: &str, hook: &api::Hook) -> Result<(), String> {
    match hook.timeout.as_ref().map(|timeout| timeout.value) {
        Some(value) if !(1..=i64::from(i32::MAX)).contains(&value) => {
            let path = quoted(&hook.path);
            Err(format!("the timeout {value} of {stage} hook {path} is not a number of seconds"))
        }
        Some(_) | None => Ok(()),
    }
}
