// SPDX-License-Identifier: Apache-2.0
//! The first create after a daemon start: which plugins it waits for, that it reports this, and
//! that it does not wait for a plugin that cannot reconnect.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::example::example;
use test_support::{TestHost, skip, started, wait_until};

use super::policies::row;
use crate::succeeds;

/// A plugin that is started manually, as a separate process.
fn by_hand(host: &TestHost) -> Child {
    let mut command = Command::new(example("event_logger"));
    command.arg("--socket").arg(host.path("nri.sock"));
    command.args(["--id", "30-hand"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A daemon that would wait long for a plugin, and a manually started plugin.
fn with_plugin_by_hand() -> (TestHost, Child) {
    let host = started("[nri]\nplugin_registration_timeout = \"50s\"\n");
    let plugin = by_hand(&host);
    wait_until("it is synchronized", || row(&host, "30-hand").is_some());
    (host, plugin)
}

/// Whether these tests run as a systemd service. Their plugins would then belong to a service that
/// systemd restarts.
fn is_service() -> bool {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let is_service = cgroup.contains(":/system.slice/") && cgroup.contains(".service");
    if is_service {
        skip::machine_lacks("the tests run as a service of systemd");
    }
    is_service
}

#[test]
fn a_waiting_create_names_the_plugin_and_the_limit() {
    let mut host =
        TestHost::new("[nri]\nwait_for = [\"10-absent\"]\nplugin_registration_timeout = \"1s\"\n");
    host.start_daemon();
    for id in ["c1", "c2"] {
        succeeds(&host.create(id));
    }
    host.logs(&["requests wait up to", "for 10-absent"], 1);
    host.logs(&["requests continue after", "without 10-absent"], 1);
}

#[test]
fn creates_do_not_wait_for_an_exited_plugin() {
    if is_service() {
        return;
    }
    let (mut host, mut plugin) = with_plugin_by_hand();
    host.kill_daemon();
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    host.start_daemon();
    let begun = Instant::now();
    succeeds(&host.create("c1"));
    assert!(begun.elapsed() < Duration::from_secs(45), "it waited for {:?}", begun.elapsed());
    host.logs(&["not waiting for 30-hand", "has exited"], 1);
    assert_eq!(host.logged(&["requests wait"]), 0);
}

#[test]
fn creates_wait_for_a_stopped_plugin_until_its_process_ends() {
    if is_service() {
        return;
    }
    let (mut host, mut plugin) = with_plugin_by_hand();
    // A stopped plugin does not notice the daemon's exit.
    let pid = Pid::from_raw(i32::try_from(plugin.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    host.kill_daemon();
    host.start_daemon();
    let mut create = host.spawn(&["create", "--bundle", "BUNDLE", "c1"]);
    wait_until("it is waited for", || host.logged(&["requests wait up to", "for 30-hand"]) == 1);
    std::thread::sleep(Duration::from_millis(500));
    assert!(create.try_wait().unwrap().is_none(), "it did not wait");
    let begun = Instant::now();
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    assert!(create.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(45), "it waited for {:?}", begun.elapsed());
    host.logs(&["requests continue after"], 1);
}
