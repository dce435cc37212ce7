// SPDX-License-Identifier: Apache-2.0
//! Containers that their engine dropped without a call of the runtime are removed as soon as none of
//! their files exists.

use serde_json::json;
use test_support::{Script, TestHost, wait_until};

use super::{run, state, succeeds};

/// A host whose daemon checks often.
fn host() -> TestHost {
    let mut host = TestHost::new("[debug]\nlook_every = \"100ms\"\n");
    host.start_daemon();
    host
}

fn end(host: &TestHost, id: &str) {
    let pid: i32 = host.read(&format!("root/{id}/pid")).trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    wait_until("it has ended", || state(host, id) == "stopped");
}

fn lose(host: &TestHost, folders: &[&str]) {
    folders.iter().for_each(|folder| std::fs::remove_dir_all(host.path(folder)).unwrap());
}

#[test]
fn a_vanished_containers_remaining_events_are_sent_once() {
    let host = host();
    let received = host.plugin("10", "witness", Script::default());
    run(&host, "c1");
    run(&host, "c2");
    end(&host, "c1");
    lose(&host, &["c1", "root/c1"]);
    wait_until("it is removed", || state(&host, "c1").is_empty());
    wait_until("its pod too", || host.admin(&["pods"]).as_array().unwrap().len() == 1);
    assert_eq!(state(&host, "c2"), "running");
    let received = received.lock().unwrap().clone();
    let ends: Vec<&String> = received.iter().filter(|line| line.ends_with(" c1")).skip(5).collect();
    let rest = ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"];
    assert_eq!(ends, rest.map(|event| format!("{event} c1")).each_ref());
    // The ID of the removed container can be used again.
    run(&host, "c1");
    assert_eq!(state(&host, "c1"), "running");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}

#[test]
fn records_with_a_process_or_a_file_stay() {
    let host = host();
    for id in ["lives", "bundle", "state"] {
        run(&host, id);
    }
    lose(&host, &["lives", "root/lives"]);
    for id in ["bundle", "state"] {
        end(&host, id);
    }
    lose(&host, &["root/bundle", "state"]);
    run(&host, "gone");
    end(&host, "gone");
    lose(&host, &["gone", "root/gone"]);
    // By then the others were checked as often.
    wait_until("one is removed", || state(&host, "gone").is_empty());
    let states = ["lives", "bundle", "state"].map(|id| state(&host, id));
    assert_eq!(states, ["running", "stopped", "stopped"]);
    assert_ne!(host.admin(&["pods"]), json!([]));
}
