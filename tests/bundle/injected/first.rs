// SPDX-License-Identifier: Apache-2.0
//! Injections without a plugin, beside plugins, in audit mode, and injections that fail.

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost, fails, started, succeeds};

pub(super) fn seen(host: &TestHost) -> Value {
    serde_json::from_str(&host.read("fake/seen.json")).unwrap()
}

pub(super) fn env(host: &TestHost) -> Value {
    seen(host)["process"]["env"].clone()
}

#[test]
fn a_container_gets_the_variable_without_any_plugin() {
    let host = started("[[inject]]\nname = \"greeting\"\nenv = { HELLO = \"there\" }\n");
    succeeds(&host.create("c1"));
    let wanted = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    assert_eq!(host.read("fake/seen.json"), wanted);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"Env[HELLO]": "inject:greeting"}));
    assert_eq!(explained["changes"][0]["plugin"], "inject:greeting");
}

#[test]
fn existing_values_stay_unless_always_replaces_them() {
    let host = started(
        "[[inject]]\nname = \"polite\"\nenv = { A = \"2\" }\n\
         [[inject]]\nname = \"firm\"\nwhen = \"always\"\nenv = { B = \"3\" }\n",
    );
    let bundle = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"B=1\"]");
    host.write("bundle/config.json", &bundle);
    succeeds(&host.create("c1"));
    assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "B=3"]));
    let explained = host.admin(&["explain", "c1"]);
    let gave_way = json!([{"plugin": "inject:polite", "field": "Env[A]", "to": null}]);
    assert_eq!(explained["gave_way"], gave_way);
}

#[test]
fn an_injection_gives_way_to_plugins_before_and_after_it() {
    for (index, plugin) in [("50", "10"), ("50", "90"), ("50", "50")] {
        let host = started(&format!(
            "[[inject]]\nname = \"i\"\nindex = \"{index}\"\nenv = {{ X = \"mine\", Y = \"mine\" }}\n"
        ));
        let _plugin = host.plugin(plugin, "p", sets("X", "theirs"));
        succeeds(&host.create("c1"));
        assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "X=theirs", "Y=mine"]), "{plugin}");
        let explained = host.admin(&["explain", "c1"]);
        let to = format!("{plugin}-p");
        let gave_way = json!([{"plugin": "inject:i", "field": "Env[X]", "to": to}]);
        assert_eq!(explained["gave_way"], gave_way);
        assert_eq!(explained["owners"]["Env[Y]"], "inject:i");
    }
}

#[test]
fn an_injection_with_always_conflicts_with_a_plugin() {
    let lines = "[[inject]]\nname = \"i\"\nwhen = \"always\"\nenv = { X = \"mine\" }\n";
    let host = started(lines);
    let _plugin = host.plugin("10", "p", sets("X", "theirs"));
    fails(&host.create("c1"), &["\"10-p\"", "\"inject:i\"", "both tried to set Env X"]);
}

#[test]
fn audit_mode_notes_and_changes_nothing() {
    let host =
        started("[[inject]]\nname = \"i\"\nmode = \"audit\"\nenv = { A = \"2\", X = \"1\" }\n");
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    let explained = host.admin(&["explain", "c1"]);
    let would = &explained["would_inject"];
    assert_eq!((&would[0]["field"], &would[0]["plugin"]), (&json!("Env[X]"), &json!("inject:i")));
    assert_eq!(would.as_array().map(Vec::len), Some(1));
    assert_eq!(explained["owners"], json!({}));
}

#[test]
fn an_impossible_injection_is_skipped_or_refuses() {
    let section = |more: &str| {
        format!("[[inject]]\nname = \"gpu\"\nwhen = \"always\"\ncdi = [\"acme.com/gpu=7\"]\n{more}")
    };
    let lines = format!("{}[[inject]]\nenv = {{ X = \"1\" }}\n", section(""));
    let skipping = started(&lines);
    succeeds(&skipping.create("c1"));
    assert_eq!(env(&skipping), json!(["PATH=/bin", "A=1", "X=1"]));
    let skipped = skipping.admin(&["explain", "c1"])["skipped"].to_string();
    assert!(skipped.contains("inject:gpu") && skipped.contains("acme.com/gpu=7"), "{skipped}");

    let refusing = started(&section("on_failure = \"refuse\"\n"));
    fails(&refusing.create("c1"), &["inject:gpu cannot be injected", "acme.com/gpu=7"]);
    assert_eq!(refusing.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_rule_selects_an_injection_only_by_its_name() {
    let inject = "[[inject]]\nname = \"i\"\nenv = { X = \"1\" }\n";
    for (plugins, is_refused) in
        [("", false), ("plugins = [\"*\"]\n", false), ("plugins = [\"inject:*\"]\n", true)]
    {
        let host =
            started(&format!("{inject}[[rule]]\nname = \"no env\"\ndeny = [\"Env\"]\n{plugins}"));
        let created = host.create("c1");
        match is_refused {
            true => fails(&created, &["inject:i", "rule \"no env\""]),
            false => succeeds(&created),
        }
    }
    let hiding = "[[rule]]\nhide = true\nplugins = [\"inject:i\"]\n";
    let host = started(&format!("{inject}{hiding}"));
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
}

#[test]
fn a_reload_applies_to_the_next_container() {
    let host = started("[[inject]]\nname = \"i\"\nenv = { X = \"1\" }\n");
    succeeds(&host.create("c1"));
    let after = "[[inject]]\nname = \"i\"\nenv = { X = \"2\" }\n";
    host.configure(&host.path("fake/runc"), after);
    host.admin(&["reload"]);
    host.write("bundle/config.json", BUNDLE);
    succeeds(&host.create("c2"));
    assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "X=2"]));
}
