// SPDX-License-Identifier: Apache-2.0
//! Determines whether, and why, one rule matches a plugin and a pod. Nothing is permitted or refused here.

use serde::{Deserialize, Serialize};

use std::fmt;

use super::RuledPod;
use crate::config::{INJECTIONS, PodSelectors, RuleSection, bare_name, excluded};
use crate::error::quoted;
use crate::glob;

/// Whether a rule matches a plugin and a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fit {
    /// The rule does not match.
    #[default]
    No,
    /// Whether the rule matches is unknown: the pod's identity is unproven, or a fact could not be read.
    Maybe,
    /// The rule matches.
    Yes,
}

/// Why a rule matches or not: the entry of each list, or the first list that does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This list does not match this value.
    Differs(&'static str, String),
    /// No list selects anything of the container; one of the lists, and its first entry.
    Lacks(&'static str, String),
    /// Each of these lists matches, by this entry; empty if the rule matches everything.
    Matches(Vec<(&'static str, String)>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(list, value) => {
                write!(f, "{list} does not have \"{}\"", quoted(value))
            }
            Self::Lacks(list, entry) => {
                write!(f, "it has nothing that matches {list} (\"{}\")", quoted(entry))
            }
            Self::Matches(by) if by.is_empty() => f.write_str("it matches every plugin and pod"),
            Self::Matches(by) => {
                for (index, (list, entry)) in by.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{list}: \"{}\"", quoted(entry))?;
                }
                Ok(())
            }
        }
    }
}

/// Returns whether one rule matches a plugin and a pod, and why.
pub(super) fn fit(rule: &RuleSection, plugin: &str, pod: &RuledPod) -> (Fit, Reason) {
    let differs = || (Fit::No, Reason::Differs("plugins", plugin.to_owned()));
    let bare = bare_name(plugin);
    let matches = |pattern: &str| glob::matches(pattern, plugin) || glob::matches(pattern, bare);
    // An injection is selected only by an entry that begins with `inject:`, because it is the operator's own.
    if plugin.starts_with(INJECTIONS) {
        let is_its = |entry: &String| entry.starts_with(INJECTIONS) && matches(entry);
        if !rule.plugins.iter().any(is_its) {
            return differs();
        }
    }
    let mut by = Vec::new();
    match entry(&rule.plugins, matches) {
        Entry::Any => {}
        Entry::Found(pattern) => by.push(("plugins", pattern.to_owned())),
        Entry::Excluded(_) | Entry::None => return differs(),
    }
    match fit_pod(&rule.pods, pod) {
        (fit, Reason::Matches(more)) => {
            by.extend(more);
            (fit, Reason::Matches(by))
        }
        differs => differs,
    }
}

/// Returns whether selectors match a pod, and why. The namespace, engine or handler of a pod whose
/// identity is unproven may be false, so it never excludes the pod (decision D59).
pub(crate) fn fit_pod(pods: &PodSelectors, pod: &RuledPod) -> (Fit, Reason) {
    let mut by = Vec::new();
    let has = |(key, pattern): &(String, String)| {
        pod.labels.get(key).is_some_and(|value| glob::matches(pattern, value))
    };
    let label = |key: &String| match pod.labels.get(key) {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    let selects_labels = !pods.labels.is_empty() || !pods.without_labels.is_empty();
    let is_unlabelled = selects_labels && pod.lacks_labels;
    if let Some((key, _)) = pods.labels.iter().find(|label| !has(label) && !is_unlabelled) {
        return (Fit::No, Reason::Differs("labels", label(key)));
    }
    if let Some((key, _)) = pods.without_labels.iter().find(|label| has(label)) {
        return (Fit::No, Reason::Differs("labels", label(key)));
    }
    by.extend(pods.labels.iter().map(|(key, pattern)| ("labels", format!("{key}={pattern}"))));
    let mut fit = if is_unlabelled { Fit::Maybe } else { Fit::Yes };
    for (name, list, value) in [
        ("namespaces", &pods.namespaces, &pod.namespace),
        ("engines", &pods.engines, &pod.engine),
        ("handlers", &pods.handlers, &pod.handler),
    ] {
        match entry(list, |pattern| glob::matches(pattern, value)) {
            Entry::Any => {}
            // The entry matches every value.
            Entry::Found("*") if list.iter().all(|entry| excluded(entry).is_none()) => {
                by.push((name, "*".to_owned()));
            }
            found if pod.is_doubtful => {
                fit = Fit::Maybe;
                let pattern = match found {
                    Entry::Found(pattern) | Entry::Excluded(pattern) => pattern,
                    Entry::Any | Entry::None => value,
                };
                by.push((name, format!("{pattern} (not proven)")));
            }
            Entry::Found(pattern) => by.push((name, pattern.to_owned())),
            Entry::Excluded(_) | Entry::None => {
                return (Fit::No, Reason::Differs(name, value.clone()));
            }
        }
    }
    (fit, Reason::Matches(by))
}

pub(crate) enum Entry<'r> {
    /// The list is empty, and matches anything.
    Any,
    Found(&'r str),
    /// Excluded by this entry.
    Excluded(&'r str),
    None,
}

/// Returns the entry that decides: exclusions first, then `*`, which needs no proof, then the first
/// match. A list of only exclusions matches everything else.
pub(crate) fn entry(list: &[String], matches: impl Fn(&str) -> bool) -> Entry<'_> {
    let Some(first) = list.first() else { return Entry::Any };
    let is_against = |entry: &&String| excluded(entry).is_some_and(&matches);
    if let Some(entry) = list.iter().find(is_against) {
        return Entry::Excluded(entry);
    }
    let mut wanted = list.iter().filter(|entry| excluded(entry).is_none()).peekable();
    if wanted.peek().is_none() {
        return Entry::Found(first);
    }
    let any = wanted.clone().find(|pattern| *pattern == "*");
    match any.or_else(|| wanted.find(|pattern| matches(pattern))) {
        Some(pattern) => Entry::Found(pattern),
        None => Entry::None,
    }
}
