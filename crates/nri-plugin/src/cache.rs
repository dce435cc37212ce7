// SPDX-License-Identifier: Apache-2.0
//! A cache of pods and containers, each from the latest message about it. Synchronize fills the
//! cache, and each event but CreateContainer and ValidateContainerAdjustment updates it before the
//! event's handler is called. It never calls the runtime.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nri_api as api;
use nri_api::event::Event;

/// The events that the cache needs.
pub(crate) const EVENTS: &[Event] = &[
    Event::RunPodSandbox,
    Event::PostUpdatePodSandbox,
    Event::RemovePodSandbox,
    Event::PostCreateContainer,
    Event::PostStartContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
];

/// The pods and containers of the node. A plugin that has one returns it from
/// [`Handler::cache`](crate::Handler::cache).
///
/// A container enters the cache after its creation, not at CreateContainer.
#[derive(Debug, Default)]
pub struct Cache(RwLock<Objects>);

#[derive(Debug, Default)]
struct Objects {
    pods: HashMap<String, api::PodSandbox>,
    containers: HashMap<String, api::Container>,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, Objects> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pod with this ID.
    #[must_use]
    pub fn pod(&self, id: &str) -> Option<api::PodSandbox> {
        self.read().pods.get(id).cloned()
    }

    /// Returns the container with this ID.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<api::Container> {
        self.read().containers.get(id).cloned()
    }

    /// Returns the pod of a container.
    #[must_use]
    pub fn pod_of(&self, container: &api::Container) -> Option<api::PodSandbox> {
        self.pod(&container.pod_sandbox_id)
    }

    /// Returns all pods, in no particular order.
    #[must_use]
    pub fn pods(&self) -> Vec<api::PodSandbox> {
        self.read().pods.values().cloned().collect()
    }

    /// Returns all containers, in no particular order.
    #[must_use]
    pub fn containers(&self) -> Vec<api::Container> {
        self.read().containers.values().cloned().collect()
    }

    /// Returns the containers of the pod with this ID, in no particular order.
    #[must_use]
    pub fn containers_of(&self, pod: &str) -> Vec<api::Container> {
        let objects = self.read();
        let members = objects.containers.values().filter(|one| one.pod_sandbox_id == pod);
        members.cloned().collect()
    }

    /// Replaces everything, because objects may have been removed while the plugin was
    /// disconnected.
    pub(crate) fn reset(&self, pods: &[api::PodSandbox], containers: &[api::Container]) {
        let pods = pods.iter().map(|pod| (pod.id.clone(), pod.clone()));
        let containers = containers.iter().map(|one| (one.id.clone(), one.clone()));
        *self.write() = Objects { pods: pods.collect(), containers: containers.collect() };
    }

    /// Updates the cache from an event.
    pub(crate) fn follow(
        &self,
        event: Event,
        pod: Option<&api::PodSandbox>,
        container: Option<&api::Container>,
    ) {
        let mut objects = self.write();
        match event {
            Event::RemovePodSandbox => {
                if let Some(pod) = pod {
                    objects.pods.remove(&pod.id);
                    objects.containers.retain(|_, container| container.pod_sandbox_id != pod.id);
                }
                return;
            }
            Event::RemoveContainer => {
                if let Some(container) = container {
                    objects.containers.remove(&container.id);
                }
                return;
            }
            // The container in these events is a proposal, and its creation may still fail.
            Event::CreateContainer | Event::ValidateContainerAdjustment => return,
            Event::RunPodSandbox
            | Event::StopPodSandbox
            | Event::UpdatePodSandbox
            | Event::PostUpdatePodSandbox
            | Event::PostCreateContainer
            | Event::StartContainer
            | Event::PostStartContainer
            | Event::UpdateContainer
            | Event::PostUpdateContainer
            | Event::StopContainer => {}
        }
        if let Some(pod) = pod {
            objects.pods.insert(pod.id.clone(), pod.clone());
        }
        if let Some(container) = container {
            objects.containers.insert(container.id.clone(), container.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(id: &str) -> api::PodSandbox {
        api::PodSandbox { id: id.to_owned(), ..Default::default() }
    }

    fn container(id: &str, pod: &str) -> api::Container {
        let pod_sandbox_id = pod.to_owned();
        api::Container { id: id.to_owned(), pod_sandbox_id, ..Default::default() }
    }

    fn ids(containers: Vec<api::Container>) -> Vec<String> {
        let mut ids: Vec<_> = containers.into_iter().map(|container| container.id).collect();
        ids.sort();
        ids
    }

    #[test]
    fn a_container_is_cached_from_creation_to_removal() {
        let cache = Cache::new();
        cache.follow(Event::RunPodSandbox, Some(&pod("p")), None);
        let one = container("c", "p");
        cache.follow(Event::CreateContainer, Some(&pod("p")), Some(&one));
        assert!(cache.container("c").is_none(), "its creation may fail");
        cache.follow(Event::PostCreateContainer, Some(&pod("p")), Some(&one));
        assert_eq!(cache.pod_of(&cache.container("c").unwrap()).unwrap().id, "p");
        let stopped = api::Container { pid: 7, ..one.clone() };
        cache.follow(Event::StopContainer, Some(&pod("p")), Some(&stopped));
        assert_eq!(cache.container("c").unwrap().pid, 7);
        cache.follow(Event::RemoveContainer, Some(&pod("p")), Some(&one));
        assert!(cache.containers().is_empty() && cache.pods().len() == 1);
    }

    #[test]
    fn a_removed_pod_removes_its_containers() {
        let cache = Cache::new();
        cache.reset(&[pod("p"), pod("q")], &[container("c", "p"), container("d", "q")]);
        cache.follow(Event::RemovePodSandbox, Some(&pod("p")), None);
        assert_eq!(ids(cache.containers()), ["d"]);
        assert_eq!(ids(cache.containers_of("q")), ["d"]);
        assert!(cache.pod("p").is_none());
    }

    #[test]
    fn synchronize_replaces_everything() {
        let cache = Cache::new();
        cache.reset(&[pod("p")], &[container("c", "p")]);
        cache.reset(&[pod("q")], &[]);
        assert!(cache.pod("p").is_none() && cache.containers().is_empty());
        cache.follow(Event::RemoveContainer, None, None);
        assert_eq!(cache.pods().len(), 1);
    }
}
