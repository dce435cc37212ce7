// SPDX-License-Identifier: Apache-2.0
//! Resolves RDT classes: folders in resctrl, made by the host's administrator, or by an engine that
//! reads a file of classes (`[rdt] config_file`, in goresctrl's format). If that file is
//! configured, only its classes are permitted, because other folders are not the engine's.
//!
//! This module never creates or changes a class. The runtime moves the container into the folder by
//! its name, so a name that leads out of resctrl is refused. Reference: Linux
//! `filesystems/resctrl`; OCI `config-linux.md`, Intel RDT; goresctrl `doc/rdt.md`.

use std::path::Path;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::json;

use super::blockio::member;
use crate::error::{in_our_words, quoted};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::presence::{self, IfThere};
use crate::spec::patch::Class;

/// The class whose group is resctrl itself, which contains all processes without another class.
const ROOT: &str = "system/default";

/// Folders in resctrl that are not classes.
const NO_CLASSES: [&str; 3] = ["info", "mon_data", "mon_groups"];

/// The places of classes: the file that defines them, if any, and the folder of their groups.
#[derive(Debug, Clone, Copy)]
pub(super) struct RdtPlaces<'c> {
    pub(super) config_file: Option<&'c Path>,
    pub(super) resctrl: &'c Path,
}

/// Returns the name of the class's group, a folder in resctrl; empty for resctrl itself. Engines that read a file of
/// classes add no prefix.
pub(crate) fn rdt_group(class: &str) -> &str {
    if class == ROOT { "" } else { class }
}

/// Resolves the class to a group that exists; the empty class and [`ROOT`] remove the engine's group.
pub(super) fn class(name: &str, places: RdtPlaces<'_>, host: &Host) -> Result<Class, String> {
    match class_anywhere(name, places, host)? {
        (class, None) => Ok(class),
        (_, Some(missing)) => Err(missing),
    }
}

/// Resolves the class for a container that may be for another host: if this host has no resctrl,
/// the second value says so.
pub(super) fn class_anywhere(
    name: &str,
    places: RdtPlaces<'_>,
    host: &Host,
) -> Result<(Class, Option<String>), String> {
    let group = rdt_group(name);
    if group.is_empty() {
        return Ok((Class::Cleared, None));
    }
    let shown = quoted(name);
    if group == "." || group.contains("..") || group.contains(['/', '\n', '\0']) {
        return Err(format!("\"{shown}\" is not the name of a class"));
    }
    if let Some(file) = places.config_file {
        is_defined(name, file, host)
            .map_err(|problem| format!("class \"{shown}\": {}: {problem}", file.display()))?;
    }
    let resctrl = places.resctrl;
    let (class, place) = (Class::Set(json!({ "closID": group })), resctrl.display());
    if matches!(presence::is_dir(&host.path(resctrl.join("info"))), Ok(false)) {
        let missing = format!("class \"{shown}\" needs resctrl, which is not mounted at {place}");
        return Ok((class, Some(missing)));
    }
    let dir = host.path(resctrl.join(group));
    let is_dir = std::fs::symlink_metadata(dir).or_absent().is_some_and(|meta| meta.is_dir());
    if NO_CLASSES.contains(&group) || !is_dir {
        return Err(match places.config_file {
            None => format!("there is no class \"{shown}\" in {place}"),
            Some(file) => format!(
                "class \"{shown}\" is in {}, but there is no such group in {place}: the engine that \
                 reads the file creates it",
                file.display()
            ),
        });
    }
    Ok((class, None))
}

/// Checks that the file defines the class in exactly one of its partitions.
fn is_defined(name: &str, file: &Path, host: &Host) -> Result<(), String> {
    let text = files::read_text(&host.path(file), limits::SETTINGS_FILE);
    let text = text.map_err(|error| in_our_words(&error))?;
    let documents =
        Yaml::load_from_str(&text).map_err(|error| format!("it is not YAML: {error}"))?;
    let partitions = documents.first().and_then(|top| member(top, "partitions"));
    let partitions = partitions.and_then(Yaml::as_mapping).ok_or("it has no partitions")?;
    let classes = partitions.values().filter_map(|partition| member(partition, "classes"));
    let keys = classes.filter_map(Yaml::as_mapping).flat_map(|classes| classes.keys());
    match keys.filter(|key| is_named(key, name)).count() {
        0 => Err("there is no such class".to_owned()),
        1 => Ok(()),
        _ => Err("it is in two partitions".to_owned()),
    }
}

/// Whether a YAML key is this name, which YAML may parse as a number.
fn is_named(key: &Yaml<'_>, name: &str) -> bool {
    let number = key.as_integer().map(|number| number.to_string());
    key.as_str().or(number.as_deref()) == Some(name)
}
