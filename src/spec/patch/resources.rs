// SPDX-License-Identifier: Apache-2.0
//! Converts an adjustment's resources to the OCI specification's form.
//!
//! One list of settings serves for edits of config.json at creation and for the overlay in updates,
//! so that both agree. Values are checked here, where the plugin can still be named, but never
//! converted (the runtime converts shares to a weight). Reference: NRI `AdjustResources`, except
//! for BUG-G3 and BUG-G4; decision D24.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use nri_adaptation::{NriField, SCALARS, Scalar, keys, rule_text};
use oci_document::{Item, Object};
use protobuf::MessageField;
use serde_json::{Map, Value, json};

use super::{Class, Patch, PatchError, Resolved, Result, devices, object_of, values};
use crate::error::quoted;
use crate::plugin::api;
use crate::spec::owned::holds_anyway;

/// The kernel's minimum CPU time of a cgroup in a period, in microseconds.
const LEAST_BANDWIDTH: u64 = 1000;

/// Maximum CPU shares; cgroup v2 would silently reduce higher values.
const MOST_SHARES: u64 = 262_144;

/// Lengths that the kernel accepts for a period, in microseconds.
const PERIODS: RangeInclusive<u64> = 1000..=1_000_000;

/// One member of a section of `LinuxResources`.
#[derive(Debug, Clone, PartialEq)]
struct ResourceSetting {
    section: &'static str,
    key: String,
    value: Value,
    nri_field: String,
}

/// All resources that a plugin requests.
#[derive(Debug, Default)]
struct RequestedResources {
    settings: Vec<ResourceSetting>,
    /// Page size and the entry of `hugepageLimits`.
    hugepages: Vec<(String, Value)>,
    /// Cgroup rules, each with its name in the owner table.
    rules: Vec<(String, Value)>,
    /// Values that a kernel probably refuses.
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

pub(super) fn patch(patch: &mut Patch<'_, '_>, resources: &api::LinuxResources) -> Result<()> {
    let RequestedResources { settings, hugepages, rules, doubts } = read(resources)?;
    patch.changes.1.extend(doubts);
    devices::patch_rules(patch, &rules)?;
    let touches_limits = settings.iter().any(|ResourceSetting { section, key, .. }| {
        *section == "memory" && matches!(key.as_str(), "limit" | "swap")
    });
    for ResourceSetting { section, key, value, nri_field } in settings {
        let resources = patch.root.object("linux")?.object("resources")?;
        let (object, field) = if section == "unified" {
            (resources.map(section)?, format!("linux.resources.unified[{key}]"))
        } else {
            (resources.object(section)?, format!("linux.resources.{section}.{key}"))
        };
        // Leaving out such a value changes nothing, and crun refuses to create a container with it.
        let is_idle = patch.facts.is_cgroup_v2 && holds_anyway(section, &key, &value);
        if !is_idle || object.value(&key)?.is_some() {
            patch.changes.set(object, &key, value, (&field, &nri_field))?;
        }
    }
    if touches_limits {
        let checked = check_swap(patch.root)?;
        patch.changes.doubt("MemSwapLimit", checked);
    }
    patch_hugepages(patch, hugepages)
}

/// The lists of `blockIO`; a class sets all of them.
const BLOCK_IO_LISTS: [&str; 5] = [
    "weightDevice",
    "throttleReadBpsDevice",
    "throttleWriteBpsDevice",
    "throttleReadIOPSDevice",
    "throttleWriteIOPSDevice",
];

/// Converts a plugin's resources to an overlay for `update` (D21). An RDT class is not a resource, so the overlay
/// lacks it, but an unresolved class is refused.
pub fn overlay_of(
    resources: &api::LinuxResources,
    resolved: &Resolved,
) -> Result<Map<String, Value>> {
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
        // The section gets all members, so that nothing of an earlier class remains. Runtimes ignore a weight of zero.
        let mut whole = Map::from_iter([("weight".to_owned(), Value::from(0))]);
        whole.extend(BLOCK_IO_LISTS.map(|list| (list.to_owned(), Value::Array(Vec::new()))));
        whole.extend(class);
        overlay.insert("blockIO".to_owned(), Value::Object(whole));
    }
    Ok(overlay)
}

/// Reads all resources except the classes, which the host defines.
fn read(resources: &api::LinuxResources) -> Result<RequestedResources> {
    let api::LinuxResources {
        memory: _,
        cpu: _,
        hugepage_limits,
        blockio_class: _,
        rdt_class: _,
        unified,
        devices,
        pids: _,
        special_fields: _,
    } = resources;
    let mut wanted = RequestedResources::default();
    read_scalars(resources, &mut wanted)?;
    let mut keys: Vec<_> = unified.iter().collect();
    keys.sort();
    for (key, value) in keys {
        let nri_field = format!("CgroupsUnified[{key}]");
        if !values::is_unified_key(key) {
            return Err(PatchError::invalid(nri_field, "it is not a resource file of a cgroup"));
        }
        wanted.set("unified", key, Value::from(value.as_str()), &nri_field);
    }
    // Of several limits of one page size, the last one applies.
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

fn read_scalars(resources: &api::LinuxResources, wanted: &mut RequestedResources) -> Result<()> {
    let memory = resources.memory.get_or_default();
    // NRI: a limit of zero keeps the engine's value.
    let nonzero = |limit: i64| (limit != 0).then_some(limit);
    let limit = memory.limit.as_ref().and_then(|limit| nonzero(limit.value));
    let swap = memory.swap.as_ref().and_then(|swap| nonzero(swap.value));
    // NRI: a limit alone implies the same limit for memory with swap, or a container could swap
    // without limit (D24). Unlimited memory implies unlimited memory with swap: runtimes and
    // kernels refuse a sum that is less than a part of it.
    let (swap, swap_field) = match (swap, limit) {
        (None, Some(limit)) => (Some(limit), NriField::MemLimit),
        (Some(swap), Some(-1)) if swap != -1 => (Some(-1), NriField::MemLimit),
        (swap, _) => (swap, NriField::MemSwapLimit),
    };
    for scalar in &SCALARS {
        let (field, value) = match (scalar.section, scalar.key) {
            ("memory", "limit") => (scalar.field, limit.into()),
            ("memory", "swap") => (swap_field, swap.into()),
            _ => (scalar.field, scalar.get(resources)),
        };
        if value.is_null() {
            continue;
        }
        check(scalar, &value).map_err(|problem| PatchError::invalid(field.name(), problem))?;
        if let Err(problem) = check_range(scalar, &value) {
            wanted.doubt(field.name(), problem);
        }
        wanted.set(scalar.section, scalar.key, value, field.name());
    }
    Ok(())
}

/// Refuses values that every kernel refuses. Zero shares or memory mean "unchanged" to runtimes.
fn check(scalar: &Scalar, value: &Value) -> Result<(), String> {
    let Some(number) = value.as_i64() else { return Ok(()) };
    match scalar.section {
        "pids" if number == 0 || number < -1 => {
            Err(format!("{number} is not a number of processes (-1 is unlimited)"))
        }
        "cpu" if scalar.key == "shares" && number == 1 => {
            Err("1 is below the minimum of 2".to_owned())
        }
        "memory" if number < -1 => {
            Err(format!("{number} is not an amount of memory (-1 is unlimited)"))
        }
        _ => Ok(()),
    }
}

/// Reports a value that a kernel probably refuses.
fn check_range(scalar: &Scalar, value: &Value) -> Result<(), String> {
    let number = value.as_u64().unwrap_or_default();
    let what = match scalar.key {
        "swappiness" if number > 100 => return Err(format!("{number} is outside 0 to 100")),
        "shares" if number > MOST_SHARES => {
            return Err(format!("{number} is above the maximum of {MOST_SHARES}"));
        }
        "quota" if (1..LEAST_BANDWIDTH).contains(&number) => {
            let least = LEAST_BANDWIDTH;
            return Err(format!("{number} microseconds are below the minimum of {least}"));
        }
        "period" if number != 0 && !PERIODS.contains(&number) => {
            let (first, last) = (PERIODS.start(), PERIODS.end());
            return Err(format!("{number} microseconds are outside {first} to {last}"));
        }
        "cpus" => "CPUs",
        "mems" => "nodes",
        _ => return Ok(()),
    };
    let list = value.as_str().unwrap_or_default();
    match values::is_cpuset(list) {
        true => Ok(()),
        false => Err(format!("\"{}\" is not a list of {what}, such as 0-1,3", quoted(list))),
    }
}

/// Reports a limit of memory with swap that runtimes refuse: it is below the limit of memory alone,
/// or that limit is missing.
fn check_swap(root: &mut Object<'_>) -> Result<Result<(), String>> {
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

fn patch_hugepages(patch: &mut Patch<'_, '_>, hugepages: Vec<(String, Value)>) -> Result<()> {
    if hugepages.is_empty() {
        return Ok(());
    }
    let items = patch.root.object("linux")?.object("resources")?.array("hugepageLimits")?.items();
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
        patch.changes.note(field, format!("HugepageLimits[{size}]"), before, Some(value));
    }
    let mut index = 0..;
    items.retain(|_| index.next().is_none_or(|index| !doubles.contains(&index)));
    Ok(())
}

fn rule_value(rule: &api::LinuxDeviceCgroup) -> Result<Value, &'static str> {
    let api::LinuxDeviceCgroup { allow, type_, major, minor, access, special_fields: _ } = rule;
    if !matches!(type_.as_str(), "" | "a" | "b" | "c") {
        return Err("its type must be one of: a, b, c");
    }
    if access.chars().any(|mode| !"rwm".contains(mode)) {
        return Err("its access must consist of r, w, m");
    }
    // To every runtime, -1 means any number.
    let is_number = |number: i64| (-1..=i64::from(u32::MAX)).contains(&number);
    if [major, minor].iter().any(|n| n.as_ref().is_some_and(|n| !is_number(n.value))) {
        return Err("a device number must be from -1 to 4294967295");
    }
    let number =
        |number: &MessageField<api::OptionalInt64>| number.as_ref().map(|n| n.value).into();
    Ok(object_of([
        ("allow", (*allow).into()),
        ("type", type_.as_str().into()),
        ("major", number(major)),
        ("minor", number(minor)),
        ("access", access.as_str().into()),
    ]))
}
