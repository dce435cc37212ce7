// SPDX-License-Identifier: Apache-2.0
//! The built-in validator: refuses changes of a new container that the operator forbids to all
//! plugins, and containers whose required plugins are missing.
//!
//! It judges one ValidateContainerAdjustment request, as a plugin would, and changes nothing. Messages are
//! the reference's, without its doubled blanks, so that operators find them in searches. As in the reference,
//! hooks cannot be removed and updates are not checked (BUG-28). Reference: `plugins/default-validator` of
//! NRI v0.12.

use std::collections::{BTreeMap, BTreeSet};

use crate::annotation;
use crate::fields::NriField;
use crate::keys;
use crate::quoted;
use nri_api as api;

/// The annotation with which a pod requires plugins in addition to those of the operator.
pub const REQUIRED_PLUGINS: &str = "required-plugins.noderesource.dev";

/// Maximum plugins that one pod may require with its annotations, more than any node has. A pod with more is
/// refused: a truncated list would admit it without the others.
pub(crate) const MOST_REQUIRED_PLUGINS: usize = 64;

/// Maximum characters of an annotation in a message.
const LONGEST_VALUE: usize = 80;
/// Maximum characters of a refusal in a message.
const LONGEST_REFUSAL: usize = 1000;

/// The changes to refuse; none by default. The fields are the keys of `[nri.default_validator]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultValidator {
    /// Whether the validator checks anything at all.
    pub enable: bool,
    /// Whether to refuse OCI hooks.
    pub reject_oci_hook_adjustment: bool,
    /// Whether to refuse another seccomp policy for a container with the runtime's default one.
    pub reject_runtime_default_seccomp_adjustment: bool,
    /// Whether to refuse a seccomp policy for a container without one.
    pub reject_unconfined_seccomp_adjustment: bool,
    /// Whether to refuse another seccomp policy for a container with a custom one.
    pub reject_custom_seccomp_adjustment: bool,
    /// Whether to refuse setting or removing namespaces.
    pub reject_namespace_adjustment: bool,
    /// Whether to refuse setting or removing sysctls.
    pub reject_sysctl_adjustment: bool,
    /// Plugins, as `name` or `NN-name`, that must be connected for any container.
    pub required_plugins: Vec<String>,
    /// Key of the annotation that tolerates missing plugins; empty if none does.
    pub tolerate_missing_plugins_annotation: String,
}

impl DefaultValidator {
    /// Checks an adjustment.
    ///
    /// # Errors
    /// Fails at the first forbidden change, missing plugin or invalid annotation, with one line.
    pub fn validate(
        &self,
        request: &api::ValidateContainerAdjustmentRequest,
    ) -> Result<(), String> {
        if !self.enable {
            return Ok(());
        }
        let owned = JudgedOwners(request.owners.owners.get(&request.container.id));
        self.hooks(owned)
            .and_then(|()| self.seccomp(owned, &request.container))
            .and_then(|()| self.namespaces(owned))
            .and_then(|()| self.required(request))
            .and_then(|()| self.sysctls(owned, &request.adjust))
            .map_err(|reason| quoted(&shortened(&reason, LONGEST_REFUSAL)))
    }

    fn hooks(&self, owned: JudgedOwners<'_>) -> Result<(), String> {
        match owned.simple(NriField::OciHooks) {
            Some(owner) if self.reject_oci_hook_adjustment => {
                let noun = if owner.contains(',') { "plugins" } else { "plugin" };
                refused(&format!("{noun} \"{owner}\" attempted restricted OCI hook injection"))
            }
            _ => Ok(()),
        }
    }

    fn seccomp(&self, owned: JudgedOwners<'_>, container: &api::Container) -> Result<(), String> {
        let Some(owner) = owned.simple(NriField::SeccompPolicy) else { return Ok(()) };
        let runtime_default = ("runtime default", self.reject_runtime_default_seccomp_adjustment);
        let custom = ("custom", self.reject_custom_seccomp_adjustment);
        let unconfined = ("unconfined", self.reject_unconfined_seccomp_adjustment);
        let mut kinds = match container.linux.seccomp_profile.as_ref() {
            // NRI: a container without a profile counts as unconfined. An engine's document has policies but
            // no profiles, so a policy without a profile may be of any kind, and each of the three flags
            // refuses its change.
            None if container.linux.seccomp_policy.is_some() => {
                vec![runtime_default, custom, unconfined]
            }
            None => vec![unconfined],
            Some(profile) => match profile.profile_type.enum_value() {
                Ok(api::security_profile::ProfileType::RUNTIME_DEFAULT) => vec![runtime_default],
                Ok(api::security_profile::ProfileType::UNCONFINED) => vec![unconfined],
                Ok(api::security_profile::ProfileType::LOCALHOST) => vec![custom],
                // A profile type that this validator does not know is refused by each flag.
                Err(_number) => vec![custom, runtime_default, unconfined],
            },
        }
        .into_iter();
        match kinds.find(|(_, is_rejected)| *is_rejected) {
            Some((kind, _)) => refused(&format!(
                "plugin \"{owner}\" attempted restricted {kind} seccomp policy adjustment"
            )),
            None => Ok(()),
        }
    }

    fn namespaces(&self, owned: JudgedOwners<'_>) -> Result<(), String> {
        let owners = owned.compound(NriField::Namespace);
        if !self.reject_namespace_adjustment || owners.is_empty() {
            return Ok(());
        }
        let who: Vec<String> = owners
            .iter()
            .map(|(kind, owner)| format!("\"{owner}\" (namespace \"{kind}\")"))
            .collect();
        refused(&format!(
            "attempted restricted namespace adjustment by plugin(s) {}",
            who.join(", ")
        ))
    }

    fn required(&self, request: &api::ValidateContainerAdjustmentRequest) -> Result<(), String> {
        let mut present = BTreeSet::new();
        for plugin in &request.plugins {
            present.insert(format!("{}-{}", plugin.index, plugin.name));
            // A name like `10-policy` in the settings means index and name, never a bare name.
            if !matches!(plugin.name.as_bytes(), [a, b, b'-', ..] if a.is_ascii_digit() && b.is_ascii_digit())
            {
                present.insert(plugin.name.clone());
            }
        }
        let name = Some(request.container.name.as_str());
        let missing = self.absent_plugins(&request.pod, name, |name| present.contains(name))?;
        match missing.len() {
            0 => Ok(()),
            1 => refused(&format!("required plugin \"{}\" not present", missing.join(","))),
            _ => refused(&format!("required plugins \"{}\" not present", missing.join(","))),
        }
    }

    /// Returns the plugins that this container (`None`: the pod itself) requires and that are
    /// missing. None are missing if the validator is disabled or an annotation tolerates missing
    /// plugins.
    ///
    /// # Errors
    /// Fails when an applicable annotation is invalid, or the pod's annotations name too many
    /// plugins.
    pub fn absent_plugins(
        &self,
        pod: &api::PodSandbox,
        container: Option<&str>,
        is_present: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, String> {
        if !self.enable || is_tolerated(pod, &self.tolerate_missing_plugins_annotation, container)?
        {
            return Ok(Vec::new());
        }
        let mut required = self.required_plugins.clone();
        if let Some(value) = annotation::effective(pod, REQUIRED_PLUGINS, container) {
            let asked = annotation::plugin_names(value);
            required.extend(asked.map_err(|why| unreadable(REQUIRED_PLUGINS, value, &why))?);
        }
        named_by_author(pod)?;
        let missing = absent(required.iter().map(String::as_str), is_present);
        Ok(missing.into_iter().map(ToOwned::to_owned).collect())
    }

    /// Returns the plugins that any container of this pod may need; none if the validator is disabled.
    /// An invalid annotation names none, because the containers to which it applies are refused.
    pub fn plugins_of_pod(&self, pod: &api::PodSandbox) -> BTreeSet<String> {
        if !self.enable {
            return BTreeSet::new();
        }
        let mut named = named_by_author(pod).unwrap_or_default();
        named.extend(self.required_plugins.iter().cloned());
        named
    }

    /// Refuses changes of sysctls. NRI: the reference looks up owners by the adjustment's keys, and
    /// so misses removals, whose keys have marks (BUG-25).
    fn sysctls(
        &self,
        owned: JudgedOwners<'_>,
        adjust: &api::ContainerAdjustment,
    ) -> Result<(), String> {
        if !self.reject_sysctl_adjustment {
            return Ok(());
        }
        let owners = owned.compound(NriField::Sysctl);
        let mut who: BTreeSet<&str> = owners.values().copied().collect();
        let is_owned = |key: &str| owners.contains_key(keys::marked(key).unwrap_or(key));
        if !adjust.linux.sysctl.keys().all(|key| is_owned(key)) {
            who.insert("(unknown)");
        }
        if who.is_empty() {
            return Ok(());
        }
        let who: Vec<&str> = who.into_iter().collect();
        refused(&format!("attempted restricted sysctl adjustment by plugin(s) {}", who.join(", ")))
    }
}

/// Exemptions from the operator's required plugins (`[plugin.NAME] required`).
#[derive(Debug, Clone, Copy)]
pub struct ValidatorExemptions<'a> {
    /// Whether the pod is in an exempt namespace, according to a source that tenants cannot write.
    pub is_exempt: bool,
    /// The key of the annotation that exempts a pod or container if it is true; empty if none does.
    pub tolerate_missing_plugins_annotation: &'a str,
}

/// Returns the plugins of `required` that are missing, each once, in the given order; none if the
/// pod or container is exempt, because a pod that runs a required plugin must be able to start
/// without it. Without a container, the pod itself is judged.
///
/// # Errors
/// Fails when a plugin is missing and the annotation that may exempt the container is invalid.
pub fn missing_required<'a>(
    pod: &api::PodSandbox,
    container: Option<&str>,
    exemptions: ValidatorExemptions<'_>,
    required: impl IntoIterator<Item = &'a str>,
    is_present: impl Fn(&str) -> bool,
) -> Result<Vec<&'a str>, String> {
    let missing = absent(required, is_present);
    if missing.is_empty() || exemptions.is_exempt {
        return Ok(Vec::new());
    }
    match is_tolerated(pod, exemptions.tolerate_missing_plugins_annotation, container) {
        Ok(true) => Ok(Vec::new()),
        Ok(false) => Ok(missing),
        Err(reason) => Err(quoted(&shortened(&reason, LONGEST_REFUSAL))),
    }
}

#[derive(Clone, Copy)]
struct JudgedOwners<'a>(Option<&'a api::FieldOwners>);

impl<'a> JudgedOwners<'a> {
    fn simple(self, field: NriField) -> Option<&'a str> {
        let owner = self.0?.simple.get(&field.number())?;
        Some(plugin_of(owner))
    }

    /// Returns the owners by key, sorted, so that equal adjustments give equal messages.
    fn compound(self, field: NriField) -> BTreeMap<&'a str, &'a str> {
        let owners = self.0.and_then(|owned| owned.compound.get(&field.number()));
        let owners = owners.into_iter().flat_map(|compound| &compound.owners);
        owners.map(|(key, owner)| (key.as_str(), plugin_of(owner))).collect()
    }
}

/// Returns the plugin's name, whether it set or removed the field.
fn plugin_of(owner: &str) -> &str {
    owner.strip_prefix('-').unwrap_or(owner)
}

fn absent<'a>(
    required: impl IntoIterator<Item = &'a str>,
    is_present: impl Fn(&str) -> bool,
) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    required.into_iter().filter(|name| !is_present(name) && seen.insert(*name)).collect()
}

/// Returns the plugins that a pod's annotations name for the pod and for its containers; an invalid
/// list names none. Fails if there are more plugins than a pod may require, because the pod's
/// author chooses their number.
fn named_by_author(pod: &api::PodSandbox) -> Result<BTreeSet<String>, String> {
    let mut named = BTreeSet::new();
    for (key, value) in &pod.annotations {
        let Some(form) = key.strip_prefix(REQUIRED_PLUGINS) else { continue };
        if matches!(form, "" | "/pod") || form.starts_with("/container.") {
            named.extend(annotation::plugin_names(value).unwrap_or_default());
        }
        if named.len() > MOST_REQUIRED_PLUGINS {
            let most = MOST_REQUIRED_PLUGINS;
            let why = format!("more than {most} names in all of the pod's annotations");
            return Err(unreadable(REQUIRED_PLUGINS, "…", &why));
        }
    }
    Ok(named)
}

/// Whether the annotation `key` permits this container, or the pod itself, to run without the
/// required plugins.
fn is_tolerated(pod: &api::PodSandbox, key: &str, container: Option<&str>) -> Result<bool, String> {
    if key.is_empty() {
        return Ok(false);
    }
    let Some(value) = annotation::effective(pod, key, container) else { return Ok(false) };
    annotation::truth(value).ok_or_else(|| unreadable(key, value, "expected true or false"))
}

fn unreadable(key: &str, value: &str, why: &str) -> String {
    format!("invalid {key} annotation \"{}\": {why}", shortened(value, LONGEST_VALUE))
}

fn refused(what: &str) -> Result<(), String> {
    Err(format!("validation error: {what}"))
}

/// Returns at most `longest` characters of `text`: annotations may have hundreds of kilobytes.
fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
