// SPDX-License-Identifier: Apache-2.0
//! The built binary on a bundle, with plugins, through a small runtime that records its calls,
//! sometimes through the real runc: adjustments, events, refusals, time-outs, crashes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

mod containers;
mod daemon;
mod execs;
mod fidelity;
mod golden;
mod injected;
mod load;
mod plugins;
mod pods;
mod promised;
mod reports;
mod rules;
mod sample_plugins;
mod transparency;
mod updates;

use nri_runc::testing::error::RESERVED_PHRASES;
use serde_json::Value;
use test_support::adjustments::{pins, sets};
use test_support::{
    BUNDLE, SILENT, Script, TestHost, has_received, life, started, succeeds, wait_until,
};

/// Checks a refusal: one line on stderr, one entry in the log, exit code 1, and no phrase that
/// engines interpret.
#[track_caller]
fn refused(host: &TestHost, output: &std::process::Output, wanted: &[&str]) {
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(line.lines().count(), 1, "{line}");
    for word in wanted {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
    for phrase in RESERVED_PHRASES {
        assert!(!line.to_lowercase().contains(phrase), "{line}");
    }
    let log = host.read("log.json");
    let entry: Value = serde_json::from_str(&log).unwrap();
    assert_eq!(
        (entry["level"].as_str(), entry["msg"].as_str()),
        (Some("error"), Some(line.trim()))
    );
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
    assert_eq!(host.read("fake/argv"), "");
    let names: Vec<_> = std::fs::read_dir(host.path("bundle")).unwrap().flatten().collect();
    assert_eq!(names.len(), 2, "something was left in the bundle: {names:?}");
}

#[test]
fn an_adjustment_reaches_the_runtime_and_changes_nothing_else() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    let wanted = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    assert_eq!(host.read("fake/seen.json"), wanted);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["changes"][0]["plugin"], "10-env");
    assert_eq!(explained["changes"][0]["field"], "process.env[HELLO]");
    assert!(!explained.to_string().contains("there"), "environment values are hidden");
    assert!(host.admin(&["explain", "c1", "--show-env"]).to_string().contains("there"));
}

#[test]
fn a_containers_events_are_sent_once_and_in_order() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("the stop is reported", || {
        received.lock().unwrap().iter().any(|e| e == "StopContainer c1")
    });
    succeeds(&host.verb(&["delete", "c1"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("the pod is gone", || host.admin(&["pods"]) == Value::Array(vec![]));
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn explain_finds_containers_by_the_name_of_a_removed_pod() {
    let host = started("");
    succeeds(&host.create("c1"));
    let pod = host.admin(&["pods"])[0].clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = text(&pod["containers"][0]["name"]);
    let wanted = format!("{}/{}/{name}", text(&pod["namespace"]), text(&pod["name"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("the pod is gone", || host.admin(&["pods"]) == Value::Array(vec![]));
    let explained = host.admin(&["explain", &wanted]);
    assert_eq!((&explained["id"], &explained["pod"]), (&"c1".into(), &pod["name"]), "{wanted}");
}

#[test]
fn a_bundle_is_restored_after_its_container_is_removed() {
    let host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    for _round in 0..2 {
        succeeds(&host.create("c1"));
        assert_eq!(host.read("fake/seen.json").matches("HELLO").count(), 1);
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        wait_until("the bundle is restored", || host.read("bundle/config.json") == BUNDLE);
    }
}

#[test]
fn a_bundle_gets_no_file_after_its_container_was_deleted() {
    let host = started("");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    for (id, ends_first) in [("forced", false), ("created", false), ("ended", true)] {
        succeeds(&host.create(id));
        if ends_first {
            succeeds(&host.verb(&["start", id]));
            succeeds(&host.verb(&["kill", id, "9"]));
            wait_until("its end is received", || {
                has_received(&received, &format!("StopContainer {id}"))
            });
        }
        let force: &[&str] = if id == "forced" { &["--force"] } else { &[] };
        succeeds(&host.verb(&[&["delete"], force, &[id]].concat()));
        // After the delete the engine removes the folder, so nri-runc must not change it.
        let changed = || std::fs::metadata(host.path("bundle")).unwrap().modified().unwrap();
        let (before, document) = (changed(), host.read("bundle/config.json"));
        wait_until("its pod is over", || {
            has_received(&received, &format!("RemovePodSandbox {id}"))
        });
        wait_until("it is forgotten", || host.admin(&["pods"]) == Value::Array(vec![]));
        assert_eq!((document.as_str(), changed()), (BUNDLE, before), "{id}");
    }
}

#[test]
fn no_container_name_bypasses_the_plugins() {
    let host = started("");
    let refusing = Script { refuses: Some("no"), ..Script::default() };
    let _plugin = host.plugin("90", "guard", refusing);
    for id in ["help", "h", "nri", "create", "version"] {
        let output = host.create(id);
        assert_eq!(output.status.code(), Some(1), "{id}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("90-guard"), "{id}");
    }
}

#[test]
fn a_silent_plugin_is_skipped_by_default() {
    let host = started(SILENT);
    let _plugin = host.plugin("10", "slow", Script { hangs: true, ..Script::default() });
    succeeds(&host.create("c1"));
    let skipped = &host.admin(&["explain", "c1"])["skipped"][0];
    assert!(skipped["reason"].as_str().unwrap().contains("did not answer"), "{skipped}");
    assert_eq!(host.admin(&["status"])["plugins"], 0, "one strike disconnects it");
}

#[test]
fn a_pod_that_tolerates_missing_plugins_is_not_refused_for_one() {
    let host = started(
        "[nri.default_validator]\ntolerate_missing_plugins_annotation = \"tolerate.example\"\n\
         [plugin.policy]\nrequired = true\n",
    );
    for (value, wanted) in [
        ("false", "required plugin policy is not connected"),
        ("maybe", "invalid tolerate.example annotation \"maybe\": expected true or false"),
        ("true", ""),
    ] {
        let annotations = format!("{{\"annotations\": {{\"tolerate.example\": \"{value}\"}}, ");
        let bundle = BUNDLE.replacen('{', &annotations, 1);
        host.write("bundle/config.json", &bundle);
        let output = host.create("c1");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), wanted.is_empty(), "{value}: {line}");
        assert!(line.contains(wanted), "{line}");
        assert_eq!(host.read("bundle/config.json"), bundle);
    }
}

#[test]
fn a_new_plugin_is_synchronized_and_then_receives_events() {
    let host = started("");
    succeeds(&host.create("c1"));
    let received = host.plugin("10", "late", Script::default());
    succeeds(&host.verb(&["start", "c1"]));
    wait_until("the start is reported", || received.lock().unwrap().len() >= 3);
    assert_eq!(
        *received.lock().unwrap(),
        ["Synchronize c1", "StartContainer c1", "PostStartContainer c1"]
    );
}

#[test]
fn an_engines_update_keeps_a_plugins_values() {
    let host = started("");
    let _plugin = host.plugin("10", "pin", pins("0"));
    succeeds(&host.create("c1"));
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", "c1"];
    let request = r#"{"cpu":{"shares":1024,"cpus":""},"memory":{"limit":2000000}}"#;
    wait_until("the create is settled", || {
        host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    succeeds(&host.call_with(&words, request));
    let got: Value = serde_json::from_str(&host.read("fake/update.json")).unwrap();
    assert_eq!(got["cpu"]["cpus"], "0", "{got}");
    assert_eq!(got["memory"]["limit"], 2_000_000, "{got}");
}

#[test]
fn without_an_owner_an_update_passes_byte_for_byte() {
    let host = started("");
    succeeds(&host.create("c1"));
    let root = host.path("root").display().to_string();
    let odd = "{ \"cpu\": {\"shares\": 1.5e2 } }  trailing";
    succeeds(&host.call_with(&["--root", &root, "update", "--resources=-", "c1"], odd));
    assert_eq!(host.read("fake/update.json"), odd);
}

#[test]
fn the_daemon_is_started_when_it_is_needed() {
    let host = TestHost::default();
    succeeds(&host.create("c1"));
    assert_eq!(host.admin(&["status"])["requests"]["create"], 1);
}

#[test]
fn a_verb_without_events_contacts_and_writes_nothing() {
    let host = TestHost::default();
    succeeds(&host.verb(&["state", "c1"]));
    succeeds(&host.call(&["--version"]));
    succeeds(&host.call(&["features"]));
    assert!(!host.path("run").exists(), "the run directory was made");
}

#[test]
fn a_create_while_disabled_starts_no_daemon() {
    let host = TestHost::new("[nri]\ndisable = true\n");
    succeeds(&host.create("c1"));
    assert!(!host.path("run").exists());
    let host = TestHost::default();
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.create("c1"));
    assert!(!host.path("run/daemon.sock").exists());
    succeeds(&host.call(&["nri", "enable"]));
    assert!(!host.path("run/disabled").exists());
}

#[test]
fn after_the_daemon_dies_in_a_request_the_policy_decides() {
    let dies = "[debug]\nfault = \"daemon.verdict:kill\"\n";
    let host = TestHost::new(dies);
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE, "the bundle was pristine");
    assert_eq!(std::fs::read_dir(host.path("run/bypassed")).unwrap().count(), 1);
    let host = TestHost::new(&format!("on_daemon_failure = \"fail\"\n{dies}"));
    refused(
        &host,
        &host.create("c1"),
        &["cannot create c1", "the daemon exited during the request"],
    );
}

#[test]
fn a_daemon_that_may_not_be_started_is_bypassed_or_refuses() {
    let host = TestHost::new("autostart = false");
    succeeds(&host.create("c1"));
    let host = TestHost::new("autostart = false\non_daemon_failure = \"fail\"");
    refused(&host, &host.create("c1"), &["reaching the daemon"]);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn a_create_is_rolled_back_if_its_wrapper_is_killed() {
    let host = started("");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    for point in ["wrapper.verdict", "wrapper.committed"] {
        let fault = format!("[debug]\nfault = \"{point}:kill\"\n");
        host.configure(&host.path("fake/runc"), &fault);
        assert!(!host.create("c1").status.success());
        wait_until("it is undone", || host.admin(&["pods"]) == Value::Array(vec![]));
        wait_until("the bundle is restored", || host.read("bundle/config.json") == BUNDLE);
        assert_eq!(std::fs::read_dir(host.path("bundle")).unwrap().count(), 2, "at {point}");
    }
    assert_eq!(received.lock().unwrap().iter().filter(|e| *e == "RemoveContainer c1").count(), 2);
    host.configure(&host.path("fake/runc"), "");
    succeeds(&host.create("c1"));
}

#[test]
fn a_daemon_that_was_killed_finds_its_containers_again() {
    let mut host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    wait_until("the create is settled", || {
        host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    host.kill_daemon();
    host.start_daemon();
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    assert_eq!(received.lock().unwrap().first().map(String::as_str), Some("Synchronize c1"));
    assert_eq!(host.admin(&["explain", "c1"])["changes"][0]["plugin"], "10-env");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("the bundle is restored", || host.read("bundle/config.json") == BUNDLE);
}

#[test]
fn odd_documents_are_refused_in_one_line_or_passed_on() {
    let host = started("");
    for odd in ["", "[]", "{\"process\": {\"args\": 5}}", "{\"mounts\": [1]}"] {
        host.write("bundle/config.json", odd);
        let output = host.create("c1");
        assert_eq!(output.status.code(), Some(1), "{odd}");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            line.starts_with("nri-runc: cannot create c1") && line.lines().count() == 1,
            "{line}"
        );
        assert_eq!(host.read("bundle/config.json"), odd);
    }
    std::fs::remove_file(host.path("bundle/config.json")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", host.path("bundle/config.json")).unwrap();
    let line = String::from_utf8_lossy(&host.create("c1").stderr).into_owned();
    assert!(line.contains("is not well-formed JSON") && !line.contains("root"), "{line}");
}
