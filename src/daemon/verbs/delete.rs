// SPDX-License-Identifier: Apache-2.0
//! `delete`, as the daemon lives it: it never fails because of us, and never waits long (D4).
//! containerd deletes twice and sometimes what was never created; events go out once.

use std::rc::Rc;
use std::time::Duration;

use crate::error::Result;
use crate::host::Point;
use crate::link::Proceed;
use crate::plugin::Event;
use crate::state::Key;

use crate::daemon::lifecycle::carry_over;
use crate::daemon::lifecycle::exit;
use crate::daemon::lifecycle::rollback;
use crate::daemon::node::{Node, log_failure};
use crate::daemon::pods::life;
use crate::daemon::request::call::Call;
use crate::daemon::runtime::exit_status;
use crate::daemon::runtime::state_dir;

/// How long a `delete` waits for plugins; what is not told by then is told afterwards.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Decides a `delete`: a container that has ended is stopped for the plugins first.
pub(crate) async fn delete(node: &Rc<Node>, call: &Call) -> Result<Proceed> {
    let Some(record) = node.container(&call.key) else { return Ok(Proceed::default()) };
    // A daemon that dies before the runtime has deleted leaves the next one to see it.
    let pid = call.question().pid;
    node.change(&call.key, |record| record.deleting = Some(pid));
    if exit::has_ended(node, &record) {
        exit_status::learn(node, &record);
        let (node, key) = (Rc::clone(node), call.key.clone());
        let told = tokio::task::spawn_local(async move { exit::stopped(&node, &key).await });
        let _told_in_order_afterwards = tokio::time::timeout(PATIENCE, told).await;
    }
    Ok(Proceed::default())
}

/// The runtime has deleted a container: what is missing of Stop and Remove goes out, and the
/// pod ends with its last container.
pub(crate) async fn removed(node: &Rc<Node>, key: &Key) {
    let Some(record) = node.container(key) else { return };
    exit::stopped(node, key).await;
    if !record.is_sandbox {
        exit::learn_late(node, key);
        node.tell(Event::RemoveContainer, key).await;
    }
    rollback::restore_document(node, &record);
    carry_over::keep(node, &record);
    log_failure("forgetting a container", node.host.point(Point::DaemonForget));
    node.store.borrow_mut().forget(key);
    life::end_if_empty(node, &record.pod).await;
    node.drop_idle_lanes(key, &record.pod);
}

/// After a `delete` ran: whether the runtime still knows the container decides.
pub(crate) async fn settle(node: &Rc<Node>, key: &Key) {
    if !state_dir::exists(&node.host, key) {
        removed(node, key).await;
    } else if node.container(key).is_some_and(|record| record.deleting.is_some()) {
        node.change(key, |record| record.deleting = None);
    }
}
