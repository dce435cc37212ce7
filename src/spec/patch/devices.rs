// SPDX-License-Identifier: Apache-2.0
//! Device nodes, and the cgroup rules that let the container use them.
//!
//! A node that comes brings its rule, a node that goes takes its rule along, unless another node
//! is the same device. Rules with wildcards are the engine's and are never touched.
//! Reference: NRI `AdjustDevices`, but for BUG-02 and BUG-G9; OCI `config-linux.md`.

use oci_spec::runtime::{LinuxDeviceBuilder, LinuxDeviceType};
use serde_json::{Value, json};

use super::{Changes, PatchError, clean, fragment, invalid_fragment, unmark, values};
use crate::error::quoted;
use crate::plugin::api;
use crate::spec::array::Item;
use crate::spec::document::{DocumentError, Object};

/// What the kernel knows a device by.
#[derive(Debug, Clone, PartialEq)]
struct Identity {
    /// `c` or `b`, as cgroup rules spell it.
    kind: String,
    major: i64,
    minor: i64,
}

impl Identity {
    /// `None` for what needs no rule (a FIFO) or is no device at all.
    fn new(kind: &str, major: i64, minor: i64) -> Option<Self> {
        let kind = match kind {
            "c" | "u" => "c",
            "b" => "b",
            _ => return None,
        };
        Some(Self { kind: kind.to_owned(), major, minor })
    }

    fn of(object: &Object<'_>) -> Result<Option<Self>, DocumentError> {
        let (kind, major, minor) =
            (object.value("type")?, object.value("major")?, object.value("minor")?);
        let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
        let number = |value: Option<Value>| value.as_ref().and_then(Value::as_i64);
        let (Some(major), Some(minor)) = (number(major), number(minor)) else { return Ok(None) };
        Ok(Self::new(kind, major, minor))
    }

    fn field(&self) -> String {
        let Self { kind, major, minor } = self;
        format!("linux.resources.devices[{kind} {major}:{minor}]")
    }
}

/// One node of the document, as it is found or put there.
struct Node<'t> {
    path: String,
    identity: Option<Identity>,
    item: Item<'t>,
}

/// Applies the adjustment's devices: a `-path` removes, anything else adds or replaces.
pub(super) fn patch(
    root: &mut Object<'_>,
    devices: &[api::LinuxDevice],
    changes: &mut Changes,
) -> Result<(), PatchError> {
    devices.iter().try_for_each(|device| patch_one(root, device, "rwm", changes))
}

/// Applies one device, which the container may use in the ways of `access`.
pub(super) fn patch_one(
    root: &mut Object<'_>,
    device: &api::LinuxDevice,
    access: &str,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let (path, is_removal) = unmark(&device.path);
    let nri_field = format!("Devices[{path}]");
    if path.is_empty() {
        return Err(PatchError::invalid(nri_field, "a device needs a path"));
    }
    let after = if is_removal { None } else { Some(device_value(&nri_field, device)?) };
    let identity = Identity::new(&device.type_, device.major, device.minor);
    let wanted = identity.filter(|_| !is_removal);
    let orphans = place(root, (path, &nri_field), after, wanted.as_ref(), changes)?;
    for orphan in orphans {
        drop_rules(root, &orphan, &nri_field, changes)?;
    }
    match wanted {
        Some(wanted) if !access.is_empty() => allow(root, &wanted, access, &nri_field, changes),
        _ => Ok(()),
    }
}

/// Puts the node in place of all at its path. Gives back the devices that no node is any more.
fn place(
    root: &mut Object<'_>,
    (path, nri_field): (&str, &str),
    after: Option<Value>,
    identity: Option<&Identity>,
    changes: &mut Changes,
) -> Result<Vec<Identity>, PatchError> {
    let cleaned = clean(path);
    let items = root.object("linux")?.array("devices")?.items();
    let mut nodes = Vec::with_capacity(items.len() + 1);
    for item in items.iter() {
        let object = item.open("linux.devices[]")?;
        let there = object.value("path")?;
        let path = clean(there.as_ref().and_then(Value::as_str).unwrap_or_default());
        nodes.push(Node { path, identity: Identity::of(&object)?, item: item.clone() });
    }
    let (gone, mut nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|n| n.path == cleaned);
    let before = gone.last().map(|node| node.item.value());
    if gone.len() <= 1 && before == after {
        return Ok(Vec::new());
    }
    if let Some(value) = &after {
        let item = Item::new(value);
        nodes.push(Node { path: cleaned, identity: identity.cloned(), item });
    }
    let orphans = gone
        .into_iter()
        .filter_map(|node| node.identity)
        .filter(|gone| !nodes.iter().any(|node| node.identity.as_ref() == Some(gone)))
        .collect();
    *items = nodes.into_iter().map(|node| node.item).collect();
    changes.note(format!("linux.devices[{path}]"), nri_field, before, after);
    Ok(orphans)
}

fn device_value(nri_field: &str, device: &api::LinuxDevice) -> Result<Value, PatchError> {
    let api::LinuxDevice { path, type_, major, minor, file_mode, uid, gid, special_fields: _ } =
        device;
    let typ = match type_.as_str() {
        "c" => LinuxDeviceType::C,
        "u" => LinuxDeviceType::U,
        "b" => LinuxDeviceType::B,
        "p" => LinuxDeviceType::P,
        other => {
            let problem = format!("\"{}\" is no type of device (c, u, b, p)", quoted(other));
            return Err(PatchError::invalid(nri_field, problem));
        }
    };
    values::check_place(path).map_err(|problem| PatchError::invalid(nri_field, problem))?;
    if typ != LinuxDeviceType::P {
        values::check_device_numbers(*major, *minor)
            .map_err(|problem| PatchError::invalid(nri_field, problem))?;
    }
    let mut builder =
        LinuxDeviceBuilder::default().path(path.as_str()).typ(typ).major(*major).minor(*minor);
    if let Some(mode) = file_mode.as_ref() {
        builder = builder.file_mode(mode.value & values::PERMISSIONS);
    }
    if let Some(uid) = uid.as_ref() {
        builder = builder.uid(uid.value);
    }
    if let Some(gid) = gid.as_ref() {
        builder = builder.gid(gid.value);
    }
    let device = builder.build().map_err(|error| invalid_fragment(nri_field, &error))?;
    fragment(nri_field, &device)
}

/// Takes out the rules that allow exactly this device.
fn drop_rules(
    root: &mut Object<'_>,
    device: &Identity,
    nri_field: &str,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let rules = root.object("linux")?.object("resources")?.array("devices")?.items();
    let mut kept = Vec::with_capacity(rules.len());
    let mut dropped = Vec::new();
    for rule in rules.iter() {
        let (is_allowing, _, identity) = read_rule(rule)?;
        if is_allowing && identity.as_ref() == Some(device) {
            dropped.push(rule.value());
        } else {
            kept.push(rule.clone());
        }
    }
    if dropped.is_empty() {
        return Ok(());
    }
    *rules = kept;
    changes.note(device.field(), nri_field, dropped.pop(), None);
    Ok(())
}

/// Lets the container use this device so, unless a rule already says it.
fn allow(
    root: &mut Object<'_>,
    device: &Identity,
    wanted: &str,
    nri_field: &str,
    changes: &mut Changes,
) -> Result<(), PatchError> {
    let rules = root.object("linux")?.object("resources")?.array("devices")?.items();
    for rule in rules.iter().rev() {
        let (is_allowing, access, identity) = read_rule(rule)?;
        // Later rules win, so nothing before a denial counts.
        if !is_allowing {
            break;
        }
        if identity.as_ref() == Some(device) && wanted.chars().all(|mode| access.contains(mode)) {
            return Ok(());
        }
    }
    let Identity { kind, major, minor } = device;
    let rule = json!({
        "allow": true, "type": kind, "major": major, "minor": minor, "access": wanted,
    });
    rules.push(Item::new(&rule));
    changes.note(device.field(), nri_field, None, Some(rule));
    Ok(())
}

/// Whether a rule allows, which access, and to which single device.
fn read_rule(rule: &Item<'_>) -> Result<(bool, String, Option<Identity>), DocumentError> {
    let object = rule.open("linux.resources.devices[]")?;
    let is_allowing = object.value("allow")? == Some(Value::Bool(true));
    let access = object.value("access")?;
    let access = access.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((is_allowing, access, Identity::of(&object)?))
}

/// Appends cgroup rules behind those that are there; later rules win.
pub(super) fn patch_rules(
    root: &mut Object<'_>,
    rules: &[(String, Value)],
    changes: &mut Changes,
) -> Result<(), PatchError> {
    for (nri_field, rule) in rules {
        let array = root.object("linux")?.object("resources")?.array("devices")?;
        array.items().push(Item::new(rule));
        changes.note("linux.resources.devices", nri_field, None, Some(rule.clone()));
    }
    Ok(())
}
