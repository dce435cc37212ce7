// SPDX-License-Identifier: Apache-2.0
//! The number of entries that one reply may have.

use super::*;
use crate::{MOST_IN_ALL, MOST_IN_ONE, TooMany, check};

/// Returns a reply whose command has this many arguments.
fn of_arguments(count: usize) -> api::CreateContainerResponse {
    answered(api::ContainerAdjustment { args: vec!["a".to_owned(); count], ..Default::default() })
}

/// Returns an update with this many huge page limits.
fn of_page_sizes(count: usize) -> api::ContainerUpdate {
    let hugepage_limits = vec![hugepage("2MB", 1); count];
    let resources = some(api::LinuxResources { hugepage_limits, ..Default::default() });
    let linux = some(api::LinuxContainerUpdate { resources, ..Default::default() });
    api::ContainerUpdate { linux, ..Default::default() }
}

/// Returns a reply with as many updates, each with [`MOST_IN_ONE`] entries, and `more` arguments.
fn of_updates(updates: usize, more: usize) -> api::CreateContainerResponse {
    let update = vec![of_page_sizes(MOST_IN_ONE); updates];
    api::CreateContainerResponse { update, ..of_arguments(more) }
}

fn annotated(count: usize) -> api::CreateContainerResponse {
    let annotations = (0..count).map(|key| (key.to_string(), String::new())).collect();
    answered(api::ContainerAdjustment { annotations, ..Default::default() })
}

fn excess(field: &str, count: usize) -> Result<(), TooMany> {
    Err(TooMany { field: field.to_owned(), count })
}

#[test]
fn the_first_list_or_map_with_too_many_entries_is_named() {
    let above = MOST_IN_ONE + 1;
    let paged = api::CreateContainerResponse {
        update: vec![of_page_sizes(1), of_page_sizes(above)],
        ..Default::default()
    };
    for (response, wanted) in [
        (of_arguments(MOST_IN_ONE), Ok(())),
        (of_arguments(above), excess("adjust.args", above)),
        (annotated(MOST_IN_ONE), Ok(())),
        (annotated(above), excess("adjust.annotations", above)),
        (paged, excess("update.linux.resources.hugepage_limits", above)),
    ] {
        assert_eq!(check(&response), wanted);
    }
}

#[test]
fn lists_inside_the_values_of_a_map_are_counted() {
    let owners = (0..=MOST_IN_ONE).map(|key| (key.to_string(), "10-foo".to_owned())).collect();
    let compound = api::CompoundFieldOwners { owners, ..Default::default() };
    let owned = api::FieldOwners { compound: [(6, compound)].into(), ..Default::default() };
    let owners =
        api::OwningPlugins { owners: [(SUBJECT.to_owned(), owned)].into(), ..Default::default() };
    assert_eq!(check(&owners), excess("owners.compound.owners", MOST_IN_ONE + 1));
}

#[test]
fn the_entries_of_all_lists_together_are_limited() {
    let updates = MOST_IN_ALL / MOST_IN_ONE - 1;
    let rest = MOST_IN_ONE - updates;
    for (response, wanted) in [
        (of_updates(updates, rest), Ok(())),
        (of_updates(updates, rest + 1), excess("", MOST_IN_ALL + 1)),
        (of_updates(updates + 1, 0), excess("", MOST_IN_ALL + updates + 1)),
    ] {
        assert_eq!(check(&response), wanted);
    }
}

#[test]
fn a_reply_with_too_many_entries_is_refused_in_one_line() {
    let above = MOST_IN_ONE + 1;
    for (response, line) in [
        (
            of_arguments(above),
            "10001 entries in adjust.args, more than the 10000 that are accepted",
        ),
        (of_updates(6, 0), "more than 50000 entries in all lists together"),
    ] {
        let error = creation().answer("10-foo", &Rights::default(), response).unwrap_err();
        assert_eq!(error.to_string(), format!("plugin \"10-foo\" answered with {line}"));
    }
}
