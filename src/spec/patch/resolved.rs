// SPDX-License-Identifier: Apache-2.0
//! Applies the resolved names of an adjustment to `config.json`: CDI devices, block I/O and RDT classes.
//!
//! Files of the host define the names, and `src/resolve` reads them before; here the definitions
//! are plain data. An unresolved name is refused, never skipped. Reference: NRI `InjectCDIDevices`,
//! `AdjustBlockIOClass`, `AdjustRdtClass`; decisions D23, D26.

use std::borrow::Cow;
use std::collections::HashSet;

use oci_document::{Item, Object};
use serde_json::{Value, json};

use super::{Changes, Patch, PatchError, Result, clean, devices, hooks, mounts, process};
use crate::error::quoted;
use crate::plugin::api;

/// The definitions of an adjustment's names on this host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resolved {
    /// One entry for each CDI device of the adjustment, in its order.
    pub cdi: Vec<CdiDevice>,
    /// The block I/O class.
    pub block_io: Class,
    /// The RDT class.
    pub intel_rdt: Class,
    /// Notes for the operator's log, one line each.
    pub notes: Vec<String>,
}

/// The definition of a class.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Class {
    /// No plugin requested one.
    #[default]
    Unasked,
    /// The empty class, which removes the engine's value.
    Cleared,
    /// The class's value of `blockIO` or `intelRdt`.
    Set(Value),
}

/// The edits of one CDI device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CdiDevice {
    /// `vendor.com/class=name`, as the plugin named it.
    pub name: String,
    /// Variables.
    pub env: Vec<api::KeyValue>,
    /// Hooks.
    pub hooks: api::Hooks,
    /// Device nodes with the access that the container gets (`rwm`, or less).
    pub nodes: Vec<(api::LinuxDevice, String)>,
    /// Mounts.
    pub mounts: Vec<api::Mount>,
    /// Network interfaces of the host with their names in the container.
    pub net_devices: Vec<(String, String)>,
    /// `linux.intelRdt` as a whole.
    pub intel_rdt: Option<Value>,
    /// Groups for the process.
    pub additional_gids: Vec<u32>,
}

/// Applies the CDI devices. Each change has its device's NRI field, under which the owner is recorded.
pub(super) fn patch_cdi(patch: &mut Patch<'_, '_>, wanted: &[api::CDIDevice]) -> Result<()> {
    let mut found = patch.facts.names.cdi.iter();
    let mut edited = Edited::default();
    for api::CDIDevice { name, special_fields: _ } in wanted {
        let field = format!("CdiDevices[{name}]");
        let Some(device) = found.next().filter(|device| device.name == *name) else {
            return Err(PatchError::NotApplied { field });
        };
        let Changes(before, _) = &patch.changes;
        let known = before.len();
        edited.apply(patch, device, &field).map_err(|error| match error {
            PatchError::SpecDocument(_) => error,
            PatchError::NotApplied { field: inner } => {
                PatchError::invalid(&field, format!("it sets {}", quoted(&inner)))
            }
            PatchError::Invalid { field: inner, problem } => {
                PatchError::invalid(&field, format!("{}: {problem}", quoted(&inner)))
            }
        })?;
        let Changes(after, _) = &mut patch.changes;
        for change in after.iter_mut().skip(known) {
            change.nri_field.clone_from(&field);
        }
    }
    edited.put_back(patch.root)
}

/// The document's lists that CDI devices edit, each taken out once for all devices.
#[derive(Default)]
struct Edited<'t> {
    env: Option<process::Environment<'t>>,
    nodes: Option<devices::Nodes<'t>>,
    mounts: Option<mounts::Placed<'t>>,
    gids: Option<HashSet<u64>>,
}

impl<'t> Edited<'t> {
    fn apply(&mut self, patch: &mut Patch<'_, 't>, device: &CdiDevice, field: &str) -> Result<()> {
        let CdiDevice {
            name: _,
            env,
            hooks,
            nodes,
            mounts,
            net_devices,
            intel_rdt,
            additional_gids,
        } = device;
        if !env.is_empty() {
            let take = || process::Environment::take(patch.root.object("process")?);
            opened(&mut self.env, take)?.apply(env, &mut patch.changes)?;
        }
        if !nodes.is_empty() {
            let user = Ids::of_process(patch.root)?;
            let all = opened(&mut self.nodes, || devices::Nodes::take(patch.root))?;
            for (node, access) in nodes {
                all.apply(patch, &user.fill(node), access)?;
            }
        }
        for (host, name) in net_devices {
            let names = (format!("linux.netDevices[{host}]"), field);
            let interfaces = patch.root.object("linux")?.map("netDevices")?;
            patch.changes.set(interfaces, host, json!({ "name": name }), (&names.0, names.1))?;
        }
        if !mounts.is_empty() {
            let mounts = with_mapped_ids(patch.root, mounts)?;
            let all = opened(&mut self.mounts, || mounts::Placed::take(patch.root))?;
            all.apply(patch, &mounts)?;
        }
        hooks::append(patch, hooks)?;
        if let Some(rdt) = intel_rdt {
            let names = ("linux.intelRdt", field);
            patch.changes.set(patch.root.object("linux")?, "intelRdt", rdt.clone(), names)?;
        }
        self.add_gids(patch, additional_gids, field)
    }

    fn put_back(self, root: &mut Object<'t>) -> Result<()> {
        let Self { env, nodes, mounts, gids: _ } = self;
        env.map_or(Ok(()), |env| env.put_back(root.object("process")?))?;
        nodes.map_or(Ok(()), |nodes| nodes.put_back(root))?;
        // CDI keeps the order of mounts of the same depth.
        mounts.map_or(Ok(()), |mounts| mounts.put_back(root, mounts::depth))
    }

    fn add_gids(&mut self, patch: &mut Patch<'_, 't>, gids: &[u32], field: &str) -> Result<()> {
        if gids.is_empty() {
            return Ok(());
        }
        let items = patch.root.object("process")?.object("user")?.array("additionalGids")?.items();
        let there = items.iter().filter_map(|item| item.value().as_u64());
        let known = self.gids.get_or_insert_with(|| there.collect());
        let new = gids.iter().filter(|gid| known.insert(u64::from(**gid)));
        let new: Vec<Value> = new.map(|gid| Value::from(*gid)).collect();
        items.extend(new.iter().map(Item::new));
        if !new.is_empty() {
            patch.changes.note("process.user.additionalGids", field, None, Some(Value::Array(new)));
        }
        Ok(())
    }
}

/// If the container has a user namespace, gives bind mounts mapped IDs, as CDI does, so that files
/// keep their owners.
fn with_mapped_ids<'m>(
    root: &mut Object<'_>,
    mounts: &'m [api::Mount],
) -> Result<Cow<'m, [api::Mount]>> {
    let mut is_mapped = false;
    for item in root.object("linux")?.array("namespaces")?.items() {
        let kind = item.open("linux.namespaces[]")?.value("type")?;
        is_mapped |= kind.as_ref().and_then(Value::as_str) == Some("user");
    }
    if !is_mapped {
        return Ok(mounts.into());
    }
    let mut mounts = mounts.to_vec();
    for mount in &mut mounts {
        let options = || mount.options.iter().map(String::as_str);
        let option = options().rev().find_map(|option| match option {
            "bind" => Some("idmap"),
            "rbind" => Some("ridmap"),
            _ => None,
        });
        let option = option.or((mount.type_ == "bind").then_some("idmap"));
        let is_given = options().any(|option| matches!(option, "idmap" | "ridmap"));
        mount.options.extend(option.filter(|_| !is_given).map(str::to_owned));
    }
    Ok(mounts.into())
}

/// Opens a list unless it is open already.
fn opened<T>(place: &mut Option<T>, take: impl FnOnce() -> Result<T>) -> Result<&mut T> {
    match place {
        Some(open) => Ok(open),
        None => Ok(place.insert(take()?)),
    }
}

/// The user that the process runs as.
#[derive(Debug, Clone, Copy)]
struct Ids {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Ids {
    fn of_process(root: &mut Object<'_>) -> Result<Self> {
        let user = root.object("process")?.object("user")?;
        let id = |value: Option<Value>| {
            let id = value.as_ref().and_then(Value::as_u64)?;
            u32::try_from(id).ok().filter(|id| *id > 0)
        };
        Ok(Self { uid: id(user.value("uid")?), gid: id(user.value("gid")?) })
    }

    /// Gives a node without an owner to the container's user, as CDI does.
    fn fill(self, node: &api::LinuxDevice) -> api::LinuxDevice {
        let mut node = node.clone();
        if node.uid.is_none() {
            node.uid = self.uid.map(Into::into).into();
        }
        if node.gid.is_none() {
            node.gid = self.gid.map(Into::into).into();
        }
        node
    }
}

/// Applies the classes. An adjustment's RDT part is applied later, and overrides the RDT class.
pub(super) fn patch_classes(
    patch: &mut Patch<'_, '_>,
    resources: &api::LinuxResources,
) -> Result<()> {
    let resolved = &patch.facts.names;
    for (is_wanted, class, field) in [
        (resources.blockio_class.is_some(), &resolved.block_io, "BlockioClass"),
        (resources.rdt_class.is_some(), &resolved.intel_rdt, "RdtClass"),
    ] {
        if !is_wanted {
            continue;
        }
        let linux = patch.root.object("linux")?;
        let (object, key, path) = if field == "RdtClass" {
            (linux, "intelRdt", "linux.intelRdt")
        } else {
            (linux.object("resources")?, "blockIO", "linux.resources.blockIO")
        };
        match class {
            Class::Unasked => return Err(PatchError::NotApplied { field: field.to_owned() }),
            Class::Set(value) => patch.changes.set(object, key, value.clone(), (path, field))?,
            Class::Cleared => {
                if let Some(before) = object.value(key)? {
                    object.remove(key)?;
                    patch.changes.note(path, field, Some(before), None);
                }
            }
        }
    }
    Ok(())
}

/// Whether the text is a path inside the container other than `/`, without a removal mark.
pub(crate) fn is_plain_path(path: &str) -> bool {
    path.starts_with('/') && clean(path) != "/"
}
