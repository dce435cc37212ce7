// SPDX-License-Identifier: Apache-2.0
//! Determines whether a container is paused. `pause` and `resume` bypass the daemon, so the daemon reads the freezer's
//! state when it describes a container: for Synchronize, an update, or an operator. This module freezes nothing.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cgroup::Mounts;
use crate::chain::Notification;
use crate::daemon::shared::{Daemon, events};
use crate::plugin::Event;
use crate::plugin::api::ContainerState;
use crate::state::{Container, ContainerKey, Lifecycle};

/// Interval at which the waiting thread checks `hold`.
const HELD: Duration = Duration::from_millis(1);

/// Returns the process whose cgroup shows whether the container is paused; `None` unless it is running.
fn running(record: &Container) -> Option<u32> {
    record.process.init_pid.filter(|_| record.state == Lifecycle::Running)
}

impl Daemon {
    /// Whether the processes of the container are frozen.
    pub(crate) fn is_paused(&self, record: &Container) -> bool {
        let Some(pid) = running(record) else { return false };
        let mounts = self.caches.cgroup_mounts(&self.host);
        mounts.is_ok_and(|mounts| mounts.is_frozen(&self.host, pid))
    }

    /// Returns the indexes of the paused containers in this list; none if that takes too long. A thread reads the
    /// thousands of files; it waits while `hold` is set, at most until `until`, and ends with its caller.
    pub(crate) async fn paused_among(
        &self,
        records: &[Rc<Container>],
        hold: &Arc<AtomicBool>,
        until: Instant,
    ) -> Vec<usize> {
        let Ok(mounts) = self.caches.cgroup_mounts(&self.host) else { return Vec::new() };
        let (host, mounts, hold) = (self.host.clone(), Mounts::clone(&mounts), Arc::clone(hold));
        let running: Vec<Option<u32>> = records.iter().map(|record| running(record)).collect();
        let look = move || {
            let mut paused = Vec::new();
            for (at, pid) in running.into_iter().enumerate() {
                while hold.load(Ordering::Relaxed) && Instant::now() < until {
                    std::thread::sleep(HELD);
                }
                if Arc::strong_count(&hold) == 1 {
                    break;
                }
                paused.extend(pid.filter(|pid| mounts.is_frozen(&host, *pid)).map(|_| at));
            }
            Ok(paused)
        };
        self.off_loop("/sys/fs/cgroup", look).await.unwrap_or_default()
    }

    /// Returns an event with the container in its current state; events of updates show whether it is paused.
    pub(crate) fn notification(&self, event: Event, key: &ContainerKey) -> Option<Notification> {
        let mut notification = events::of_container(&self.records.read(), event, key)?;
        // Other events are about containers that are starting or have ended.
        let may_be_paused = matches!(event, Event::UpdateContainer | Event::PostUpdateContainer);
        if may_be_paused
            && let Some(message) = &mut notification.container
            && self.container(key).is_some_and(|record| self.is_paused(&record))
        {
            Arc::make_mut(message).state = ContainerState::CONTAINER_PAUSED.into();
        }
        Some(notification)
    }

    /// Returns an event about a container for plugins only. If no plugin is subscribed to the event and
    /// nothing is recorded, the record is not decoded: the registry needs only the IDs of container and pod.
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
