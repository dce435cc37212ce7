// SPDX-License-Identifier: Apache-2.0
//! Updates of other containers: in every response that may contain one, for frozen or removed
//! containers, and values that only a runtime can write.

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::{Value, json};

use super::super::{Script, is_done, request, succeeds, update_of, wait_until};
use super::{place, show};

fn answers(runtime: &str) {
    let Some(place) = place(runtime) else { return };
    place.run("other", &json!({"pids": {"limit": 100}}));
    let pids = |n: i64| vec![update_of("other", &json!({"pids": {"limit": n}}))];
    let script = Script {
        wants: pids(101),
        update: pids(102),
        updates: pids(103),
        leaves_room: pids(104),
        ..Script::default()
    };
    let _plugin = place.host.plugin("10", "mover", script);
    let has_limit = |wanted: &str| place.limit_in("other", "pids.max") == wanted;
    wait_until("Synchronize's answer is carried out", || has_limit("101"));
    place.run("c1", &json!({}));
    assert!(has_limit("102"), "before the created container is there");
    succeeds(&place.update("c1", &json!({"pids": {"limit": 50}})));
    assert!(has_limit("103"), "before the runtime has updated");
    assert_eq!(place.limit_in("c1", "pids.max"), "50");
    succeeds(&place.host.verb(&["kill", "c1", "KILL"]));
    wait_until("StopContainer's answer is carried out", || has_limit("104"));
    show(runtime, "answers of Synchronize, Create, Update, Stop", "ok");
    wait_until("it has ended", || place.state("c1").as_deref() == Some("stopped"));
    let asking = place.asker();
    let fine = json!({"pids": {"limit": 60}});
    let all = ["nobody", "c1", "other"].map(|id| update_of(id, &fine)).to_vec();
    let failed = asking.ask(request(all)).unwrap().failed;
    let ids: Vec<&str> = failed.iter().map(|update| update.container_id.as_str()).collect();
    assert_eq!(ids, ["nobody", "c1"]);
    assert!(has_limit("60"));
    show(runtime, "unknown and gone ones fail, each for itself", "ok");
}

fn frozen(runtime: &str) {
    let Some(place) = place(runtime) else { return };
    place.run("c1", &json!({"pids": {"limit": 100}}));
    let asking = place.asker();
    succeeds(&place.host.verb(&["pause", "c1"]));
    assert!(is_done(&asking, "c1", &json!({"pids": {"limit": 33}, "cpu": {"shares": 300}})));
    place.all_say("c1", &[("pids.max", "33"), ("cgroup.freeze", "1")]);
    assert!(!is_done(&asking, "c1", &json!({"cpu": {"cpus": "4000"}})));
    let explained = place.host.admin(&["explain", "c1"]);
    assert!(explained["skipped"].to_string().contains("while it is frozen"), "{explained}");
    succeeds(&place.host.verb(&["resume", "c1"]));
    place.all_say("c1", &[("pids.max", "33"), ("cgroup.freeze", "0")]);
    show(runtime, "a frozen container takes what the kernel takes", "ok");
}

/// Whether the container may open a device without a driver: the error is either that it may not,
/// or that there is none.
fn is_allowed(place: &super::Place) -> bool {
    let output = place.host.verb(&["exec", "c1", "sh", "-c", ": </dev/odd"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it has a driver");
    let is_denied = printed.contains("Operation not permitted");
    assert!(is_denied || printed.contains("No such device"), "{printed}");
    !is_denied
}

/// A host with a container that has the device.
fn with_device(runtime: &str) -> Option<super::Place> {
    let place = place(runtime)?;
    let node = place.host.path("rootfs/dev/odd");
    let mode = Mode::from_bits_truncate(0o666);
    mknod(&node, SFlag::S_IFCHR, mode, makedev(10, 250)).unwrap();
    place.run("c1", &json!({"devices": [{"allow": false, "access": "rwm"}]}));
    assert!(!is_allowed(&place));
    Some(place)
}

fn rule(allow: bool) -> Value {
    json!({"devices": [
        {"allow": allow, "type": "c", "major": 10, "minor": 250, "access": "rw"},
    ]})
}

#[test]
fn device_rules_on_v2_go_through_crun() {
    let Some(place) = with_device("crun") else { return };
    let asking = place.asker();
    assert!(is_done(&asking, "c1", &rule(true)), "{}", place.host.read("daemon.err"));
    assert!(is_allowed(&place));
    show("crun", "a device is allowed", "ok");
    succeeds(&place.update("c1", &json!({"pids": {"limit": 50}})));
    assert!(is_allowed(&place), "after the engine's update");
    show("crun", "a device stays allowed when the engine updates", "ok");
}

#[test]
fn device_rules_on_v2_are_refused_with_runc_which_ignores_them() {
    let Some(place) = with_device("runc") else { return };
    let asking = place.asker();
    assert!(!is_done(&asking, "c1", &rule(true)));
    assert!(!is_allowed(&place));
    show("runc", "a device in an update is refused", "ok");
}

#[test]
fn event_responses_update_other_containers_on_v2_with_runc() {
    answers("runc");
}

#[test]
fn event_responses_update_other_containers_on_v2_with_crun() {
    answers("crun");
}

#[test]
fn a_frozen_container_accepts_kernel_values_on_v2_with_runc() {
    frozen("runc");
}

#[test]
fn a_frozen_container_accepts_kernel_values_on_v2_with_crun() {
    frozen("crun");
}
