// SPDX-License-Identifier: Apache-2.0
//! One container's resources, changed from outside its engine (D22): directly in its cgroups
//! where those are the runtime's own, else through the runtime's `update`, which then gets the
//! complete resources.
//!
//! What was written is in the record before the next writer comes; each `update` of the engine
//! gets it too, so that the runtime's own idea of the container heals. It asks no plugin.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::{debug, warn};

use crate::cgroup::{self, Around, Cgroups, Unfit};
use crate::host::Point;
use crate::runtime::RuntimeKind;
use crate::spec::{overlay, owned};
use crate::state::{Change, Container, Key, Lifecycle, Wish};

use crate::clock::now;
use crate::daemon::node::Node;
use crate::daemon::node::messages::{self, Classes};
use crate::daemon::resources::classes;
use crate::daemon::resources::error::{RefusedField, Unmet};
use crate::daemon::resources::in_force::{Block, in_force, note_changes};
use crate::daemon::resources::route::{self, Route, is_paused, route};
use crate::daemon::runtime::{command, exit_status};

/// How long a plugin's update waits for another one of the same container.
const UPDATE_WAIT: Duration = Duration::from_secs(3);

/// Members that runc takes in an update without a word and does not apply.
const IGNORED_BY_RUNC: [(&str, &[&str]); 4] = [
    ("memory", &["swappiness", "disableOOMKiller", "useHierarchy", "kernel", "kernelTCP"]),
    ("hugepageLimits", &[]),
    ("devices", &[]),
    (
        "blockIO",
        &[
            "leafWeight",
            "weightDevice",
            "throttleReadBpsDevice",
            "throttleWriteBpsDevice",
            "throttleReadIOPSDevice",
            "throttleWriteIOPSDevice",
        ],
    ),
];

/// What a look at a container has told: it holds for this life of it.
pub(crate) struct Found {
    incarnation: u64,
    route: Route,
}

/// Whether a wish can be met, as far as can be told before it is carried out.
pub(crate) fn check(node: &Node, record: &Container, wish: &Wish) -> Result<Found, Unmet> {
    classes::check(node, record, wish.rdt_class.as_deref())?;
    let part = &wish.part;
    let route = route(node, record)?;
    match &route {
        Route::Direct(cgroups) => match plan(record, part, None, cgroups) {
            Ok(_writes) => {}
            Err(unfit @ Unfit::Refused { .. }) => return Err(unfit.into()),
            Err(Unfit::NotDirect(_)) => takes(record, part)?,
        },
        Route::Runtime(cgroups) => {
            takes(record, part)?;
            route::has_processors(node, part)?;
            let planned = cgroups.as_ref().map(|cgroups| plan(record, part, None, cgroups));
            if let Some(Err(unfit @ Unfit::Refused { .. })) = planned {
                return Err(unfit.into());
            }
        }
    }
    Ok(Found { incarnation: record.incarnation, route })
}

/// Carries a wish out, or changes nothing. `found`: what [`check`] has told, if it was asked.
pub(crate) async fn apply(
    node: &Rc<Node>,
    key: &Key,
    wish: &Wish,
    found: Option<Found>,
) -> Result<(), Unmet> {
    let lane = node.lane(key);
    let writing = std::sync::Arc::clone(&lane.writing).lock_owned();
    let _writing = tokio::time::timeout(UPDATE_WAIT, writing).await.map_err(|_late| Unmet::Busy)?;
    let record = living(node, key)?;
    let moved = classes::enter(node, &record, wish.rdt_class.as_deref())?;
    let found = found.filter(|found| found.incarnation == record.incarnation);
    let done = set(node, &record, wish, found.map(|found| found.route)).await;
    if done.is_err()
        && let Some(moved) = moved
    {
        moved.take_back(node);
    }
    done
}

/// The values of a wish, and its record.
async fn set(
    node: &Rc<Node>,
    record: &Container,
    wish: &Wish,
    found: Option<Route>,
) -> Result<(), Unmet> {
    let route = found.map_or_else(|| route(node, record), Ok)?;
    if let Route::Direct(cgroups) = route {
        match plan(record, &wish.part, None, &cgroups) {
            Ok(writes) => return write(node, record, wish, &cgroups, &writes),
            Err(unfit @ Unfit::Refused { .. }) => return Err(unfit.into()),
            Err(Unfit::NotDirect(_)) => {}
        }
    }
    through_runtime(node, record, wish).await
}

/// Sets resources of a container that its runtime is just making: in its cgroups, else as the first
/// thing once it is made.
pub(crate) async fn at_birth(node: &Node, key: &Key, wish: Wish) -> Result<(), Unmet> {
    if wish.part.is_empty() {
        return Ok(());
    }
    let lane = node.lane(key);
    let writing = std::sync::Arc::clone(&lane.writing).lock_owned();
    let _writing = tokio::time::timeout(UPDATE_WAIT, writing).await.map_err(|_late| Unmet::Busy)?;
    let record = node.container(key).ok_or(Unmet::Unknown)?;
    if let Route::Direct(cgroups) = route(node, &record)? {
        match plan(&record, &wish.part, None, &cgroups) {
            Ok(writes) => return write(node, &record, &wish, &cgroups, &writes),
            Err(unfit @ Unfit::Refused { .. }) => return Err(unfit.into()),
            Err(Unfit::NotDirect(_)) => {}
        }
    }
    takes(&record, &wish.part)?;
    node.change(key, |record| record.deferred.push(wish));
    Ok(())
}

/// The container, if it can be updated now.
pub(crate) fn living(node: &Node, key: &Key) -> Result<Rc<Container>, Unmet> {
    let record = node.container(key).ok_or(Unmet::Unknown)?;
    let is_alive = matches!(record.state, Lifecycle::Created | Lifecycle::Running)
        && !exit_status::has_exited(&node.host, &record);
    if is_alive { Ok(record) } else { Err(Unmet::Gone) }
}

fn plan(
    record: &Container,
    part: &Block,
    tried: Option<&Block>,
    cgroups: &Cgroups,
) -> Result<Vec<cgroup::Write>, Unfit> {
    let before = in_force(record);
    let mut after = before.clone();
    overlay::put_over(&mut after, part);
    let around = Around { before: &before, tried, after: &after };
    cgroup::plan(cgroups.layout(), part, around, cgroups)
}

fn write(
    node: &Node,
    record: &Container,
    wish: &Wish,
    cgroups: &Cgroups,
    writes: &[cgroup::Write],
) -> Result<(), Unmet> {
    let fault = |error: crate::error::Error| Unmet::refused(error);
    node.host.point(Point::DaemonCgroup).map_err(fault)?;
    let written = cgroup::carry_out(cgroups, writes).map_err(|failed| match () {
        () if !cgroups.exists() => Unmet::Gone,
        () if cgroups.is_frozen() => Unmet::Frozen(format!("{}: {}", failed.field, failed.why)),
        () => Unmet::refused_field(RefusedField::Path(failed.field), failed.why),
    })?;
    node.host.point(Point::DaemonCgroupDone).map_err(fault)?;
    let fields = owned::fields(&wish.part);
    let changes = written.into_iter().map(|written| {
        let field = fields.iter().find(|field| field.path == written.field);
        let owner = field.and_then(|field| owned::owner(field, &wish.part, &wish.owners));
        Change {
            at: now(),
            event: wish.event.clone(),
            plugin: owner.unwrap_or_default().to_owned(),
            field: format!("cgroup:{}", written.file),
            before: Value::from(written.before),
            after: Value::from(written.after),
        }
    });
    note(node, &record.key, wish, changes.collect());
    Ok(())
}

async fn through_runtime(node: &Rc<Node>, record: &Container, wish: &Wish) -> Result<(), Unmet> {
    if wish.part.is_empty() {
        note(node, &record.key, wish, Vec::new());
        return Ok(());
    }
    takes(record, &wish.part)?;
    route::has_processors(node, &wish.part)?;
    let before = in_force(record);
    let mut resources = before.clone();
    overlay::put_over(&mut resources, &wish.part);
    let with_devices = wish.part.contains_key("devices");
    if let Err(unmet) = run_update(node, record, resources, with_devices).await {
        return Err(put_back(node, record, &wish.part, unmet).await);
    }
    let fault = |error: crate::error::Error| Unmet::refused(error);
    node.host.point(Point::DaemonCgroupDone).map_err(fault)?;
    let changes = owned::fields(&wish.part).into_iter().map(|field| Change {
        at: now(),
        event: wish.event.clone(),
        plugin: owned::owner(&field, &wish.part, &wish.owners).unwrap_or_default().to_owned(),
        field: format!("linux.resources.{}", field.path),
        before: owned::value(&before, &field.path).unwrap_or_default(),
        after: field.value,
    });
    note(node, &record.key, wish, changes.collect());
    Ok(())
}

/// A runtime writes file by file, and tells systemd before: what it had done when it failed is
/// undone by it too. Says what it could not.
async fn put_back(node: &Rc<Node>, record: &Container, part: &Block, failed: Unmet) -> Unmet {
    let Unmet::Refused(refusal) = failed else { return failed };
    let (resources, left) = owned::undone(part, &in_force(record));
    let undone = run_update(node, record, resources, false).await;
    let more = match (undone, left.as_slice()) {
        (Err(Unmet::Gone), _) => return Unmet::Gone,
        (Err(unmet), _) => format!("; the previous values could not be restored: {unmet}"),
        (Ok(()), []) => String::new(),
        (Ok(()), left) => format!("; {} may still be in effect", left.join(", ")),
    };
    let refusal = refusal.and(&more);
    if is_paused(node, record) {
        Unmet::Frozen(refusal.to_string())
    } else {
        Unmet::Refused(refusal)
    }
}

/// The runtime's own `update`, with everything, so that nothing is forgotten.
async fn run_update(
    node: &Rc<Node>,
    record: &Container,
    mut resources: Block,
    with_devices: bool,
) -> Result<(), Unmet> {
    if !with_devices {
        resources.remove("devices"); // crun would take exactly these for all that are allowed.
    }
    let fault = |error: crate::error::Error| Unmet::refused(error);
    node.host.point(Point::DaemonCgroup).map_err(fault)?;
    let document = Value::Object(resources).to_string();
    let words = ["update", "--resources", "-", &record.key.id];
    command::run(record, &words, document.as_bytes()).await.map_err(|error| {
        if exit_status::has_exited(&node.host, record) {
            Unmet::Gone
        } else {
            Unmet::refused(format!("the runtime refused: {error}"))
        }
    })
}

fn note(node: &Node, key: &Key, wish: &Wish, mut changes: Vec<Change>) {
    let classes = Classes { blockio: wish.blockio_class.clone(), rdt: wish.rdt_class.clone() };
    node.change(key, |record| {
        // Reading the message only for a change that there is.
        let known = classes.rdt.as_ref();
        let known = known.and_then(|_| Classes::of(&messages::resources(record)).rdt);
        changes.extend(classes::change(known, classes.rdt.as_ref(), &wish.event, &wish.owners));
        overlay::put_over(&mut record.overlay, &wish.part);
        record.owners.extend(wish.owners.iter().map(|(k, v)| (k.clone(), v.clone())));
        note_changes(record, changes);
        record.message = messages::with_resources(&record.message, &in_force(record), &classes);
    });
}

/// Whether the runtime's `update` applies all of `part`.
fn takes(record: &Container, part: &Block) -> Result<(), Unmet> {
    let mut ignored = owned::fields(&ignored(record, part));
    if ignored.is_empty() {
        return Ok(());
    }
    // What lifts limits that there are not is met as it is.
    let none = Value::Array(Vec::new());
    let now = in_force(record);
    ignored.retain(|field| {
        field.value != none || owned::value(&now, &field.path).is_some_and(|now| now != none)
    });
    match ignored.first() {
        None => Ok(()),
        Some(field) => {
            let why = format!("{} does not change it in a running container", record.runtime);
            Err(Unmet::refused_field(RefusedField::Path(field.path.clone()), why))
        }
    }
}

/// The part that the runtime takes without applying it.
fn ignored(record: &Container, part: &Block) -> Block {
    if RuntimeKind::of_program(&record.runtime) == RuntimeKind::Crun {
        return Map::new();
    }
    let mut found = Map::new();
    for (section, members) in IGNORED_BY_RUNC {
        let Some(value) = part.get(section) else { continue };
        let value = match value {
            Value::Object(object) => {
                let mut object = object.clone();
                object.retain(|key, _| members.contains(&key.as_str()));
                if object.is_empty() {
                    continue;
                }
                Value::Object(object)
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => value.clone(),
        };
        found.insert(section.to_owned(), value);
    }
    found
}

/// After the runtime's own update: what plugins own and the runtime does not apply (or sets back
/// to what it was at creation) is written again.
pub(crate) fn rewrite_ignored(node: &Node, key: &Key) {
    let Some(record) = node.container(key) else { return };
    classes::enter_again(node, &record);
    let part = ignored(&record, &record.overlay);
    if matches!(route(node, &record), Ok(Route::Runtime(_))) {
        return; // What it holds of these is what the runtime made it with.
    }
    if let Err(unmet) = rewrite(node, &record, &part, None) {
        warn!("{}: values that plugins own could not be restored: {unmet}", key.id);
    }
}

/// After an update that failed half-way, or went past us: what plugins own holds again.
pub(crate) async fn reapply(node: &Rc<Node>, key: &Key) -> Result<(), Unmet> {
    let lane = node.lane(key);
    let writing = std::sync::Arc::clone(&lane.writing).lock_owned();
    let _writing = tokio::time::timeout(UPDATE_WAIT, writing).await.map_err(|_late| Unmet::Busy)?;
    let record = living(node, key)?;
    classes::enter_again(node, &record);
    if rewrite(node, &record, &record.overlay, None).is_ok() {
        return Ok(());
    }
    // Without the engine's own values: those on record are from before the update that passed us.
    run_update(node, &record, record.overlay.clone(), false).await
}

/// Whether the files say what changes with `after`, where that can be told: what is not for
/// direct writing, or reads as something else, does not count.
pub(crate) fn has_taken(node: &Node, record: &Container, after: &Block) -> bool {
    let (Ok(Route::Direct(cgroups)) | Ok(Route::Runtime(Some(cgroups)))) = route(node, record)
    else {
        return true;
    };
    let changed = overlay::delta(after, &in_force(record));
    let Ok(writes) = plan(record, &changed, None, &cgroups) else { return true };
    writes.iter().all(|write| cgroup::may_read_as(&cgroups, write))
}

/// After an update that failed on its way: what plugins own holds again. A runtime that has to do
/// it is not waited for.
pub(crate) fn restore(node: &Rc<Node>, record: &Container, tried: &Block) {
    let key = record.key.clone();
    if let Ok(Route::Runtime(_)) = route(node, record) {
        if record.overlay.is_empty() {
            return;
        }
        let node = Rc::clone(node);
        tokio::task::spawn_local(async move {
            if let Err(unmet) = reapply(&node, &key).await {
                warn!("{}: after a failed update: {unmet}", key.id);
            }
        });
    } else if let Err(unmet) = rewrite(node, record, &record.overlay, Some(tried)) {
        debug!("{}: after a failed update: {unmet}", key.id);
    }
}

/// Writes a part of what is in force already; `tried` is an update that failed.
fn rewrite(
    node: &Node,
    record: &Container,
    part: &Block,
    tried: Option<&Block>,
) -> Result<(), Unmet> {
    if part.is_empty() {
        return Ok(());
    }
    let Route::Direct(cgroups) = route(node, record)? else {
        return Err(Unmet::refused("its cgroups are not ours to write"));
    };
    let writes = plan(record, part, tried, &cgroups).map_err(Unmet::from)?;
    let fault = |error: crate::error::Error| Unmet::refused(error);
    node.host.point(Point::DaemonCgroup).map_err(fault)?;
    let written = cgroup::carry_out(&cgroups, &writes);
    written
        .map(|_| ())
        .map_err(|failed| Unmet::refused_field(RefusedField::Path(failed.field), failed.why))
}
