// SPDX-License-Identifier: Apache-2.0
//! How the kernel schedules the process: CPU scheduler and I/O priority.
//!
//! Values are checked as the kernel will, while the plugin can still be named. Nothing of
//! what the engine wrote is mixed in: either is replaced, or removed, as a whole.
//! Reference: NRI `AdjustIOPriority`, `AdjustLinuxScheduler`, but for BUG-G14; sched(7), ioprio_set(2).

use oci_document::Object;
use serde_json::{Map, Value, json};

use super::{Changes, PatchError, known};
use crate::plugin::api;

const IO_PRIORITY: &str = "IoPriority";
const SCHEDULER: &str = "LinuxSched";

/// Sets the I/O priority; the class "none" removes it.
pub(super) fn patch_io_priority(
    root: &mut Object<'_>,
    io_priority: Option<&api::LinuxIOPriority>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    use api::IOPrioClass as Class;
    let Some(io_priority) = io_priority else { return Ok(()) };
    let api::LinuxIOPriority { class, priority, special_fields: _ } = io_priority;
    let class = match known(IO_PRIORITY, "class", *class)? {
        Class::IOPRIO_CLASS_NONE => None,
        Class::IOPRIO_CLASS_RT => Some("IOPRIO_CLASS_RT"),
        Class::IOPRIO_CLASS_BE => Some("IOPRIO_CLASS_BE"),
        Class::IOPRIO_CLASS_IDLE => Some("IOPRIO_CLASS_IDLE"),
    };
    if class.is_some() && !(0..=7).contains(priority) {
        changes.doubt(IO_PRIORITY, Err(format!("priority {priority} is outside 0 to 7")));
    }
    let value = class.map(|class| json!({"class": class, "priority": priority}));
    let names = ("process.ioPriority", IO_PRIORITY);
    Ok(changes.put(root.object("process")?, "ioPriority", value, names)?)
}

/// Sets the scheduler; the policy "none" removes it.
pub(super) fn patch_scheduler(
    root: &mut Object<'_>,
    scheduler: Option<&api::LinuxScheduler>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let Some(scheduler) = scheduler else { return Ok(()) };
    let value = scheduler_value(scheduler, changes)?;
    let names = ("process.scheduler", SCHEDULER);
    Ok(changes.put(root.object("process")?, "scheduler", value, names)?)
}

fn scheduler_value(
    scheduler: &api::LinuxScheduler,
    changes: &mut Changes,
) -> Result<Option<Value>, PatchError> {
    let api::LinuxScheduler {
        policy,
        nice,
        priority,
        flags,
        runtime,
        deadline,
        period,
        special_fields: _,
    } = scheduler;
    let policy = known(SCHEDULER, "policy", *policy)?;
    let Some(name) = policy_name(policy) else { return Ok(None) };
    changes.doubt(SCHEDULER, check(scheduler, policy, name));
    let mut names = Vec::with_capacity(flags.len());
    for flag in flags {
        names.push(Value::from(flag_name(known(SCHEDULER, "flag", *flag)?)));
    }
    let mut value = Map::new();
    value.insert("policy".to_owned(), Value::from(name));
    for (key, number) in [("nice", nice), ("priority", priority)] {
        if *number != 0 {
            value.insert(key.to_owned(), Value::from(*number));
        }
    }
    if !names.is_empty() {
        value.insert("flags".to_owned(), Value::Array(names));
    }
    for (key, number) in [("runtime", runtime), ("deadline", deadline), ("period", period)] {
        if *number != 0 {
            value.insert(key.to_owned(), Value::from(*number));
        }
    }
    Ok(Some(Value::Object(value)))
}

/// What the kernel, and before it the runtime, would refuse.
fn check(
    scheduler: &api::LinuxScheduler,
    policy: api::LinuxSchedulerPolicy,
    name: &str,
) -> Result<(), String> {
    use api::LinuxSchedulerPolicy as Policy;
    let api::LinuxScheduler {
        policy: _,
        nice,
        priority,
        flags: _,
        runtime,
        deadline,
        period,
        special_fields: _,
    } = scheduler;
    if !(-20..=19).contains(nice) {
        return Err(format!("nice {nice} is outside -20 to 19"));
    }
    let is_realtime = matches!(policy, Policy::SCHED_FIFO | Policy::SCHED_RR);
    if is_realtime && !(1..=99).contains(priority) {
        return Err(format!("priority {priority} of {name} is outside 1 to 99"));
    }
    if !is_realtime && *priority != 0 {
        return Err(format!("{name} has no priority"));
    }
    let is_ordered = *runtime > 0 && runtime <= deadline && (*period == 0 || deadline <= period);
    if policy == Policy::SCHED_DEADLINE && !is_ordered {
        return Err(format!(
            "{name} needs runtime <= deadline <= period, not {runtime}, {deadline}, {period}"
        ));
    }
    if policy != Policy::SCHED_DEADLINE && (*runtime, *deadline, *period) != (0, 0, 0) {
        return Err(format!("{name} has no runtime, deadline or period"));
    }
    Ok(())
}

fn policy_name(policy: api::LinuxSchedulerPolicy) -> Option<&'static str> {
    use api::LinuxSchedulerPolicy as Policy;
    match policy {
        Policy::SCHED_NONE => None,
        Policy::SCHED_OTHER => Some("SCHED_OTHER"),
        Policy::SCHED_FIFO => Some("SCHED_FIFO"),
        Policy::SCHED_RR => Some("SCHED_RR"),
        Policy::SCHED_BATCH => Some("SCHED_BATCH"),
        Policy::SCHED_ISO => Some("SCHED_ISO"),
        Policy::SCHED_IDLE => Some("SCHED_IDLE"),
        Policy::SCHED_DEADLINE => Some("SCHED_DEADLINE"),
    }
}

fn flag_name(flag: api::LinuxSchedulerFlag) -> &'static str {
    use api::LinuxSchedulerFlag as Flag;
    match flag {
        Flag::SCHED_FLAG_RESET_ON_FORK => "SCHED_FLAG_RESET_ON_FORK",
        Flag::SCHED_FLAG_RECLAIM => "SCHED_FLAG_RECLAIM",
        Flag::SCHED_FLAG_DL_OVERRUN => "SCHED_FLAG_DL_OVERRUN",
        Flag::SCHED_FLAG_KEEP_POLICY => "SCHED_FLAG_KEEP_POLICY",
        Flag::SCHED_FLAG_KEEP_PARAMS => "SCHED_FLAG_KEEP_PARAMS",
        Flag::SCHED_FLAG_UTIL_CLAMP_MIN => "SCHED_FLAG_UTIL_CLAMP_MIN",
        Flag::SCHED_FLAG_UTIL_CLAMP_MAX => "SCHED_FLAG_UTIL_CLAMP_MAX",
    }
}
