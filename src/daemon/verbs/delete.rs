// SPDX-License-Identifier: Apache-2.0
//! `delete`: it never fails because of the daemon, and never waits long (D4). containerd deletes
//! twice, and sometimes a container that was never created; events go out once.

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

/// Decides a `delete`: if the container has exited, plugins are notified of that first.
pub(crate) async fn delete(node: &Rc<Node>, call: &VerbRequest) -> Result<Proceed> {
    let Some(record) = node.container(&call.key) else { return Ok(Proceed::default()) };
    // If this daemon dies before the runtime has deleted, the next one sees it in the record.
    let pid = call.question().pid;
    node.change(&call.key, |record| record.deleting = Some(pid));
    if exit_status::has_exited(&node.host, &record) {
        node.caches.exit_codes.note_monitor(&node.host, &record);
        let (node, key) = (Rc::clone(node), call.key.clone());
        let stopped = tokio::task::spawn_local(async move { stop::stopped(&node, &key).await });
        let _finishes_in_the_background = tokio::time::timeout(DELETE_WAIT, stopped).await;
    }
    Ok(Proceed::default())
}
