// SPDX-License-Identifier: Apache-2.0
//! Applies device nodes, and the cgroup rules that let the container use them.
//!
//! A new node adds its rule, and a removed node removes its rule unless another node is the same
//! device. Rules with wildcards are the engine's and never changed. Reference: NRI `AdjustDevices`,
//! except for BUG-02 and BUG-G9; OCI `config-linux.md`.

use std::collections::{BTreeSet, HashMap};

use oci_document::{DocumentError, Item, Object};
use protobuf::MessageField;
use serde_json::{Value, json};

use super::{Changes, Patch, PatchError, Result, clean, object_of, unmark, values};
use crate::error::quoted;
use crate::plugin::api;

/// The kernel's identity of a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DeviceNumber {
    /// `c` or `b`, as cgroup rules spell it.
    kind: String,
    major: i64,
    minor: i64,
}

impl DeviceNumber {
    /// Returns the number; `None` for a FIFO, which needs no rule, and for other types.
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

/// One node of the document, existing or added.
struct DeviceNode<'t> {
    path: String,
    identity: Option<DeviceNumber>,
    item: Item<'t>,
}

/// Applies the adjustment's devices: a `-path` removes, anything else adds or replaces.
pub(super) fn patch(patch: &mut Patch<'_, '_>, devices: &[api::LinuxDevice]) -> Result<()> {
    if devices.is_empty() {
        return Ok(());
    }
    let mut nodes = Nodes::take(patch.root)?;
    for device in devices {
        nodes.apply(patch, device, "rwm")?;
    }
    nodes.put_back(patch.root)
}

/// A document's nodes and rules while they are edited: read once and written once, for any number
/// of devices.
pub(super) struct Nodes<'t> {
    /// The nodes; `None` for a removed one.
    nodes: Vec<Option<DeviceNode<'t>>>,
    by_path: HashMap<String, Vec<usize>>,
    /// Number of nodes of each device.
    count: HashMap<DeviceNumber, usize>,
    /// The cgroup rules, read when the first device needs them.
    rules: Option<Rules<'t>>,
}

impl<'t> Nodes<'t> {
    /// Takes the document's nodes out; the document has none until they are put back.
    pub(super) fn take(root: &mut Object<'t>) -> Result<Self> {
        let items = std::mem::take(root.object("linux")?.array("devices")?.items());
        let (nodes, by_path, count) = Default::default();
        let mut all = Self { nodes, by_path, count, rules: None };
        for item in items {
            let object = item.open("linux.devices[]")?;
            let there = object.value("path")?;
            let path = clean(there.as_ref().and_then(Value::as_str).unwrap_or_default());
            let identity = DeviceNumber::of(&object)?;
            all.push(DeviceNode { path, identity, item });
        }
        Ok(all)
    }

    /// Writes nodes and rules into the document.
    pub(super) fn put_back(self, root: &mut Object<'t>) -> Result<()> {
        let nodes = self.nodes.into_iter().flatten().map(|node| node.item);
        *root.object("linux")?.array("devices")?.items() = nodes.collect();
        if let Some(rules) = self.rules {
            *rules_of(root)? = rules.items.into_iter().flatten().collect();
        }
        Ok(())
    }

    /// Applies one device, to which the container gets the access `access`.
    pub(super) fn apply(
        &mut self,
        patch: &mut Patch<'_, 't>,
        device: &api::LinuxDevice,
        access: &str,
    ) -> Result<()> {
        let (path, is_removal) = unmark(&device.path);
        let nri_field = format!("Devices[{path}]");
        if path.is_empty() {
            return Err(PatchError::invalid(nri_field, "a device needs a path"));
        }
        let after = if is_removal { None } else { Some(device_value(&nri_field, device)?) };
        let identity = DeviceNumber::new(&device.type_, device.major, device.minor);
        let wanted = identity.filter(|_| !is_removal);
        let orphans = self.place((path, &nri_field), after, wanted.as_ref(), &mut patch.changes);
        for orphan in orphans {
            self.rules(patch.root)?.drop_all(&orphan, &nri_field, &mut patch.changes);
        }
        match wanted {
            Some(wanted) if !access.is_empty() => {
                self.rules(patch.root)?.allow(&wanted, access, &nri_field, &mut patch.changes);
            }
            _ => {}
        }
        Ok(())
    }

    /// Replaces all nodes at the path of a device. Returns the devices that lost their last node.
    fn place(
        &mut self,
        (path, nri_field): (&str, &str),
        after: Option<Value>,
        identity: Option<&DeviceNumber>,
        changes: &mut Changes,
    ) -> Vec<DeviceNumber> {
        let cleaned = clean(path);
        let there = self.by_path.get(&cleaned).map(Vec::as_slice).unwrap_or_default();
        let last = there.last().and_then(|at| self.nodes.get(*at)?.as_ref());
        let before = last.map(|node| node.item.value());
        if there.len() <= 1 && before == after {
            return Vec::new();
        }
        let gone = self.remove(&cleaned);
        if let Some(value) = &after {
            let item = Item::new(value);
            self.push(DeviceNode { path: cleaned, identity: identity.cloned(), item });
        }
        changes.note(format!("linux.devices[{path}]"), nri_field, before, after);
        gone.into_iter().filter(|gone| !self.count.contains_key(gone)).collect()
    }

    fn push(&mut self, node: DeviceNode<'t>) {
        self.by_path.entry(node.path.clone()).or_default().push(self.nodes.len());
        if let Some(identity) = &node.identity {
            *self.count.entry(identity.clone()).or_default() += 1;
        }
        self.nodes.push(Some(node));
    }

    /// Removes all nodes at a path; returns their devices.
    fn remove(&mut self, path: &str) -> Vec<DeviceNumber> {
        let places = self.by_path.remove(path).unwrap_or_default();
        let gone = places.into_iter().filter_map(|at| self.nodes.get_mut(at)?.take()?.identity);
        let gone: Vec<DeviceNumber> = gone.collect();
        for identity in &gone {
            let left = self.count.get(identity).map_or(0, |count| count - 1);
            match left {
                0 => self.count.remove(identity),
                _ => self.count.insert(identity.clone(), left),
            };
        }
        gone
    }

    fn rules(&mut self, root: &mut Object<'t>) -> Result<&mut Rules<'t>> {
        if self.rules.is_none() {
            self.rules = Some(Rules::read(rules_of(root)?)?);
        }
        self.rules.as_mut().ok_or_else(|| {
            PatchError::invalid("Devices", "the device rules of config.json were not read")
        })
    }
}

fn device_value(nri_field: &str, device: &api::LinuxDevice) -> Result<Value> {
    let api::LinuxDevice { path, type_, major, minor, file_mode, uid, gid, special_fields: _ } =
        device;
    if !matches!(type_.as_str(), "c" | "u" | "b" | "p") {
        let problem = format!("\"{}\" is not a type of device (c, u, b, p)", quoted(type_));
        return Err(PatchError::invalid(nri_field, problem));
    }
    values::check_place(path).map_err(|problem| PatchError::invalid(nri_field, problem))?;
    if type_ != "p" {
        values::check_device_numbers(*major, *minor)
            .map_err(|problem| PatchError::invalid(nri_field, problem))?;
    }
    let id = |id: &MessageField<api::OptionalUInt32>| id.as_ref().map(|id| id.value).into();
    let mode = file_mode.as_ref().map(|mode| mode.value & values::PERMISSIONS);
    Ok(object_of([
        ("path", path.as_str().into()),
        ("type", type_.as_str().into()),
        ("major", (*major).into()),
        ("minor", (*minor).into()),
        ("fileMode", mode.into()),
        ("uid", id(uid)),
        ("gid", id(gid)),
    ]))
}

fn rules_of<'o, 't>(root: &'o mut Object<'t>) -> Result<&'o mut Vec<Item<'t>>, DocumentError> {
    Ok(root.object("linux")?.object("resources")?.array("devices")?.items())
}

/// A document's cgroup rules while they are edited.
struct Rules<'t> {
    /// The rules; `None` for a removed one.
    items: Vec<Option<Item<'t>>>,
    /// The positions of the rules that allow one device.
    allowing: HashMap<DeviceNumber, Vec<usize>>,
    /// The access that the rules after the last denial grant. Rules before it are not counted: the
    /// denial may override them, and a second rule that allows the same access does no harm.
    in_force: HashMap<DeviceNumber, BTreeSet<String>>,
}

impl<'t> Rules<'t> {
    fn read(items: &[Item<'t>]) -> Result<Self, DocumentError> {
        let (allowing, in_force) = Default::default();
        let mut rules = Self { items: Vec::with_capacity(items.len()), allowing, in_force };
        for item in items {
            let (is_allowing, access, identity) = read_rule(item)?;
            if !is_allowing {
                rules.in_force.clear();
            }
            let identity = identity.filter(|_| is_allowing);
            rules.push(item.clone(), identity.map(|identity| (identity, access)));
        }
        Ok(rules)
    }

    fn push(&mut self, item: Item<'t>, allowed: Option<(DeviceNumber, String)>) {
        if let Some((identity, access)) = allowed {
            self.allowing.entry(identity.clone()).or_default().push(self.items.len());
            self.in_force.entry(identity).or_default().insert(access);
        }
        self.items.push(Some(item));
    }

    /// Removes the rules that allow exactly this device.
    fn drop_all(&mut self, device: &DeviceNumber, nri_field: &str, changes: &mut Changes) {
        self.in_force.remove(device);
        let places = self.allowing.remove(device).unwrap_or_default();
        let dropped = places.into_iter().filter_map(|at| self.items.get_mut(at)?.take()).last();
        if let Some(dropped) = dropped {
            changes.note(device.field(), nri_field, Some(dropped.value()), None);
        }
    }

    /// Grants the container this access to the device, unless a rule already does.
    fn allow(
        &mut self,
        device: &DeviceNumber,
        wanted: &str,
        nri_field: &str,
        changes: &mut Changes,
    ) {
        let covers = |access: &String| wanted.chars().all(|mode| access.contains(mode));
        if self.in_force.get(device).is_some_and(|known| known.iter().any(covers)) {
            return;
        }
        let DeviceNumber { kind, major, minor } = device;
        let rule = json!({
            "allow": true, "type": kind, "major": major, "minor": minor, "access": wanted,
        });
        self.push(Item::new(&rule), Some((device.clone(), wanted.to_owned())));
        changes.note(device.field(), nri_field, None, Some(rule));
    }
}

/// Reads whether a rule allows, the access, and the device if the rule is for a single one.
fn read_rule(rule: &Item<'_>) -> Result<(bool, String, Option<DeviceNumber>), DocumentError> {
    let object = rule.open("linux.resources.devices[]")?;
    let is_allowing = object.value("allow")? == Some(Value::Bool(true));
    let access = object.value("access")?;
    let access = access.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((is_allowing, access, DeviceNumber::of(&object)?))
}

/// Appends cgroup rules to the existing ones; later rules override earlier ones.
pub(super) fn patch_rules(patch: &mut Patch<'_, '_>, rules: &[(String, Value)]) -> Result<()> {
    for (nri_field, rule) in rules {
        let array = patch.root.object("linux")?.object("resources")?.array("devices")?;
        array.items().push(Item::new(rule));
        patch.changes.note("linux.resources.devices", nri_field, None, Some(rule.clone()));
    }
    Ok(())
}
