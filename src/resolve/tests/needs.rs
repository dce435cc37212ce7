// SPDX-License-Identifier: Apache-2.0
//! The needs of adjustments, compared with runtimes' responses.

use serde_json::json;

use super::{linux, says};
use crate::plugin::api;
use crate::resolve::{ResourceWriter, check_runtime, needs_runtime};
use crate::runtime::features::Features;
use crate::spec::patch::{CdiDevice, Class, Resolved};

/// Adjustments that need a feature of the runtime, and the field that a refusal names.
fn needing() -> Vec<(api::ContainerAdjustment, &'static str)> {
    let one = api::LinuxContainerAdjustment::default;
    let namespace = |kind: &str| {
        let namespace = api::LinuxNamespace { type_: kind.to_owned(), ..Default::default() };
        linux(api::LinuxContainerAdjustment { namespaces: vec![namespace], ..one() })
    };
    let mount = |option: &str| {
        let options = vec![option.to_owned(), "size=1M".to_owned()];
        let mount = api::Mount { destination: "/m".to_owned(), options, ..Default::default() };
        api::ContainerAdjustment { mounts: vec![mount], ..Default::default() }
    };
    let seccomp = |flag: &str| {
        let policy = api::LinuxSeccomp {
            default_action: "SCMP_ACT_ALLOW".to_owned(),
            flags: vec![flag.to_owned()],
            ..Default::default()
        };
        linux(api::LinuxContainerAdjustment { seccomp_policy: Some(policy).into(), ..one() })
    };
    let mut all = vec![
        (mount("rro"), "Mounts[/m]"),
        (mount("idmap"), "Mounts[/m]"),
        (namespace("time"), "Namespace[time]"),
        (seccomp("SECCOMP_FILTER_FLAG_LOG"), "SeccompPolicy"),
    ];
    all.extend(needing_what_is_young());
    all
}

fn needing_what_is_young() -> Vec<(api::ContainerAdjustment, &'static str)> {
    let one = api::LinuxContainerAdjustment::default;
    let schemata = api::LinuxRdt {
        schemata: Some(api::OptionalRepeatedString::default()).into(),
        ..Default::default()
    };
    let device = api::LinuxNetDevice { name: "x".to_owned(), ..Default::default() };
    let bind =
        api::LinuxMemoryPolicy { mode: api::MpolMode::MPOL_BIND.into(), ..Default::default() };
    let fifo = api::LinuxScheduler {
        policy: api::LinuxSchedulerPolicy::SCHED_FIFO.into(),
        ..Default::default()
    };
    let idle = api::LinuxIOPriority {
        class: api::IOPrioClass::IOPRIO_CLASS_IDLE.into(),
        ..Default::default()
    };
    vec![
        (
            linux(api::LinuxContainerAdjustment { rdt: Some(schemata).into(), ..one() }),
            "RdtSchemata",
        ),
        (
            linux(api::LinuxContainerAdjustment {
                net_devices: [("eth0".to_owned(), device)].into(),
                ..one()
            }),
            "LinuxNetDevices[eth0]",
        ),
        (
            linux(api::LinuxContainerAdjustment { memory_policy: Some(bind).into(), ..one() }),
            "MemoryPolicy",
        ),
        (
            linux(api::LinuxContainerAdjustment { scheduler: Some(fifo).into(), ..one() }),
            "LinuxSched",
        ),
        (
            linux(api::LinuxContainerAdjustment { io_priority: Some(idle).into(), ..one() }),
            "IoPriority",
        ),
    ]
}

fn refusals(runtime: &Features) -> Vec<&'static str> {
    let mut refused = Vec::new();
    for (adjustment, field) in needing() {
        assert!(needs_runtime(&adjustment, &Resolved::default()), "{field}");
        if let Err(error) =
            check_runtime(&adjustment, &Resolved::default(), runtime, ResourceWriter::Runtime)
        {
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
fn a_new_runc_and_a_silent_runtime_are_refused_nothing() {
    let features = r#"{"mountOptions": ["rro"], "linux": {"namespaces": ["time"],
        "seccomp": {"enabled": true, "actions": ["SCMP_ACT_ALLOW"],
            "knownFlags": ["SECCOMP_FILTER_FLAG_LOG"]},
        "intelRdt": {"enabled": true, "schemata": true, "monitoring": true},
        "memoryPolicy": {"modes": ["MPOL_BIND"], "flags": []},
        "mountExtensions": {"idmap": {"enabled": true}}, "netDevices": {"enabled": true}}}"#;
    assert_eq!(refusals(&Features::from_answers("runc version 1.4.0", features)), [""; 0]);
    assert_eq!(refusals(&Features::default()), [""; 0]);
    // The specification has no name for the last two.
    let unnamed = ["LinuxSched", "IoPriority"];
    assert_eq!(refusals(&Features::from_answers("youki version 0.5.3", features)), unnamed);
}

#[test]
fn an_unknown_runtime_has_only_its_named_features() {
    let all: Vec<&str> = needing().into_iter().map(|(_, field)| field).collect();
    let no_lists = r#"{"linux": {"seccomp": {"enabled": true}}}"#;
    for said in ["{}", no_lists, "unknown command"] {
        for version in ["youki version 0.5.3", "runsc version release-20250512.0", "other"] {
            assert_eq!(refusals(&Features::from_answers(version, said)), all, "{version}: {said}");
        }
    }
    let (rdt, _) = needing_what_is_young().swap_remove(0);
    let youki = Features::from_answers("youki version 0.5.3", "{}");
    let error = check_runtime(&rdt, &Resolved::default(), &youki, ResourceWriter::Runtime);
    says(
        &error.unwrap_err(),
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
        // Its `features` take precedence over the version.
        ("1.28", "{}", vec![devices, policy]),
        ("1.21", named, vec![schemata]),
    ] {
        let crun = Features::from_answers(&format!("crun version {version}"), features);
        assert_eq!(refusals(&crun), wanted, "{version}: {features}");
    }
    let monitored = api::LinuxRdt {
        enable_monitoring: Some(api::OptionalBool { value: true, ..Default::default() }).into(),
        ..Default::default()
    };
    let one = api::LinuxContainerAdjustment { rdt: Some(monitored).into(), ..Default::default() };
    for (version, is_refused) in [("1.22", true), ("1.23.1", true), ("1.24", false)] {
        let crun = Features::from_answers(&format!("crun version {version}"), "{}");
        let writer = ResourceWriter::Runtime;
        let checked = check_runtime(&linux(one.clone()), &Resolved::default(), &crun, writer);
        assert_eq!(checked.is_err(), is_refused, "{version}");
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
    let one = api::LinuxContainerAdjustment::default;
    let namespace = api::LinuxNamespace { type_: "-time".to_owned(), ..Default::default() };
    let mut mount = api::Mount { destination: "/m".to_owned(), ..Default::default() };
    mount.options = vec!["ro".to_owned(), "rbind".to_owned(), "noexec".to_owned()];
    let removed = api::Mount {
        destination: "-/n".to_owned(),
        options: vec!["idmap".to_owned()],
        ..Default::default()
    };
    for adjustment in [
        api::ContainerAdjustment::default(),
        api::ContainerAdjustment { mounts: vec![mount, removed], ..Default::default() },
        linux(api::LinuxContainerAdjustment {
            namespaces: vec![namespace],
            net_devices: [("-eth0".to_owned(), api::LinuxNetDevice::default())].into(),
            rdt: Some(api::LinuxRdt { remove: true, ..Default::default() }).into(),
            scheduler: Some(api::LinuxScheduler::default()).into(),
            io_priority: Some(api::LinuxIOPriority::default()).into(),
            ..one()
        }),
    ] {
        assert!(!needs_runtime(&adjustment, &Resolved::default()), "{adjustment:?}");
    }
}

#[test]
fn a_bind_mount_has_no_data_that_a_runtime_could_apply() {
    let runc = Features::from_answers("runc version 1.1.5", r#"{"mountOptions": ["ro", "new"]}"#);
    let crun = Features::from_answers("crun version 1.8.1", "unknown command");
    let checked = |type_: &str, option: &str, runtime: &Features| {
        let options = ["ro", option].map(str::to_owned).into();
        let (destination, type_) = ("/m".to_owned(), type_.to_owned());
        let mount = api::Mount { destination, type_, options, ..Default::default() };
        let adjustment = api::ContainerAdjustment { mounts: vec![mount], ..Default::default() };
        check_runtime(&adjustment, &Resolved::default(), runtime, ResourceWriter::Runtime)
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
        let limit = api::OptionalInt64 { value: kernel_tcp, ..Default::default() };
        let memory = api::LinuxMemory { kernel_tcp: Some(limit).into(), ..Default::default() };
        let resources = api::LinuxResources { memory: Some(memory).into(), ..Default::default() };
        let adjustment = linux(api::LinuxContainerAdjustment {
            resources: Some(resources).into(),
            ..Default::default()
        });
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
fn edits_by_cdi_and_classes_need_runtime_support_too() {
    let device = CdiDevice {
        name: "v.com/d=x".to_owned(),
        net_devices: vec![("eth0".to_owned(), "x".to_owned())],
        ..CdiDevice::default()
    };
    let resolved = Resolved { cdi: vec![device], ..Resolved::default() };
    let runc = Features::from_answers("runc version 1.3.0", "{}");
    let error = check_runtime(
        &api::ContainerAdjustment::default(),
        &resolved,
        &runc,
        ResourceWriter::Runtime,
    )
    .unwrap_err();
    assert_eq!(error.field(), Some("CdiDevices[v.com/d=x]"));
    let class = Class::Set(json!({"closID": "gold"}));
    let resolved = Resolved { intel_rdt: class, ..Resolved::default() };
    let crun = Features::from_answers("crun version 1.9", "{}");
    let error = check_runtime(
        &api::ContainerAdjustment::default(),
        &resolved,
        &crun,
        ResourceWriter::Runtime,
    )
    .unwrap_err();
    says(&error, &["RdtClass", "crun 1.9.0", "linux.intelRdt"]);
}
