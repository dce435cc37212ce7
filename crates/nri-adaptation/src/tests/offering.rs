// SPDX-License-Identifier: Apache-2.0
//! Offers: which values they yield to, and what plugins, validators and the result then have.

use super::each_field::{owned_name, setting};
use super::*;
use crate::{Owner, Yielded, as_adjustment};

const FIRST: &str = "inject:a";
const SECOND: &str = "inject:b";

/// Offers an adjustment without restrictions.
fn offer(creation: Creation, from: &str, adjust: api::ContainerAdjustment) -> Creation {
    creation.offer(from, &Rights::default(), adjust).unwrap()
}

fn respond(creation: Creation, adjust: api::ContainerAdjustment) -> Creation {
    creation.answer("10-foo", &Rights::default(), answered(adjust)).unwrap()
}

fn yielded(from: &str, field: &str, to: Option<&str>) -> Yielded {
    Yielded { from: from.to_owned(), field: field.to_owned(), to: to.map(str::to_owned) }
}

/// Returns a creation whose container has the value of [`setting`].
fn having(field: NriField) -> Creation {
    creation_of(respond(creation(), setting(field)).container().clone())
}

/// The fields that can be absent: not hooks, which accumulate.
fn fields() -> impl Iterator<Item = NriField> {
    NriField::ALL.into_iter().filter(|field| *field != NriField::OciHooks)
}

/// The fields that a container has too.
fn fields_of_containers() -> impl Iterator<Item = NriField> {
    NriField::ALL.into_iter().filter(|field| *field != NriField::MemoryPolicy)
}

fn device_rule() -> api::ContainerAdjustment {
    let devices = vec![api::LinuxDeviceCgroup { allow: true, ..Default::default() }];
    of_resources(api::LinuxResources { devices, ..Default::default() })
}

#[test]
fn a_containers_values_read_as_the_adjustment_that_sets_them() {
    for field in fields_of_containers() {
        let read = as_adjustment(having(field).container());
        assert_eq!(respond(creation(), read).finish().adjust, setting(field), "{field}");
    }
    let env = vec!["A=b=c".to_owned(), "D".to_owned()];
    let read = as_adjustment(&api::Container { env, ..Default::default() });
    assert_eq!(read, of_env(&[("A", "b=c"), ("D", "")]));
}

#[test]
fn an_offered_value_that_nothing_else_sets_is_applied() {
    for field in fields() {
        let before = creation().container().clone();
        let offered = offer(creation(), FIRST, setting(field));
        let is_visible = *offered.container() != before;
        assert_eq!(is_visible, field != NriField::MemoryPolicy, "{field}");
        assert!(offered.owners().to_flat(SUBJECT).is_empty(), "{field}");
        let visible = offered.container().clone();
        let merged = offered.settle().unwrap().finish();
        assert_eq!(merged.container, visible, "{field}");
        assert_eq!(merged.adjust, setting(field));
        assert_eq!(merged.yielded, [], "{field}");
        assert_eq!(merged.plugin_behind(&owned_name(field)).as_deref(), Some(FIRST));
    }
}

#[test]
fn an_offered_value_yields_to_the_containers_own() {
    for field in fields_of_containers() {
        let before = having(field).container().clone();
        let merged = offer(having(field), FIRST, setting(field)).settle().unwrap().finish();
        assert_eq!(merged.yielded, [yielded(FIRST, &owned_name(field), None)]);
        assert_eq!(merged.adjust, api::ContainerAdjustment::new(), "{field}");
        assert_eq!(merged.container, before, "{field}");
        assert!(merged.owners.to_flat(SUBJECT).is_empty(), "{field}");
    }
}

#[test]
fn offered_hooks_yield_even_if_the_container_has_none() {
    let hooks = NriField::OciHooks;
    let merged = offer(creation(), FIRST, setting(hooks)).settle().unwrap().finish();
    assert_eq!(merged.yielded, [yielded(FIRST, "OciHooks", None)]);
    assert_eq!(merged.adjust, api::ContainerAdjustment::new());
}

#[test]
fn an_offered_value_yields_to_a_plugin_before_and_after_it() {
    for field in fields() {
        for after in [
            offer(respond(creation(), setting(field)), FIRST, setting(field)),
            respond(offer(creation(), FIRST, setting(field)), setting(field)),
        ] {
            let merged = after.settle().unwrap().finish();
            let wanted = yielded(FIRST, &owned_name(field), Some("10-foo"));
            assert_eq!(merged.yielded, [wanted]);
            assert_eq!(merged.adjust, setting(field));
            assert_eq!(merged.plugin_behind(&owned_name(field)).as_deref(), Some("10-foo"));
        }
    }
}

#[test]
fn an_offered_value_yields_to_a_removal_by_a_plugin() {
    for after in [
        offer(respond(creation(), of_env(&[("-A", "")])), FIRST, of_env(&[("A", "1")])),
        respond(offer(creation(), FIRST, of_env(&[("A", "1")])), of_env(&[("-A", "")])),
    ] {
        let merged = after.settle().unwrap().finish();
        assert_eq!(merged.yielded, [yielded(FIRST, "Env[A]", Some("10-foo"))]);
        assert_eq!(merged.adjust, of_env(&[("-A", "")]));
        assert_eq!(merged.container.env, [""; 0]);
        let owner = merged.owners.owner(SUBJECT, NriField::Env, Some("A"));
        assert_eq!(owner, Some(&Owner::Removed("10-foo".to_owned())));
    }
}

#[test]
fn the_first_of_two_offers_of_one_value_wins() {
    for field in fields() {
        let both = offer(offer(creation(), FIRST, setting(field)), SECOND, setting(field));
        let merged = both.settle().unwrap().finish();
        assert_eq!(merged.yielded, [yielded(SECOND, &owned_name(field), Some(FIRST))]);
        assert_eq!(merged.adjust, setting(field));
    }
}

#[test]
fn only_the_values_of_an_offer_that_others_set_yield() {
    let mounts = vec![mount("/a/", "own")];
    let env = vec!["A=own".to_owned()];
    let before = creation_of(api::Container { env, mounts, ..Default::default() });
    let adjust = api::ContainerAdjustment {
        mounts: vec![mount("/b", "s"), mount("/a", "s")],
        ..of_env(&[("A", "1"), ("B", "2"), ("C", "3")])
    };
    let merged = respond(offer(before, FIRST, adjust), of_env(&[("C", "foo")]));
    let merged = merged.settle().unwrap().finish();
    let wanted = [("Mounts[/a]", None), ("Env[A]", None), ("Env[C]", Some("10-foo"))];
    assert_eq!(merged.yielded, wanted.map(|(field, to)| yielded(FIRST, field, to)));
    assert_eq!(merged.container.env, ["A=own", "C=foo", "B=2"]);
    assert_eq!(merged.container.mounts, [mount("/a/", "own"), mount("/b", "s")]);
    assert_eq!(merged.adjust.env, [variable("C", "foo"), variable("B", "2")]);
    assert_eq!(merged.adjust.mounts, [mount("/b", "s")]);
}

#[test]
fn an_offered_device_rule_yields_only_to_the_containers() {
    let name = "DeviceRules[allow a *:*]";
    let before = creation_of(respond(creation(), device_rule()).container().clone());
    let merged = offer(before, FIRST, device_rule()).settle().unwrap().finish();
    assert_eq!(merged.yielded, [yielded(FIRST, name, None)]);
    assert_eq!(merged.adjust, api::ContainerAdjustment::new());

    let alone = offer(creation(), FIRST, device_rule()).settle().unwrap().finish();
    assert_eq!((&alone.adjust, alone.yielded.len()), (&device_rule(), 0));
    assert_eq!(alone.container.linux.resources.devices.len(), 1);

    let both = respond(offer(creation(), FIRST, device_rule()), device_rule());
    let merged = both.settle().unwrap().finish();
    assert_eq!(merged.plugin_behind(name).as_deref(), Some("10-foo,inject:a"));
    assert_eq!(merged.container.linux.resources.devices.len(), 2);

    let plugin_first = offer(respond(creation(), device_rule()), FIRST, device_rule());
    let two_offers = offer(offer(creation(), FIRST, device_rule()), SECOND, device_rule());
    for creation in [plugin_first, two_offers] {
        let merged = creation.settle().unwrap().finish();
        let shown = &merged.container.linux.resources.devices;
        assert_eq!(shown, &merged.adjust.linux.resources.devices);
    }
}

#[test]
fn an_offer_fails_only_for_values_that_do_not_yield() {
    let rights = Rights { deny: [NriField::Env].into(), ..Default::default() };
    let refused = creation().offer(FIRST, &rights, setting(NriField::Env));
    assert!(matches!(refused, Err(MergeError::NotAllowed { field: NriField::Env, .. })));
    let merged = having(NriField::Env).offer(FIRST, &rights, setting(NriField::Env)).unwrap();
    assert_eq!(merged.settle().unwrap().finish().yielded.len(), 1);
    let args = vec!["a".to_owned(); crate::MOST_IN_ONE + 1];
    let long = api::ContainerAdjustment { args, ..Default::default() };
    let refused = creation().offer(FIRST, &Rights::default(), long);
    assert!(matches!(refused, Err(MergeError::TooMany { .. })));
}

#[test]
fn validators_receive_the_container_as_it_was_requested() {
    let mounts = vec![mount("/a", "old"), mount("/b", "old")];
    let created = || creation_of(api::Container { mounts: mounts.clone(), ..Default::default() });
    let before = created().container().clone();
    let set = |source| api::ContainerAdjustment {
        mounts: vec![mount("/a", source)],
        ..Default::default()
    };
    let replaced = |source| api::ContainerAdjustment {
        mounts: vec![mount("-/a", ""), mount("/a", source)],
        ..Default::default()
    };
    for field in NriField::ALL {
        for changed in [
            created(),
            respond(created(), setting(field)),
            respond(respond(created(), setting(field)), set("new")),
            respond(respond(created(), set("new")), replaced("newer")),
            offer(created(), FIRST, setting(field)),
            offer(respond(created(), set("new")), FIRST, setting(field)).settle().unwrap(),
        ] {
            let asked = changed.validation_request(Vec::new());
            assert_eq!(asked.container.as_ref(), Some(&before), "{field}");
        }
    }
}
