// SPDX-License-Identifier: Apache-2.0
//! RDT classes: the folders in resctrl, made by the host's administrator.
//!
//! It makes and changes no class. The runtime puts the container into the folder by its name,
//! so a name is looked up, and one that leads elsewhere is refused.
//! Reference: Linux `filesystems/resctrl`; OCI `config-linux.md`, Intel RDT.

use std::path::Path;

use serde_json::json;

use crate::error::quoted;
use crate::host::Host;
use crate::spec::patch::Class;

/// Folders that resctrl has by itself, and that are no classes.
const NO_CLASSES: [&str; 3] = ["info", "mon_data", "mon_groups"];

/// What the class means: a group that exists, or nothing for the empty class.
pub(super) fn class(name: &str, resctrl: &Path, host: &Host) -> Result<Class, String> {
    match class_anywhere(name, resctrl, host)? {
        (class, None) => Ok(class),
        (_, Some(missing)) => Err(missing),
    }
}

/// The same where the container may be meant for another host: one without resctrl has no groups
/// to look at, and the second value says so.
pub(super) fn class_anywhere(
    name: &str,
    resctrl: &Path,
    host: &Host,
) -> Result<(Class, Option<String>), String> {
    if name.is_empty() {
        return Ok((Class::Cleared, None));
    }
    let shown = quoted(name);
    if name == "." || name.contains("..") || name.contains(['/', '\0']) {
        return Err(format!("\"{shown}\" is not the name of a class"));
    }
    let (class, place) = (Class::Set(json!({ "closID": name })), resctrl.display());
    if !host.path(resctrl.join("info")).is_dir() {
        let missing = format!("class \"{shown}\" needs resctrl, which is not mounted at {place}");
        return Ok((class, Some(missing)));
    }
    let dir = host.path(resctrl.join(name));
    let is_dir = std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir());
    if NO_CLASSES.contains(&name) || !is_dir {
        return Err(format!("there is no class \"{shown}\" in {place}"));
    }
    Ok((class, None))
}
