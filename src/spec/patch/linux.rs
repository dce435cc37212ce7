// SPDX-License-Identifier: Apache-2.0
//! The Linux part of an adjustment: the order of its fields, and the small fields.
//!
//! Each field is named here, so that a new one breaks the build until its handling is decided.
//! Reference: NRI `Generator.Adjust`, except for BUG-06, BUG-12, BUG-G1; decision D23.

use std::collections::{HashMap, HashSet};

use oci_document::{Item, Object};
use serde_json::{Value, json};

use super::resolved::patch_classes;
use super::{
    Changes, HostFacts, PatchError, devices, memory_policy, net_devices, patch_map, process, rdt,
    resources, scheduling, seccomp, unmark, values, wanted_by_key,
};
use crate::plugin::api;

/// Namespace types as the specification spells them.
const NAMESPACES: [&str; 8] = ["network", "pid", "mount", "ipc", "uts", "user", "cgroup", "time"];

/// Applies the adjustment's Linux part.
pub(super) fn patch(
    root: &mut Object<'_>,
    linux: &api::LinuxContainerAdjustment,
    facts: &HostFacts,
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
    devices::patch(root, devices, changes)?;
    if !cgroups_path.is_empty() {
        patch_cgroups_path(root, cgroups_path, changes)?;
    }
    process::patch_oom_score_adj(root, oom_score_adj.as_ref().map(|score| score.value), changes)?;
    scheduling::patch_io_priority(root, io_priority.as_ref(), changes)?;
    scheduling::patch_scheduler(root, scheduler.as_ref(), changes)?;
    seccomp::patch(root, seccomp_policy.as_ref(), changes)?;
    patch_namespaces(root, namespaces, changes)?;
    patch_sysctls(root, sysctl, changes)?;
    net_devices::patch(root, net_devices, changes)?;
    memory_policy::patch(root, memory_policy.as_ref(), changes)?;
    if let Some(resources) = resources.as_ref() {
        resources::patch(root, resources, facts, changes)?;
        patch_classes(root, resources, &facts.names, changes)?;
    }
    rdt::patch(root, rdt.as_ref(), changes)
}

fn patch_cgroups_path(
    root: &mut Object<'_>,
    path: &str,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let names = ("linux.cgroupsPath", "CgroupsPath");
    let linux = root.object("linux")?;
    let engine = linux.value("cgroupsPath")?;
    values::check_cgroups_path(path, engine.as_ref().and_then(Value::as_str))
        .map_err(|problem| PatchError::invalid(names.1, problem))?;
    Ok(changes.set(linux, "cgroupsPath", Value::from(path), names)?)
}

/// A `-type` leaves the container in the runtime's namespace; anything else gives it a new one or
/// the one at `path`.
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
        let nri_field = format!("Namespace[{name}]");
        if !NAMESPACES.contains(&name) {
            return Err(PatchError::invalid(nri_field, "Linux has no such namespace"));
        }
        if !is_removal && !path.is_empty() {
            values::check_path(path).map_err(|problem| PatchError::invalid(&nri_field, problem))?;
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
    let wanted = wanted_by_key(sysctl, |value| Value::from(value.as_str()));
    let namespaces = namespaces_of(root)?;
    for (key, value) in &wanted {
        let is_missing = |kind: &str| !namespaces.contains(kind);
        let nri_field = format!("Sysctl[{key}]");
        let doubt = match values::namespace_of_sysctl(key) {
            _ if value.is_none() && !key.is_empty() => continue,
            Err(problem) if values::may_be_a_sysctl_of_the_host(key) => {
                return Err(PatchError::invalid(nri_field, problem));
            }
            Err(problem) => problem.to_owned(),
            // A document without any namespace is left to the runtime.
            Ok(kind) if !namespaces.is_empty() && is_missing(kind) => {
                format!("the container uses the host's {kind} namespace")
            }
            Ok(_) => continue,
        };
        changes.doubt(&nri_field, Err(doubt));
    }
    let object = root.object("linux")?.map("sysctl")?;
    patch_map(object, &wanted, ("linux.sysctl", "Sysctl"), changes)
}

/// The types of the namespaces that the container will have.
fn namespaces_of(root: &mut Object<'_>) -> Result<HashSet<String>, PatchError> {
    let mut types = HashSet::new();
    for item in root.object("linux")?.array("namespaces")?.items().iter() {
        let there = item.open("linux.namespaces[]")?.value("type")?;
        types.extend(there.as_ref().and_then(Value::as_str).map(str::to_owned));
    }
    Ok(types)
}
