// SPDX-License-Identifier: Apache-2.0
//! Converts resources for cgroup v1 (and a hybrid host, where v1 has the controllers).
//!
//! Files that limit each other are written in an order in which the kernel accepts each step.
//! Reference: kernel `cgroup-v1/{memory,cpusets,devices,hugetlb,pids}.rst`, `sched-bwc.rst`.

use super::{
    Cpu, DeviceRule, Memory, Result, SeenFiles, WritableResources, Write, early_or_late,
    first_number, or_max,
};
use super::{blkio, plan_cpuset, plan_hugepages, refused, set, write};

const LIMIT: &str = "memory.limit_in_bytes";
const MEMSW: &str = "memory.memsw.limit_in_bytes";

pub(super) fn plan(wanted: &WritableResources, files: &SeenFiles<'_>) -> Result<Vec<Write>> {
    let WritableResources { memory, cpu, pids, unified, hugepages, devices, block_io } = wanted;
    if let Some(key) = unified.keys().next() {
        return refused(&format!("unified[{key}]"), "cgroup v1 has no unified settings");
    }
    let mut writes = Vec::new();
    plan_cpuset("cpuset", cpu, &mut writes);
    plan_memory(memory, files, &mut writes)?;
    plan_cpu(cpu, files, &mut writes);
    if let Some(limit) = set(pids.limit) {
        writes.push(write("pids", "pids.max", or_max(limit), "pids.limit"));
    }
    plan_hugepages("hugetlb", "limit_in_bytes", hugepages, &mut writes);
    plan_devices(devices, files, &mut writes)?;
    blkio::plan_v1(block_io, files, &mut writes);
    Ok(writes)
}

fn plan_memory(memory: &Memory, files: &SeenFiles<'_>, writes: &mut Vec<Write>) -> Result<()> {
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
    plan_limits(set(*limit), set(*swap), files, writes);
    for (file, value, field) in [
        ("memory.soft_limit_in_bytes", reservation, "memory.reservation"),
        ("memory.kmem.limit_in_bytes", kernel, "memory.kernel"),
        ("memory.kmem.tcp.limit_in_bytes", kernel_tcp, "memory.kernelTCP"),
    ] {
        if let Some(value) = set(*value) {
            // Newer kernels silently ignore a limit of kernel memory.
            let limit = write("memory", file, value, field);
            writes.push(Write { is_verified: true, ..limit });
        }
    }
    if let Some(swappiness) = swappiness {
        writes.push(write("memory", "memory.swappiness", swappiness, "memory.swappiness"));
    }
    if let Some(disabled) = disable_oom_killer {
        let field = "memory.disableOOMKiller";
        let file = "memory.oom_control";
        let before = files.text("memory", file).unwrap_or_default();
        let before = if before.contains("oom_kill_disable 1") { "1" } else { "0" };
        let undo = Some((file.to_owned(), before.to_owned()));
        writes.push(Write { undo, ..write("memory", file, u8::from(*disabled), field) });
    }
    if let Some(wanted) = use_hierarchy {
        let is_used = first_number(files.text("memory", "memory.use_hierarchy")) != Some(0);
        if is_used != *wanted {
            return refused("memory.useHierarchy", "it cannot change while processes are in it");
        }
    }
    Ok(())
}

/// Plans memory limits. The limit of memory alone may never exceed the limit of memory with swap,
/// so when limits rise, the latter is written first.
fn plan_limits(
    limit: Option<i64>,
    swap: Option<i64>,
    files: &SeenFiles<'_>,
    writes: &mut Vec<Write>,
) {
    if limit.is_none() && swap.is_none() {
        return;
    }
    let follows = swap.is_none() || swap == limit || swap == Some(-1);
    // Unlimited memory implies unlimited memory with swap.
    let swap = if limit == Some(-1) { swap.or(Some(-1)) } else { swap };
    // A kernel without swap accounting has no such file, so a value that only follows the memory
    // limit is skipped.
    let swap = swap.map(|swap| write("memory", MEMSW, swap, "memory.swap").optional(follows));
    let limit = limit.map(|limit| write("memory", LIMIT, limit, "memory.limit"));
    let now = first_number(files.text("memory", LIMIT)).unwrap_or(i64::MAX);
    let raises = swap
        .as_ref()
        .is_some_and(|swap| swap.value.parse::<i64>().is_ok_and(|swap| swap == -1 || now < swap));
    let both = if raises { [swap, limit] } else { [limit, swap] };
    writes.extend(both.into_iter().flatten());
}

fn plan_cpu(cpu: &Cpu, files: &SeenFiles<'_>, writes: &mut Vec<Write>) {
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
    if let Some(shares) = set(*shares) {
        // The kernel silently adjusts values that are too small or too large.
        let shares = write("cpu", "cpu.shares", shares, "cpu.shares");
        writes.push(Write { is_verified: true, ..shares });
    }
    let quota = set(*quota).map(|quota| write("cpu", "cpu.cfs_quota_us", quota, "cpu.quota"));
    let period = set(*period).map(|period| write("cpu", "cpu.cfs_period_us", period, "cpu.period"));
    let burst = burst.map(|burst| write("cpu", "cpu.cfs_burst_us", burst, "cpu.burst"));
    let (early, late) = early_or_late(burst, files);
    writes.extend(early);
    writes.extend(in_order(quota, period, files));
    writes.extend(late);
    if let Some(idle) = idle {
        writes.push(write("cpu", "cpu.idle", idle, "cpu.idle"));
    }
    let runtime = set(*realtime_runtime)
        .map(|runtime| write("cpu", "cpu.rt_runtime_us", runtime, "cpu.realtimeRuntime"));
    let period = set(*realtime_period)
        .map(|period| write("cpu", "cpu.rt_period_us", period, "cpu.realtimePeriod"));
    writes.extend(in_order(runtime, period, files));
}

/// Orders a quota and its period. A shorter period written first would make the old quota a larger
/// share for a moment, which the parent cgroup may not allow.
fn in_order(
    quota: Option<Write>,
    period: Option<Write>,
    files: &SeenFiles<'_>,
) -> impl Iterator<Item = Write> {
    let (shorter, longer) = early_or_late(period, files);
    longer.into_iter().chain(quota).chain(shorter)
}

/// Kinds of access, in the kernel's order.
const ACCESS: [char; 3] = ['r', 'w', 'm'];

/// Plans device rules. Only changes are written, so that a reversal removes nothing else.
fn plan_devices(
    rules: &[DeviceRule],
    files: &SeenFiles<'_>,
    writes: &mut Vec<Write>,
) -> Result<()> {
    if rules.is_empty() {
        return Ok(());
    }
    let listed = files.text("devices", "devices.list").unwrap_or_default();
    let has_all = listed.lines().any(|line| line.starts_with("a *:*"));
    for rule in rules {
        if !matches!(rule.kind.as_str(), "b" | "c") {
            return refused(
                "devices",
                "a rule for all devices cannot change in a running container",
            );
        }
        let number = |number: Option<i64>| match number {
            Some(number) if number >= 0 => number.to_string(),
            _ => "*".to_owned(),
        };
        let device = format!("{}:{}", number(rule.major), number(rule.minor));
        let own = granted(&listed, &rule.kind, |line| line == device);
        let wider = granted(&listed, &rule.kind, |line| line != device && covers(line, &device));
        let is_meant = |kind: &char| rule.access.is_empty() || rule.access.contains(*kind);
        let changes = |kind: &char| match rule.allow {
            true => !has_all && !own.contains(*kind) && !wider.contains(*kind),
            false => has_all || own.contains(*kind),
        };
        // Permission to make a node does not matter without permission to open it.
        let stays = |kind: &char| matches!(kind, 'r' | 'w') && wider.contains(*kind);
        if !rule.allow && !has_all && ACCESS.iter().any(|kind| is_meant(kind) && stays(kind)) {
            let why = format!(
                "a broader rule than {} {device} allows the access and would stay",
                rule.kind
            );
            return refused("devices", why);
        }
        let access: String = ACCESS.iter().filter(|kind| is_meant(kind) && changes(kind)).collect();
        if access.is_empty() {
            continue;
        }
        let text = format!("{} {device} {access}", rule.kind);
        let (file, inverse) = if rule.allow {
            ("devices.allow", "devices.deny")
        } else {
            ("devices.deny", "devices.allow")
        };
        let undo = Some((inverse.to_owned(), text.clone()));
        writes.push(Write { undo, ..write("devices", file, text, "devices") });
    }
    Ok(())
}

/// Returns the kinds of access that `listed` grants to the devices for which `counts` returns true.
fn granted(listed: &str, kind: &str, counts: impl Fn(&str) -> bool) -> String {
    let lines = listed.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .filter_map(|line| match line[..] {
            [its_kind, device, access] if its_kind == kind && counts(device) => Some(access),
            _ => None,
        })
        .collect()
}

/// Whether the numbers `wide` (with `*`) include those of `device`.
fn covers(wide: &str, device: &str) -> bool {
    let mut pairs = wide.split(':').zip(device.split(':'));
    pairs.all(|(wide, number)| wide == "*" || wide == number)
}
