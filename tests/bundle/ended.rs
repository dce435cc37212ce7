// SPDX-License-Identifier: Apache-2.0
//! What plugins are told of a container that has ended: why, as far as anybody knows; and those
//! that come later see it until it is removed.

use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use serde_json::{Value, json};

use super::player::Manner;
use super::rig::{BUNDLE, Rig, wait_until};
use super::{life, started, succeeds};

/// State, exit code, reason and message of each StopContainer.
type Ends = Arc<Mutex<Vec<Value>>>;

fn listens() -> (Manner, Ends) {
    let ends = Ends::default();
    let heard = Arc::clone(&ends);
    let hears = move |event: &str, request: &dyn MessageDyn| {
        if event == "StopContainer" {
            let text = protobuf_json_mapping::print_to_string(request).unwrap();
            let request: Value = serde_json::from_str(&text).unwrap();
            let member = |name: &str| request["container"][name].clone();
            heard.lock().unwrap().push(json!([
                member("exitCode"),
                member("statusReason"),
                member("statusMessage")
            ]));
        }
    };
    (Manner { hears: Some(Arc::new(hears)), ..Manner::default() }, ends)
}

fn told(ends: &Ends) -> Value {
    wait_until("the stop is told", || !ends.lock().unwrap().is_empty());
    ends.lock().unwrap().remove(0)
}

/// A container whose engine writes exit codes: the shim's file lies in the bundle.
#[test]
fn an_exit_code_makes_the_reason() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    let (manner, ends) = listens();
    let _plugin = rig.plugin("10", "listener", manner);
    for (status, wanted) in [
        (0, json!([null, "Completed", null])),
        (3, json!([3, "Error", null])),
        (137, json!([137, "Error", null])),
    ] {
        let bundle = "io.containerd.runtime.v2.task/default/c1";
        std::fs::create_dir_all(rig.path(bundle)).unwrap();
        rig.write(&format!("{bundle}/config.json"), BUNDLE);
        succeeds(&rig.create_from(bundle, "c1"));
        succeeds(&rig.verb(&["start", "c1"]));
        let pid: u64 = rig.read("pid").trim().parse().unwrap();
        let exit = json!({"Timestamp": "2026-01-02T03:04:05Z", "Pid": pid, "Status": status});
        rig.write(&format!("{bundle}/exit.json"), &exit.to_string());
        succeeds(&rig.verb(&["kill", "c1", "9"]));
        assert_eq!(told(&ends), wanted);
        succeeds(&rig.verb(&["delete", "c1"]));
    }
}

#[test]
fn a_container_whose_memory_was_used_up_says_so_and_others_do_not() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    let (manner, ends) = listens();
    let _plugin = rig.plugin("10", "listener", manner);
    // Kernels from 6.15 on say themselves that it was killed.
    for (count, unsaid, reason) in [(0, Value::Null, "Error"), (2, json!("OOMKilled"), "OOMKilled")]
    {
        succeeds(&rig.create("c1"));
        succeeds(&rig.verb(&["start", "c1"]));
        std::fs::create_dir_all(rig.path("cgroup")).unwrap();
        rig.write("cgroup/memory.events", &format!("oom 9\noom_kill {count}\n"));
        let pid: u64 = rig.read("pid").trim().parse().unwrap();
        let paths = json!({"": rig.path("cgroup")});
        let state = json!({"init_process_pid": pid, "cgroup_paths": paths});
        rig.write("root/c1/state.json", &state.to_string());
        succeeds(&rig.verb(&["kill", "c1", "9"]));
        let said = told(&ends);
        assert!(
            said == json!([null, unsaid, null]) || said == json!([137, reason, null]),
            "{count}: {said}"
        );
        succeeds(&rig.verb(&["delete", "c1"]));
    }
}

#[test]
fn a_creation_that_failed_says_why() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    let (manner, ends) = listens();
    let _first = rig.plugin("10", "listener", manner);
    rig.write("fake/fail", "");
    assert!(!rig.create("c1").status.success());
    let runtimes = "the runtime did not create it";
    assert_eq!(told(&ends), json!([null, "CreateContainerError", runtimes]));
    let refuser = Manner { refuses: Some("not today"), ..Manner::default() };
    let _second = rig.plugin("20", "refuser", refuser);
    assert!(!rig.create("c1").status.success());
    let said = told(&ends);
    assert_eq!(said[1], "CreateContainerError");
    assert!(said[2].as_str().is_some_and(|why| why.contains("not today")), "{said}");
}

#[test]
fn a_newcomer_sees_what_has_ended_and_hears_only_of_its_removal() {
    let mut rig = Rig::new("");
    rig.start_daemon();
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    let state = || rig.admin(&["pods"])[0]["containers"][0]["state"].clone();
    wait_until("it has ended", || state() == "stopped");
    let told = rig.plugin("10", "late", Manner::default());
    succeeds(&rig.verb(&["delete", "c1"]));
    wait_until("the end is told", || told.lock().unwrap().len() >= 4);
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[6..]].concat();
    assert_eq!(*told.lock().unwrap(), wanted);
}

#[test]
fn a_container_that_ends_before_its_start_returns_is_told_whole() {
    let rig = started("");
    let told = rig.plugin("10", "witness", Manner::default());
    succeeds(&rig.create("c1"));
    rig.write("fake/brief", "");
    succeeds(&rig.verb(&["start", "c1"]));
    succeeds(&rig.verb(&["delete", "c1"]));
    wait_until("its removal is told", || {
        told.lock().unwrap().iter().any(|event| event == "RemovePodSandbox c1")
    });
    assert_eq!(*told.lock().unwrap(), life("c1"));
}
