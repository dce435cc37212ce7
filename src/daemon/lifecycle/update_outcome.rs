// SPDX-License-Identifier: Apache-2.0
//! The outcome of an `update`, once its runtime process has exited (D21): its values hold, or the
//! values in force are written again.

use std::rc::Rc;

use crate::daemon::lifecycle::notify;
use crate::daemon::node::lane::{PendingVerb, ProposedUpdate};
use crate::daemon::node::{Node, log_failure, messages};
use crate::daemon::resources::{apply, in_force};
use crate::daemon::runtime::state_dir::{self, Stamp};
use crate::host::Point;
use crate::plugin::Event;
use crate::runtime::RuntimeKind;
use crate::spec::overlay;
use crate::state::{Container, ContainerKey};

/// The runtime of an `update` has exited: if it took the update, its values hold from now on.
/// A replaced state file proves it. crun keeps none; there the cgroup files decide. A second call
/// does nothing.
pub(crate) fn note_taken(node: &Rc<Node>, key: &ContainerKey, pending: &PendingVerb) {
    let Some(proposed) = pending.proposed.borrow_mut().take() else { return };
    let Some(record) = node.container(key) else { return };
    if record.incarnation != pending.incarnation {
        return;
    }
    pending.is_told.set(conclude(node, &record, pending.state_before, proposed));
}

/// Returns whether plugins are to be notified.
pub(crate) fn conclude(
    node: &Rc<Node>,
    record: &Container,
    before: Option<Stamp>,
    proposed: ProposedUpdate,
) -> bool {
    let key = &record.key;
    let after = state_dir::state_stamp(&node.host, key);
    let is_replaced = after.is_some() && after != before;
    let mut tried = proposed.engine.clone();
    overlay::put_over(&mut tried, &proposed.overlay);
    let is_crun = RuntimeKind::of_program(&record.runtime) == RuntimeKind::Crun;
    let is_taken = is_replaced || (is_crun && apply::has_taken(node, record, &tried));
    if !is_taken {
        // runc and crun write file by file, and undo nothing when they fail.
        apply::restore(node, record, &tried);
        if record.updating.is_some() {
            node.change(key, |record| record.updating = None);
        }
        return false;
    }
    log_failure("recording an update", node.host.point(Point::DaemonUpdated));
    let ProposedUpdate { engine, overlay, owners, changes, classes, is_told, writing: _writing } =
        proposed;
    node.change(key, |record| {
        record.engine_resources = engine;
        record.overlay = overlay;
        record.owners = owners;
        record.updating = None;
        in_force::note_changes(record, changes);
        record.message =
            messages::with_resources(&record.message, &in_force::in_force(record), &classes);
    });
    apply::rewrite_ignored(node, key);
    is_told
}

/// Notifies the plugins that were asked that the update was done.
pub(crate) async fn settle(node: &Rc<Node>, key: &ContainerKey, pending: &PendingVerb) {
    note_taken(node, key, pending);
    if pending.is_told.take() {
        notify::notify(node, Event::PostUpdateContainer, key).await;
    }
}
