// SPDX-License-Identifier: Apache-2.0
//! The rollback of a creation: plugins that know the container are notified of its end, the bundle
//! is as the engine wrote it, the record is removed (but `explain` still shows it).

use std::rc::Rc;

use tracing::debug;

use crate::clock::now;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{notify, state, stop};
use crate::daemon::node::Node;
use crate::daemon::pods::life;
use crate::daemon::resources::updates;
use crate::error::Error;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Rolls back a creation that was refused.
pub(crate) async fn refused(node: &Rc<Node>, key: &ContainerKey, error: &Error) {
    node.change(key, |record| record.refuse(error.to_string(), now()));
    creation(node, key).await;
}

/// Rolls back a creation.
pub(crate) async fn creation(node: &Rc<Node>, key: &ContainerKey) {
    let Some(record) = node.container(key) else { return };
    debug!("the creation of {} is rolled back", key.id);
    bundle::restore(node, &record).await;
    updates::not_created(node, key);
    stop::stopped(node, key).await;
    if !record.is_sandbox {
        notify::notify(node, Event::RemoveContainer, key).await;
    }
    state::forget(node, key);
    life::end_if_empty(node, &record.pod).await;
    node.drop_idle_lanes(key, &record.pod);
}
