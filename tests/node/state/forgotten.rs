// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri forget`: an operator drops a record that no engine has.

use serde_json::json;
use test_support::{Script, wait_until};

use super::{run, started, state, succeeds};

/// Ends the process of a container without the runtime, whose state stays.
fn end(host: &test_support::TestHost, id: &str) {
    let pid: i32 = host.read(&format!("root/{id}/pid")).trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    wait_until("it has ended", || state(host, id) == "stopped");
}

fn refused(host: &test_support::TestHost, words: &[&str]) -> String {
    let output = host.call(&[&["nri", "forget"][..], words].concat());
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), printed.lines().count()), (Some(1), 1), "{printed}");
    printed
}

#[test]
fn a_container_that_runs_is_not_forgotten_even_by_force() {
    let host = started("");
    run(&host, "c1");
    for words in [&["c1"][..], &["c1", "--force"]] {
        let printed = refused(&host, words);
        assert!(printed.contains("c1 is still running as process "), "{printed}");
    }
    std::fs::remove_dir_all(host.path("root/c1")).unwrap();
    assert!(refused(&host, &["c1", "--force"]).contains("still running"));
    assert_eq!(state(&host, "c1"), "running");
}

#[test]
fn a_container_known_to_the_runtime_is_forgotten_only_by_force() {
    let host = started("");
    let received = host.plugin("10", "witness", Script::default());
    run(&host, "c1");
    end(&host, "c1");
    let printed = refused(&host, &["c1"]);
    assert!(
        printed.contains("the runtime still has c1, in ") && printed.contains("--force"),
        "{printed}"
    );
    let document = host.admin(&["forget", "c", "--force"]);
    assert_eq!(document["containers"][0]["id"], "c1", "{document}");
    assert!(document["warning"].as_str().unwrap().contains("plugins receive no further events"));
    assert_eq!(host.admin(&["pods"]), json!([]));
    let received = received.lock().unwrap().clone();
    let wanted = ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"]
        .map(|e| format!("{e} c1"));
    assert_eq!(received[received.len() - 4..], wanted);
    assert_eq!(received.len(), 5 + 4, "{received:?}");
}

#[test]
fn a_record_without_its_state_is_removed_with_a_log_line() {
    let host = started("");
    run(&host, "c1");
    end(&host, "c1");
    std::fs::remove_dir_all(host.path("root/c1")).unwrap();
    let output = host.call(&["nri", "forget", "c1"]);
    succeeds(&output);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("forgot container c1\n") && printed.contains("warning: "),
        "{printed}"
    );
    assert_eq!(host.admin(&["pods"]), json!([]));
    assert_eq!(std::fs::read_dir(host.path("run/state/containers")).unwrap().count(), 0);
}

#[test]
fn an_unknown_or_ambiguous_id_is_refused() {
    let host = started("");
    run(&host, "c1");
    run(&host, "c2");
    assert!(refused(&host, &["x"]).contains("no container or pod has the ID x"));
    assert!(refused(&host, &["c", "--force"]).contains("c matches "));
    let host = test_support::TestHost::new("autostart = false");
    assert!(refused(&host, &["c1"]).contains("the daemon is not running"));
}
