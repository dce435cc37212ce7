// SPDX-License-Identifier: Apache-2.0
//! Changes one container's resources without its engine (D22): directly in its cgroups if `route.rs` permits that, else
//! through the runtime's `update`, which receives the complete resources as far as they are known. Values that the
//! runtime would ignore are written directly where possible (D48).
//!
//! The new values are on record before the next writer starts; values that a failed runtime wrote are reverted. Each
//! later `update` of the engine that passes through nri-runc includes the recorded values, which corrects the runtime's
//! state. No plugin is asked.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use crate::cgroup::{self, AppliedWrite, Around, Cgroups, Unfit, Write, WriteError};
use crate::host::{Host, Point};
use crate::spec::{overlay, owned};
use crate::state::{Change, Container, ContainerKey, Lifecycle, PendingUpdate};

use crate::clock::now;
use crate::daemon::resources::classes;
use crate::daemon::resources::error::{Result, UpdateError};
use crate::daemon::resources::ignored::{SplitUpdate, ignored, leave_out_idle, split, takes};
use crate::daemon::resources::in_force::{Block, before, in_force, known_for_sure, note_changes};
use crate::daemon::resources::results;
use crate::daemon::resources::route::{self, Route, route, written_directly};
use crate::daemon::runtime::{command, exit_status};
use crate::daemon::shared::lane::{Lane, Lanes};
use crate::daemon::shared::messages::Classes;
use crate::daemon::shared::{Daemon, messages};

/// Longest wait for another writer of the same container's resources.
const UPDATE_WAIT: Duration = Duration::from_secs(3);

/// The result of checking an update of a container.
pub(crate) struct CheckedUpdate {
    route: Route,
    /// The writes, if the daemon makes all of them; valid while the record is unchanged.
    writes: Option<Vec<Write>>,
}

/// Checks in advance whether an update can be applied, as far as possible.
pub(crate) fn check(
    daemon: &Daemon,
    record: &Container,
    requested: &PendingUpdate,
) -> Result<CheckedUpdate> {
    classes::check(daemon, record, requested.rdt_class.as_deref())?;
    let part = &requested.part;
    let route = route(daemon, record)?;
    let mut writes = None;
    match &route {
        Route::Direct(cgroups) => match plan(record, part, None, cgroups) {
            Ok(planned) => writes = Some(planned),
            Err(unfit @ Unfit::Refused { .. }) => return Err(unfit.into()),
            Err(Unfit::NotDirect(_)) => takes(record, part)?,
        },
        Route::Runtime(cgroups) => {
            let SplitUpdate { direct, rest } = split(record, part, cgroups.as_ref());
            takes(record, &rest)?;
            route::has_processors(&daemon.host, &rest)?;
            if let Some(cgroups) = cgroups.as_ref().filter(|_| !direct.is_empty()) {
                plan(record, &direct, None, cgroups)?;
            }
            let planned = cgroups.as_ref().map(|cgroups| plan(record, part, None, cgroups));
            if let Some(Err(unfit @ Unfit::Refused { .. })) = planned {
                return Err(unfit.into());
            }
        }
    }
    Ok(CheckedUpdate { route, writes })
}

/// Applies an update, or reverts it as far as possible. `found` is the record of an earlier [`check`], and its result.
pub(crate) async fn apply(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    requested: &PendingUpdate,
    found: Option<(Rc<Container>, CheckedUpdate)>,
) -> Result<()> {
    let _writing = turn_to_write(&daemon.lanes, key).await?;
    let is_unchanged = |(checked, _): &&(Rc<Container>, _)| {
        daemon.container(key).is_some_and(|record| Rc::ptr_eq(&record, checked))
    };
    let unchanged = found.as_ref().filter(is_unchanged).map(|(checked, _)| Rc::clone(checked));
    let is_unchanged = unchanged.is_some();
    // The check found an unchanged record's process alive.
    let record = unchanged.map_or_else(|| living(daemon, key), Ok)?;
    if record.is_starting() {
        return Err(UpdateError::Starting);
    }
    let moved = classes::enter(daemon, &record, requested.rdt_class.as_deref())?;
    let found = found.filter(|(checked, _)| checked.incarnation == record.incarnation);
    let found = found.map(|(_, CheckedUpdate { route, writes })| CheckedUpdate {
        route,
        writes: writes.filter(|_| is_unchanged),
    });
    let update = ResourceUpdate { daemon, record: &record, requested };
    let done = update.apply(found).await;
    if done.is_err()
        && let Some(moved) = moved
    {
        moved.take_back(daemon);
    }
    done
}

/// Acquires the turn to write a container's resources; also returns the container's lane.
pub(super) async fn turn_to_write(
    lanes: &Lanes,
    key: &ContainerKey,
) -> Result<(OwnedMutexGuard<()>, Rc<Lane>)> {
    let lane = lanes.container(key);
    let writing = tokio::time::timeout(UPDATE_WAIT, Arc::clone(&lane.writing).lock_owned()).await;
    Ok((writing.map_err(|_late| UpdateError::Busy)?, lane))
}

/// The result of writing an update to the cgroups.
enum DirectUpdate {
    Written,
    /// The runtime must write the update; a part may be written directly to these cgroups.
    LeftToRuntime(Option<Cgroups>),
}

/// An update of a container's resources that is applied and recorded.
#[derive(Clone, Copy)]
struct ResourceUpdate<'u> {
    daemon: &'u Rc<Daemon>,
    record: &'u Container,
    requested: &'u PendingUpdate,
}

impl ResourceUpdate<'_> {
    async fn apply(self, found: Option<CheckedUpdate>) -> Result<()> {
        let (route, writes) = match found {
            Some(CheckedUpdate { route, writes }) => (route, writes),
            None => (route(self.daemon, self.record)?, None),
        };
        match self.apply_directly(route, writes).await? {
            DirectUpdate::Written => Ok(()),
            DirectUpdate::LeftToRuntime(scope) => self.apply_through_runtime(scope.as_ref()).await,
        }
    }

    /// Writes the update to the container's cgroups, if the daemon writes them directly.
    async fn apply_directly(
        self,
        route: Route,
        planned: Option<Vec<Write>>,
    ) -> Result<DirectUpdate> {
        let cgroups = match route {
            Route::Direct(cgroups) => cgroups,
            Route::Runtime(scope) => return Ok(DirectUpdate::LeftToRuntime(scope)),
        };
        let writes = match planned {
            Some(writes) => Ok(writes),
            None => plan(self.record, &self.requested.part, None, &cgroups),
        };
        match writes {
            Ok(writes) => {
                let changes = self.write_files(&cgroups, writes).await?;
                self.record_applied(changes);
                Ok(DirectUpdate::Written)
            }
            Err(unfit @ Unfit::Refused { .. }) => Err(unfit.into()),
            Err(Unfit::NotDirect(_)) => Ok(DirectUpdate::LeftToRuntime(None)),
        }
    }

    /// Makes the runtime apply the update; values that the runtime would ignore are written directly
    /// to `scope`, the container's cgroups.
    async fn apply_through_runtime(self, scope: Option<&Cgroups>) -> Result<()> {
        let Self { daemon, record, requested } = self;
        let SplitUpdate { direct, rest } = split(record, &requested.part, scope);
        takes(record, &rest)?;
        route::has_processors(&daemon.host, &rest)?;
        let mut changes = Vec::new();
        if !rest.is_empty() {
            changes = self.run_checked_update(&rest).await?;
        }
        if let Some(scope) = scope {
            // The runtime may have just reset the directly written values.
            let mut beside = Block::new();
            if !rest.is_empty() {
                beside = split(record, &record.resources.overlay, Some(scope)).direct;
            }
            overlay::put_over(&mut beside, &direct);
            let writes = plan(record, &beside, None, scope).map_err(UpdateError::from);
            let written = match writes {
                Ok(writes) => self.write_files(scope, writes).await,
                Err(unfit) => Err(unfit),
            };
            match written {
                Ok(written) => changes.extend(written),
                Err(failed) if rest.is_empty() => return Err(failed),
                Err(failed) => return Err(put_back(daemon, record, &rest, failed).await),
            }
        }
        self.record_applied(changes);
        Ok(())
    }

    /// Writes all values or none, and returns the changes for `explain`.
    async fn write_files(self, cgroups: &Cgroups, writes: Vec<Write>) -> Result<Vec<Change>> {
        self.daemon.host.point(Point::DaemonCgroup).map_err(UpdateError::refused)?;
        let written = carry_out(cgroups, writes).await.map_err(|failed| match () {
            () if !cgroups.exists() => UpdateError::Gone,
            () if cgroups.is_frozen() => {
                UpdateError::Frozen(format!("{}: {}", failed.field, failed.why))
            }
            () => failed.into(),
        })?;
        self.daemon.host.point(Point::DaemonCgroupDone).map_err(UpdateError::refused)?;
        let fields = owned::fields(&self.requested.part).into_iter();
        let fields: HashMap<String, owned::OwnedMember> =
            fields.map(|field| (field.path.clone(), field)).collect();
        let changes = written.into_iter().map(|AppliedWrite { file, field, before, after }| {
            let (before, after) = (Value::from(before), Value::from(after));
            let owner = fields.get(&field);
            let (part, owners) = (&self.requested.part, &self.requested.owners);
            let owner = owner.and_then(|field| owned::owner(field, part, owners));
            self.change(owner, format!("cgroup:{file}"), before, after)
        });
        Ok(changes.collect())
    }

    /// Makes the runtime apply `part`, and returns the changes for `explain`. If the runtime fails halfway, reverts
    /// `part`.
    async fn run_checked_update(self, part: &Block) -> Result<Vec<Change>> {
        let Self { daemon, record, requested } = self;
        let before = in_force(record);
        let mut resources = known_for_sure(record);
        overlay::put_over(&mut resources, &requested.part);
        let with_devices = part.contains_key("devices");
        if let Err(failed) = run_update(&daemon.host, record, resources, with_devices).await {
            return Err(put_back(daemon, record, part, failed).await);
        }
        daemon.host.point(Point::DaemonCgroupDone).map_err(UpdateError::refused)?;
        let changes = owned::fields(part).into_iter().map(|field| {
            let owner = owned::owner(&field, part, &requested.owners);
            let before = owned::value(&before, &field.path).unwrap_or_default();
            self.change(owner, format!("linux.resources.{}", field.path), before, field.value)
        });
        Ok(changes.collect())
    }

    fn change(self, owner: Option<&str>, field: String, before: Value, after: Value) -> Change {
        let plugin = owner.unwrap_or_default().to_owned();
        Change { at: now(), event: self.requested.event.clone(), plugin, field, before, after }
    }

    fn record_applied(self, mut changes: Vec<Change>) {
        let Self { daemon, record, requested } = self;
        let PendingUpdate { part, blockio_class, rdt_class, owners, event } = requested;
        let classes = Classes { blockio: blockio_class.clone(), rdt: rdt_class.clone() };
        let owned = results::owned_by_others(&daemon.records, &record.key, owners);
        daemon.change(&record.key, |record| {
            // The class names are only needed if a class changes.
            let known = classes.rdt.as_ref();
            let known = known.and_then(|_| Classes::of(&messages::resources(record)).rdt);
            changes.extend(classes::change(known, classes.rdt.as_ref(), event, owners));
            overlay::put_over(&mut record.resources.overlay, part);
            record.resources.owners.extend(owners.clone());
            note_changes(record, changes.clone());
            let in_force = in_force(record);
            record.message = messages::with_resources(
                &record.message,
                &record.resources.overlay,
                &in_force,
                &classes,
            );
        });
        results::note_changed(&daemon.registry, &record.key, &owned, owners);
        daemon.note_update(&record.key, &changes);
    }
}

/// Sets resources of a container that its runtime is creating: in its cgroups, or with the runtime
/// right after the creation.
pub(crate) async fn at_birth(
    daemon: &Rc<Daemon>,
    key: &ContainerKey,
    requested: PendingUpdate,
) -> Result<()> {
    if requested.part.is_empty() {
        return Ok(());
    }
    let _writing = turn_to_write(&daemon.lanes, key).await?;
    let record = daemon.container(key).ok_or(UpdateError::Unknown)?;
    let route = route(daemon, &record)?;
    let update = ResourceUpdate { daemon, record: &record, requested: &requested };
    let scope = match update.apply_directly(route, None).await? {
        DirectUpdate::Written => return Ok(()),
        DirectUpdate::LeftToRuntime(scope) => scope,
    };
    takes(&record, &split(&record, &requested.part, scope.as_ref()).rest)?;
    daemon.change(key, |record| record.pending.deferred.push(requested));
    Ok(())
}

/// Returns the container's record; fails unless the container is created or running.
pub(crate) fn living(daemon: &Daemon, key: &ContainerKey) -> Result<Rc<Container>> {
    let record = daemon.container(key).ok_or(UpdateError::Unknown)?;
    let is_alive = matches!(record.state, Lifecycle::Created | Lifecycle::Running)
        && !exit_status::has_exited(&daemon.host, &record);
    if is_alive { Ok(record) } else { Err(UpdateError::Gone) }
}

pub(super) fn plan(
    record: &Container,
    part: &Block,
    tried: Option<&Block>,
    cgroups: &Cgroups,
) -> Result<Vec<Write>, Unfit> {
    let before = in_force(record);
    let mut after = before.clone();
    overlay::put_over(&mut after, part);
    let around = Around { before: &before, tried, after: &after };
    cgroup::plan(cgroups.layout(), part, around, cgroups)
}

/// Carries out the writes, on another thread if one may make the kernel reclaim or move much memory (D53).
async fn carry_out(cgroups: &Cgroups, writes: Vec<Write>) -> Result<Vec<AppliedWrite>, WriteError> {
    if !writes.iter().any(Write::may_take_long) {
        return cgroup::carry_out(cgroups, &writes);
    }
    let cgroups = cgroups.clone();
    let written = tokio::task::spawn_blocking(move || cgroup::carry_out(&cgroups, &writes)).await;
    written.unwrap_or_else(|_panicked| {
        let why = "the cgroup could not be written".to_owned();
        Err(WriteError { field: String::new(), why })
    })
}

/// Reverts the part that the runtime wrote before it failed: runtimes write one file after the
/// other, and call systemd first. Adds to the error the values that could not be restored.
async fn put_back(
    daemon: &Rc<Daemon>,
    record: &Container,
    part: &Block,
    failed: UpdateError,
) -> UpdateError {
    let UpdateError::Refused(refusal) = failed else { return failed };
    let (resources, left) = before(record, part);
    let undone = match resources.is_empty() {
        true => Ok(()),
        false => run_update(&daemon.host, record, resources, false).await,
    };
    let more = match (undone, left.as_slice()) {
        (Err(UpdateError::Gone), _) => return UpdateError::Gone,
        (Err(update_error), _) => {
            format!("; the previous values could not be restored: {update_error}")
        }
        (Ok(()), []) => String::new(),
        (Ok(()), left) => format!("; {} may still be in effect", left.join(", ")),
    };
    let refusal = refusal.and(&more);
    if daemon.is_paused(record) {
        UpdateError::Frozen(refusal.to_string())
    } else {
        UpdateError::Refused(refusal)
    }
}

/// Runs the runtime's `update` with these resources, without the device rules unless `with_devices`.
pub(super) async fn run_update(
    host: &Host,
    record: &Container,
    mut resources: Block,
    with_devices: bool,
) -> Result<()> {
    if !with_devices {
        resources.remove("devices"); // crun would treat these as the complete list of permitted devices.
    }
    leave_out_idle(host, &mut resources, &record.resources.of_engine.map());
    host.point(Point::DaemonCgroup).map_err(UpdateError::refused)?;
    let document = Value::Object(resources).to_string();
    let words = ["update", "--resources", "-", &record.key.id];
    command::run(record, &words, document.as_bytes()).await.map_err(|error| {
        if exit_status::has_exited(host, record) {
            UpdateError::Gone
        } else {
            UpdateError::refused(format!("the runtime refused: {error}"))
        }
    })
}

/// Restores, after the runtime's `update`, the plugins' values that the runtime does not apply, or
/// has reset to the values of the creation.
pub(crate) fn rewrite_ignored(daemon: &Daemon, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    classes::enter_again(daemon, &record);
    let written = match route(daemon, &record) {
        // Plugins' values that neither the runtime nor the daemon can write have not changed since the creation.
        Ok(Route::Runtime(scope)) => rewrite_beside(&daemon.host, &record, scope.as_ref()),
        _ => match ignored(&record, &record.resources.overlay) {
            none if none.is_empty() => Ok(()),
            some => written_directly(daemon, &record)
                .and_then(|cgroups| rewrite_in(&daemon.host, &record, &cgroups, &some)),
        },
    };
    if let Err(update_error) = written {
        warn!("{}: plugin-owned values could not be restored: {update_error}", key.id);
    }
}

/// Restores the plugins' values after an update that failed halfway or bypassed the daemon.
pub(crate) async fn reapply(daemon: &Rc<Daemon>, key: &ContainerKey) -> Result<()> {
    let _writing = turn_to_write(&daemon.lanes, key).await?;
    let record = living(daemon, key)?;
    classes::enter_again(daemon, &record);
    if restore_directly(daemon, &record, None).await.is_ok() {
        return Ok(());
    }
    // Omits the engine's recorded values, because an update that bypassed the daemon may be newer.
    run_update(&daemon.host, &record, record.resources.overlay.clone(), false).await?;
    match route(daemon, &record)? {
        Route::Runtime(scope) => rewrite_beside(&daemon.host, &record, scope.as_ref()),
        Route::Direct(_) => Ok(()),
    }
}

/// Restores the plugins' values, if there are any, after an update that failed halfway; the
/// returned task ends when the values are written, or cannot be.
pub(crate) fn restore(
    daemon: &Rc<Daemon>,
    record: &Container,
    tried: &Block,
) -> Option<JoinHandle<()>> {
    if record.resources.overlay.is_empty() {
        return None;
    }
    let through_runtime = matches!(route(daemon, record), Ok(Route::Runtime(_)));
    let (daemon, record, tried) = (Rc::clone(daemon), record.clone(), tried.clone());
    Some(tokio::task::spawn_local(async move {
        if !through_runtime {
            // The cgroup may be gone with its container.
            if let Err(update_error) = restore_directly(&daemon, &record, Some(&tried)).await {
                debug!("{}: after a failed update: {update_error}", record.key.id);
            }
        } else if let Err(update_error) = reapply(&daemon, &record.key).await {
            warn!("{}: after a failed update: {update_error}", record.key.id);
        }
    }))
}

/// Writes all values that plugins own to the cgroup files; `tried` is an update that failed.
async fn restore_directly(
    daemon: &Daemon,
    record: &Container,
    tried: Option<&Block>,
) -> Result<()> {
    let cgroups = written_directly(daemon, record)?;
    let writes = rewrites(&daemon.host, record, &cgroups, (&record.resources.overlay, tried))?;
    Ok(carry_out(&cgroups, writes).await.map(drop)?)
}

/// Restores the directly written values in a systemd scope (D48): each `update` of the runtime may
/// reset them.
fn rewrite_beside(host: &Host, record: &Container, scope: Option<&Cgroups>) -> Result<()> {
    let Some(scope) = scope else { return Ok(()) };
    let beside = split(record, &record.resources.overlay, Some(scope)).direct;
    rewrite_in(host, record, scope, &beside)
}

/// Writes the values of `part` again, on the event loop, because none of them takes the kernel long.
fn rewrite_in(host: &Host, record: &Container, cgroups: &Cgroups, part: &Block) -> Result<()> {
    let writes = rewrites(host, record, cgroups, (part, None))?;
    Ok(cgroup::carry_out(cgroups, &writes).map(drop)?)
}

/// Returns the writes that put `part` in force again; `tried` is an update that failed.
fn rewrites(
    host: &Host,
    record: &Container,
    cgroups: &Cgroups,
    (part, tried): (&Block, Option<&Block>),
) -> Result<Vec<Write>> {
    if part.is_empty() {
        return Ok(Vec::new());
    }
    let writes = plan(record, part, tried, cgroups).map_err(UpdateError::from)?;
    host.point(Point::DaemonCgroup).map_err(UpdateError::refused)?;
    Ok(writes)
}
