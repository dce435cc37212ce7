// SPDX-License-Identifier: Apache-2.0
//! The exit reason that plugins receive for an exited container, as far as it is known. Plugins that connect
//! later still see the container until its removal.

use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use serde_json::{Value, json};
use test_support::scripted_plugin::json_of;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{life, started, succeeds};

const STOPS: &[&str] = &["StopContainer"];
const ENDS: &[&str] = &["StopContainer", "RemoveContainer"];

/// Exit code, reason and message of each event about an exited container.
type Ends = Arc<Mutex<Vec<Value>>>;

fn listens(events: &'static [&'static str]) -> (Script, Ends) {
    let ends = Ends::default();
    let requests = Arc::clone(&ends);
    let on_request = move |event: &str, request: &dyn MessageDyn| {
        if events.contains(&event) {
            let request = json_of(request);
            let member = |name: &str| request["container"][name].clone();
            requests.lock().unwrap().push(json!([
                member("exitCode"),
                member("statusReason"),
                member("statusMessage")
            ]));
        }
    };
    (Script { on_request: Some(Arc::new(on_request)), ..Script::default() }, ends)
}

fn reported_end(ends: &Ends) -> Value {
    wait_until("the stop is reported", || !ends.lock().unwrap().is_empty());
    ends.lock().unwrap().remove(0)
}

/// On an engine whose shim writes the exit code into the bundle.
#[test]
fn the_exit_code_determines_the_reason() {
    let mut host = TestHost::default();
    host.start_daemon();
    let (script, ends) = listens(STOPS);
    let _plugin = host.plugin("10", "listener", script);
    for (status, wanted) in [
        (0, json!([null, "Completed", null])),
        (3, json!([3, "Error", null])),
        (137, json!([137, "Error", null])),
    ] {
        let bundle = "io.containerd.runtime.v2.task/default/c1";
        std::fs::create_dir_all(host.path(bundle)).unwrap();
        host.write(&format!("{bundle}/config.json"), BUNDLE);
        succeeds(&host.create_from(bundle, "c1"));
        succeeds(&host.verb(&["start", "c1"]));
        let pid: u64 = host.read("pid").trim().parse().unwrap();
        let exit = json!({"Timestamp": "2026-01-02T03:04:05Z", "Pid": pid, "Status": status});
        host.write(&format!("{bundle}/exit.json"), &exit.to_string());
        succeeds(&host.verb(&["kill", "c1", "9"]));
        assert_eq!(reported_end(&ends), wanted);
        succeeds(&host.verb(&["delete", "c1"]));
    }
}

/// A slow monitor writes the code after StopContainer, and CRI-O removes the file as soon as the runtime has
/// deleted the container.
#[test]
fn a_late_exit_code_is_known_at_the_removal() {
    let mut host = TestHost::default();
    let bundle = "io.containerd.runtime.v2.task/default/c1";
    std::fs::create_dir_all(host.path(bundle)).unwrap();
    host.write(&format!("{bundle}/config.json"), BUNDLE);
    let file = host.path(bundle).join("exit.json");
    let runtime = host.path("fake/runc").display().to_string();
    let script = format!(
        "#!/bin/sh\n\"{runtime}\" \"$@\" || exit\ncase \"$*\" in *delete*) rm {} ;; esac\n",
        file.display()
    );
    host.put_program("fake/removing", &script);
    host.configure(&host.path("fake/removing"), "[debug]\nkernel_exits = false\n");
    host.start_daemon();
    let (script, ends) = listens(ENDS);
    let _plugin = host.plugin("10", "listener", script);
    std::fs::create_dir(host.path("cgroup")).unwrap();
    let unknown = json!([null, "Unknown", "its exit code is not known"]);
    for (count, without_code, status, reason) in
        [(0, unknown, 3, "Error"), (1, json!([null, "OOMKilled", null]), 137, "OOMKilled")]
    {
        host.write(&format!("{bundle}/config.json"), BUNDLE);
        succeeds(&host.create_from(bundle, "c1"));
        succeeds(&host.verb(&["start", "c1"]));
        let pid: u64 = host.read("pid").trim().parse().unwrap();
        host.write("cgroup/memory.events", &format!("oom_kill {count}\n"));
        let paths = json!({"": host.path("cgroup")});
        let state = json!({"init_process_pid": pid, "cgroup_paths": paths});
        host.write("root/c1/state.json", &state.to_string());
        succeeds(&host.verb(&["kill", "c1", "9"]));
        assert_eq!(reported_end(&ends), without_code);
        let exit = json!({"Timestamp": "2026-01-02T03:04:05Z", "Pid": pid, "Status": status});
        host.write(&format!("{bundle}/exit.json"), &exit.to_string());
        // systemd also removes this file with the scope.
        std::fs::remove_file(host.path("cgroup/memory.events")).unwrap();
        succeeds(&host.verb(&["delete", "c1"]));
        assert_eq!(reported_end(&ends), json!([status, reason, null]));
        assert!(!file.exists());
    }
}

#[test]
fn a_container_that_ran_out_of_memory_has_that_reason() {
    let mut host = TestHost::default();
    host.start_daemon();
    let (script, ends) = listens(STOPS);
    let _plugin = host.plugin("10", "listener", script);
    // Since Linux 6.15 the kernel itself reports that the process was killed.
    let unknown = json!([null, "Unknown", "its exit code is not known"]);
    for (count, without_code, reason) in
        [(0, unknown, "Error"), (2, json!([null, "OOMKilled", null]), "OOMKilled")]
    {
        succeeds(&host.create("c1"));
        succeeds(&host.verb(&["start", "c1"]));
        std::fs::create_dir_all(host.path("cgroup")).unwrap();
        host.write("cgroup/memory.events", &format!("oom 9\noom_kill {count}\n"));
        let pid: u64 = host.read("pid").trim().parse().unwrap();
        let paths = json!({"": host.path("cgroup")});
        let state = json!({"init_process_pid": pid, "cgroup_paths": paths});
        host.write("root/c1/state.json", &state.to_string());
        succeeds(&host.verb(&["kill", "c1", "9"]));
        let printed = reported_end(&ends);
        assert!(
            printed == without_code || printed == json!([137, reason, null]),
            "{count}: {printed}"
        );
        succeeds(&host.verb(&["delete", "c1"]));
    }
}

#[test]
fn a_failed_creation_has_its_reason() {
    let mut host = TestHost::default();
    host.start_daemon();
    let (script, ends) = listens(STOPS);
    let _first = host.plugin("10", "listener", script);
    host.write("fake/fail", "");
    assert!(!host.create("c1").status.success());
    let runtimes = "the runtime did not create it";
    assert_eq!(reported_end(&ends), json!([128, "CreateContainerError", runtimes]));
    let refuser = Script { refuses: Some("not today"), ..Script::default() };
    let _second = host.plugin("20", "refuser", refuser);
    assert!(!host.create("c1").status.success());
    let printed = reported_end(&ends);
    assert_eq!((&printed[0], &printed[1]), (&Value::Null, &json!("CreateContainerError")));
    assert!(printed[2].as_str().is_some_and(|why| why.contains("not today")), "{printed}");
}

#[test]
fn a_new_plugin_sees_ended_containers_until_their_removal() {
    let mut host = TestHost::default();
    host.start_daemon();
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    let state = || host.admin(&["pods"])[0]["containers"][0]["state"].clone();
    wait_until("it has ended", || state() == "stopped");
    let received = host.plugin("10", "late", Script::default());
    succeeds(&host.verb(&["delete", "c1"]));
    wait_until("the end is reported", || received.lock().unwrap().len() >= 4);
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[6..]].concat();
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn a_container_that_ends_during_its_start_has_all_events() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    succeeds(&host.create("c1"));
    host.write("fake/brief", "");
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["delete", "c1"]));
    wait_until("its removal is reported", || {
        received.lock().unwrap().iter().any(|event| event == "RemovePodSandbox c1")
    });
    assert_eq!(*received.lock().unwrap(), life("c1"));
}
