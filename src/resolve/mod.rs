// SPDX-License-Identifier: Apache-2.0
//! Resolves the names in an adjustment on this host, before the pure patch: CDI devices, block I/O
//! and RDT classes; and checks whether the real runtime honours plugins' requests.
//!
//! This module reads files through `Host` and writes none. It uses neither the daemon nor a bundle,
//! so a dry run calls it too. An unknown name is refused in one line (decisions D23, D24), never
//! skipped. Reference: BUG-G10 and BUG-G11 (docs/nri-differences.md).

mod blockio;
mod cdi;
mod delegated;
mod device_nodes;
mod glob;
mod honoured;
mod mounts;
mod node;
mod rdt;
mod settings;

#[cfg(test)]
mod tests;

pub(crate) use delegated::check_delegated;
pub use honoured::{ResourceWriter, check_runtime, needs_runtime};
pub(crate) use mounts::host_facts;
pub(crate) use node::{check_node, is_cgroup_v2};
pub(crate) use rdt::rdt_group;

use std::collections::BTreeSet;

use nri_adaptation::Merged;
use rdt::RdtPlaces;

use crate::config::Config;
use crate::error::quoted;
use crate::host::Host;
use crate::plugin::api;
use crate::spec::patch::{PatchError, Resolved, Result, is_acted_on};

const RDT_CLASS: &str = "RdtClass";

/// Resolves the names in `adjustment`. If an RDT class needs resctrl, which this host lacks, the
/// second value says so: the caller may accept the class for another host's container, or refuse it
/// after describing the container.
///
/// # Errors
/// Fails with the NRI field and its mistake, such as a CDI device that no spec file defines.
pub(crate) fn resolve(
    adjustment: &api::ContainerAdjustment,
    config: &Config,
    host: &Host,
) -> Result<(Resolved, Vec<PatchError>)> {
    let mut resolved = Resolved::default();
    if !adjustment.CDI_devices.is_empty() {
        resolved.cdi = cdi::devices(&adjustment.CDI_devices, &config.cdi_spec_dirs, host)?;
    }
    let linux = adjustment.linux.as_ref();
    let Some(resources) = linux.and_then(|linux| linux.resources.as_ref()) else {
        return Ok((resolved, Vec::new()));
    };
    blockio(resources, config, host, &mut resolved)?;
    let mut doubts = Vec::new();
    if let Some(class) = resources.rdt_class.as_ref() {
        let (class, missing) = rdt::class_anywhere(&class.value, rdt_places(config), host)
            .map_err(|problem| invalid(RDT_CLASS, &problem))?;
        resolved.intel_rdt = class;
        doubts.extend(missing.map(|problem| invalid(RDT_CLASS, &problem)));
    }
    Ok((resolved, doubts))
}

/// Returns the annotations that plugins may set although the runtime acts on them (`runtime_annotations`).
pub(crate) fn runtime_annotations(config: &Config, merged: &Merged) -> BTreeSet<String> {
    let mut keys = merged.adjust.annotations.keys().filter(|key| is_acted_on(key)).peekable();
    if keys.peek().is_none() {
        return BTreeSet::new();
    }
    let owners = merged.owners.to_flat(&merged.container.id);
    let may_set = |key: &&String| {
        let owner = owners.get(&format!("Annotations[{key}]"));
        let (index, name) = owner.and_then(|id| id.split_once('-')).unwrap_or_default();
        let patterns = config.plugin(index, name).runtime_annotations;
        patterns.iter().any(|pattern| crate::glob::matches(pattern, key))
    };
    keys.filter(may_set).cloned().collect()
}

/// Resolves the classes in an update.
///
/// # Errors
/// Fails with the NRI field and its mistake on this host.
pub(crate) fn resolve_classes(
    resources: &api::LinuxResources,
    config: &Config,
    host: &Host,
) -> Result<Resolved> {
    let mut resolved = Resolved::default();
    blockio(resources, config, host, &mut resolved)?;
    if let Some(class) = resources.rdt_class.as_ref() {
        resolved.intel_rdt = rdt::class(&class.value, rdt_places(config), host)
            .map_err(|problem| invalid(RDT_CLASS, &problem))?;
    }
    Ok(resolved)
}

fn rdt_places(config: &Config) -> RdtPlaces<'_> {
    RdtPlaces { config_file: config.rdt_config_file.as_deref(), resctrl: &config.resctrl_path }
}

fn blockio(
    resources: &api::LinuxResources,
    config: &Config,
    host: &Host,
    resolved: &mut Resolved,
) -> Result<()> {
    if let Some(class) = resources.blockio_class.as_ref() {
        let file = config.blockio_config_file.as_deref();
        resolved.block_io = blockio::class(&class.value, file, host, &mut resolved.notes)
            .map_err(|problem| invalid("BlockioClass", &problem))?;
    }
    Ok(())
}

fn invalid(field: &str, problem: &str) -> PatchError {
    PatchError::Invalid { field: field.to_owned(), problem: quoted(problem) }
}
