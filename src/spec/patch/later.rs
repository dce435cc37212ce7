// SPDX-License-Identifier: Apache-2.0
//! Edits the document of a process that `exec` starts: the engine creates it from records that lack the values
//! that plugins set at the container's creation.
//!
//! The rule for these values (D36): if a value is absent or the engine's, the plugin's is set; any other value was
//! requested by the caller (`docker exec --env`) and stays. A value that a plugin removed is removed if it is the
//! engine's. Groups belong to a user, so they are added only if the process runs as the user that the engine set
//! for the container. All other bytes are unchanged. What plugins change in the process that `exec` starts
//! ([`patch_exec`]) replaces any value.

use std::collections::BTreeSet;

use oci_document::{Item, Object, SpecDocument};
use serde_json::Value;

use super::process::{Environment, patch_args_of, patch_rlimits_of, replace_rlimit};
use super::{Changes, PatchError, PatchedSpec, Result};
use crate::limits;
use crate::mark::ProcessValue;
use crate::plugin::api;

/// Applies the plugins' values to the document of a process; `None` if nothing changes.
///
/// # Errors
/// Fails if the document cannot be edited unambiguously.
pub fn patch_later_process(document: &[u8], values: &[ProcessValue]) -> Result<Option<Vec<u8>>> {
    let mut document = SpecDocument::parse(document)?;
    let process = document.root();
    let mut is_changed = set_env(process, values)?;
    is_changed |= set_rlimits(process, values)?;
    for value in values {
        is_changed |= set_member(process, value)?;
        is_changed |= add_groups(process, value)?;
    }
    Ok(is_changed.then(|| document.to_bytes()))
}

/// Applies the plugins' changes to the document of a process that `exec` starts.
///
/// # Errors
/// Fails if a value cannot be passed on, or the document cannot be edited unambiguously.
pub(crate) fn patch_exec(
    document: &[u8],
    adjust: &api::ContainerAdjustment,
    cwd: Option<&str>,
) -> Result<PatchedSpec> {
    let mut document = SpecDocument::parse(document)?;
    let process = document.root();
    let mut changes = Changes::default();
    if !adjust.env.is_empty() {
        let mut environment = Environment::take(process)?;
        environment.apply(&adjust.env, &mut changes)?;
        environment.put_back(process)?;
    }
    patch_args_of(process, &adjust.args, &mut changes)?;
    if !adjust.rlimits.is_empty() {
        patch_rlimits_of(process, &adjust.rlimits, &mut changes)?;
    }
    if let Some(cwd) = cwd {
        if !cwd.starts_with('/') || cwd.contains('\0') || cwd.len() > limits::LATER_ARG {
            return Err(PatchError::invalid("Cwd", "it is not an absolute path"));
        }
        changes.set(process, "cwd", Value::from(cwd), ("process.cwd", "Cwd"))?;
    }
    let Changes(changes, _doubts) = changes;
    let bytes = (!changes.is_empty()).then(|| document.to_bytes());
    Ok(PatchedSpec { bytes, changes })
}

fn set_env(process: &mut Object<'_>, values: &[ProcessValue]) -> Result<bool> {
    let mut variables = values.iter().filter_map(|value| Some((value.variable()?, value)));
    let Some(first) = variables.next() else { return Ok(false) };
    let mut environment = Environment::take(process)?;
    let mut is_changed = false;
    for (name, ProcessValue { field: _, engine, plugin }) in [first].into_iter().chain(variables) {
        is_changed |= environment.replace(name, engine.as_str(), plugin.as_str());
    }
    environment.put_back(process)?;
    Ok(is_changed)
}

fn set_rlimits(process: &mut Object<'_>, values: &[ProcessValue]) -> Result<bool> {
    let mut limits = values.iter().filter_map(|value| Some((value.rlimit()?, value)));
    let Some(first) = limits.next() else { return Ok(false) };
    let items = process.array("rlimits")?.items();
    let mut is_changed = false;
    for (name, ProcessValue { field: _, engine, plugin }) in [first].into_iter().chain(limits) {
        is_changed |= replace_rlimit(items, name, engine, plugin)?;
    }
    Ok(is_changed)
}

fn set_member(process: &mut Object<'_>, value: &ProcessValue) -> Result<bool> {
    let (Some(name), ProcessValue { field: _, engine, plugin }) = (value.member(), value) else {
        return Ok(false);
    };
    let there = process.value(name)?;
    let is_due = there.as_ref().is_none_or(|there| there == engine);
    if !is_due || there.as_ref().unwrap_or(&Value::Null) == plugin {
        return Ok(false);
    }
    if plugin.is_null() {
        process.remove(name)?;
    } else {
        process.set(name, plugin)?;
    }
    Ok(true)
}

/// Adds groups if the process runs as the user that the engine set for the container, with that user's groups or with
/// none.
fn add_groups(process: &mut Object<'_>, value: &ProcessValue) -> Result<bool> {
    let Some((engine, added)) = value.groups() else { return Ok(false) };
    let user = process.object("user")?;
    for id in ["uid", "gid"] {
        let there = user.value(id)?;
        if number(there.as_ref()) != number(engine.get(id)) {
            return Ok(false);
        }
    }
    let items = user.array("additionalGids")?.items();
    let there: BTreeSet<u64> = items.iter().filter_map(|item| item.value().as_u64()).collect();
    if !there.is_empty() && there != numbers(engine.get("additionalGids")) {
        return Ok(false);
    }
    let new = numbers(Some(added)).into_iter().filter(|group| !there.contains(group));
    let new: Vec<Item<'_>> = new.map(|group| Item::new(&group.into())).collect();
    let is_changed = !new.is_empty();
    items.extend(new);
    Ok(is_changed)
}

/// Returns an ID; every runtime reads an absent one as zero.
fn number(id: Option<&Value>) -> u64 {
    id.and_then(Value::as_u64).unwrap_or_default()
}

fn numbers(ids: Option<&Value>) -> BTreeSet<u64> {
    ids.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(field: &str, engine: Value, plugin: Value) -> ProcessValue {
        ProcessValue { field: field.to_owned(), engine, plugin }
    }

    #[track_caller]
    fn becomes(document: &str, values: &[ProcessValue], wanted: &str) {
        let patched = patch_later_process(document.as_bytes(), values).unwrap();
        let patched = patched.map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(patched.as_deref().unwrap_or(document), wanted);
        assert_eq!(patched.is_none(), document == wanted, "an unchanged document is not written");
    }

    #[test]
    fn a_plugins_variable_replaces_an_absent_or_engine_value() {
        let values = [
            value("process.env[NEW]", Value::Null, json!("n")),
            value("process.env[A]", json!("1"), json!("a=b")),
            value("process.env[GONE]", json!("2"), Value::Null),
            value("process.env[B[0]]", json!("3"), json!("")),
        ];
        becomes(
            r#"{"args": [ "x" ],  "env": ["A=1", "GONE=2",  "B[0]=3","C=\u00e9" ], "odd": 1.0e3}"#,
            &values,
            r#"{"args": [ "x" ],  "env": ["A=a=b",  "B[0]=","C=\u00e9","NEW=n" ], "odd": 1.0e3}"#,
        );
        becomes(r#"{"cwd":"/"}"#, &values, r#"{"cwd":"/","env":["NEW=n","A=a=b","B[0]="]}"#);
        becomes(r#"{"env":null}"#, &values[..1], r#"{"env":["NEW=n"]}"#);
    }

    #[test]
    fn a_variable_of_the_caller_stays() {
        let values = [
            value("process.env[NEW]", Value::Null, json!("n")),
            value("process.env[A]", json!("1"), json!("a")),
            value("process.env[GONE]", json!("2"), Value::Null),
        ];
        let asked = r#"{"env":["NEW=mine","A=","GONE=3","A","=1"]}"#;
        becomes(asked, &values, asked);
        let done = r#"{"env":["NEW=n","A=a"]}"#;
        becomes(done, &values, done);
    }

    #[test]
    fn the_last_of_duplicate_variables_applies() {
        let values = [value("process.env[A]", json!("2"), json!("a"))];
        becomes(r#"{"env":["A=1","B=","A=2"]}"#, &values, r#"{"env":["A=a","B="]}"#);
        let asked = r#"{"env":["A=2","A=1"]}"#;
        becomes(asked, &values, asked);
        let values = [value("process.env[A]", json!("2"), Value::Null)];
        becomes(r#"{"env":["A=1","B=","A=2"]}"#, &values, r#"{"env":["B="]}"#);
    }

    #[test]
    fn a_plugins_limit_applies_unless_the_caller_set_another() {
        let limit = |hard: u64, soft: u64| json!({"type":"RLIMIT_NOFILE","hard":hard,"soft":soft});
        let set = [value("process.rlimits[RLIMIT_NOFILE]", Value::Null, limit(9, 8))];
        let changed = [value("process.rlimits[RLIMIT_NOFILE]", limit(4, 3), limit(u64::MAX, 8))];
        let other = r#"{"rlimits":[{"type":"RLIMIT_NPROC","hard":1,"soft":1}]}"#;
        let both = r#"{"rlimits":[{"type":"RLIMIT_NPROC","hard":1,"soft":1},{"type":"RLIMIT_NOFILE","hard":9,"soft":8}]}"#;
        becomes(other, &set, both);
        becomes(both, &set, both);
        becomes(
            r#"{"rlimits":[{"type":"nofile","soft":3,"hard":4}]}"#,
            &changed,
            r#"{"rlimits":[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":8}]}"#,
        );
        let asked = r#"{"rlimits":[{"type":"RLIMIT_NOFILE","hard":5,"soft":3}]}"#;
        becomes(asked, &changed, asked);
        becomes(asked, &set, asked);
        let odd = r#"{"rlimits":[{"type":"RLIMIT_NOFILE"}]}"#;
        becomes(odd, &changed, odd);
    }

    #[test]
    fn plugin_values_replace_members_the_caller_left_unset() {
        let idle = json!({"policy": "SCHED_IDLE"});
        let values = [
            value("process.oomScoreAdj", json!(100), json!(-5)),
            value("process.scheduler", Value::Null, idle),
            value("process.ioPriority", json!({"class": "IOPRIO_CLASS_BE"}), Value::Null),
        ];
        let (done, idle) = (r#""oomScoreAdj":-5"#, r#""scheduler":{"policy":"SCHED_IDLE"}"#);
        becomes("{}", &values, &format!("{{{done},{idle}}}"));
        becomes(
            r#"{ "oomScoreAdj" : 100, "ioPriority": {"class":"IOPRIO_CLASS_BE"}, "x": [] }"#,
            &values[..],
            r#"{ "oomScoreAdj" : -5, "x": [], "scheduler" : {"policy":"SCHED_IDLE"} }"#,
        );
        let asked = r#"{"oomScoreAdj":0,"scheduler":{"policy":"SCHED_FIFO"},"ioPriority":{"class":"IOPRIO_CLASS_RT"}}"#;
        becomes(asked, &values, asked);
    }

    fn groups(user: Value, added: Value) -> [ProcessValue; 1] {
        [value("process.user.additionalGids", user, added)]
    }

    #[test]
    fn groups_are_added_to_the_user_of_the_container() {
        let of_root = groups(json!({"uid": 0, "gid": 0}), json!([44, 45]));
        let done = r#"{"user":{"uid":0,"gid":0,"additionalGids":[44,45]}}"#;
        becomes(r#"{"user":{"uid":0,"gid":0}}"#, &of_root, done);
        becomes(done, &of_root, done);
        becomes("{}", &of_root, r#"{"user":{"additionalGids":[44,45]}}"#);
        let user = json!({"uid": 7, "gid": 8, "additionalGids": [8, 9]});
        becomes(
            r#"{"user": { "uid":7, "gid":8, "additionalGids":[9,8], "umask":18 }}"#,
            &groups(user.clone(), json!([44, 9])),
            r#"{"user": { "uid":7, "gid":8, "additionalGids":[9,8,44], "umask":18 }}"#,
        );
        becomes(
            r#"{"user":{"uid":7,"gid":8}}"#,
            &groups(user, json!([44])),
            r#"{"user":{"uid":7,"gid":8,"additionalGids":[44]}}"#,
        );
    }

    #[test]
    fn groups_of_a_user_that_the_caller_named_stay() {
        let user = json!({"uid": 7, "gid": 8, "additionalGids": [8]});
        for asked in [
            r#"{"user":{"uid":0,"gid":8,"additionalGids":[8]}}"#,
            r#"{"user":{"uid":7,"gid":0,"additionalGids":[8]}}"#,
            r#"{"user":{"uid":7,"gid":8,"additionalGids":[8,9]}}"#,
            r#"{"user":{"uid":7,"gid":8,"additionalGids":[9]}}"#,
            "{}",
        ] {
            becomes(asked, &groups(user.clone(), json!([44])), asked);
        }
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        let values = [value("process.env[A]", Value::Null, json!("1"))];
        for document in [
            "",
            "[]",
            "{\"env\":[",
            r#"{"env":{}}"#,
            r#"{"env":[],"Env":[]}"#,
            "null",
            "{\"env\":1}",
        ] {
            assert!(patch_later_process(document.as_bytes(), &values).is_err(), "{document}");
        }
        let limits = [value("process.rlimits[RLIMIT_CORE]", Value::Null, json!({"hard": 1}))];
        assert!(patch_later_process(br#"{"rlimits":[1]}"#, &limits).is_err());
        let groups = groups(json!({}), json!([44]));
        assert!(patch_later_process(br#"{"user":1}"#, &groups).is_err());
        assert!(patch_later_process(br#"{"user":{"additionalGids":{}}}"#, &groups).is_err());
    }

    #[test]
    fn unknown_members_stay_unchanged() {
        let values = [value("process.execCPUAffinity", Value::Null, json!({"initial": "0"}))];
        becomes(r#"{"env":[]}"#, &values, r#"{"env":[]}"#);
        becomes(r#"{"env":[]}"#, &[], r#"{"env":[]}"#);
    }
}
