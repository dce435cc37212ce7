// SPDX-License-Identifier: Apache-2.0
//! Merges one plugin's adjustment, field by field, in the reference's order.
//!
//! Every field changes two values: the combined adjustment that will be applied, and the container that the
//! next plugin receives (which has no field for the memory policy). The first error ends the merge, and the
//! caller drops the partial result. Messages are destructured in full, so that a new field of the schema
//! breaks the build here instead of being ignored on a host. Reference: `adjust` and its helpers in NRI's
//! result collector.

use std::collections::{BTreeSet, HashSet};

use protobuf::MessageField;

use crate::claims::{FieldClaims, MergeError};
use crate::fields::NriField;
use crate::listed::{ListChange, Listed, merge_list, merge_map};
use crate::{keys, resources};
use nri_api as api;

/// Merges one adjustment into the result.
pub(crate) struct AdjustmentMerger<'a> {
    pub(crate) claims: FieldClaims<'a>,
    pub(crate) combined: &'a mut api::ContainerAdjustment,
    pub(crate) visible: &'a mut api::Container,
}

impl AdjustmentMerger<'_> {
    pub(crate) fn merge(&mut self, given: &api::ContainerAdjustment) -> Result<(), MergeError> {
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
        } = given;
        merge_map(
            &mut self.claims,
            NriField::Annotations,
            annotations,
            &mut self.combined.annotations,
            &mut self.visible.annotations,
        )?;
        let changes = merge_list(&mut self.claims, mounts, &mut self.combined.mounts)?;
        move_to_end(&mut self.visible.mounts, changes);
        self.env(env)?;
        self.args(args)?;
        self.hooks(hooks)?;
        if let Some(linux) = linux.as_ref() {
            self.linux(linux)?;
        }
        self.rlimits(rlimits)?;
        self.cdi_devices(CDI_devices)
    }

    fn env(&mut self, env: &[api::KeyValue]) -> Result<(), MergeError> {
        let changes = merge_list(&mut self.claims, env, &mut self.combined.env)?;
        if changes.is_empty() {
            return Ok(());
        }
        let visible = &mut self.visible.env;
        if let [change] = changes.as_slice() {
            visible.retain(|entry| !is_variable(entry, change.key()));
        } else {
            let touched = touched(&changes);
            visible.retain(|entry| !touched.contains(variable(entry)));
        }
        for change in &changes {
            if let ListChange::Set(_, api::KeyValue { key, value, special_fields: _ }) = change {
                visible.push(format!("{key}={value}"));
            }
        }
        Ok(())
    }

    /// Sets the command. An empty first argument permits replacing another plugin's command.
    fn args(&mut self, args: &[String]) -> Result<(), MergeError> {
        let command = match args {
            [] => return Ok(()),
            [first, command @ ..] if first.is_empty() => {
                self.claims.clear(NriField::Args, None)?;
                command
            }
            command => command,
        };
        if command.is_empty() {
            // NRI's own implementation shows the empty command to the next plugin but does not
            // apply it (BUG-18, D24).
            let (plugin, container) =
                (self.claims.plugin.to_owned(), self.claims.container.to_owned());
            return Err(MergeError::EmptyArgs { plugin, container });
        }
        self.claims.claim(NriField::Args)?;
        self.visible.args = command.to_vec();
        self.combined.args = command.to_vec();
        Ok(())
    }

    fn hooks(&mut self, hooks: &MessageField<api::Hooks>) -> Result<(), MergeError> {
        let mut hooks = hooks.clone().unwrap_or_default();
        if hook_lists(&mut hooks).iter().all(|list| list.is_empty()) {
            return Ok(());
        }
        self.claims.accumulate(NriField::OciHooks)?;
        for all in [&mut self.combined.hooks, &mut self.visible.hooks] {
            let all = hook_lists(all.mut_or_insert_default());
            for (list, more) in all.into_iter().zip(hook_lists(&mut hooks)) {
                list.extend(more.iter().cloned());
            }
        }
        Ok(())
    }

    fn linux(&mut self, given: &api::LinuxContainerAdjustment) -> Result<(), MergeError> {
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
        } = given;
        let claims = &mut self.claims;
        let combined = self.combined.linux.mut_or_insert_default();
        let visible = self.visible.linux.mut_or_insert_default();

        let changes = merge_list(claims, devices, &mut combined.devices)?;
        move_to_end(&mut visible.devices, changes);
        if let Some(given) = resources.as_ref() {
            resources::claim(given, claims)?;
            resources::lay_over(combined.resources.mut_or_insert_default(), given);
            resources::lay_over(visible.resources.mut_or_insert_default(), given);
        }
        if !cgroups_path.is_empty() {
            claims.claim(NriField::CgroupsPath)?;
            combined.cgroups_path.clone_from(cgroups_path);
            visible.cgroups_path.clone_from(cgroups_path);
        }
        claims.claim_present([
            (oom_score_adj.is_some(), NriField::OomScoreAdj),
            (io_priority.is_some(), NriField::IoPriority),
            (seccomp_policy.is_some(), NriField::SeccompPolicy),
        ])?;
        set_both(&mut combined.oom_score_adj, &mut visible.oom_score_adj, oom_score_adj);
        set_both(&mut combined.io_priority, &mut visible.io_priority, io_priority);
        set_both(&mut combined.seccomp_policy, &mut visible.seccomp_policy, seccomp_policy);

        let changes = merge_list(claims, namespaces, &mut combined.namespaces)?;
        keep_places(&mut visible.namespaces, changes);
        let (all, seen) = (&mut combined.sysctl, &mut visible.sysctl);
        merge_map(claims, NriField::Sysctl, sysctl, all, seen)?;
        let (all, seen) = (&mut combined.net_devices, &mut visible.net_devices);
        merge_map(claims, NriField::LinuxNetDevices, net_devices, all, seen)?;

        claims.claim_present([(scheduler.is_some(), NriField::LinuxSched)])?;
        set_both(&mut combined.scheduler, &mut visible.scheduler, scheduler);
        if let Some(rdt) = rdt.as_ref() {
            merge_rdt(claims, rdt, &mut combined.rdt, &mut visible.rdt)?;
        }
        claims.claim_present([(memory_policy.is_some(), NriField::MemoryPolicy)])?;
        resources::set(&mut combined.memory_policy, memory_policy);
        Ok(())
    }

    fn rlimits(&mut self, rlimits: &[api::POSIXRlimit]) -> Result<(), MergeError> {
        for limit in rlimits {
            self.claims.claim_key(NriField::Rlimits, &keys::rlimit(&limit.type_))?;
        }
        for list in [&mut self.combined.rlimits, &mut self.visible.rlimits] {
            resources::put_all(list, rlimits, |limit| keys::rlimit(&limit.type_));
        }
        Ok(())
    }

    /// Merges CDI devices. NRI: in the reference, the next plugin does not receive them (BUG-07).
    fn cdi_devices(&mut self, devices: &[api::CDIDevice]) -> Result<(), MergeError> {
        for device in devices {
            self.claims.claim_key(NriField::CdiDevices, &device.name)?;
        }
        for list in [&mut self.combined.CDI_devices, &mut self.visible.CDI_devices] {
            resources::put_all(list, devices, |device| device.name.clone());
        }
        Ok(())
    }
}

/// Merges RDT settings. A removal stays in the combined message even if values are set after it. NRI: the
/// reference drops the removal, so that the other values of the original container survive (BUG-08), and
/// shows the next plugin none of the values set here (BUG-07).
fn merge_rdt(
    claims: &mut FieldClaims<'_>,
    given: &api::LinuxRdt,
    combined: &mut MessageField<api::LinuxRdt>,
    visible: &mut MessageField<api::LinuxRdt>,
) -> Result<(), MergeError> {
    let api::LinuxRdt { clos_id, schemata, enable_monitoring, remove, special_fields: _ } = given;
    if *remove {
        for field in [NriField::RdtClosID, NriField::RdtSchemata, NriField::RdtEnableMonitoring] {
            claims.clear(field, None)?;
        }
        *combined = MessageField::some(api::LinuxRdt { remove: true, ..Default::default() });
        *visible = MessageField::none();
    }
    let present = [
        (clos_id.is_some(), NriField::RdtClosID),
        (schemata.is_some(), NriField::RdtSchemata),
        (enable_monitoring.is_some(), NriField::RdtEnableMonitoring),
    ];
    claims.claim_present(present)?;
    if present.iter().any(|(present, _)| *present) {
        let combined = combined.mut_or_insert_default();
        let visible = visible.mut_or_insert_default();
        set_both(&mut combined.clos_id, &mut visible.clos_id, clos_id);
        set_both(&mut combined.schemata, &mut visible.schemata, schemata);
        let (all, seen) = (&mut combined.enable_monitoring, &mut visible.enable_monitoring);
        set_both(all, seen, enable_monitoring);
    }
    Ok(())
}

fn set_both<T: Clone>(
    combined: &mut MessageField<T>,
    visible: &mut MessageField<T>,
    given: &MessageField<T>,
) {
    resources::set(combined, given);
    resources::set(visible, given);
}

/// Deletes the changed entries, and appends those that are set, as the reference does.
fn move_to_end<T: Listed>(list: &mut Vec<T>, changes: Vec<ListChange<'_, T>>) {
    if changes.is_empty() {
        return;
    }
    let touched = touched(&changes);
    list.retain(|entry| !touched.contains(&*T::key(entry.name())));
    list.extend(changes.into_iter().filter_map(|change| match change {
        ListChange::Set(_, entry) => Some(entry.clone()),
        ListChange::Removed(_) => None,
    }));
}

/// Returns the keys that a reply sets or removes: usually so few that comparing costs less than hashing.
fn touched<'c, T>(changes: &'c [ListChange<'_, T>]) -> BTreeSet<&'c str> {
    changes.iter().map(ListChange::key).collect()
}

/// Replaces set entries in place, appends new ones, and deletes removed ones. An entry that one reply removes
/// and sets keeps its position. NRI: the reference loses the order of namespaces (BUG-06).
fn keep_places<T: Listed>(list: &mut Vec<T>, changes: Vec<ListChange<'_, T>>) {
    if changes.is_empty() {
        return;
    }
    let mut set = Vec::new();
    let mut removed = HashSet::new();
    for change in changes {
        match change {
            ListChange::Set(_, entry) => set.push(entry.clone()),
            ListChange::Removed(key) => drop(removed.insert(key)),
        }
    }
    for entry in &set {
        removed.remove(&T::key(entry.name()));
    }
    list.retain(|entry| !removed.contains(&T::key(entry.name())));
    resources::put_all(list, &set, |entry| T::key(entry.name()).into_owned());
}

/// Returns the name of a variable in `NAME=value`; an entry without `=` is a name as a whole.
fn variable(entry: &str) -> &str {
    // Names are short: a plain loop takes less time than a search for long texts.
    let end = entry.bytes().position(|byte| byte == b'=').unwrap_or(entry.len());
    entry.get(..end).unwrap_or(entry)
}

/// Whether this `NAME=value` has this name.
fn is_variable(entry: &str, name: &str) -> bool {
    entry.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

fn hook_lists(hooks: &mut api::Hooks) -> [&mut Vec<api::Hook>; 6] {
    let api::Hooks {
        prestart,
        create_runtime,
        create_container,
        start_container,
        poststart,
        poststop,
        special_fields: _,
    } = hooks;
    [prestart, create_runtime, create_container, start_container, poststart, poststop]
}
