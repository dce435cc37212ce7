// SPDX-License-Identifier: Apache-2.0
//! Warnings about valid settings that are probably mistakes: rules that never decide, exec rules
//! that also refuse probes, `drift.reapply` without `drift.every`, names of plugins that are neither
//! connected nor pre-installed. `check` and `reload` print them; containers are not affected.
//! Nothing here reads a file.

use std::collections::BTreeSet;

use super::exec_rules::ExecRuleSection;
use super::plugins::bare_name;
use super::rules::{INJECTIONS, RuleMode, RuleSection};
use super::selectors::{PodSelectors, excluded};
use super::settings::{ANY_PLUGIN, Config};
use crate::{glob, limits};

/// Returns lines about the rules that never decide, because one of the first
/// [`limits::COMPARED_RULES`] rules comes earlier and covers them.
pub(super) fn unreached(rules: &[RuleSection]) -> Vec<String> {
    let lines = rules.iter().enumerate().filter_map(|(index, rule)| {
        let mut before = rules[..index.min(limits::COMPARED_RULES)].iter();
        let before = before.find(|before| covers(before, rule))?;
        Some(format!(
            "the rule \"{}\" never decides: the earlier rule \"{}\" matches all that it matches",
            rule.name, before.name
        ))
    });
    limits::listed(lines, "rule", "that can never decide")
}

/// Returns lines about the exec rules that also refuse probes and lifecycle hooks: kubelet
/// starts these like a person's command, and the author of a rule rarely means to refuse them.
pub(super) fn bare_denials(rules: &[ExecRuleSection]) -> Vec<String> {
    let is_for_any_command = |rule: &ExecRuleSection| {
        let is_bare = rule.commands.is_empty() && rule.terminal != Some(true);
        rule.mode == RuleMode::Enforce && is_bare
    };
    // An earlier rule that permits commands in all pods of `denial` may permit what kubelet starts.
    let is_after_permission = |at: usize, denial: &ExecRuleSection| {
        let before = rules.iter().take(at.min(limits::COMPARED_RULES));
        before.filter(|rule| rule.allow).any(|rule| covers_pods(&rule.pods, &denial.pods))
    };
    let denials = rules.iter().enumerate().filter(|(at, rule)| {
        !rule.allow && is_for_any_command(rule) && !is_after_permission(*at, rule)
    });
    let lines = denials.map(|(_, rule)| {
        format!(
            "the exec rule \"{}\" refuses exec probes and lifecycle hooks of kubelet too: permit their \
             commands by a rule before it, or set terminal = true",
            rule.name
        )
    });
    limits::listed(lines, "exec rule", "that would refuse probes and lifecycle hooks too")
}

/// Returns a warning if fields are to be restored but no check for drift is configured.
pub(super) fn idle_reapply(config: &Config) -> Option<String> {
    let is_idle = config.drift_every.is_none() && !config.drift_reapply.is_empty();
    is_idle.then(|| "drift.reapply restores nothing without drift.every".to_owned())
}

/// Whether `rule` matches all pods and plugins that `other` matches; false in doubt.
fn covers(rule: &RuleSection, other: &RuleSection) -> bool {
    // Only an entry that names injections matches one.
    let injections = |rule: &RuleSection| -> Vec<String> {
        let names = rule.plugins.iter().filter(|name| name.starts_with(INJECTIONS));
        names.cloned().collect()
    };
    let (ours, theirs) = (injections(rule), injections(other));
    covers_pods(&rule.pods, &other.pods)
        && covers_list(&rule.plugins, &other.plugins, covers_plugin)
        && (theirs.is_empty() || !ours.is_empty() && covers_list(&ours, &theirs, covers_pattern))
}

fn covers_pods(pods: &PodSelectors, other: &PodSelectors) -> bool {
    let lists = [
        (&pods.namespaces, &other.namespaces),
        (&pods.engines, &other.engines),
        (&pods.handlers, &other.handlers),
    ];
    lists.iter().all(|(list, other)| covers_list(list, other, covers_pattern))
        && pods.without_labels == other.without_labels
        && pods.labels.len() <= limits::COMPARED_RULES
        && pods.labels.iter().all(|(key, pattern)| {
            let has_all =
                |(name, value): &(String, String)| name == key && covers_pattern(pattern, value);
            other.labels.iter().any(has_all)
        })
}

/// Whether `list` matches everything that `other` matches. An empty list matches everything. A long
/// list, or one with exclusions, covers only an equal list; exclusions in `other` only make `other`
/// narrower.
fn covers_list(list: &[String], other: &[String], covers: fn(&str, &str) -> bool) -> bool {
    if list.len() > limits::COMPARED_RULES || list.iter().any(|entry| excluded(entry).is_some()) {
        return list == other;
    }
    let is_covered = |other: &String| list.iter().any(|pattern| covers(pattern, other));
    let mut chosen = other.iter().filter(|entry| excluded(entry).is_none()).peekable();
    list.iter().any(|pattern| pattern == "*")
        || list.is_empty()
        || (chosen.peek().is_some() && chosen.all(is_covered))
}

fn covers_pattern(pattern: &str, other: &str) -> bool {
    pattern == "*"
        || pattern == other
        || (!glob::is_pattern(other) && glob::matches(pattern, other))
}

fn covers_plugin(pattern: &str, other: &str) -> bool {
    covers_pattern(pattern, other) || covers_pattern(pattern, bare_name(other))
}

impl Config {
    /// Returns lines about the names and patterns of plugins in the configuration that fit none of
    /// `known` (each `NN-name`).
    pub(crate) fn unseen_plugins(&self, known: &[String]) -> Vec<String> {
        let sections = self.plugins.keys().filter(|name| *name != ANY_PLUGIN);
        let sections = sections.map(|name| (format!("the section [plugin.{name}]"), name));
        let in_rules = self.rules.iter().flat_map(|rule| {
            let names = rule.plugins.iter().filter(|name| !name.starts_with(INJECTIONS));
            let names = names.filter(|name| excluded(name).is_none());
            names.map(|name| (format!("the rule \"{}\"", rule.name), name))
        });
        let required = self.default_validator.required_plugins.iter();
        let required =
            required.map(|name| ("nri.default_validator.required_plugins".to_owned(), name));
        let awaited = self.wait_for.iter().map(|name| ("nri.wait_for".to_owned(), name));
        let promised = self.promises.iter();
        let promised = promised.map(|it| (format!("the promise \"{}\"", it.name), &it.plugin));
        let named = sections.chain(in_rules).chain(required).chain(awaited).chain(promised);
        let ids = known.iter().map(String::as_str);
        let known: BTreeSet<&str> = ids.clone().chain(ids.map(bare_name)).collect();
        let is_known = |name: &str| {
            let fits = || glob::is_pattern(name) && known.iter().any(|id| glob::matches(name, id));
            name == "*" || known.contains(name) || fits()
        };
        let unseen = named.filter(|(_, name)| !is_known(name));
        let lines = unseen.map(|(place, name)| {
            format!("{place} names the plugin {name}, which is neither connected nor pre-installed")
        });
        limits::listed(lines, "name", "of plugins neither connected nor pre-installed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(first: &str, second: &str) -> Vec<String> {
        unreached(&Config::of_text(&format!("[[rule]]\n{first}\n[[rule]]\n{second}\n")).rules)
    }

    #[test]
    fn fields_to_reapply_need_an_interval() {
        let read = |text| idle_reapply(&Config::of_text(text));
        assert!(read("[drift]\nreapply = [\"CPUSetCPUs\"]\n").is_some());
        assert!(read("[drift]\nreapply = [\"CPUSetCPUs\"]\nevery = \"1s\"\n").is_none());
        assert!(read("[drift]\nevery = \"1s\"\n").is_none());
    }

    #[test]
    fn a_rule_after_a_broader_one_is_reported() {
        for (first, second) in [
            ("hide = true", "deny = [\"Env\"]"),
            ("namespaces = [\"prod-*\"]", "namespaces = [\"prod-a\"]\nplugins = [\"x\"]"),
            ("namespaces = [\"a\", \"b\"]", "namespaces = [\"b\", \"a\"]"),
            ("plugins = [\"foo\"]", "plugins = [\"10-foo\"]"),
            ("engines = [\"*\"]", "engines = [\"cri-*\"]"),
            ("labels = [\"a=*\"]", "labels = [\"b=1\", \"a=2\"]"),
            ("namespaces = [\"x-*\"]", "namespaces = [\"x-*\"]"),
            ("namespaces = [\"x\"]", "namespaces = [\"x\", \"!y\"]"),
            ("namespaces = [\"*\"]", "namespaces = [\"!y\"]"),
            ("namespaces = [\"!y\"]", "namespaces = [\"!y\"]"),
        ] {
            let lines = rules(first, second);
            let wanted = "the rule \"f:3\" never decides: the earlier rule \"f:1\" matches";
            let [line] = &lines[..] else { panic!("{first} / {second}: {lines:?}") };
            let wanted = wanted.replace("f:3", &format!("f:{}", 2 + first.lines().count()));
            assert!(line.starts_with(&wanted), "{line}");
        }
    }

    #[test]
    fn a_reachable_rule_is_not_reported() {
        for (first, second) in [
            ("namespaces = [\"a\"]", "hide = true"),
            ("namespaces = [\"a\"]", "namespaces = [\"a\", \"b\"]"),
            ("namespaces = [\"a?\"]", "namespaces = [\"a*\"]"),
            ("plugins = [\"10-foo\"]", "plugins = [\"foo\"]"),
            ("labels = [\"a=1\"]", "namespaces = [\"x\"]"),
            ("labels = [\"a=1\", \"b=2\"]", "labels = [\"a=1\"]"),
            ("handlers = [\"\"]", "handlers = [\"kata\"]"),
            ("namespaces = [\"*\", \"!a\"]", "namespaces = [\"a\"]"),
            ("namespaces = [\"a\"]", "namespaces = [\"!b\"]"),
            ("labels = [\"!a=1\"]", "namespaces = [\"x\"]"),
            ("plugins = [\"inject:*\"]", "plugins = [\"10-foo\"]"),
            ("deny = [\"Env\"]", "plugins = [\"inject:*\"]"),
        ] {
            assert_eq!(rules(first, second), [""; 0], "{first} / {second}");
        }
    }

    #[test]
    fn a_bare_denial_is_reported_unless_a_rule_permits_some() {
        for (text, count) in [
            ("[[exec_rule]]\n", 1),
            ("[[exec_rule]]\nterminal = false\nusers = [0]\n", 1),
            ("[[exec_rule]]\nnamespaces = [\"a\"]\n[[exec_rule]]\n", 2),
            ("[[exec_rule]]\nterminal = true\n", 0),
            ("[[exec_rule]]\ncommands = [\"sh\"]\n", 0),
            ("[[exec_rule]]\nmode = \"audit\"\n", 0),
            ("[[exec_rule]]\ncommands = [\"/x\"]\nallow = true\n[[exec_rule]]\n", 0),
            (
                "[[exec_rule]]\nnamespaces = [\"a\"]\nallow = true\n[[exec_rule]]\n\
                 [[exec_rule]]\nnamespaces = [\"a\"]\n",
                1,
            ),
        ] {
            assert_eq!(bare_denials(&Config::of_text(text).exec_rules).len(), count, "{text}");
        }
    }

    #[test]
    fn a_warning_about_thousands_of_sections_counts_them() {
        let many = |section: &str| Config::of_text(&section.repeat(3000));
        let denials = bare_denials(&many("[[exec_rule]]\n").exec_rules);
        let unreached = unreached(&many("[[rule]]\nhide = true\n").rules);
        let unseen = many("[[rule]]\nplugins = [\"a\"]\nhide = true\n").unseen_plugins(&[]);
        for (lines, more) in [(denials, 2980), (unreached, 2979), (unseen, 2980)] {
            assert_eq!(lines.len(), limits::LISTED + 1);
            assert!(lines[limits::LISTED].starts_with(&format!("{more} more ")), "{lines:?}");
        }
    }

    #[test]
    fn only_unknown_plugin_names_are_reported() {
        let config = Config::of_text(
            "[nri]\nwait_for = [\"10-a\", \"20-b\"]\n[plugin.a]\n[plugin.c]\nstrikes = 1\n\
             [plugin.\"*\"]\nstrikes = 2\n[plugin.10-a]\nstrikes = 3\n[[rule]]\nname = \"r\"\n\
             plugins = [\"*\", \"1?-a\", \"d-*\"]\nhide = true\n[[require]]\nname = \"p\"\n\
             plugin = \"e\"\ncdi = [\"*\"]\n",
        );
        let lines = config.unseen_plugins(&["10-a".to_owned()]);
        let names = [
            "[plugin.c] names the plugin c,",
            "\"r\" names the plugin d-*",
            "20-b, which",
            "the promise \"p\" names the plugin e,",
        ];
        assert_eq!(lines.len(), names.len(), "{lines:?}");
        for (line, name) in lines.iter().zip(names) {
            assert!(line.contains(name), "{line}");
        }
    }
}
