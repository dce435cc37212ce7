// SPDX-License-Identifier: Apache-2.0
//! Protections of containers: settings and plugins because of which creates fail while the daemon
//! cannot be asked, except creates in exempt pods.
//!
//! Most protections are in the configuration. Others are plugins that validate, or that declare
//! that a time-out fails the request. Only the daemon knows these: it writes their names to the run
//! directory, where wrappers find them while the daemon is unavailable. Nothing is decided here.

use std::path::PathBuf;

use crate::error::quoted;
use crate::limits;
use crate::presence::{self, IfThere};

use super::promises::PromiseSection;
use super::settings::{Config, OnFailure, RootlessPolicy};

/// A setting or plugin that protects containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// The protection as a clause: "plugin policy is required".
    pub what: String,
    /// The plugin, if the protection only requires it to be connected. A pod that is exempt from
    /// required plugins then needs no daemon.
    pub required: Option<String>,
    /// The promise, if the protection is one. A container to which it does not apply needs no
    /// daemon.
    pub promise: Option<PromiseSection>,
}

impl Protection {
    fn required(name: &str) -> Self {
        let what = format!("plugin {name} is required");
        Self { what, required: Some(name.to_owned()), promise: None }
    }

    fn other(what: impl Into<String>) -> Self {
        Self { what: what.into(), required: None, promise: None }
    }

    fn promised(section: &PromiseSection) -> Self {
        let (name, plugin) = (quoted(&section.name), &section.plugin);
        let what = format!("the promise \"{name}\" needs the plugin {plugin}");
        Self { what, required: None, promise: Some(section.clone()) }
    }
}

impl Config {
    /// Returns the protections in the configuration; usually none.
    pub fn protections(&self) -> Vec<Protection> {
        // A mistake may have hidden a setting that was meant to protect.
        let mut found: Vec<Protection> =
            self.unreliable().into_iter().map(Protection::other).collect();
        for (name, settings) in &self.plugins {
            if settings.required == Some(true) {
                found.push(Protection::required(name));
            }
            if settings.on_failure == Some(OnFailure::Refuse) {
                found.push(Protection::other(format!("plugin {name} has on_failure = \"refuse\"")));
            }
        }
        for injection in self.injections.iter().filter(|injection| injection.refuses()) {
            let name = quoted(&injection.name);
            let what = format!("the injection \"{name}\" has on_failure = \"refuse\"");
            found.push(Protection::other(what));
        }
        let promises = self.promises.iter().filter(|promise| promise.refuses());
        found.extend(promises.map(Protection::promised));
        if self.default_validator.enable {
            found.push(Protection::other("the default validator is enabled"));
        }
        found
    }

    /// Returns the error in the configuration that makes creates fail, as a clause.
    pub fn unreliable(&self) -> Option<String> {
        let mistake = self.protection_error.as_ref()?;
        Some(format!("the configuration has an error: {mistake}"))
    }

    /// Returns the policy for containers of unprivileged users under this configuration.
    pub fn rootless_policy(&self) -> RootlessPolicy {
        let protects = || !self.protections().is_empty();
        match self.on_rootless {
            _ if self.is_disabled() => RootlessPolicy::Pass,
            Some(policy) => policy,
            None if protects() => RootlessPolicy::Refuse,
            None => RootlessPolicy::Pass,
        }
    }

    /// Returns the protections, including protecting plugins that were connected to the last
    /// daemon.
    pub fn protections_without_daemon(&self) -> Vec<Protection> {
        let mut found = self.protections();
        let path = self.protecting_plugins();
        let list = presence::insist(|| crate::files::read_own(&path, limits::OWN_FILE).if_there());
        if list.is_err() {
            let what = "the list of plugins that protect containers cannot be read";
            found.push(Protection::other(what));
        }
        let list = list.or_absent().flatten().unwrap_or_default();
        let list = String::from_utf8_lossy(&list);
        let lines = list.lines().filter(|line| !line.is_empty()).take(limits::LISTED_PLUGINS);
        found.extend(lines.map(|line| Protection::other(format!("plugin {line}"))));
        found
    }

    /// Returns the path of the daemon's list of connected plugins that protect containers by their
    /// own declaration, one line each such as `10-judge validates adjustments`.
    pub fn protecting_plugins(&self) -> PathBuf {
        self.run_dir.join("protecting-plugins")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protections(text: &str) -> Vec<String> {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config.toml");
        crate::files::replace(&path, text.as_bytes()).unwrap();
        let config = super::super::load(Some(&path)).config;
        let found = config.protections().into_iter();
        let file = path.display().to_string();
        found.map(|protection| protection.what.replace(&file, "FILE")).collect()
    }

    #[test]
    fn only_settings_that_refuse_containers_protect_them() {
        for (text, wanted) in [
            ("[plugin.policy]\nrequired = true\n", "plugin policy is required"),
            ("plugin.policy.required = true\n", "plugin policy is required"),
            ("[plugin.a]\non_failure = \"refuse\"\n", "plugin a has on_failure = \"refuse\""),
            ("[nri.default_validator]\nenable = true\n", "the default validator is enabled"),
            (
                "[[require]]\nname = \"gpu\"\ncdi = [\"a.com/*\"]\nplugin = \"10-gpu\"\n",
                "the promise \"gpu\" needs the plugin 10-gpu",
            ),
            (
                "on_daemon_failure = \"fial\"\n",
                "the configuration has an error: FILE:1:21: on_daemon_failure: must be one of: \
                 continue, fail",
            ),
            (
                "[plugin.policy]\nrequired = \"true\"\n",
                "the configuration has an error: FILE:2:12: plugin.policy.required: expected \
                 true or false",
            ),
        ] {
            assert_eq!(protections(text), [wanted]);
        }
        for text in [
            "",
            "[plugin.policy]\nrequired = false\non_failure = \"skip\"\n",
            "[plugin.a]\ndeny = [\"Env\"]\n",
            "[[require]]\nplugin = \"a\"\ncdi = [\"*\"]\nmode = \"audit\"\n",
            "[nri.default_validator]\nreject_sysctl_adjustment = true\n",
        ] {
            assert_eq!(protections(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn listed_protecting_plugins_count_without_the_daemon() {
        let temp = tempfile::tempdir().unwrap();
        let config = Config { run_dir: temp.path().to_owned(), ..Config::default() };
        assert_eq!(config.protections_without_daemon(), []);
        let list = b"10-judge validates adjustments\n\n";
        crate::files::replace(&config.protecting_plugins(), list).unwrap();
        let [found] = &config.protections_without_daemon()[..] else { panic!() };
        assert_eq!(found.what, "plugin 10-judge validates adjustments");
        assert_eq!(found.required, None);
    }
}
