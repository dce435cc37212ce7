// SPDX-License-Identifier: Apache-2.0
//! The samples whose configuration lists the namespaces that may use an annotation, the logger of networks, and the
//! adapter for plugins of NRI v0.1; the last two changes also with the real runc.

use serde_json::{Value, json};
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, succeeds, wait_until};

use super::{annotated, install, is_synchronized, launched, launched_by, lives_and_dies, refuses};
use super::{external, seen};

const RDT: &str = "20-rdt";
const CGROUPS: &str = "20-writable-cgroups";
const ADAPTER: &str = "50-v010-adapter";
const WRITABLE: &str = "cgroups.noderesource.dev/writable";

fn rdt(field: &str) -> String {
    format!("{field}.rdt.noderesource.dev/container.c1")
}

/// A host whose node has resctrl, with a class.
fn with_resctrl() -> TestHost {
    let host = TestHost::new("");
    let node = host.path("node").display().to_string();
    for folder in ["info", "gold"] {
        std::fs::create_dir_all(host.path(&format!("node/sys/fs/resctrl/{folder}"))).unwrap();
    }
    host.configure(&host.path("fake/runc"), &format!("[debug]\nnode_root = \"{node}\"\n"));
    host
}

#[test]
fn a_permitted_rdt_class_is_in_the_document() {
    let config = r#"{"classes": {"gold": ["plain"]}, "schemata": ["*"], "monitoring": ["*"]}"#;
    let host = launched_by(with_resctrl(), "rdt", RDT, config);
    let (class, schemata) = (rdt("closid"), rdt("schemata"));
    annotated(&host, &[(&class, "gold"), (&schemata, "L3:0=f,MB:0=50")]);
    succeeds(&host.create("c1"));
    let wanted = json!({"closID": "gold", "schemata": ["L3:0=f", "MB:0=50"]});
    assert_eq!(seen(&host)["linux"]["intelRdt"], wanted);
}

#[test]
fn an_rdt_class_of_another_namespace_refuses_the_container() {
    let config = r#"{"classes": {"gold": ["shop"]}}"#;
    let host = launched_by(with_resctrl(), "rdt", RDT, config);
    for (field, value) in [("closid", "gold"), ("closid", "none"), ("schemata", "L3:0=f")] {
        let key = rdt(field);
        annotated(&host, &[(&key, value)]);
        refuses(&host, &[RDT, &key, "the namespace \"plain\" may not use"]);
    }
}

/// The document with a cgroup mount and a cgroup namespace, as engines write it.
fn with_cgroups(mut document: Value, annotations: Value) -> String {
    let mount = json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
        "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]});
    document["mounts"].as_array_mut().unwrap().push(mount);
    document["annotations"] = annotations;
    let namespaces = &mut document["linux"]["namespaces"];
    if namespaces.is_null() {
        *namespaces = json!([]);
    }
    namespaces.as_array_mut().unwrap().push(json!({"type": "cgroup"}));
    document.to_string()
}

/// The configuration, with a node whose cgroups are delegated.
fn delegated(host: &TestHost, namespaces: &[&str]) -> String {
    let options = "rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
    host.write("mountinfo", &format!("30 24 0:26 / /sys/fs/cgroup {options}\n"));
    json!({"namespaces": namespaces, "mountinfo": host.path("mountinfo")}).to_string()
}

#[test]
fn cgroups_are_writable_only_for_permitted_namespaces() {
    for (namespaces, is_permitted) in [(&["plain"], true), (&["build"], false)] {
        let host = TestHost::new("");
        let config = delegated(&host, namespaces);
        let host = launched_by(host, "writable_cgroups", CGROUPS, &config);
        let document: Value = serde_json::from_str(test_support::BUNDLE).unwrap();
        host.write("bundle/config.json", &with_cgroups(document, json!({WRITABLE: "true"})));
        if is_permitted {
            succeeds(&host.create("c1"));
            let options = json!(["nosuid", "noexec", "nodev", "relatime", "rw"]);
            assert_eq!(seen(&host)["mounts"][1]["options"], options);
        } else {
            refuses(&host, &[CGROUPS, WRITABLE, "the namespace \"plain\" may not use it"]);
        }
    }
}

#[test]
fn plugins_without_a_list_of_namespaces_do_not_register() {
    let mut host = TestHost::new("");
    install(&host, "rdt", RDT, "");
    install(&host, "writable_cgroups", CGROUPS, "{}");
    host.start_daemon();
    for id in [RDT, CGROUPS] {
        let wanted = format!("{id} could not be configured: its configuration");
        wait_until("the refusal is reported", || host.read("daemon.err").contains(&wanted));
    }
    assert_eq!(host.admin(&["status"])["plugins"], 0);
}

#[test]
fn a_cgroup_that_runc_mounts_is_writable_by_annotation() {
    let host = TestHost::new("");
    let Some(real) = RealRuntime::new(&host.path("")) else { return };
    std::fs::create_dir_all(host.path("rootfs/sys/fs/cgroup")).unwrap();
    host.configure(real.runc(), "");
    let config = delegated(&host, &["plain"]);
    let host = launched_by(host, "writable_cgroups", CGROUPS, &config);
    for (annotations, wanted) in [(json!({WRITABLE: "true"}), "rw,"), (json!({}), "ro,")] {
        let document = real.document("c1", &["cat", "/proc/self/mountinfo"]);
        host.write("bundle/config.json", &with_cgroups(document, annotations));
        let bundle = host.path("bundle").display().to_string();
        let output = host.verb(&["run", "--bundle", &bundle, "c1"]);
        succeeds(&output);
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        // On cgroup v1 each controller is a mount, on a tmpfs.
        let mounts = table.lines().filter(|line| line.contains(" - cgroup"));
        let options: Vec<_> = mounts.filter_map(|line| line.split(' ').nth(5)).collect();
        assert!(!options.is_empty(), "{table}");
        assert!(options.iter().all(|options| options.starts_with(wanted)), "{table}");
    }
}

#[test]
fn networks_of_pods_are_logged_and_nothing_changes() {
    let (host, _started) = external("network_logger", "99-network-logger", &[]);
    lives_and_dies(&host);
    for what in ["started", "stopped", "removed"] {
        let line = format!("{what} pod plain/c1: the node's network, no addresses");
        wait_until(&line, || host.read("plugin.err").contains(&line));
    }
    assert_eq!(host.read("fake/seen.json"), test_support::BUNDLE);
}

/// Plugins of NRI v0.1 in the host's folder, and the configuration of the adapter.
fn old_plugins(host: &TestHost, names: &[&str]) -> String {
    let script = test_support::program::project().join("examples/v010-adapter/fixtures/plugin.sh");
    std::fs::create_dir_all(host.path("old")).unwrap();
    for name in names {
        std::os::unix::fs::symlink(&script, host.path("old").join(name)).unwrap();
    }
    let listed: Vec<_> = names.iter().map(|name| json!({"type": name})).collect();
    host.write("conf.json", &json!({"version": "0.1", "plugins": listed}).to_string());
    json!({"conf": host.path("conf.json"), "bin": host.path("old")}).to_string()
}

/// The requests that a plugin of NRI v0.1 received.
fn old_requests(host: &TestHost, name: &str) -> Vec<Value> {
    let text = host.read(&format!("old/{name}.requests"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_plugin_of_nri_v0_1_follows_a_container_of_runc() {
    let host = TestHost::new("");
    let Some(real) = RealRuntime::new(&host.path("")) else { return };
    host.configure(real.runc(), "");
    let config = old_plugins(&host, &["first"]);
    let host = launched_by(host, "v010_adapter", ADAPTER, &config);
    let document = real.document("c1", &["sleep", "1000"]);
    host.write("bundle/config.json", &document.to_string());
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let state = host.verb(&["state", "c1"]);
    let state: Value = serde_json::from_slice(&state.stdout).unwrap();
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    let is_over =
        || old_requests(&host, "first").iter().filter(|one| one["state"] == "delete").count() == 2;
    wait_until("both ends are reported", is_over);
    let requests = old_requests(&host, "first");
    let of_container = &requests[1];
    assert_eq!(of_container["state"], "create");
    assert_eq!((&of_container["id"], &of_container["pid"]), (&json!("c1"), &state["pid"]));
    assert_eq!(of_container["spec"]["cgroupsPath"], real.cgroup("c1"));
    assert_eq!(of_container["spec"]["namespaces"]["pid"], "");
}

#[test]
fn a_plugin_of_nri_v0_1_that_fails_or_hangs_refuses_a_create() {
    for (name, wanted) in [("fails", "no room"), ("hangs", "no answer within")] {
        let host = TestHost::new("");
        let config = old_plugins(&host, &[name]);
        let host = launched_by(host, "v010_adapter", ADAPTER, &config);
        refuses(&host, &[ADAPTER, &format!("plugin \"{name}\" of NRI v0.1: {wanted}")]);
        assert!(is_synchronized(&host, ADAPTER), "the adapter was disconnected");
    }
}

#[test]
fn the_adapter_without_plugins_of_nri_v0_1_changes_nothing() {
    let host = launched("v010_adapter", ADAPTER, r#"{"conf": "/nowhere/conf.json"}"#);
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), test_support::BUNDLE);
}
