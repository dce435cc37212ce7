// SPDX-License-Identifier: Apache-2.0
//! The seccomp policy, replaced as a whole.
//!
//! Words are only looked at for their shape: which of them exist is for the runtime's libseccomp
//! to say. A policy is never merged with the engine's and cannot be removed; NRI has no way to
//! ask for either.
//! Reference: nri-semantics 5.2 row 11, with BUG-G6 put right; OCI `config-linux.md`, seccomp.

use protobuf::MessageField;
use serde_json::{Map, Value};

use super::{Changes, PatchError};
use crate::error::quoted;
use crate::plugin::api;
use crate::spec::document::Object;

const FIELD: &str = "SeccompPolicy";

/// The action that asks another process.
const NOTIFY: &str = "SCMP_ACT_NOTIFY";

/// The kernel hands six arguments to a system call.
const LAST_ARGUMENT: u32 = 5;

/// Replaces the policy.
pub(super) fn patch(
    root: &mut Object<'_>,
    policy: Option<&api::LinuxSeccomp>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let Some(policy) = policy else { return Ok(()) };
    let value = policy_value(policy).map_err(|problem| PatchError::invalid(FIELD, problem))?;
    Ok(changes.set(root.object("linux")?, "seccomp", value, ("linux.seccomp", FIELD))?)
}

fn policy_value(policy: &api::LinuxSeccomp) -> Result<Value, String> {
    let api::LinuxSeccomp {
        default_action,
        default_errno,
        architectures,
        flags,
        listener_path,
        listener_metadata,
        syscalls,
        special_fields: _,
    } = policy;
    if !listener_path.is_empty()
        && (!listener_path.starts_with('/') || listener_path.contains('\0'))
    {
        return Err(format!("the listener path \"{}\" is not absolute", quoted(listener_path)));
    }
    if !listener_metadata.is_empty() && listener_path.is_empty() {
        return Err("there is listener metadata without a listener path".to_owned());
    }
    let notifies = |rule: &&api::LinuxSyscall| rule.action == NOTIFY;
    if default_action == NOTIFY {
        return Err(format!(
            "{NOTIFY} cannot be the default action: the runtime would wait for itself"
        ));
    }
    if syscalls.iter().filter(notifies).any(|rule| rule.names.iter().any(|name| name == "write")) {
        return Err(format!(
            "{NOTIFY} cannot be the action for write: the runtime would wait for itself"
        ));
    }
    if listener_path.is_empty() && syscalls.iter().any(|rule| notifies(&rule)) {
        return Err(format!("{NOTIFY} needs a listener path"));
    }
    let mut value = Map::new();
    let mut put = |key: &str, part: Value| {
        if part != "" && part != Value::Array(Vec::new()) {
            value.insert(key.to_owned(), part);
        }
    };
    put("defaultAction", word(default_action, "SCMP_ACT_", "default action")?);
    if let Some(errno) = errno(default_errno)? {
        put("defaultErrnoRet", errno);
    }
    put("architectures", words(architectures, "SCMP_ARCH_", "architecture")?);
    put("flags", words(flags, "SECCOMP_FILTER_FLAG_", "filter flag")?);
    put("listenerPath", Value::from(listener_path.as_str()));
    put("listenerMetadata", Value::from(listener_metadata.as_str()));
    let rules: Result<Vec<Value>, String> = syscalls.iter().map(rule_value).collect();
    put("syscalls", Value::Array(rules?));
    Ok(Value::Object(value))
}

fn rule_value(rule: &api::LinuxSyscall) -> Result<Value, String> {
    let api::LinuxSyscall { names, action, errno_ret, args, special_fields: _ } = rule;
    if names.is_empty() {
        return Err("a rule names no system call".to_owned());
    }
    let is_name = |name: &&String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if let Some(odd) = names.iter().find(|name| !is_name(name)) {
        return Err(format!("\"{}\" is no name of a system call", quoted(odd)));
    }
    let mut value = Map::new();
    value.insert("names".to_owned(), Value::from(names.as_slice()));
    value.insert("action".to_owned(), word(action, "SCMP_ACT_", "action")?);
    if let Some(errno) = errno(errno_ret)? {
        value.insert("errnoRet".to_owned(), errno);
    }
    if !args.is_empty() {
        let args: Result<Vec<Value>, String> = args.iter().map(argument_value).collect();
        value.insert("args".to_owned(), Value::Array(args?));
    }
    Ok(Value::Object(value))
}

fn argument_value(argument: &api::LinuxSeccompArg) -> Result<Value, String> {
    let api::LinuxSeccompArg { index, value, value_two, op, special_fields: _ } = argument;
    if *index > LAST_ARGUMENT {
        return Err(format!("no system call has an argument {index}"));
    }
    let mut argument = Map::new();
    argument.insert("index".to_owned(), Value::from(*index));
    argument.insert("value".to_owned(), Value::from(*value));
    if *value_two != 0 {
        argument.insert("valueTwo".to_owned(), Value::from(*value_two));
    }
    argument.insert("op".to_owned(), word(op, "SCMP_CMP_", "comparison")?);
    Ok(Value::Object(argument))
}

/// The kernel returns sixteen bits; runtimes cut off the rest without a word.
fn errno(given: &MessageField<api::OptionalUInt32>) -> Result<Option<Value>, String> {
    let Some(errno) = given.as_ref().map(|given| given.value) else { return Ok(None) };
    if errno > u32::from(u16::MAX) {
        return Err(format!("{errno} is no error number"));
    }
    Ok(Some(Value::from(errno)))
}

fn words(given: &[String], prefix: &str, what: &str) -> Result<Value, String> {
    given.iter().map(|given| word(given, prefix, what)).collect()
}

fn word(given: &str, prefix: &str, what: &str) -> Result<Value, String> {
    let is_letter = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    match given.strip_prefix(prefix) {
        Some(rest) if !rest.is_empty() && rest.chars().all(is_letter) => Ok(Value::from(given)),
        _ => Err(format!("\"{}\" is no {what} ({prefix}...)", quoted(given))),
    }
}
