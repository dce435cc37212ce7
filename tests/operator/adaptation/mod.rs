// SPDX-License-Identifier: Apache-2.0
//! The folders of `fixtures/adaptation`: each is decided by the pure core and, over real sockets,
//! by `nri-runc nri replay`, with the same verdict; and every field has its cases.
//! `UPDATE_GOLDEN=1` writes the verdicts; review the diff.
#![expect(clippy::panic, reason = "a test fails by panicking")]

mod case;
mod live;

use std::collections::BTreeSet;

use nri_adaptation::NriField;
use serde_json::Value;

use case::{Case, all};

/// The beginnings of folder names besides the fields: device rules have no field in NRI.
const OTHERS: [&str; 4] = ["DeviceRules", "Create", "Update", "Stop"];
/// Fields that can be removed from the container or from another plugin's changes.
const REMOVABLE: [NriField; 11] = [
    NriField::Annotations,
    NriField::Mounts,
    NriField::Devices,
    NriField::Env,
    NriField::Args,
    NriField::Namespace,
    NriField::Sysctl,
    NriField::LinuxNetDevices,
    NriField::RdtClosID,
    NriField::RdtSchemata,
    NriField::RdtEnableMonitoring,
];

/// Compares all cases; prints the different ones.
fn compare(cases: &[Case], mut play: impl FnMut(&Case) -> Value) {
    let mut wrong = Vec::new();
    for case in cases {
        let (wanted, got) = (case.verdict(), play(case));
        if wanted != got {
            wrong.push(format!(
                "{} ({})\n  wanted {wanted}\n  got    {got}",
                case.name, case.asked.claim
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn the_pure_core_decides_every_case_as_its_folder_expects() {
    compare(&all(), Case::decide);
}

#[test]
fn plugins_on_sockets_get_the_same_results_as_in_the_pure_core() {
    let cases = all();
    let mut live = live::Live::start(&cases);
    compare(&cases, |case| live.play(case));
}

/// Returns the subject and the kind of a folder: `Env-removal-of-anothers` is a `removal` of `Env`.
fn parts(case: &Case) -> (&str, &str) {
    let mut parts = case.name.split('-');
    (parts.next().unwrap(), parts.next().unwrap_or_default())
}

#[test]
fn every_field_has_a_case_for_success_conflict_and_removal() {
    let cases = all();
    let there: BTreeSet<(&str, &str)> = cases.iter().map(parts).collect();
    let mut missing = Vec::new();
    for field in NriField::ALL {
        let mut kinds = vec!["set", "odd"];
        // Hooks of several plugins are added up, so they never conflict.
        kinds.extend((field != NriField::OciHooks).then_some("conflict"));
        kinds.extend(REMOVABLE.contains(&field).then_some("removal"));
        kinds.retain(|kind| !there.contains(&(field.name(), kind)));
        missing.extend(kinds.into_iter().map(|kind| format!("{field}-{kind}")));
    }
    assert!(missing.is_empty(), "there is no {}", missing.join(", "));
}

/// A folder named `conflict` that shows a success would hide a missing case.
#[test]
fn every_case_matches_its_name() {
    for case in all() {
        let (subject, kind) = parts(&case);
        let verdict = case.verdict();
        assert!(!case.asked.claim.is_empty(), "{} claims nothing", case.name);
        let Some(field) = NriField::from_name(subject) else {
            assert!(OTHERS.contains(&subject), "{} is about nothing we know", case.name);
            continue;
        };
        let mine = |owner: &String| owner.split('[').next() == Some(field.name());
        let owners = verdict["owners"].as_object();
        let owner = owners.and_then(|owners| owners.iter().find(|(key, _)| mine(key)));
        match kind {
            "set" => {
                let by = owner.and_then(|(_, by)| by.as_str()).unwrap_or("-");
                assert!(!by.starts_with('-'), "{}: {verdict}", case.name);
            }
            "removal" => assert!(owner.is_some() && takes_away(&case), "{}", case.name),
            "conflict" => {
                let error = verdict["error"].as_str().unwrap_or_default();
                assert!(error.contains(&format!("tried to set {field} ")), "{}", case.name);
                assert_eq!(verdict["cause"], "conflict", "{}", case.name);
            }
            "odd" => assert!(verdict.get("reply").is_some() || verdict.get("error").is_some()),
            _ => panic!("{} is of no kind", case.name),
        }
    }
}

/// Whether a plugin requests a removal.
fn takes_away(case: &Case) -> bool {
    case.answers.iter().any(|(_, answer)| {
        let text = answer.to_string();
        ["\"-", "\"remove\":true", "\"args\":[\"\""].iter().any(|marker| text.contains(marker))
    })
}
