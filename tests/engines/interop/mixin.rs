// SPDX-License-Identifier: Apache-2.0
//! The alert rules and the dashboard of `contrib/mixin`, checked by Prometheus' promtool: the rules
//! pass their tests, and each query of the dashboard is valid. A test of `src/metrics` checks that
//! the metrics exist.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use test_support::golang;

fn mixin() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/mixin")
}

fn promtool(program: &Path, folder: &Path, words: &[&str]) -> Output {
    Command::new(program).current_dir(folder).args(words).output().unwrap()
}

#[track_caller]
fn is_fine(output: &Output) {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{out}{err}");
}

#[test]
fn the_alert_rules_are_valid_and_fire_exactly_when_expected() {
    let Some(program) = golang::program("promtool") else { return };
    let check = ["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", "alerts.yaml"];
    is_fine(&promtool(&program, &mixin(), &check));
    is_fine(&promtool(&program, &mixin(), &["test", "rules", "tests.yaml"]));
    // The rules' tests detect another threshold.
    let dir = tempfile::tempdir().unwrap();
    for name in ["rules.yaml", "alerts.yaml", "tests.yaml"] {
        let text = std::fs::read_to_string(mixin().join(name)).unwrap();
        let text = text.replace("nri_runc_missing_plugins > 0", "nri_runc_missing_plugins > 5");
        nri_runc::testing::files::replace(&dir.path().join(name), text.as_bytes()).unwrap();
    }
    let output = promtool(&program, dir.path(), &["test", "rules", "tests.yaml"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let printed = printed + &String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && printed.contains("NriRuncRequiredPluginMissing"),
        "{printed}"
    );
}

/// The queries of the dashboard, with the values that Grafana substitutes for its variables.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(mixin().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    let targets = dashboard["panels"].as_array().unwrap().iter().flat_map(targets);
    let queries = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    queries
        .map(|query| query.replace("$__rate_interval", "5m").replace("$instance", ".*"))
        .collect()
}

#[test]
fn each_query_of_the_dashboard_can_be_parsed() {
    let Some(program) = golang::program("promtool") else { return };
    let dir = tempfile::tempdir().unwrap();
    let check = |queries: &[String]| {
        let rule = |(number, query): (usize, &String)| {
            format!(
                "  - record: query:number:{number}\n    expr: {}\n",
                Value::from(query.as_str())
            )
        };
        let rules: String = queries.iter().enumerate().map(rule).collect();
        let text = format!("groups:\n- name: dashboard\n  rules:\n{rules}");
        nri_runc::testing::files::replace(&dir.path().join("r.yaml"), text.as_bytes()).unwrap();
        promtool(&program, dir.path(), &["check", "rules", "r.yaml"])
    };
    let mut queries = queries();
    assert!(queries.len() > 20, "{queries:?}");
    is_fine(&check(&queries));
    queries.push("sum(rate(nri_runc_requests_total[5m])".to_owned());
    assert!(!check(&queries).status.success(), "a query that cannot be parsed is noticed");
}
