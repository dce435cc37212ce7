// SPDX-License-Identifier: Apache-2.0
//! A container's process has exited: StopContainer, exactly once, whether its descriptor reported
//! the exit or a `delete` saw it first.

use std::rc::Rc;

use crate::daemon::lifecycle::{notify, state};
use crate::daemon::node::queues::PodNews;
use crate::daemon::node::{Node, log_failure};
use crate::daemon::pods::{own_process, stopping};
use crate::host::Point;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Marks a container stopped and notifies the plugins; the second time nothing happens.
pub(crate) async fn stopped(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    // Marked before plugins are notified: a concurrent caller must not notify them again.
    if !state::mark_stopped(node, key) {
        return;
    }
    own_process::forget(node, &record);
    node.process.release_monitor();
    log_failure("notifying plugins of an exit", node.host.point(Point::DaemonStopped));
    if !record.is_sandbox {
        notify::notify(node, Event::StopContainer, key).await;
        node.tell_crio_watch(PodNews::MemberEnded(record.pod.clone()));
    }
    stopping::container_ended(node, &record);
}
