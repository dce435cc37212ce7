// SPDX-License-Identifier: Apache-2.0
//! `[[rule]]`: which plugins may do what with which pods (decision D44). The table has each key
//! with its default, meaning and parser; `docs/config.md` is generated from it.
//!
//! Rules protect, so unless an earlier configuration stays in force, a rule with a mistake hides
//! every pod that earlier rules did not match, from every plugin (D43). Nothing here reads a file,
//! and no rule is applied here.

use serde::{Deserialize, Serialize};
use toml_edit::Value;

use super::fields::check_field;
use super::selectors::{Mistake, PodSelectors, read_name, read_patterns, read_text, read_texts};
use super::settings::Config;
use super::tables::{ListKey, ListedSection, list_keys};
use crate::named::{Named, named};

/// Means every field in a rule's `allow` and `deny`.
pub(crate) const EVERY_FIELD: &str = "*";
/// The prefix of an injection in a rule's list of plugins: `inject:NAME`.
pub(crate) const INJECTIONS: &str = "inject:";
/// The right to evict a container, listed among the fields.
pub(crate) const EVICTION: &str = "Eviction";

named! {
    /// The reaction to a request that a rule does not permit, or to a promise that is not kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub enum RuleMode {
        /// The request is refused.
        #[default]
        Enforce => "enforce",
        /// The request is permitted, and recorded.
        Audit => "audit",
    }
}

impl RuleMode {
    /// Returns the mode of a rule that refuses (`true`) or only records.
    pub(crate) fn of(refuses: bool) -> Self {
        if refuses { Self::Enforce } else { Self::Audit }
    }
}

/// One `[[rule]]` section as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSection {
    /// The rule's name, else `FILE:LINE` of its header.
    pub name: String,
    /// The pods that the rule selects.
    pub pods: PodSelectors,
    /// Plugins whose name or `NN-name` matches one of these; empty means any plugin, but no injection.
    pub plugins: Vec<String>,
    /// The permitted fields; without this list, all are permitted.
    pub allow: Option<Vec<String>>,
    /// Forbidden fields.
    pub deny: Vec<String>,
    /// Whether the rule is enforced.
    pub mode: RuleMode,
    /// Whether the plugins receive nothing about these pods, unless the rule only audits.
    pub hide: bool,
}

impl ListedSection for RuleSection {
    const LIST: &'static str = "rule";
    const KEYS: &'static [ListKey<Self>] = RULE_KEYS;

    fn list(config: &mut Config) -> &mut Vec<Self> {
        &mut config.rules
    }

    fn head(&mut self) -> (&mut String, &mut PodSelectors) {
        (&mut self.name, &mut self.pods)
    }

    /// Creates a rule that replaces one with unknown permissions: it hides everything.
    fn closed(name: &str) -> Self {
        Self { name: name.to_owned(), hide: true, ..Self::default() }
    }

    fn check(&self) -> Result<(), Mistake> {
        match self.hide && (self.allow.is_some() || !self.deny.is_empty()) {
            true => Err("a rule with hide = true cannot have allow or deny".into()),
            false => Ok(()),
        }
    }
}

list_keys! {
    RULE_KEYS: RuleSection;
    "name" = "", "Name of the rule in messages, `explain`, the audit log and metrics. It must be unique. Without it: `FILE:LINE`.", |r, v| r.name = read_name(v)?;
    "namespaces" = "[]", "Pods in one of these namespaces. `\"!NAME\"` excludes. Empty = any.", |r, v| r.pods.set("namespaces", v)?;
    "labels" = "[]", "Pods that have all of these labels, each as `\"KEY=VALUE\"`, or as a table `{ KEY = \"VALUE\" }`. `\"KEY=*\"` = any value, `\"!KEY=VALUE\"` excludes. Pod authors write labels (on Docker image authors too): use them to restrict, not to permit.", |r, v| r.pods.set("labels", v)?;
    "engines" = "[]", "Pods of one of these engines: `containerd-cri`, `containerd`, `nerdctl`, `docker`, `cri-o`, `podman`, `isulad`, `kubernetes` or `plain`, as `nri-runc nri pods --json` shows it. Empty = any.", |r, v| r.pods.set("engines", v)?;
    "handlers" = "[]", "Pods with one of these runtime handlers; the default handler is `\"\"`. Empty = any.", |r, v| r.pods.set("handlers", v)?;
    "plugins" = "[]", "Plugins by `name` or `NN-name`; injections only by `inject:NAME` or `inject:*`. Empty = any plugin.", |r, v| r.plugins = read_patterns(v)?;
    "allow" = "", "Fields that the plugin may set, by NRI name, and `Eviction`; `[\"*\"]` = all. Without it: all.", |r, v| r.allow = Some(read_rights(v)?);
    "deny" = "[]", "Fields that the plugin may not set, by NRI name, and `Eviction`; overrides `allow`.", |r, v| r.deny = read_rights(v)?;
    "mode" = "\"enforce\"", "`enforce`: refuse what the rule does not permit. `audit`: permit it and log it.", |r, v| r.mode = read_mode(v)?;
    "hide" = "false", "The plugin receives nothing about these pods and their containers, and may not change them. With `mode = \"audit\"` it receives everything, and its changes are logged. Not together with `allow` or `deny`.", |r, v| r.hide = read_truth(v)?;
}

fn read_truth(value: &Value) -> Result<bool, Mistake> {
    value.as_bool().ok_or_else(|| "expected true or false".into())
}

/// Parses names of fields. An empty list is refused, because it could be read as everything or as
/// nothing.
fn read_rights(value: &Value) -> Result<Vec<String>, Mistake> {
    let names = read_texts(value)?;
    if names.is_empty() {
        return Err("is empty: write [\"*\"] for all fields, or leave the key out".into());
    }
    for name in &names {
        if ![EVERY_FIELD, EVICTION].contains(name) {
            check_field(name)?;
        }
    }
    Ok(names.into_iter().map(ToOwned::to_owned).collect())
}

pub(super) fn read_mode(value: &Value) -> Result<RuleMode, Mistake> {
    RuleMode::named(read_text(value)?).ok_or_else(|| "must be one of: enforce, audit".into())
}

/// Returns the table as `docs/config.md` shows it.
pub(super) fn markdown() -> String {
    RuleSection::markdown(
        "## Keys of a rule\n\nRules are written as `[[rule]]`, any number of them; [Rules](rules.md) \
         explains them. A name in a list may have `*`, `?` and `[a-z]`.",
    )
}

#[cfg(test)]
mod tests {
    use super::super::settings::{Consequence, Problem};
    use super::*;

    fn read(text: &str) -> (Vec<RuleSection>, Vec<String>) {
        let (config, problems) = Config::read(text);
        let is_refused = |problem: &Problem| problem.consequence == Consequence::RefusesCreates;
        assert!(problems.iter().all(is_refused), "{problems:?}");
        (config.rules, problems.into_iter().map(|problem| problem.text).collect())
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn every_key_of_a_rule_is_read_and_rules_keep_their_order() {
        let (rules, problems) = read(
            "[[rule]]\nname = \"no hooks\"\nnamespaces = [\"prod-*\", 'x', \"!prod-a\"]\n\
             labels = [\"app=web*\", \"k8s.io/tier=\", \"!old=*\"]\nengines = [\"docker\"]\n\
             handlers = [\"\"]\nplugins = [\"10-*\"]\nallow = [\"Env\", \"Eviction\"]\n\
             deny = [\"*\"]\nmode = \"audit\"\n\n[log]\nlevel = \"info\"\n# more\n\
             [[rule]]\nhide = true\n",
        );
        assert_eq!(problems, [""; 0]);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let first = RuleSection {
            name: "no hooks".to_owned(),
            pods: PodSelectors {
                namespaces: texts(&["prod-*", "x", "!prod-a"]),
                labels: vec![pair("app", "web*"), pair("k8s.io/tier", "")],
                without_labels: vec![pair("old", "*")],
                engines: texts(&["docker"]),
                handlers: texts(&[""]),
            },
            plugins: texts(&["10-*"]),
            allow: Some(texts(&["Env", "Eviction"])),
            deny: texts(&["*"]),
            mode: RuleMode::Audit,
            hide: false,
        };
        let second = RuleSection { name: "f:15".to_owned(), hide: true, ..RuleSection::default() };
        assert_eq!(rules, [first, second]);
    }

    #[test]
    fn labels_may_be_a_table() {
        let wanted = vec![("app".to_owned(), "web".to_owned()), ("t".to_owned(), "*".to_owned())];
        for text in [
            "[[rule]]\nlabels = { app = \"web\", t = \"*\" }\n",
            "[[rule]]\n[rule.labels]\napp = \"web\"\nt = \"*\"\n",
            "[[rule]]\nlabels = [\"app=web\", \"t=*\"]\n",
        ] {
            let (rules, problems) = read(text);
            assert_eq!((problems, &rules[0].pods.labels), (Vec::new(), &wanted), "{text}");
        }
    }

    #[test]
    fn a_rule_with_a_mistake_refuses_and_names_the_place() {
        for (lines, wanted) in [
            ("namespace = [\"a\"]", "f:2:1: unknown key rule.namespace (did you mean namespaces?)"),
            ("Deny = [\"Env\"]", "f:2:1: unknown key rule.Deny (did you mean deny?)"),
            ("deny = \"Env\"", "f:2:8: rule.deny: expected a list of strings"),
            ("deny = [\"Enw\"]", "f:2:8: rule.deny: \"Enw\" is not a field"),
            ("deny = [\"eviction\"]", "f:2:8: rule.deny: \"eviction\" is not a field"),
            ("allow = []", "f:2:9: rule.allow: is empty: write [\"*\"] for all fields"),
            ("deny = []", "f:2:8: rule.deny: is empty"),
            ("mode = \"warn\"", "f:2:8: rule.mode: must be one of: enforce, audit"),
            ("hide = \"true\"", "f:2:8: rule.hide: expected true or false"),
            ("hide = true\ndeny = [\"Env\"]", "f:1:1: a rule with hide = true cannot have allow"),
            ("namespaces = [\"a[\"]", "f:2:14: rule.namespaces: the pattern \"a[\" has a ["),
            ("namespaces = [\"!*\"]", "f:2:14: rule.namespaces: \"!*\" excludes everything"),
            ("namespaces = [\"!a[\"]", "f:2:14: rule.namespaces: the pattern \"a[\" has a ["),
            ("engines = [\"!crio\"]", "f:2:11: rule.engines: \"crio\" is not the name of"),
            ("labels = [\"!app\"]", "f:2:10: rule.labels: expected \"KEY=VALUE\" in place of"),
            ("labels = [\"!!a=b\"]", "f:2:10: rule.labels: the key \"!a\" of a label cannot"),
            ("labels = { \"!a\" = \"b\" }", "f:2:10: rule.labels: the key \"!a\" of a"),
            ("namespaces = \"a\"", "f:2:14: rule.namespaces: expected a list of strings"),
            (
                "engines = [\"crio\"]",
                "f:2:11: rule.engines: \"crio\" is not the name of an engine (did you mean cri-o?)",
            ),
            ("engines = [\"*crio*\"]", "f:2:11: rule.engines: \"*crio*\" is not the name of an"),
            ("plugins = [1]", "f:2:11: rule.plugins: expected a string in quotes"),
            ("labels = [\"app\"]", "f:2:10: rule.labels: expected \"KEY=VALUE\" in place of"),
            ("labels = [\"=a\"]", "f:2:10: rule.labels: expected \"KEY=VALUE\" in place of"),
            ("labels = [\"a*=b\"]", "f:2:10: rule.labels: the key \"a*\" of a label cannot"),
            ("labels = { app = 1 }", "f:2:10: rule.labels: expected a string in quotes"),
            ("name = \" \"", "f:2:8: rule.name: expected a name of 1 to 100"),
            ("[rule.deny]\nx = 1", "f:2:1: rule.deny: expected a value, not a table"),
        ] {
            let (rules, problems) = read(&format!("[[rule]]\n{lines}\n"));
            let [problem] = &problems[..] else { panic!("{lines}: {problems:?}") };
            assert!(problem.starts_with(wanted), "{problem}");
            assert_eq!(rules, [RuleSection::closed("f:1")], "{lines}");
        }
    }

    #[test]
    fn a_misspelt_rule_section_is_one_mistake_and_no_rule() {
        for text in [
            "[[rules]]\ndeny = [\"Env\"]\n",
            "[[Rule]]\nhide = true\n",
            "[[ruel]]\nhide = true\n",
            "[rule]\ndeny = [\"Env\"]\n",
            "rule = [{ deny = [\"Env\"] }]\n",
            "[rules]\nhide = true\n",
        ] {
            let (rules, problems) = read(text);
            assert!(rules.is_empty() && problems.len() == 1, "{text}: {problems:?}");
        }
    }

    #[test]
    fn a_second_rule_of_one_name_is_a_mistake_and_refuses() {
        let (rules, problems) = read("[[rule]]\nname = \"a\"\n[[rule]]\nname = \"a\"\n");
        assert!(problems[0].starts_with("f:3:1: another rule has the name \"a\""), "{problems:?}");
        assert_eq!(rules[1], RuleSection::closed("f:3"));
    }
}
