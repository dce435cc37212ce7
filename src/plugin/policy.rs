// SPDX-License-Identifier: Apache-2.0
//! Determines what a missing reply does, and how many time-outs disconnect the plugin: each from
//! the operator's setting, else the plugin's declaration, else the default of NRI's own
//! implementation (FailurePolicy).

use crate::answers::PolicyRow;
use crate::config::{OnFailure, PluginSettings};
use crate::named::named;

use super::api;

/// The policy in force for one plugin, and the source of each of its two values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Whether a missing reply refuses the operation or skips the plugin.
    pub on_failure: OnFailure,
    /// Consecutive time-outs after which the plugin is disconnected; 0 for never.
    pub strikes: u32,
    on_failure_from: PolicySource,
    strikes_from: PolicySource,
}

named! {
    /// The source of one value of a policy.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum PolicySource {
        Configuration => "configuration",
        Plugin => "plugin",
        Default => "default",
    }
}

impl Policy {
    /// Merges the operator's settings with the plugin's declaration.
    pub fn new(settings: &PluginSettings, declared: Option<&api::FailurePolicy>) -> Self {
        let declared_fail = declared.is_some_and(|declared| declared.fail_request);
        let declared_keep = declared.is_some_and(|declared| declared.keep_connected);
        let (on_failure, on_failure_from) = match settings.on_failure {
            Some(on_failure) => (on_failure, PolicySource::Configuration),
            None if declared_fail => (OnFailure::Refuse, PolicySource::Plugin),
            None => (OnFailure::Skip, PolicySource::Default),
        };
        let (strikes, strikes_from) = match settings.strikes {
            Some(strikes) => (strikes, PolicySource::Configuration),
            None if declared_keep => (0, PolicySource::Plugin),
            None => (1, PolicySource::Default),
        };
        Self { on_failure, strikes, on_failure_from, strikes_from }
    }

    /// Whether a missing reply refuses because the plugin declared so, and not by the operator's setting.
    pub fn refuses_by_declaration(&self) -> bool {
        self.on_failure == OnFailure::Refuse && self.on_failure_from == PolicySource::Plugin
    }

    /// Returns the policy as `nri-runc nri plugins --json` shows it.
    pub(crate) fn row(&self) -> PolicyRow {
        PolicyRow {
            on_failure: self.on_failure,
            on_failure_from: self.on_failure_from.name().to_owned(),
            strikes: self.strikes,
            strikes_from: self.strikes_from.name().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(fail_request: bool, keep_connected: bool) -> api::FailurePolicy {
        api::FailurePolicy { fail_request, keep_connected, ..Default::default() }
    }

    #[test]
    fn the_operator_overrides_each_half_of_a_declaration() {
        let settings = PluginSettings { on_failure: Some(OnFailure::Skip), ..Default::default() };
        let policy = Policy::new(&settings, Some(&declared(true, true)));
        assert_eq!((policy.on_failure, policy.strikes), (OnFailure::Skip, 0));
    }

    #[test]
    fn a_plugin_without_a_policy_is_skipped_and_dropped() {
        let policy = Policy::new(&PluginSettings::default(), None);
        assert_eq!((policy.on_failure, policy.strikes), (OnFailure::Skip, 1));
    }
}
