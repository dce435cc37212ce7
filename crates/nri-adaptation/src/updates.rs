// SPDX-License-Identifier: Apache-2.0
//! Updates of existing containers and evictions that plugins request.
//!
//! Updates of one container by several plugins become one, in order of first mention; the container of an
//! UpdateContainer request comes last. A conflicting update with `ignore_failure` is dropped silently; an
//! update of another container, or an eviction, that a rule does not permit is dropped and listed (D44).
//! Evictions are collected once per container. This module does not check whether a container exists, or
//! apply a value. Reference: `update` and `getContainerUpdate` of NRI's result collector.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use protobuf::MessageFull;

use crate::claims::{FieldClaims, MergeError, check, permit_by_rules};
use crate::owners::Owners;
use crate::rights::{Forbidden, Rights, RuleNote};
use crate::{bounds, resources, unknown};
use nri_api as api;

/// The updates of one request, while it passes through the plugins.
#[derive(Debug, Clone, Default)]
pub struct Updates {
    subject: UpdateSubject,
    pub(crate) owners: Owners,
    results: Vec<api::ContainerUpdate>,
    /// Index in `results` of a container's update.
    places: HashMap<String, usize>,
    /// The update of the subject of an UpdateContainer request, once a plugin changed it: only the
    /// plugins' values, without the request's.
    own: Option<api::ContainerUpdate>,
    evictions: Vec<api::ContainerEviction>,
    evicted_by: BTreeMap<String, Vec<String>>,
    pub(crate) unknown: Vec<(String, String)>,
    pub(crate) noted: BTreeSet<RuleNote>,
    dropped: Vec<DroppedRequest>,
}

/// An update of another container, or an eviction of any, that a rule does not permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedRequest {
    /// The rule, and what it forbids.
    pub note: RuleNote,
    /// Whether the request is an eviction.
    pub is_eviction: bool,
    /// Whether the update has `ignore_failure`.
    pub ignores_failure: bool,
}

/// The container that the engine's request is about.
#[derive(Debug, Clone, Default)]
enum UpdateSubject {
    /// A container that does not exist yet: it is adjusted, not updated.
    Created(String),
    /// A container whose update was requested, with the values to set so far.
    Updated(Box<api::UpdateContainerRequest>),
    /// No container in particular: any may be updated.
    #[default]
    Any,
}

/// The result of all plugins' replies.
#[derive(Debug, Clone)]
pub struct Updated {
    /// One for each container. If any plugin changed the request's container, its update is last, and
    /// includes the values of the request.
    pub updates: Vec<api::ContainerUpdate>,
    /// The resources that plugins set in the request's container, without the request's.
    pub answered: Option<api::LinuxResources>,
    /// One for each container, with the first reason.
    pub evictions: Vec<api::ContainerEviction>,
    /// For each container, the plugins that requested its eviction, in order.
    pub evicted_by: BTreeMap<String, Vec<String>>,
    /// The owners of fields, of all containers.
    pub owners: Owners,
    /// The plugin and the path of each field that the schema does not know; such fields are not
    /// applied.
    pub unknown: Vec<(String, String)>,
    /// The changes that a rule in audit mode would refuse.
    pub noted: Vec<RuleNote>,
    /// The updates and evictions that a rule dropped.
    pub dropped: Vec<DroppedRequest>,
}

impl Updates {
    /// Begins the updates of a CreateContainer request.
    pub(crate) fn for_create(container: impl Into<String>) -> Self {
        Self::new(UpdateSubject::Created(container.into()))
    }

    /// Begins the updates of an UpdateContainer request. Parts missing in the request are added as
    /// empty ones, as plugins expect.
    pub fn for_update(mut request: api::UpdateContainerRequest) -> Self {
        let resources = request.linux_resources.mut_or_insert_default();
        resources.memory.mut_or_insert_default();
        resources.cpu.mut_or_insert_default();
        Self::new(UpdateSubject::Updated(Box::new(request)))
    }

    /// Begins updates that may be of any container, such as those of a StopContainer request.
    pub fn for_stop() -> Self {
        Self::new(UpdateSubject::Any)
    }

    /// Returns the request for the next plugin: the engine's, with the changes of earlier plugins.
    /// `None` if the engine's request is not an update.
    pub fn request(&self) -> Option<&api::UpdateContainerRequest> {
        match &self.subject {
            UpdateSubject::Updated(request) => Some(request),
            UpdateSubject::Created(_) | UpdateSubject::Any => None,
        }
    }

    /// Merges one plugin's reply to UpdateContainer. If that fails, nothing is changed.
    pub fn answer_update(
        &mut self,
        plugin: &str,
        rights: &Rights,
        response: api::UpdateContainerResponse,
    ) -> Result<(), MergeError> {
        let places = examine(plugin, &response)?;
        let api::UpdateContainerResponse { update, evict, special_fields: _ } = response;
        self.answer(plugin, rights, &update, &evict)?;
        self.note_unknown(plugin, places);
        Ok(())
    }

    /// Merges one plugin's reply to StopContainer. If that fails, nothing is changed.
    pub fn answer_stop(
        &mut self,
        plugin: &str,
        rights: &Rights,
        response: api::StopContainerResponse,
    ) -> Result<(), MergeError> {
        let places = examine(plugin, &response)?;
        let api::StopContainerResponse { update, special_fields: _ } = response;
        self.answer(plugin, rights, &update, &[])?;
        self.note_unknown(plugin, places);
        Ok(())
    }

    /// Merges one plugin's updates and evictions. If that fails, nothing is changed.
    pub fn answer(
        &mut self,
        plugin: &str,
        rights: &Rights,
        updates: &[api::ContainerUpdate],
        evictions: &[api::ContainerEviction],
    ) -> Result<(), MergeError> {
        if updates.is_empty() && evictions.is_empty() {
            return Ok(());
        }
        let mut next = self.clone();
        next.merge(plugin, rights, updates, evictions)?;
        *self = next;
        Ok(())
    }

    /// Like [`Updates::answer`], for a caller that drops everything after a failure.
    pub(crate) fn merge(
        &mut self,
        plugin: &str,
        rights: &Rights,
        updates: &[api::ContainerUpdate],
        evictions: &[api::ContainerEviction],
    ) -> Result<(), MergeError> {
        for update in updates {
            self.update(plugin, rights, update)?;
        }
        for eviction in evictions {
            self.evict(plugin, rights, eviction)?;
        }
        Ok(())
    }

    pub(crate) fn note_unknown(&mut self, plugin: &str, places: Vec<String>) {
        self.unknown.extend(places.into_iter().map(|place| (plugin.to_owned(), place)));
    }

    /// Checks the combined result again: a plugin must not own a field that it may not set.
    pub fn check_owned(&self, plugin: &str, rights: &Rights) -> Result<(), MergeError> {
        let mut known = BTreeSet::new();
        for (container, field) in self.owners.held_by(plugin) {
            check(rights, plugin, container, field, &mut known)?;
        }
        Ok(())
    }

    /// Returns the owners of fields so far.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Returns the updates of other containers for validators, one each.
    pub(crate) fn pending(&self) -> Vec<api::ContainerUpdate> {
        self.results.clone()
    }

    /// Returns the result of all answers.
    pub fn finish(self) -> Updated {
        let Self { subject, owners, results, places: _, own, evictions, .. } = self;
        let (evicted_by, unknown, dropped) = (self.evicted_by, self.unknown, self.dropped);
        let noted = self.noted.into_iter().collect();
        let (mut updates, mut answered) = (results, None);
        if let (Some(mut own), UpdateSubject::Updated(request)) = (own, subject) {
            let resources = &mut own.linux.mut_or_insert_default().resources;
            answered = std::mem::replace(resources, request.linux_resources).into_option();
            updates.push(own);
        }
        for update in &mut updates {
            if let Some(linux) = update.linux.as_mut() {
                resources::strip(&mut linux.resources);
            }
            resources::strip_empty(&mut update.linux);
        }
        Updated { updates, answered, evictions, evicted_by, owners, unknown, noted, dropped }
    }

    fn update(
        &mut self,
        plugin: &str,
        rights: &Rights,
        update: &api::ContainerUpdate,
    ) -> Result<(), MergeError> {
        let api::ContainerUpdate { container_id, linux, ignore_failure, special_fields: _ } =
            update;
        if matches!(&self.subject, UpdateSubject::Created(id) if id == container_id) {
            let (plugin, container) = (plugin.to_owned(), container_id.clone());
            return Err(MergeError::UpdateOfSubject { plugin, container });
        }
        // Koordinator's plugin omits the ID of the request's container in its reply.
        let asked = match &self.subject {
            UpdateSubject::Updated(request) if container_id.is_empty() => {
                Some(request.container.id.clone())
            }
            UpdateSubject::Updated(_) | UpdateSubject::Created(_) | UpdateSubject::Any => None,
        };
        let container_id = asked.as_ref().unwrap_or(container_id);
        if container_id.is_empty() {
            // Go marshals a nil update to an empty one.
            return Ok(());
        }
        if !self.is_subject(container_id)
            && let Some(note) = hidden_from(rights, plugin, container_id)
        {
            self.drop_request(note, false, *ignore_failure);
            return Ok(());
        }
        let wanted = linux.as_ref().and_then(|linux| {
            let api::LinuxContainerUpdate { resources, special_fields: _ } = linux;
            resources.as_ref()
        });
        if let Some(wanted) = wanted
            && !self.claim(plugin, rights, container_id, wanted, *ignore_failure)?
        {
            return Ok(());
        }
        match &mut self.subject {
            UpdateSubject::Updated(request) if request.container.id == *container_id => {
                let Some(wanted) = wanted else { return Ok(()) };
                let pending = request.linux_resources.mut_or_insert_default();
                resources::lay_over(pending, wanted);
                let own = self.own.get_or_insert_with(|| entry(container_id, *ignore_failure));
                own.ignore_failure &= ignore_failure;
                let linux = own.linux.mut_or_insert_default();
                resources::lay_over(linux.resources.mut_or_insert_default(), wanted);
            }
            UpdateSubject::Updated(_) | UpdateSubject::Created(_) | UpdateSubject::Any => {
                let place = *self.places.entry(container_id.clone()).or_insert_with(|| {
                    self.results.push(entry(container_id, *ignore_failure));
                    self.results.len() - 1
                });
                let Some(result) = self.results.get_mut(place) else { return Ok(()) };
                result.ignore_failure &= ignore_failure;
                if let Some(wanted) = wanted {
                    let linux = result.linux.mut_or_insert_default();
                    resources::lay_over(linux.resources.mut_or_insert_default(), wanted);
                }
            }
        }
        Ok(())
    }

    /// Claims everything that an update sets; returns false, without claims, if the update is to be dropped.
    ///
    /// NRI: the reference keeps the claims before one that failed (BUG-14), and reads the pids limit from the
    /// wrong message (BUG-10).
    fn claim(
        &mut self,
        plugin: &str,
        rights: &Rights,
        container: &str,
        wanted: &api::LinuxResources,
        ignore_failure: bool,
    ) -> Result<bool, MergeError> {
        self.owners.begin();
        let (owners, noted) = (&mut self.owners, &mut self.noted);
        let mut claims = FieldClaims { plugin, rights, container, owners, noted };
        let claimed = resources::claim(wanted, &mut claims);
        match claimed {
            Ok(()) => {
                self.owners.commit();
                Ok(true)
            }
            // Only a conflict is a failure that a plugin may ignore. What the operator forbids is
            // always reported.
            Err(MergeError::Conflict(_)) if ignore_failure => {
                self.owners.roll_back(container);
                Ok(false)
            }
            // Drops only the update of the other container; the request continues.
            Err(MergeError::AgainstRule(note)) if !self.is_subject(container) => {
                self.owners.roll_back(container);
                self.drop_request(note, false, ignore_failure);
                Ok(false)
            }
            Err(error) => {
                self.owners.commit();
                Err(error)
            }
        }
    }

    /// Merges one eviction. NRI: the reference drops plugins' evictions (BUG-12).
    fn evict(
        &mut self,
        plugin: &str,
        rights: &Rights,
        wanted: &api::ContainerEviction,
    ) -> Result<(), MergeError> {
        let api::ContainerEviction { container_id, reason: _, special_fields: _ } = wanted;
        if matches!(&self.subject, UpdateSubject::Created(id) if id == container_id) {
            let (plugin, container) = (plugin.to_owned(), container_id.clone());
            return Err(MergeError::EvictionOfSubject { plugin, container });
        }
        if container_id.is_empty() {
            return Ok(());
        }
        if let Some(note) = hidden_from(rights, plugin, container_id) {
            self.drop_request(note, true, false);
            return Ok(());
        }
        let what = Forbidden::Eviction;
        match permit_by_rules(rights, plugin, container_id, what, &mut self.noted) {
            Err(MergeError::AgainstRule(note)) => {
                self.drop_request(note, true, false);
                return Ok(());
            }
            permitted => permitted?,
        }
        if !self.evicted_by.contains_key(container_id) {
            self.evictions.push(wanted.clone());
        }
        let by = self.evicted_by.entry(container_id.clone()).or_default();
        if !by.iter().any(|known| known == plugin) {
            by.push(plugin.to_owned());
        }
        Ok(())
    }

    fn is_subject(&self, container: &str) -> bool {
        match &self.subject {
            UpdateSubject::Created(id) => id == container,
            UpdateSubject::Updated(request) => request.container.id == container,
            UpdateSubject::Any => false,
        }
    }

    fn drop_request(&mut self, note: RuleNote, is_eviction: bool, ignores_failure: bool) {
        self.dropped.push(DroppedRequest { note, is_eviction, ignores_failure });
    }

    fn new(subject: UpdateSubject) -> Self {
        Self { subject, ..Self::default() }
    }
}

/// Refuses an answer with too many entries; returns the places of fields that the schema does not
/// know.
pub(crate) fn examine<M: MessageFull>(plugin: &str, answer: &M) -> Result<Vec<String>, MergeError> {
    bounds::check(answer)
        .map_err(|what| MergeError::TooMany { plugin: plugin.to_owned(), what })?;
    Ok(unknown::fields(answer))
}

/// Returns the rule that hides the container from the plugin.
fn hidden_from(rights: &Rights, plugin: &str, container: &str) -> Option<RuleNote> {
    let rule = rights.hidden_by(container)?.rule.clone();
    let (plugin, container) = (plugin.to_owned(), container.to_owned());
    Some(RuleNote { plugin, container, what: Forbidden::Knowledge, rule })
}

fn entry(container: &str, ignore_failure: bool) -> api::ContainerUpdate {
    api::ContainerUpdate {
        container_id: container.to_owned(),
        ignore_failure,
        ..Default::default()
    }
}
