// SPDX-License-Identifier: Apache-2.0
//! The samples that inject hooks, resource limits and network interfaces, and the one that prints
//! changes.

use serde_json::json;
use test_support::{TestHost, succeeds, wait_until};

use super::{annotated, external, install, launched, lives_and_dies, refuses, seen};

const ID: &str = "10-hook-injector";

/// A daemon with the injector and these hook files.
fn with_hooks(files: &[(&str, &str)]) -> TestHost {
    let mut host = TestHost::default();
    write_hooks(&host, files);
    host.start_daemon();
    wait_until("the plugin is synchronized", || super::is_synchronized(&host, ID));
    host
}

fn write_hooks(host: &TestHost, files: &[(&str, &str)]) {
    for (file, text) in files {
        std::fs::create_dir_all(host.path(file).parent().unwrap()).unwrap();
        host.write(file, text);
    }
    let (first, second) = (host.path("hooks/a"), host.path("hooks/b"));
    let config = json!({"folders": [first, second, host.path("hooks/none")]}).to_string();
    install(host, "hook_injector", ID, &config);
}

fn hook(path: &str, when: &str, stages: &str) -> String {
    format!(
        r#"{{"version": "1.0.0", "hook": {{"path": "{path}", "args": ["x"], "timeout": 3}}, "when": {when}, "stages": {stages}}}"#
    )
}

#[test]
fn hooks_need_all_conditions_and_later_folders_replace_files() {
    let both = r#"{"annotations": {"^example\\.org/(a|b)$": "^yes$"}, "commands": ["sleep$"]}"#;
    let host = with_hooks(&[
        ("hooks/a/1-always.json", &hook("/bin/replaced", r#"{"always": true}"#, r#"["prestart"]"#)),
        ("hooks/b/1-always.json", &hook("/bin/one", r#"{"always": true}"#, r#"["createRuntime"]"#)),
        ("hooks/a/2-both.json", &hook("/bin/two", both, r#"["createRuntime", "poststop"]"#)),
        ("hooks/a/3-never.json", &hook("/bin/three", r#"{"always": false}"#, r#"["poststop"]"#)),
        ("hooks/a/4-none.json", &hook("/bin/four", "{}", r#"["poststop"]"#)),
        (
            "hooks/a/5-binds.json",
            &hook("/bin/five", r#"{"hasBindMounts": true}"#, r#"["poststart"]"#),
        ),
        ("hooks/a/readme.txt", "no hook"),
    ]);
    let of = |path: &str| json!({"path": path, "args": ["x"], "timeout": 3});
    annotated(&host, &[("example.org/b", "yes")]);
    succeeds(&host.create("c1"));
    let hooks = &seen(&host)["hooks"];
    assert_eq!(hooks["createRuntime"], json!([of("/bin/one"), of("/bin/two")]));
    assert_eq!(hooks["poststop"], json!([of("/bin/two")]));
    assert!(hooks["prestart"].is_null() && hooks["poststart"].is_null(), "{hooks}");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    annotated(&host, &[("example.org/b", "yes, please")]);
    succeeds(&host.create("c1"));
    let hooks = &seen(&host)["hooks"];
    assert_eq!(hooks["createRuntime"], json!([of("/bin/one")]));
    assert!(hooks["poststop"].is_null(), "{hooks}");
}

#[test]
fn an_invalid_hook_file_ends_the_plugin_and_is_named() {
    let cases = [
        ("{", "1.json: "),
        (&hook("relative", r#"{"always": true}"#, r#"["prestart"]"#), "is not absolute"),
        (&hook("/bin/x", r#"{"annotation": {}}"#, r#"["prestart"]"#), "annotation"),
        (&hook("/bin/x", r#"{"commands": ["("]}"#, r#"["prestart"]"#), "1.json: "),
        (&hook("/bin/x", r#"{"always": true}"#, "[]"), "names no stage"),
        (&hook("/bin/x", r#"{"always": true}"#, r#"["preStart"]"#), "preStart"),
        (&hook("/x", "{}", r#"["prestart"]"#).replace("1.0.0", "0.1.0"), "its version is"),
    ];
    for (text, wanted) in cases {
        let mut host = TestHost::default();
        write_hooks(&host, &[("hooks/a/1.json", text)]);
        host.start_daemon();
        wait_until(&format!("{wanted} is reported"), || host.read("daemon.err").contains(wanted));
        assert_eq!(host.admin(&["status"])["plugins"], 0, "{text}");
    }
}

#[test]
fn limit_annotations_are_read_in_either_spelling() {
    let (host, _started) = external("ulimit_adjuster", "10-ulimit-adjuster", &[]);
    let limits =
        r#"[{"type": "nofile", "soft": 10, "hard": 20}, {"type": "RLIMIT_core", "hard": 0}]"#;
    annotated(&host, &[("ulimits.noderesource.dev/container.c1", limits)]);
    succeeds(&host.create("c1"));
    let rlimits = seen(&host)["process"]["rlimits"].clone();
    for wanted in [
        json!({"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}),
        json!({"type": "RLIMIT_CORE", "soft": 0, "hard": 0}),
    ] {
        assert!(rlimits.as_array().unwrap().contains(&wanted), "{rlimits}");
    }
}

#[test]
fn invalid_limits_refuse_the_container() {
    let (host, _started) = external("ulimit_adjuster", "10-ulimit-adjuster", &[]);
    let key = "ulimits.noderesource.dev";
    for (value, wanted) in [
        ("nofile=10", "ulimits.noderesource.dev: "),
        (r#"[{"type": "files", "hard": 1}]"#, "\"files\" is not a resource limit"),
        (r#"[{"type": "core", "soft": 2, "hard": 1}]"#, "above its hard limit"),
        (r#"[{"type": "core", "hard": -1}]"#, "ulimits.noderesource.dev: "),
    ] {
        annotated(&host, &[(key, value)]);
        refuses(&host, &["10-ulimit-adjuster", wanted]);
    }
    annotated(&host, &[("ulimits.noderesource.dev/container.other", "for another")]);
    succeeds(&host.create("c1"));
}

#[test]
fn network_devices_are_requested_by_annotation() {
    let id = "10-network-device-injector";
    let (host, _started) = external("network_device_injector", id, &[]);
    let devices = r#"[{"device": "ens4", "name": "uplink"}, {"device": "ens5"}]"#;
    annotated(&host, &[("netdevices.noderesource.dev/pod", devices)]);
    succeeds(&host.create("c1"));
    let wanted = json!({"ens4": {"name": "uplink"}, "ens5": {"name": "ens5"}});
    assert_eq!(seen(&host)["linux"]["netDevices"], wanted);
}

#[test]
fn impossible_network_devices_refuse_the_container() {
    let host = launched("network_device_injector", "10-network-device-injector", "");
    for (value, wanted) in [
        ("ens4", "netdevices.noderesource.dev: "),
        (r#"[{"device": "a/b"}]"#, "\"a/b\" is not a name of a network interface"),
        (r#"[{"device": "ens4", "name": "sixteen-bytes-12"}]"#, "is not a name of"),
        (
            r#"[{"device": "ens4", "name": "x"}, {"device": "ens5", "name": "x"}]"#,
            "would be called x",
        ),
        (
            r#"[{"device": "ens4", "name": "x"}, {"device": "ens4", "name": "y"}]"#,
            "asked for twice",
        ),
    ] {
        annotated(&host, &[("netdevices.noderesource.dev", value)]);
        refuses(&host, &["10-network-device-injector", wanted]);
    }
}

#[test]
fn the_differ_prints_changes_without_environment_values() {
    let mut host = TestHost::default();
    let file = host.path("changes.log");
    install(&host, "differ", "99-differ", &format!("file = {}\n", file.display()));
    install(&host, "resource_defaults", "20-resource-defaults", "");
    host.start_daemon();
    for id in ["99-differ", "20-resource-defaults"] {
        wait_until("the plugin is synchronized", || super::is_synchronized(&host, id));
    }
    annotated(&host, &[(super::RESOURCES, r#"{"cpu": {"shares": 77}}"#)]);
    lives_and_dies(&host);
    wait_until("the end is reported", || host.read("changes.log").contains("RemovePodSandbox"));
    let printed = host.read("changes.log");

    for wanted in [
        "seen for the first time",
        "/c1/c1: state: \"CONTAINER_CREATED\" -> \"CONTAINER_RUNNING\"",
        "PostCreateContainer",
        "/c1/c1: removed",
        "/c1: removed",
    ] {
        assert!(printed.contains(wanted), "{wanted} is not in:\n{printed}");
    }
    assert!(!printed.contains("PATH=/bin"), "{printed}");
    assert_eq!(printed.matches("/c1/c1: seen for the first time").count(), 1, "{printed}");
}

#[test]
fn a_differ_without_a_file_in_its_configuration_is_refused() {
    for config in ["file = ", "/var/log/changes", "file = a\nfile = b"] {
        let mut host = TestHost::default();
        install(&host, "differ", "99-differ", config);
        host.start_daemon();
        wait_until("the refusal is reported", || host.read("daemon.err").contains("`file = PATH`"));
    }
}
