// SPDX-License-Identifier: Apache-2.0
//! Checks that every metric and label that the alert rules and the dashboard of `contrib/mixin`
//! name exists, that every metric is in `docs/metrics.md`, and that every alert has a firing test
//! and a section of the runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;

use super::{Holdings, Metrics};
use crate::plugin::{CallSample, RequestSubject};

const RULES: &str = include_str!("../../contrib/mixin/rules.yaml");
const ALERTS: &str = include_str!("../../contrib/mixin/alerts.yaml");
const RULE_TESTS: &str = include_str!("../../contrib/mixin/tests.yaml");
const DASHBOARD: &str = include_str!("../../contrib/mixin/dashboard.json");
const RUNBOOK: &str = include_str!("../../docs/runbook.md");
const PAGE: &str = include_str!("../../docs/metrics.md");

/// Labels that Prometheus adds.
const ADDED: [&str; 2] = ["instance", "job"];

/// Renders the metrics of a daemon that has counted each of them at least once, because rows
/// without a value are omitted.
fn exposition() -> String {
    let metrics = Metrics::default();
    let (calls, plugins) = (metrics.call_meter(), metrics.plugins());
    for error in [None, Some("unknown")] {
        let (plugin, operation) = ("10-a", "CreateContainer");
        let (waited, took) = (Duration::ZERO, Duration::ZERO);
        calls.record_call(&CallSample {
            plugin,
            operation,
            subject: RequestSubject::default(),
            waited,
            took,
            error,
        });
    }
    calls.record_wishes("10-a", "UpdateContainer", 1, 1);
    calls.record_skip("10-a", "CreateContainer", "timeout");
    plugins.count_refusal("10-a", "create");
    plugins.count_update("10-a", "applied");
    plugins.count_eviction("10-a", "begun");
    plugins.count_connection("10-a", "synchronized");
    plugins.count_takeover("10-a", "completed");
    plugins.count_rule("a rule", "refused");
    plugins.count_injection("an injection", "applied");
    plugins.count_promise("a promise", "met");
    metrics.count_request("create", "proceeded");
    metrics.observe_request("create", Duration::ZERO);
    metrics.count_failure();
    metrics.count_reload("applied");
    metrics.count_reexec("done");
    metrics.text(&Holdings {
        containers: vec![("running", 1)],
        drifts: vec![("cgroup", 1)],
        problems: vec![("unwritten", 1)],
        ..Holdings::default()
    })
}

/// Returns the labels of each metric, by name.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let mut known = BTreeMap::<String, BTreeSet<String>>::new();
    let page = exposition();
    for row in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = row.split_once(['{', ' ']).unwrap();
        let labels = known.entry(name.to_owned()).or_default();
        let is_labelled = row.contains('{');
        let pairs = rest.split('}').next().unwrap().split(',').filter(|_| is_labelled);
        labels.extend(pairs.filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned())));
    }
    known
}

fn rules(text: &str) -> Vec<(String, String)> {
    let documents = Yaml::load_from_str(text).unwrap();
    let groups = documents[0]["groups"].as_sequence().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_sequence().unwrap());
    let of = |rule: &Yaml<'_>, key: &str| {
        rule.as_mapping_get(key).and_then(Yaml::as_str).unwrap_or_default().to_owned()
    };
    rules.map(|rule| (of(rule, "record") + &of(rule, "alert"), of(rule, "expr"))).collect()
}

fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut queries: Vec<String> =
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let of_label = variables.iter().filter_map(|variable| variable["query"]["query"].as_str());
    // label_values(METRIC, LABEL) is checked like a query of the metric.
    queries.extend(of_label.map(|query| query.replace("label_values", "sum")));
    queries
}

/// Returns the names in a query outside of quotation marks, each with the character that follows
/// it.
fn names(query: &str) -> Vec<(String, char)> {
    let mut plain = String::new();
    for (number, part) in query.split('"').enumerate() {
        plain.push_str(if number % 2 == 0 { part } else { "\"\"" });
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (mut names, mut rest) = (Vec::new(), plain.as_str());
    while let Some(at) = rest.find(is_part) {
        let word = rest[at..].split(|c| !is_part(c)).next().unwrap();
        rest = &rest[at + word.len()..];
        let next = rest.trim_start().chars().next().unwrap_or(' ');
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            names.push((word.to_owned(), next));
        }
    }
    names
}

/// Returns a line for each unknown name in a query, and one if the query names no metric.
fn problems(query: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let names = names(query);
    let is_metric = |name: &str| {
        name.starts_with("nri_runc_") || name.starts_with("containerd_nri_") || name.contains(':')
    };
    let metrics: Vec<&String> =
        names.iter().map(|(name, _)| name).filter(|name| is_metric(name)).collect();
    let mut labels: BTreeSet<&str> = ADDED.into_iter().collect();
    let mut problems = Vec::new();
    for metric in &metrics {
        match known.get(*metric) {
            Some(its) => labels.extend(its.iter().map(String::as_str)),
            None => problems.push(format!("{metric} does not exist: {query}")),
        }
    }
    const WORDS: [&str; 6] = ["by", "up", "m", "sum", "rate", "and"];
    for (name, next) in &names {
        let is_called = *next == '(' || WORDS.contains(&name.as_str());
        let is_variable = name.starts_with("__") || is_metric(name);
        if !is_called && !is_variable && !labels.contains(name.as_str()) {
            problems.push(format!("the label {name} does not exist: {query}"));
        }
    }
    if metrics.is_empty() && !query.contains("up{") {
        problems.push(format!("no metric: {query}"));
    }
    problems
}

/// Returns [`known`] with the series that rules record; these have the labels of the rules' queries.
fn known_with_recorded() -> BTreeMap<String, BTreeSet<String>> {
    let mut known = known();
    for (name, query) in rules(RULES) {
        let grouped = query.split("by (").nth(1).and_then(|rest| rest.split(')').next());
        let labels = grouped.unwrap_or_default().split(',').map(|label| label.trim().to_owned());
        known.insert(name, labels.filter(|label| label != "le").collect());
    }
    known
}

#[test]
fn rules_and_dashboard_name_metrics_and_labels_that_exist() {
    let known = known_with_recorded();
    let queries = rules(RULES).into_iter().chain(rules(ALERTS)).map(|(_, query)| query);
    let queries: Vec<String> = queries.chain(dashboard_queries()).collect();
    assert!(queries.len() > 40, "{queries:?}");
    let wrong: Vec<String> = queries.iter().flat_map(|query| problems(query, &known)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_metric_or_label_that_does_not_exist_is_noticed() {
    let known = known_with_recorded();
    for (query, wanted) in [
        ("sum(rate(nri_runc_request_total[5m]))", "nri_runc_request_total does not exist"),
        ("nri_runc_requests_total{verbs=\"x\"}", "the label verbs does not exist"),
        ("sum by (pod) (nri_runc_pods)", "the label pod does not exist"),
        ("instance:nothing:rate5m > 1", "instance:nothing:rate5m does not exist"),
        ("vector(1)", "no metric"),
    ] {
        let found = problems(query, &known);
        assert!(found.iter().any(|line| line.contains(wanted)), "{query}: {found:?}");
    }
}

#[test]
fn every_metric_is_documented_and_every_documented_one_exists() {
    let page = exposition();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: BTreeSet<String> = types
        .map(|line| match line.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, _) => name.to_owned(),
        })
        .collect();
    let documented: BTreeSet<String> = PAGE
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.starts_with("nri_runc_") || word.starts_with("containerd_nri_"))
        .map(str::to_owned)
        .collect();
    assert_eq!(names, documented);
}

#[test]
fn every_alert_is_tested_firing_and_not_firing() {
    let documents = Yaml::load_from_str(RULE_TESTS).unwrap();
    let mut fired = BTreeMap::<String, [bool; 2]>::new();
    for test in documents[0]["tests"].as_sequence().unwrap() {
        for case in test["alert_rule_test"].as_sequence().unwrap() {
            let fires = !case["exp_alerts"].as_sequence().unwrap().is_empty();
            let name = case["alertname"].as_str().unwrap().to_owned();
            fired.entry(name).or_default()[usize::from(fires)] = true;
        }
    }
    let alerts: BTreeMap<String, [bool; 2]> =
        rules(ALERTS).into_iter().map(|(name, _)| (name, [true, true])).collect();
    assert_eq!(fired, alerts);
}

#[test]
fn every_alert_has_a_section_of_the_runbook() {
    let names = |text: &'static str, start: &str| -> Vec<&'static str> {
        text.lines().filter_map(|line| line.trim_start().strip_prefix(start)).collect()
    };
    let alerts = names(ALERTS, "- alert: ");
    assert!(alerts.len() > 10, "{alerts:?}");
    assert_eq!(names(RUNBOOK, "## "), alerts);
    let linked = names(ALERTS, "runbook_url: runbook.html#");
    assert_eq!(linked, alerts.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>());
    for section in RUNBOOK.split("\n## ").skip(1) {
        assert!(section.contains("**Meaning.**") && section.contains("\n1. "), "{section}");
    }
}
