// SPDX-License-Identifier: Apache-2.0
//! Updates of existing containers, requested while one is created, updated or stopped.

use super::*;
use crate::{Updated, Updates};

const ALL: Rights = Rights {
    allow: None,
    deny: std::collections::BTreeSet::new(),
    ruled: std::collections::BTreeMap::new(),
};

fn if_possible(update: api::ContainerUpdate) -> api::ContainerUpdate {
    api::ContainerUpdate { ignore_failure: true, ..update }
}

fn eviction(container: &str, reason: &str) -> api::ContainerEviction {
    api::ContainerEviction {
        container_id: container.to_owned(),
        reason: reason.to_owned(),
        ..Default::default()
    }
}

fn requested(resources: api::LinuxResources) -> Updates {
    Updates::for_update(api::UpdateContainerRequest {
        container: some(api::Container { id: SUBJECT.to_owned(), ..Default::default() }),
        linux_resources: some(resources),
        ..Default::default()
    })
}

fn ids(updated: &Updated) -> Vec<&str> {
    updated.updates.iter().map(|update| update.container_id.as_str()).collect()
}

fn resources_of(updated: &Updated, place: usize) -> api::LinuxResources {
    updated.updates[place].linux.resources.clone().unwrap_or_default()
}

#[test]
fn every_resource_conflicts_when_two_plugins_update_it() {
    let fields = NriField::ALL.into_iter().filter_map(|f| Some((f, resources_setting(f)?)));
    let mut count = 0;
    for (field, resources) in fields {
        for mut updates in [Updates::for_stop(), Updates::for_create("new"), requested(pids(1))] {
            for container in [SUBJECT, "c1"] {
                let asked = [update(container, resources.clone())];
                updates.answer("00-bar", &ALL, &asked, &[]).unwrap();
                let error = updates.answer("10-foo", &ALL, &asked, &[]).unwrap_err().to_string();
                let start = format!(r#"plugins "10-foo" and "00-bar" both tried to set {field}"#);
                assert!(error.starts_with(&start) && error.ends_with(container), "{error}");
            }
        }
        count += 1;
    }
    assert_eq!(count, 20);
}

#[test]
fn every_resource_of_an_update_is_merged() {
    for resources in NriField::ALL.into_iter().filter_map(resources_setting) {
        let mut updates = Updates::for_stop();
        updates.answer("00-bar", &ALL, &[update("c1", resources.clone())], &[]).unwrap();
        assert_eq!(resources_of(&updates.finish(), 0), resources);
    }
}

#[test]
fn an_update_of_the_container_being_created_is_refused() {
    let creation = creation();
    let response = api::CreateContainerResponse {
        update: vec![if_possible(update(SUBJECT, shares(1)))],
        ..Default::default()
    };
    let error = creation.answer("00-p", &ALL, response).unwrap_err();
    assert_eq!(error.to_string(), r#"plugin "00-p" asked update of "c0" during creation"#);
}

#[test]
fn an_eviction_of_the_container_being_created_is_refused() {
    let creation = creation();
    let response =
        api::CreateContainerResponse { evict: vec![eviction(SUBJECT, "r")], ..Default::default() };
    let error = creation.answer("00-p", &ALL, response).unwrap_err();
    assert_eq!(error.to_string(), r#"plugin "00-p" asked eviction of "c0" during creation"#);
}

#[test]
fn updates_of_a_container_are_merged_in_order_of_first_mention() {
    let mut creation = creation();
    let respond = |update| api::CreateContainerResponse { update, ..Default::default() };
    let first = respond(vec![update("c2", shares(1)), update("c1", shares(1))]);
    creation = creation.answer("00-bar", &ALL, first).unwrap();
    creation = creation.answer("10-foo", &ALL, respond(vec![update("c1", quota(2))])).unwrap();
    let merged = creation.finish();
    assert_eq!(
        merged.updates,
        [
            update("c2", shares(1)),
            update("c1", {
                let mut both = shares(1);
                both.cpu.mut_or_insert_default().quota = int64(2);
                both
            })
        ]
    );
    assert_eq!(merged.owners.to_flat("c1")["CPUQuota"], "10-foo");
    assert!(merged.owners.to_flat(SUBJECT).is_empty());
}

#[test]
fn one_required_update_makes_the_merged_one_required() {
    for (first, second, want) in
        [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
    {
        for mut updates in [Updates::for_stop(), requested(pids(1))] {
            let of = |ignore_failure, resources| api::ContainerUpdate {
                ignore_failure,
                ..update(SUBJECT, resources)
            };
            updates.answer("00-bar", &ALL, &[of(first, shares(1))], &[]).unwrap();
            updates.answer("10-foo", &ALL, &[of(second, quota(1))], &[]).unwrap();
            assert_eq!(updates.finish().updates[0].ignore_failure, want);
        }
    }
}

#[test]
fn the_updated_container_comes_last_with_the_engines_request() {
    let mut updates = requested(pids(10));
    updates.answer("00-bar", &ALL, &[update(SUBJECT, shares(3))], &[]).unwrap();
    updates.answer("10-foo", &ALL, &[update("c1", shares(4))], &[]).unwrap();
    let updated = updates.finish();
    assert_eq!(ids(&updated), ["c1", SUBJECT]);
    let own = resources_of(&updated, 1);
    assert_eq!(own.pids.limit, 10);
    assert_eq!(own.cpu.shares, uint64(3));
}

#[test]
fn the_next_plugins_request_has_the_merged_resources() {
    let mut updates = requested(shares(1));
    assert!(updates.request().unwrap().linux_resources.memory.is_some());
    updates.answer("00-bar", &ALL, &[update(SUBJECT, quota(2))], &[]).unwrap();
    updates.answer("10-foo", &ALL, &[update("c1", quota(9))], &[]).unwrap();
    let asked = updates.request().unwrap();
    assert_eq!(asked.linux_resources.cpu.shares, uint64(1));
    assert_eq!(asked.linux_resources.cpu.quota, int64(2));
    assert_eq!(asked.container.id, SUBJECT);
    assert!(asked.container.linux.is_none(), "the container itself is shown as it is");
}

#[test]
fn the_first_plugin_may_override_the_engines_request() {
    let mut updates = requested(shares(1));
    updates.answer("00-bar", &ALL, &[update(SUBJECT, shares(2))], &[]).unwrap();
    assert_eq!(resources_of(&updates.finish(), 0).cpu.shares, uint64(2));
}

#[test]
fn an_updated_container_without_changes_is_omitted() {
    let mut updates = requested(pids(10));
    let nothing = api::ContainerUpdate { container_id: SUBJECT.to_owned(), ..Default::default() };
    let nobody = api::ContainerUpdate::new();
    updates.answer("00-bar", &ALL, &[nothing, nobody], &[]).unwrap();
    updates.answer("10-foo", &ALL, &[update("c1", shares(1))], &[]).unwrap();
    assert_eq!(ids(&updates.finish()), ["c1"]);
}

#[test]
fn an_update_without_an_id_is_about_the_updated_container() {
    let mut updates = requested(pids(10));
    updates.answer("00-bar", &ALL, &[update("", shares(3))], &[]).unwrap();
    let refused = updates.answer("10-foo", &ALL, &[update(SUBJECT, shares(4))], &[]);
    assert!(matches!(refused, Err(MergeError::Conflict(_))), "{refused:?}");
    let updated = updates.finish();
    assert_eq!(ids(&updated), [SUBJECT]);
    assert_eq!(resources_of(&updated, 0).cpu.shares, uint64(3));
    for mut updates in [Updates::for_stop(), Updates::for_create("new".to_owned())] {
        updates.answer("00-bar", &ALL, &[update("", shares(3))], &[]).unwrap();
        assert_eq!(ids(&updates.finish()), [""; 0], "no container is meant");
    }
}

#[test]
fn a_plugin_can_change_the_pids_limit() {
    let mut updates = requested(api::LinuxResources::new());
    updates.answer("00-bar", &ALL, &[update(SUBJECT, pids(7))], &[]).unwrap();
    let updated = updates.finish();
    assert_eq!(resources_of(&updated, 0).pids.limit, 7);
    assert_eq!(updated.owners.to_flat(SUBJECT)["PidsLimit"], "00-bar");
}

#[test]
fn a_pids_limit_in_the_request_does_not_conflict() {
    let mut updates = requested(pids(10));
    updates.answer("00-bar", &ALL, &[update(SUBJECT, shares(1))], &[]).unwrap();
    updates.answer("10-foo", &ALL, &[update(SUBJECT, quota(1))], &[]).unwrap();
    let updated = updates.finish();
    assert_eq!(resources_of(&updated, 0).pids.limit, 10);
    assert!(!updated.owners.to_flat(SUBJECT).contains_key("PidsLimit"));
}

#[test]
fn the_owners_after_an_update_are_those_of_its_fields() {
    let mut updates = Updates::for_stop();
    updates.answer("00-bar", &ALL, &[update("c1", shares(1))], &[]).unwrap();
    let mut owners = crate::Owners::default();
    owners.claim("c1", NriField::CPUShares, None, "00-bar").unwrap();
    assert_eq!(updates.owners(), &owners);
}

#[test]
fn a_conflicting_update_with_ignore_failure_leaves_no_trace() {
    let mut updates = Updates::for_stop();
    updates.answer("00-bar", &ALL, &[update("c1", quota(1))], &[]).unwrap();
    let mut both = quota(2);
    both.memory = of_memory(api::LinuxMemory { limit: int64(5), ..Default::default() }).memory;
    updates.answer("10-foo", &ALL, &[if_possible(update("c1", both))], &[]).unwrap();
    assert_eq!(updates.owners().to_flat("c1").into_keys().collect::<Vec<_>>(), ["CPUQuota"]);
    let limit = of_memory(api::LinuxMemory { limit: int64(6), ..Default::default() });
    updates.answer("20-baz", &ALL, &[update("c1", limit)], &[]).unwrap();
    let updated = updates.finish();
    assert_eq!(resources_of(&updated, 0).memory.limit, int64(6));
    assert_eq!(resources_of(&updated, 0).cpu.quota, int64(1));
    assert!(!updated.updates[0].ignore_failure);
}

#[test]
fn an_ignored_self_conflict_of_a_plugin_leaves_no_empty_entry() {
    let mut twice = shares(1);
    twice.hugepage_limits = vec![hugepage("2M", 1), hugepage("2MB", 1)];
    let mut updates = Updates::for_stop();
    updates.answer("00-bar", &ALL, &[if_possible(update("c1", twice))], &[]).unwrap();
    let updated = updates.finish();
    assert!(updated.updates.is_empty());
    assert!(updated.owners.to_api().owners.is_empty());
}

#[test]
fn a_denied_field_is_refused_even_if_the_update_is_optional() {
    let rights = Rights { deny: [NriField::CPUShares].into(), ..Default::default() };
    let mut updates = Updates::for_stop();
    let refused = updates.answer("00-bar", &rights, &[if_possible(update("c1", shares(1)))], &[]);
    assert!(matches!(refused, Err(MergeError::NotAllowed { field: NriField::CPUShares, .. })));
    assert!(updates.finish().updates.is_empty());
}

#[test]
fn a_refused_answer_leaves_no_trace_of_its_first_updates() {
    let mut updates = requested(pids(1));
    updates.answer("00-bar", &ALL, &[update("c2", shares(1))], &[]).unwrap();
    let asked = [update("c1", shares(1)), update(SUBJECT, shares(1)), update("c2", shares(1))];
    updates.answer("10-foo", &ALL, &asked, &[eviction("c3", "r")]).unwrap_err();
    assert!(updates.request().unwrap().linux_resources.cpu.shares.is_none());
    let updated = updates.finish();
    assert_eq!(ids(&updated), ["c2"]);
    assert!(updated.evictions.is_empty());
}

#[test]
fn huge_pages_of_the_request_are_replaced_by_size() {
    let of = |limit| api::LinuxResources {
        hugepage_limits: vec![hugepage("2MB", limit)],
        ..Default::default()
    };
    let mut updates = requested(of(1));
    updates.answer("00-bar", &ALL, &[update(SUBJECT, of(2))], &[]).unwrap();
    assert_eq!(resources_of(&updates.finish(), 0).hugepage_limits, [hugepage("2MB", 2)]);
}

#[test]
fn device_rules_of_updates_are_kept() {
    let devices = vec![api::LinuxDeviceCgroup { allow: true, ..Default::default() }];
    let mut updates = Updates::for_stop();
    let wanted = api::LinuxResources { devices, ..Default::default() };
    updates.answer("00-bar", &ALL, &[update("c1", wanted.clone())], &[]).unwrap();
    let updated = updates.finish();
    assert_eq!(resources_of(&updated, 0), wanted);
    assert_eq!(updated.owners.to_flat("c1")["DeviceRules[allow a *:*]"], "00-bar");
}

#[test]
fn a_container_is_evicted_once_for_the_first_reason() {
    let mut creation = creation();
    let respond = |evict| api::CreateContainerResponse { evict, ..Default::default() };
    let first = respond(vec![eviction("c1", "loud"), eviction("", "nobody")]);
    creation = creation.answer("00-bar", &ALL, first).unwrap();
    let second = respond(vec![eviction("c1", "late"), eviction("c2", "")]);
    creation = creation.answer("10-foo", &ALL, second).unwrap();
    assert_eq!(creation.finish().evictions, [eviction("c1", "loud"), eviction("c2", "")]);
}

#[test]
fn unknown_fields_of_update_and_stop_responses_are_reported() {
    let mut updates = requested(pids(1));
    let mut response = api::UpdateContainerResponse {
        update: vec![update(SUBJECT, shares(1))],
        evict: vec![eviction("c1", "r")],
        ..Default::default()
    };
    response.special_fields.mut_unknown_fields().add_varint(9, 1);
    updates.answer_update("00-bar", &ALL, response).unwrap();
    let updated = updates.finish();
    assert_eq!((ids(&updated), updated.evictions.len()), (vec![SUBJECT], 1));
    let place = "UpdateContainerResponse field 9".to_owned();
    assert_eq!(updated.unknown, [("00-bar".to_owned(), place)]);

    let mut stop = Updates::for_stop();
    let response = api::StopContainerResponse {
        update: vec![update(SUBJECT, shares(1))],
        ..Default::default()
    };
    stop.answer_stop("00-bar", &ALL, response).unwrap();
    assert_eq!(ids(&stop.finish()), [SUBJECT]);
}
