// SPDX-License-Identifier: Apache-2.0
//! Linux resources laid over others, as adjustments and updates both do.
//!
//! Claiming and laying over are two steps: what is refused must not have changed anything.
//! A value that is present counts even if it is zero or empty. Nothing here judges values.
//! Reference: semantics of the resource setters in NRI's result collector.

use std::collections::HashMap;

use protobuf::MessageField;

use crate::claims::{FieldClaims, MergeError};
use crate::fields::NriField;
use crate::keys;
use nri_api as api;

/// Claims everything that `resources` sets, in the reference's order.
pub(crate) fn claim(
    resources: &api::LinuxResources,
    claims: &mut FieldClaims<'_>,
) -> Result<(), MergeError> {
    let api::LinuxResources {
        memory,
        cpu,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids,
        special_fields: _,
    } = resources;
    if let Some(memory) = memory.as_ref() {
        claim_memory(memory, claims)?;
    }
    if let Some(cpu) = cpu.as_ref() {
        claim_cpu(cpu, claims)?;
    }
    for limit in hugepage_limits {
        claims.claim_key(NriField::HugepageLimits, &keys::hugepage(&limit.page_size))?;
    }
    for device in devices {
        claims.device_rule(rule_text(device))?;
    }
    // Sorted, so that the same answer always fails with the same words.
    let mut unified: Vec<&String> = unified.keys().collect();
    unified.sort();
    for key in unified {
        claims.claim_key(NriField::CgroupsUnified, key)?;
    }
    claims.claim_present([
        (blockio_class.is_some(), NriField::BlockioClass),
        (rdt_class.is_some(), NriField::RdtClass),
        (pids.is_some(), NriField::PidsLimit),
    ])
}

fn claim_memory(memory: &api::LinuxMemory, claims: &mut FieldClaims<'_>) -> Result<(), MergeError> {
    let api::LinuxMemory {
        limit,
        reservation,
        swap,
        kernel,
        kernel_tcp,
        swappiness,
        disable_oom_killer,
        use_hierarchy,
        special_fields: _,
    } = memory;
    claims.claim_present([
        (limit.is_some(), NriField::MemLimit),
        (reservation.is_some(), NriField::MemReservation),
        (swap.is_some(), NriField::MemSwapLimit),
        (kernel.is_some(), NriField::MemKernelLimit),
        (kernel_tcp.is_some(), NriField::MemTCPLimit),
        (swappiness.is_some(), NriField::MemSwappiness),
        (disable_oom_killer.is_some(), NriField::MemDisableOomKiller),
        (use_hierarchy.is_some(), NriField::MemUseHierarchy),
    ])
}

fn claim_cpu(cpu: &api::LinuxCPU, claims: &mut FieldClaims<'_>) -> Result<(), MergeError> {
    let api::LinuxCPU {
        shares,
        quota,
        period,
        realtime_runtime,
        realtime_period,
        cpus,
        mems,
        special_fields: _,
    } = cpu;
    claims.claim_present([
        (shares.is_some(), NriField::CPUShares),
        (quota.is_some(), NriField::CPUQuota),
        (period.is_some(), NriField::CPUPeriod),
        (realtime_runtime.is_some(), NriField::CPURealtimeRuntime),
        (realtime_period.is_some(), NriField::CPURealtimePeriod),
        (!cpus.is_empty(), NriField::CPUSetCPUs),
        (!mems.is_empty(), NriField::CPUSetMems),
    ])
}

/// Lays `over` on `base`; what `over` does not set stays.
pub(crate) fn lay_over(base: &mut api::LinuxResources, over: &api::LinuxResources) {
    let api::LinuxResources {
        memory,
        cpu,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids,
        special_fields: _,
    } = over;
    if let Some(memory) = memory.as_ref() {
        lay_over_memory(base.memory.mut_or_insert_default(), memory);
    }
    if let Some(cpu) = cpu.as_ref() {
        lay_over_cpu(base.cpu.mut_or_insert_default(), cpu);
    }
    let size = |limit: &api::HugepageLimit| keys::hugepage(&limit.page_size);
    put_all(&mut base.hugepage_limits, hugepage_limits, size);
    base.devices.extend(devices.iter().cloned());
    base.unified.extend(unified.iter().map(|(key, value)| (key.clone(), value.clone())));
    set(&mut base.blockio_class, blockio_class);
    set(&mut base.rdt_class, rdt_class);
    set(&mut base.pids, pids);
}

fn lay_over_memory(base: &mut api::LinuxMemory, over: &api::LinuxMemory) {
    let api::LinuxMemory {
        limit,
        reservation,
        swap,
        kernel,
        kernel_tcp,
        swappiness,
        disable_oom_killer,
        use_hierarchy,
        special_fields: _,
    } = over;
    set(&mut base.limit, limit);
    set(&mut base.reservation, reservation);
    set(&mut base.swap, swap);
    set(&mut base.kernel, kernel);
    set(&mut base.kernel_tcp, kernel_tcp);
    set(&mut base.swappiness, swappiness);
    set(&mut base.disable_oom_killer, disable_oom_killer);
    set(&mut base.use_hierarchy, use_hierarchy);
}

fn lay_over_cpu(base: &mut api::LinuxCPU, over: &api::LinuxCPU) {
    let api::LinuxCPU {
        shares,
        quota,
        period,
        realtime_runtime,
        realtime_period,
        cpus,
        mems,
        special_fields: _,
    } = over;
    set(&mut base.shares, shares);
    set(&mut base.quota, quota);
    set(&mut base.period, period);
    set(&mut base.realtime_runtime, realtime_runtime);
    set(&mut base.realtime_period, realtime_period);
    if !cpus.is_empty() {
        base.cpus.clone_from(cpus);
    }
    if !mems.is_empty() {
        base.mems.clone_from(mems);
    }
}

/// Replaces a message by one that is present.
pub(crate) fn set<T: Clone>(base: &mut MessageField<T>, over: &MessageField<T>) {
    if over.is_some() {
        base.clone_from(over);
    }
}

/// Replaces each entry of the same key where it stands, or appends.
/// NRI: the reference appends, so that plugins see page sizes and limits twice (BUG-09).
pub(crate) fn put_all<T: Clone>(list: &mut Vec<T>, entries: &[T], key: impl Fn(&T) -> String) {
    if entries.is_empty() {
        return;
    }
    let mut places: HashMap<String, usize> = HashMap::with_capacity(list.len());
    for (place, entry) in list.iter().enumerate() {
        places.entry(key(entry)).or_insert(place);
    }
    for entry in entries {
        let place = *places.entry(key(entry)).or_insert(list.len());
        match list.get_mut(place) {
            Some(old) => old.clone_from(entry),
            None => list.push(entry.clone()),
        }
    }
}

/// Takes out the empty parts that were put in so that plugins find them.
pub(crate) fn strip(resources: &mut MessageField<api::LinuxResources>) {
    if let Some(resources) = resources.as_mut() {
        strip_empty(&mut resources.memory);
        strip_empty(&mut resources.cpu);
    }
    strip_empty(resources);
}

/// Takes out a message that says nothing.
pub(crate) fn strip_empty<T: Default + PartialEq>(field: &mut MessageField<T>) {
    if field.as_ref().is_some_and(|message| *message == T::default()) {
        *field = MessageField::none();
    }
}

/// A rule as operators write it: `allow c 1:3 rwm`, with `*` for any.
pub fn rule_text(device: &api::LinuxDeviceCgroup) -> String {
    let api::LinuxDeviceCgroup { allow, type_, major, minor, access, special_fields: _ } = device;
    let verb = if *allow { "allow" } else { "deny" };
    let kind = if type_.is_empty() { "a" } else { type_ };
    let number = |field: &MessageField<api::OptionalInt64>| {
        field.as_ref().map_or_else(|| "*".to_owned(), |number| number.value.to_string())
    };
    format!("{verb} {kind} {}:{} {access}", number(major), number(minor)).trim_end().to_owned()
}
