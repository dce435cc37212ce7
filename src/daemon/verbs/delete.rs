// SPDX-License-Identifier: Apache-2.0
//! `delete`: it never fails because of the daemon, and never waits long (D4). containerd deletes
//! twice and sometimes what was never created; events go out once.

use std::rc::Rc;
use std::time::Duration;

use crate::daemon::lifecycle::stop;
use crate::daemon::node::Node;
use crate::daemon::request::VerbRequest;
use crate::daemon::runtime::exit_status;
use crate::error::Result;
use crate::link::Proceed;

/// How long a `delete` waits for plugins; they are notified of the rest afterwards.
pub(crate) const DELETE_WAIT: Duration = Duration::from_secs(1);

/// Decides a `delete`: plugins are notified of a container that has exited first.
pub(crate) async fn delete(node: &Rc<Node>, call: &VerbRequest) -> Result<Proceed> {
    let Some(record) = node.container(&call.key) else { return Ok(Proceed::default()) };
    // A daemon that dies before the runtime has deleted leaves the next one to see it.
    let pid = call.question().pid;
    node.change(&call.key, |record| record.deleting = Some(pid));
    if exit_status::has_exited(&node.host, &record) {
        node.caches.exit_codes.note_monitor(&node.host, &record);
        let (node, key) = (Rc::clone(node), call.key.clone());
        let told = tokio::task::spawn_local(async move { stop::stopped(&node, &key).await });
        let _told_in_order_afterwards = tokio::time::timeout(DELETE_WAIT, told).await;
    }
    Ok(Proceed::default())
}
