// SPDX-License-Identifier: Apache-2.0
//! Properties that hold for any rules, plugins and pods, not only for those in the golden cases.
//! There are few names, so that rules match often; the decisions are compared with a simple
//! implementation of the rules' description.

use std::collections::BTreeMap;

use nri_adaptation::{FieldSet, NriField, RuleDecision};
use nri_runc::testing::rules::{RuledPod, Rules};
use proptest::prelude::*;

use super::case::rules_of;

const NAMESPACES: [&str; 4] = ["a", "ab", "b", ""];
const ENGINES: [&str; 2] = ["docker", "cri-o"];
const HANDLERS: [&str; 2] = ["", "kata"];
const PLUGINS: [&str; 3] = ["10-x", "20-x", "10-y"];
const FIELDS: [NriField; 3] = [NriField::Env, NriField::Mounts, NriField::OciHooks];

/// A rule as an operator would write it, by indexes into short lists; `None` omits a key.
#[derive(Debug, Clone)]
struct Written {
    namespaces: Option<usize>,
    engines: Option<usize>,
    handlers: Option<usize>,
    plugins: Option<usize>,
    label: Option<usize>,
    allow: Option<Vec<usize>>,
    deny: Option<Vec<usize>>,
    hide: bool,
    audit: bool,
}

const NAMESPACE_PATTERNS: [&str; 4] = ["a", "a*", "*", "[ab]"];
const ENGINE_PATTERNS: [&str; 3] = ["docker", "cri-?", "*"];
const HANDLER_PATTERNS: [&str; 3] = ["", "kata", "*"];
const PLUGIN_PATTERNS: [&str; 4] = ["x", "10-*", "20-x", "*"];
const LABEL_PATTERNS: [&str; 2] = ["app=web", "app=*"];

impl Written {
    fn text(&self, name: usize) -> String {
        let mut text = format!("[[rule]]\nname = \"{name}\"\n");
        let mut list = |key: &str, value: Option<&str>| {
            if let Some(value) = value {
                text.push_str(&format!("{key} = [\"{value}\"]\n"));
            }
        };
        list("namespaces", self.namespaces.map(|at| NAMESPACE_PATTERNS[at]));
        list("engines", self.engines.map(|at| ENGINE_PATTERNS[at]));
        list("handlers", self.handlers.map(|at| HANDLER_PATTERNS[at]));
        list("plugins", self.plugins.map(|at| PLUGIN_PATTERNS[at]));
        list("labels", self.label.map(|at| LABEL_PATTERNS[at]));
        if !self.hide {
            for (key, fields) in [("allow", &self.allow), ("deny", &self.deny)] {
                if let Some(fields) = fields {
                    let names: Vec<&str> = fields.iter().map(|at| FIELDS[*at].name()).collect();
                    text.push_str(&format!("{key} = {names:?}\n"));
                }
            }
        }
        if self.hide {
            text.push_str("hide = true\n");
        }
        if self.audit {
            text.push_str("mode = \"audit\"\n");
        }
        text
    }

    /// Whether it matches them, by the simple implementation.
    fn is_about(&self, plugin: &str, pod: &RuledPod) -> bool {
        let name = &plugin[3..];
        let namespace = pod.namespace.as_str();
        self.namespaces.is_none_or(|at| match at {
            0 => namespace == "a",
            1 => namespace.starts_with('a'),
            2 => true,
            _ => ["a", "b"].contains(&namespace),
        }) && self.engines.is_none_or(|at| match at {
            0 => pod.engine == "docker",
            1 => pod.engine == "cri-o",
            _ => true,
        }) && self.handlers.is_none_or(|at| match at {
            0 => pod.handler.is_empty(),
            1 => pod.handler == "kata",
            _ => true,
        }) && self.plugins.is_none_or(|at| match at {
            0 => name == "x",
            1 => plugin.starts_with("10-"),
            2 => plugin == "20-x",
            _ => true,
        }) && self
            .label
            .is_none_or(|at| pod.labels.get("app").is_some_and(|value| at == 1 || value == "web"))
    }

    fn refuses(&self, field: usize) -> bool {
        self.hide
            || self.deny.as_ref().is_some_and(|deny| deny.contains(&field))
            || self.allow.as_ref().is_some_and(|allow| !allow.contains(&field))
    }
}

fn written() -> impl Strategy<Value = Written> {
    let maybe = |count: usize| proptest::option::of(0..count);
    let fields = || proptest::option::of(proptest::collection::vec(0..FIELDS.len(), 1..3));
    let lists = (maybe(4), maybe(3), maybe(3), maybe(4), maybe(2));
    let hides = proptest::bool::weighted(0.25);
    let audits = proptest::bool::weighted(0.25);
    (lists, fields(), fields(), hides, audits).prop_map(
        |((namespaces, engines, handlers, plugins, label), allow, deny, hide, audit)| Written {
            namespaces,
            engines,
            handlers,
            plugins,
            label,
            allow,
            deny,
            hide,
            audit,
        },
    )
}

fn compiled(all: &[Written]) -> Rules {
    let texts: Vec<String> = all.iter().enumerate().map(|(at, rule)| rule.text(at)).collect();
    rules_of(&texts.concat())
}

fn pods(label: Option<&str>) -> Vec<RuledPod> {
    let mut pods = Vec::new();
    for namespace in NAMESPACES {
        for engine in ENGINES {
            for handler in HANDLERS {
                let labels: BTreeMap<String, String> =
                    label.iter().map(|value| ("app".to_owned(), (*value).to_owned())).collect();
                let (namespace, engine) = (namespace.to_owned(), engine.to_owned());
                let handler = handler.to_owned();
                pods.push(RuledPod { namespace, labels, engine, handler, ..RuledPod::default() });
            }
        }
    }
    pods
}

fn is_refused(decision: &RuleDecision, field: NriField) -> bool {
    let rulings = decision.rulings.iter();
    rulings.filter(|ruling| !ruling.is_audit).any(|r| !r.permits.has(FieldSet::of(field)))
}

fn is_noted(decision: &RuleDecision, field: NriField) -> bool {
    let rulings = decision.rulings.iter();
    rulings.filter(|ruling| ruling.is_audit).any(|r| !r.permits.has(FieldSet::of(field)))
}

fn label() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![Just(None), Just(Some("web")), Just(Some("db"))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn only_the_first_rule_that_matches_pod_and_plugin_applies(
        all in proptest::collection::vec(written(), 0..6),
        label in label(),
    ) {
        let rules = compiled(&all);
        for pod in pods(label) {
            for plugin in PLUGINS {
                let decision = rules.decide(plugin, &pod);
                let first = all.iter().find(|rule| rule.is_about(plugin, &pod));
                let hides = first.is_some_and(|rule| rule.hide && !rule.audit);
                prop_assert_eq!(decision.is_hidden, hides, "{} {:?}", plugin, pod);
                for (at, field) in FIELDS.into_iter().enumerate() {
                    let against = first.filter(|rule| rule.refuses(at));
                    let is_audit = against.is_some_and(|rule| rule.audit);
                    prop_assert_eq!(is_refused(&decision, field), against.is_some() && !is_audit);
                    prop_assert_eq!(is_noted(&decision, field), is_audit);
                }
            }
        }
    }

    #[test]
    fn an_unproven_pod_gains_nothing_by_its_claims(
        all in proptest::collection::vec(written(), 0..6),
        label in label(),
        claim in 0..16_usize,
    ) {
        let rules = compiled(&all);
        let real = pods(label);
        let doubtful = RuledPod { is_doubtful: true, ..real[claim % real.len()].clone() };
        for plugin in PLUGINS {
            let claimed = rules.decide(plugin, &doubtful);
            for pod in &real {
                let proven = rules.decide(plugin, pod);
                prop_assert!(!claimed.is_hidden || proven.is_hidden, "{} {:?}", plugin, pod);
                for field in FIELDS {
                    let is_kept = is_refused(&claimed, field) || !is_refused(&proven, field);
                    prop_assert!(is_kept, "{plugin} {pod:?} {field}");
                }
            }
        }
    }

    #[test]
    fn rules_in_audit_mode_refuse_and_hide_nothing(
        all in proptest::collection::vec(written(), 0..6),
        label in label(),
        is_doubtful in any::<bool>(),
    ) {
        let all: Vec<Written> =
            all.into_iter().map(|rule| Written { audit: true, ..rule }).collect();
        let rules = compiled(&all);
        for pod in pods(label) {
            let pod = RuledPod { is_doubtful, ..pod };
            for plugin in PLUGINS {
                let decision = rules.decide(plugin, &pod);
                prop_assert!(!decision.is_hidden);
                prop_assert!(!FIELDS.iter().any(|field| is_refused(&decision, *field)));
            }
        }
    }

    #[test]
    fn rules_after_one_that_matches_all_never_apply(
        all in proptest::collection::vec(written(), 1..5),
        more in proptest::collection::vec(written(), 1..5),
    ) {
        let everything = Written {
            namespaces: None,
            engines: None,
            handlers: None,
            plugins: None,
            label: None,
            ..all[0].clone()
        };
        let short: Vec<Written> = all.into_iter().chain([everything]).collect();
        let long: Vec<Written> = short.iter().cloned().chain(more).collect();
        let (short, long) = (compiled(&short), compiled(&long));
        for pod in pods(Some("web")) {
            for plugin in PLUGINS {
                prop_assert_eq!(short.decide(plugin, &pod), long.decide(plugin, &pod));
            }
        }
    }
}
