// SPDX-License-Identifier: Apache-2.0
//! A mistake in a section that protects refuses creates, with its place, until it is fixed, and
//! `[plugin."*"]` holds whatever a plugin calls itself.

use nri_runc::plugin::api;
use serde_json::json;

use super::player::Manner;
use super::rig::{BUNDLE, Rig};
use super::{fails, finding, started, succeeds};

/// A plugin that sets a variable.
fn sets() -> Manner {
    let env = api::KeyValue { key: "HELLO".into(), value: "there".into(), ..Default::default() };
    let adjust = api::ContainerAdjustment { env: vec![env], ..Default::default() };
    Manner { adjust, ..Manner::default() }
}

/// Mistakes, one to a file, each with the line and column below the rig's own lines and a word.
const MISTAKES: [(&str, &str, &str); 8] = [
    ("[plugin.a]\ndeny = \"Env\"", "1:8", "plugin.a.deny: expected a list of strings"),
    ("[plugin.a]\nDeny = [\"Env\"]", "1:1", "nearest is plugin.*.deny"),
    ("[plugin.a]\nrequired = \"true\"", "1:12", "plugin.a.required: expected true or false"),
    ("[plugin.a]\nrequird = true", "1:1", "nearest is plugin.*.required"),
    ("[plugin.a]\ndeny = [\"env\"]", "1:8", "did you mean \"Env\"?"),
    ("[Plugin.a]\ndeny = [\"Env\"]", "1:1", "unknown key Plugin.a.deny"),
    ("[nri.default_validator]\nenable = 1", "1:10", "expected true or false"),
    ("[plugin.\"*\"]\nrequired = true", "1:12", "name the plugin"),
];

/// The place of a mistake, whose line is counted from the section's header.
fn place(rig: &Rig, header: &str, at: &str) -> String {
    let text = rig.read("config.toml");
    let line = text.lines().position(|line| header.starts_with(line) && !line.is_empty()).unwrap();
    let (below, column) = at.split_once(':').unwrap();
    format!("config.toml:{}:{column}: ", line + 1 + below.parse::<usize>().unwrap())
}

#[test]
fn a_mistake_in_what_protects_refuses_every_create_and_says_where_it_is() {
    for (lines, at, what) in MISTAKES {
        let rig = started(&format!("---{lines}\n"));
        let header = lines.lines().next().unwrap();
        let at = place(&rig, header, at);
        fails(&rig.create("c1"), &["cannot create c1", &at, what, "the bundle is unchanged"]);
        assert_eq!(rig.read("bundle/config.json"), BUNDLE);
        assert!(!rig.path("fake/seen.json").exists(), "the runtime was never asked");
        let found = finding(&rig, "configuration");
        assert_eq!(found["ok"], false, "{found}");
        assert!(found["detail"].as_str().unwrap().contains(&at), "{found}");
        assert!(rig.logged(&[&at]) > 0, "{lines}");
    }
}

#[test]
fn a_file_that_is_no_toml_refuses_creates_from_the_first_start_on() {
    // Before any daemon could keep a good one: not even the runtime is known.
    let broken = "---[plugin.a]\ndeny = [\"Env\"\n";
    let rig = started(broken);
    fails(&rig.create("c1"), &["config.toml:10:", "expected"]);
    // After one: the runtime is, and everything but creates goes on with it.
    let mut rig = started("");
    succeeds(&rig.create("c1"));
    rig.kill_daemon();
    rig.configure(&rig.path("fake/runc"), broken);
    rig.start_daemon();
    succeeds(&rig.verb(&["start", "c1"]));
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    fails(&rig.create("c2"), &["cannot create c2", "config.toml:10:", "cannot be relied on"]);
}

#[test]
fn a_mistake_in_what_protects_refuses_creates_while_the_daemon_is_away_too() {
    let rig = Rig::new("autostart = false---[plugin.a]\nrequird = true\n");
    fails(
        &rig.create("c1"),
        &["cannot create c1", "cannot be relied on", "unknown key", "requird"],
    );
    assert!(!rig.path("fake/seen.json").exists(), "the runtime was never asked");
    let rig = Rig::new("autostart = false---[log]\nlevle = \"info\"\n");
    succeeds(&rig.create("c1"));
}

#[test]
fn a_named_file_that_is_missing_is_a_failed_check() {
    let rig = Rig::new("");
    std::fs::remove_file(rig.path("config.toml")).unwrap();
    let output = rig.call(&["nri", "check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("config.toml: it is missing"), "{said}");
}

#[test]
fn a_mistake_elsewhere_is_a_warning() {
    let rig = started("---[eviction]\ngraze = \"1s\"\n[log]\nlevle = \"debug\"\n");
    succeeds(&rig.create("c1"));
    assert_eq!(finding(&rig, "configuration")["ok"], false);
    assert!(rig.logged(&["unknown key eviction.graze"]) > 0);
}

/// A container as containerd's CRI plugin lays it down, in a namespace.
fn container_in(rig: &Rig, namespace: &str, id: &str) -> String {
    lay_down(rig, namespace, id, &format!("io.containerd.runtime.v2.task/k8s.io/{id}"))
}

/// The same anywhere: whoever can write a bundle can write these annotations.
fn lay_down(rig: &Rig, namespace: &str, id: &str, bundle: &str) -> String {
    let mut document: serde_json::Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": id,
        "io.kubernetes.cri.sandbox-id": format!("pod-of-{id}"),
        "io.kubernetes.cri.sandbox-name": id,
        "io.kubernetes.cri.sandbox-namespace": namespace,
        "io.kubernetes.cri.sandbox-uid": "u1",
    });
    std::fs::create_dir_all(rig.path(bundle).join("rootfs")).unwrap();
    rig.write(&format!("{bundle}/config.json"), &document.to_string());
    bundle.to_owned()
}

#[test]
fn exempt_namespaces_go_on_while_a_mistake_is_there() {
    for (exempt, passes, refused) in [
        ("", "kube-system", "tenant"),
        ("exempt_namespaces = [\"ops\"]", "ops", "kube-system"),
        ("exempt_namespaces = \"ops\"", "kube-system", "ops"),
    ] {
        let rig = started(&format!("{exempt}---[plugin.a]\ndeny = \"Env\"\n"));
        let bundle = container_in(&rig, refused, "refused");
        fails(&rig.create_from(&bundle, "refused"), &["cannot be relied on", "config.toml:"]);
        let bundle = container_in(&rig, passes, "passes");
        succeeds(&rig.create_from(&bundle, "passes"));
    }
}

#[test]
fn nobody_goes_on_by_a_namespace_that_a_tenant_can_write_while_a_mistake_is_there() {
    let rig = started("---[plugin.a]\ndeny = \"Env\"\n");
    let bundle = lay_down(&rig, "kube-system", "forged", "forged");
    fails(&rig.create_from(&bundle, "forged"), &["cannot be relied on", "config.toml:"]);
    let rig = started("exempt_by_annotation = true---[plugin.a]\ndeny = \"Env\"\n");
    let bundle = lay_down(&rig, "kube-system", "believed", "believed");
    succeeds(&rig.create_from(&bundle, "believed"));
}

#[test]
fn no_plugin_changes_an_exempt_container_while_its_rights_are_not_known() {
    let rig = started("---[plugin.a]\nDeny = [\"Env\"]\n");
    let _told = rig.plugin("10", "a", sets());
    let bundle = container_in(&rig, "kube-system", "passes");
    succeeds(&rig.create_from(&bundle, "passes"));
    assert!(!rig.read("fake/seen.json").contains("HELLO"), "{}", rig.read("fake/seen.json"));
    let output = rig.call(&["nri", "explain", "--json", "passes"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("10-a") && said.contains("cannot be relied on"), "{said}");
}

#[test]
fn what_every_plugin_is_denied_holds_under_any_index_and_name() {
    let lines = "---[plugin.\"*\"]\ndeny = [\"Env\"]\n[plugin.trusted]\ndeny = []\n";
    for (index, name) in [("10", "a"), ("99", "trusted-not"), ("10", "Trusted")] {
        let rig = started(lines);
        let _told = rig.plugin(index, name, sets());
        fails(&rig.create("c1"), &[&format!("{index}-{name}"), "Env"]);
    }
    let rig = started(lines);
    let _told = rig.plugin("10", "trusted", sets());
    succeeds(&rig.create("c1"));
    assert!(rig.read("fake/seen.json").contains("HELLO=there"));
}
