// SPDX-License-Identifier: Apache-2.0
//! The order of entries in the lists that plugins receive, and spellings that mean one entry.

use super::*;

#[test]
fn a_variable_that_is_set_moves_last_and_replaces_duplicates() {
    let env = ["A=1", "B=2", "A=3", "A", "AB=4"].map(str::to_owned).to_vec();
    let mut creation = creation_of(api::Container { env, ..Default::default() });
    answer(&mut creation, "10-foo", of_env(&[("A", "x=y"), ("C", "")])).unwrap();
    assert_eq!(creation.request().container.env, ["B=2", "AB=4", "A=x=y", "C="]);
}

#[test]
fn a_set_mount_replaces_mounts_at_its_path_and_comes_last() {
    let mounts = vec![mount("/a", "old"), mount("/b", "old"), mount("/a/", "old")];
    let mut creation = creation_of(api::Container { mounts, ..Default::default() });
    let mounts = vec![mount("/a", "new")];
    answer(&mut creation, "10-foo", api::ContainerAdjustment { mounts, ..Default::default() })
        .unwrap();
    assert_eq!(creation.request().container.mounts, [mount("/b", "old"), mount("/a", "new")]);
}

#[test]
fn a_namespace_that_is_set_keeps_its_place() {
    let namespaces = vec![namespace("pid", ""), namespace("ipc", ""), namespace("uts", "")];
    let linux = some(api::LinuxContainer { namespaces, ..Default::default() });
    let mut creation = creation_of(api::Container { linux, ..Default::default() });
    let namespaces = vec![
        namespace("-pid", ""),
        namespace("-ipc", ""),
        namespace("ipc", "/new"),
        namespace("time", ""),
    ];
    let linux = api::LinuxContainerAdjustment { namespaces, ..Default::default() };
    answer(&mut creation, "10-foo", of_linux(linux)).unwrap();
    let seen = creation.request().container.linux.namespaces.clone();
    assert_eq!(seen, [namespace("ipc", "/new"), namespace("uts", ""), namespace("time", "")]);
    let kept = creation.finish().adjust.linux.namespaces.clone();
    assert_eq!(kept, [namespace("-pid", ""), namespace("ipc", "/new"), namespace("time", "")]);
}

#[test]
fn a_resource_limit_replaces_the_one_of_its_kind() {
    let rlimits = vec![rlimit("RLIMIT_CORE", 1), rlimit("RLIMIT_NOFILE", 1)];
    let mut creation = creation_of(api::Container { rlimits, ..Default::default() });
    let rlimits = vec![rlimit("core", 2)];
    answer(&mut creation, "10-foo", api::ContainerAdjustment { rlimits, ..Default::default() })
        .unwrap();
    let seen = creation.request().container.rlimits.clone();
    assert_eq!(seen, [rlimit("core", 2), rlimit("RLIMIT_NOFILE", 1)]);
    assert_eq!(creation.finish().adjust.rlimits, [rlimit("core", 2)]);
}

#[test]
fn a_huge_page_limit_replaces_the_one_of_its_size() {
    let of = |limits| api::LinuxResources { hugepage_limits: limits, ..Default::default() };
    let resources = some(of(vec![hugepage("2MB", 1), hugepage("1GB", 1)]));
    let linux = some(api::LinuxContainer { resources, ..Default::default() });
    let mut creation = creation_of(api::Container { linux, ..Default::default() });
    answer(&mut creation, "10-foo", of_resources(of(vec![hugepage("2M", 2)]))).unwrap();
    let seen = creation.request().container.linux.resources.hugepage_limits.clone();
    assert_eq!(seen, [hugepage("2M", 2), hugepage("1GB", 1)]);
}

#[test]
fn device_rules_of_all_plugins_are_kept_with_their_owners() {
    let rule = api::LinuxDeviceCgroup {
        allow: true,
        type_: "c".to_owned(),
        major: int64(1),
        access: "rw".to_owned(),
        ..Default::default()
    };
    let devices = vec![rule.clone()];
    let adjust = of_resources(api::LinuxResources { devices, ..Default::default() });
    let mut creation = creation();
    answer(&mut creation, "00-bar", adjust.clone()).unwrap();
    answer(&mut creation, "10-foo", adjust).unwrap();
    assert_eq!(creation.request().container.linux.resources.devices, [rule.clone(), rule.clone()]);
    let merged = creation.finish();
    assert_eq!(merged.adjust.linux.resources.devices, [rule.clone(), rule]);
    let owners = merged.owners.to_flat(SUBJECT);
    assert_eq!(owners["DeviceRules[allow c 1:* rw]"], "00-bar,10-foo");
    assert!(merged.owners.to_api().owners[SUBJECT].compound.is_empty());
}

#[test]
fn a_denial_of_devices_covers_device_rules_too() {
    let devices = vec![api::LinuxDeviceCgroup { allow: true, ..Default::default() }];
    let adjust = of_resources(api::LinuxResources { devices, ..Default::default() });
    let rights = Rights { deny: [NriField::Devices].into(), ..Default::default() };
    let refused = creation().answer("10-foo", &rights, answered(adjust));
    assert!(matches!(refused, Err(MergeError::NotAllowed { field: NriField::Devices, .. })));
}

#[test]
fn different_spellings_of_one_key_conflict() {
    let mounts = |destination| api::ContainerAdjustment {
        mounts: vec![mount(destination, "s")],
        ..Default::default()
    };
    let limits =
        |kind| api::ContainerAdjustment { rlimits: vec![rlimit(kind, 1)], ..Default::default() };
    let pages = |size| {
        let hugepage_limits = vec![hugepage(size, 1)];
        of_resources(api::LinuxResources { hugepage_limits, ..Default::default() })
    };
    let pairs = [
        (mounts("/a/"), mounts("/a"), "Mounts /a"),
        (limits("nofile"), limits("RLIMIT_NOFILE"), "Rlimits RLIMIT_NOFILE"),
        (pages("2M"), pages("2MB"), "HugepageLimits 2MB"),
    ];
    for (one, other, thing) in pairs {
        let mut creation = creation();
        answer(&mut creation, "00-bar", one).unwrap();
        let error = answer(&mut creation, "10-foo", other).unwrap_err().to_string();
        assert!(error.contains(thing), "{error}");
    }
}

#[test]
fn a_marker_removes_other_spellings_of_its_mount() {
    let mounts = vec![mount("/a/b/", "s")];
    let mut creation = creation_of(api::Container { mounts, ..Default::default() });
    let mounts = vec![mount("-/a//b", "")];
    answer(&mut creation, "10-foo", api::ContainerAdjustment { mounts, ..Default::default() })
        .unwrap();
    assert!(creation.request().container.mounts.is_empty());
}
