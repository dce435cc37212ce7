// SPDX-License-Identifier: Apache-2.0
//! Applies block I/O and RDT classes to running containers: sets the values of a class, and moves a container into
//! another RDT group, which no runtime offers.
//!
//! The container's message keeps the name of a class that a plugin set, so that the move can be repeated. This module
//! never creates a group, and asks no plugin. It removes a group that the runtime made for a container whose creation
//! failed, because class IDs are few.

use std::collections::BTreeMap;

use serde_json::Value;
use tracing::warn;

use crate::cgroup::Cgroups;
use crate::cgroup::resctrl::{self, Group};
use crate::plugin::api;
use crate::resolve;
use crate::spec::overlay;
use crate::spec::patch::PatchError;
use crate::state::{Change, Container, Lifecycle};

use crate::clock::now;
use crate::daemon::resources::error::{RefusedField, Result, UpdateError};
use crate::daemon::resources::in_force::Block;
use crate::daemon::resources::route;
use crate::daemon::shared::Daemon;
use crate::daemon::shared::messages::{self, Classes};

/// The field under which `explain` shows a move.
pub(crate) const FIELD: &str = "linux.intelRdt.closID";

/// The RDT class's field name among the owners.
const RDT: &str = "RdtClass";

/// Returns a plugin's resources as an overlay, with its classes resolved.
pub(crate) fn overlay_of(
    daemon: &Daemon,
    id: &str,
    wanted: &api::LinuxResources,
) -> Result<Block, PatchError> {
    let resolved = resolve::resolve_classes(wanted, &daemon.config(), &daemon.host)?;
    for note in &resolved.notes {
        warn!("{id}: {note}");
    }
    overlay::overlay_of(wanted, &resolved)
}

/// The container's cgroups and former RDT group, to revert a move.
pub(crate) struct MovedGroup {
    cgroups: Cgroups,
    before: Group,
}

impl MovedGroup {
    /// Moves the container back to its former group.
    pub(crate) fn take_back(self, daemon: &Daemon) {
        let resctrl = &daemon.config().resctrl_path;
        if let Err(why) = resctrl::enter(&daemon.host, &self.cgroups, resctrl, &self.before) {
            warn!("an RDT class could not be restored: {why}");
        }
    }
}

/// Checks in advance, as far as possible, whether the container can be moved to the group of `class`.
pub(crate) fn check(daemon: &Daemon, record: &Container, class: Option<&str>) -> Result<()> {
    class.map_or(Ok(()), |_| cgroups(daemon, record).map(|_| ()))
}

/// Moves the container into the group of `class`, if set; the empty class is the default group. A failed move is
/// reverted.
pub(crate) fn enter(
    daemon: &Daemon,
    record: &Container,
    class: Option<&str>,
) -> Result<Option<MovedGroup>> {
    let Some(class) = class else { return Ok(None) };
    let cgroups = cgroups(daemon, record)?;
    let resctrl = daemon.config().resctrl_path.clone();
    let group = record.process.init_pid.and_then(|pid| resctrl::group_of(&daemon.host, pid));
    let known = Classes::of(&messages::resources(record)).rdt.unwrap_or_default();
    let before = group.unwrap_or_else(|| Group::named(resolve::rdt_group(&known)));
    let (moved, group) = (MovedGroup { cgroups, before }, Group::named(resolve::rdt_group(class)));
    match resctrl::enter(&daemon.host, &moved.cgroups, &resctrl, &group) {
        Ok(()) => Ok(Some(moved)),
        Err(why) => {
            moved.take_back(daemon);
            Err(UpdateError::refused_field(RefusedField::Class(RDT), why))
        }
    }
}

/// Repeats the move if a plugin owns the class, because a runtime may have moved the container's
/// first process to another group.
pub(crate) fn enter_again(daemon: &Daemon, record: &Container) {
    if !record.resources.owners.contains_key(RDT) {
        return;
    }
    let class = Classes::of(&messages::resources(record)).rdt;
    if let Err(update_error) = enter(daemon, record, class.as_deref()) {
        warn!("{}: {update_error}", record.key.id);
    }
}

/// Returns the RDT group that a plugin set and that the runtime will create, because it does not exist yet.
pub(crate) fn group_to_make(daemon: &Daemon, changes: &[Change]) -> Option<String> {
    let named = changes.iter().rfind(|change| change.field == FIELD)?.after.as_str()?;
    let is_new = resctrl::is_missing(&daemon.host, &daemon.config().resctrl_path, named);
    (!named.is_empty() && is_new).then(|| named.to_owned())
}

/// Removes the group that the runtime made for a container whose creation failed, unless another
/// container's creation needs the group.
pub(crate) fn remove_made(daemon: &Daemon, record: &Container) {
    let Some(made) = &record.outcome.makes_group else { return };
    let is_wanted = |other: &Container| {
        other.key != record.key
            && other.state == Lifecycle::Creating
            && other.outcome.makes_group.as_ref() == Some(made)
    };
    if daemon.records.read().containers().any(is_wanted) {
        return;
    }
    let resctrl = &daemon.config().resctrl_path;
    if let Err(why) = resctrl::remove_unused(&daemon.host, resctrl, made) {
        warn!(
            "{}: the resctrl group that the runtime created for it could not be removed: {why}",
            record.key.id
        );
    }
}

/// Returns a container's move to another RDT class as a change for `explain`.
pub(crate) fn change(
    before: Option<String>,
    class: Option<&String>,
    event: &str,
    owners: &BTreeMap<String, String>,
) -> Option<Change> {
    Some(Change {
        at: now(),
        event: event.to_owned(),
        plugin: owners.get(RDT).cloned().unwrap_or_default(),
        field: FIELD.to_owned(),
        before: Value::from(before),
        after: Value::from(class?.as_str()),
    })
}

fn cgroups(daemon: &Daemon, record: &Container) -> Result<Cgroups> {
    let mut found = None;
    if route::has_known_cgroups(record) {
        found = route::own_cgroups(daemon, record, &BTreeMap::new())?;
    }
    let why = "the processes of the container cannot be determined";
    found.ok_or_else(|| UpdateError::refused_field(RefusedField::Class(RDT), why))
}
