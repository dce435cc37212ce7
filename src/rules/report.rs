// SPDX-License-Identifier: Apache-2.0
//! Reports the rules that decide about a pod, with reasons, as the document of `nri-runc nri policy
//! test`. Nothing is changed, and no plugin is asked.

use std::collections::BTreeSet;

use nri_adaptation::{FieldSet, NriField, RuleDecision};

use super::{Fit, RuledPod, Rules, exec_rows};
use crate::answers::{PluginRights, PolicyAnswer, PolicyPod, RuleTried};
use crate::config::{Config, EVERY_FIELD, EVICTION, RuleMode};

/// Returns the rules' decisions about this pod, for these plugins (`NN-name`, or a name) and for those
/// that a rule or a section names.
pub(crate) fn report(
    config: &Config,
    rules: &Rules,
    pod: &RuledPod,
    plugins: impl IntoIterator<Item = String>,
) -> PolicyAnswer {
    let mut ids: BTreeSet<String> = plugins.into_iter().collect();
    let known: BTreeSet<String> = ids.iter().flat_map(|id| [id.clone(), bare(id)]).collect();
    let sections = config.plugins.keys().map(String::as_str).filter(|name| *name != EVERY_FIELD);
    let named =
        rules.named_plugins().into_iter().chain(sections).filter(|name| !known.contains(*name));
    ids.extend(named.map(ToOwned::to_owned).collect::<Vec<_>>());
    PolicyAnswer {
        pod: PolicyPod {
            namespace: pod.namespace.clone(),
            labels: pod.labels.clone(),
            engine: pod.engine.clone(),
            handler: pod.handler.clone(),
            proven: !pod.is_doubtful,
            ..PolicyPod::default()
        },
        rules: rules.rules.len(),
        plugins: ids.iter().map(|id| row(config, rules, pod, id)).collect(),
        exec_rules: exec_rows(&config.exec_rules, pod),
        ..PolicyAnswer::default()
    }
}

fn bare(id: &str) -> String {
    crate::config::bare_name(id).to_owned()
}

fn row(config: &Config, rules: &Rules, pod: &RuledPod, id: &str) -> PluginRights {
    let decision = rules.decide(id, pod);
    let explained = rules.explain(id, pod);
    let settled = explained.iter().position(|(_, fit, _)| *fit == Fit::Yes);
    let tried = settled.map_or(explained.len(), |at| at + 1);
    let why = explained.iter().enumerate().map(|(at, (ruling, fit, reason))| RuleTried {
        rule: ruling.rule.clone(),
        matches: *fit,
        why: reason.to_string(),
        // A rule after the one that decides is never tried.
        decides: at < tried && *fit != Fit::No,
    });
    let first = decision.rulings.first();
    PluginRights {
        plugin: id.to_owned(),
        rule: first.map(|ruling| ruling.rule.clone()),
        mode: first.map(|ruling| RuleMode::of(!ruling.is_audit)),
        hidden: decision.is_hidden,
        refused: names(refused(&decision, false)),
        would_refuse: names(refused(&decision, true)),
        refused_by_section: by_section(config, id),
        rules: why.collect(),
    }
}

fn refused(decision: &RuleDecision, is_audit: bool) -> FieldSet {
    let mut refused = FieldSet::NONE;
    for ruling in decision.rulings.iter().filter(|ruling| ruling.is_audit == is_audit) {
        let mut against = FieldSet::ALL;
        against.remove(ruling.permits);
        refused = refused.or(against);
    }
    refused
}

fn names(set: FieldSet) -> Vec<String> {
    if set == FieldSet::ALL {
        return vec![EVERY_FIELD.to_owned()];
    }
    let fields = NriField::ALL.into_iter().filter(|field| set.has(FieldSet::of(*field)));
    let eviction = set.has(FieldSet::EVICTION).then_some(EVICTION);
    fields.map(NriField::name).chain(eviction).map(str::to_owned).collect()
}

/// Returns the fields that the plugin's own section refuses, in any container.
fn by_section(config: &Config, id: &str) -> Vec<String> {
    let name = bare(id);
    let index = id.strip_suffix(&name).unwrap_or_default().trim_end_matches('-');
    let settings = config.plugin(index, &name);
    let has = |list: &[String], field: NriField| list.iter().any(|name| name == field.name());
    let is_refused = |field: &NriField| {
        has(&settings.deny, *field) || !settings.allow.is_empty() && !has(&settings.allow, *field)
    };
    let fields = NriField::ALL.into_iter().filter(is_refused);
    fields.map(|field| field.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Two rules for all plugins, two for some, and sections of plugins.
    const TEXT: &str = r#"
[[rule]]
name = "tests"
namespaces = ["test"]
deny = ["*"]

[[rule]]
name = "web"
plugins = ["10-a", "d*", "inject:x"]
namespaces = ["prod"]
labels = ["app=w*"]
deny = ["Env", "Eviction"]

[[rule]]
name = "watched"
plugins = ["b"]
mode = "audit"
deny = ["Mounts"]

[[rule]]
name = "hidden"
hide = true

[[exec_rule]]
name = "shells"
commands = ["sh"]

[plugin."*"]
strikes = 1

[plugin.a]
deny = ["Mounts"]

[plugin.c]
allow = ["Env"]
"#;

    fn pod() -> RuledPod {
        RuledPod {
            namespace: "prod".to_owned(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            engine: "containerd-cri".to_owned(),
            handler: "kata".to_owned(),
            ..RuledPod::default()
        }
    }

    /// Returns the report as a document.
    fn reported(pod: &RuledPod, plugins: &[&str]) -> Value {
        let config = Config::of_text(TEXT);
        let plugins = plugins.iter().copied().map(str::to_owned);
        serde_json::to_value(report(&config, &Rules::of(&config), pod, plugins)).unwrap()
    }

    /// The row of a rule.
    fn tried(rule: &str, matches: &str, why: &str, decides: bool) -> Value {
        json!({"rule": rule, "matches": matches, "why": why, "decides": decides})
    }

    #[test]
    fn a_report_names_the_pod_and_every_plugin_once() {
        let report = reported(&pod(), &["20-b"]);
        assert_eq!(
            report["pod"],
            json!({
                "namespace": "prod", "labels": {"app": "web"}, "engine": "containerd-cri",
                "handler": "kata", "proven": true, "id": "", "name": "",
            })
        );
        assert_eq!(
            (&report["rules"], &report["exec_rules"][0]["rule"]),
            (&json!(4), &json!("shells"))
        );
        let names = |report: &Value| {
            let plugins = report["plugins"].as_array().unwrap().iter();
            plugins.map(|row| row["plugin"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // `d*` and `inject:x` name no plugin, and `b` is the connected one.
        assert_eq!(names(&report), ["10-a", "20-b", "a", "c"]);
        assert_eq!(names(&reported(&pod(), &["10-a", "99-z"])), ["10-a", "99-z", "b", "c"]);
        assert_eq!(
            reported(&RuledPod { is_doubtful: true, ..pod() }, &[])["pod"]["proven"],
            json!(false)
        );
    }

    #[test]
    fn a_report_has_each_rules_reason_and_result() {
        let report = reported(&pod(), &["10-a", "20-b"]);
        let differs = || tried("tests", "no", "namespaces does not have \"prod\"", false);
        let all = "it matches every plugin and pod";
        assert_eq!(
            report["plugins"][0],
            json!({
                "plugin": "10-a", "rule": "web", "mode": "enforce", "hidden": false,
                "refused": ["Env", "Eviction"], "would_refuse": [], "refused_by_section": ["Mounts"],
                "rules": [
                    differs(),
                    tried("web", "yes", "plugins: \"10-a\", labels: \"app=w*\", namespaces: \"prod\"", true),
                    tried("watched", "no", "plugins does not have \"10-a\"", false),
                    tried("hidden", "yes", all, false),
                ],
            })
        );
        assert_eq!(
            report["plugins"][1],
            json!({
                "plugin": "20-b", "rule": "watched", "mode": "audit", "hidden": false,
                "refused": [], "would_refuse": ["Mounts"], "refused_by_section": [],
                "rules": [
                    differs(),
                    tried("web", "no", "plugins does not have \"20-b\"", false),
                    tried("watched", "yes", "plugins: \"b\"", true),
                    tried("hidden", "yes", all, false),
                ],
            })
        );
        let other = &report["plugins"][2];
        assert_eq!((&other["plugin"], &other["hidden"]), (&json!("c"), &json!(true)));
        assert_eq!((&other["refused"], &other["mode"]), (&json!(["*"]), &json!("enforce")));
        let by_section = other["refused_by_section"].as_array().unwrap();
        assert_eq!(by_section.len(), NriField::ALL.len() - 1);
        assert!(!by_section.contains(&json!("Env")));
    }
}
