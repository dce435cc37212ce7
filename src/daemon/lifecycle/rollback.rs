// SPDX-License-Identifier: Apache-2.0
//! Rolls back a creation: plugins that know the container are notified of its end, the bundle is
//! restored, the record is removed (`explain` still shows it).

use std::rc::Rc;

use tracing::debug;

use crate::clock::now;
use crate::daemon::bundle;
use crate::daemon::lifecycle::{notify, state, stop};
use crate::daemon::pods::life;
use crate::daemon::resources::{classes, updates};
use crate::daemon::shared::Daemon;
use crate::error::Error;
use crate::plugin::Event;
use crate::state::ContainerKey;

/// Rolls back a creation that was refused.
pub(crate) async fn refuse(daemon: &Rc<Daemon>, key: &ContainerKey, error: &Error) {
    daemon.change(key, |record| record.refuse(error.to_string(), now()));
    roll_back(daemon, key).await;
}

pub(crate) async fn roll_back(daemon: &Rc<Daemon>, key: &ContainerKey) {
    let Some(record) = daemon.container(key) else { return };
    debug!("the creation of {} is rolled back", key.id);
    bundle::restore(daemon, &record).await;
    classes::remove_made(daemon, &record);
    updates::fail_deferred(daemon, key);
    stop::notify_once(daemon, key).await;
    if !record.is_sandbox {
        notify::notify(daemon, Event::RemoveContainer, key).await;
    }
    state::forget(daemon, key);
    life::end_if_empty(daemon, &record.pod).await;
    daemon.drop_idle_lanes(key, &record.pod);
}
