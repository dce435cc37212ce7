// SPDX-License-Identifier: Apache-2.0
//! Checks propagation: a bind mount that propagates needs a host mount that propagates, and a root
//! file system that permits it.
//!
//! Each mount is checked by its options. The facts about the host are passed in ([`HostFacts`]); without them the
//! runtime decides. This module never changes a host mount. Reference: NRI `AdjustMounts`, except for BUG-G7;
//! mount_namespaces(7), proc(5).

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::{Patch, PatchError, Resolved, Result, clean, mounts, unmark};
use crate::error::quoted;
use crate::plugin::api;

/// The facts about the host that decide whether an adjustment is valid.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// The mounts that the runtime sees. Without them nothing about the host is checked.
    pub mounts: Option<HostMounts>,
    /// The real paths of mount sources, for sources with links in their paths.
    pub resolved: HashMap<String, String>,
    /// The resolved names of the adjustment.
    pub names: Resolved,
    /// Whether only cgroup v2 is in use. It lacks some of v1's settings, which are left out if they
    /// only repeat the default.
    pub is_cgroup_v2: bool,
    /// Annotations that plugins may set although the runtime acts on them.
    pub runtime_annotations: BTreeSet<String>,
}

/// How a mount shares mount events with other mounts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Propagation {
    Shared,
    Slave,
}

/// Returns the mount sources of an adjustment, its CDI devices included, for which facts about host mounts
/// are needed.
pub fn propagating_sources<'a>(
    adjustment: &'a api::ContainerAdjustment,
    names: &'a Resolved,
) -> Vec<&'a str> {
    let of_devices = names.cdi.iter().flat_map(|device| &device.mounts);
    let mounts = adjustment.mounts.iter().chain(of_devices);
    let propagating = mounts.filter(|mount| wanted(mount).is_some());
    propagating.map(|mount| mount.source.as_str()).collect()
}

/// Checks the host mount of `mount`'s source, and makes the root file system propagate.
pub(super) fn patch(patch: &mut Patch<'_, '_>, mount: &api::Mount) -> Result<()> {
    let Some(wanted) = wanted(mount) else { return Ok(()) };
    let nri_field = mounts::field_of(&mount.destination);
    if let Some(mounts) = &patch.facts.mounts {
        let source = patch.facts.resolved.get(&mount.source).unwrap_or(&mount.source);
        check(mounts, source, wanted)
            .map_err(|problem| PatchError::invalid(&nri_field, problem))?;
    }
    let linux = patch.root.object("linux")?;
    let there = linux.value("rootfsPropagation")?;
    let there = there.as_ref().and_then(Value::as_str).unwrap_or_default();
    // A shared mount is accepted too, because it also receives mount events.
    if wanted == Propagation::Slave && ["rslave", "rshared", "shared"].contains(&there) {
        return Ok(());
    }
    let value = match wanted {
        Propagation::Shared => "rshared",
        Propagation::Slave => "rslave",
    };
    let names = ("linux.rootfsPropagation", nri_field.as_str());
    Ok(patch.changes.set(linux, "rootfsPropagation", Value::from(value), names)?)
}

/// Returns the propagation that a mount requests; the last of its options applies, as in mount(8).
fn wanted(mount: &api::Mount) -> Option<Propagation> {
    let (_, is_removal) = unmark(&mount.destination);
    let is_bind = mount.type_ == "bind"
        || mount.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
    if is_removal || !is_bind {
        return None;
    }
    let last = mount.options.iter().rev().find_map(|option| match option.as_str() {
        "shared" | "rshared" => Some(Some(Propagation::Shared)),
        "slave" | "rslave" => Some(Some(Propagation::Slave)),
        "private" | "rprivate" | "unbindable" | "runbindable" => Some(None),
        _ => None,
    });
    last.flatten()
}

fn check(mounts: &HostMounts, source: &str, wanted: Propagation) -> Result<(), String> {
    let quoted_source = quoted(source);
    if !source.starts_with('/') {
        return Err(format!(
            "the source \"{quoted_source}\" of the propagated mount is not absolute"
        ));
    }
    let Some((point, is)) = mounts.holding(&clean(source)) else {
        return Err(format!("no host mount contains the source {quoted_source}"));
    };
    let needed = match (wanted, is) {
        (_, Some(Propagation::Shared)) | (Propagation::Slave, Some(Propagation::Slave)) => {
            return Ok(());
        }
        (Propagation::Shared, _) => "shared",
        (Propagation::Slave, None) => "shared or a slave",
    };
    let is = if is.is_some() { "a slave" } else { "private" };
    Err(format!(
        "its source {quoted_source} is on the host's mount {}, which is {is} but must be \
         {needed}",
        quoted(point)
    ))
}

/// The host's mounts as a tree of path parts: a path's mount is found in one walk, for any number of mounts.
#[derive(Debug, Clone)]
pub struct HostMounts(Vec<Branch>);

#[derive(Debug, Clone, Default)]
struct Branch {
    parts: HashMap<String, usize>,
    mount: Option<(String, Option<Propagation>)>,
}

impl HostMounts {
    /// Reads mountinfo of proc(5).
    pub fn read(mountinfo: &str) -> Self {
        let mut all = vec![Branch::default()];
        for (point, propagation) in mountinfo.lines().filter_map(read_line) {
            let mut at = 0;
            for part in parts(&point) {
                let next = all.len();
                let branch = &mut all[at];
                at = *branch.parts.entry(part.to_owned()).or_insert(next);
                if at == next {
                    all.push(Branch::default());
                }
            }
            // If a mount point has several mounts, the last one is visible.
            all[at].mount = Some((point, propagation));
        }
        Self(all)
    }

    /// Returns the host's mount that contains `path`: its mount point, and how it propagates.
    fn holding(&self, path: &str) -> Option<(&str, Option<Propagation>)> {
        let mut branch = self.0.first()?;
        let mut found = branch.mount.as_ref();
        for part in parts(path) {
            let Some(next) = branch.parts.get(part).and_then(|at| self.0.get(*at)) else { break };
            branch = next;
            found = branch.mount.as_ref().or(found);
        }
        found.map(|(point, propagation)| (point.as_str(), *propagation))
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Reads mount point and propagation from one line.
fn read_line(line: &str) -> Option<(String, Option<Propagation>)> {
    let mut words = line.split(' ').skip(4);
    let point = unescape(words.next()?);
    let mut propagation = None;
    for word in words.skip(1).take_while(|word| *word != "-") {
        if word.starts_with("shared:") {
            propagation = Some(Propagation::Shared);
        } else if word.starts_with("master:") && propagation.is_none() {
            propagation = Some(Propagation::Slave);
        }
    }
    Some((point, propagation))
}

/// Decodes the three octal digits that the kernel writes for blanks, newlines and backslashes.
fn unescape(word: &str) -> String {
    let mut parts = word.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (code, part.get(3..)) {
            (Some(code), Some(rest)) if code.is_ascii() => {
                text.push(char::from(code));
                text.push_str(rest);
            }
            _ => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}
