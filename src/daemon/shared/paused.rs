// SPDX-License-Identifier: Apache-2.0
//! Whether a container is paused. `pause` and `resume` bypass the daemon, so the daemon reads the freezer's
//! state when it describes a container: for Synchronize, an update, or an operator. It freezes nothing.

use std::collections::BTreeMap;

use crate::cgroup::Cgroups;
use crate::chain::Notification;
use crate::daemon::shared::{Daemon, events};
use crate::plugin::Event;
use crate::plugin::api::ContainerState;
use crate::state::{Container, ContainerKey, Lifecycle};

impl Daemon {
    /// Whether the processes of the container are frozen.
    pub(crate) fn is_paused(&self, record: &Container) -> bool {
        let Some(pid) = record.init_pid.filter(|_| record.state == Lifecycle::Running) else {
            return false;
        };
        // The cgroup of the process decides, which is at or below the container's: a freezer above
        // it freezes it too.
        let found = self.caches.cgroup_mounts(&self.host);
        let found =
            found.and_then(|mounts| Cgroups::find(&self.host, &mounts, pid, &BTreeMap::new()));
        found.is_ok_and(|cgroups| cgroups.is_frozen())
    }

    /// An event about a container in its current state.
    pub(crate) fn notification(&self, event: Event, key: &ContainerKey) -> Option<Notification> {
        let mut notification = events::of_container(&self.records.read(), event, key)?;
        // Other events are about containers that are starting or have ended.
        let may_be_paused = matches!(event, Event::UpdateContainer | Event::PostUpdateContainer);
        if may_be_paused
            && let Some(message) = &mut notification.container
            && self.container(key).is_some_and(|record| self.is_paused(&record))
        {
            message.state = ContainerState::CONTAINER_PAUSED.into();
        }
        Some(notification)
    }

    /// An event about a container for plugins only. If no plugin is subscribed to it, it has only
    /// the names that the registry needs to track known subjects, and the record is not decoded.
    pub(crate) fn notification_for_plugins(
        &self,
        event: Event,
        key: &ContainerKey,
    ) -> Option<Notification> {
        match self.registry.has_readers(event) {
            true => self.notification(event, key),
            false => events::only_named(&self.records.read(), event, key),
        }
    }
}
