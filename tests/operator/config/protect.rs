// SPDX-License-Identifier: Apache-2.0
//! A mistake in a section that protects refuses creates, with its position, until it is fixed, and
//! `[plugin."*"]` applies whatever name a plugin claims.

use serde_json::json;
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost};

use super::{fails, finding, started, succeeds};

/// Mistakes, one to a file, each with the line and column below the host's own lines and a word.
const MISTAKES: [(&str, &str, &str); 8] = [
    ("[plugin.a]\ndeny = \"Env\"", "1:8", "plugin.a.deny: expected a list of strings"),
    ("[plugin.a]\nDeny = [\"Env\"]", "1:1", "did you mean plugin.*.deny"),
    ("[plugin.a]\nrequired = \"true\"", "1:12", "plugin.a.required: expected true or false"),
    ("[plugin.a]\nrequird = true", "1:1", "did you mean plugin.*.required"),
    ("[plugin.a]\ndeny = [\"env\"]", "1:8", "did you mean Env?"),
    ("[Plugin.a]\ndeny = [\"Env\"]", "1:1", "unknown key Plugin.a.deny"),
    ("[nri.default_validator]\nenable = 1", "1:10", "expected true or false"),
    ("[plugin.\"*\"]\nrequired = true", "1:12", "name the plugin"),
];

/// The position of a mistake, with its line counted from the section's header.
fn place(host: &TestHost, header: &str, at: &str) -> String {
    let text = host.read("config.toml");
    let line = text.lines().position(|line| header.starts_with(line) && !line.is_empty()).unwrap();
    let (below, column) = at.split_once(':').unwrap();
    format!("config.toml:{}:{column}: ", line + 1 + below.parse::<usize>().unwrap())
}

#[test]
fn a_mistake_in_a_protecting_key_refuses_creates() {
    for (lines, at, what) in MISTAKES {
        let host = started(&format!("{lines}\n"));
        let header = lines.lines().next().unwrap();
        let at = place(&host, header, at);
        fails(&host.create("c1"), &["cannot create c1", &at, what, "the bundle is unchanged"]);
        assert_eq!(host.read("bundle/config.json"), BUNDLE);
        assert!(!host.path("fake/seen.json").exists(), "the runtime was never asked");
        let found = finding(&host, "configuration");
        assert_eq!(found["ok"], false, "{found}");
        assert!(found["detail"].as_str().unwrap().contains(&at), "{found}");
        host.logs_at_least(&[&at], 1);
    }
}

#[test]
fn invalid_toml_refuses_creates_from_the_start() {
    // Before any daemon could keep a valid file: not even the runtime is known.
    let broken = "[plugin.a]\ndeny = [\"Env\"\n";
    let Some(mut host) = TestHost::with_default_paths(broken) else { return };
    host.start_daemon();
    fails(&host.create("c1"), &["config.toml:10:", "expected"]);
    // Afterwards the runtime is known, and everything but creates continues with it.
    let mut host = started("");
    succeeds(&host.create("c1"));
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), broken);
    host.start_daemon();
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    fails(
        &host.create("c2"),
        &["cannot create c2", "config.toml:10:", "configuration has an error"],
    );
}

#[test]
fn a_mistake_in_a_protecting_key_needs_no_daemon_to_refuse() {
    let host = TestHost::new("autostart = false\n[plugin.a]\nrequird = true\n");
    fails(
        &host.create("c1"),
        &["cannot create c1", "configuration has an error", "unknown key", "requird"],
    );
    assert!(!host.path("fake/seen.json").exists(), "the runtime was never asked");
    let host = TestHost::new("autostart = false\n[log]\nlevle = \"info\"\n");
    succeeds(&host.create("c1"));
}

#[test]
fn a_named_file_that_is_missing_is_a_failed_check() {
    let host = TestHost::default();
    std::fs::remove_file(host.path("config.toml")).unwrap();
    let output = host.call(&["nri", "check"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        !output.status.success() && printed.contains("config.toml: it is missing"),
        "{printed}"
    );
}

#[test]
fn a_mistake_in_a_key_that_protects_nothing_is_a_warning() {
    let host = started("[eviction]\ngraze = \"1s\"\n[log]\nlevle = \"debug\"\n");
    succeeds(&host.create("c1"));
    assert_eq!(finding(&host, "configuration")["ok"], false);
    host.logs_at_least(&["unknown key eviction.graze"], 1);
}

/// Writes a container of a namespace as containerd's CRI plugin does.
fn container_in(host: &TestHost, namespace: &str, id: &str) -> String {
    lay_down(host, namespace, id, &format!("io.containerd.runtime.v2.task/k8s.io/{id}"))
}

/// Writes a container of the namespace into any folder, as an author who forges its annotations can.
fn lay_down(host: &TestHost, namespace: &str, id: &str, bundle: &str) -> String {
    let mut document: serde_json::Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": id,
        "io.kubernetes.cri.sandbox-id": format!("pod-of-{id}"),
        "io.kubernetes.cri.sandbox-name": id,
        "io.kubernetes.cri.sandbox-namespace": namespace,
        "io.kubernetes.cri.sandbox-uid": "u1",
    });
    std::fs::create_dir_all(host.path(bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), &document.to_string());
    bundle.to_owned()
}

#[test]
fn exempt_namespaces_are_exempt_despite_a_mistake() {
    for (exempt, passes, refused) in [
        ("", "kube-system", "tenant"),
        ("exempt_namespaces = [\"ops\"]", "ops", "kube-system"),
        ("exempt_namespaces = \"ops\"", "kube-system", "ops"),
    ] {
        let host = started(&format!("{exempt}\n[plugin.a]\ndeny = \"Env\"\n"));
        let bundle = container_in(&host, refused, "refused");
        fails(
            &host.create_from(&bundle, "refused"),
            &["configuration has an error", "config.toml:"],
        );
        let bundle = container_in(&host, passes, "passes");
        succeeds(&host.create_from(&bundle, "passes"));
    }
}

#[test]
fn annotations_exempt_from_a_mistake_only_if_configured() {
    let host = started("[plugin.a]\ndeny = \"Env\"\n");
    let bundle = lay_down(&host, "kube-system", "forged", "forged");
    fails(&host.create_from(&bundle, "forged"), &["configuration has an error", "config.toml:"]);
    let host = started("exempt_by_annotation = true\n[plugin.a]\ndeny = \"Env\"\n");
    let bundle = lay_down(&host, "kube-system", "believed", "believed");
    succeeds(&host.create_from(&bundle, "believed"));
}

#[test]
fn plugins_with_unknown_rights_change_no_exempt_container() {
    let host = started("[plugin.a]\nDeny = [\"Env\"]\n");
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    let bundle = container_in(&host, "kube-system", "passes");
    succeeds(&host.create_from(&bundle, "passes"));
    assert!(!host.read("fake/seen.json").contains("HELLO"), "{}", host.read("fake/seen.json"));
    let output = host.call(&["nri", "explain", "--json", "passes"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("10-a") && printed.contains("configuration has an error"),
        "{printed}"
    );
}

#[test]
fn a_denial_for_all_plugins_covers_any_index_and_name() {
    let lines = "[plugin.\"*\"]\ndeny = [\"Env\"]\n[plugin.trusted]\ndeny = []\n";
    for (index, name) in [("10", "a"), ("99", "trusted-not"), ("10", "Trusted")] {
        let host = started(lines);
        let _plugin = host.plugin(index, name, sets("HELLO", "there"));
        fails(&host.create("c1"), &[&format!("{index}-{name}"), "Env"]);
    }
    let host = started(lines);
    let _plugin = host.plugin("10", "trusted", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
}
