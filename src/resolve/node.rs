// SPDX-License-Identifier: Apache-2.0
//! Refuses fields that no runtime can set on this node, before the runtime runs.
//!
//! Runtimes fail late and without the plugin's name (unified on cgroup v1), or drop the value and start the container
//! (runc 1.1 and `closID` without resctrl). A feature that cannot be checked is accepted, unless a file of cgroups
//! cannot be read. This module reads a few files below /sys and /proc, and only for fields in the adjustment.

use std::path::Path;

use super::settings;
use crate::cgroup::Layout;
use crate::error::{in_our_words, quoted};
use crate::files;
use crate::host::Host;
use crate::plugin::api;
use crate::presence::{self, IfThere};
use crate::spec::patch::{PatchError, Resolved, Result};

/// Refuses fields that this node is known not to support; `document` is the container's document.
///
/// # Errors
/// Fails with the NRI field, and the feature that the node lacks.
pub(crate) fn check_node(
    adjustment: &api::ContainerAdjustment,
    resolved: &Resolved,
    resctrl: &Path,
    document: &[u8],
    host: &Host,
) -> Result<()> {
    let info = host.path(resctrl.join("info"));
    let no_resctrl = |field: &str| match presence::is_dir(&info).unwrap_or(true) {
        true => Ok(()),
        false => Err(lacks(field, &format!("resctrl is not mounted at {}", resctrl.display()))),
    };
    for device in resolved.cdi.iter().filter(|device| device.intel_rdt.is_some()) {
        no_resctrl(&format!("CdiDevices[{}]", device.name))?;
    }
    let Some(linux) = adjustment.linux.as_ref() else { return Ok(()) };
    if let Some(rdt) = linux.rdt.as_ref() {
        for (field, is_set) in [
            ("RdtClosID", rdt.clos_id.as_ref().is_some_and(|id| !id.value.is_empty())),
            ("RdtSchemata", rdt.schemata.is_some()),
            ("RdtEnableMonitoring", rdt.enable_monitoring.is_some()),
        ] {
            if is_set {
                no_resctrl(field)?;
            }
        }
    }
    for namespace in linux.namespaces.iter().filter(|kind| !kind.type_.starts_with('-')) {
        check_namespace(&namespace.type_, host)?;
    }
    let node = |name: &str| host.path(format!("/sys/devices/system/{name}")).is_dir();
    if linux.memory_policy.is_some() && node("cpu") && !node("node") {
        return Err(lacks("MemoryPolicy", "the kernel has no NUMA"));
    }
    let Some(resources) = linux.resources.as_ref() else { return Ok(()) };
    let root = host.path("/sys/fs/cgroup");
    if !root.is_dir() {
        return Ok(());
    }
    // If this file cannot be examined, the version of cgroups is unknown.
    let v2 = files::read_kernel(&root.join("cgroup.controllers")).if_there().map_err(|error| {
        lacks("cgroup", &format!("cgroup.controllers cannot be read: {}", in_our_words(&error)))
    })?;
    check_cgroups(resources, (&root, v2.as_deref()), host)?;
    let layout = if v2.is_some() { Layout::V2 } else { Layout::V1 };
    settings::check(resources, resolved, (root, layout), document, host)
}

/// Whether only cgroup v2 is in use.
pub(crate) fn is_cgroup_v2(host: &Host) -> bool {
    host.path("/sys/fs/cgroup/cgroup.controllers").exists()
}

fn lacks(field: &str, problem: &str) -> PatchError {
    PatchError::Invalid {
        field: field.to_owned(),
        problem: quoted(&format!("on this node {problem}")),
    }
}

fn check_namespace(kind: &str, host: &Host) -> Result<()> {
    let name = match kind {
        "network" => "net",
        "mount" => "mnt",
        "cgroup" | "ipc" | "pid" | "time" | "user" | "uts" => kind,
        // The runtime reports this error.
        _ => return Ok(()),
    };
    let folder = host.path("/proc/self/ns");
    if folder.is_dir() && std::fs::symlink_metadata(folder.join(name)).is_err() {
        return Err(lacks(
            &format!("Namespace[{kind}]"),
            &format!("the kernel has no {kind} namespaces"),
        ));
    }
    Ok(())
}

fn check_cgroups(
    resources: &api::LinuxResources,
    (root, v2): (&Path, Option<&str>),
    host: &Host,
) -> Result<()> {
    let mut unified: Vec<&String> = resources.unified.keys().collect();
    unified.sort_unstable();
    for key in unified {
        let field = format!("CgroupsUnified[{key}]");
        let Some(controllers) = v2 else {
            return Err(lacks(&field, "cgroup v1 is in use, and only cgroup v2 has unified files"));
        };
        let controller = key.split('.').next().unwrap_or_default();
        if controller != "cgroup" && !has_word(controllers, controller) {
            return Err(lacks(&field, &format!("there is no {controller} controller")));
        }
    }
    let has_hugetlb = match v2 {
        Some(controllers) => has_word(controllers, "hugetlb"),
        None => root.join("hugetlb").is_dir(),
    };
    for limit in &resources.hugepage_limits {
        let field = format!("HugepageLimits[{}]", limit.page_size);
        if !has_hugetlb {
            return Err(lacks(&field, "there is no hugetlb controller"));
        }
        let pages = host.path("/sys/kernel/mm/hugepages");
        let is_missing = kilobytes(&limit.page_size)
            .is_some_and(|size| !pages.join(format!("hugepages-{size}kB")).is_dir());
        if pages.is_dir() && is_missing {
            return Err(lacks(&field, "there are no pages of that size"));
        }
    }
    Ok(())
}

pub(super) fn has_word(words: &str, wanted: &str) -> bool {
    words.split_ascii_whitespace().any(|word| word == wanted)
}

/// Parses a page size such as `2M` or `2MB`; `None` for any other form, which the patch refuses.
fn kilobytes(size: &str) -> Option<u64> {
    let bare = size.trim_end_matches(['b', 'B']);
    let (number, factor) = match bare.char_indices().last()? {
        (at, 'k' | 'K') => (&bare[..at], 1),
        (at, 'm' | 'M') => (&bare[..at], 1 << 10),
        (at, 'g' | 'G') => (&bare[..at], 1 << 20),
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}
