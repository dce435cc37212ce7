// SPDX-License-Identifier: Apache-2.0
//! Resources: what a plugin asks for, in the words of the OCI specification.
//!
//! The same list of settings becomes edits of config.json at creation and an overlay for updates,
//! so the two cannot disagree. Values are checked here, where the plugin can still be named;
//! they are never converted (shares to weight and the like is the runtime's work).
//! Reference: NRI `AdjustResources`, but for BUG-G3 and BUG-G4; decision D24.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use nri_adaptation::{keys, rule_text};
use oci_document::{Item, Object};
use serde_json::{Map, Value, json};

use super::{Changes, Class, HostFacts, PatchError, Resolved, devices, values};
use crate::error::quoted;
use crate::plugin::api;
use crate::spec::owned::holds_anyway;

/// The least CPU time, in microseconds, that the kernel lets a cgroup have in a period.
const LEAST_BANDWIDTH: i64 = 1000;

/// The most CPU shares; cgroup v2 would silently take fewer.
const MOST_SHARES: u64 = 262_144;

/// How long, in microseconds, such a period may be.
const PERIODS: RangeInclusive<u64> = 1000..=1_000_000;

/// One member of a section of `LinuxResources`.
#[derive(Debug, Clone, PartialEq)]
struct ResourceSetting {
    section: &'static str,
    key: String,
    value: Value,
    nri_field: String,
}

/// Everything that a plugin asks for.
#[derive(Debug, Default)]
struct RequestedResources {
    settings: Vec<ResourceSetting>,
    /// Page size and the entry of `hugepageLimits`.
    hugepages: Vec<(String, Value)>,
    /// Cgroup rules, each with the name that it is owned by.
    rules: Vec<(String, Value)>,
    /// What a kernel will hardly take.
    doubts: Vec<PatchError>,
}

impl RequestedResources {
    fn doubt(&mut self, nri_field: &str, problem: String) {
        self.doubts.push(PatchError::invalid(nri_field, problem));
    }

    fn set(&mut self, section: &'static str, key: &str, value: Value, nri_field: &str) {
        let (key, nri_field) = (key.to_owned(), nri_field.to_owned());
        self.settings.push(ResourceSetting { section, key, value, nri_field });
    }
}

/// Applies the adjustment's resources.
pub(super) fn patch(
    root: &mut Object<'_>,
    resources: &api::LinuxResources,
    facts: &HostFacts,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let RequestedResources { settings, hugepages, rules, doubts } = read(resources)?;
    changes.1.extend(doubts);
    devices::patch_rules(root, &rules, changes)?;
    let touches_limits = settings.iter().any(|ResourceSetting { section, key, .. }| {
        *section == "memory" && matches!(key.as_str(), "limit" | "swap")
    });
    for ResourceSetting { section, key, value, nri_field } in settings {
        let resources = root.object("linux")?.object("resources")?;
        let (object, field) = if section == "unified" {
            (resources.map(section)?, format!("linux.resources.unified[{key}]"))
        } else {
            (resources.object(section)?, format!("linux.resources.{section}.{key}"))
        };
        // Nothing is lost without it, and crun refuses to create a container with it.
        let is_idle = facts.is_cgroup_v2 && holds_anyway(section, &key, &value);
        if !is_idle || object.value(&key)?.is_some() {
            changes.set(object, &key, value, (&field, &nri_field))?;
        }
    }
    if touches_limits {
        let checked = check_swap(root)?;
        changes.doubt("MemSwapLimit", checked);
    }
    patch_hugepages(root, hugepages, changes)
}

/// The lists of `blockIO`: a class is all of them.
const BLOCK_IO_LISTS: [&str; 5] = [
    "weightDevice",
    "throttleReadBpsDevice",
    "throttleWriteBpsDevice",
    "throttleReadIOPSDevice",
    "throttleWriteIOPSDevice",
];

/// What a plugin asks for, as an overlay for `update` (D21). An RDT class is no resource and not
/// in it, but one that means nothing is refused here as well.
pub(in crate::spec) fn overlay_of(
    resources: &api::LinuxResources,
    resolved: &Resolved,
) -> Result<Map<String, Value>, PatchError> {
    for (is_set, class, field) in [
        (resources.blockio_class.is_some(), &resolved.block_io, "BlockioClass"),
        (resources.rdt_class.is_some(), &resolved.intel_rdt, "RdtClass"),
    ] {
        if is_set && *class == Class::Unasked {
            return Err(PatchError::NotApplied { field: field.to_owned() });
        }
    }
    let RequestedResources { settings, hugepages, rules, doubts } = read(resources)?;
    if let Some(doubt) = doubts.into_iter().next() {
        return Err(doubt);
    }
    let mut overlay = Map::new();
    for ResourceSetting { section, key, value, nri_field: _ } in settings {
        let section = overlay.entry(section).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(section) = section {
            section.insert(key, value);
        }
    }
    if !hugepages.is_empty() {
        let limits = hugepages.into_iter().map(|(_, limit)| limit).collect();
        overlay.insert("hugepageLimits".to_owned(), Value::Array(limits));
    }
    if !rules.is_empty() {
        let rules = rules.into_iter().map(|(_, rule)| rule).collect();
        overlay.insert("devices".to_owned(), Value::Array(rules));
    }
    if resources.blockio_class.is_some() {
        let class = match &resolved.block_io {
            Class::Set(Value::Object(class)) => class.clone(),
            Class::Set(_) | Class::Cleared | Class::Unasked => Map::new(),
        };
        // Whole, so that nothing of the class before is left. No runtime takes a weight of zero
        // for one.
        let mut whole = Map::from_iter([("weight".to_owned(), Value::from(0))]);
        whole.extend(BLOCK_IO_LISTS.map(|list| (list.to_owned(), Value::Array(Vec::new()))));
        whole.extend(class);
        overlay.insert("blockIO".to_owned(), Value::Object(whole));
    }
    Ok(overlay)
}

/// The classes are none of its business: what they stand for comes from the host.
fn read(resources: &api::LinuxResources) -> Result<RequestedResources, PatchError> {
    let api::LinuxResources {
        memory,
        cpu,
        hugepage_limits,
        blockio_class: _,
        rdt_class: _,
        unified,
        devices,
        pids,
        special_fields: _,
    } = resources;
    let mut wanted = RequestedResources::default();
    if let Some(memory) = memory.as_ref() {
        read_memory(memory, &mut wanted)?;
    }
    if let Some(cpu) = cpu.as_ref() {
        read_cpu(cpu, &mut wanted)?;
    }
    if let Some(api::LinuxPids { limit, special_fields: _ }) = pids.as_ref() {
        if *limit == 0 || *limit < -1 {
            let problem = format!("{limit} is not a number of processes (-1 is unlimited)");
            return Err(PatchError::invalid("PidsLimit", problem));
        }
        wanted.set("pids", "limit", Value::from(*limit), "PidsLimit");
    }
    let mut keys: Vec<_> = unified.iter().collect();
    keys.sort();
    for (key, value) in keys {
        let nri_field = format!("CgroupsUnified[{key}]");
        if !values::is_unified_key(key) {
            return Err(PatchError::invalid(nri_field, "it is not a resource file of a cgroup"));
        }
        wanted.set("unified", key, Value::from(value.as_str()), &nri_field);
    }
    // The last of several limits of one size counts.
    let (mut last, mut superseded) = (HashMap::new(), HashSet::new());
    for api::HugepageLimit { page_size, limit, special_fields: _ } in hugepage_limits {
        let size = keys::hugepage(page_size);
        if !values::is_page_size(&size) {
            let nri_field = format!("HugepageLimits[{size}]");
            return Err(PatchError::invalid(nri_field, "it is not a page size, such as 2MB"));
        }
        let value = json!({"pageSize": size, "limit": limit});
        if let Some(earlier) = last.insert(size.clone(), wanted.hugepages.len()) {
            superseded.insert(earlier);
        }
        wanted.hugepages.push((size, value));
    }
    let mut place = 0..;
    wanted.hugepages.retain(|_| place.next().is_none_or(|place| !superseded.contains(&place)));
    for rule in devices {
        let nri_field = format!("DeviceRules[{}]", rule_text(rule));
        let value = rule_value(rule).map_err(|problem| PatchError::invalid(&nri_field, problem))?;
        wanted.rules.push((nri_field, value));
    }
    Ok(wanted)
}

fn read_memory(
    memory: &api::LinuxMemory,
    wanted: &mut RequestedResources,
) -> Result<(), PatchError> {
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
    let signed =
        |field: &protobuf::MessageField<api::OptionalInt64>| field.as_ref().map(|o| o.value);
    // NRI: a limit of zero leaves what the engine wrote.
    let limit = signed(limit).filter(|limit| *limit != 0);
    let swap = signed(swap).filter(|swap| *swap != 0);
    // NRI: a limit alone means the same limit with swap, else a container could swap without
    // bound (D24). Without a limit there is none with swap either: runtimes and kernels refuse a
    // sum that is below one of its parts.
    let (swap, swap_field) = match (swap, limit) {
        (None, Some(limit)) => (Some(limit), "MemLimit"),
        (Some(swap), Some(-1)) if swap != -1 => (Some(-1), "MemLimit"),
        (swap, _) => (swap, "MemSwapLimit"),
    };
    for (key, nri_field, value) in [
        ("limit", "MemLimit", limit),
        ("reservation", "MemReservation", signed(reservation)),
        ("swap", swap_field, swap),
        ("kernel", "MemKernelLimit", signed(kernel)),
        ("kernelTCP", "MemTCPLimit", signed(kernel_tcp)),
    ] {
        let Some(value) = value else { continue };
        if value < -1 {
            let problem = format!("{value} is not an amount of memory (-1 is unlimited)");
            return Err(PatchError::invalid(nri_field, problem));
        }
        wanted.set("memory", key, Value::from(value), nri_field);
    }
    if let Some(swappiness) = swappiness.as_ref().map(|o| o.value) {
        if swappiness > 100 {
            wanted.doubt("MemSwappiness", format!("{swappiness} is outside 0 to 100"));
        }
        wanted.set("memory", "swappiness", Value::from(swappiness), "MemSwappiness");
    }
    for (key, nri_field, value) in [
        ("disableOOMKiller", "MemDisableOomKiller", disable_oom_killer),
        ("useHierarchy", "MemUseHierarchy", use_hierarchy),
    ] {
        if let Some(value) = value.as_ref() {
            wanted.set("memory", key, Value::from(value.value), nri_field);
        }
    }
    Ok(())
}

fn read_cpu(cpu: &api::LinuxCPU, wanted: &mut RequestedResources) -> Result<(), PatchError> {
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
    let unsigned = |field: &protobuf::MessageField<api::OptionalUInt64>| {
        field.as_ref().map(|o| Value::from(o.value))
    };
    let signed = |field: &protobuf::MessageField<api::OptionalInt64>| {
        field.as_ref().map(|o| Value::from(o.value))
    };
    let text = |text: &String| (!text.is_empty()).then(|| Value::from(text.as_str()));
    check_cpu(cpu, wanted)?;
    for (key, nri_field, value) in [
        ("shares", "CPUShares", unsigned(shares)),
        ("quota", "CPUQuota", signed(quota)),
        ("period", "CPUPeriod", unsigned(period)),
        ("realtimeRuntime", "CPURealtimeRuntime", signed(realtime_runtime)),
        ("realtimePeriod", "CPURealtimePeriod", unsigned(realtime_period)),
        ("cpus", "CPUSetCPUs", text(cpus)),
        ("mems", "CPUSetMems", text(mems)),
    ] {
        if let Some(value) = value {
            wanted.set("cpu", key, value, nri_field);
        }
    }
    Ok(())
}

/// What every kernel refuses. Zero says "leave it" to runtimes.
fn check_cpu(cpu: &api::LinuxCPU, wanted: &mut RequestedResources) -> Result<(), PatchError> {
    if cpu.shares.as_ref().is_some_and(|shares| shares.value == 1) {
        return Err(PatchError::invalid("CPUShares", "1 is below the minimum of 2"));
    }
    if let Some(shares) = cpu.shares.as_ref().map(|shares| shares.value)
        && shares > MOST_SHARES
    {
        let problem = format!("{shares} is above the maximum of {MOST_SHARES}");
        wanted.doubt("CPUShares", problem);
    }
    if let Some(quota) = cpu.quota.as_ref().map(|quota| quota.value)
        && (1..LEAST_BANDWIDTH).contains(&quota)
    {
        let problem = format!("{quota} microseconds are below the minimum of {LEAST_BANDWIDTH}");
        wanted.doubt("CPUQuota", problem);
    }
    if let Some(period) = cpu.period.as_ref().map(|period| period.value)
        && period != 0
        && !PERIODS.contains(&period)
    {
        let (first, last) = (PERIODS.start(), PERIODS.end());
        let problem = format!("{period} microseconds are outside {first} to {last}");
        wanted.doubt("CPUPeriod", problem);
    }
    for (list, nri_field, what) in
        [(&cpu.cpus, "CPUSetCPUs", "CPUs"), (&cpu.mems, "CPUSetMems", "nodes")]
    {
        if !list.is_empty() && !values::is_cpuset(list) {
            let problem = format!("\"{}\" is not a list of {what}, such as 0-1,3", quoted(list));
            wanted.doubt(nri_field, problem);
        }
    }
    Ok(())
}

/// Runtimes refuse a limit with swap that is below the limit without, or that has none beside it.
fn check_swap(root: &mut Object<'_>) -> Result<Result<(), String>, PatchError> {
    let memory = root.object("linux")?.object("resources")?.object("memory")?;
    let number = |value: Option<Value>| value.as_ref().and_then(Value::as_i64);
    let (limit, swap) = (number(memory.value("limit")?), number(memory.value("swap")?));
    Ok(match (limit, swap) {
        (Some(limit), Some(swap)) if swap > 0 && swap < limit => {
            Err(format!("memory with swap, {swap}, is below memory alone, {limit}"))
        }
        (None | Some(0), Some(swap)) if swap > 0 => {
            Err(format!("memory with swap, {swap}, needs a limit of memory alone"))
        }
        _ => Ok(()),
    })
}

fn patch_hugepages(
    root: &mut Object<'_>,
    hugepages: Vec<(String, Value)>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    if hugepages.is_empty() {
        return Ok(());
    }
    let items = root.object("linux")?.object("resources")?.array("hugepageLimits")?.items();
    let mut by_size: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let there = item.open("linux.resources.hugepageLimits[]")?.value("pageSize")?;
        if let Some(there) = there.as_ref().and_then(Value::as_str) {
            by_size.entry(keys::hugepage(there)).or_default().push(index);
        }
    }
    let mut doubles = HashSet::new();
    for (size, value) in hugepages {
        let matching = by_size.remove(&size).unwrap_or_default();
        let before = matching.first().and_then(|first| items.get(*first)).map(Item::value);
        if matching.len() == 1 && before.as_ref() == Some(&value) {
            continue;
        }
        match matching.first().and_then(|first| items.get_mut(*first)) {
            Some(first) => first.replace(&value),
            None => items.push(Item::new(&value)),
        }
        doubles.extend(matching.into_iter().skip(1));
        let field = format!("linux.resources.hugepageLimits[{size}]");
        changes.note(field, format!("HugepageLimits[{size}]"), before, Some(value));
    }
    let mut index = 0..;
    items.retain(|_| index.next().is_none_or(|index| !doubles.contains(&index)));
    Ok(())
}

fn rule_value(rule: &api::LinuxDeviceCgroup) -> Result<Value, &'static str> {
    let api::LinuxDeviceCgroup { allow, type_, major, minor, access, special_fields: _ } = rule;
    let mut value = Map::new();
    value.insert("allow".to_owned(), Value::from(*allow));
    if !matches!(type_.as_str(), "" | "a" | "b" | "c") {
        return Err("its type is none of a, b, c");
    }
    if access.chars().any(|mode| !"rwm".contains(mode)) {
        return Err("its access is not made of r, w, m");
    }
    // Minus one is any device, in words that every runtime has.
    let is_number = |number: i64| (-1..=i64::from(u32::MAX)).contains(&number);
    if [major, minor].iter().any(|n| n.as_ref().is_some_and(|n| !is_number(n.value))) {
        return Err("no device has such a number");
    }
    if !type_.is_empty() {
        value.insert("type".to_owned(), Value::from(type_.as_str()));
    }
    for (key, number) in [("major", major), ("minor", minor)] {
        if let Some(number) = number.as_ref() {
            value.insert(key.to_owned(), Value::from(number.value));
        }
    }
    if !access.is_empty() {
        value.insert("access".to_owned(), Value::from(access.as_str()));
    }
    Ok(Value::Object(value))
}
