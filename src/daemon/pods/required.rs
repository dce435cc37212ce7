// SPDX-License-Identifier: Apache-2.0
//! Enforces required plugins: decides which of them must have answered for a pod and its containers (D14, D40),
//! checks whether they are connected, and waits for absent ones.
//!
//! A required plugin must have answered RunPodSandbox as well. If it was not connected or did not answer, it has missed
//! the pod, even if it receives the pod later by Synchronize. A plugin that was not required when the pod began may
//! learn of the pod by Synchronize. A plugin from which a rule hides the pod is treated as absent.
//!
//! A promise (`[[require]]`) requires its plugin for the containers that it selects (D52), or for the whole pod if it
//! selects by the pod alone. It also applies if the engine serves plugins itself, and to pods that tolerate missing
//! plugins by annotation.

use std::collections::BTreeSet;
use std::time::Duration;

use nri_adaptation::{ValidatorExemptions, missing_required};
use tokio::time::Instant;
use tracing::info;

use crate::chain::{Cause, PluginFailure};
use crate::daemon::request::describe::Description;
use crate::daemon::request::record;
use crate::daemon::shared::{Daemon, events, messages};
use crate::error::{Error, Result, quoted};
use crate::plugin::{api, caller_deadline};
use crate::rules::RuledPod;
use crate::state::{Container, Pod, Promise, Skipped};

/// Interval at which a wait checks whether the daemon is ending.
const ENDING_CHECK: Duration = Duration::from_millis(200);

/// Why a required plugin that was absent has not answered RunPodSandbox.
const WAS_ABSENT: &str = "was not connected or could not see the pod at RunPodSandbox";
/// Why a required plugin has not answered RunPodSandbox, recorded before the plugins are asked.
const NOT_ASKED: &str = "was not asked at RunPodSandbox";

/// The plugins that a pod, or one of its containers, requires.
pub(crate) struct Requirement<'n> {
    daemon: &'n Daemon,
    pod: api::PodSandbox,
    /// None for the pod itself.
    container: Option<String>,
    ruled: RuledPod,
    is_exempt: bool,
    /// Whether the default validator's list applies. At RunPodSandbox it does not for a pod that has
    /// neither an infrastructure container nor a `lives_with` path: a container announces such a pod,
    /// and the list is applied when that container is validated.
    is_validated: bool,
    promises: Vec<Promise>,
}

impl<'n> Requirement<'n> {
    /// Returns the requirement of a container that is being created; `promises` are the promises about it.
    pub(crate) fn of_container(
        daemon: &'n Daemon,
        description: &Description,
        promises: &[Promise],
    ) -> Self {
        let pod = record::known_pod(&daemon.records, description);
        Self {
            daemon,
            ruled: RuledPod::of(&pod, description.engine.name(), description.is_doubtful),
            pod,
            container: Some(description.container.name.clone()),
            is_exempt: description.is_exempt,
            is_validated: true,
            promises: promises.to_vec(),
        }
    }

    /// Returns the requirement of a pod at RunPodSandbox.
    pub(crate) fn of_pod(daemon: &'n Daemon, pod: &Pod) -> Self {
        let is_validated = pod.sandbox.is_some() || pod.lives_with.is_some();
        let (message, ruled) = (messages::pod(pod), events::ruled_pod(pod));
        let (is_exempt, promises) = (pod.is_exempt, pod.promises.clone());
        Self { daemon, pod: message, container: None, ruled, is_exempt, is_validated, promises }
    }

    /// Waits for required plugins that are not connected: after a daemon start for the expected plugins
    /// (D14), then up to the shortest `wait` of a missing plugin or its promise, but not longer than the caller waits.
    pub(crate) async fn wait(&self) {
        if self.is_met() {
            return;
        }
        self.daemon.registry.wait_for_returning().await;
        let (daemon, begun) = (self.daemon, Instant::now());
        loop {
            let arrived = daemon.registry.returning.arrival();
            let is_present = |name: &str| daemon.registry.is_present(name);
            let mut missing = self.missing(is_present).unwrap_or_default();
            let config = daemon.config();
            let waits = missing.iter().map(|name| config.required_wait(name));
            let unmet = self
                .unmet(is_present)
                .map(|Promise { promise, plugin, .. }| config.promised_wait(promise, plugin));
            let Some(wait) = waits.chain(unmet).min() else { return };
            missing.extend(self.unmet(is_present).map(|promise| promise.plugin.clone()));
            let until = caller_deadline().map_or(begun + wait, |caller| caller.min(begun + wait));
            let now = Instant::now();
            if now >= until || daemon.process.is_ending.get() {
                return;
            }
            if daemon.registry.returning.note_wait(&missing) {
                let (names, seconds) = (missing.join(", "), (until - now).as_secs_f32());
                info!(
                    "pods and containers wait up to {seconds:.1} s for {names}, which is required"
                );
            }
            let _either = tokio::time::timeout_at(until.min(now + ENDING_CHECK), arrived).await;
        }
    }

    /// Whether every required plugin is connected.
    fn is_met(&self) -> bool {
        let is_present = |name: &str| self.daemon.registry.is_present(name);
        let missing = self.missing(is_present);
        missing.is_ok_and(|missing| missing.is_empty()) && self.unmet(is_present).next().is_none()
    }

    /// Refuses a pod or container when a required plugin is missing (D14), or protecting parts of the configuration are
    /// unreadable. For a container, the default validator checks its list and the pod's annotation after the responses.
    pub(crate) fn require_connected(&self) -> Result<()> {
        self.require_sound_configuration()?;
        self.require_promised()?;
        let is_present = |name: &str| self.takes_part(name);
        let stand_in = |name: &str| self.daemon.registry.stand_in(name);
        let missing = match self.container {
            // The default validator compares only names, so it would accept any plugin that connected
            // under the name of a pre-installed one.
            Some(_) => self.missing_by_operator(is_present).and_then(|mut missing| {
                let named = self.missing(|name| is_present(name) || stand_in(name).is_none())?;
                missing.extend(named);
                missing.sort_unstable();
                missing.dedup();
                Ok(missing)
            }),
            None => self.missing(is_present),
        };
        let missing = missing.map_err(|why| Error::new(why).hint(self.hint()))?;
        if missing.is_empty() {
            return Ok(());
        }
        let replaced = missing.iter().find_map(|name| Some((name, stand_in(name)?)));
        if let Some((name, other)) = replaced {
            let why = format!(
                "the required plugin {name} is pre-installed and not connected; {other}, which is connected, was not started from its file"
            );
            return Err(Error::new(why).hint(self.hint()));
        }
        let is_hidden = |name: &&String| self.daemon.registry.is_present(name);
        if let Some(hidden) = missing.iter().find(is_hidden) {
            let why = format!("a rule hides this pod from the required plugin {hidden}");
            return Err(Error::new(why).hint("change the rule, or exempt_namespaces"));
        }
        let noun = if missing.len() == 1 { "plugin" } else { "plugins" };
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let why = format!("the required {noun} {} {verb} not connected", missing.join(", "));
        Err(Error::new(why).hint(self.hint()))
    }

    /// Whether a plugin is connected and receives this pod's events.
    fn takes_part(&self, name: &str) -> bool {
        self.daemon.registry.is_present_for(name, &self.ruled)
    }

    /// Returns the promises that refuse the pod or container because their plugin is missing.
    fn unmet(&self, is_present: impl Fn(&str) -> bool) -> impl Iterator<Item = &Promise> {
        let promises = self.promises.iter().filter(|promise| promise.is_enforced);
        promises.filter(move |promise| !self.is_kept(promise, &is_present))
    }

    fn is_kept(&self, promise: &Promise, is_present: impl Fn(&str) -> bool) -> bool {
        !self.daemon.is_bystander() && is_present(&promise.plugin)
    }

    /// Refuses if the plugin of a promise is missing.
    fn require_promised(&self) -> Result<()> {
        let Some(promise) = self.unmet(|name| self.takes_part(name)).next() else { return Ok(()) };
        let (registry, plugin) = (&self.daemon.registry, &promise.plugin);
        let missing = if self.daemon.is_bystander() {
            format!("which cannot connect: {}", registry.socket.line())
        } else if registry.is_present(plugin) {
            "from which a rule hides the pod".to_owned()
        } else if let Some(other) = registry.stand_in(plugin) {
            format!(
                "which is pre-installed and not connected; {other} was not started from its file"
            )
        } else {
            "which is not connected".to_owned()
        };
        let error = Error::new(format!("{}, {missing}", self.line_of(promise)));
        Err(error.by(plugin.clone()).against(promise.promise.clone()).hint(self.hint()))
    }

    fn line_of(&self, promise: &Promise) -> String {
        let subject = match &self.container {
            Some(name) => format!("container {}", quoted(name)),
            None => format!("pod {}", quoted(&format!("{}/{}", self.pod.namespace, self.pod.name))),
        };
        let Promise { promise, plugin, why, .. } = promise;
        let (promise, why) = (quoted(promise), quoted(why));
        format!("the promise \"{promise}\" refuses {subject} ({why}): it needs the plugin {plugin}")
    }

    /// Records the results of the promises about a container.
    pub(crate) fn settle_promises(&self, record: &mut Container) {
        record.outcome.promises.clone_from(&self.promises);
        for promise in &mut record.outcome.promises {
            let is_kept = self.is_kept(promise, |name| self.takes_part(name));
            let result = match (is_kept, promise.is_enforced) {
                (true, _) => Promise::MET,
                (false, true) => Promise::REFUSED,
                (false, false) => Promise::WOULD_REFUSE,
            };
            result.clone_into(&mut promise.result);
        }
    }

    fn hint(&self) -> &'static str {
        match self.container {
            Some(_) => "the bundle is unchanged; see: nri-runc nri plugins",
            None => "the pod was not started; see: nri-runc nri plugins",
        }
    }

    /// Refuses while a protecting part of the configuration is unreadable, because its protection is not in
    /// force. Containers of exempt namespaces are still created, so that a node can be repaired.
    fn require_sound_configuration(&self) -> Result<()> {
        let Some(why) = self.daemon.config().unreliable() else { return Ok(()) };
        if self.daemon.is_bystander() || self.is_exempt {
            return Ok(());
        }
        let hint = match self.container {
            Some(_) => "the bundle is unchanged; fix this file, then retry",
            None => "the pod was not started; fix this file, then retry",
        };
        Err(Error::new(why).hint(hint))
    }

    /// Refuses when a required plugin was connected but did not answer, regardless of its failure policy.
    pub(crate) fn require_answers(
        &self,
        silent: &[Skipped],
    ) -> std::result::Result<(), PluginFailure> {
        let fails = |id: &str, text| {
            let plugin = id.to_owned();
            Err(PluginFailure::new(plugin, Cause::Timeout, text))
        };
        let entry = |name: &str| self.entry(silent, name);
        let promised = self.promises.iter().filter(|promise| promise.is_enforced);
        let mut silent_ones = promised.filter_map(|one| Some((one, entry(&one.plugin)?)));
        if let Some((promise, Skipped { plugin, reason })) = silent_ones.next() {
            return fails(plugin, format!("{}, and {plugin} {reason}", self.line_of(promise)));
        }
        match self.missing(|name| entry(name).is_none()) {
            Ok(names) => match names.iter().find_map(|name| entry(name)) {
                Some(Skipped { plugin, reason }) => {
                    fails(plugin, format!("the required plugin {plugin} {reason}"))
                }
                None => Ok(()),
            },
            Err(why) => fails("", why),
        }
    }

    /// Refuses a container of a pod that a required plugin has missed, although the plugin is
    /// connected again (D40). `require_connected` handles plugins that are still missing.
    pub(crate) fn require_pod_answered(&self) -> Result<()> {
        let mut missed = match self.daemon.records.read().pod(&self.pod.id) {
            Some(pod) => pod.skipped.clone(),
            None => return Ok(()),
        };
        missed.retain(|skipped| self.daemon.registry.is_present(&skipped.plugin));
        self.require_answers(&missed).map_err(|failure| {
            let text = format!("{}: no container of this pod is created", failure.text);
            let hint = "the bundle is unchanged; delete the pod, so that a new one is announced";
            PluginFailure { text, ..failure }.into_error().hint(hint)
        })
    }

    /// Returns every plugin that this pod or a container of it may require, as not asked yet.
    pub(crate) fn unanswered(&self) -> Vec<Skipped> {
        self.named().into_iter().map(|name| skipped(name, NOT_ASKED)).collect()
    }

    /// Returns the plugins that this pod or a container of it may require and that are not connected or cannot see it.
    pub(crate) fn absent(&self) -> Vec<Skipped> {
        let names = self.named().into_iter();
        let absent = names.filter(|name| !self.takes_part(name));
        absent.map(|name| skipped(name, WAS_ABSENT)).collect()
    }

    /// Returns the entry of the plugin that a requirement's `name` (or `NN-name`) means.
    fn entry<'s>(&self, silent: &'s [Skipped], name: &str) -> Option<&'s Skipped> {
        let pre_installed = &self.daemon.registry.pre_installed;
        silent.iter().find(|skipped| pre_installed.is_meant(name, &skipped.plugin))
    }

    /// Whether any plugin is or may be required.
    pub(crate) fn has_any(&self) -> bool {
        let is_promised = || !self.is_exempt && !self.daemon.config().promises.is_empty();
        !self.named().is_empty() || is_promised()
    }

    fn named(&self) -> BTreeSet<String> {
        if self.daemon.is_bystander() {
            return BTreeSet::new();
        }
        let mut names = self.daemon.registry.builtin().plugins_of_pod(&self.pod);
        if !self.is_exempt {
            names.extend(self.daemon.config().required_plugins().map(ToOwned::to_owned));
            let promised = self.promises.iter().filter(|promise| promise.is_enforced);
            names.extend(promised.map(|promise| promise.plugin.clone()));
        }
        names
    }

    /// Returns the plugins that the operator's list, the default validator's or the pod's annotation requires
    /// and that are not present.
    fn missing(
        &self,
        is_present: impl Fn(&str) -> bool,
    ) -> std::result::Result<Vec<String>, String> {
        if self.daemon.is_bystander() {
            return Ok(Vec::new());
        }
        let mut missing = self.missing_by_operator(&is_present)?;
        if !self.is_validated {
            return Ok(missing);
        }
        let builtin = self.daemon.registry.builtin();
        let more = builtin.absent_plugins(&self.pod, self.container.as_deref(), is_present);
        let known: BTreeSet<String> = missing.iter().cloned().collect();
        let more = more.map_err(|why| quoted(&why))?.into_iter();
        missing.extend(more.filter(|name| !known.contains(name)));
        Ok(missing)
    }

    /// Returns the missing plugins of the operator's list.
    fn missing_by_operator(
        &self,
        is_present: impl Fn(&str) -> bool,
    ) -> std::result::Result<Vec<String>, String> {
        if self.daemon.is_bystander() {
            return Ok(Vec::new());
        }
        let config = &self.daemon.config();
        let exemptions = ValidatorExemptions {
            is_exempt: self.is_exempt,
            tolerate_missing_plugins_annotation: &config
                .default_validator
                .tolerate_missing_plugins_annotation,
        };
        let (required, container) = (config.required_plugins(), self.container.as_deref());
        let missing = missing_required(&self.pod, container, exemptions, required, is_present)?;
        Ok(missing.into_iter().map(ToOwned::to_owned).collect())
    }
}

fn skipped(plugin: String, reason: &str) -> Skipped {
    Skipped { plugin, reason: reason.to_owned() }
}
