// SPDX-License-Identifier: Apache-2.0
//! The Linux part of an adjustment: which of its fields are applied, and the small ones.
//!
//! A field that is not applied is refused here by name, so that no plugin believes in a change
//! that never happened.
//! Reference: nri-semantics 5.2 rows 7 to 19, with BUG-06, 12, G1 put right; decision D23.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Changes, PatchError, devices, patch_map, process, resources, unmark, wanted_by_key};
use crate::error::quoted;
use crate::plugin::api;
use crate::spec::array::Item;
use crate::spec::document::Object;

/// Namespace types as the specification spells them.
const NAMESPACES: [&str; 8] = ["network", "pid", "mount", "ipc", "uts", "user", "cgroup", "time"];

/// Applies the adjustment's Linux part.
pub(super) fn patch(
    root: &mut Object<'_>,
    linux: &api::LinuxContainerAdjustment,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let api::LinuxContainerAdjustment {
        devices,
        resources,
        cgroups_path,
        oom_score_adj,
        io_priority,
        seccomp_policy,
        namespaces,
        sysctl,
        net_devices,
        scheduler,
        rdt,
        memory_policy,
        special_fields: _,
    } = linux;
    // The reference sends an empty `rdt` along with any Linux part; only a filled one asks for
    // something.
    let rdt_asks = rdt.as_ref().is_some_and(|rdt| *rdt != api::LinuxRdt::default());
    for (is_set, field) in [
        (io_priority.is_some(), "IoPriority"),
        (seccomp_policy.is_some(), "SeccompPolicy"),
        (!net_devices.is_empty(), "LinuxNetDevices"),
        (scheduler.is_some(), "LinuxSched"),
        (rdt_asks, "Rdt"),
        (memory_policy.is_some(), "MemoryPolicy"),
    ] {
        if is_set {
            return Err(PatchError::NotApplied { field: field.to_owned() });
        }
    }
    devices::patch(root, devices, changes)?;
    if !cgroups_path.is_empty() {
        let names = ("linux.cgroupsPath", "CgroupsPath");
        let path = Value::from(cgroups_path.as_str());
        changes.set(root.object("linux")?, "cgroupsPath", path, names)?;
    }
    process::patch_oom_score_adj(root, oom_score_adj.as_ref().map(|score| score.value), changes)?;
    patch_namespaces(root, namespaces, changes)?;
    patch_sysctls(root, sysctl, changes)?;
    if let Some(resources) = resources.as_ref() {
        resources::patch(root, resources, changes)?;
    }
    Ok(())
}

/// A `-type` leaves the container in the runtime's own namespace; anything else gives it a new
/// one or the one at `path`.
fn patch_namespaces(
    root: &mut Object<'_>,
    namespaces: &[api::LinuxNamespace],
    changes: &mut Changes,
) -> Result<(), PatchError> {
    if namespaces.is_empty() {
        return Ok(());
    }
    let items = root.object("linux")?.array("namespaces")?.items();
    for namespace in namespaces {
        let api::LinuxNamespace { type_, path, special_fields: _ } = namespace;
        let (name, is_removal) = unmark(type_);
        let nri_field = format!("Namespace[{}]", quoted(name));
        if !NAMESPACES.contains(&name) {
            return Err(PatchError::invalid(nri_field, "Linux has no such namespace"));
        }
        let after = match (is_removal, path.as_str()) {
            (true, _) => None,
            (false, "") => Some(json!({"type": name})),
            (false, path) => Some(json!({"type": name, "path": path})),
        };
        let mut matching = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let there = item.open("linux.namespaces[]")?.value("type")?;
            if there.as_ref().and_then(Value::as_str) == Some(name) {
                matching.push(index);
            }
        }
        let before = matching.first().and_then(|first| items.get(*first)).map(Item::value);
        if matching.len() <= 1 && before == after {
            continue;
        }
        if let Some(value) = &after {
            match matching.first().and_then(|first| items.get_mut(*first)) {
                Some(first) => first.replace(value),
                None => items.push(Item::new(value)),
            }
        }
        for extra in matching.iter().skip(usize::from(after.is_some())).rev() {
            items.remove(*extra);
        }
        changes.note(format!("linux.namespaces[{name}]"), nri_field, before, after);
    }
    Ok(())
}

fn patch_sysctls(
    root: &mut Object<'_>,
    sysctl: &HashMap<String, String>,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    if sysctl.is_empty() {
        return Ok(());
    }
    let wanted = wanted_by_key(sysctl);
    if wanted.contains_key("") {
        return Err(PatchError::invalid("Sysctl[]", "a sysctl needs a name"));
    }
    let object = root.object("linux")?.map("sysctl")?;
    patch_map(object, &wanted, ("linux.sysctl", "Sysctl"), changes)
}
