// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri policy test`: which rule decides what, and why, for a bundle and for a known pod.

use serde_json::json;
use test_support::{Script, TestHost, started, succeeds};

use super::host::pod_container;

const RULES: &str = "[[rule]]\nname = \"dev\"\nnamespaces = [\"dev\"]\n[[rule]]\nname = \"no env\"\n\
    namespaces = [\"prod-*\"]\nplugins = [\"a\"]\ndeny = [\"Env\", \"Eviction\"]\n[[rule]]\n\
    name = \"watch\"\ndeny = [\"*\"]\nmode = \"audit\"\n[plugin.a]\ndeny = [\"Sysctl\"]\n";

#[test]
fn a_bundle_is_tested_without_a_daemon_by_the_files_rules() {
    let host = TestHost::new(RULES);
    let bundle = pod_container(&host, "prod-eu", "c1");
    let path = host.path(&bundle).display().to_string();
    let document =
        host.admin(&["policy", "test", "--bundle", &path, "--plugin", "10-a", "--plugin", "20-b"]);
    let pod = &document["pod"];
    assert_eq!((&pod["namespace"], &pod["engine"]), (&json!("prod-eu"), &json!("containerd-cri")));
    assert_eq!((&pod["proven"], &document["rules"]), (&json!(true), &json!(3)));
    let [a, b] = document["plugins"].as_array().unwrap().as_slice() else { panic!("{document}") };
    assert_eq!((&a["plugin"], &a["rule"]), (&json!("10-a"), &json!("no env")));
    assert_eq!(a["refused"], json!(["Env", "Eviction"]));
    assert_eq!((&a["would_refuse"], &a["refused_by_section"]), (&json!([]), &json!(["Sysctl"])));
    let why = &a["rules"];
    assert_eq!(why[0]["why"], "namespaces does not have \"prod-eu\"");
    assert_eq!((&why[0]["matches"], &why[0]["decides"]), (&json!("no"), &json!(false)));
    assert_eq!(why[1]["why"], "plugins: \"a\", namespaces: \"prod-*\"");
    assert_eq!((&why[1]["decides"], &why[2]["decides"]), (&json!(true), &json!(false)));
    assert_eq!((&b["rule"], &b["mode"]), (&json!("watch"), &json!("audit")));
    assert_eq!((&b["refused"], &b["would_refuse"]), (&json!([]), &json!(["*"])));
    let page = host.call(&["nri", "policy", "test", "--bundle", &path, "--plugin", "10-a"]);
    succeeds(&page);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    for line in [
        "refused: Env Eviction; refused by its own section: Sysctl",
        "10-a: rule \"no env\" decides: plugins: \"a\", namespaces: \"prod-*\"",
        "10-a: rule \"watch\" also matches, but an earlier rule decides: it matches every plugin",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[test]
fn a_bundle_that_names_its_own_namespace_is_shown_as_not_proven() {
    let host = TestHost::new(RULES);
    let bundle = super::host::lay_down(&host, "dev", "forged", "forged");
    let path = host.path(&bundle).display().to_string();
    let document = host.admin(&["policy", "test", "--bundle", &path, "--plugin", "10-a"]);
    assert_eq!(document["pod"]["proven"], false);
    let a = &document["plugins"][0];
    assert_eq!((&a["refused"], &a["would_refuse"]), (&json!(["Env", "Eviction"]), &json!(["*"])));
    assert_eq!(a["rules"][0]["matches"], "maybe");
}

#[test]
fn a_known_pod_is_tested_for_connected_plugins_and_live_rules() {
    let host = started(RULES);
    let _plugin = host.plugin("10", "a", Script::default());
    let bundle = pod_container(&host, "prod-eu", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
    let by_name = host.admin(&["policy", "test", "--pod", "prod-eu/pod-of-c1"]);
    let a = &by_name["plugins"][0];
    assert_eq!((&a["plugin"], &a["rule"]), (&json!("10-a"), &json!("no env")), "{by_name}");
    assert_eq!(by_name["plugins"].as_array().unwrap().len(), 1, "a is 10-a: {by_name}");
    assert_eq!(host.admin(&["policy", "test", "--pod", "pod-of-c1"]), by_name);
    let missing = host.call(&["nri", "policy", "test", "--pod", "prod-eu/nothing"]);
    let line = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && line.contains("no pod matches prod-eu/nothing"), "{line}");
}

#[test]
fn missing_or_mistyped_input_is_refused_in_one_line() {
    let host = TestHost::new("[[rule]]\nDeny = [\"Env\"]\n");
    let bundle = host.path("bundle").display().to_string();
    let output = host.call(&["nri", "policy", "test", "--bundle", &bundle]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("unknown key rule.Deny") && line.lines().count() == 1, "{line}");
    let nowhere = host.call(&["nri", "policy", "test", "--bundle", "/nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1));
    let neither = host.call(&["nri", "policy", "test"]);
    assert_eq!(neither.status.code(), Some(2));
}
