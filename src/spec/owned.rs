// SPDX-License-Identifier: Apache-2.0
//! Finds the owners of an overlay's members: the overlay has the values, and the owner table has the plugins by NRI's
//! field names. This module never changes a value. Reference: decisions D21 and D25.

use std::collections::{BTreeMap, HashMap, HashSet};

use nri_adaptation::{SCALARS, Scalar};
use serde_json::Value;

use super::Block;

const HUGEPAGES: &str = "HugepageLimits[";
const UNIFIED: &str = "CgroupsUnified[";
const RULES: &str = "DeviceRules[";
const BLOCK_IO: &str = "BlockioClass";

/// One member of an overlay.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedMember {
    /// Path in config.json, below `linux.resources`.
    pub path: String,
    /// NRI's name of the member; empty if it has none.
    pub nri: String,
    /// The member's value.
    pub value: Value,
    /// Prefix of the owners' field names if these may differ from `nri`: a page size has several
    /// spellings, and a device rule has no NRI field.
    owners_begin_with: Option<&'static str>,
}

/// Lists every member of an overlay.
pub(crate) fn fields(overlay: &Block) -> Vec<OwnedMember> {
    let mut found = Vec::new();
    for (section, value) in overlay {
        if let Value::Object(members) = value {
            found.extend(members.iter().map(|(key, value)| OwnedMember {
                path: member_path(section, key),
                nri: name(section, key),
                value: value.clone(),
                owners_begin_with: None,
            }));
        } else if let Some(limits) = value.as_array().filter(|_| section == "hugepageLimits") {
            found.extend(limits.iter().map(|limit| OwnedMember {
                path: format!("hugepageLimits[{}]", page_size(limit)),
                nri: format!("{HUGEPAGES}{}]", page_size(limit)),
                value: limit.get("limit").cloned().unwrap_or_default(),
                owners_begin_with: Some(HUGEPAGES),
            }));
        } else {
            let (path, value) = (section.clone(), value.clone());
            let owners_begin_with = (section == "devices").then_some(RULES);
            found.push(OwnedMember { path, nri: String::new(), value, owners_begin_with });
        }
    }
    found
}

/// Limits in `LinuxResources`, each with the value that lifts it; for the period, the kernel's default.
const LIFTED: [(&str, &str, i64); 5] = [
    ("memory", "limit", -1),
    ("memory", "swap", -1),
    ("cpu", "quota", -1),
    ("cpu", "period", 100_000),
    ("pids", "limit", -1),
];

/// Returns the resources with which a runtime restores `before` after it may have set `part`: limits that `before`
/// lacks are lifted. Also returns the paths of the members that no value can restore.
pub fn undone(part: &Block, before: &Block) -> (Block, Vec<String>) {
    let (mut undone, mut left) = (before.clone(), Vec::new());
    let known: HashSet<String> = fields(before).into_iter().map(|field| field.path).collect();
    for field in fields(part) {
        if known.contains(&field.path) {
            continue;
        }
        let lifted =
            LIFTED.iter().find(|(section, key, _)| member_path(section, key) == field.path);
        let Some((section, key, lifted)) = lifted else {
            left.push(field.path);
            continue;
        };
        let place = undone.entry(*section).or_insert_with(|| Value::Object(Block::new()));
        if let Value::Object(members) = place {
            members.insert((*key).to_owned(), Value::from(*lifted));
        }
    }
    (undone, left)
}

/// Whether a member only repeats the default: an unlimited kernel memory, or a single hierarchy.
/// crun refuses such a member on cgroup v2.
pub(crate) fn holds_anyway(section: &str, key: &str, value: &Value) -> bool {
    match (section, key) {
        ("memory", "kernel" | "kernelTCP") => value.as_i64().is_some_and(|limit| limit <= 0),
        ("memory", "useHierarchy") => *value == Value::Bool(true),
        _ => false,
    }
}

/// Returns the owner of a member. A swap limit that only follows the memory limit belongs to the owner of that
/// limit. A page size or device rule without an owner of exactly its name belongs to the first owner of any page
/// size or rule.
pub(crate) fn owner<'o>(
    owned: &OwnedMember,
    overlay: &Block,
    owners: &'o BTreeMap<String, String>,
) -> Option<&'o str> {
    let found = owners.get(&owned.nri).or_else(|| {
        let limit = overlay.get("memory").and_then(|memory| memory.get("limit"));
        let follows = owned.nri == "MemSwapLimit" && limit == Some(&owned.value);
        follows.then(|| owners.get("MemLimit")).flatten()
    });
    let found = found.or_else(|| {
        let prefix = owned.owners_begin_with?;
        // The names are sorted: if one has this prefix, the first one from the prefix on has it.
        let (name, owner) = owners.range(prefix.to_owned()..).next()?;
        name.starts_with(prefix).then_some(owner)
    });
    found.map(String::as_str)
}

/// Returns the part of `wanted` that has an owner.
pub fn part(wanted: &Block, owners: &BTreeMap<String, String>) -> Block {
    keep_owned(wanted, |member| owner(member, wanted, owners).is_some())
}

/// Removes the owners of resources that are not in the overlay; owners of device rules stay.
pub fn retain(owners: &mut BTreeMap<String, String>, overlay: &Block) {
    let held: HashSet<String> = fields(overlay).into_iter().map(|owned| owned.nri).collect();
    owners.retain(|name, _| !is_resource(name) || held.contains(name));
}

/// Whether an owner table's field is a resource that an overlay can hold, other than a device rule.
pub(crate) fn is_resource(name: &str) -> bool {
    name.starts_with(HUGEPAGES)
        || name.starts_with(UNIFIED)
        || name == BLOCK_IO
        || SCALARS.iter().any(|scalar| scalar.field.name() == name)
}

/// Returns the members of an overlay for which `is_kept` returns true. A list is kept or removed as a whole, except
/// that of page sizes.
pub fn keep_owned(overlay: &Block, is_kept: impl Fn(&OwnedMember) -> bool) -> Block {
    let kept: HashSet<String> = fields(overlay)
        .into_iter()
        .filter(|field| is_kept(field))
        .map(|field| field.path)
        .collect();
    let mut part = overlay.clone();
    part.retain(|section, value| {
        if let Value::Object(members) = value {
            members.retain(|key, _| kept.contains(&member_path(section, key)));
            return !members.is_empty();
        }
        match value.as_array_mut().filter(|_| section == "hugepageLimits") {
            Some(limits) => {
                let path = |limit: &Value| format!("hugepageLimits[{}]", page_size(limit));
                limits.retain(|limit| kept.contains(&path(limit)));
                !limits.is_empty()
            }
            None => kept.contains(section),
        }
    });
    part
}

/// Returns all values by their paths in [`fields`], for callers that need many of them.
pub(crate) fn values(resources: &Block) -> HashMap<String, Value> {
    let mut values = HashMap::new();
    for owned in fields(resources) {
        values.entry(owned.path).or_insert(owned.value);
    }
    values
}

/// Returns the value at a path of [`fields`].
pub(crate) fn value(resources: &Block, path: &str) -> Option<Value> {
    fields(resources).into_iter().find(|owned| owned.path == path).map(|owned| owned.value)
}

fn member_path(section: &str, key: &str) -> String {
    if section == "unified" { format!("unified[{key}]") } else { format!("{section}.{key}") }
}

/// Returns NRI's name of a member; empty if it has none.
pub(crate) fn name(section: &str, key: &str) -> String {
    if section == "unified" {
        return format!("{UNIFIED}{key}]");
    }
    if section == "blockIO" {
        return BLOCK_IO.to_owned(); // A class sets every member of this section.
    }
    Scalar::of_member(section, key).map(|scalar| scalar.field.to_string()).unwrap_or_default()
}

fn page_size(limit: &Value) -> &str {
    limit.get("pageSize").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Block {
        value.as_object().cloned().unwrap()
    }

    fn owners(names: &[&str]) -> BTreeMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), "10-a".to_owned())).collect()
    }

    #[test]
    fn only_values_that_were_set_are_owned() {
        let wanted = map(json!({
            "cpu": {"shares": 5, "cpus": "0"}, "pids": {"limit": 9},
            "unified": {"memory.high": "1", "memory.min": "2"},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 3}],
        }));
        let owners = owners(&["CPUSetCPUs", "CgroupsUnified[memory.high]", "HugepageLimits[2MB]"]);
        let mine = json!({
            "cpu": {"cpus": "0"}, "unified": {"memory.high": "1"},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 3}],
        });
        assert_eq!(Value::Object(part(&wanted, &owners)), mine);
        assert_eq!(part(&wanted, &BTreeMap::new()), Block::new());
    }

    #[test]
    fn rollback_restores_old_values_and_lifts_or_names_new_ones() {
        let before = map(json!({"cpu": {"shares": 5}, "pids": {"limit": 40}}));
        let part = map(json!({
            "cpu": {"shares": 9, "quota": 7, "cpus": "4000"}, "pids": {"limit": 50},
            "memory": {"limit": 8, "reservation": 3}, "unified": {"memory.high": "1"},
        }));
        let (undone, left) = undone(&part, &before);
        let wanted = json!({
            "cpu": {"shares": 5, "quota": -1}, "pids": {"limit": 40}, "memory": {"limit": -1},
        });
        assert_eq!(Value::Object(undone), wanted);
        assert_eq!(left, ["cpu.cpus", "memory.reservation", "unified[memory.high]"]);
    }

    #[test]
    fn swap_belongs_to_the_limits_owner_only_if_equal_to_it() {
        let owners = owners(&["MemLimit"]);
        let follows = map(json!({"memory": {"limit": 7, "swap": 7}}));
        assert_eq!(part(&follows, &owners), follows);
        let own = map(json!({"memory": {"limit": 7, "swap": 9}}));
        assert_eq!(Value::Object(part(&own, &owners)), json!({"memory": {"limit": 7}}));
    }

    #[test]
    fn values_that_the_engine_took_back_lose_their_owner() {
        let mut owners = owners(&["CPUShares", "CPUQuota", "Env[A]", "CgroupsUnified[a.b]"]);
        retain(&mut owners, &map(json!({"cpu": {"quota": 5}})));
        assert_eq!(owners.into_keys().collect::<Vec<_>>(), ["CPUQuota", "Env[A]"]);
    }

    #[test]
    fn kept_overlay_values_are_selected_by_path() {
        let overlay = map(json!({
            "cpu": {"shares": 5, "cpus": "0"}, "pids": {"limit": 9}, "devices": [{"allow": true}],
            "hugepageLimits": [{"pageSize": "2MB", "limit": 3}, {"pageSize": "1GB", "limit": 4}],
        }));
        let names = ["cpu.cpus", "devices", "hugepageLimits[1GB]"];
        let kept = keep_owned(&overlay, |field| names.contains(&field.path.as_str()));
        let wanted = json!({"cpu": {"cpus": "0"}, "devices": [{"allow": true}],
            "hugepageLimits": [{"pageSize": "1GB", "limit": 4}]});
        assert_eq!(Value::Object(kept), wanted);
        assert_eq!(keep_owned(&overlay, |_| false), Block::new());
    }

    #[test]
    fn a_value_is_found_by_its_path() {
        let resources = map(json!({
            "cpu": {"quota": 5}, "hugepageLimits": [{"pageSize": "2MB", "limit": 3}]}));
        assert_eq!(value(&resources, "cpu.quota"), Some(json!(5)));
        assert_eq!(value(&resources, "hugepageLimits[2MB]"), Some(json!(3)));
        assert_eq!(value(&resources, "cpu.shares"), None);
    }
}
