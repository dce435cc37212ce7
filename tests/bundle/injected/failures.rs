// SPDX-License-Identifier: Apache-2.0
//! Injections that fail, pods that claim another identity, mistakes in the configuration, and a node on
//! which an engine serves NRI itself.

use std::os::unix::net::UnixListener;

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost, fails, started, succeeds, wait_until};

use super::first::{env, seen};
use crate::rules::{lay_down, pod_container};

#[test]
fn injections_apply_where_another_process_serves_plugins() {
    let mut host = TestHost::new("[[inject]]\nname = \"i\"\nenv = { X = \"1\" }\n");
    let engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    host.start_daemon();
    assert_eq!(host.admin(&["status"])["pass_through"], true);
    succeeds(&host.create("c1"));
    assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "X=1"]));
    drop(engine);
}

#[test]
fn the_example_of_injections_md_works_as_described() {
    let page = test_support::program::project().join("docs/injections.md");
    let page = std::fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let host = started(example);
    for (namespace, is_meant) in [("dev", true), ("kube-system", false)] {
        let bundle = pod_container(&host, namespace, namespace);
        succeeds(&host.create_from(&bundle, namespace));
        let seen = host.read(&format!("fake/seen-{namespace}.json"));
        assert_eq!(seen.contains("SSL_CERT_FILE=/etc/ssl/corp.pem"), is_meant, "{seen}");
        assert_eq!(seen.contains("\"destination\":\"/etc/ssl/corp.pem\""), is_meant, "{seen}");
    }
}

#[test]
fn an_unproven_namespace_neither_gets_nor_avoids_an_injection() {
    let skip = "[[inject]]\nname = \"i\"\nnamespaces = [\"prod\"]\nenv = { X = \"1\" }\n";
    let skipping = started(skip);
    succeeds(&skipping.create_from(&lay_down(&skipping, "prod", "c1", "forged"), "c1"));
    assert_eq!(env(&skipping), json!(["PATH=/bin", "A=1"]));
    let skipped = skipping.admin(&["explain", "c1"])["skipped"].to_string();
    assert!(skipped.contains("inject:i") && skipped.contains("not proven"), "{skipped}");
    // An exclusion excludes only what is proven.
    let refuse = skip.replace("[\"prod\"]", "[\"*\", \"!dev\"]") + "on_failure = \"refuse\"\n";
    let refusing = started(&refuse);
    let forged = lay_down(&refusing, "dev", "c1", "forged");
    fails(&refusing.create_from(&forged, "c1"), &["inject:i cannot be injected", "not proven"]);
    let proven = pod_container(&refusing, "dev", "c2");
    succeeds(&refusing.create_from(&proven, "c2"));
    assert_eq!(env(&refusing), json!(["PATH=/bin", "A=1"]));
}

#[test]
fn injections_compare_mount_destinations_in_normal_form() {
    let lines = |when: &str| {
        format!(
            "[[inject]]\nname = \"i\"\nwhen = \"{when}\"\n\
             mounts = [{{ destination = \"/etc/ssl/x\", type = \"tmpfs\", source = \"mine\" }}]\n"
        )
    };
    for (when, wanted) in [("absent", "own"), ("always", "mine")] {
        let host = started(&lines(when));
        let own = json!({"destination": "/etc/../etc//ssl/./x/", "type": "tmpfs", "source": "own"});
        let bundle = BUNDLE.replace("\"mounts\": [ ", &format!("\"mounts\": [ {own}, "));
        host.write("bundle/config.json", &bundle);
        succeeds(&host.create("c1"));
        let seen = seen(&host);
        let mounts = seen["mounts"].as_array().unwrap();
        let mut sources: Vec<&str> =
            mounts.iter().filter_map(|mount| mount["source"].as_str()).collect();
        sources.sort_unstable();
        assert_eq!(sources, [wanted, "proc"], "{when}");
    }
}

/// Profiles in Docker's form: without its conditions the first one permits `mount` to every container.
const DOCKERS: &str = r#"{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
    {"names": ["read"], "action": "SCMP_ACT_ALLOW", "includes": {}, "excludes": {}},
    {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}}]}"#;
const DOCKERS_MAP: &str = r#"{"defaultAction": "SCMP_ACT_ERRNO", "archMap": [
    {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}]}"#;

#[test]
fn an_unusable_profile_skips_the_injection_or_refuses() {
    for (text, reason) in [
        (None, "it is missing"),
        (Some("{"), "the seccomp profile"),
        (Some("{\"names\": []}"), "it has no defaultAction"),
        (Some("{\"defaultAction\": 5}"), "the seccomp profile"),
        (Some(DOCKERS), "it has includes, which only Docker resolves"),
        (Some(DOCKERS_MAP), "it has archMap, which only Docker resolves"),
    ] {
        for refuses in [false, true] {
            let mut host = TestHost::default();
            let file = host.path("p.json").display().to_string();
            if let Some(text) = text {
                host.write("p.json", text);
            }
            let on_failure = if refuses { "refuse" } else { "skip" };
            let lines = format!(
                "[[inject]]\nname = \"p\"\nwhen = \"always\"\nseccomp = \"{file}\"\n\
                 on_failure = \"{on_failure}\"\n"
            );
            host.configure(&host.path("fake/runc"), &lines);
            host.start_daemon();
            let created = host.create("c1");
            if refuses {
                fails(&created, &["inject:p cannot be injected", reason]);
                continue;
            }
            succeeds(&created);
            assert_eq!(host.read("fake/seen.json"), BUNDLE);
            let skipped = host.admin(&["explain", "c1"])["skipped"].to_string();
            assert!(skipped.contains(reason), "{skipped}");
        }
    }
}

#[test]
fn only_a_refusing_injection_applies_without_the_daemon() {
    for (on_failure, is_refused) in [("skip", false), ("refuse", true)] {
        let lines = format!(
            "autostart = false\n[[inject]]\nname = \"i\"\nenv = {{ X = \"1\" }}\n\
             on_failure = \"{on_failure}\"\n"
        );
        let host = TestHost::new(&lines);
        let created = host.create("c1");
        match is_refused {
            true => fails(&created, &["the injection \"i\" has on_failure = \"refuse\""]),
            false => succeeds(&created),
        }
        let seen = if is_refused { "" } else { BUNDLE };
        assert_eq!(host.read("fake/seen.json"), seen);
    }
}

#[test]
fn a_mistyped_section_with_skip_is_omitted_and_others_apply() {
    let host = started(
        "[[inject]]\nnamspaces = [\"prod\"]\nenv = { X = \"1\" }\n\
         [[inject]]\nname = \"good\"\nenv = { Y = \"1\" }\n",
    );
    succeeds(&host.create("c1"));
    assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "Y=1"]));
    let check = host.call(&["nri", "check"]);
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.contains(": unknown key inject.namspaces (did you mean namespaces?)"), "{check}");
}

#[test]
fn a_mistyped_refusing_section_refuses_and_names_its_place() {
    let host = started("[[inject]]\non_failure = \"refuse\"\nenv = { X = 1 }\n");
    fails(&host.create("c1"), &["config.toml:", "inject.env.X: expected a string in quotes"]);
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_reload_with_a_mistake_keeps_the_injections_in_force() {
    let host = started("[[inject]]\nname = \"i\"\nenv = { X = \"1\" }\n");
    let wrong = "[[inject]]\nname = \"i\"\nenv = { X = 2 }\n";
    host.configure(&host.path("fake/runc"), wrong);
    fails(&host.call(&["nri", "reload"]), &["inject.env.X: expected a string in quotes"]);
    succeeds(&host.create("c1"));
    assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "X=1"]));
}

#[test]
fn two_injections_that_are_always_set_conflict() {
    let section = |name: &str| {
        format!("[[inject]]\nname = \"{name}\"\nwhen = \"always\"\nenv = {{ X = \"{name}\" }}\n")
    };
    let refusing = started(&(section("a") + &section("b")));
    fails(&refusing.create("c1"), &["\"inject:b\" and \"inject:a\" both tried to set Env X"]);
    let giving_way = started(&(section("a") + &section("b")).replace("always", "absent"));
    succeeds(&giving_way.create("c1"));
    assert_eq!(env(&giving_way), json!(["PATH=/bin", "A=1", "X=a"]));
    let gave_way = &giving_way.admin(&["explain", "c1"])["gave_way"][0];
    assert_eq!((&gave_way["plugin"], &gave_way["to"]), (&json!("inject:b"), &json!("inject:a")));
}

#[test]
fn later_plugins_receive_injections_and_may_remove_them() {
    let host = started("[[inject]]\nname = \"i\"\nenv = { X = \"1\", Y = \"1\" }\n");
    let _plugin = host.plugin("10", "p", sets("-X", ""));
    succeeds(&host.create("c1"));
    assert_eq!(env(&host), json!(["PATH=/bin", "A=1", "Y=1"]));
    let gave_way = &host.admin(&["explain", "c1"])["gave_way"][0];
    assert_eq!((&gave_way["field"], &gave_way["to"]), (&json!("Env[X]"), &json!("10-p")));
}

#[test]
fn the_audit_log_and_metrics_have_the_injection() {
    let mut host = TestHost::default();
    let log = host.path("log/audit.log").display().to_string();
    let lines = format!(
        "[audit]\ntarget = \"file\"\npath = \"{log}\"\n\
         [[inject]]\nname = \"did\"\nenv = {{ X = \"1\" }}\n\
         [[inject]]\nname = \"would\"\nmode = \"audit\"\nenv = {{ Y = \"1\" }}\n\
         [[inject]]\nname = \"failed\"\nwhen = \"always\"\ncdi = [\"a.b/c=0\"]\n"
    );
    host.configure(&host.path("fake/runc"), &lines);
    host.start_daemon();
    succeeds(&host.create("c1"));
    for (action, plugin) in
        [("applied", "inject:did"), ("would_inject", "inject:would"), ("skipped", "inject:failed")]
    {
        wait_until("the line is written", || {
            let lines = host.admin(&["audit"]);
            let is_it = |line: &Value| line["action"] == action && line["plugin"] == plugin;
            lines.as_array().is_some_and(|lines| lines.iter().any(is_it))
        });
    }
    let metrics = host.call(&["nri", "metrics"]);
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    for (name, result) in [("did", "applied"), ("would", "would_inject"), ("failed", "skipped")] {
        let line =
            format!("nri_runc_injections_total{{injection=\"{name}\",result=\"{result}\"}} 1");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[test]
fn policy_test_lists_matching_injections_with_reasons() {
    let host = TestHost::new(
        "[[inject]]\nname = \"yes\"\nnamespaces = [\"prod\"]\nenv = { X = \"1\" }\n\
         [[inject]]\nname = \"no\"\nnamespaces = [\"!prod\"]\nenv = { X = \"1\" }\n\
         [[inject]]\nname = \"image\"\nimages = [\"a/b\"]\nenv = { X = \"1\" }\n",
    );
    let bundle = pod_container(&host, "prod", "c1");
    let path = host.path(&bundle).display().to_string();
    let document = host.admin(&["policy", "test", "--bundle", &path]);
    let rows = document["injections"].as_array().unwrap();
    let matches: Vec<&str> = rows.iter().filter_map(|row| row["matches"].as_str()).collect();
    assert_eq!(matches, ["yes", "no", "maybe"]);
    let page = host.call(&["nri", "policy", "test", "--bundle", &path]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("injection \"yes\" holds: namespaces: \"prod\""), "{page}");
}

#[test]
fn adjust_applies_injections_without_a_daemon_or_plugins() {
    let host = TestHost::new("[[inject]]\nname = \"i\"\nenv = { X = \"1\" }\n");
    let bundle = host.path("bundle").display().to_string();
    let document = host.call(&["nri", "adjust", "--bundle", &bundle, "-o", "json"]);
    succeeds(&document);
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!(document["owners"], json!({"Env[X]": "inject:i"}));
    let started = started("[[inject]]\nname = \"late\"\nimages = [\"x\"]\nenv = { X = \"1\" }\n");
    succeeds(&started.create("c1"));
    assert_eq!(started.read("fake/seen.json"), BUNDLE, "an unknown image matches no pattern");
}
