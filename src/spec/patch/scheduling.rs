// SPDX-License-Identifier: Apache-2.0
//! Applies the process's CPU scheduler and I/O priority.
//!
//! Values are checked as the kernel does, while the plugin can still be named. The engine's values
//! are not merged: each of the two is replaced or removed as a whole. Reference: NRI
//! `AdjustIOPriority`, `AdjustLinuxScheduler`, except for BUG-G14; sched(7), ioprio_set(2).

use serde_json::{Value, json};

use super::{Changes, Patch, Result, all_known, known, nonzero, object_of};
use crate::plugin::api;

const IO_PRIORITY: &str = "IoPriority";
const SCHEDULER: &str = "LinuxSched";

/// Sets the I/O priority; the class "none" removes it.
pub(super) fn patch_io_priority(
    patch: &mut Patch<'_, '_>,
    io_priority: Option<&api::LinuxIOPriority>,
) -> Result<()> {
    let Some(io_priority) = io_priority else { return Ok(()) };
    let api::LinuxIOPriority { class, priority, special_fields: _ } = io_priority;
    let (class, name) = known(IO_PRIORITY, "class", *class)?;
    let is_set = class != api::IOPrioClass::IOPRIO_CLASS_NONE;
    if is_set && !(0..=7).contains(priority) {
        patch.changes.doubt(IO_PRIORITY, Err(format!("priority {priority} is outside 0 to 7")));
    }
    let value = is_set.then(|| json!({"class": name, "priority": priority}));
    let names = ("process.ioPriority", IO_PRIORITY);
    Ok(patch.changes.put(patch.root.object("process")?, "ioPriority", value, names)?)
}

/// Sets the scheduler; the policy "none" removes it.
pub(super) fn patch_scheduler(
    patch: &mut Patch<'_, '_>,
    scheduler: Option<&api::LinuxScheduler>,
) -> Result<()> {
    let Some(scheduler) = scheduler else { return Ok(()) };
    let value = scheduler_value(scheduler, &mut patch.changes)?;
    let names = ("process.scheduler", SCHEDULER);
    Ok(patch.changes.put(patch.root.object("process")?, "scheduler", value, names)?)
}

fn scheduler_value(
    scheduler: &api::LinuxScheduler,
    changes: &mut Changes,
) -> Result<Option<Value>> {
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
    let (policy, name) = known(SCHEDULER, "policy", *policy)?;
    if policy == api::LinuxSchedulerPolicy::SCHED_NONE {
        return Ok(None);
    }
    changes.doubt(SCHEDULER, check(scheduler, policy));
    Ok(Some(object_of([
        ("policy", name),
        ("nice", nonzero(*nice)),
        ("priority", nonzero(*priority)),
        ("flags", all_known(SCHEDULER, flags)?),
        ("runtime", nonzero(*runtime)),
        ("deadline", nonzero(*deadline)),
        ("period", nonzero(*period)),
    ])))
}

/// Reports values that the runtime or the kernel would refuse.
fn check(scheduler: &api::LinuxScheduler, policy: api::LinuxSchedulerPolicy) -> Result<(), String> {
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
        return Err(format!("priority {priority} of {policy:?} is outside 1 to 99"));
    }
    if !is_realtime && *priority != 0 {
        return Err(format!("{policy:?} has no priority"));
    }
    let is_ordered = *runtime > 0 && runtime <= deadline && (*period == 0 || deadline <= period);
    if policy == Policy::SCHED_DEADLINE && !is_ordered {
        return Err(format!(
            "{policy:?} needs runtime <= deadline <= period, not {runtime}, {deadline}, {period}"
        ));
    }
    if policy != Policy::SCHED_DEADLINE && (*runtime, *deadline, *period) != (0, 0, 0) {
        return Err(format!("{policy:?} has no runtime, deadline or period"));
    }
    Ok(())
}
