// SPDX-License-Identifier: Apache-2.0
//! The runtime has deleted a container: plugins receive the StopContainer and RemoveContainer that
//! are still due, and the pod ends with its last container. Where the engine keeps the container
//! (`until_removed.rs`), RemoveContainer waits until it is removed there.

use std::rc::Rc;

use crate::daemon::bundle;
use crate::daemon::lifecycle::{carry_over, notify, state, stop, until_removed};
use crate::daemon::node::Node;
use crate::daemon::pods::{life, stopping};
use crate::daemon::runtime::state_dir;
use crate::error::Result;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// The container is removed.
pub(crate) async fn removed(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    stop::stopped(node, key).await;
    if !record.is_sandbox {
        state::learn_exit_status(node, key);
        notify::notify(node, Event::RemoveContainer, key).await;
    }
    bundle::restore(node, &record).await;
    carry_over::keep_values(node, &record);
    state::forget(node, key);
    life::end_if_empty(node, &record.pod).await;
    node.drop_idle_lanes(key, &record.pod);
}

/// The runtime no longer knows the container. It is removed, or stays until its engine removes it.
pub(crate) async fn deleted(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    let is_kept = until_removed::is_kept(node, &record);
    if matches!(is_kept, Ok(false)) {
        return removed(node, key).await;
    }
    if record.is_deleted {
        // The last daemon may have died before it stopped the pod.
        return stopping::container_ended(node, &record);
    }
    stop::stopped(node, key).await;
    if !record.is_sandbox {
        state::learn_exit_status(node, key);
    }
    bundle::restore(node, &record).await;
    state::mark_deleted(node, key);
    until_removed::bound(node);
    match is_kept.and_then(|_kept| until_removed::is_kept(node, &record)) {
        Ok(true) => {}
        Ok(false) => removed(node, key).await, // Its folder went before the record said so.
        Err(_unknown) => until_removed::look_again(node, &record),
    }
}

/// After a `delete`: the container was removed if the runtime no longer knows it.
///
/// # Errors
/// Fails when that cannot be known.
pub(crate) async fn settle(node: &Rc<Node>, key: &ContainerKey) -> Result<()> {
    if !state_dir::exists(&node.host, key)? {
        deleted(node, key).await;
    } else if node.container(key).is_some_and(|record| record.deleting.is_some()) {
        node.change(key, |record| record.deleting = None);
    }
    Ok(())
}
