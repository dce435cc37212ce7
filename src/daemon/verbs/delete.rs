// SPDX-License-Identifier: Apache-2.0
//! Decides `delete`, which never fails because of the daemon and never waits long (D4). containerd
//! deletes twice, and sometimes deletes a container that was never created; events are sent once.
//! If an infrastructure container is deleted, its pod is stopped first.

use std::rc::Rc;
use std::time::Duration;

use crate::daemon::bundle;
use crate::daemon::lifecycle::{state, stop};
use crate::daemon::pods::stopping;
use crate::daemon::request::VerbRequest;
use crate::daemon::runtime::exit_status;
use crate::daemon::shared::Daemon;
use crate::error::Result;
use crate::link::Proceed;
use crate::state::{Container, Lifecycle};

/// Longest wait of a `delete` for its container's turn, and then for plugins; the remaining ones are notified later.
pub(crate) const DELETE_WAIT: Duration = Duration::from_secs(1);

/// Decides a `delete`: if the container has exited, plugins are notified of that first.
pub(crate) async fn delete(daemon: &Rc<Daemon>, call: &VerbRequest) -> Result<Proceed> {
    let Some(record) = daemon.container(&call.key) else { return Ok(Proceed::default()) };
    // If this daemon dies before the runtime has deleted the container, the next daemon finds the
    // call on record.
    let pid = call.question().pid;
    daemon.change(&call.key, |record| record.pending.deleting = Some(pid));
    let has_exited = exit_status::has_exited(&daemon.host, &record);
    if has_exited {
        note_monitor(daemon, &record).await;
        // Once the runtime has deleted the container, the engine removes its files with the exit code.
        state::learn_exit_status(daemon, &call.key).await;
    }
    // Without --force the runtime refuses to delete a running container, but not a created one.
    let is_created = record.state == Lifecycle::Created;
    let is_deleted = has_exited || is_created || call.command_line.force;
    if is_deleted {
        // Done before the runtime's `delete`: afterwards the engine removes the bundle's folder,
        // which could fail if a file were created in the folder.
        bundle::restore(daemon, &record).await;
    }
    let ends_pod = record.is_sandbox && is_deleted;
    if has_exited || ends_pod {
        let (daemon, key) = (Rc::clone(daemon), call.key.clone());
        let active = daemon.process.activity.begin();
        let stopped = tokio::task::spawn_local(async move {
            if has_exited {
                stop::notify_once(&daemon, &key).await;
            }
            if ends_pod {
                // After the runtime's `delete` the container no longer exists (D37).
                stopping::stop_with_sandbox(&daemon, &record).await;
            }
            drop(active);
        });
        let _finishes_in_the_background = tokio::time::timeout(DELETE_WAIT, stopped).await;
    }
    Ok(Proceed::default())
}

/// Records whether the container's monitor writes exit codes, if its engine has a file for them.
async fn note_monitor(daemon: &Daemon, record: &Container) {
    if !exit_status::has_file(record) {
        return;
    }
    if let Ok(code) = daemon.written_exit_code(record).await {
        daemon.caches.exit_codes.note_monitor(record, code.is_some());
    }
}
