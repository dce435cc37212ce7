// SPDX-License-Identifier: Apache-2.0
//! Tests the needs of adjustments, compared with runtimes' responses.

use serde_json::{Value, json};

use super::{asks, linux, says};
use crate::plugin::api;
use crate::resolve::{ResourceWriter, check_runtime, needs_runtime};
use crate::runtime::features::Features;
use crate::spec::patch::{CdiDevice, Class, PatchError, Resolved};

/// Returns adjustments that need a feature of the runtime, and the field that a refusal names.
fn needing() -> Vec<(api::ContainerAdjustment, &'static str)> {
    let options = |option| asks(&json!({"mounts": [mount("/m", &[option, "size=1M"])]}));
    let policy = json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"]});
    let mut all = vec![
        (options("rro"), "Mounts[/m]"),
        (options("idmap"), "Mounts[/m]"),
        (linux(&json!({"namespaces": [{"type": "time"}]})), "Namespace[time]"),
        (linux(&json!({ "seccompPolicy": policy })), "SeccompPolicy"),
    ];
    all.extend(needing_what_is_young());
    all
}

fn needing_what_is_young() -> [(api::ContainerAdjustment, &'static str); 5] {
    [
        (json!({"rdt": {"schemata": {}}}), "RdtSchemata"),
        (json!({"netDevices": {"eth0": {"name": "x"}}}), "LinuxNetDevices[eth0]"),
        (json!({"memoryPolicy": {"mode": "MPOL_BIND"}}), "MemoryPolicy"),
        (json!({"scheduler": {"policy": "SCHED_FIFO"}}), "LinuxSched"),
        (json!({"ioPriority": {"class": "IOPRIO_CLASS_IDLE"}}), "IoPriority"),
    ]
    .map(|(asked, field)| (linux(&asked), field))
}

fn mount(destination: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "options": options})
}

/// Returns the result of the check for a runtime that writes resources itself.
fn checked(adjustment: &api::ContainerAdjustment, runtime: &Features) -> Result<(), PatchError> {
    check_runtime(adjustment, &Resolved::default(), runtime, ResourceWriter::Runtime)
}

fn refusals(runtime: &Features) -> Vec<&'static str> {
    let mut refused = Vec::new();
    for (adjustment, field) in needing() {
        assert!(needs_runtime(&adjustment, &Resolved::default()), "{field}");
        if let Err(error) = checked(&adjustment, runtime) {
            assert_eq!(error.field(), Some(field), "{error}");
            says(&error, &[&runtime.to_string()]);
            refused.push(field);
        }
    }
    refused
}

#[test]
fn fields_that_an_old_runc_would_skip_are_refused() {
    let features = r#"{"mountOptions": ["ro", "rro"], "linux": {
        "namespaces": ["pid", "network"],
        "seccomp": {"enabled": true, "actions": ["SCMP_ACT_ALLOW"]}}}"#;
    let runc = Features::from_answers("runc version 1.1.5+ds1\n", features);
    let wanted = [
        "Mounts[/m]",
        "Namespace[time]",
        "SeccompPolicy",
        "RdtSchemata",
        "LinuxNetDevices[eth0]",
        "MemoryPolicy",
        "LinuxSched",
        "IoPriority",
    ];
    assert_eq!(refusals(&runc), wanted, "idmap; rro is listed");
    let crun = Features::from_answers("crun version 1.8.1\n", "unknown command");
    let wanted = [
        "Namespace[time]",
        "RdtSchemata",
        "LinuxNetDevices[eth0]",
        "MemoryPolicy",
        "LinuxSched",
        "IoPriority",
    ];
    assert_eq!(refusals(&crun), wanted);
}

#[test]
fn a_new_runc_or_silent_runtime_lacks_no_feature() {
    let features = r#"{"mountOptions": ["rro"], "linux": {"namespaces": ["time"],
        "seccomp": {"enabled": true, "actions": ["SCMP_ACT_ALLOW"],
            "knownFlags": ["SECCOMP_FILTER_FLAG_LOG"]},
        "intelRdt": {"enabled": true, "schemata": true, "monitoring": true},
        "memoryPolicy": {"modes": ["MPOL_BIND"], "flags": []},
        "mountExtensions": {"idmap": {"enabled": true}}, "netDevices": {"enabled": true}}}"#;
    assert_eq!(refusals(&Features::from_answers("runc version 1.4.0", features)), [""; 0]);
    assert_eq!(refusals(&Features::default()), [""; 0]);
    // The specification's `features` have no name for these two.
    let unnamed = ["LinuxSched", "IoPriority"];
    assert_eq!(refusals(&Features::from_answers("youki version 0.5.3", features)), unnamed);
}

#[test]
fn an_unknown_runtime_lacks_each_feature_it_does_not_list() {
    let all: Vec<&str> = needing().into_iter().map(|(_, field)| field).collect();
    let no_lists = r#"{"linux": {"seccomp": {"enabled": true}}}"#;
    for said in ["{}", no_lists, "unknown command"] {
        for version in ["youki version 0.5.3", "runsc version release-20250512.0", "other"] {
            assert_eq!(refusals(&Features::from_answers(version, said)), all, "{version}: {said}");
        }
    }
    let [(rdt, _), ..] = needing_what_is_young();
    let youki = Features::from_answers("youki version 0.5.3", "{}");
    says(
        &checked(&rdt, &youki).unwrap_err(),
        &["youki 0.5.3 does not list linux.intelRdt.schemata in its features"],
    );
}

#[test]
fn cruns_abilities_come_from_its_version_or_features() {
    let named = r#"{"linux": {"netDevices": {"enabled": true}, "memoryPolicy": {}}}"#;
    let (schemata, devices, policy) = ("RdtSchemata", "LinuxNetDevices[eth0]", "MemoryPolicy");
    // The responses of Debian's packages. They do not list time namespaces, which they have.
    let on_1_21 = include_str!("../../../fixtures/runtime/crun/1.21.features.json");
    let on_1_28 = include_str!("../../../fixtures/runtime/crun/1.28.features.json");
    for (version, features, wanted) in [
        ("1.21", on_1_21, vec![schemata, devices, policy]),
        ("1.28", on_1_28, vec![]),
        ("1.14.1", "{}", vec![schemata, devices, policy]),
        ("1.22", r#"{"linux": {"netDevices": {"enabled": true}}}"#, vec![policy]),
        // The runtime's `features` take precedence over the version.
        ("1.28", "{}", vec![devices, policy]),
        ("1.21", named, vec![schemata]),
    ] {
        let crun = Features::from_answers(&format!("crun version {version}"), features);
        assert_eq!(refusals(&crun), wanted, "{version}: {features}");
    }
    let deadline = linux(&json!({"scheduler": {"policy": "SCHED_DEADLINE"}}));
    for (version, is_refused) in
        [("1.9.1", false), ("1.9.2", true), ("1.24", true), ("1.25", false), ("1.28", false)]
    {
        let crun = Features::from_answers(&format!("crun version {version}"), "{}");
        assert_eq!(checked(&deadline, &crun).is_err(), is_refused, "{version}");
    }
    let monitored = linux(&json!({"rdt": {"enableMonitoring": {"value": true}}}));
    for (version, is_refused) in [("1.22", true), ("1.23.1", true), ("1.24", false)] {
        let crun = Features::from_answers(&format!("crun version {version}"), "{}");
        assert_eq!(checked(&monitored, &crun).is_err(), is_refused, "{version}");
    }
}

#[test]
fn a_runtimes_features_take_precedence_over_its_version() {
    let features = r#"{"mountOptions": [], "linux": {"namespaces": [],
        "seccomp": {"enabled": true, "actions": ["SCMP_ACT_ALLOW"],
            "knownFlags": ["SECCOMP_FILTER_FLAG_LOG"], "supportedFlags": []},
        "intelRdt": {"enabled": false}, "memoryPolicy": {"modes": ["MPOL_DEFAULT"]},
        "mountExtensions": {"idmap": {"enabled": false}}, "netDevices": {"enabled": false}}}"#;
    let refused = refusals(&Features::from_answers("runc version 9.9", features));
    let wanted = [
        "Mounts[/m]",
        "Mounts[/m]",
        "Namespace[time]",
        "SeccompPolicy",
        "RdtSchemata",
        "LinuxNetDevices[eth0]",
        "MemoryPolicy",
    ];
    assert_eq!(refused, wanted);
}

#[test]
fn removals_and_basic_fields_need_no_features_query() {
    for adjustment in [
        json!({}),
        json!({"mounts": [mount("/m", &["ro", "rbind", "noexec"]), mount("-/n", &["idmap"])]}),
        json!({"linux": {
            "namespaces": [{"type": "-time"}], "netDevices": {"-eth0": {}}, "rdt": {"remove": true},
            "scheduler": {}, "ioPriority": {},
        }}),
    ] {
        assert!(!needs_runtime(&asks(&adjustment), &Resolved::default()), "{adjustment}");
    }
}

#[test]
fn a_bind_mount_with_an_unknown_option_is_refused() {
    let runc = Features::from_answers("runc version 1.1.5", r#"{"mountOptions": ["ro", "new"]}"#);
    let crun = Features::from_answers("crun version 1.8.1", "unknown command");
    let checked = |kind: &str, option: &str, runtime: &Features| {
        let mount = json!({"destination": "/m", "type": kind, "options": ["ro", option]});
        checked(&asks(&json!({"mounts": [mount]})), runtime)
    };
    for runtime in [&runc, &crun] {
        let error = checked("bind", "size=1M", runtime).unwrap_err();
        assert_eq!(error.field(), Some("Mounts[/m]"), "{error}");
        says(&error, &["has no option size=1M of bind mounts"]);
        checked("tmpfs", "size=1M", runtime).unwrap();
        checked("bind", "rprivate", runtime).unwrap();
    }
    checked("bind", "new", &runc).unwrap();
    checked("bind", "size=1M", &Features::default()).unwrap();
}

#[test]
fn memory_that_runc_ignores_needs_the_daemon_to_write_it() {
    let runc = Features::from_answers("runc version 1.5.2", "{}");
    let crun = Features::from_answers("crun version 1.8.1", "unknown command");
    let checked = |kernel_tcp: i64, runtime: &Features, writer: ResourceWriter| {
        let memory = json!({"kernelTcp": {"value": kernel_tcp}});
        let adjustment = linux(&json!({"resources": {"memory": memory}}));
        check_runtime(&adjustment, &Resolved::default(), runtime, writer)
    };
    let error = checked(4096, &runc, ResourceWriter::Runtime).unwrap_err();
    assert_eq!(error.field(), Some("MemTCPLimit"), "{error}");
    says(&error, &["runc 1.5.2 has no linux.resources.memory.kernelTCP"]);
    checked(-1, &runc, ResourceWriter::Runtime).unwrap();
    checked(4096, &crun, ResourceWriter::Runtime).unwrap();
    checked(4096, &Features::default(), ResourceWriter::Runtime).unwrap();
    checked(4096, &runc, ResourceWriter::Daemon).unwrap();
}

#[test]
fn changes_by_cdi_and_classes_need_runtime_support_too() {
    let brought = |resolved: &Resolved, runtime: &Features| {
        check_runtime(&asks(&json!({})), resolved, runtime, ResourceWriter::Runtime)
    };
    let device = CdiDevice {
        name: "v.com/d=x".to_owned(),
        net_devices: vec![("eth0".to_owned(), "x".to_owned())],
        ..CdiDevice::default()
    };
    let resolved = Resolved { cdi: vec![device], ..Resolved::default() };
    let runc = Features::from_answers("runc version 1.3.0", "{}");
    let error = brought(&resolved, &runc).unwrap_err();
    assert_eq!(error.field(), Some("CdiDevices[v.com/d=x]"));
    let class = Class::Set(json!({"closID": "gold"}));
    let resolved = Resolved { intel_rdt: class, ..Resolved::default() };
    let crun = Features::from_answers("crun version 1.9", "{}");
    let error = brought(&resolved, &crun).unwrap_err();
    says(&error, &["RdtClass", "crun 1.9.0", "linux.intelRdt"]);
}
