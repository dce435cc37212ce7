// SPDX-License-Identifier: Apache-2.0
//! Properties of every one of the forty fields.

use std::collections::BTreeSet;

use super::*;
use crate::Scalar;

/// Each field that is not a resource, with an adjustment that sets only this field.
const OTHERS: [(NriField, &str); 20] = [
    (NriField::Annotations, r#"{"annotations": {"k": "v"}}"#),
    (NriField::Mounts, r#"{"mounts": [{"destination": "/d", "source": "/s", "type": "bind"}]}"#),
    (NriField::OciHooks, r#"{"hooks": {"poststop": [{"path": "/h"}]}}"#),
    (NriField::CdiDevices, r#"{"CDIDevices": [{"name": "v/c=d"}]}"#),
    (NriField::Env, r#"{"env": [{"key": "k", "value": "v"}]}"#),
    (NriField::Args, r#"{"args": ["sh"]}"#),
    (NriField::Rlimits, r#"{"rlimits": [{"type": "RLIMIT_CORE", "hard": 9, "soft": 1}]}"#),
    (NriField::Devices, r#"{"linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 1}]}}"#),
    (NriField::CgroupsPath, r#"{"linux": {"cgroupsPath": "/cg"}}"#),
    (NriField::OomScoreAdj, r#"{"linux": {"oomScoreAdj": {"value": 0}}}"#),
    (NriField::IoPriority, r#"{"linux": {"ioPriority": {}}}"#),
    (NriField::SeccompPolicy, r#"{"linux": {"seccompPolicy": {}}}"#),
    (NriField::Namespace, r#"{"linux": {"namespaces": [{"type": "pid", "path": "/ns"}]}}"#),
    (NriField::Sysctl, r#"{"linux": {"sysctl": {"k": "v"}}}"#),
    (NriField::LinuxNetDevices, r#"{"linux": {"netDevices": {"k": {"name": "eth0"}}}}"#),
    (NriField::LinuxSched, r#"{"linux": {"scheduler": {}}}"#),
    (NriField::RdtClosID, r#"{"linux": {"rdt": {"closId": {"value": "c"}}}}"#),
    (NriField::RdtSchemata, r#"{"linux": {"rdt": {"schemata": {}}}}"#),
    (
        NriField::RdtEnableMonitoring,
        r#"{"linux": {"rdt": {"enableMonitoring": {"value": false}}}}"#,
    ),
    (NriField::MemoryPolicy, r#"{"linux": {"memoryPolicy": {}}}"#),
];

/// Returns an adjustment that sets exactly this field; a compound one under the key of [`key`].
pub(super) fn setting(field: NriField) -> api::ContainerAdjustment {
    if let Some(resources) = resources_setting(field) {
        return of_resources(resources);
    }
    let found = OTHERS.into_iter().find(|(one, _)| *one == field);
    read(found.expect("one for each field").1)
}

/// Returns the key under which [`setting`] sets a compound field.
fn key(field: NriField) -> Option<&'static str> {
    let special = [
        (NriField::Mounts, "/d"),
        (NriField::Devices, "/dev/x"),
        (NriField::CdiDevices, "v/c=d"),
        (NriField::Rlimits, "RLIMIT_CORE"),
        (NriField::Namespace, "pid"),
        (NriField::HugepageLimits, "2MB"),
    ];
    let key = special.into_iter().find(|(one, _)| *one == field).map_or("k", |(_, key)| key);
    is_compound(field).then_some(key)
}

/// Returns the name of [`setting`]'s value in owner tables.
pub(super) fn owned_name(field: NriField) -> String {
    key(field).map_or_else(|| field.to_string(), |key| format!("{field}[{key}]"))
}

/// Whether the field is owned by key (`Env[PATH]`) instead of as a whole.
fn is_compound(field: NriField) -> bool {
    [1, 2, 4, 5, 6, 24, 27, 30, 33, 34, 35].contains(&field.number())
}

#[test]
fn plugins_that_set_one_value_conflict_and_are_named() {
    for field in NriField::ALL.into_iter().filter(|field| *field != NriField::OciHooks) {
        let mut creation = creation();
        answer(&mut creation, "00-bar", setting(field)).unwrap();
        let error = answer(&mut creation, "10-foo", setting(field)).unwrap_err();
        let thing = match key(field) {
            Some(key) => format!("{field} {key}"),
            None => field.to_string(),
        };
        assert_eq!(
            error.to_string(),
            format!(r#"plugins "10-foo" and "00-bar" both tried to set {thing} of container c0"#)
        );
        assert!(matches!(error, MergeError::Conflict(conflict) if conflict.field == field));
    }
}

#[test]
fn hooks_of_all_plugins_run_in_their_order() {
    let mut creation = creation();
    for plugin in ["00-a", "10-b"] {
        let hooks = api::Hooks {
            prestart: vec![hook(plugin)],
            create_runtime: vec![hook(plugin)],
            create_container: vec![hook(plugin)],
            start_container: vec![hook(plugin)],
            poststart: vec![hook(plugin)],
            poststop: vec![hook(plugin)],
            ..Default::default()
        };
        let adjust = api::ContainerAdjustment { hooks: some(hooks), ..Default::default() };
        answer(&mut creation, plugin, adjust).unwrap();
    }
    assert_eq!(creation.owners().to_flat(SUBJECT)["OciHooks"], "00-a,10-b");
    let visible = creation.request().container.hooks.clone();
    let hooks = creation.finish().adjust.hooks;
    assert_eq!(visible, hooks);
    let lists = [
        &hooks.prestart,
        &hooks.create_runtime,
        &hooks.create_container,
        &hooks.start_container,
        &hooks.poststart,
        &hooks.poststop,
    ];
    for list in lists {
        let paths: Vec<&str> = list.iter().map(|hook| hook.path.as_str()).collect();
        assert_eq!(paths, ["00-a", "10-b"]);
    }
}

#[test]
fn one_plugin_owns_exactly_the_fields_that_it_sets() {
    for field in NriField::ALL {
        let mut creation = creation();
        answer(&mut creation, "10-foo", setting(field)).unwrap();
        let merged = creation.finish();
        assert_eq!(merged.adjust, setting(field), "{field}");
        let owners: Vec<(String, String)> = merged.owners.to_flat(SUBJECT).into_iter().collect();
        assert_eq!(owners, [(owned_name(field), "10-foo".to_owned())]);
        let api = merged.owners.to_api();
        assert_eq!(api.owners[SUBJECT].simple.len(), usize::from(!is_compound(field)));
        assert_eq!(api.owners[SUBJECT].compound.len(), usize::from(is_compound(field)));
    }
}

#[test]
fn the_next_plugin_sees_the_fields_that_were_set() {
    for field in NriField::ALL.into_iter().filter(|field| *field != NriField::MemoryPolicy) {
        let mut creation = creation();
        let before = creation.container().clone();
        answer(&mut creation, "10-foo", setting(field)).unwrap();
        assert_ne!(creation.request().container.as_ref(), Some(&before), "{field}");
    }
}

#[test]
fn zero_and_empty_values_are_merged_like_any_others() {
    let zeroes =
        [NriField::MemSwappiness, NriField::CPUQuota, NriField::PidsLimit, NriField::OomScoreAdj];
    let empties = [
        NriField::BlockioClass,
        NriField::IoPriority,
        NriField::SeccompPolicy,
        NriField::LinuxSched,
    ];
    for field in zeroes.into_iter().chain(empties) {
        let mut creation = creation();
        answer(&mut creation, "10-foo", setting(field)).unwrap();
        assert_eq!(creation.finish().adjust, setting(field), "{field}");
    }
}

#[test]
fn a_compound_field_set_twice_in_one_response_is_a_conflict() {
    let lists = [
        NriField::Mounts,
        NriField::Env,
        NriField::Devices,
        NriField::CdiDevices,
        NriField::Rlimits,
        NriField::Namespace,
        NriField::HugepageLimits,
    ];
    for field in lists {
        let mut twice = setting(field);
        twice.mounts.extend_from_within(..);
        twice.env.extend_from_within(..);
        twice.CDI_devices.extend_from_within(..);
        twice.rlimits.extend_from_within(..);
        if let Some(linux) = twice.linux.as_mut() {
            linux.devices.extend_from_within(..);
            linux.namespaces.extend_from_within(..);
            if let Some(resources) = linux.resources.as_mut() {
                resources.hugepage_limits.extend_from_within(..);
            }
        }
        let mut creation = creation();
        let error = answer(&mut creation, "10-foo", twice).unwrap_err();
        let thing = format!("{field} {}", key(field).unwrap());
        assert_eq!(
            error.to_string(),
            format!(r#"plugin "10-foo" set {thing} twice in container c0"#)
        );
    }
}

#[test]
fn only_denied_fields_are_refused() {
    for field in NriField::ALL {
        let denied = Rights { deny: BTreeSet::from([field]), ..Default::default() };
        let error = creation().answer("10-foo", &denied, answered(setting(field))).unwrap_err();
        assert!(matches!(error, MergeError::NotAllowed { field: what, .. } if what == field));
        let line = error.to_string();
        let start = format!(r#"plugin "10-foo" may not set {field} of container c0"#);
        assert!(line.starts_with(&start), "{line}");

        let others = Rights { allow: Some(BTreeSet::from([field])), ..Default::default() };
        let allowed = creation().answer("10-foo", &others, answered(setting(field))).unwrap();
        for other in NriField::ALL.into_iter().filter(|other| *other != field) {
            let answer = answered(setting(other));
            assert!(allowed.clone().answer("20-baz", &others, answer).is_err(), "{field} {other}");
        }
    }
}

#[test]
fn a_resource_is_found_by_its_section_and_member_only() {
    for scalar in &crate::SCALARS {
        let found = Scalar::of_member(scalar.section, scalar.key).map(|scalar| scalar.field);
        assert_eq!(found, Some(scalar.field));
    }
    for (section, key) in [("memory", "shares"), ("cpu", "limit"), ("pids", ""), ("", "limit")] {
        assert!(Scalar::of_member(section, key).is_none(), "{section} {key}");
    }
}

#[test]
fn one_plugin_can_set_all_forty_fields_at_once() {
    let mut creation = creation();
    for field in NriField::ALL {
        answer(&mut creation, "10-foo", setting(field)).unwrap();
    }
    let api = creation.owners().to_api();
    let of = &api.owners[SUBJECT];
    let mut numbers: Vec<i32> = of.simple.keys().chain(of.compound.keys()).copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=40).collect::<Vec<i32>>());
}
