// SPDX-License-Identifier: Apache-2.0
//! Values that give way: they are set only where neither the container nor any plugin has one,
//! whichever comes first.
//!
//! An offer is shown to the plugins after it, and owns nothing until all have answered: then what
//! none of them set or removed becomes an answer like any other. Nothing here looks at values.

use std::collections::HashSet;

use protobuf::MessageField;

use crate::fields::NriField;
use crate::keys;
use crate::owners::{Owners, flat_name, rule_name};
use crate::resources::rule_text;
use crate::rights::Rights;
use nri_api as api;

/// One offer, as far as it has not given way yet.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) from: String,
    pub(crate) rights: Rights,
    pub(crate) adjust: api::ContainerAdjustment,
}

/// A value that gave way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yielded {
    /// By what it was offered.
    pub from: String,
    /// The field as owners are named: `Env[PATH]`.
    pub field: String,
    /// The plugin, or the offer, that has it; `None`: the container has it.
    pub to: Option<String>,
}

/// The container's values in the form of an adjustment that would set them.
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

/// One value of an adjustment: its field, or a cgroup device rule, which NRI has no field for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    Field(NriField, Option<String>),
    DeviceRule(String),
}

impl Slot {
    /// As owners are named.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Field(field, key) => flat_name(*field, key.as_deref()),
            Self::DeviceRule(rule) => rule_name(rule),
        }
    }

    /// The plugin that set or removed it in this container.
    fn plugin_in(&self, owners: &Owners, container: &str) -> Option<String> {
        let Self::Field(field, key) = self else { return None };
        let owner = owners.owner(container, *field, key.as_deref())?;
        Some(owner.plugin().to_owned())
    }
}

/// Leaves out of `adjust` what the container has (`present`), or what `owners` have in it.
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

/// Every value of an adjustment.
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

/// Takes out a value that is present and not kept.
fn filter<T>(keep: Keep<'_>, field: NriField, value: &mut MessageField<T>) {
    if value.is_some() && !one(keep, field) {
        *value = MessageField::none();
    }
}

/// The same of a text.
fn filter_text(keep: Keep<'_>, field: NriField, value: &mut String) {
    if !value.is_empty() && !one(keep, field) {
        value.clear();
    }
}

/// Keeps of an adjustment what `keep` wants. Every field is named, so that a new one breaks the
/// build.
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
    if let Some(memory) = memory.as_mut() {
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
        filter(keep, F::MemLimit, limit);
        filter(keep, F::MemReservation, reservation);
        filter(keep, F::MemSwapLimit, swap);
        filter(keep, F::MemKernelLimit, kernel);
        filter(keep, F::MemTCPLimit, kernel_tcp);
        filter(keep, F::MemSwappiness, swappiness);
        filter(keep, F::MemDisableOomKiller, disable_oom_killer);
        filter(keep, F::MemUseHierarchy, use_hierarchy);
    }
    if let Some(cpu) = cpu.as_mut() {
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
        filter(keep, F::CPUShares, shares);
        filter(keep, F::CPUQuota, quota);
        filter(keep, F::CPUPeriod, period);
        filter(keep, F::CPURealtimeRuntime, realtime_runtime);
        filter(keep, F::CPURealtimePeriod, realtime_period);
        filter_text(keep, F::CPUSetCPUs, cpus);
        filter_text(keep, F::CPUSetMems, mems);
    }
    hugepage_limits.retain(|l| keyed(keep, F::HugepageLimits, keys::hugepage(&l.page_size)));
    unified.retain(|key, _| keyed(keep, F::CgroupsUnified, key));
    devices.retain(|rule| keep(Slot::DeviceRule(rule_text(rule))));
    filter(keep, F::BlockioClass, blockio_class);
    filter(keep, F::RdtClass, rdt_class);
    filter(keep, F::PidsLimit, pids);
}
