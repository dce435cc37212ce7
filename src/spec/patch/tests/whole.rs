// SPDX-License-Identifier: Apache-2.0
//! Tests annotations, process, hooks and mounts, and documents as a whole.

use serde_json::{Value, json};

use super::super::{PatchError, PatchedSpec, SpecChange};
use super::{Adjustment, adjusted, annotations, asks, invalid_field, linux, patch, refused};

fn env(entries: &[(&str, &str)]) -> Adjustment {
    let variables = entries.iter().map(|(key, value)| json!({"key": key, "value": value}));
    asks(&json!({"env": variables.collect::<Vec<_>>()}))
}

fn mount(destination: &str, options: &[&str]) -> Adjustment {
    let mount =
        json!({"destination": destination, "type": "bind", "source": "/src", "options": options});
    asks(&json!({"mounts": [mount]}))
}

fn rlimit(kind: &str, soft: u64, hard: u64) -> Adjustment {
    asks(&json!({"rlimits": [{"type": kind, "hard": hard, "soft": soft}]}))
}

fn args(args: &[&str]) -> Adjustment {
    asks(&json!({ "args": args }))
}

fn prestart(path: &str, timeout: Option<i64>) -> Adjustment {
    let timeout = timeout.map(|timeout| json!({ "value": timeout }));
    asks(&json!({"hooks": {"prestart": [{"path": path, "timeout": timeout}]}}))
}

#[test]
fn an_empty_adjustment_changes_nothing() {
    let empty_parts = asks(&json!({
        "hooks": {}, "linux": {"resources": {"memory": {}, "cpu": {}}, "rdt": {}},
    }));
    for adjustment in [Adjustment::default(), empty_parts] {
        let patched = patch(b"{ }", &adjustment).unwrap();
        assert_eq!(patched, PatchedSpec { bytes: None, changes: Vec::new() });
    }
}

#[test]
fn setting_an_existing_value_is_not_a_change() {
    let document = r#"{"annotations":{"a":"1"},"process":{"env":["A\u003d1"],"oomScoreAdj":5,
        "rlimits":[{"soft":1,"type":"RLIMIT_NOFILE","hard":2}],"args":["x"]},
        "mounts":[{"source":"/src","destination":"/d","type":"bind","options":["ro"]}],
        "linux":{"cgroupsPath":"/p","resources":{"cpu":{"shares":7}}}}"#;
    let mut adjustment = asks(&json!({
        "args": ["x"],
        "linux": {
            "cgroupsPath": "/p", "oomScoreAdj": {"value": 5}, "resources": {"cpu": {"shares": {"value": 7}}},
        },
        "env": [{"key": "A", "value": "1"}, {"key": "-B"}],
        "annotations": {"a": "1", "-b": ""},
        "rlimits": [{"type": "nofile", "soft": 1, "hard": 2}],
        "mounts": [
            {"destination": "/d/", "type": "bind", "source": "/src", "options": ["ro"]},
            {"destination": "-/gone"},
        ],
    }));
    let slash_differs = adjusted(document, &adjustment).1;
    assert_eq!(slash_differs.len(), 1, "only the mount's spelling: {slash_differs:?}");
    adjustment.mounts = mount("/d", &["ro"]).mounts;
    assert_eq!(patch(document.as_bytes(), &adjustment).unwrap().bytes, None);
}

#[test]
fn a_variable_is_replaced_at_its_first_occurrence() {
    let document = r#"{"process":{"env":["A=1", "odd","B=2" ,"A=3"]}}"#;
    let (text, changes) = adjusted(document, &env(&[("A", "x"), ("C", "=\n")]));
    assert_eq!(text, r#"{"process":{"env":["A=x", "odd","B=2","C==\n"]}}"#);
    let wanted = SpecChange {
        field: "process.env[A]".to_owned(),
        nri_field: "Env[A]".to_owned(),
        before: Some(json!("3")),
        after: Some(json!("x")),
    };
    assert_eq!(changes[0], wanted);
    assert_eq!(changes[1].before, None);
}

#[test]
fn all_occurrences_of_a_removed_variable_are_removed() {
    let document = r#"{"process":{"env":["A=1","B=2","A=3"]}}"#;
    let (text, changes) = adjusted(document, &env(&[("-A", ""), ("-ABSENT", "")]));
    assert_eq!(text, r#"{"process":{"env":["B=2"]}}"#);
    assert_eq!(changes.len(), 1);
    for order in [[("-A", ""), ("A", "x")], [("A", "x"), ("-A", "")]] {
        let (text, _) = adjusted(document, &env(&order));
        assert_eq!(text, r#"{"process":{"env":["A=x","B=2"]}}"#, "removals come first");
    }
}

#[test]
fn a_missing_section_is_created() {
    let (text, _) = adjusted("{}", &env(&[("A", "1")]));
    assert_eq!(text, r#"{"process":{"env":["A=1"]}}"#);
    let (text, _) = adjusted("{}", &rlimit("CORE", 0, 1));
    assert_eq!(text, r#"{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":1,"soft":0}]}}"#);
    let (text, _) = adjusted(r#"{"process":{"env":null}}"#, &env(&[("A", "1")]));
    assert_eq!(text, r#"{"process":{"env":["A=1"]}}"#);
}

#[test]
fn invalid_process_values_are_refused() {
    for entry in [("A=B", "1"), ("A", "1\0"), ("A\0", "1"), ("-A=B", "")] {
        assert!(invalid_field(&env(&[entry])).starts_with("Env[A"));
    }
    assert_eq!(patch(b"{}", &env(&[("", "x"), ("-", "")])).unwrap().bytes, None);
    assert_eq!(invalid_field(&args(&[""])), "Args");
    assert_eq!(invalid_field(&args(&["a\0"])), "Args");
    for value in [-1001, 1001, i64::MAX] {
        let adjustment = linux(&json!({"oomScoreAdj": {"value": value}}));
        assert_eq!(invalid_field(&adjustment), "OomScoreAdj");
    }
}

#[test]
fn args_are_replaced_as_a_whole() {
    let (text, changes) =
        adjusted(r#"{"process":{"args":["a","b"],"cwd":"/"}}"#, &args(&["sh", ""]));
    assert_eq!(text, r#"{"process":{"args":["sh",""],"cwd":"/"}}"#);
    assert_eq!(
        (changes[0].field.as_str(), changes[0].nri_field.as_str()),
        ("process.args", "Args")
    );
}

#[test]
fn a_limit_replaces_all_entries_of_its_type() {
    let document = r#"{"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":1,"soft":1},
        {"type":"RLIMIT_CORE","hard":9,"soft":9},{"type":"RLIMIT_NOFILE","hard":2,"soft":2}]}}"#;
    let (text, _) = adjusted(document, &rlimit("nofile", 5, u64::MAX));
    let wanted = r#"{"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":5},
        {"type":"RLIMIT_CORE","hard":9,"soft":9}]}}"#;
    assert_eq!(text, wanted);
    assert_eq!(invalid_field(&rlimit("nofile", 6, 5)), "Rlimits[RLIMIT_NOFILE]");
    assert_eq!(invalid_field(&rlimit("speed", 1, 1)), "Rlimits[RLIMIT_SPEED]");
}

#[test]
fn annotations_are_removed_before_they_are_set() {
    let document = r#"{"annotations":{"k\u0065ep":"\u00e9","a":"1","b":"2"}}"#;
    let adjustment = annotations(&[("-a", ""), ("a", "x"), ("-b", ""), ("c", "3"), ("-d", "")]);
    let (text, changes) = adjusted(document, &adjustment);
    assert_eq!(text, r#"{"annotations":{"k\u0065ep":"\u00e9","a":"x","c":"3"}}"#);
    let fields: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["annotations[a]", "annotations[b]", "annotations[c]"]);
}

#[test]
fn annotations_with_a_meaning_to_the_runtime_are_refused() {
    for key in ["bundle", "a=b", "", "org.criu.config", "org.systemd.property.DelegateSubgroup"] {
        assert_eq!(invalid_field(&annotations(&[(key, "1")])), format!("Annotations[{key}]"));
    }
    let document = r#"{"annotations":{"org.criu.config":"/x"}}"#;
    let same = patch(document.as_bytes(), &annotations(&[("org.criu.config", "/x")]));
    assert_eq!(same.unwrap().bytes, None, "the engine set it to this value itself");
    refused(document, &annotations(&[("org.criu.config", "/y")]));
    adjusted("{}", &annotations(&[("org.criux", "1"), ("bundles", "1")]));
}

#[test]
fn mounts_are_sorted_as_by_nri_only_if_one_changes() {
    let document = r#"{"mounts":[{"destination":"/a/b"},{"destination":"/z"},{"destination":"/"}, {"destination":"/c"}]}"#;
    assert_eq!(patch(document.as_bytes(), &mount("-/x", &[])).unwrap().bytes, None);
    let (text, _) = adjusted(document, &mount("/a", &[]));
    let destinations: Vec<String> = serde_json::from_str::<Value>(&text).unwrap()["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["destination"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(destinations, ["/", "/a", "/c", "/z", "/a/b"]);
}

#[test]
fn all_spellings_of_a_mounts_destination_are_removed() {
    let document = r#"{"mounts":[{"destination":"/d","v":1},{"destination":"/k","x":1.0},{"destination":"d//"}]}"#;
    let (text, changes) = adjusted(document, &mount("-/d/.", &[]));
    assert_eq!(text, r#"{"mounts":[{"destination":"/k","x":1.0}]}"#);
    assert_eq!(changes[0].before, Some(json!({"destination": "d//"})));
    let (text, changes) = adjusted(document, &mount("/d", &["ro"]));
    let new = r#"{"destination":"/d","type":"bind","source":"/src","options":["ro"]}"#;
    assert_eq!(text, format!(r#"{{"mounts":[{new},{{"destination":"/k","x":1.0}}]}}"#));
    assert_eq!(changes[0].nri_field, "Mounts[/d]");
    assert_eq!(invalid_field(&mount("-", &[])), "Mounts[]");
}

#[test]
fn hooks_are_added_after_the_engines() {
    let document = r#"{"hooks":{"prestart":[{"path":"/first","x":1}],"vendor":[]}}"#;
    let (text, changes) = adjusted(document, &prestart("/second", Some(3)));
    let wanted = r#"{"hooks":{"prestart":[{"path":"/first","x":1},{"path":"/second","timeout":3}],"vendor":[]}}"#;
    assert_eq!(text, wanted);
    assert_eq!(
        (changes[0].field.as_str(), changes[0].nri_field.as_str()),
        ("hooks.prestart", "OciHooks")
    );
    assert_eq!(changes[0].before, Some(json!([{"path": "/first", "x": 1}])));
    for (path, timeout) in [("relative", None), ("", None), ("/x", Some(0)), ("/x", Some(-1))] {
        assert_eq!(invalid_field(&prestart(path, timeout)), "OciHooks");
    }
}

#[test]
fn an_ambiguous_document_is_refused_where_it_is_touched() {
    let document =
        r#"{"process":{"Env":["A=1"]},"mounts":[{"destination":"/a","Destination":"/b"}]}"#;
    let error = refused(document, &env(&[("A", "2")]));
    assert!(matches!(error, PatchError::SpecDocument(_)) && error.field().is_none(), "{error}");
    refused(document, &mount("/c", &[]));
    adjusted(document, &annotations(&[("a", "1")]));
}
