// SPDX-License-Identifier: Apache-2.0
//! Annotations, process, hooks and mounts, and documents as a whole.

use serde_json::{Value, json};

use super::super::{PatchError, PatchedSpec, SpecChange};
use super::{Adjustment, adjusted, invalid_field, linux, patch, refused, some, uint64};
use crate::plugin::api;

fn env(entries: &[(&str, &str)]) -> Adjustment {
    let entry = |(key, value): &(&str, &str)| api::KeyValue {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
        ..Default::default()
    };
    Adjustment { env: entries.iter().map(entry).collect(), ..Default::default() }
}

fn annotations(entries: &[(&str, &str)]) -> Adjustment {
    let annotations = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Adjustment { annotations, ..Default::default() }
}

fn mount(destination: &str, options: &[&str]) -> api::Mount {
    api::Mount {
        destination: destination.to_owned(),
        type_: "bind".to_owned(),
        source: "/src".to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    }
}

fn mounts(mounts: Vec<api::Mount>) -> Adjustment {
    Adjustment { mounts, ..Default::default() }
}

fn rlimit(kind: &str, soft: u64, hard: u64) -> Adjustment {
    let rlimit = api::POSIXRlimit { type_: kind.to_owned(), hard, soft, ..Default::default() };
    Adjustment { rlimits: vec![rlimit], ..Default::default() }
}

fn hook(path: &str, timeout: Option<i64>) -> api::Hook {
    let timeout = timeout.map(|value| api::OptionalInt { value, ..Default::default() }).into();
    api::Hook { path: path.to_owned(), timeout, ..Default::default() }
}

fn prestart(hook: api::Hook) -> Adjustment {
    let hooks = api::Hooks { prestart: vec![hook], ..Default::default() };
    Adjustment { hooks: some(hooks), ..Default::default() }
}

#[test]
fn an_adjustment_that_asks_for_nothing_changes_nothing() {
    let empty_parts = Adjustment {
        hooks: some(api::Hooks::default()),
        linux: some(api::LinuxContainerAdjustment {
            resources: some(api::LinuxResources {
                memory: some(api::LinuxMemory::default()),
                cpu: some(api::LinuxCPU::default()),
                ..Default::default()
            }),
            rdt: some(api::LinuxRdt::default()),
            ..Default::default()
        }),
        ..Default::default()
    };
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
    let adjustment = Adjustment {
        args: vec!["x".to_owned()],
        linux: some(api::LinuxContainerAdjustment {
            cgroups_path: "/p".to_owned(),
            oom_score_adj: some(api::OptionalInt { value: 5, ..Default::default() }),
            resources: some(api::LinuxResources {
                cpu: some(api::LinuxCPU { shares: uint64(7), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        env: env(&[("A", "1"), ("-B", "")]).env,
        annotations: annotations(&[("a", "1"), ("-b", "")]).annotations,
        mounts: vec![mount("/d/", &["ro"]), mount("-/gone", &[])],
        rlimits: rlimit("nofile", 1, 2).rlimits,
        ..Default::default()
    };
    let slash_differs = adjusted(document, &adjustment).1;
    assert_eq!(slash_differs.len(), 1, "only the mount's spelling: {slash_differs:?}");
    let same = Adjustment { mounts: vec![mount("/d", &["ro"])], ..adjustment };
    assert_eq!(patch(document.as_bytes(), &same).unwrap().bytes, None);
}

#[test]
fn a_variable_is_replaced_where_it_first_stood_and_once() {
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
fn values_that_no_process_could_have_are_refused() {
    for entry in [("A=B", "1"), ("A", "1\0"), ("A\0", "1"), ("-A=B", "")] {
        assert!(invalid_field(&env(&[entry])).starts_with("Env[A"));
    }
    assert_eq!(patch(b"{}", &env(&[("", "x"), ("-", "")])).unwrap().bytes, None);
    let args = |args: &[&str]| Adjustment {
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..Default::default()
    };
    assert_eq!(invalid_field(&args(&[""])), "Args");
    assert_eq!(invalid_field(&args(&["a\0"])), "Args");
    for value in [-1001, 1001, i64::MAX] {
        let oom_score_adj = some(api::OptionalInt { value, ..Default::default() });
        let adjustment = api::LinuxContainerAdjustment { oom_score_adj, ..Default::default() };
        assert_eq!(invalid_field(&linux(adjustment)), "OomScoreAdj");
    }
}

#[test]
fn args_are_replaced_as_a_whole() {
    let adjustment =
        Adjustment { args: vec!["sh".to_owned(), String::new()], ..Default::default() };
    let (text, changes) = adjusted(r#"{"process":{"args":["a","b"],"cwd":"/"}}"#, &adjustment);
    assert_eq!(text, r#"{"process":{"args":["sh",""],"cwd":"/"}}"#);
    assert_eq!(
        (changes[0].field.as_str(), changes[0].nri_field.as_str()),
        ("process.args", "Args")
    );
}

#[test]
fn a_limit_replaces_all_spellings_of_its_type() {
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
    adjusted("{}", &annotations(&[("org.criu.config.d", "1"), ("bundles", "1")]));
}

#[test]
fn mounts_are_ordered_as_by_the_reference_only_when_one_changes() {
    let document = r#"{"mounts":[{"destination":"/a/b"},{"destination":"/z"},{"destination":"/"}, {"destination":"/c"}]}"#;
    assert_eq!(patch(document.as_bytes(), &mounts(vec![mount("-/x", &[])])).unwrap().bytes, None);
    let (text, _) = adjusted(document, &mounts(vec![mount("/a", &[])]));
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
    let (text, changes) = adjusted(document, &mounts(vec![mount("-/d/.", &[])]));
    assert_eq!(text, r#"{"mounts":[{"destination":"/k","x":1.0}]}"#);
    assert_eq!(changes[0].before, Some(json!({"destination": "d//"})));
    let (text, changes) = adjusted(document, &mounts(vec![mount("/d", &["ro"])]));
    let new = r#"{"destination":"/d","type":"bind","source":"/src","options":["ro"]}"#;
    assert_eq!(text, format!(r#"{{"mounts":[{new},{{"destination":"/k","x":1.0}}]}}"#));
    assert_eq!(changes[0].nri_field, "Mounts[/d]");
    assert_eq!(invalid_field(&mounts(vec![mount("-", &[])])), "Mounts[]");
}

#[test]
fn hooks_are_added_after_the_engines() {
    let document = r#"{"hooks":{"prestart":[{"path":"/first","x":1}],"vendor":[]}}"#;
    let (text, changes) = adjusted(document, &prestart(hook("/second", Some(3))));
    let wanted = r#"{"hooks":{"prestart":[{"path":"/first","x":1},{"path":"/second","timeout":3}],"vendor":[]}}"#;
    assert_eq!(text, wanted);
    assert_eq!(
        (changes[0].field.as_str(), changes[0].nri_field.as_str()),
        ("hooks.prestart", "OciHooks")
    );
    assert_eq!(changes[0].before, Some(json!([{"path": "/first", "x": 1}])));
    for bad in [hook("relative", None), hook("", None), hook("/x", Some(0)), hook("/x", Some(-1))] {
        assert_eq!(invalid_field(&prestart(bad)), "OciHooks");
    }
}

#[test]
fn an_ambiguous_document_is_refused_where_it_is_touched() {
    let document =
        r#"{"process":{"Env":["A=1"]},"mounts":[{"destination":"/a","Destination":"/b"}]}"#;
    let error = refused(document, &env(&[("A", "2")]));
    assert!(matches!(error, PatchError::SpecDocument(_)) && error.field().is_none(), "{error}");
    refused(document, &mounts(vec![mount("/c", &[])]));
    adjusted(document, &annotations(&[("a", "1")]));
}
