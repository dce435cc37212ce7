// SPDX-License-Identifier: Apache-2.0
//! Promises by the engine's document: device nodes, mounts, annotations; without the plugin, with it, in
//! audit mode, hidden by a rule, and if the plugin does not respond.

use nri_runc::plugin::Event;
use serde_json::json;
use test_support::responding_plugin::{RespondingPlugin, Response};
use test_support::{BUNDLE, SILENT, Script, TestHost, fails, started, succeeds};

use super::{gpu, host, metric, promise, with_device};
use crate::plugins::policies::connected;
use crate::rules::{lay_down, pod_container};

const NVIDIA: &str = "devices = [\"/dev/nvidia*\"]";

#[test]
fn a_container_with_the_device_needs_the_plugin() {
    let host = host(NVIDIA);
    let bundle = gpu(&host);
    let before = host.read("gpu/config.json");
    fails(
        &host.create_from(&bundle, "c1"),
        &["cannot create c1: the promise \"gpu driver\" refuses container c1 \
             (devices: \"/dev/nvidia0\"): it needs the plugin gpu, which is not connected \
             (the bundle is unchanged; see: nri-runc nri plugins)"],
    );
    assert_eq!(host.read("gpu/config.json"), before);
    assert!(!host.path("fake/seen.json").exists(), "the runtime was never called");
    // A container without the device needs nothing.
    succeeds(&host.create("c2"));
    assert_eq!(host.admin(&["explain", "c2"])["promises"], json!([]));
    let _plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&host.create_from(&bundle, "c1"));
    let promise = |result: &str| {
        json!([{"promise": "gpu driver", "plugin": "gpu", "why": "devices: \"/dev/nvidia0\"",
                "mode": "enforce", "result": result}])
    };
    assert_eq!(host.admin(&["explain", "c1"])["promises"], promise("met"));
    for result in ["met", "refused"] {
        let line =
            format!("nri_runc_promises_total{{promise=\"gpu driver\",result=\"{result}\"}} 1");
        assert!(metric(&host, &line), "{line}");
    }
}

#[test]
fn each_key_of_a_promise_matches_its_source_in_the_document() {
    for (lines, path, annotation) in [
        ("devices = [\"/dev/nvidia0\"]", "/dev/../dev//nvidia0", ("", "")),
        ("devices = [\"/proc\"]", "", ("", "")),
        ("annotations = [\"gpu\"]", "", ("gpu", "")),
        ("annotations = [\"gpu=a*\"]", "", ("gpu", "all")),
        ("cdi = [\"nvidia.com/*\"]", "", ("cdi.k8s.io/x", "a.com/b=c, nvidia.com/gpu=0")),
        ("images = [\"x\"]\nannotations = [\"gpu\"]", "", ("gpu", "1")),
        ("engines = [\"plain\"]", "", ("", "")),
    ] {
        let host = host(lines);
        let bundle = with_device(&host, "b", path, annotation);
        fails(&host.create_from(&bundle, "c1"), &["the promise \"gpu driver\" refuses", "gpu"]);
    }
    for (lines, path, annotation) in [
        ("devices = [\"/dev/nvidia*\", \"!/dev/nvidia0\"]", "/dev/nvidia0", ("", "")),
        ("devices = [\"/dev/nvidia0\"]", "/dev/nvidia1", ("", "")),
        ("annotations = [\"gpu=a*\"]", "", ("gpu", "none")),
        ("cdi = [\"nvidia.com/*\"]", "", ("x", "nvidia.com/gpu=0")),
        ("claims = [\"*\"]", "", ("", "")),
        ("resources = [\"*\"]", "", ("", "")),
        ("images = [\"*\"]", "", ("", "")),
        ("engines = [\"cri-o\"]\ndevices = [\"*\"]", "/dev/nvidia0", ("", "")),
    ] {
        let host = host(lines);
        let bundle = with_device(&host, "b", path, annotation);
        succeeds(&host.create_from(&bundle, "c1"));
    }
}

#[test]
fn a_renamed_device_counts_by_its_number() {
    let host = host("devices = [\"/dev/null\"]");
    let device = json!({"path": "/dev/mine", "type": "c", "major": 1, "minor": 3});
    let document =
        BUNDLE.replace("\"linux\": {", &format!("\"linux\": {{ \"devices\": [{device}], "));
    assert_ne!(document, BUNDLE);
    host.write("bundle/config.json", &document);
    fails(&host.create("c1"), &["refuses container c1 (devices: \"/dev/null\")"]);
}

#[test]
fn only_the_plugin_of_that_name_satisfies_the_promise() {
    let lines = promise(NVIDIA).replace("\"gpu\"", "\"10-gpu\"");
    let host = started(&lines);
    let bundle = gpu(&host);
    for (index, name) in [("20", "gpu"), ("10", "gpus")] {
        let _plugin = host.plugin(index, name, Script::default());
        fails(
            &host.create_from(&bundle, "c1"),
            &["needs the plugin 10-gpu, which is not connected"],
        );
    }
    let _plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&host.create_from(&bundle, "c1"));
}

#[test]
fn a_promise_in_audit_mode_refuses_nothing_and_is_noted() {
    let mut host = TestHost::default();
    let audit = host.path("audit.log").display().to_string();
    let audit = format!("[audit]\ntarget = \"file\"\npath = \"{audit}\"\n");
    let lines = format!("{}mode = \"audit\"\n{audit}", promise(NVIDIA));
    host.configure(&host.path("fake/runc"), &lines);
    host.start_daemon();
    let bundle = gpu(&host);
    succeeds(&host.create_from(&bundle, "c1"));
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["promises"][0]["result"], "would_refuse");
    assert_eq!(explained["refused"], json!([]));
    let page = host.call(&["nri", "explain", "c1"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    let wanted =
        "promise \"gpu driver\" (devices: \"/dev/nvidia0\"): the plugin gpu was missing (audit)";
    assert!(page.contains(wanted), "{page}");
    let line = "nri_runc_promises_total{promise=\"gpu driver\",result=\"would_refuse\"} 1";
    assert!(metric(&host, line));
    test_support::wait_until("the audit log has it", || {
        let log = host.read("audit.log");
        log.contains("\"would_refuse\"") && log.contains("\"rule\":\"gpu driver\"")
    });
    let check = host.call(&["nri", "check", "--json"]);
    let check: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    let rows = check.as_array().unwrap().iter();
    let row = rows.clone().find(|row| row["check"] == "promises").unwrap();
    assert_eq!((&row["ok"], &row["warning"]), (&json!(true), &json!(true)), "{row}");
}

#[test]
fn only_exempt_namespaces_exempt_from_a_promise() {
    let validator = "[nri.default_validator]\ntolerate_missing_plugins_annotation = \"tolerate\"\n";
    let host = started(&format!("{validator}{}", promise("devices = [\"/proc\"]")));
    let bundle = pod_container(&host, "kube-system", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
    // A container that claims this namespace falsely is not exempt.
    let forged = lay_down(&host, "kube-system", "c2", "forged");
    fails(&host.create_from(&forged, "c2"), &["the promise \"gpu driver\" refuses container c2"]);
    let tolerant = with_device(&host, "b", "", ("tolerate", "true"));
    fails(&host.create_from(&tolerant, "c3"), &["the promise \"gpu driver\" refuses container c3"]);
}

#[test]
fn an_unproven_namespace_counts_as_covered() {
    let host = host("namespaces = [\"prod\"]\ndevices = [\"/proc\"]");
    let proven = pod_container(&host, "dev", "c1");
    succeeds(&host.create_from(&proven, "c1"));
    let forged = lay_down(&host, "dev", "c2", "forged");
    fails(&host.create_from(&forged, "c2"), &["namespaces: \"dev (not proven)\""]);
}

#[test]
fn a_plugin_from_which_a_rule_hides_the_pod_keeps_no_promise() {
    let hides = "[[rule]]\nname = \"h\"\nplugins = [\"gpu\"]\nhide = true\n";
    let host = started(&format!("{}{hides}", promise(NVIDIA)));
    let _plugin = host.plugin("10", "gpu", Script::default());
    let bundle = gpu(&host);
    fails(&host.create_from(&bundle, "c1"), &["the plugin gpu, from which a rule hides the pod"]);
}

#[test]
fn a_plugin_that_does_not_answer_keeps_no_promise() {
    let lines =
        format!("{SILENT}[plugin.gpu]\non_failure = \"skip\"\nstrikes = 0\n{}", promise(NVIDIA));
    let host = started(&lines);
    let odd = RespondingPlugin::at(Event::CreateContainer, Response::Hang);
    let _gpu = connected(&host, "10-gpu", odd);
    let bundle = gpu(&host);
    let wanted = "it needs the plugin gpu, and 10-gpu did not answer CreateContainer in time";
    fails(&host.create_from(&bundle, "c1"), &["the promise \"gpu driver\" refuses", wanted]);
    // A container without the device continues without the plugin, as `on_failure` configures.
    succeeds(&host.create("c2"));
}

#[test]
fn a_reload_puts_a_promise_in_force_and_prints_it() {
    let host = started("");
    let bundle = gpu(&host);
    succeeds(&host.create_from(&bundle, "c1"));
    host.configure(&host.path("fake/runc"), &promise(NVIDIA));
    let reloaded = host.call(&["nri", "reload"]);
    succeeds(&reloaded);
    let page = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    assert!(page.contains("require \"gpu driver\": new"), "{page}");
    fails(&host.create_from(&bundle, "c2"), &["the promise \"gpu driver\" refuses container c2"]);
    // A file with a mistake changes nothing.
    host.configure(&host.path("fake/runc"), "[[require]]\nplugin = \"gpu\"\ncdis = [\"x\"]\n");
    fails(&host.call(&["nri", "reload"]), &["unknown key require.cdis (did you mean cdi?)"]);
    fails(&host.create_from(&bundle, "c2"), &["the promise \"gpu driver\" refuses container c2"]);
    host.configure(&host.path("fake/runc"), "");
    succeeds(&host.call(&["nri", "reload"]));
    succeeds(&host.create_from(&bundle, "c2"));
}

#[test]
fn a_mistyped_promise_refuses_creates_outside_exempt_namespaces() {
    let host = started("[[require]]\nplugin = \"gpu\"\ndevice = [\"/dev/x\"]\n");
    let wanted = "unknown key require.device (did you mean devices?)";
    fails(&host.create("c1"), &["configuration has an error", wanted]);
    let bundle = pod_container(&host, "kube-system", "c2");
    succeeds(&host.create_from(&bundle, "c2"));
}

#[test]
fn adjust_and_policy_test_show_promises_without_a_daemon() {
    let host = TestHost::new(&promise(NVIDIA));
    let bundle = host.path(&gpu(&host)).display().to_string();
    let adjusted = host.call(&["nri", "adjust", "--bundle", &bundle]);
    fails_with(
        &adjusted,
        "the promise \"gpu driver\" (devices: \"/dev/nvidia0\") needs the plugin gpu",
    );
    let other = host.path("bundle").display().to_string();
    succeeds(&host.call(&["nri", "adjust", "--bundle", &other]));
    for (bundle, verdict) in
        [(&bundle, "needs the plugin gpu: devices"), (&other, "does not match it")]
    {
        let page = host.call(&["nri", "policy", "test", "--bundle", bundle]);
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        assert!(page.contains(&format!("promise \"gpu driver\" {verdict}")), "{page}");
    }
}

/// Checks the error of a dry run, which may print a warning first.
fn fails_with(output: &std::process::Output, words: &str) {
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && lines.contains(words), "{lines}");
}

#[test]
fn the_example_of_promises_md_works_as_described() {
    let page = test_support::program::project().join("docs/promises.md");
    let page = std::fs::read_to_string(page).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let host = started(example);
    let bundle = gpu(&host);
    let line = page.split("```\n").find(|block| block.contains("cannot create")).unwrap();
    let line = line.trim().split_once("cannot create ").unwrap().1;
    let line = line.split_once(": ").unwrap().1.replace("container web", "container c1");
    fails(&host.create_from(&bundle, "c1"), &[&line]);
    succeeds(&host.create("c2"));
    let _plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&host.create_from(&bundle, "c1"));
}
