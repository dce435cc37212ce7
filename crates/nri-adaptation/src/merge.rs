// SPDX-License-Identifier: Apache-2.0
//! Merges the plugins' replies to one CreateContainer into one adjustment.
//!
//! The caller asks plugin after plugin with [`Creation::request`] and passes in each reply; every
//! plugin receives the earlier plugins' changes. A failing reply ends the creation. The result is
//! one adjustment to apply and a table of owners. Nothing is asked, applied or validated here.
//! Reference: the result collector of `pkg/adaptation` in NRI v0.12.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem;

use protobuf::MessageField;

use crate::adjust::AdjustmentMerger;
use crate::claims::FieldClaims;
use crate::claims::MergeError;
use crate::encoded::EncodedParts;
use crate::offers::{self, Offer, Slot, Yielded};
use crate::owners::Owners;
use crate::resources;
use crate::rights::{Rights, RuleNote};
use crate::updates::{DroppedRequest, Updated, Updates, examine};
use nri_api as api;

/// The state of one CreateContainer between two plugins.
#[derive(Debug, Clone)]
pub struct Creation {
    /// The container as the engine requested it, copied before the first reply or offer changes it.
    pristine: Option<Box<Pristine>>,
    /// The request for the next plugin: its container has the changes and offered values so far.
    request: api::CreateContainerRequest,
    encoded: EncodedParts,
    combined: api::ContainerAdjustment,
    /// The updates of other containers, and the owners of all fields, including the created container's.
    updates: Updates,
    offers: Vec<Offer>,
    /// The offered fields, each owned by the source of its offer.
    offered: Owners,
    /// The fields that the engine's container has, computed at the first offer.
    present: Option<HashSet<Slot>>,
    yielded: Vec<Yielded>,
}

/// A container as the engine requested it. Mounts are most of a container, and few plugins change them.
#[derive(Debug, Clone)]
struct Pristine {
    /// Everything but the mounts.
    others: api::Container,
    /// The mounts; `None` while no reply or offer has changed them.
    mounts: Option<Vec<api::Mount>>,
}

impl Pristine {
    /// Returns the kept container; copies what `adjust`, which is about to be merged into `container`, changes first.
    fn keep<'k>(
        kept: &'k mut Option<Box<Self>>,
        container: &mut api::Container,
        adjust: &api::ContainerAdjustment,
    ) -> &'k mut Self {
        let kept = kept.get_or_insert_with(|| {
            let mounts = mem::take(&mut container.mounts);
            let others = container.clone();
            container.mounts = mounts;
            Box::new(Self { others, mounts: None })
        });
        kept.keep_mounts(container, adjust);
        kept
    }

    fn keep_mounts(&mut self, container: &api::Container, adjust: &api::ContainerAdjustment) {
        if !adjust.mounts.is_empty() {
            self.mounts.get_or_insert_with(|| container.mounts.clone());
        }
    }

    /// Returns the whole container; `changed` has the changes so far.
    fn whole(&self, changed: &api::Container) -> api::Container {
        let mounts = self.mounts.as_ref().unwrap_or(&changed.mounts).clone();
        api::Container { mounts, ..self.others.clone() }
    }
}

/// The result of all plugins' replies.
#[derive(Debug, Clone)]
pub struct Merged {
    /// The adjustment to apply, with removal markers and without empty parts.
    pub adjust: api::ContainerAdjustment,
    /// The container with the changes of all plugins and offers.
    pub container: api::Container,
    /// The owners of fields, in this container and in updated ones.
    pub owners: Owners,
    /// The updates of other containers, one each.
    pub updates: Vec<api::ContainerUpdate>,
    /// The evictions of other containers, one each, with the first reason.
    pub evictions: Vec<api::ContainerEviction>,
    /// For each evicted container, the plugins that requested its eviction, in order.
    pub evicted_by: BTreeMap<String, Vec<String>>,
    /// The plugin and the path of each field that the schema does not know; such fields are not
    /// applied.
    pub unknown: Vec<(String, String)>,
    /// The changes that a rule in audit mode would refuse.
    pub noted: Vec<RuleNote>,
    /// The updates and evictions of other containers that a rule dropped.
    pub dropped: Vec<DroppedRequest>,
    /// The offered values that yielded.
    pub yielded: Vec<Yielded>,
}

impl Merged {
    /// Returns the plugin that set or removed a field of the created container; for hooks and
    /// device rules the plugins, separated by commas.
    pub fn plugin_behind(&self, field: &str) -> Option<String> {
        self.owners.plugin_of(&self.container.id, field)
    }

    /// Returns the updates and evictions of other containers that plugins requested.
    pub fn into_others(self) -> Updated {
        let Self { owners, updates, evictions, evicted_by, noted, dropped, .. } = self;
        let (answered, unknown) = (None, Vec::new());
        Updated { updates, answered, evictions, evicted_by, owners, unknown, noted, dropped }
    }
}

impl Creation {
    /// Starts with the container as the engine requested it, and adds the empty parts on which
    /// plugins rely.
    pub fn new(pod: api::PodSandbox, mut container: api::Container) -> Self {
        add_empty_parts(&mut container);
        let updates = Updates::for_create(container.id.clone());
        let request = api::CreateContainerRequest {
            pod: MessageField::some(pod),
            container: MessageField::some(container),
            ..Default::default()
        };
        Self {
            pristine: None,
            request,
            encoded: EncodedParts::default(),
            combined: blank(),
            updates,
            offers: Vec::new(),
            offered: Owners::default(),
            present: None,
            yielded: Vec::new(),
        }
    }

    /// Returns the request for the next plugin.
    pub fn request(&self) -> &api::CreateContainerRequest {
        &self.request
    }

    /// Returns the container with the changes and offered values so far.
    pub fn container(&self) -> &api::Container {
        &self.request.container
    }

    /// Encodes the request for the next plugin.
    ///
    /// # Errors
    /// Fails if the request is too large for a message.
    pub fn encode_request(&mut self) -> protobuf::Result<Vec<u8>> {
        self.encoded.request(&mut self.request)
    }

    /// Encodes the container with the changes and offered values so far, without the parts of its resources
    /// that were added for plugins and stayed empty.
    ///
    /// # Errors
    /// Fails if the container is too large for a message.
    pub fn encode_container(&mut self) -> protobuf::Result<Vec<u8>> {
        let container = self.request.container.mut_or_insert_default();
        // Encodes the container itself, because a copy costs more than the encoding.
        let resources = container.linux.mut_or_insert_default().resources.mut_or_insert_default();
        resources::strip_empty(&mut resources.memory);
        resources::strip_empty(&mut resources.cpu);
        let bytes = self.encoded.container(container);
        add_empty_parts(container);
        bytes
    }

    /// Returns the owners of fields so far.
    pub fn owners(&self) -> &Owners {
        self.updates.owners()
    }

    /// Merges the reply of one plugin. Takes the creation by value, because a failure leaves a part of the
    /// reply merged.
    pub fn answer(
        mut self,
        plugin: &str,
        rights: &Rights,
        response: api::CreateContainerResponse,
    ) -> Result<Self, MergeError> {
        let places = examine(plugin, &response)?;
        let api::CreateContainerResponse { adjust, update, evict, special_fields: _ } = response;
        if let Some(adjust) = adjust.as_ref() {
            let visible = self.request.container.mut_or_insert_default();
            let container = &Pristine::keep(&mut self.pristine, visible, adjust).others.id;
            self.encoded.forget_changed(adjust);
            let (owners, noted) = (&mut self.updates.owners, &mut self.updates.noted);
            let claims = FieldClaims { plugin, rights, container, owners, noted };
            AdjustmentMerger { claims, combined: &mut self.combined, visible }.merge(adjust)?;
        }
        self.updates.merge(plugin, rights, &update, &evict)?;
        self.updates.note_unknown(plugin, places);
        Ok(self)
    }

    /// Adds default values. The container's own values, those of earlier offers, and every value that
    /// a plugin sets or removes, override them. Later plugins receive the default values, but `from`
    /// owns no field before [`Creation::settle`]. Hooks always yield: a
    /// container always has a message of hooks, and they cannot be compared.
    ///
    /// # Errors
    /// Fails if there are too many entries, or if a reply with the values that do not yield would fail.
    pub fn offer(
        mut self,
        from: &str,
        rights: &Rights,
        mut adjust: api::ContainerAdjustment,
    ) -> Result<Self, MergeError> {
        drop(examine(from, &adjust)?);
        let visible = self.request.container.mut_or_insert_default();
        let pristine = Pristine::keep(&mut self.pristine, visible, &adjust);
        let present = self
            .present
            .get_or_insert_with(|| offers::slots(&offers::as_adjustment(&pristine.whole(visible))));
        let container = &pristine.others.id;
        let owners = [&self.updates.owners, &self.offered];
        self.yielded.extend(offers::give_way(from, &mut adjust, present, container, &owners));
        self.encoded.forget_changed(&adjust);
        let (owners, noted) = (&mut self.offered, &mut BTreeSet::new());
        let claims = FieldClaims { plugin: from, rights, container, owners, noted };
        AdjustmentMerger { claims, combined: &mut blank(), visible }.merge(&adjust)?;
        self.offers.push(Offer { from: from.to_owned(), rights: rights.clone(), adjust });
        Ok(self)
    }

    /// Merges the offered values that did not yield; to be called once every plugin has answered.
    ///
    /// # Errors
    /// Fails if a reply with the values that do not yield would fail.
    pub fn settle(mut self) -> Result<Self, MergeError> {
        // An offer would have copied the container, so there is none to settle.
        let Some(pristine) = &mut self.pristine else { return Ok(self) };
        let visible = self.request.container.mut_or_insert_default();
        for Offer { from, rights, mut adjust } in mem::take(&mut self.offers) {
            let (owners, noted) = (&mut self.updates.owners, &mut self.updates.noted);
            pristine.keep_mounts(visible, &adjust);
            let container = &pristine.others.id;
            let gone = offers::give_way(&from, &mut adjust, &HashSet::new(), container, &[owners]);
            self.yielded.extend(gone);
            self.encoded.forget_changed(&adjust);
            offers::take_back(visible, &adjust);
            let claims = FieldClaims { plugin: &from, rights: &rights, container, owners, noted };
            AdjustmentMerger { claims, combined: &mut self.combined, visible }.merge(&adjust)?;
        }
        Ok(self)
    }

    /// Checks all replies together: the plugin must own no field that it may not set.
    pub fn check_owned(&self, plugin: &str, rights: &Rights) -> Result<(), MergeError> {
        self.updates.check_owned(plugin, rights)
    }

    /// Returns the request for validators, once every plugin has answered. As in the reference, its
    /// adjustment has empty parts.
    pub fn validation_request(
        &self,
        plugins: Vec<api::PluginInstance>,
    ) -> api::ValidateContainerAdjustmentRequest {
        let mut adjust = self.combined.clone();
        show_rdt(&mut adjust);
        api::ValidateContainerAdjustmentRequest {
            pod: self.request.pod.clone(),
            container: MessageField::some(match &self.pristine {
                Some(pristine) => pristine.whole(self.container()),
                None => self.container().clone(),
            }),
            adjust: MessageField::some(adjust),
            update: self.updates.pending(),
            owners: MessageField::some(self.owners().to_api()),
            plugins,
            ..Default::default()
        }
    }

    /// Returns the result of all replies.
    pub fn finish(self) -> Merged {
        let Self { pristine: _, request, combined: mut adjust, updates, yielded, .. } = self;
        let container = request.container.unwrap_or_default();
        show_rdt(&mut adjust);
        strip(&mut adjust);
        let Updated { updates, evictions, evicted_by, owners, unknown, noted, dropped, .. } =
            updates.finish();
        Merged {
            adjust,
            container,
            owners,
            updates,
            evictions,
            evicted_by,
            unknown,
            noted,
            dropped,
            yielded,
        }
    }
}

/// Adds the parts of a container on which plugins rely.
fn add_empty_parts(container: &mut api::Container) {
    container.hooks.mut_or_insert_default();
    let linux = container.linux.mut_or_insert_default();
    let resources = linux.resources.mut_or_insert_default();
    resources.memory.mut_or_insert_default();
    resources.cpu.mut_or_insert_default();
}

/// Returns the combined adjustment before the first reply.
fn blank() -> api::ContainerAdjustment {
    let mut adjust = api::ContainerAdjustment::new();
    adjust.hooks.mut_or_insert_default();
    let linux = adjust.linux.mut_or_insert_default();
    let resources = linux.resources.mut_or_insert_default();
    resources.memory.mut_or_insert_default();
    resources.cpu.mut_or_insert_default();
    adjust
}

/// Removes the parts of [`blank`] that no plugin used. Other empty messages stay: a plugin may send
/// an empty scheduler intentionally.
fn strip(adjust: &mut api::ContainerAdjustment) {
    resources::strip_empty(&mut adjust.hooks);
    if let Some(linux) = adjust.linux.as_mut() {
        resources::strip(&mut linux.resources);
    }
    resources::strip_empty(&mut adjust.linux);
}

/// Clears RDT's `remove` if every member is set again, as the reference does.
fn show_rdt(adjust: &mut api::ContainerAdjustment) {
    let Some(linux) = adjust.linux.as_mut() else { return };
    let Some(rdt) = linux.rdt.as_mut() else { return };
    if rdt.clos_id.is_some() && rdt.schemata.is_some() && rdt.enable_monitoring.is_some() {
        rdt.remove = false;
    }
}
