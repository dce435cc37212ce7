// SPDX-License-Identifier: Apache-2.0
//! JSON outputs of the built binary against `docs/schema`: each output fits its schema, and no
//! output with one changed place does.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::adjustments::{sets, update_of};
use test_support::schema::{Schema, wrong_forms};
use test_support::{Script, TestHost, fails, is_synchronized, succeeds, wait_until};

use super::lists::manifest_and_configuration;
use crate::rules::pod_container;

/// The schemas, each with its free places: values of any kind, members of a map, and optional
/// members.
const SCHEMAS: [(&str, &[&str]); 21] = [
    ("status", &[".requests.", ".program."]),
    ("plugins", &[".gone_at-", ".gone_time-", ".reason-"]),
    ("pods", &[".labels."]),
    ("explain", &[".before", ".after", ".owners."]),
    ("drift", &[]),
    ("check", &[".warning-", ".engines-"]),
    ("audit-line", &[".from", ".to", "-"]),
    ("event", &[".labels.", ".exit_code-", ".lost-"]),
    ("adjust", &[".adjust.", ".adjust+", ".owners."]),
    ("top", &[".containers.", ".labels."]),
    ("plugin-log", &[]),
    ("policy", &[".labels."]),
    ("policy-compare", &[".unfinished-", ".after-"]),
    ("sysdump", &[]),
    ("install", &[]),
    ("reload", &[]),
    ("reexec", &[]),
    ("stop", &[".killed-", ".autostart-", ".by-"]),
    ("restart", &[]),
    ("forget", &[]),
    ("disable", &[]),
];

/// A rule in audit mode and one for processes; an injection that gives way, and one in audit mode.
const MORE: &str = r#"
[[rule]]
name = "no annotations"
deny = ["Annotations"]
mode = "audit"
[[exec_rule]]
name = "no shells"
commands = ["sh"]
[[inject]]
name = "path"
env = { PATH = "/none", ZONE = "a" }
[[inject]]
name = "later"
mode = "audit"
env = { LATER = "1" }
"#;

/// A host that keeps an audit log.
fn host() -> TestHost {
    let host = TestHost::default();
    let path = host.path("log/audit.log");
    let audit = format!("[audit]\ntarget = \"file\"\npath = \"{}\"\n{MORE}", path.display());
    host.configure(&host.path("fake/runc"), &audit);
    host
}

fn events(host: &TestHost) -> Vec<(&'static str, Value)> {
    let events = host.call(&["nri", "events", "-o", "json"]);
    let events = String::from_utf8(events.stdout).unwrap();
    events.lines().map(|line| ("event", serde_json::from_str(line).unwrap())).collect()
}

/// The outputs of a host with varied activity, each with its schema.
fn outputs(host: &mut TestHost) -> Vec<(&'static str, Value)> {
    let mut outputs = vec![("check", host.admin(&["check"]))];
    host.put_program("plugins/40-talks", "#!/bin/sh\necho no; exit 3\n");
    host.start_daemon();
    let empty = ["status", "plugins", "pods"].map(|verb| (verb, host.admin(&[verb])));
    outputs.extend(empty);

    // The fake runtime applies no limits.
    let adjust = Adjustment::new().annotation("example.org/a", "b").env("A", "1");
    let adjust = adjust.env("PATH", "/bin").rlimit("RLIMIT_NOFILE", 123, 321);
    let updates = vec![update_of("c2", &json!({"cpu": {"shares": 512}}))];
    let _first = host.plugin("10", "a", Script { updates, ..adjust.into() });
    for (namespace, id) in [("shop", "c1"), ("shop", "c2"), ("stage", "d1")] {
        let bundle = pod_container(host, namespace, id);
        succeeds(&host.create_from(&bundle, id));
    }
    succeeds(&host.verb(&["start", "c1"]));
    let lost = Script { leaves: true, ..sets("B", "2") };
    let _gone = host.plugin("30", "leaves", lost);
    host.create("left");
    let is_gone = || !is_synchronized(&host.admin(&["plugins"]), "30-leaves");
    wait_until("the plugin is gone", is_gone);
    let refusing = Script { refuses: Some("not here"), ..Script::default() };
    let _guard = host.plugin("20", "guard", refusing);
    fails(&host.create("refused"), &["20-guard refused"]);

    for verb in ["status", "plugins", "pods", "check", "drift"] {
        outputs.push((verb, host.admin(&[verb])));
    }
    for (what, has) in [
        ("c1", &["changes", "would_refuse", "exec_rules", "would_inject", "gave_way"][..]),
        ("refused", &["refused"]),
        ("left", &["skipped"]),
        ("c", &["matches"]),
        ("pod-of-c1", &["containers"]),
    ] {
        let explained = host.admin(&["explain", what, "--show-env"]);
        for member in has {
            assert_ne!(
                explained[*member].as_array().map_or(0, Vec::len),
                0,
                "{member}: {explained}"
            );
        }
        outputs.push(("explain", explained));
    }
    wait_until("the audit log has the refusal", || {
        let lines = host.admin(&["audit"]);
        let has = |action: &str| lines.as_array().unwrap().iter().any(|l| l["action"] == action);
        has("refused") && has("applied") && has("disconnected")
    });
    let lines = host.admin(&["audit"]);
    outputs.extend(lines.as_array().unwrap().iter().map(|line| ("audit-line", line.clone())));

    outputs.extend(events(host));

    let adjusted = json!({"plugin": "10-a", "env": [{"key": "A", "value": "1"}]});
    host.write("adjust.json", &adjusted.to_string());
    let (bundle, file) = (host.path("bundle"), host.path("adjust.json"));
    let paths = [bundle.to_str().unwrap(), file.to_str().unwrap()];
    outputs.push(("adjust", host.admin(&["adjust", "--bundle", paths[0], "--apply", paths[1]])));
    outputs.extend(of_the_rules(host));
    outputs.extend(of_changes(host));
    outputs
}

/// The decisions of rules, for a pod and compared.
fn of_the_rules(host: &TestHost) -> Vec<(&'static str, Value)> {
    let [pod, new] = manifest_and_configuration(host, true);
    let compare = ["policy", "test", "-f", &pod, "--compare", &new];
    let compared = host.admin(&compare);
    assert_eq!(compared["changed"], 1, "{compared}");
    let tested = host.admin(&["policy", "test", "--pod", "pod-of-c1", "--plugin", "10-a"]);
    vec![("policy", tested), ("policy-compare", compared)]
}

/// The outputs of commands that change the daemon or the host.
fn of_changes(host: &TestHost) -> Vec<(&'static str, Value)> {
    let mut outputs = Vec::new();
    let mut add = |name: &'static str, words: &[&str]| outputs.push((name, host.admin(words)));
    let (root, archive) = (host.path("host"), host.path("dump.tar.gz"));
    std::fs::create_dir_all(root.join("usr/bin")).unwrap();
    let program = test_support::program::nri_runc();
    test_support::program::copy(program, &root.join("usr/bin/nri-runc"));
    let root = ["docker", "--root", root.to_str().unwrap()];
    add("install", &[&["install"][..], &root, &["--binary", "/usr/bin/nri-runc"]].concat());
    add("install", &[&["uninstall"][..], &root].concat());
    add("top", &["top", "-n", "1", "--interval", "100ms"]);
    add("plugin-log", &["plugins", "--logs", "40-talks"]);
    add("sysdump", &["sysdump", archive.to_str().unwrap()]);
    add("disable", &["disable"]);
    add("disable", &["enable"]);
    host.write("config.toml", &host.read("config.toml").replace("\"no shells\"", "\"none\""));
    add("reload", &["reload", "--dry-run"]);
    add("reload", &["reload"]);
    for pod in host.admin(&["pods"]).as_array().unwrap() {
        let container = &pod["containers"][0];
        if container["id"] == "d1" {
            let pid = i32::try_from(container["pid"].as_i64().unwrap()).unwrap();
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        }
    }
    wait_until("its process has ended", || host.admin(&["explain", "d1"])["state"] == "stopped");
    add("forget", &["forget", "d1", "--force"]);
    for verb in ["reexec", "restart", "stop", "stop", "reexec", "reload"] {
        add(verb, &[verb]);
    }
    outputs
}

#[test]
fn each_output_fits_its_schema_and_no_wrong_form_of_it_does() {
    let mut host = host();
    let outputs = outputs(&mut host);
    for (name, free) in SCHEMAS {
        let schema = Schema::of(name);
        let mut wrong = 0;
        for (_, output) in outputs.iter().filter(|(of, _)| *of == name) {
            assert_eq!(schema.check(output), Ok(()), "{name}: {output}");
            for (place, form) in wrong_forms(output) {
                let is_free = free.iter().any(|free| place.contains(free));
                let checked = schema.check(&form);
                assert!(is_free || checked.is_err(), "{name} takes a wrong {place}: {form}");
                wrong += usize::from(checked.is_err());
            }
        }
        assert!(wrong >= 5, "{name}: {wrong} wrong forms were refused");
    }
}

#[test]
fn each_schema_is_checked_with_an_output() {
    let folder = std::fs::read_dir(test_support::program::project().join("docs/schema")).unwrap();
    let files = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = files.collect();
    assert_eq!(files, SCHEMAS.iter().map(|(name, _)| format!("{name}.json")).collect());
}

#[test]
fn each_keyword_of_a_schema_is_enforced() {
    let refuses = |schema: Value, document: Value, why: &str| {
        let checked = Schema::new(schema).check(&document).unwrap_err();
        assert!(checked.contains(why), "{checked}");
    };
    refuses(json!({"type": "integer"}), json!("1"), "is not of type");
    refuses(json!({"type": ["integer", "null"]}), json!(1.5), "is not of type");
    refuses(json!({"const": 1}), json!(2), "is not 1");
    refuses(json!({"enum": ["a"]}), json!("b"), "is none of");
    refuses(json!({"items": {"type": "string"}}), json!(["a", 1]), "$[1]: 1 is not");
    refuses(json!({"required": ["a"]}), json!({}), "a is missing");
    let members = json!({"properties": {"a": {"type": "string"}}});
    refuses(members.clone(), json!({"a": 1}), "$.a: 1 is not");
    refuses(members, json!({"b": 1}), "b is not in the schema");
    let map = json!({"additionalProperties": {"type": "string"}});
    refuses(map, json!({"b": 1}), "$.b: 1 is not");
    let forms = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    refuses(forms, json!(1), "none of 2 forms fits");
    let one = json!({"oneOf": [{"const": 1}, {"type": "integer"}]});
    refuses(one.clone(), json!(1), "2 forms fit");
    refuses(one, json!("a"), "none of 2 forms fits");
    refuses(json!({"minimum": 0}), json!(-1), "beyond the minimum");
    refuses(json!({"minItems": 1}), json!([]), "beyond the minItems");
    refuses(json!({"maxItems": 1}), json!([1, 2]), "beyond the maxItems");
    refuses(json!({"properties": {"a": false}}), json!({"a": 1}), "the schema is no object");
    let by_name = json!({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"});
    refuses(by_name, json!(1), "is not of type");
    refuses(json!({"$ref": "#/$defs/none"}), json!(1), "no \"#/$defs/none\"");
    refuses(json!({"$ref": "other.json"}), json!(1), "no \"other.json\"");
    refuses(json!({"pattern": "^a"}), json!("b"), "the keyword pattern is not known");
    refuses(json!([]), json!(1), "the schema is no object");
}

#[test]
fn a_number_or_a_null_fits_where_its_type_is_listed() {
    let takes = |schema: Value, document: Value| {
        assert_eq!(Schema::new(schema).check(&document), Ok(()), "{document}");
    };
    takes(json!({"type": "number"}), json!(1));
    takes(json!({"type": ["string", "null"]}), Value::Null);
    takes(json!({"type": ["integer", "null"], "minimum": 0}), Value::Null);
    takes(json!({"properties": {"a": true, "b": {}}}), json!({"a": [1], "b": 1}));
    takes(json!({"properties": {"a": {}}, "required": ["a"]}), json!([1]));
}
