// SPDX-License-Identifier: Apache-2.0
//! What rules do to the changes of one container: refuse, drop, hide or only note them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::{
    DroppedRequest, FieldSet, Forbidden, RuleDecision, RuleNote, Ruling, Updated, Updates,
};

/// Returns a rule that permits only these fields and, with `EVICTION`, evictions.
fn ruling(rule: &str, permits: FieldSet) -> Ruling {
    Ruling { rule: rule.to_owned(), permits, hides: false, is_audit: false }
}

/// Returns a rule that only notes what it does not permit.
fn audit(rule: &str, permits: FieldSet) -> Ruling {
    Ruling { is_audit: true, ..ruling(rule, permits) }
}

/// Returns rights without lists, under rules about one container.
fn ruled<const N: usize>(container: &str, rulings: [Ruling; N]) -> Rights {
    let rulings = rulings.into_iter().map(Arc::new).collect();
    let decision = RuleDecision { rulings, is_hidden: false };
    Rights { ruled: [(container.to_owned(), decision)].into(), ..Default::default() }
}

/// Returns the rights of a plugin from which the first rule that hides anything hides this container.
fn hidden(container: &str) -> Rights {
    let hiding = Ruling { hides: true, ..ruling("hide", FieldSet::NONE) };
    let mut rights = ruled(container, [audit("first", FieldSet::NONE), hiding]);
    rights.ruled.values_mut().for_each(|decision| decision.is_hidden = true);
    rights
}

fn note(container: &str, what: Forbidden, rule: &str) -> RuleNote {
    let (plugin, container, rule) = ("10-foo".to_owned(), container.to_owned(), rule.to_owned());
    RuleNote { plugin, container, what, rule }
}

fn dropped(note: RuleNote, is_eviction: bool, ignores_failure: bool) -> DroppedRequest {
    DroppedRequest { note, is_eviction, ignores_failure }
}

fn eviction(container: &str) -> api::ContainerEviction {
    api::ContainerEviction { container_id: container.to_owned(), ..Default::default() }
}

/// Returns an update of [`SUBJECT`], a creation and a stop, during which plugins request updates.
fn requests() -> [Updates; 3] {
    let container = some(api::Container { id: SUBJECT.to_owned(), ..Default::default() });
    let request = api::UpdateContainerRequest { container, ..Default::default() };
    [Updates::for_update(request), Updates::for_create("new"), Updates::for_stop()]
}

/// Merges the updates and evictions of `10-foo`.
fn merged(
    mut all: Updates,
    rights: &Rights,
    updates: &[api::ContainerUpdate],
    evictions: &[api::ContainerEviction],
) -> Result<Updated, MergeError> {
    all.answer("10-foo", rights, updates, evictions)?;
    Ok(all.finish())
}

/// Merges the updates and evictions of `10-foo` into an update of [`SUBJECT`].
fn updated(
    rights: &Rights,
    updates: &[api::ContainerUpdate],
    evictions: &[api::ContainerEviction],
) -> Result<Updated, MergeError> {
    let [update, ..] = requests();
    merged(update, rights, updates, evictions)
}

const SHARES: Forbidden = Forbidden::Field(NriField::CPUShares);

#[test]
fn a_field_that_a_rule_does_not_permit_is_refused() {
    for field in NriField::ALL {
        let mut others = FieldSet::ALL;
        others.remove(FieldSet::of(field));
        let rights = ruled(SUBJECT, [ruling("others", others), ruling("none", FieldSet::NONE)]);
        let refused =
            Err(MergeError::AgainstRule(note(SUBJECT, Forbidden::Field(field), "others")));
        assert_eq!(rights.permit_in("10-foo", SUBJECT, field), refused);
        assert_eq!(rights.permit_in("10-foo", "c1", field), Ok(BTreeSet::new()));
        let only = ruled(SUBJECT, [ruling("only", FieldSet::of(field))]);
        assert_eq!(only.permit_in("10-foo", SUBJECT, field), Ok(BTreeSet::new()));
    }
}

#[test]
fn allow_and_deny_are_checked_before_rules() {
    let deny = BTreeSet::from([NriField::CPUShares]);
    let rights = Rights { deny, ..ruled(SUBJECT, [ruling("none", FieldSet::NONE)]) };
    let refused = rights.permit_in("10-foo", SUBJECT, NriField::CPUShares);
    assert!(matches!(refused, Err(MergeError::NotAllowed { .. })), "{refused:?}");
    let refused = rights.permit_in("10-foo", SUBJECT, NriField::CPUQuota);
    assert!(matches!(refused, Err(MergeError::AgainstRule(_))), "{refused:?}");
}

#[test]
fn audit_rules_note_what_they_would_refuse() {
    let only = FieldSet::of(NriField::CPUShares);
    let rules = [audit("a", FieldSet::NONE), audit("b", only), audit("c", FieldSet::NONE)];
    let rights = ruled(SUBJECT, rules);
    let noted = ["a", "c"].map(|rule| note(SUBJECT, SHARES, rule));
    let permitted = rights.permit_in("10-foo", SUBJECT, NriField::CPUShares);
    assert_eq!(permitted, Ok(noted.clone().into()));
    let creation = creation().answer("10-foo", &rights, answered(of_resources(shares(1))));
    let merged = creation.unwrap().finish();
    assert_eq!(merged.noted, noted);
    assert_eq!(merged.adjust, of_resources(shares(1)));
    let enforced = ruled(SUBJECT, [audit("a", FieldSet::NONE), ruling("b", FieldSet::NONE)]);
    let refused = Err(MergeError::AgainstRule(note(SUBJECT, SHARES, "b")));
    assert_eq!(enforced.permit_in("10-foo", SUBJECT, NriField::CPUShares), refused);
}

#[test]
fn a_hiding_rule_is_found_only_if_the_container_is_hidden() {
    let rights = hidden("c1");
    assert_eq!(rights.hidden_by("c1").map(|ruling| ruling.rule.as_str()), Some("hide"));
    assert_eq!(rights.hidden_by("c2"), None);
    let mut visible = rights;
    visible.ruled.values_mut().for_each(|decision| decision.is_hidden = false);
    assert_eq!(visible.hidden_by("c1"), None, "as in audit mode");
    let refusing =
        RuleDecision { is_hidden: true, rulings: vec![Arc::new(ruling("none", FieldSet::NONE))] };
    assert_eq!(refusing.hidden_by(), None);
}

#[test]
fn a_note_names_the_field_the_container_and_the_rule() {
    for (what, field, line) in [
        (
            SHARES,
            "CPUShares",
            r#"plugin "10-foo" may not set CPUShares of container c1 (rule "r")"#,
        ),
        (
            Forbidden::Eviction,
            "Eviction",
            r#"plugin "10-foo" may not evict container c1 (rule "r")"#,
        ),
        (Forbidden::Knowledge, "*", r#"plugin "10-foo" may not know of container c1 (rule "r")"#),
    ] {
        let note = note("c1", what, "r");
        assert_eq!(note.field(), field);
        assert_eq!(MergeError::AgainstRule(note).to_string(), line);
    }
}

#[test]
fn a_forbidden_update_of_another_container_is_dropped() {
    let rights = ruled("c1", [ruling("r", FieldSet::of(NriField::CPUQuota))]);
    let mut both = quota(5);
    both.cpu.mut_or_insert_default().shares = uint64(1);
    for request in requests() {
        for ignore_failure in [true, false] {
            let forbidden = api::ContainerUpdate { ignore_failure, ..update("c1", both.clone()) };
            let asked = [forbidden, update("c2", shares(2))];
            let merged = merged(request.clone(), &rights, &asked, &[]).unwrap();
            assert_eq!(merged.dropped, [dropped(note("c1", SHARES, "r"), false, ignore_failure)]);
            assert_eq!(merged.updates, [update("c2", shares(2))]);
            assert!(merged.owners.to_flat("c1").is_empty());
        }
    }
    let merged = updated(&rights, &[update("c1", quota(5))], &[]).unwrap();
    assert_eq!((merged.dropped.len(), merged.updates), (0, vec![update("c1", quota(5))]));
}

#[test]
fn a_forbidden_update_of_the_updated_container_fails() {
    let rights = ruled(SUBJECT, [ruling("r", FieldSet::NONE)]);
    let error = updated(&rights, &[update(SUBJECT, shares(1))], &[]).unwrap_err();
    assert_eq!(error, MergeError::AgainstRule(note(SUBJECT, SHARES, "r")));
    let optional = api::ContainerUpdate { ignore_failure: true, ..update(SUBJECT, shares(1)) };
    assert_eq!(updated(&rights, &[optional], &[]).unwrap_err(), error);
}

#[test]
fn a_dropped_update_leaves_the_device_rules_of_other_plugins() {
    let rule = || api::LinuxDeviceCgroup { allow: true, ..Default::default() };
    let other = || api::LinuxDeviceCgroup { type_: "c".to_owned(), ..rule() };
    let of = |devices| api::LinuxResources { devices, ..Default::default() };
    let mut updates = Updates::for_stop();
    updates.answer("00-bar", &Rights::default(), &[update("c1", of(vec![rule()]))], &[]).unwrap();
    let unified = map(&[("k", "v")]);
    let forbidden = api::LinuxResources { unified, ..of(vec![rule(), other()]) };
    let rights = ruled("c1", [ruling("r", FieldSet::of(NriField::Devices))]);
    updates.answer("10-foo", &rights, &[update("c1", forbidden)], &[]).unwrap();
    let owners = updates.owners().to_flat("c1").into_iter().collect::<Vec<_>>();
    let name = "DeviceRules[allow a *:*]".to_owned();
    assert_eq!(owners, [(name.clone(), "00-bar".to_owned())]);
    updates.answer("10-foo", &rights, &[update("c1", of(vec![rule()]))], &[]).unwrap();
    assert_eq!(updates.owners().to_flat("c1")[&name], "00-bar,10-foo");
}

#[test]
fn requests_about_a_hidden_container_are_dropped() {
    let rights = hidden("c1");
    let known = note("c1", Forbidden::Knowledge, "hide");
    let optional =
        api::ContainerUpdate { ignore_failure: true, ..update("c1", api::LinuxResources::new()) };
    let (updates, evictions) = ([optional], [eviction("c1"), eviction("c2")]);
    let wanted = [dropped(known.clone(), false, true), dropped(known, true, false)];
    for request in requests() {
        let merged = merged(request, &rights, &updates, &evictions).unwrap();
        assert_eq!(merged.dropped, wanted);
        assert_eq!(merged.updates, []);
        assert_eq!(merged.evictions, [eviction("c2")]);
        assert_eq!(merged.noted, []);
    }
}

#[test]
fn an_update_of_the_updated_container_is_not_dropped_as_hidden() {
    let mut rights = hidden(SUBJECT);
    for decision in rights.ruled.values_mut() {
        let permissive = |ruling: &Arc<Ruling>| {
            Arc::new(Ruling { permits: FieldSet::ALL, ..Ruling::clone(ruling) })
        };
        decision.rulings = decision.rulings.iter().map(permissive).collect();
    }
    let merged = updated(&rights, &[update(SUBJECT, shares(3))], &[]).unwrap();
    assert_eq!((merged.updates.len(), merged.dropped), (1, vec![]));
}

#[test]
fn a_forbidden_eviction_is_dropped_and_an_audited_one_noted() {
    let mut fields = FieldSet::ALL;
    fields.remove(FieldSet::EVICTION);
    let merged =
        updated(&ruled("c1", [ruling("r", fields)]), &[], &[eviction("c1"), eviction("c2")]);
    let merged = merged.unwrap();
    let forbidden = note("c1", Forbidden::Eviction, "r");
    assert_eq!(merged.dropped, [dropped(forbidden.clone(), true, false)]);
    assert_eq!(merged.evictions, [eviction("c2")]);
    assert!(!merged.evicted_by.contains_key("c1"));
    let merged = updated(&ruled("c1", [audit("r", fields)]), &[], &[eviction("c1")]).unwrap();
    assert_eq!((merged.noted, merged.evictions), (vec![forbidden], vec![eviction("c1")]));
    let only = ruled("c1", [ruling("r", FieldSet::EVICTION)]);
    let merged = updated(&only, &[], &[eviction("c1")]).unwrap();
    assert_eq!((merged.dropped, merged.evictions), (vec![], vec![eviction("c1")]));
}

#[test]
fn the_plugins_that_evict_a_container_are_listed_once_each() {
    let mut updates = Updates::for_stop();
    for plugin in ["00-bar", "10-foo", "00-bar"] {
        updates.answer(plugin, &Rights::default(), &[], &[eviction("c1")]).unwrap();
    }
    let updated = updates.finish();
    let by = ["00-bar".to_owned(), "10-foo".to_owned()].to_vec();
    assert_eq!(updated.evicted_by, [("c1".to_owned(), by)].into());
    assert_eq!(updated.evictions, [eviction("c1")]);
}

#[test]
fn a_plugin_that_owns_a_field_that_it_may_not_set_is_found() {
    let denied = |field| Rights { deny: [field].into(), ..Default::default() };
    let devices = vec![api::LinuxDeviceCgroup::default()];
    let rules = of_resources(api::LinuxResources { devices, ..Default::default() });
    let mut creation = creation();
    answer(&mut creation, "00-bar", rules.clone()).unwrap();
    answer(&mut creation, "10-foo", of_env(&[("-A", "")])).unwrap();
    answer(&mut creation, "10-foo", rules).unwrap();
    for (plugin, rights, is_found) in [
        ("10-foo", Rights::default(), false),
        ("10-foo", denied(NriField::Env), true),
        ("10-foo", denied(NriField::Devices), true),
        ("10-foo", ruled(SUBJECT, [ruling("r", FieldSet::NONE)]), true),
        ("10-foo", ruled(SUBJECT, [audit("r", FieldSet::NONE)]), false),
        ("10-foo", denied(NriField::Mounts), false),
        ("00-bar", denied(NriField::Env), false),
        ("00-bar", denied(NriField::Devices), true),
        ("foo", denied(NriField::Devices), false),
    ] {
        assert_eq!(creation.check_owned(plugin, &rights).is_err(), is_found, "{plugin} {rights:?}");
    }
}
