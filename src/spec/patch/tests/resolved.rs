// SPDX-License-Identifier: Apache-2.0
//! Tests CDI devices and classes, whose definitions come with the adjustment.

use serde_json::{Value, json};

use super::super::{CdiDevice, Class, HostFacts, PatchError, PatchedSpec, Resolved, patch_on};
use super::{Adjustment, Result, asks, resources};
use crate::plugin::{api, json};

fn node(path: &str, minor: i64) -> api::LinuxDevice {
    json::read(&json!({"path": path, "type": "c", "major": 195, "minor": minor})).unwrap()
}

fn mount(destination: &str, source: &str) -> api::Mount {
    json::read(&json!({"destination": destination, "source": source})).unwrap()
}

fn hook(path: &str) -> api::Hooks {
    json::read(&json!({"createRuntime": [{"path": path}]})).unwrap()
}

fn gpu() -> CdiDevice {
    CdiDevice {
        name: "v.com/gpu=0".to_owned(),
        env: vec![("GPU", "cdi").into(), ("BOTH", "cdi").into()],
        hooks: hook("/cdi"),
        nodes: vec![(node("/dev/gpu0", 0), "rw".to_owned())],
        mounts: vec![mount("/lib/gpu", "/cdi"), mount("/data", "/cdi")],
        net_devices: vec![("eth9".to_owned(), "gpu9".to_owned())],
        intel_rdt: Some(json!({"closID": "cdi"})),
        additional_gids: vec![44],
    }
}

fn wanting(names: &[&str]) -> Adjustment {
    let devices: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    asks(&json!({ "CDIDevices": devices }))
}

fn with_gpu() -> Resolved {
    Resolved { cdi: vec![gpu()], ..Resolved::default() }
}

fn patch(document: &[u8], adjustment: &Adjustment, names: &Resolved) -> Result<PatchedSpec> {
    patch_on(document, adjustment, &HostFacts { names: names.clone(), ..HostFacts::default() })
}

fn patched(document: &str, adjustment: &Adjustment, resolved: &Resolved) -> (Value, PatchedSpec) {
    let patched = patch(document.as_bytes(), adjustment, resolved).unwrap();
    let bytes = patched.bytes.clone().unwrap_or_else(|| document.as_bytes().to_vec());
    (serde_json::from_slice(&bytes).unwrap(), patched)
}

fn classes(blockio: Option<&str>, rdt: Option<&str>) -> Adjustment {
    let class = |name: Option<&str>| name.map(|name| json!({ "value": name }));
    resources(&json!({"blockioClass": class(blockio), "rdtClass": class(rdt)}))
}

#[test]
fn a_cdi_device_adds_all_its_edits_and_each_change_names_it() {
    let document = r#"{"process":{"user":{"uid":7,"gid":0,"additionalGids":[1]},"env":["A=1"]}}"#;
    let (after, patched) = patched(document, &wanting(&["v.com/gpu=0"]), &with_gpu());
    assert_eq!(after["process"]["env"], json!(["A=1", "GPU=cdi", "BOTH=cdi"]));
    assert_eq!(after["process"]["user"]["additionalGids"], json!([1, 44]));
    let device = &after["linux"]["devices"][0];
    assert_eq!((&device["path"], &device["uid"]), (&json!("/dev/gpu0"), &json!(7)));
    assert_eq!(device.get("gid"), None, "a device has no default group");
    assert_eq!(after["linux"]["resources"]["devices"][0]["access"], "rw");
    assert_eq!(after["linux"]["netDevices"]["eth9"]["name"], "gpu9");
    assert_eq!(after["linux"]["intelRdt"]["closID"], "cdi");
    assert_eq!(after["mounts"].as_array().unwrap().len(), 2);
    assert_eq!(after["hooks"]["createRuntime"][0]["path"], "/cdi");
    let owners: Vec<&str> = patched.changes.iter().map(|c| c.nri_field.as_str()).collect();
    assert_eq!(owners, ["CdiDevices[v.com/gpu=0]"; 10]);
}

/// Returns the options that a CDI device's mount gets in a container with these namespaces.
#[track_caller]
fn mounted(namespaces: &str, options: &[&str], kind: &str) -> Value {
    let mut resolved = with_gpu();
    let mut source = mount("/lib", "/lib");
    source.options = options.iter().map(|option| (*option).to_owned()).collect();
    kind.clone_into(&mut source.type_);
    resolved.cdi[0].mounts = vec![source];
    let document = format!(r#"{{"linux":{{"namespaces":{namespaces}}}}}"#);
    let (after, _) = patched(&document, &wanting(&["v.com/gpu=0"]), &resolved);
    after["mounts"][0]["options"].clone()
}

#[test]
fn cdi_mounts_are_id_mapped_in_a_user_namespace() {
    let own = r#"[{"type":"pid"},{"type":"user"}]"#;
    assert_eq!(mounted(own, &["bind", "ro"], ""), json!(["bind", "ro", "idmap"]));
    assert_eq!(mounted(own, &["ro", "rbind"], "bind"), json!(["ro", "rbind", "ridmap"]));
    assert_eq!(mounted(own, &["ro"], "bind"), json!(["ro", "idmap"]));
}

#[test]
fn cdi_mounts_are_not_mapped_twice_nor_without_a_user_namespace() {
    let own = r#"[{"type":"user"}]"#;
    assert_eq!(mounted(own, &["bind", "ridmap"], ""), json!(["bind", "ridmap"]));
    assert_eq!(mounted(own, &["size=1k"], "tmpfs"), json!(["size=1k"]));
    assert_eq!(mounted(r#"[{"type":"pid"}]"#, &["bind"], ""), json!(["bind"]));
    assert_eq!(mounted("null", &["bind"], ""), json!(["bind"]));
}

#[test]
fn plugin_devices_and_mounts_override_those_of_cdi() {
    let adjustment = asks(&json!({
        "env": [{"key": "BOTH", "value": "plugin"}, {"key": "MINE", "value": "1"}],
        "hooks": {"createRuntime": [{"path": "/plugin"}]},
        "mounts": [{"destination": "/data", "source": "/plugin"}],
        "linux": {"devices": [{"path": "/dev/gpu0", "type": "c", "major": 195, "minor": 5}]},
        "CDIDevices": [{"name": "v.com/gpu=0"}],
    }));
    let (after, _) = patched("{}", &adjustment, &with_gpu());
    assert_eq!(after["process"]["env"], json!(["BOTH=cdi", "MINE=1", "GPU=cdi"]));
    let paths: Vec<&Value> =
        after["hooks"]["createRuntime"].as_array().unwrap().iter().map(|h| &h["path"]).collect();
    assert_eq!(paths, ["/plugin", "/cdi"]);
    let devices = after["linux"]["devices"].as_array().unwrap();
    assert_eq!((devices.len(), &devices[0]["minor"]), (1, &json!(5)));
    let rules = after["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!((rules.len(), &rules[0]["minor"]), (1, &json!(5)), "CDI's rule went with its node");
    let mounts = after["mounts"].as_array().unwrap();
    assert!(mounts.contains(&json!({"destination": "/data", "source": "/plugin"})), "{mounts:?}");
}

#[test]
fn a_node_without_access_gets_no_rule() {
    let mut resolved = with_gpu();
    resolved.cdi[0].nodes = vec![(node("/dev/gpu0", 0), String::new())];
    let (after, _) = patched("{}", &wanting(&["v.com/gpu=0"]), &resolved);
    assert_eq!(after["linux"]["devices"][0]["path"], "/dev/gpu0");
    assert_eq!(after["linux"].get("resources"), None);
}

#[test]
fn a_cdi_device_that_was_not_resolved_is_refused() {
    for (names, resolved) in [
        (&["v.com/gpu=0"][..], Resolved::default()),
        (&["v.com/gpu=1"][..], with_gpu()),
        (&["v.com/gpu=0", "v.com/gpu=1"][..], with_gpu()),
    ] {
        let error = patch(b"{}", &wanting(names), &resolved).unwrap_err();
        assert!(matches!(&error, PatchError::NotApplied { .. }), "{error}");
        assert!(error.field().is_some_and(|field| field.starts_with("CdiDevices[v.com/gpu=")));
    }
}

#[test]
fn cdi_edits_are_checked_like_a_plugins_and_name_their_device() {
    let mut bad_hook = with_gpu();
    bad_hook.cdi[0].hooks = hook("relative");
    let mut bad_node = with_gpu();
    bad_node.cdi[0].nodes[0].0.type_ = "x".to_owned();
    for resolved in [bad_hook, bad_node] {
        let error = patch(b"{}", &wanting(&["v.com/gpu=0"]), &resolved).unwrap_err();
        assert_eq!(error.field(), Some("CdiDevices[v.com/gpu=0]"), "{error}");
    }
}

#[test]
fn a_class_replaces_the_engines_values() {
    let document = r#"{"linux":{"resources":{"blockIO":{"weight":1}},"intelRdt":{"schemata":[]}}}"#;
    let resolved = Resolved {
        block_io: Class::Set(json!({"weight": 80})),
        intel_rdt: Class::Set(json!({"closID": "gold"})),
        ..Resolved::default()
    };
    let (after, changed) = patched(document, &classes(Some("slow"), Some("gold")), &resolved);
    assert_eq!(after["linux"]["resources"]["blockIO"], json!({"weight": 80}));
    assert_eq!(after["linux"]["intelRdt"], json!({"closID": "gold"}));
    let owners: Vec<&str> = changed.changes.iter().map(|c| c.nri_field.as_str()).collect();
    assert_eq!(owners, ["BlockioClass", "RdtClass"]);
}

#[test]
fn the_empty_class_removes_the_engines_values_if_any() {
    let document = r#"{"linux":{"resources":{"blockIO":{"weight":1}},"intelRdt":{"closID":"x"}}}"#;
    let resolved =
        Resolved { block_io: Class::Cleared, intel_rdt: Class::Cleared, ..Resolved::default() };
    let adjustment = classes(Some(""), Some(""));
    let (after, _) = patched(document, &adjustment, &resolved);
    assert_eq!(after, json!({"linux": {"resources": {}}}));
    assert_eq!(patched("{ }", &adjustment, &resolved).1.bytes, None);
}

#[test]
fn a_class_that_was_not_resolved_is_refused() {
    for (adjustment, field) in
        [(classes(Some("a"), None), "BlockioClass"), (classes(None, Some("a")), "RdtClass")]
    {
        let error = patch(b"{}", &adjustment, &Resolved::default()).unwrap_err();
        assert_eq!(error, PatchError::NotApplied { field: field.to_owned() });
    }
}
