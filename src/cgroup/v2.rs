// SPDX-License-Identifier: Apache-2.0
//! Converts resources for cgroup v2: OCI uses v1's terms, which are converted as runc does.
//!
//! Writes are in runc's order of controllers, with the unified settings last, so that they take precedence.
//! Reference: kernel `cgroup-v2.rst`; runc's and crun's conversions (formulas.rs).

use super::{
    Around, Cpu, Memory, Result, SeenFiles, Unfit, WritableResources, Write, early_or_late,
    first_number, formulas, number,
};
use super::{blkio, or_max, plan_cpuset, plan_hugepages, refused, set, write};

/// The kernel's default period of a CPU quota, in microseconds.
const PERIOD: i64 = 100_000;

pub(super) fn plan(
    wanted: &WritableResources,
    around: Around<'_>,
    files: &SeenFiles<'_>,
) -> Result<Vec<Write>> {
    let WritableResources { memory, cpu, pids, unified, hugepages, devices, block_io } = wanted;
    if !devices.is_empty() {
        return Err(Unfit::NotDirect("devices".to_owned()));
    }
    let mut writes = Vec::new();
    if let Some(limit) = set(pids.limit) {
        writes.push(write("", "pids.max", or_max(limit), "pids.limit"));
    }
    plan_memory(memory, around, &mut writes)?;
    blkio::plan_v2(block_io, files, &mut writes)?;
    plan_cpu(cpu, around, files, &mut writes)?;
    plan_cpuset("", cpu, &mut writes);
    plan_hugepages("", "max", hugepages, &mut writes);
    for (key, value) in unified {
        let field = format!("unified[{key}]");
        // The caller has checked the key; this check still prevents a path out of the folder.
        if key.contains('/') || key.starts_with("cgroup.") || !key.contains('.') {
            return refused(&field, "it is not a resource file of a cgroup");
        }
        writes.push(write("", key, value, field));
    }
    Ok(writes)
}

fn plan_memory(memory: &Memory, around: Around<'_>, writes: &mut Vec<Write>) -> Result<()> {
    let Memory {
        limit,
        reservation,
        swap,
        kernel,
        kernel_tcp,
        swappiness,
        disable_oom_killer,
        use_hierarchy,
    } = memory;
    for (is_asked, field) in [
        (set(*kernel).is_some_and(|limit| limit > 0), "memory.kernel"),
        (set(*kernel_tcp).is_some_and(|limit| limit > 0), "memory.kernelTCP"),
        (swappiness.is_some(), "memory.swappiness"),
        (*disable_oom_killer == Some(true), "memory.disableOOMKiller"),
        (*use_hierarchy == Some(false), "memory.useHierarchy"),
    ] {
        if is_asked {
            return refused(field, "cgroup v2 has no such setting");
        }
    }
    let limit = set(*limit);
    let in_all = limit.or_else(|| number(around.after, "memory", "limit"));
    if let Some(swap) = swap_max(in_all, set(*swap), limit == Some(-1))? {
        // A kernel without swap has no such file; then zero and "max" need none.
        let is_optional = swap <= 0;
        let swap = write("", "memory.swap.max", or_max(swap), "memory.swap");
        writes.push(swap.optional(is_optional));
    }
    if let Some(limit) = limit {
        writes.push(write("", "memory.max", or_max(limit), "memory.limit"));
    }
    if let Some(reservation) = set(*reservation) {
        writes.push(write("", "memory.low", or_max(reservation), "memory.reservation"));
    }
    Ok(())
}

/// Converts OCI's memory with swap to v2's swap alone; -1 is unlimited.
fn swap_max(limit: Option<i64>, swap: Option<i64>, is_lifted: bool) -> Result<Option<i64>> {
    let field = "memory.swap";
    match (set(limit), swap) {
        (_, None) => Ok(is_lifted.then_some(-1)),
        (_, Some(..0)) => Ok(Some(-1)),
        (Some(..0), Some(swap)) => Ok(Some(swap)),
        (None, Some(_)) => {
            refused(field, "a limit of memory with swap needs a limit of memory alone")
        }
        (Some(limit), Some(swap)) if swap < limit => {
            refused(field, format!("{swap} is below the limit without swap, {limit}"))
        }
        (Some(limit), Some(swap)) => Ok(Some(swap - limit)),
    }
}

fn plan_cpu(
    cpu: &Cpu,
    around: Around<'_>,
    files: &SeenFiles<'_>,
    writes: &mut Vec<Write>,
) -> Result<()> {
    let Cpu {
        shares,
        quota,
        burst,
        period,
        realtime_runtime,
        realtime_period,
        cpus: _,
        mems: _,
        idle,
    } = cpu;
    for (is_asked, field) in [
        (set(*realtime_runtime).is_some(), "cpu.realtimeRuntime"),
        (set(*realtime_period).is_some(), "cpu.realtimePeriod"),
    ] {
        if is_asked {
            return refused(field, "cgroup v2 has no such setting");
        }
    }
    if let Some(idle) = idle {
        writes.push(write("", "cpu.idle", idle, "cpu.idle"));
    }
    let is_idle = idle.or_else(|| number(around.after, "cpu", "idle")) == Some(1);
    // The kernel accepts no weight for an idle group; the weight applies again once idle is cleared.
    if let Some(shares) = set(*shares).filter(|_| !is_idle) {
        let before = std::iter::once(around.before).chain(around.tried);
        let before = before.filter_map(|before| number(before, "cpu", "shares"));
        let before: Vec<u64> = before.filter_map(|n| u64::try_from(n).ok()).collect();
        let now = first_number(files.text("", "cpu.weight")).and_then(|n| u64::try_from(n).ok());
        let (weight, other) = formulas::weights(shares, &before, now);
        let other = (other != weight).then(|| other.to_string());
        writes.push(Write { other, ..write("", "cpu.weight", weight, "cpu.shares") });
    }
    let burst = burst.map(|burst| write("", "cpu.max.burst", burst, "cpu.burst"));
    let (early, late) = early_or_late(burst, files);
    let max = max(set(*quota), set(*period), around, files);
    writes.extend(early);
    writes.extend(max);
    writes.extend(late);
    Ok(())
}

/// Plans `cpu.max`, which has quota and period: the one that is not requested is unchanged.
fn max(
    quota: Option<i64>,
    period: Option<u64>,
    around: Around<'_>,
    files: &SeenFiles<'_>,
) -> Option<Write> {
    let field = match (quota, period) {
        (None, None) => return None,
        (Some(_), _) => "cpu.quota",
        (None, Some(_)) => "cpu.period",
    };
    let text = files.text("", "cpu.max").unwrap_or_default();
    let mut now = text.split_whitespace();
    let (quota_now, period_now) = (now.next(), now.next());
    let quota = quota.or_else(|| set(number(around.after, "cpu", "quota")));
    let quota = match quota {
        Some(quota) => or_max(quota),
        None => quota_now.unwrap_or("max").to_owned(),
    };
    let period = period
        .and_then(|period| i64::try_from(period).ok())
        .or_else(|| set(number(around.after, "cpu", "period")))
        .or_else(|| period_now.and_then(|period| period.parse().ok()))
        .unwrap_or(PERIOD);
    Some(write("", "cpu.max", format!("{quota} {period}"), field))
}
