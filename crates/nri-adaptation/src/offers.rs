// SPDX-License-Identifier: Apache-2.0
//! Offers: values that yield to the container's, to those of earlier offers, and to every value that any
//! plugin sets or removes.
//!
//! Later plugins receive the offered values. The source of an offer owns no field until all plugins have
//! answered; then the values that no plugin set or removed are merged like a reply. Values are not examined.

use std::collections::HashSet;

use protobuf::MessageField;
use serde_json::Value;

use crate::fields::NriField;
use crate::keys;
use crate::owners::{Owners, flat_name, rule_name};
use crate::resources::rule_text;
use crate::rights::Rights;
use crate::scalar::SCALARS;
use nri_api as api;

/// One offer, without the values that have yielded so far.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) from: String,
    pub(crate) rights: Rights,
    pub(crate) adjust: api::ContainerAdjustment,
}

/// An offered value that yielded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yielded {
    /// The source of the offer.
    pub from: String,
    /// The field, as owner tables name it: `Env[PATH]`.
    pub field: String,
    /// The plugin or offer that set or removed the field; `None` for the container.
    pub to: Option<String>,
}

/// Returns an adjustment that would set the container's values.
#[must_use]
pub fn as_adjustment(container: &api::Container) -> api::ContainerAdjustment {
    let linux = container.linux.as_ref().map(|linux| api::LinuxContainerAdjustment {
        devices: linux.devices.clone(),
        resources: linux.resources.clone(),
        cgroups_path: linux.cgroups_path.clone(),
        oom_score_adj: linux.oom_score_adj.clone(),
        io_priority: linux.io_priority.clone(),
        seccomp_policy: linux.seccomp_policy.clone(),
        namespaces: linux.namespaces.clone(),
        sysctl: linux.sysctl.clone(),
        net_devices: linux.net_devices.clone(),
        scheduler: linux.scheduler.clone(),
        rdt: linux.rdt.clone(),
        ..Default::default()
    });
    let variable = |entry: &String| {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        api::KeyValue { key: key.to_owned(), value: value.to_owned(), ..Default::default() }
    };
    api::ContainerAdjustment {
        annotations: container.annotations.clone(),
        mounts: container.mounts.clone(),
        env: container.env.iter().map(variable).collect(),
        hooks: container.hooks.clone(),
        linux: linux.into(),
        rlimits: container.rlimits.clone(),
        CDI_devices: container.CDI_devices.clone(),
        args: container.args.clone(),
        ..Default::default()
    }
}

/// One value of an adjustment: its field, or a cgroup device rule, for which NRI has no field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    Field(NriField, Option<String>),
    DeviceRule(String),
}

impl Slot {
    /// Returns the value's name in owner tables.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Field(field, key) => flat_name(*field, key.as_deref()),
            Self::DeviceRule(rule) => rule_name(rule),
        }
    }

    /// Returns the plugin, or source of an offer, that owns the value in this container; `None` for a device
    /// rule, which cannot conflict.
    fn plugin_in(&self, owners: &Owners, container: &str) -> Option<String> {
        let Self::Field(field, key) = self else { return None };
        let owner = owners.owner(container, *field, key.as_deref())?;
        Some(owner.plugin().to_owned())
    }
}

/// Removes from `adjust` the values of the fields that the container has (`present`) or that have an owner in
/// `owners`; returns the removed ones.
pub(crate) fn give_way(
    from: &str,
    adjust: &mut api::ContainerAdjustment,
    present: &HashSet<Slot>,
    container: &str,
    owners: &[&Owners],
) -> Vec<Yielded> {
    let mut yielded = Vec::new();
    retain(adjust, &mut |slot| {
        let owner = || owners.iter().find_map(|owners| slot.plugin_in(owners, container));
        let to = match present.contains(&slot) {
            true => None,
            false => match owner() {
                None => return true,
                owner => owner,
            },
        };
        yielded.push(Yielded { from: from.to_owned(), field: slot.name(), to });
        false
    });
    yielded
}

/// Removes the offered cgroup device rules from the container, so that settling the offer does not add them twice. Of
/// equal rules the first goes: each is the same, and the offer's is added again at the end.
pub(crate) fn take_back(container: &mut api::Container, adjust: &api::ContainerAdjustment) {
    let resources = container.linux.as_mut().and_then(|linux| linux.resources.as_mut());
    let Some(resources) = resources else { return };
    for rule in &adjust.linux.resources.devices {
        if let Some(place) = resources.devices.iter().position(|one| one == rule) {
            resources.devices.remove(place);
        }
    }
}

/// Returns the field of every value of an adjustment.
pub(crate) fn slots(adjust: &api::ContainerAdjustment) -> HashSet<Slot> {
    let mut found = HashSet::new();
    retain(&mut adjust.clone(), &mut |slot| {
        found.insert(slot);
        true
    });
    found
}

type Keep<'k> = &'k mut dyn FnMut(Slot) -> bool;

fn one(keep: Keep<'_>, field: NriField) -> bool {
    keep(Slot::Field(field, None))
}

fn keyed(keep: Keep<'_>, field: NriField, key: impl Into<String>) -> bool {
    keep(Slot::Field(field, Some(key.into())))
}

/// Removes a value that `keep` refuses.
fn filter<T>(keep: Keep<'_>, field: NriField, value: &mut MessageField<T>) {
    if value.is_some() && !one(keep, field) {
        *value = MessageField::none();
    }
}

fn filter_text(keep: Keep<'_>, field: NriField, value: &mut String) {
    if !value.is_empty() && !one(keep, field) {
        value.clear();
    }
}

/// Removes from an adjustment the values that `keep` refuses. Every field is named, so that a new
/// one breaks the build.
fn retain(adjust: &mut api::ContainerAdjustment, keep: Keep<'_>) {
    use NriField as F;
    let api::ContainerAdjustment {
        annotations,
        mounts,
        env,
        hooks,
        linux,
        rlimits,
        CDI_devices,
        args,
        special_fields: _,
    } = adjust;
    annotations.retain(|key, _| keyed(keep, F::Annotations, key));
    mounts.retain(|m| keyed(keep, F::Mounts, keys::destination(&m.destination)));
    env.retain(|variable| keyed(keep, F::Env, &variable.key));
    filter(keep, F::OciHooks, hooks);
    rlimits.retain(|limit| keyed(keep, F::Rlimits, keys::rlimit(&limit.type_)));
    CDI_devices.retain(|device| keyed(keep, F::CdiDevices, &device.name));
    if !args.is_empty() && !one(keep, F::Args) {
        args.clear();
    }
    let Some(linux) = linux.as_mut() else { return };
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
    devices.retain(|device| keyed(keep, F::Devices, &device.path));
    if let Some(resources) = resources.as_mut() {
        retain_resources(resources, keep);
    }
    filter_text(keep, F::CgroupsPath, cgroups_path);
    filter(keep, F::OomScoreAdj, oom_score_adj);
    filter(keep, F::IoPriority, io_priority);
    filter(keep, F::SeccompPolicy, seccomp_policy);
    namespaces.retain(|namespace| keyed(keep, F::Namespace, &namespace.type_));
    sysctl.retain(|key, _| keyed(keep, F::Sysctl, key));
    net_devices.retain(|key, _| keyed(keep, F::LinuxNetDevices, key));
    filter(keep, F::LinuxSched, scheduler);
    if let Some(rdt) = rdt.as_mut() {
        filter(keep, F::RdtClosID, &mut rdt.clos_id);
        filter(keep, F::RdtSchemata, &mut rdt.schemata);
        filter(keep, F::RdtEnableMonitoring, &mut rdt.enable_monitoring);
    }
    filter(keep, F::MemoryPolicy, memory_policy);
}

fn retain_resources(resources: &mut api::LinuxResources, keep: Keep<'_>) {
    use NriField as F;
    for scalar in &SCALARS {
        if !scalar.get(resources).is_null() && !one(keep, scalar.field) {
            scalar.set(resources, &Value::Null);
        }
    }
    let api::LinuxResources {
        memory: _,
        cpu: _,
        hugepage_limits,
        blockio_class,
        rdt_class,
        unified,
        devices,
        pids: _,
        special_fields: _,
    } = resources;
    hugepage_limits.retain(|l| keyed(keep, F::HugepageLimits, keys::hugepage(&l.page_size)));
    unified.retain(|key, _| keyed(keep, F::CgroupsUnified, key));
    devices.retain(|rule| keep(Slot::DeviceRule(rule_text(rule))));
    filter(keep, F::BlockioClass, blockio_class);
    filter(keep, F::RdtClass, rdt_class);
}
