// SPDX-License-Identifier: Apache-2.0
//! Replaces the seccomp policy as a whole.
//!
//! Only the form of names is checked, because the runtime's libseccomp decides which names exist. A
//! policy is never merged with the engine's and cannot be removed, because NRI has no request for
//! either. Reference: NRI `AdjustSeccompPolicy`, except for BUG-G6; OCI `config-linux.md`, seccomp.

use protobuf::MessageField;
use serde_json::Value;

use super::{Patch, PatchError, Result, nonzero, object_of};
use crate::error::quoted;
use crate::plugin::api;

const FIELD: &str = "SeccompPolicy";

/// The action that asks another process.
const NOTIFY: &str = "SCMP_ACT_NOTIFY";

/// The index of a system call's last argument: the kernel passes six.
const LAST_ARGUMENT: u32 = 5;

pub(super) fn patch(patch: &mut Patch<'_, '_>, policy: Option<&api::LinuxSeccomp>) -> Result<()> {
    let Some(policy) = policy else { return Ok(()) };
    let mut doubts = Vec::new();
    let value = policy_value(policy, &mut doubts);
    let value = value.map_err(|problem| PatchError::invalid(FIELD, problem))?;
    for doubt in doubts {
        patch.changes.doubt(FIELD, Err(doubt));
    }
    Ok(patch.changes.set(
        patch.root.object("linux")?,
        "seccomp",
        value,
        ("linux.seccomp", FIELD),
    )?)
}

fn policy_value(policy: &api::LinuxSeccomp, doubts: &mut Vec<String>) -> Result<Value, String> {
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
    doubts.extend(check_notify(policy).err());
    let action = word(default_action, "SCMP_ACT_", "default action", doubts);
    let optional = object_of([
        ("defaultErrnoRet", errno(default_errno, doubts)),
        ("architectures", words(architectures, "SCMP_ARCH_", "architecture", doubts)),
        ("flags", words(flags, "SECCOMP_FILTER_FLAG_", "filter flag", doubts)),
        ("listenerPath", listener_path.as_str().into()),
        ("listenerMetadata", listener_metadata.as_str().into()),
        ("syscalls", syscalls.iter().map(|rule| rule_value(rule, doubts)).collect()),
    ]);
    Ok(with_required([("defaultAction", action)], optional))
}

/// Builds an object with its required members, even if they are empty.
fn with_required<const N: usize>(required: [(&str, Value); N], optional: Value) -> Value {
    let Value::Object(optional) = optional else { return optional };
    required.into_iter().map(|(key, value)| (key.to_owned(), value)).chain(optional).collect()
}

/// Checks that a filter that notifies has a listener, and notifies neither by default nor on
/// `write`, with which the runtime reaches the listener.
fn check_notify(policy: &api::LinuxSeccomp) -> Result<(), String> {
    let notifies = |rule: &&api::LinuxSyscall| rule.action == NOTIFY;
    let mut asking = policy.syscalls.iter().filter(notifies);
    let is_heard = !policy.listener_path.is_empty();
    if !policy.listener_metadata.is_empty() && !is_heard {
        return Err("there is listener metadata without a listener path".to_owned());
    }
    if policy.default_action == NOTIFY {
        return Err(format!(
            "{NOTIFY} cannot be the default action: the runtime would wait for itself"
        ));
    }
    if asking.clone().any(|rule| rule.names.iter().any(|name| name == "write")) {
        return Err(format!(
            "{NOTIFY} cannot be the action for the system call write: the runtime would wait for itself"
        ));
    }
    if asking.next().is_some() && !is_heard {
        return Err(format!("{NOTIFY} needs a listener path"));
    }
    Ok(())
}

fn rule_value(rule: &api::LinuxSyscall, doubts: &mut Vec<String>) -> Value {
    let api::LinuxSyscall { names, action, errno_ret, args, special_fields: _ } = rule;
    if names.is_empty() {
        doubts.push("a rule names no system call".to_owned());
    }
    let is_name = |name: &&String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if let Some(odd) = names.iter().find(|name| !is_name(name)) {
        doubts.push(format!("\"{}\" is not the name of a system call", quoted(odd)));
    }
    let action = word(action, "SCMP_ACT_", "action", doubts);
    let optional = object_of([
        ("errnoRet", errno(errno_ret, doubts)),
        ("args", args.iter().map(|argument| argument_value(argument, doubts)).collect()),
    ]);
    with_required([("names", names.as_slice().into()), ("action", action)], optional)
}

fn argument_value(argument: &api::LinuxSeccompArg, doubts: &mut Vec<String>) -> Value {
    let api::LinuxSeccompArg { index, value, value_two, op, special_fields: _ } = argument;
    if *index > LAST_ARGUMENT {
        doubts.push(format!("no system call has an argument {index}"));
    }
    object_of([
        ("index", (*index).into()),
        ("value", (*value).into()),
        ("valueTwo", nonzero(*value_two)),
        ("op", word(op, "SCMP_CMP_", "comparison", doubts)),
    ])
}

/// Checks the error number: the kernel returns sixteen bits, and runtimes silently cut off the
/// rest.
fn errno(given: &MessageField<api::OptionalUInt32>, doubts: &mut Vec<String>) -> Value {
    let errno = given.as_ref().map(|given| given.value);
    if let Some(errno) = errno.filter(|errno| *errno > u32::from(u16::MAX)) {
        doubts.push(format!("{errno} is not an error number"));
    }
    errno.into()
}

fn words(given: &[String], prefix: &str, what: &str, doubts: &mut Vec<String>) -> Value {
    given.iter().map(|given| word(given, prefix, what, doubts)).collect()
}

fn word(given: &str, prefix: &str, what: &str, doubts: &mut Vec<String>) -> Value {
    let is_letter = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let rest = given.strip_prefix(prefix).unwrap_or_default();
    if rest.is_empty() || !rest.chars().all(is_letter) {
        doubts.push(format!("\"{}\" is not a valid {what} ({prefix}...)", quoted(given)));
    }
    Value::from(given)
}
