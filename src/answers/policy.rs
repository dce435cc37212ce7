// SPDX-License-Identifier: Apache-2.0
//! The rules' decision about a pod: the response to `policy test`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{OnFailure, RuleMode};
use crate::rules::Fit;

/// The deciding rules for a pod, with reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PolicyAnswer {
    pub(crate) pod: PolicyPod,
    /// The number of rules.
    pub(crate) rules: usize,
    pub(crate) plugins: Vec<PluginRights>,
    pub(crate) exec_rules: Vec<ExecRuleRow>,
    pub(crate) injections: Vec<InjectionRow>,
    pub(crate) promises: Vec<PromiseFit>,
}

/// The pod, as rules see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PolicyPod {
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) engine: String,
    pub(crate) handler: String,
    /// Whether these values cannot be a tenant's.
    pub(crate) proven: bool,
    pub(crate) id: String,
    pub(crate) name: String,
}

/// The rights that rules leave to a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PluginRights {
    pub(crate) plugin: String,
    /// The first rule that decides.
    pub(crate) rule: Option<String>,
    pub(crate) mode: Option<RuleMode>,
    /// Whether the plugin receives no events of the pod.
    pub(crate) hidden: bool,
    /// NRI's names of fields, or `*`.
    pub(crate) refused: Vec<String>,
    pub(crate) would_refuse: Vec<String>,
    pub(crate) refused_by_section: Vec<String>,
    pub(crate) rules: Vec<RuleTried>,
}

/// Whether a rule matches a plugin and a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct RuleTried {
    pub(crate) rule: String,
    pub(crate) matches: Fit,
    pub(crate) why: String,
    pub(crate) decides: bool,
}

/// An exec rule, and whether it matches a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct ExecRuleRow {
    pub(crate) rule: String,
    pub(crate) matches: Fit,
    pub(crate) why: String,
    /// Whether the rule is tried, because no earlier rule decides.
    pub(crate) decides: bool,
    pub(crate) allow: bool,
    pub(crate) mode: RuleMode,
    pub(crate) terminal: Option<bool>,
    pub(crate) users: Vec<String>,
    pub(crate) commands: Vec<String>,
}

/// An injection, and whether it matches a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct InjectionRow {
    pub(crate) injection: String,
    pub(crate) index: String,
    pub(crate) matches: Fit,
    pub(crate) why: String,
    pub(crate) mode: RuleMode,
    /// `always` or `absent`.
    pub(crate) when: String,
    pub(crate) on_failure: OnFailure,
    /// The rule that excludes the injection.
    pub(crate) hidden_by: Option<String>,
}

/// A promise, and whether it matches a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct PromiseFit {
    pub(crate) promise: String,
    pub(crate) plugin: String,
    pub(crate) matches: Fit,
    pub(crate) why: String,
    pub(crate) mode: RuleMode,
}
