// SPDX-License-Identifier: Apache-2.0
//! The operator's injections (decisions D49, D59): the fields that they set, and the containers to
//! which they apply. The chain merges them like plugins' replies. This module asks no plugin and
//! never writes; the only files that it reads are seccomp profiles.

use std::path::Path;
use std::sync::Arc;

use nri_adaptation::{Creation, MergeError, Rights, as_adjustment};
use serde_json::{Map, Value, json};

use crate::answers::InjectionRow;
use crate::config::{Config, InjectionSection, RuleMode};
use crate::describe::{Spec, in_document};
use crate::error::{Context, Error, Result, quoted};
use crate::files;
use crate::glob;
use crate::limits;
use crate::plugin::api;
use crate::rules::{Entry, Fit, Reason, RuledPod, Rules, entry, fit_pod};
use crate::spec::patch::{HostFacts, patch_on};

/// One injection in force.
#[derive(Debug)]
pub struct Injection {
    /// The section as written.
    pub section: InjectionSection,
    /// `inject:NAME`.
    pub id: String,
    /// The fields that the injection sets, except for a seccomp profile in a file.
    adjust: api::ContainerAdjustment,
    /// Why the injection can apply to no container, if so.
    unfit: Option<String>,
}

/// The values that an injection sets in one container.
#[derive(Debug, Clone)]
pub struct Injected {
    /// `inject:NAME`.
    pub id: String,
    /// Two digits that place the injection among the plugins.
    pub index: String,
    /// Whether the injection is merged like a reply; otherwise it gives way to existing values.
    pub is_always: bool,
    /// The fields that the injection sets.
    pub adjust: api::ContainerAdjustment,
}

impl Injected {
    /// Merges the injection into a creation.
    ///
    /// # Errors
    /// Fails like a plugin's reply with the values that do not give way.
    pub fn merge(
        &self,
        creation: Creation,
        rights: &Rights,
    ) -> std::result::Result<Creation, MergeError> {
        let adjust = self.adjust.clone();
        match self.is_always {
            true => {
                let adjust = Some(adjust).into();
                let answer = api::CreateContainerResponse { adjust, ..Default::default() };
                creation.answer(&self.id, rights, answer)
            }
            false => creation.offer(&self.id, rights, adjust),
        }
    }
}

/// All injections, in order.
#[derive(Debug, Default)]
pub struct Injections(Vec<Arc<Injection>>);

impl Injections {
    /// Creates the injections of a configuration, sorted by index, and in file order within one.
    pub fn new(config: &Config) -> Self {
        let sections = config.injections.iter();
        let mut all: Vec<_> = sections.map(|section| Arc::new(Injection::new(section))).collect();
        all.sort_by(|a, b| a.section.index.cmp(&b.section.index));
        Self(all)
    }

    /// Returns all injections, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Injection>> {
        self.0.iter()
    }

    /// Returns the injections that select this container or may do so, the latter with the reason
    /// for the doubt. An injection from which a rule hides the pod is left out.
    pub fn for_container(
        &self,
        rules: &Rules,
        pod: &RuledPod,
        image: Option<&str>,
    ) -> Vec<(Arc<Injection>, Option<String>)> {
        let mut found = Vec::new();
        for injection in &self.0 {
            let doubt = match injection.fit(pod, image) {
                (Fit::No, _) => continue,
                (Fit::Yes, _) => None,
                (Fit::Maybe, reason) => {
                    Some(format!("it is not proven that this container is selected ({reason})"))
                }
            };
            if rules.hidden_by(&injection.id, pod).is_none() {
                found.push((Arc::clone(injection), doubt));
            }
        }
        found
    }

    /// Returns the index of the injection that is the owner `id` (`inject:NAME`).
    pub fn index_of(&self, id: &str) -> Option<&str> {
        self.iter().find(|one| one.id == id).map(|one| one.section.index.as_str())
    }
}

impl Injection {
    fn new(section: &InjectionSection) -> Self {
        let (adjust, mut unfit) = match adjustment_of(&section.document) {
            Ok(adjust) => (adjust, None),
            Err(error) => (api::ContainerAdjustment::default(), Some(error.why())),
        };
        let cdi_device =
            |name: &String| api::CDIDevice { name: name.clone(), ..Default::default() };
        // CDI names cannot be resolved without the node's files, so they are not tried here.
        if unfit.is_none() {
            let facts = HostFacts { is_cgroup_v2: true, ..HostFacts::default() };
            unfit = patch_on(b"{}", &adjust, &facts).err().map(|error| error.to_string());
        }
        let cdi_devices = section.cdi.iter().map(cdi_device).collect();
        Self {
            section: section.clone(),
            id: section.owner(),
            adjust: api::ContainerAdjustment { CDI_devices: cdi_devices, ..adjust },
            unfit,
        }
    }

    /// Whether the injection is only recorded, not applied.
    pub fn is_audit(&self) -> bool {
        self.section.mode == RuleMode::Audit
    }

    /// Whether the injection may be impossible on some nodes or for some containers' documents.
    pub fn may_fail(&self) -> bool {
        let api::ContainerAdjustment { mounts, hooks, linux, CDI_devices, .. } = &self.adjust;
        let is_plain = mounts.is_empty()
            && hooks.is_none()
            && CDI_devices.is_empty()
            && self.section.seccomp.is_none()
            && linux.as_ref().is_none_or(|linux| {
                linux.devices.is_empty() && linux.sysctl.is_empty() && linux.resources.is_none()
            });
        !is_plain
    }

    /// Returns whether the injection applies to this container, and why. An unknown image may match
    /// any pattern.
    pub(crate) fn fit(&self, pod: &RuledPod, image: Option<&str>) -> (Fit, Reason) {
        let (fit, reason) = fit_pod(&self.section.pods, pod);
        let Reason::Matches(mut by) = reason else { return (fit, reason) };
        let images = &self.section.images;
        let found = entry(images, |pattern| image.is_some_and(|name| glob::matches(pattern, name)));
        match (found, image) {
            (Entry::Any, _) => (fit, Reason::Matches(by)),
            (Entry::Found("*"), _) if images.len() == 1 => {
                by.push(("images", "*".to_owned()));
                (fit, Reason::Matches(by))
            }
            (_, None) => {
                by.push(("images", "(not known)".to_owned()));
                (fit.min(Fit::Maybe), Reason::Matches(by))
            }
            (Entry::Found(pattern), Some(_)) => {
                by.push(("images", pattern.to_owned()));
                (fit, Reason::Matches(by))
            }
            (Entry::Excluded(_) | Entry::None, Some(name)) => {
                (Fit::No, Reason::Differs("images", name.to_owned()))
            }
        }
    }

    /// Returns the fields that the injection sets. Reads its seccomp profile, so this may block.
    ///
    /// # Errors
    /// Fails when one of its values cannot be set in any container, or its profile is unreadable.
    pub fn prepare(&self) -> Result<Injected> {
        if let Some(why) = &self.unfit {
            return Err(Error::new(why.clone()));
        }
        let mut adjust = self.adjust.clone();
        if let Some(file) = &self.section.seccomp {
            let policy = seccomp(file)?;
            adjust.linux.mut_or_insert_default().seccomp_policy = Some(policy).into();
        }
        Ok(Injected {
            id: self.id.clone(),
            index: self.section.index.clone(),
            is_always: self.section.is_always,
            adjust,
        })
    }
}

/// Returns every injection, with whether and why it matches this container, for `policy test`.
pub(crate) fn report(
    injections: &Injections,
    rules: &Rules,
    pod: &RuledPod,
    image: Option<&str>,
) -> Vec<InjectionRow> {
    let row = |injection: &Arc<Injection>| {
        let (fit, reason) = injection.fit(pod, image);
        let section = &injection.section;
        InjectionRow {
            injection: section.name.clone(),
            index: section.index.clone(),
            matches: fit,
            why: reason.to_string(),
            mode: RuleMode::of(!injection.is_audit()),
            when: if section.is_always { "always" } else { "absent" }.to_owned(),
            on_failure: section.on_failure,
            hidden_by: rules.hidden_by(&injection.id, pod).map(|ruling| ruling.rule.clone()),
        }
    };
    injections.iter().map(row).collect()
}

/// Returns the injections that are impossible on this node, one line each: values that no
/// container accepts, and unreadable profiles.
pub(crate) fn unfit(config: &Config) -> Vec<String> {
    let all = Injections::new(config);
    let lines = all.iter().filter_map(|one| {
        let why = one.prepare().err()?;
        let name = quoted(&one.section.name);
        let effect = match one.section.refuses() {
            true => "its containers are refused",
            false => "its containers are created without it",
        };
        Some(format!("the injection \"{name}\" cannot be applied, {effect}: {}", why.why()))
    });
    limits::listed(lines, "injection", "cannot be applied")
}

/// Converts a part of an OCI document to an adjustment.
fn adjustment_of(document: &Value) -> Result<api::ContainerAdjustment> {
    let spec = Spec::parse(document.to_string().as_bytes())?;
    let annotations = document.get("annotations").and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    let annotations = annotations.into_iter().flatten().filter_map(text).collect();
    let known = api::Container { annotations, ..Default::default() };
    let mut adjust = as_adjustment(&in_document(known, &spec));
    if let Some(linux) = adjust.linux.as_mut()
        && linux.resources.as_ref() == Some(&api::LinuxResources::default())
    {
        linux.resources = None.into();
    }
    if adjust.linux.as_ref() == Some(&api::LinuxContainerAdjustment::default()) {
        adjust.linux = None.into();
    }
    Ok(adjust)
}

/// Returns a member that only Docker's form of a profile has: if it were ignored, the profile could
/// permit more.
fn unresolved(profile: &Map<String, Value>) -> Option<&'static str> {
    let is_set = |value: Option<&Value>| match value {
        None | Some(Value::Null) => false,
        Some(Value::Object(members)) => !members.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => true,
    };
    let calls = profile.get("syscalls").and_then(Value::as_array);
    let has = |member: &str| calls.into_iter().flatten().any(|call| is_set(call.get(member)));
    match is_set(profile.get("archMap")) {
        true => Some("archMap"),
        false => ["includes", "excludes"].into_iter().find(|member| has(member)),
    }
}

/// Reads the seccomp profile in a file, in OCI form.
fn seccomp(file: &Path) -> Result<api::LinuxSeccomp> {
    let shown = file.display();
    let doing = || format!("the seccomp profile {shown}");
    let text = files::read_text(file, limits::SETTINGS_FILE).doing(doing)?;
    let profile: Map<String, Value> = serde_json::from_str(&text)
        .map_err(|error| Error::new(format!("{}: {}", doing(), quoted(&error.to_string()))))?;
    if !profile.contains_key("defaultAction") {
        return Err(Error::new(format!("{}: it has no defaultAction", doing())));
    }
    if let Some(member) = unresolved(&profile) {
        let hint = "a profile of Docker has to be resolved for one architecture and one set of capabilities";
        let why = format!("{}: it has {member}, which only Docker resolves", doing());
        return Err(Error::new(why).hint(hint));
    }
    let document = json!({"linux": {"seccomp": profile}});
    let adjust = adjustment_of(&document)
        .map_err(|error| Error::new(format!("{}: {}", doing(), error.why())))?;
    let policy = adjust.linux.into_option().and_then(|linux| linux.seccomp_policy.into_option());
    policy.ok_or_else(|| Error::new(format!("{} is empty", doing())))
}
