// SPDX-License-Identifier: Apache-2.0
//! Whole replies: what plugins and validators receive, and that a refusal changes nothing.

use super::*;

#[test]
fn requests_contain_empty_hooks_memory_and_cpu_sections() {
    let fresh = creation();
    let asked = fresh.request();
    let container = asked.container.as_ref().unwrap();
    assert!(container.hooks.is_some());
    let resources = container.linux.as_ref().and_then(|linux| linux.resources.as_ref()).unwrap();
    assert!(resources.memory.is_some() && resources.cpu.is_some());
    assert_eq!(asked.pod.id, "p0");
}

#[test]
fn an_absent_or_empty_response_changes_nothing() {
    let mut creation = creation();
    let before = creation.request().clone();
    creation =
        creation.answer("00-bar", &Rights::default(), api::CreateContainerResponse::new()).unwrap();
    answer(&mut creation, "10-foo", api::ContainerAdjustment::new()).unwrap();
    let hooks = some(api::Hooks::new());
    let linux = some(api::LinuxContainerAdjustment {
        resources: some(of_memory(api::LinuxMemory::new())),
        ..Default::default()
    });
    let empty = api::ContainerAdjustment { hooks, linux, ..Default::default() };
    answer(&mut creation, "20-baz", empty).unwrap();
    assert_eq!(creation.request(), &before);
    let merged = creation.finish();
    assert_eq!(merged.adjust, api::ContainerAdjustment::new());
    assert_eq!(Some(merged.container), before.container.into_option());
    assert!(merged.owners.to_api().owners.is_empty());
    assert!(merged.updates.is_empty() && merged.evictions.is_empty());
}

#[test]
fn the_first_conflict_in_the_order_of_fields_is_reported() {
    let all = || {
        let mut adjust = of_resources(shares(1));
        adjust.env = vec![variable("A", "1")];
        adjust.annotations = map(&[("b", ""), ("a", "")]);
        adjust
    };
    for _ in 0..50 {
        let mut creation = creation();
        answer(&mut creation, "00-bar", all()).unwrap();
        let error = answer(&mut creation, "10-foo", all()).unwrap_err().to_string();
        assert!(error.contains("Annotations a of"), "{error}");
    }
}

#[test]
fn plugins_receive_each_others_compatible_changes() {
    let mut creation = creation();
    answer(&mut creation, "00-bar", of_env(&[("A", "1")])).unwrap();
    answer(&mut creation, "10-foo", of_env(&[("B", "2")])).unwrap();
    answer(&mut creation, "20-baz", of_resources(quota(5))).unwrap();
    let asked = creation.request().clone();
    assert_eq!(asked.container.env, ["A=1", "B=2"]);
    assert_eq!(asked.container.linux.resources.cpu.quota, int64(5));
    let merged = creation.finish();
    assert_eq!(merged.adjust.env, [variable("A", "1"), variable("B", "2")]);
    assert_eq!(Some(merged.container), asked.container.into_option());
}

#[test]
fn validators_get_the_original_container_and_all_requests() {
    let mut creation = creation();
    let before = creation.container().clone();
    let update = api::ContainerUpdate { container_id: "c1".to_owned(), ..Default::default() };
    let response =
        api::CreateContainerResponse { update: vec![update], ..answered(of_env(&[("-A", "")])) };
    creation = creation.answer("10-foo", &Rights::default(), response).unwrap();
    answer(&mut creation, "20-baz", of_resources(shares(7))).unwrap();
    let plugin = api::PluginInstance { name: "foo".to_owned(), ..Default::default() };
    let asked = creation.validation_request(vec![plugin.clone()]);
    assert_eq!(asked.container.as_ref(), Some(&before));
    assert_eq!(asked.pod.id, "p0");
    assert_eq!(asked.adjust.env, [variable("-A", "")]);
    assert!(asked.adjust.hooks.is_some(), "empty parts are there, as in the reference");
    assert_eq!(asked.update[0].container_id, "c1");
    assert_eq!(asked.owners.owners[SUBJECT].simple[&NriField::CPUShares.number()], "20-baz");
    assert_eq!(asked.plugins, [plugin]);
}

#[test]
fn validators_receive_the_removal_of_a_sysctl() {
    let sysctl = map(&[("-net.x", "")]);
    let adjust = of_linux(api::LinuxContainerAdjustment { sysctl, ..Default::default() });
    let mut creation = creation();
    answer(&mut creation, "10-foo", adjust).unwrap();
    let asked = creation.validation_request(Vec::new());
    let owners = &asked.owners.owners[SUBJECT].compound[&NriField::Sysctl.number()].owners;
    assert_eq!(owners["net.x"], "-10-foo");
    assert!(asked.adjust.linux.sysctl.contains_key("-net.x"));
}

#[test]
fn unknown_fields_of_a_newer_plugin_are_reported_not_applied() {
    let mut mount = mount("/d", "/s");
    mount.special_fields.mut_unknown_fields().add_varint(77, 1);
    let mut adjust = api::ContainerAdjustment { mounts: vec![mount], ..Default::default() };
    adjust.special_fields.mut_unknown_fields().add_length_delimited(99, b"x".to_vec());
    let mut creation = creation();
    answer(&mut creation, "10-foo", adjust).unwrap();
    let foo = |place: &str| ("10-foo".to_owned(), place.to_owned());
    assert_eq!(
        creation.finish().unknown,
        [
            foo("CreateContainerResponse.adjust field 99"),
            foo("CreateContainerResponse.adjust.mounts field 77")
        ]
    );
}

#[test]
fn known_fields_are_not_reported_as_unknown() {
    let mut creation = creation();
    for field in NriField::ALL {
        if let Some(resources) = resources_setting(field) {
            answer(&mut creation, "10-foo", of_resources(resources)).unwrap();
        }
    }
    assert!(creation.finish().unknown.is_empty());
}
