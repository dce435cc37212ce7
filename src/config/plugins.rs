// SPDX-License-Identifier: Apache-2.0
//! The settings of one plugin. Each key comes from the section with the full id (`NN-name`), else
//! with the name, else from `[plugin."*"]`, else it has the default: the search continues after
//! a section without the key. Nothing here reads a file.

use std::time::Duration;

use super::settings::{
    ANY_PLUGIN, Config, Displace, Evict, OnFailure, PluginOrigin, PluginSection,
};

/// Settings of one plugin. `None` means that the operator sets nothing, so the plugin's declaration
/// applies, or for a time limit its default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginSettings {
    /// What happens if the plugin does not respond.
    pub on_failure: Option<OnFailure>,
    /// Time limit for one request to the plugin.
    pub request_timeout: Option<Duration>,
    /// Time limit for the plugin's whole Synchronize.
    pub sync_timeout: Option<Duration>,
    /// Consecutive time-outs after which the plugin is disconnected; 0 for never.
    pub strikes: Option<u32>,
    /// Whether containers are refused while the plugin is missing.
    pub required: bool,
    /// Maximum number of concurrent requests, each about a different container.
    pub concurrency: u32,
    /// Fields that the plugin may set, by NRI name; empty means all.
    pub allow: Vec<String>,
    /// Fields that the plugin may not set.
    pub deny: Vec<String>,
    /// The containers that the plugin may evict.
    pub evict: Evict,
    /// The processes that may connect under the plugin's name; empty means any.
    pub from: Vec<PluginOrigin>,
    /// The processes that may connect under the plugin's name while a pre-installed file has that
    /// name.
    pub displace: Displace,
    /// Patterns of annotations that the plugin may set although runtimes act on them.
    pub runtime_annotations: Vec<String>,
}

impl Config {
    /// Returns the operator's settings for the plugin `index-name`.
    pub fn plugin(&self, index: &str, name: &str) -> PluginSettings {
        let id = format!("{index}-{name}");
        let sections = self.sections(&id, name);
        PluginSettings {
            on_failure: first(&sections, |section| section.on_failure.as_ref()),
            request_timeout: first(&sections, |section| section.request_timeout.as_ref()),
            sync_timeout: first(&sections, |section| section.sync_timeout.as_ref()),
            strikes: first(&sections, |section| section.strikes.as_ref()),
            required: first(&sections, |section| section.required.as_ref()).unwrap_or_default(),
            concurrency: first(&sections, |section| section.concurrency.as_ref()).unwrap_or(1),
            allow: first(&sections, |section| section.allow.as_ref()).unwrap_or_default(),
            deny: first(&sections, |section| section.deny.as_ref()).unwrap_or_default(),
            evict: first(&sections, |section| section.evict.as_ref()).unwrap_or_default(),
            from: first(&sections, |section| section.from.as_ref()).unwrap_or_default(),
            displace: first(&sections, |section| section.displace.as_ref()).unwrap_or_default(),
            runtime_annotations: first(&sections, |section| section.runtime_annotations.as_ref())
                .unwrap_or_default(),
        }
    }

    /// Returns the sections that may have a plugin's keys, the first to be searched first.
    fn sections(&self, id: &str, name: &str) -> Vec<&PluginSection> {
        [id, name, ANY_PLUGIN].iter().filter_map(|name| self.plugins.get(*name)).collect()
    }

    /// Returns the name, in a configuration key, of the section from which the plugin `NN-name` has a key that is set.
    pub(crate) fn section_of<'n, T>(
        &self,
        id: &'n str,
        key: fn(&PluginSection) -> Option<&T>,
    ) -> &'n str {
        let has_key = |name: &&str| self.plugins.get(*name).and_then(key).is_some();
        [id, bare_name(id)].into_iter().find(has_key).unwrap_or("\"*\"")
    }

    /// Returns the plugins, as `name` or `NN-name`, that their own sections require.
    pub fn required_plugins(&self) -> impl Iterator<Item = &str> {
        let required = self.plugins.iter().filter(|(_, section)| section.required == Some(true));
        required.map(|(name, _)| name.as_str())
    }

    /// Whether the plugin `NN-name` has a section, or the operator requires it or waits for it by name.
    pub(crate) fn names_plugin(&self, id: &str) -> bool {
        let bare = bare_name(id);
        let is_it = |name: &String| name == id || name == bare;
        let required = &self.default_validator.required_plugins;
        let promised = self.promises.iter().map(|promise| &promise.plugin);
        self.plugins.contains_key(id)
            || self.plugins.contains_key(bare)
            || self.wait_for.iter().chain(required).chain(promised).any(is_it)
    }

    /// Returns the time that a create or a pod waits for the required plugin `name` (or `NN-name`).
    pub(crate) fn required_wait(&self, name: &str) -> Duration {
        let sections = self.sections(name, bare_name(name));
        first(&sections, |section| section.wait.as_ref()).unwrap_or_default()
    }

    /// Returns the time that a container waits for the plugin of this promise.
    pub(crate) fn promised_wait(&self, promise: &str, plugin: &str) -> Duration {
        let section = self.promises.iter().find(|section| section.name == promise);
        let wait = section.and_then(|section| section.wait);
        wait.unwrap_or_else(|| self.required_wait(plugin))
    }
}

/// Returns the name in `NN-name`; a name without an index is returned unchanged.
pub(crate) fn bare_name(plugin: &str) -> &str {
    let is_index = |index: &str| index.len() == 2 && index.bytes().all(|b| b.is_ascii_digit());
    match plugin.split_once('-') {
        Some((index, name)) if is_index(index) => name,
        Some(_) | None => plugin,
    }
}

/// Returns the value in the first section that has the key.
fn first<T: Clone>(
    sections: &[&PluginSection],
    key: fn(&PluginSection) -> Option<&T>,
) -> Option<T> {
    sections.iter().find_map(|section| key(section).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_that_sets_a_key_is_named() {
        let config = Config::of_text(
            "[plugin.\"*\"]\nevict = \"deny\"\n[plugin.a]\nfrom = [\"exe:/a\"]\n\
             [plugin.10-a]\ndeny = [\"Env\"]\n",
        );
        let section = |id| config.section_of(id, |section| section.from.as_ref());
        assert_eq!(section("10-a"), "a");
        assert_eq!(config.section_of("10-a", |section| section.deny.as_ref()), "10-a");
        assert_eq!(config.section_of("10-a", |section| section.evict.as_ref()), "\"*\"");
    }

    #[test]
    fn patterns_of_annotations_are_read_and_a_mistake_is_named() {
        let config = Config::of_text("[plugin.a]\nruntime_annotations = [\"run.oci.*\"]\n");
        assert_eq!(config.plugin("10", "a").runtime_annotations, ["run.oci.*"]);
        assert!(config.plugin("10", "b").runtime_annotations.is_empty());
        let (_, problems) = Config::read("[plugin.a]\nruntime_annotations = [\"run.oci.[\"]\n");
        assert!(format!("{problems:?}").contains("run.oci.["), "{problems:?}");
    }

    #[test]
    fn each_key_comes_from_the_most_specific_section_that_has_it() {
        let config = Config::of_text(
            "[plugin.\"*\"]\nstrikes = 1\ndeny = [\"OciHooks\"]\nevict = \"deny\"\n\
             request_timeout = \"1s\"\nsync_timeout = \"1m\"\nconcurrency = 2\nallow = [\"Env\"]\non_failure = \"refuse\"\n\
             [plugin.a]\nstrikes = 2\ndeny = [\"Mounts\"]\nallow = []\nrequired = true\n\
             [plugin.10-a]\nstrikes = 3\n",
        );
        let exact = config.plugin("10", "a");
        assert_eq!((exact.strikes, exact.deny), (Some(3), vec!["Mounts".to_owned()]));
        assert_eq!((exact.evict, exact.concurrency, exact.required), (Evict::Deny, 2, true));
        assert_eq!(exact.allow, Vec::<String>::new(), "an empty list lifts the default's");
        let named = config.plugin("11", "a");
        assert_eq!((named.strikes, named.deny), (Some(2), vec!["Mounts".to_owned()]));
        for (index, name) in [("10", "b"), ("00", "A"), ("99", "a-b")] {
            let other = config.plugin(index, name);
            assert_eq!((other.strikes, other.deny), (Some(1), vec!["OciHooks".to_owned()]));
            assert_eq!((other.allow, other.required), (vec!["Env".to_owned()], false));
            assert_eq!(other.on_failure, Some(OnFailure::Refuse));
            assert_eq!(other.request_timeout, Some(Duration::from_secs(1)));
            assert_eq!(other.sync_timeout, Some(Duration::from_secs(60)));
        }
    }

    #[test]
    fn without_any_section_the_defaults_apply() {
        let settings = Config::default().plugin("10", "a");
        assert_eq!(settings, PluginSettings { concurrency: 1, ..PluginSettings::default() });
    }

    #[test]
    fn the_most_specific_section_sets_the_wait_for_a_plugin() {
        let config = Config::of_text(
            "[plugin.a]\nwait = \"3s\"\n[plugin.10-a]\nwait = \"5s\"\n\
             [plugin.\"*\"]\nwait = \"1s\"\n[plugin.b]\nrequired = true\n",
        );
        let waits = [("10-a", 5), ("a", 3), ("20-a", 3), ("b", 1), ("99-c", 1)];
        for (name, seconds) in waits {
            assert_eq!(config.required_wait(name), Duration::from_secs(seconds), "{name}");
        }
        assert_eq!(Config::default().required_wait("a"), Duration::ZERO);
    }

    #[test]
    fn the_wildcard_section_restricts_all_other_plugins() {
        let config = Config::of_text(
            "[plugin.\"*\"]\nfrom = [\"exe:/opt/nri/plugins/*\"]\n\
             [plugin.a]\nfrom = [\"pod:kube-system/a-*\", \"exe:/usr/bin/a\"]\n[plugin.free]\nfrom = []\n",
        );
        let program = |path: &str| PluginOrigin::Program(path.to_owned());
        let pod = PluginOrigin::Pod { namespace: "kube-system".to_owned(), name: "a-*".to_owned() };
        assert_eq!(config.plugin("10", "a").from, [pod, program("/usr/bin/a")]);
        assert_eq!(config.plugin("10", "a2").from, [program("/opt/nri/plugins/*")]);
        assert_eq!(config.plugin("10", "free").from, []);
    }

    #[test]
    fn the_most_specific_section_decides_whether_displace_is_any() {
        let config = Config::of_text(
            "[plugin.\"*\"]\ndisplace = \"any\"\n[plugin.a]\ndisplace = \"never\"\n\
             [plugin.10-a]\ndisplace = \"any\"\n",
        );
        let displace = |index: &str, name: &str| config.plugin(index, name).displace;
        assert_eq!((displace("10", "a"), displace("11", "a")), (Displace::Any, Displace::Never));
        assert_eq!(displace("10", "b"), Displace::Any);
        assert_eq!(Config::default().plugin("10", "a").displace, Displace::Never);
    }

    #[test]
    fn only_plugins_that_are_named_are_required() {
        let config =
            Config::of_text("[plugin.a]\nrequired = true\n[plugin.\"*\"]\nrequired = false\n");
        assert_eq!(config.required_plugins().collect::<Vec<_>>(), ["a"]);
    }
}
