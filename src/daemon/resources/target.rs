// SPDX-License-Identifier: Apache-2.0
//! Finds the container that a plugin names by its ID.

use crate::daemon::resources::error::{Result, UpdateError};
use crate::daemon::shared::{Daemon, Records, events};
use crate::error::quoted;
use crate::rules::{PodsOfContainers, RuledPod};
use crate::state::{Container, ContainerKey, Lifecycle};

/// Returns the container that a plugin means by an ID: the subject of its request, else the living
/// container with that ID, else the youngest. Fails if there is none, or several are alive: only the
/// runtime root distinguishes these, and the protocol has no field for it.
pub(crate) fn find(
    records: &Records,
    id: &str,
    subject: Option<&ContainerKey>,
) -> Result<ContainerKey> {
    if let Some(subject) = subject.filter(|subject| subject.id == id) {
        return Ok(subject.clone());
    }
    let store = records.read();
    let has_ended =
        |known: &Container| matches!(known.state, Lifecycle::Stopped | Lifecycle::Removed);
    let roots = store.of_id(id).filter(|known| !has_ended(known)).map(|known| &*known.key.root);
    let roots: Vec<&str> = roots.collect();
    if roots.len() > 1 {
        let why = format!(
            "several containers have this ID, in the runtime roots {}",
            roots.join(" and ")
        );
        return Err(UpdateError::refused(quoted(&why)));
    }
    let best = store.of_id(id).max_by_key(|known| (!has_ended(known), known.incarnation));
    best.map(|known| known.key.clone()).ok_or(UpdateError::Unknown)
}

/// Finds the pods of containers that plugins name by ID.
pub(crate) struct KnownPods<'a> {
    pub(crate) daemon: &'a Daemon,
    /// The container that the request is about.
    pub(crate) subject: Option<&'a ContainerKey>,
}

impl PodsOfContainers for KnownPods<'_> {
    fn pod_of(&self, container: &str) -> Option<RuledPod> {
        let key = find(&self.daemon.records, container, self.subject).ok()?;
        let record = self.daemon.container(&key)?;
        Some(events::ruled_pod_of(&self.daemon.records.read(), &record))
    }
}
