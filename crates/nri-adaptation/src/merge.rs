// SPDX-License-Identifier: Apache-2.0
//! One CreateContainer on its way through the plugins: their replies become one adjustment.
//!
//! The caller asks plugin after plugin with [`Creation::request`] and hands in each answer; every
//! plugin sees what those before it did. An answer that fails ends the creation. In the end
//! there is one adjustment to apply, and a table of owners. Nothing is asked, applied or
//! validated here. Reference: the result collector of `pkg/adaptation` in NRI v0.12.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use protobuf::MessageField;

use crate::adjust::AdjustmentMerger;
use crate::claims::FieldClaims;
use crate::claims::MergeError;
use crate::offers::{self, Offer, Slot, Yielded};
use crate::owners::Owners;
use crate::rights::{Rights, RuleNote};
use crate::updates::{DroppedRequest, Updated, Updates};
use crate::{bounds, resources, unknown};
use nri_api as api;

/// The state of one CreateContainer between two plugins.
#[derive(Debug, Clone)]
pub struct Creation {
    pristine: api::Container,
    /// The container in it is as the plugins so far have left it.
    request: api::CreateContainerRequest,
    combined: api::ContainerAdjustment,
    /// Holds the owners of the created container as well.
    updates: Updates,
    offers: Vec<Offer>,
    /// The owners of what is offered, for as long as it is.
    offered: Owners,
    /// What the container has; filled by the first offer.
    present: Option<HashSet<Slot>>,
    yielded: Vec<Yielded>,
}

/// The result of all plugins' replies.
#[derive(Debug, Clone)]
pub struct Merged {
    /// To be applied to the container: removal markers included, empty parts left out.
    pub adjust: api::ContainerAdjustment,
    /// The container as the last plugin left it.
    pub container: api::Container,
    /// The owners of fields, in this and in updated containers.
    pub owners: Owners,
    /// Of other containers, one for each.
    pub updates: Vec<api::ContainerUpdate>,
    /// Of other containers, one for each, with the reason given first.
    pub evictions: Vec<api::ContainerEviction>,
    /// Container to the plugins that want it gone, in order.
    pub evicted_by: BTreeMap<String, Vec<String>>,
    /// Plugin and place of a field that the schema does not know, and was therefore not applied.
    pub unknown: Vec<(String, String)>,
    /// What is done although a rule in audit mode would refuse it.
    pub noted: Vec<RuleNote>,
    /// What was left out by a rule: updates and evictions of other containers.
    pub dropped: Vec<DroppedRequest>,
    /// What was offered and gave way.
    pub yielded: Vec<Yielded>,
}

impl Merged {
    /// The plugin behind a field of the created container, whether it set or removed it.
    pub fn plugin_behind(&self, field: &str) -> Option<String> {
        self.owners.plugin_of(&self.container.id, field)
    }
}

impl Creation {
    /// Starts with the container as the engine wants it. Parts that plugins are used to find
    /// are filled in empty.
    pub fn new(pod: api::PodSandbox, mut container: api::Container) -> Self {
        container.hooks.mut_or_insert_default();
        let linux = container.linux.mut_or_insert_default();
        let resources = linux.resources.mut_or_insert_default();
        resources.memory.mut_or_insert_default();
        resources.cpu.mut_or_insert_default();

        let updates = Updates::for_create(container.id.clone());
        let request = api::CreateContainerRequest {
            pod: MessageField::some(pod),
            container: MessageField::some(container.clone()),
            ..Default::default()
        };
        Self {
            pristine: container,
            request,
            combined: blank(),
            updates,
            offers: Vec::new(),
            offered: Owners::default(),
            present: None,
            yielded: Vec::new(),
        }
    }

    /// What the next plugin is asked.
    pub fn request(&self) -> &api::CreateContainerRequest {
        &self.request
    }

    /// The container as the plugins so far have left it.
    pub fn container(&self) -> &api::Container {
        &self.request.container
    }

    /// The owners of fields so far.
    pub fn owners(&self) -> &Owners {
        self.updates.owners()
    }

    /// Takes in what one plugin answered. If that fails, the creation ends with it: no
    /// plugin sees half an answer, and no copy is needed for that.
    pub fn answer(
        mut self,
        plugin: &str,
        rights: &Rights,
        response: api::CreateContainerResponse,
    ) -> Result<Self, MergeError> {
        bounds::check(&response)
            .map_err(|what| MergeError::TooMany { plugin: plugin.to_owned(), what })?;
        let places = unknown::fields(&response);
        let api::CreateContainerResponse { adjust, update, evict, special_fields: _ } = response;
        if let Some(adjust) = adjust.as_ref() {
            let (owners, noted) = (&mut self.updates.owners, &mut self.updates.noted);
            let container = &self.pristine.id;
            let claims = FieldClaims { plugin, rights, container, owners, noted };
            let visible = self.request.container.mut_or_insert_default();
            AdjustmentMerger { claims, combined: &mut self.combined, visible }.merge(adjust)?;
        }
        self.updates.merge(plugin, rights, &update, &evict)?;
        self.updates.note_unknown(plugin, places);
        Ok(self)
    }

    /// Takes in values that give way: to what the container has, and to all that plugins set or
    /// remove, before or after. Later plugins see them; they own nothing before
    /// [`Creation::settle`].
    ///
    /// # Errors
    /// Fails where an answer with these values would.
    pub fn offer(
        mut self,
        from: &str,
        rights: &Rights,
        mut adjust: api::ContainerAdjustment,
    ) -> Result<Self, MergeError> {
        bounds::check(&adjust)
            .map_err(|what| MergeError::TooMany { plugin: from.to_owned(), what })?;
        let present = self
            .present
            .get_or_insert_with(|| offers::slots(&offers::as_adjustment(&self.pristine)));
        let container = &self.pristine.id;
        let owners = [&self.updates.owners, &self.offered];
        self.yielded.extend(offers::give_way(from, &mut adjust, present, container, &owners));
        let (owners, noted) = (&mut self.offered, &mut BTreeSet::new());
        let claims = FieldClaims { plugin: from, rights, container, owners, noted };
        let visible = self.request.container.mut_or_insert_default();
        AdjustmentMerger { claims, combined: &mut blank(), visible }.merge(&adjust)?;
        self.offers.push(Offer { from: from.to_owned(), rights: rights.clone(), adjust });
        Ok(self)
    }

    /// Every plugin has answered: what was offered and did not have to give way is owned now.
    ///
    /// # Errors
    /// Fails where an answer with these values would.
    pub fn settle(mut self) -> Result<Self, MergeError> {
        let container = &self.pristine.id;
        for Offer { from, rights, mut adjust } in std::mem::take(&mut self.offers) {
            let (owners, noted) = (&mut self.updates.owners, &mut self.updates.noted);
            let gone = offers::give_way(&from, &mut adjust, &HashSet::new(), container, &[owners]);
            self.yielded.extend(gone);
            let claims = FieldClaims { plugin: &from, rights: &rights, container, owners, noted };
            let visible = self.request.container.mut_or_insert_default();
            AdjustmentMerger { claims, combined: &mut self.combined, visible }.merge(&adjust)?;
        }
        Ok(self)
    }

    /// Checks once more, of everything together, that a plugin owns nothing that it may not set.
    pub fn check_owned(&self, plugin: &str, rights: &Rights) -> Result<(), MergeError> {
        self.updates.check_owned(plugin, rights)
    }

    /// What validators are asked once every plugin has answered. As the reference they get the
    /// combined adjustment with its empty parts.
    pub fn validation_request(
        &self,
        plugins: Vec<api::PluginInstance>,
    ) -> api::ValidateContainerAdjustmentRequest {
        let mut adjust = self.combined.clone();
        show_rdt(&mut adjust);
        api::ValidateContainerAdjustmentRequest {
            pod: self.request.pod.clone(),
            container: MessageField::some(self.pristine.clone()),
            adjust: MessageField::some(adjust),
            update: self.updates.pending(),
            owners: MessageField::some(self.owners().to_api()),
            plugins,
            ..Default::default()
        }
    }

    /// What all answers together come to.
    pub fn finish(self) -> Merged {
        let Self { pristine: _, request, combined: mut adjust, updates, yielded, .. } = self;
        let container = request.container.unwrap_or_default();
        show_rdt(&mut adjust);
        strip(&mut adjust);
        let Updated {
            updates,
            answered: _,
            evictions,
            evicted_by,
            owners,
            unknown,
            noted,
            dropped,
        } = updates.finish();
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

/// The combined adjustment before the first answer.
fn blank() -> api::ContainerAdjustment {
    let mut adjust = api::ContainerAdjustment::new();
    adjust.hooks.mut_or_insert_default();
    let linux = adjust.linux.mut_or_insert_default();
    let resources = linux.resources.mut_or_insert_default();
    resources.memory.mut_or_insert_default();
    resources.cpu.mut_or_insert_default();
    adjust
}

/// Takes out what [`blank`] put in and no plugin used. Other empty messages stay: a plugin that
/// sends an empty scheduler means it.
fn strip(adjust: &mut api::ContainerAdjustment) {
    resources::strip_empty(&mut adjust.hooks);
    if let Some(linux) = adjust.linux.as_mut() {
        resources::strip(&mut linux.resources);
    }
    resources::strip_empty(&mut adjust.linux);
}

/// `remove` says nothing once everything is set anew; the reference does not show it then.
fn show_rdt(adjust: &mut api::ContainerAdjustment) {
    let Some(linux) = adjust.linux.as_mut() else { return };
    let Some(rdt) = linux.rdt.as_mut() else { return };
    if rdt.clos_id.is_some() && rdt.schemata.is_some() && rdt.enable_monitoring.is_some() {
        rdt.remove = false;
    }
}
