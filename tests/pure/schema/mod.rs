// SPDX-License-Identifier: Apache-2.0
//! Properties that hold for every field of the schema, even for fields without a test: messages are
//! made by reflection. Nothing here knows how merging works, only what it must not do: invent a
//! value, change what no plugin owns, own what no plugin changed, or panic.

mod anything;
mod touched;

use std::collections::BTreeSet;

use nri_adaptation::{Creation, Merged, NriField, Rights, Updates};
use nri_runc::plugin::api;
use nri_runc::testing::spec::patch::{HostFacts, PatchError, PatchedSpec, patch_on};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use protobuf::MessageFull;
use serde_json::Value;

use anything::Dice;
use touched::{allowed, changed, leaves, owned, show};

/// Patches for an unknown host.
fn patch(
    document: &[u8],
    adjustment: &api::ContainerAdjustment,
) -> Result<PatchedSpec, PatchError> {
    patch_on(document, adjustment, &HostFacts::default())
}

/// A container for which every plugin gave a response, and the accepted parts.
struct Story {
    original: api::Container,
    accepted: Vec<api::CreateContainerResponse>,
    merged: Merged,
}

fn story(bytes: &[u8]) -> Story {
    let mut dice = Dice::new(bytes);
    let mut original: api::Container = dice.message();
    "c0".clone_into(&mut original.id);
    let mut creation = Creation::new(api::PodSandbox::new(), original);
    let original = creation.container().clone();
    let mut accepted = Vec::new();
    for plugin in ["10-a", "20-b", "30-c", "40-d"] {
        let mut answer: api::CreateContainerResponse = dice.message();
        // When a container is created, most plugins do not update others.
        answer.update.retain(|update| update.container_id != "c0");
        if let Ok(next) = creation.clone().answer(plugin, &Rights::default(), answer.clone()) {
            creation = next;
            accepted.push(answer);
        }
    }
    Story { original, accepted, merged: creation.finish() }
}

/// A bundle with values of every kind; marks are in places that no plugin reaches.
const BUNDLE: &str = r#"{"x\u002d1":1E+2, "ociVersion":"1.2.0",
 "process":{"x\u002d2" : [ ],"args":["sh"],"env":["A=0","C\u003d0"],"cwd":"/","oomScoreAdj":1,
  "rlimits":[{"type":"RLIMIT_CORE","hard":1,"soft":1}],"x\u002d3":-0},
 "mounts":[{"destination":"/d","type":"bind","source":"/x","x\u002d4":0.10},
  {"destination":"/proc","type":"proc"}],
 "hooks":{"x\u002d5":null,"prestart":[{"path":"/h0","x\u002d6":"\/"}]},
 "annotations":{"k":"old","x\u002d7":"\ud83d\ude00"},
 "linux":{"x\u002d8":{"a":1, "a":2},"cgroupsPath":"/old","namespaces":[{"type":"pid"},{"type":"network"}],
  "sysctl":{"net.a":"0","x\u002d9":"1"},"devices":[{"path":"/dev/a","type":"c","major":9,"minor":9}],
  "netDevices":{"eth1":{"name":"old"}},
  "resources":{"x\u002da" :true,"memory":{"limit":9,"x\u002db":1e1},"cpu":{"x\u002dc":[1 ,2],"shares":2},
   "pids":{"limit":9},"unified":{"cpu.weight":"1","x\u002dd":""},
   "hugepageLimits":[{"pageSize":"2MB","limit":9}],"devices":[{"allow":false,"access":"rwm"}]},
  "maskedPaths":["/x\u002de"]},"x\u002df":{}}
"#;

/// The marks, in order, each with the text up to the end of its entry.
const MARKS: [&str; 14] = [
    r#""x\u002d1":1E+2"#,
    r#""x\u002d2" : [ ]"#,
    r#""x\u002d3":-0"#,
    r#""x\u002d5":null"#,
    r#""x\u002d6":"\/""#,
    r#""x\u002d7":"\ud83d\ude00""#,
    r#""x\u002d8":{"a":1, "a":2}"#,
    r#""x\u002d9":"1""#,
    r#""x\u002da" :true"#,
    r#""x\u002db":1e1"#,
    r#""x\u002dc":[1 ,2]"#,
    r#""x\u002dd":"""#,
    r#""/x\u002de""#,
    r#""x\u002df":{}"#,
];

/// The part that [`patch`] alone can apply: the rest needs the host's files.
fn without_names(adjust: &api::ContainerAdjustment) -> api::ContainerAdjustment {
    let mut adjust = adjust.clone();
    adjust.CDI_devices.clear();
    if let Some(resources) = adjust.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
        resources.blockio_class.clear();
        resources.rdt_class.clear();
    }
    adjust
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn merging_never_invents_a_value(bytes in vec(any::<u8>(), 1..600)) {
        let Story { original, accepted, merged } = story(&bytes);
        let wanted: BTreeSet<String> = accepted.iter().flat_map(leaves).collect();
        let reply = api::CreateContainerResponse {
            adjust: Some(merged.adjust).into(),
            update: merged.updates,
            evict: merged.evictions,
            ..Default::default()
        };
        for leaf in leaves(&reply) {
            prop_assert!(wanted.contains(&leaf), "{} was made up of {:?}", leaf, accepted);
        }
        // A container names its values as an adjustment does.
        let mut known: BTreeSet<String> = leaves(&original);
        known.extend(accepted.iter().flat_map(|answer| leaves(&*answer.adjust)));
        for leaf in leaves(&merged.container) {
            prop_assert!(known.contains(&leaf), "{} was made up of {:?}", leaf, accepted);
        }
    }

    #[test]
    fn exactly_the_set_or_removed_fields_are_owned(bytes in vec(any::<u8>(), 1..600)) {
        let Story { merged, .. } = story(&bytes);
        let owners: BTreeSet<String> = merged.owners.to_flat("c0").into_keys().collect();
        prop_assert_eq!(owned(&merged.adjust), owners, "{:?}", merged.adjust);
    }

    #[test]
    fn a_bundle_changes_only_where_a_plugin_owns_it(bytes in vec(any::<u8>(), 1..600)) {
        let Story { merged, .. } = story(&bytes);
        let owners = merged.owners.to_flat("c0");
        let patched = match patch(BUNDLE.as_bytes(), &without_names(&merged.adjust)) {
            Ok(patched) => patched,
            // The error names a plugin that caused it.
            Err(error) => {
                let is_known = error.field().is_none_or(|field| owners.contains_key(field));
                prop_assert!(is_known && !error.to_string().contains('\n'), "{}", error);
                return Ok(());
            }
        };
        for change in &patched.changes {
            prop_assert!(owners.contains_key(&change.nri_field), "{:?} of {:?}", change, owners);
        }
        let Some(after) = patched.bytes else { return Ok(()) };
        let (old, new): (Value, Value) =
            (serde_json::from_str(BUNDLE).unwrap(), serde_json::from_slice(&after).unwrap());
        for place in changed(&old, &new) {
            let is_allowed = owners.keys().flat_map(|owner| allowed(owner)).any(|may| {
                place.starts_with(may)
            });
            prop_assert!(is_allowed, "{} changed, owned are {:?}", place, owners);
        }
        let after = String::from_utf8(after).unwrap();
        let mut rest = after.as_str();
        for mark in MARKS {
            let at = rest.find(mark);
            prop_assert!(at.is_some(), "lost or moved: {}\n{}", mark, after);
            rest = &rest[at.unwrap() + mark.len()..];
        }
    }

    #[test]
    fn an_empty_response_changes_nothing(bytes in vec(any::<u8>(), 1..600)) {
        let mut dice = Dice::new(&bytes);
        let mut creation = Creation::new(api::PodSandbox::new(), dice.message());
        if let Ok(next) = creation.clone().answer("10-a", &Rights::default(), dice.message()) {
            creation = next;
        }
        let before = (creation.request().clone(), creation.owners().clone());
        let empty = api::CreateContainerResponse {
            adjust: Some(api::ContainerAdjustment::new()).into(),
            ..Default::default()
        };
        for answer in [api::CreateContainerResponse::new(), empty] {
            creation = creation.answer("20-b", &Rights::default(), answer).unwrap();
            prop_assert_eq!(&before, &(creation.request().clone(), creation.owners().clone()));
        }
        let adjust = creation.finish().adjust;
        let nothing = Creation::new(api::PodSandbox::new(), dice.message()).finish().adjust;
        prop_assert_eq!(nothing, api::ContainerAdjustment::new());
        if let Ok(once) = patch(BUNDLE.as_bytes(), &without_names(&adjust)) {
            let once = once.bytes.unwrap_or_else(|| BUNDLE.as_bytes().to_vec());
            let again = patch(&once, &api::ContainerAdjustment::new()).unwrap();
            prop_assert!(again.bytes.is_none() && again.changes.is_empty());
        }
    }

    #[test]
    fn no_message_makes_merging_or_applying_panic(bytes in vec(any::<u8>(), 1..600)) {
        let mut dice = Dice::new(&bytes);
        let mut creation = Creation::new(dice.message(), dice.message());
        let mut updates = [Updates::for_update(dice.message()), Updates::for_stop()];
        for plugin in ["10-a", "", "-", "20-b"] {
            if let Ok(next) = creation.clone().answer(plugin, &Rights::default(), dice.message()) {
                creation = next;
            }
            let _asked = (creation.request().clone(), creation.validation_request(vec![dice.message()]));
            for updates in &mut updates {
                let response: api::UpdateContainerResponse = dice.message();
                let before = show(&updates.clone().finish().updates);
                let asked = updates.answer_update(plugin, &Rights::default(), response);
                if asked.is_err() {
                    prop_assert_eq!(before, show(&updates.clone().finish().updates));
                }
            }
        }
        let Merged { adjust, .. } = creation.finish();
        let _perhaps = patch(BUNDLE.as_bytes(), &adjust);
        let _perhaps = patch(b"{}", &adjust);
        let _perhaps = patch(BUNDLE.as_bytes(), &dice.message());
    }
}

/// A property of an empty set always holds, so each field must be set somewhere, and applied often.
#[test]
fn generated_messages_set_every_field_and_many_are_applied() {
    let mut runner = TestRunner::deterministic();
    let (mut seen, mut refused, mut applied) = (BTreeSet::new(), 0, 0);
    for _ in 0..600 {
        let bytes = vec(any::<u8>(), 300..600).new_tree(&mut runner).unwrap().current();
        let Story { accepted, merged, .. } = story(&bytes);
        refused += 4 - accepted.len();
        seen.extend(merged.owners.to_flat("c0").into_keys());
        let patched = patch(BUNDLE.as_bytes(), &without_names(&merged.adjust));
        applied += usize::from(patched.is_ok_and(|patched| patched.bytes.is_some()));
    }
    let is_seen =
        |field: &NriField| seen.iter().any(|owner| owner.split('[').next() == Some(field.name()));
    let missed: Vec<NriField> = NriField::ALL.into_iter().filter(|field| !is_seen(field)).collect();
    assert!(missed.is_empty(), "never set: {missed:?}");
    assert!(refused > 100 && applied > 100, "{refused} answers refused, {applied} applied");
    assert_eq!(api::ContainerAdjustment::descriptor().fields().count(), 8, "a field is new");
}
