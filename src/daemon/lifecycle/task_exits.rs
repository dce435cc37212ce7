// SPDX-License-Identifier: Apache-2.0
//! Gets exit codes from containerd's events, for kernels that report none (before 6.15). The daemon subscribes once to
//! each containerd, while any container on record uses containerd's shim, and again after containerd restarts. Plugins
//! wait no longer for these events than for other exit codes.

use std::rc::Rc;

use tracing::debug;

use crate::daemon::shared::{Daemon, Records};
use crate::engine::{CallerInfo, containerd_socket};
use crate::host::Host;
use crate::presence::{Backoff, IfThere};
use crate::procfs;
use crate::sources::follow_task_exits;
use crate::state::Container;

/// Follows the exits that this container's containerd reports, unless another task does.
pub(crate) fn follow(daemon: &Rc<Daemon>, record: &Container) {
    let is_containerds = record.engine.behaviour().has_shim;
    if !is_containerds || record.is_sandbox {
        return;
    }
    let Some(socket) = socket(&daemon.host, record) else { return };
    let codes = &daemon.caches.exit_codes;
    if !codes.begin_source(&socket) {
        return;
    }
    let daemon = Rc::clone(daemon);
    tokio::task::spawn_local(async move {
        let mut backoff = Backoff::default();
        loop {
            let path = daemon.host.path(&socket);
            let codes = &daemon.caches.exit_codes;
            let ended = follow_task_exits(&path, |exit| {
                backoff = Backoff::default();
                codes.note_exit(exit);
            });
            if let Err(error) = ended.await {
                debug!("{socket} reports no exits: {error}");
            }
            tokio::time::sleep(backoff.next()).await;
            if !has_any(&daemon.records) {
                break;
            }
        }
        daemon.caches.exit_codes.end_source(&socket);
    });
}

/// Whether the engine of any container on record uses containerd's shim.
fn has_any(records: &Records) -> bool {
    let store = records.read();
    let mut all = store.containers();
    all.any(|record| record.engine.behaviour().has_shim)
}

/// Returns the socket of the containerd whose shim is the parent of this container's process.
fn socket(host: &Host, record: &Container) -> Option<String> {
    let parent = procfs::parent_of(host, record.process.init_pid?).or_absent().flatten();
    let parent = parent.filter(|pid| *pid > 1 && procfs::is_of_this_host(host, *pid));
    let words = parent.and_then(|pid| procfs::command_line(host, pid).or_absent());
    let words = words.unwrap_or_default();
    let variables = record.call.variables.iter().map(|(key, value)| (key.clone(), value.into()));
    let variables: Vec<_> = variables.collect();
    containerd_socket(&CallerInfo {
        id: &record.key.id,
        bundle: &record.call.bundle,
        parent: &words,
        grandparent: &[],
        variables: &variables,
    })
}
