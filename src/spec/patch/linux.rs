// SPDX-License-Identifier: Apache-2.0
//! Applies the fields of an adjustment's Linux part in order; the small ones are edited here.
//!
//! Each field is named here, so that a new field breaks the build until its handling is decided.
//! Reference: NRI `Generator.Adjust`, except for BUG-06, BUG-12, BUG-G1; decision D23.

use std::collections::{HashMap, HashSet};

use oci_document::{Item, Object};
use serde_json::{Value, json};

use super::resolved::patch_classes;
use super::{
    Patch, PatchError, Result, devices, memory_policy, net_devices, patch_map, process, rdt,
    resources, scheduling, seccomp, unmark, values, wanted_by_key,
};
use crate::plugin::api;

/// Namespace types as the specification spells them.
const NAMESPACES: [&str; 8] = ["network", "pid", "mount", "ipc", "uts", "user", "cgroup", "time"];

pub(super) fn patch(
    patch: &mut Patch<'_, '_>,
    linux: &api::LinuxContainerAdjustment,
) -> Result<()> {
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
    devices::patch(patch, devices)?;
    if !cgroups_path.is_empty() {
        patch_cgroups_path(patch, cgroups_path)?;
    }
    process::patch_oom_score_adj(patch, oom_score_adj.as_ref().map(|score| score.value))?;
    scheduling::patch_io_priority(patch, io_priority.as_ref())?;
    scheduling::patch_scheduler(patch, scheduler.as_ref())?;
    seccomp::patch(patch, seccomp_policy.as_ref())?;
    patch_namespaces(patch, namespaces)?;
    patch_sysctls(patch, sysctl)?;
    net_devices::patch(patch, net_devices)?;
    memory_policy::patch(patch, memory_policy.as_ref())?;
    if let Some(resources) = resources.as_ref() {
        resources::patch(patch, resources)?;
        patch_classes(patch, resources)?;
    }
    rdt::patch(patch, rdt.as_ref())
}

fn patch_cgroups_path(patch: &mut Patch<'_, '_>, path: &str) -> Result<()> {
    let names = ("linux.cgroupsPath", "CgroupsPath");
    let linux = patch.root.object("linux")?;
    let engine = linux.value("cgroupsPath")?;
    values::check_cgroups_path(path, engine.as_ref().and_then(Value::as_str))
        .map_err(|problem| PatchError::invalid(names.1, problem))?;
    Ok(patch.changes.set(linux, "cgroupsPath", Value::from(path), names)?)
}

/// Applies namespaces: a `-type` leaves the container in the runtime's namespace; anything else
/// gives it a new one, or the one at `path`.
fn patch_namespaces(patch: &mut Patch<'_, '_>, namespaces: &[api::LinuxNamespace]) -> Result<()> {
    if namespaces.is_empty() {
        return Ok(());
    }
    let items = patch.root.object("linux")?.array("namespaces")?.items();
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
        patch.changes.note(format!("linux.namespaces[{name}]"), nri_field, before, after);
    }
    Ok(())
}

fn patch_sysctls(patch: &mut Patch<'_, '_>, sysctl: &HashMap<String, String>) -> Result<()> {
    if sysctl.is_empty() {
        return Ok(());
    }
    let wanted = wanted_by_key(sysctl, |value| Value::from(value.as_str()));
    let namespaces = namespaces_of(patch.root)?;
    for (key, value) in &wanted {
        let is_missing = |kind: &str| !namespaces.contains(kind);
        let nri_field = format!("Sysctl[{key}]");
        let doubt = match values::namespace_of_sysctl(key) {
            _ if value.is_none() && !key.is_empty() => continue,
            Err(problem) if values::may_be_a_sysctl_of_the_host(key) => {
                return Err(PatchError::invalid(nri_field, problem));
            }
            Err(problem) => problem.to_owned(),
            // The runtime decides about a document without any namespace.
            Ok(kind) if !namespaces.is_empty() && is_missing(kind) => {
                format!("the container uses the host's {kind} namespace")
            }
            Ok(_) => continue,
        };
        patch.changes.doubt(&nri_field, Err(doubt));
    }
    let object = patch.root.object("linux")?.map("sysctl")?;
    patch_map(object, &wanted, ("linux.sysctl", "Sysctl"), &mut patch.changes)
}

/// Returns the types of the namespaces that the container will have.
fn namespaces_of(root: &mut Object<'_>) -> Result<HashSet<String>> {
    let mut types = HashSet::new();
    for item in root.object("linux")?.array("namespaces")?.items().iter() {
        let there = item.open("linux.namespaces[]")?.value("type")?;
        types.extend(there.as_ref().and_then(Value::as_str).map(str::to_owned));
    }
    Ok(types)
}
