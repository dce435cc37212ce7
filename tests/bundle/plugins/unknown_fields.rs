// SPDX-License-Identifier: Apache-2.0
//! Fields of a newer NRI that plugins set and this version does not know: the log and `explain`
//! name each, in every kind of response or request.

use nri_runc::plugin::api;
use serde_json::Value;
use test_support::{Script, TestHost, wait_until};

use crate::{started, succeeds};

/// A field number that no message of NRI v0.12 has.
const UNKNOWN: u32 = 99;

/// An update that sets only an unknown field.
fn odd_update(id: &str) -> api::ContainerUpdate {
    let mut update =
        api::ContainerUpdate { container_id: id.to_owned(), ..api::ContainerUpdate::default() };
    update.special_fields.mut_unknown_fields().add_varint(UNKNOWN, 1);
    update
}

fn is_explained(host: &TestHost, plugin: &str, field: &str) -> bool {
    let explained = host.admin(&["explain", "c1"]);
    let reason = format!("{field} is not known to this version and was not applied");
    let skipped = explained["skipped"].as_array().unwrap();
    skipped.iter().filter(|row| row["plugin"] == plugin && row["reason"] == reason.as_str()).count()
        == 1
}

fn times_logged(host: &TestHost, plugin: &str, field: &str) -> usize {
    host.logged(&[&format!("{plugin} set {field}, which this version does not know")])
}

#[test]
fn an_unknown_field_of_a_stop_answer_is_logged_and_explained() {
    let host = started("");
    let script = Script { leaves_room: vec![odd_update("c1")], ..Script::default() };
    let _events = host.plugin("10", "newer", script);
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    let field = "StopContainerResponse.update field 99";
    wait_until("explain names the field", || is_explained(&host, "10-newer", field));
    assert_eq!(times_logged(&host, "10-newer", field), 1);
}

#[test]
fn an_unknown_field_of_a_synchronize_response_is_explained() {
    let host = started("");
    succeeds(&host.create("c1"));
    let script = Script { wants: vec![odd_update("c1"), odd_update("c1")], ..Script::default() };
    let _events = host.plugin("10", "newer", script);
    let field = "SynchronizeResponse.update field 99";
    wait_until("explain names the field", || is_explained(&host, "10-newer", field));
    assert_eq!(times_logged(&host, "10-newer", field), 1);
}

#[test]
fn unknown_fields_of_a_requested_update_are_logged_and_shown() {
    let host = started("");
    let mut request =
        api::UpdateContainersRequest { update: vec![odd_update("c1")], ..Default::default() };
    request.special_fields.mut_unknown_fields().add_varint(UNKNOWN, 1);
    let at = Some("PostStartContainer".to_owned());
    let events =
        host.plugin("10", "newer", Script { inside: Some(request), at, ..Script::default() });
    for id in ["c1", "c2"] {
        succeeds(&host.create(id));
        succeeds(&host.verb(&["start", id]));
    }
    let field = "UpdateContainersRequest.update field 99";
    wait_until("explain names the field", || is_explained(&host, "10-newer", field));
    let whole = "UpdateContainersRequest field 99";
    wait_until("both requests were answered", || {
        events.lock().unwrap().iter().filter(|event| event.starts_with("inside")).count() == 2
    });
    assert_eq!(times_logged(&host, "10-newer", field), 1, "once, though it came twice");
    assert_eq!(times_logged(&host, "10-newer", whole), 1);
    let status = host.admin(&["status"]);
    let is_listed = |row: &Value| {
        row["plugin"] == "10-newer" && row["what"].as_str().is_some_and(|what| what.contains(whole))
    };
    assert!(status["failures"].as_array().unwrap().iter().any(is_listed), "{status}");
}
