// SPDX-License-Identifier: Apache-2.0
//! Handles a container that the runtime has deleted: plugins receive any outstanding StopContainer
//! and RemoveContainer, and the pod ends with its last container. If the engine keeps the container
//! (`until_removed.rs`), RemoveContainer waits until the engine removes it or keeps too many.

use std::rc::Rc;

use crate::daemon::bundle;
use crate::daemon::lifecycle::{carry_over, notify, state, stop, until_removed};
use crate::daemon::pods::{life, stopping};
use crate::daemon::runtime::state_dir;
use crate::daemon::shared::Daemon;
use crate::error::Result;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Removes the container's record, after the events that plugins have not received yet.
pub(crate) async fn remove(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    stop::notify_once(daemon, key).await;
    if !record.is_sandbox {
        state::learn_exit_status(daemon, key).await;
        notify::notify(daemon, Event::RemoveContainer, key).await;
    }
    bundle::restore(daemon, &record).await;
    carry_over::keep_values(&daemon.records, &record);
    state::forget(daemon, key);
    life::end_if_empty(daemon, &record.pod).await;
    daemon.drop_idle_lanes(key, &record.pod);
}

/// Removes a container that the runtime has deleted: now, or once its engine has removed it.
pub(crate) async fn handle_delete(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    let is_kept = until_removed::is_kept(daemon, &record).await;
    if matches!(is_kept, Ok(false)) {
        return remove(daemon, key).await;
    }
    if record.is_deleted {
        // The previous daemon may have died before it stopped the pod.
        return stopping::stop_if_ended(daemon, &record);
    }
    stop::notify_once(daemon, key).await;
    if !record.is_sandbox {
        state::learn_exit_status(daemon, key).await;
    }
    bundle::restore(daemon, &record).await;
    state::mark_deleted(daemon, key);
    until_removed::bound(daemon);
    let is_kept = match is_kept {
        Ok(_kept) => until_removed::is_kept(daemon, &record).await,
        unknown => unknown,
    };
    match is_kept {
        Ok(true) => {}
        Ok(false) => remove(daemon, key).await, // The engine removed the folder meanwhile.
        Err(_unknown) => until_removed::look_again(daemon, &record),
    }
}

/// Handles the container's removal after a `delete`, if the runtime no longer has the container.
///
/// # Errors
/// Fails when the runtime's state is unreadable.
pub(crate) async fn settle(daemon: &Rc<Daemon>, key: &ContainerKey) -> Result<()> {
    if !state_dir::exists(&daemon.host, key)? {
        handle_delete(daemon, key).await;
    } else if daemon.container(key).is_some_and(|record| record.pending.deleting.is_some()) {
        daemon.change(key, |record| record.pending.deleting = None);
    }
    Ok(())
}
