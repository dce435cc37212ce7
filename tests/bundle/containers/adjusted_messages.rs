// SPDX-License-Identifier: Apache-2.0
//! Messages show an adjusted container as in its document: in events, in Synchronize, and after
//! updates. If the adjustment failed, they show the engine's own container.

use std::sync::{Arc, Mutex};

use nri_plugin::{Adjustment, Device, Resources};
use protobuf::MessageDyn;
use serde_json::{Value, json};
use test_support::scripted_plugin::json_of;
use test_support::{Script, TestHost, started, succeeds, wait_until};

use crate::updates::{settled, update};

/// Received events with their containers, without the members that depend on the container's state.
type ReceivedRequests = Arc<Mutex<Vec<(String, Value)>>>;

fn listens() -> (Script, ReceivedRequests) {
    let received = ReceivedRequests::default();
    let notes = Arc::clone(&received);
    let on_request = move |event: &str, request: &dyn MessageDyn| {
        let request = json_of(request);
        let one = request.get("container").or_else(|| request["containers"].get(0));
        let Some(Value::Object(mut container)) = one.cloned() else { return };
        for member in ["state", "pid", "createdAt"] {
            container.remove(member);
        }
        notes.lock().unwrap().push((event.to_owned(), Value::Object(container)));
    };
    (Script { on_request: Some(Arc::new(on_request)), ..Script::default() }, received)
}

/// Waits for an event and returns its container.
fn of(received: &ReceivedRequests, event: &str) -> Value {
    let find = || {
        let received = received.lock().unwrap();
        received.iter().find(|(known, _)| known == event).map(|(_, container)| container.clone())
    };
    wait_until(&format!("{event} is received"), || find().is_some());
    find().unwrap()
}

/// Sets 32 MiB of memory, 512 shares and a device; the document then has further values for each of
/// them.
fn adjusting() -> Adjustment {
    Adjustment::new()
        .env("A", "2")
        .device(Device::character("/dev/null2", 1, 3))
        .resources(Resources::new().cpu_shares(512).memory_limit(32 << 20))
        .oom_score_adj(950)
}

fn resources(container: &Value) -> &Value {
    &container["linux"]["resources"]
}

/// A host with an adjusted container, and the events that a later plugin of the chain received.
fn adjusted() -> (TestHost, ReceivedRequests) {
    let host = started("");
    let _adjusting = host.plugin("10", "adjusting", adjusting());
    let (script, received) = listens();
    let _behind = host.plugin("20", "behind", script);
    succeeds(&host.create("c1"));
    settled(&host);
    (host, received)
}

#[test]
fn plugins_receive_the_document_that_the_runtime_gets() {
    let (host, received) = adjusted();
    let written: Value = serde_json::from_str(&host.read("fake/seen.json")).unwrap();
    let created = of(&received, "PostCreateContainer");
    assert_eq!(created["env"], written["process"]["env"]);
    assert_eq!(created["env"], json!(["PATH=/bin", "A=2"]), "the plugin's view had another order");
    let memory = &resources(&created)["memory"];
    assert_eq!(memory["swap"], memory["limit"], "{memory}");
    let rules = &resources(&created)["devices"];
    assert_eq!((&rules[0]["major"]["value"], &rules[0]["access"]), (&json!("1"), &json!("rwm")));
    let (script, later) = listens();
    let _newcomer = host.plugin("30", "newcomer", script);
    assert_eq!(of(&later, "Synchronize"), created);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    let mut removed = of(&received, "RemoveContainer");
    for member in ["finishedAt", "exitCode", "statusReason", "statusMessage"] {
        removed.as_object_mut().unwrap().remove(member);
    }
    assert_eq!(removed, created);
}

#[test]
fn an_update_changes_only_its_fields_and_no_device_rule() {
    let (host, received) = adjusted();
    let created = of(&received, "PostCreateContainer");
    succeeds(&update(&host, &json!({"memory": {"limit": 50_000_000}})));
    let updated = of(&received, "PostUpdateContainer");
    assert_eq!(resources(&updated)["memory"]["limit"]["value"], "50000000");
    assert_eq!(resources(&updated)["cpu"], resources(&created)["cpu"]);
    assert!(resources(&created)["devices"].is_array(), "{created}");
    assert_eq!(resources(&updated)["devices"], resources(&created)["devices"]);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn stopcontainer_has_the_engines_values_if_a_plugin_refused() {
    let host = started("");
    let _adjusting = host.plugin("10", "adjusting", adjusting());
    let (script, received) = listens();
    let _behind = host.plugin("20", "behind", script);
    let refuser = Script { refuses: Some("not today"), ..Script::default() };
    let _refuser = host.plugin("30", "refuser", refuser);
    assert!(!host.create("c1").status.success());
    assert_eq!(of(&received, "CreateContainer")["env"], json!(["PATH=/bin", "A=2"]));
    let stopped = of(&received, "StopContainer");
    assert_eq!(stopped["env"], json!(["PATH=/bin", "A=1"]));
    assert_eq!(resources(&stopped)["memory"], json!({"limit": {"value": "1000000"}}));
    assert_eq!((&stopped["finishedAt"], &stopped["exitCode"]), (&Value::Null, &Value::Null));
}

#[test]
fn stopcontainer_has_plugin_values_if_the_runtime_refused() {
    let host = started("");
    let _adjusting = host.plugin("10", "adjusting", adjusting());
    let (script, received) = listens();
    let _behind = host.plugin("20", "behind", script);
    host.write("fake/fail", "");
    assert!(!host.create("c1").status.success());
    for event in ["StopContainer", "RemoveContainer"] {
        let container = of(&received, event);
        assert_eq!(container["env"], json!(["PATH=/bin", "A=2"]), "{event}");
        assert!(resources(&container)["devices"].is_array(), "{event}: {container}");
        assert_eq!(container["exitCode"], 128, "{event}");
        assert!(container["finishedAt"].is_string(), "{event}: {container}");
    }
}
