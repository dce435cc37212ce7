// SPDX-License-Identifier: Apache-2.0
//! Looks up the operator's rules for one request: the fields that each plugin may set, and the parts of
//! the request that each validator receives. `nri-adaptation` enforces the rights.

use std::borrow::Cow;
use std::collections::HashSet;
use std::rc::Rc;

use nri_adaptation::Rights;

use crate::plugin::api;
use crate::rules::{PodsOfContainers, RuledPod, Rules};

use super::chained_plugin::{ChainedPlugin, PluginFailure};

/// The rules for one request.
#[derive(Clone, Copy)]
pub struct RuleScope<'a> {
    /// The rules in force.
    pub rules: &'a Rules,
    /// The request's container and its pod; `None` if the request is not about a container.
    pub subject: Option<(&'a str, &'a RuledPod)>,
    /// The pods of other containers.
    pub pods: &'a dyn PodsOfContainers,
}

impl std::fmt::Debug for RuleScope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleScope").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl<'a> RuleScope<'a> {
    /// Returns a scope without rules.
    pub fn none() -> Self {
        static NONE: Rules = Rules::none();
        Self { rules: &NONE, subject: None, pods: &() }
    }

    /// Returns the fields that a plugin may set in the request's container, and in the containers that its
    /// reply names.
    ///
    /// # Errors
    /// Fails when the operator's settings for the plugin are invalid.
    pub(super) fn rights(
        &self,
        member: &ChainedPlugin,
        updates: &[api::ContainerUpdate],
        evictions: &[api::ContainerEviction],
    ) -> Result<Rc<Rights>, PluginFailure> {
        let rights = member.rights()?;
        if self.rules.is_empty() {
            return Ok(rights);
        }
        let updated = updates.iter().map(|update| update.container_id.as_str());
        let evicted = evictions.iter().map(|eviction| eviction.container_id.as_str());
        let named = updated.chain(evicted);
        Ok(Rc::new(self.rules.rights(&rights, member.id(), self.subject, named, self.pods)))
    }

    /// Returns the fields that an injection may set in the request's container.
    pub(crate) fn rights_of_injection(&self, id: &str) -> Rights {
        self.rules.rights(&Rights::default(), id, self.subject, std::iter::empty(), self.pods)
    }

    /// Returns why changes in this plugin's reply must be dropped: the plugin knew the request's container
    /// before a rule hid the container from it. `None` if no rule hides it.
    pub(super) fn hidden_since(&self, member: &ChainedPlugin) -> Option<String> {
        let (_, pod) = self.subject?;
        let rule = self.rules.hidden_by(member.id(), pod)?;
        let rule = crate::error::quoted(&rule.rule);
        Some(format!("may not change anything: the rule \"{rule}\" hides this pod from it"))
    }

    /// Returns the request as this validator receives it: without updates of containers that rules hide from it.
    pub(super) fn shown_to<'r>(
        &self,
        member: &ChainedPlugin,
        request: &'r api::ValidateContainerAdjustmentRequest,
    ) -> Cow<'r, api::ValidateContainerAdjustmentRequest> {
        if !self.rules.hides_anything() || request.update.is_empty() {
            return Cow::Borrowed(request);
        }
        let id = member.id();
        let is_hidden = |container: &str| {
            let pod = self.pods.pod_of(container);
            pod.is_some_and(|pod| self.rules.hidden_by(id, &pod).is_some())
        };
        let others = request.update.iter().map(|update| update.container_id.as_str());
        let hidden: HashSet<&str> = others.filter(|container| is_hidden(container)).collect();
        if hidden.is_empty() {
            return Cow::Borrowed(request);
        }
        let mut shown = request.clone();
        shown.update.retain(|update| !hidden.contains(update.container_id.as_str()));
        if let Some(owners) = shown.owners.as_mut() {
            owners.owners.retain(|container, _| !hidden.contains(container.as_str()));
        }
        Cow::Owned(shown)
    }
}
