// SPDX-License-Identifier: Apache-2.0
//! A daemon that is stopped answers the requests that it has begun; the next daemon answers later
//! ones.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nri_runc::plugin::Event;
use test_support::responding_plugin::{RespondingPlugin, Response, SharedPlugin};
use test_support::{BUNDLE, TestHost, wait_until};

use crate::plugins::policies::connected;
use crate::{started, succeeds};

const REQUIRED: &str = "[plugin.policy]\nrequired = true\n";

/// A plugin that is being asked about `c1`, and answers when the test permits it.
fn asked(host: &TestHost, verb: &str) -> (SharedPlugin, std::process::Child) {
    let waits = RespondingPlugin::at(Event::CreateContainer, Response::WaitAndSet("KEY"));
    let policy = connected(host, "10-policy", waits);
    let wrapper = host.spawn(&[verb, "--bundle", "BUNDLE", "c1"]);
    wait_until("the plugin is asked", || {
        policy.received().contains(&"CreateContainer c1".to_owned())
    });
    (policy, wrapper)
}

fn send_signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

#[test]
fn a_stopping_daemon_answers_requests_in_progress() {
    let host = started(REQUIRED);
    let (policy, mut wrapper) = asked(&host, "create");
    let pid = host.daemon_pid();
    send_signal(pid, Signal::SIGTERM);
    host.logs(&["stopping: completing"], 1);
    policy.may_answer.add_permits(1);
    assert!(wrapper.wait().unwrap().success());
    assert!(host.read("fake/seen.json").contains("KEY=1"), "it came up unadjusted");
    wait_until("the daemon has ended", || !host.path("run/daemon.sock").exists());
}

#[test]
fn a_request_to_a_stopping_daemon_is_served_by_the_next_one() {
    let host = started("");
    let (policy, mut wrapper) = asked(&host, "create");
    let old = host.daemon_pid();
    send_signal(old, Signal::SIGTERM);
    wait_until("it is ending", || host.logged(&["stopping: completing"]) == 1);
    std::fs::create_dir_all(host.path("other/rootfs")).unwrap();
    host.write("other/config.json", BUNDLE);
    let other = host.path("other").display().to_string();
    let mut waits = host.spawn(&["create", "--bundle", &other, "c2"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(waits.try_wait().unwrap().is_none(), "it did not wait");
    policy.may_answer.add_permits(1);
    assert!(wrapper.wait().unwrap().success() && waits.wait().unwrap().success());
    let status = host.admin(&["status"]);
    assert_ne!(status["pid"], old, "{status}");
    assert_eq!(status["requests"]["create"], 1, "the next one was asked: {status}");
    assert!(status["requests"]["bypassed"].is_null(), "{status}");
}

#[test]
fn a_delete_does_not_wait_for_a_daemon_that_is_ending() {
    let host = started(REQUIRED);
    let (policy, mut wrapper) = asked(&host, "create");
    send_signal(host.daemon_pid(), Signal::SIGTERM);
    wait_until("it is ending", || host.logged(&["stopping: completing"]) == 1);
    let output = host.verb(&["delete", "--force", "nothing"]);
    succeeds(&output);
    assert!(output.stderr.is_empty(), "it gave the daemon up: {output:?}");
    let notes = std::fs::read_dir(host.path("run/bypassed")).into_iter().flatten().count();
    assert_eq!(notes, 0, "it gave the daemon up");
    policy.may_answer.add_permits(1);
    assert!(wrapper.wait().unwrap().success());
}

#[test]
fn a_second_signal_ends_the_daemon_and_a_protected_run_fails() {
    let host = started(REQUIRED);
    let (_policy, mut wrapper) = asked(&host, "run");
    let pid = host.daemon_pid();
    send_signal(pid, Signal::SIGTERM);
    wait_until("it is ending", || host.logged(&["stopping: completing"]) == 1);
    send_signal(pid, Signal::SIGTERM);
    assert_eq!(wrapper.wait().unwrap().code(), Some(1));
    assert_eq!(host.read("fake/argv"), "", "the runtime was called");
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}
