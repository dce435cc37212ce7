// SPDX-License-Identifier: Apache-2.0
//! Whether one rule is about a plugin and a pod, and why. Nothing is permitted or refused here.

use std::fmt;

use super::RuledPod;
use crate::config::{RuleSection, bare_name};
use crate::error::quoted;
use crate::glob;

/// Whether a rule is about a plugin and a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// It is not.
    No,
    /// It is if the pod is what the rule names, which is not proven.
    Maybe,
    /// It is.
    Yes,
}

impl Fit {
    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Maybe => "maybe",
            Self::Yes => "yes",
        }
    }
}

/// Why: what each of its lists says, or the first one that does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This list does not have this value.
    Differs(&'static str, String),
    /// Each of these lists matches, by this entry; none is there where the rule is about all.
    Matches(Vec<(&'static str, String)>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(list, value) => {
                write!(f, "{list} does not have \"{}\"", quoted(value))
            }
            Self::Matches(by) if by.is_empty() => f.write_str("it is about every plugin and pod"),
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

/// Tries one rule.
pub(super) fn fit(rule: &RuleSection, plugin: &str, pod: &RuledPod) -> (Fit, Reason) {
    let mut by = Vec::new();
    let bare = bare_name(plugin);
    match entry(&rule.plugins, |pattern| {
        glob::matches(pattern, plugin) || glob::matches(pattern, bare)
    }) {
        Entry::Any => {}
        Entry::Found(pattern) => by.push(("plugins", pattern.to_owned())),
        Entry::None => return (Fit::No, Reason::Differs("plugins", plugin.to_owned())),
    }
    for (key, pattern) in &rule.labels {
        match pod.labels.get(key).filter(|value| glob::matches(pattern, value)) {
            Some(_) => by.push(("labels", format!("{key}={pattern}"))),
            None => {
                let other = pod.labels.get(key).map(|value| format!("{key}={value}"));
                return (Fit::No, Reason::Differs("labels", other.unwrap_or_else(|| key.clone())));
            }
        }
    }
    let mut fit = Fit::Yes;
    for (name, list, value) in [
        ("namespaces", &rule.namespaces, &pod.namespace),
        ("engines", &rule.engines, &pod.engine),
        ("handlers", &rule.handlers, &pod.handler),
    ] {
        match entry(list, |pattern| glob::matches(pattern, value)) {
            Entry::Any => {}
            // It holds for whatever it is.
            Entry::Found("*") => by.push((name, "*".to_owned())),
            found if pod.is_doubtful => {
                fit = Fit::Maybe;
                let pattern = if let Entry::Found(pattern) = found { pattern } else { value };
                by.push((name, format!("{pattern} (not proven)")));
            }
            Entry::Found(pattern) => by.push((name, pattern.to_owned())),
            Entry::None => return (Fit::No, Reason::Differs(name, value.clone())),
        }
    }
    (fit, Reason::Matches(by))
}

enum Entry<'r> {
    /// The list is empty: it says nothing.
    Any,
    Found(&'r str),
    None,
}

/// The first entry that matches; `*` before any other, since it needs no proof.
fn entry(list: &[String], matches: impl Fn(&str) -> bool) -> Entry<'_> {
    if list.is_empty() {
        return Entry::Any;
    }
    let any = list.iter().find(|pattern| *pattern == "*");
    match any.or_else(|| list.iter().find(|pattern| matches(pattern))) {
        Some(pattern) => Entry::Found(pattern),
        None => Entry::None,
    }
}
