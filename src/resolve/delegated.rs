// SPDX-License-Identifier: Apache-2.0
//! Refuses resources that a user's plugin sets if their controller is not delegated to the user (cgroup v2).
//!
//! Without root, runtimes fail late, with the path of a missing file and without the plugin's name,
//! or leave the value out. If a container will have no cgroup of the user at all, the runtime
//! reports that itself.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::node::has_word;
use super::settings::cgroups_path;
use crate::error::quoted;
use crate::files;
use crate::host::Host;
use crate::plugin::api;
use crate::presence::IfThere;
use crate::spec::overlay::overlay_of;
use crate::spec::owned::{self, OwnedMember};
use crate::spec::patch::{PatchError, Resolved, Result};

const CGROUPS: &str = "/sys/fs/cgroup";

/// Refuses fields that need a controller which the cgroup of this document will not have.
///
/// # Errors
/// Fails with the NRI field and the controller.
pub(crate) fn check_delegated(
    adjustment: &api::ContainerAdjustment,
    resolved: &Resolved,
    document: &[u8],
    host: &Host,
) -> Result<()> {
    let resources = adjustment.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let Some(resources) = resources else { return Ok(()) };
    let Some((cgroup, controllers)) = delegated(document, host) else { return Ok(()) };
    for OwnedMember { path, nri: field, .. } in owned::fields(&overlay_of(resources, resolved)?) {
        let Some(controller) = controller_of(&path) else { continue };
        if !has_word(&controllers, controller) {
            let cgroup = cgroup.display();
            let problem = format!("the {controller} controller is not delegated to {cgroup}");
            return Err(PatchError::Invalid { field, problem: quoted(&problem) });
        }
    }
    Ok(())
}

/// Returns the nearest existing cgroup at or above the container's path, and the controllers that it can give its
/// children; `None` if the container will have no cgroup of this user, or on cgroup v1.
fn delegated(document: &[u8], host: &Host) -> Option<(PathBuf, String)> {
    let uid = nix::unistd::geteuid().as_raw();
    let path = cgroups_path(document)?;
    let wanted = match (path.strip_prefix('/'), path.contains(':')) {
        (Some(below), _) => Path::new(CGROUPS).join(below),
        // The path is that of a scope of the user's systemd.
        (None, true) => {
            Path::new(CGROUPS).join(format!("user.slice/user-{uid}.slice/user@{uid}.service"))
        }
        (None, false) => return None,
    };
    let found = wanted.ancestors().find_map(|path| {
        let there = std::fs::metadata(host.path(path)).or_absent();
        there.filter(std::fs::Metadata::is_dir).map(|there| (path, there.uid() == uid))
    });
    let (above, is_users) = found?;
    let controllers =
        files::read_kernel(&host.path(above.join("cgroup.controllers"))).or_absent()?;
    is_users.then(|| (above.to_owned(), controllers))
}

/// Returns the controller of a member with this path, as [`owned::fields`] writes it; `None` if it needs none.
fn controller_of(path: &str) -> Option<&str> {
    let (section, key) = path.split_once(['.', '[']).unwrap_or((path, ""));
    match (section, key) {
        ("devices", _) => None,
        ("cpu", "cpus" | "mems") => Some("cpuset"),
        ("blockIO", _) => Some("io"),
        ("hugepageLimits", _) => Some("hugetlb"),
        ("unified", key) => key.split('.').next(),
        (section, _) => Some(section),
    }
}
