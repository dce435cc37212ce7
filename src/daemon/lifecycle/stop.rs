// SPDX-License-Identifier: Apache-2.0
//! Sends StopContainer exactly once when a container's process has exited, whether its descriptor
//! reported the exit or a `delete` saw it first.

use std::rc::Rc;

use crate::daemon::lifecycle::{notify, state};
use crate::daemon::pods::{own_process, stopping};
use crate::daemon::shared::queues::PodNews;
use crate::daemon::shared::{Daemon, log_failure};
use crate::host::Point;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Marks a container stopped and notifies the plugins, once. Each call checks whether its pod stops with it, because an
/// earlier call may have been too early for that, or of a daemon that has exited since.
pub(crate) async fn notify_once(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    // Marked before plugins are notified, so that a concurrent task does not notify them again.
    if state::mark_stopped(daemon, key).await {
        let _report = daemon.lanes.begin_report(key);
        own_process::forget(&daemon.records, &record);
        daemon.process.release_monitor();
        log_failure("notifying plugins of an exit", daemon.host.point(Point::DaemonStopped));
        if !record.is_sandbox {
            notify::notify(daemon, Event::StopContainer, key).await;
            daemon.notify_crio_watch(PodNews::MemberEnded(record.pod.clone()));
        }
    }
    stopping::stop_if_ended(daemon, &record);
}
