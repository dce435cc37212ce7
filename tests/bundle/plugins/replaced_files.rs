// SPDX-License-Identifier: Apache-2.0
//! The file of a pre-installed plugin is replaced: the new process runs beside the old one until it
//! is synchronized; if it fails, the old one stays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use test_support::example::example;
use test_support::{TestHost, wait_until};

use super::launched::{configure, is_running, process, row};
use super::takeover::{create, works};
use crate::succeeds;

/// Replaces the installed plugin by a copy of the sample plugin, as a package manager does.
fn install(host: &TestHost) {
    test_support::program::copy(&example("demo_plugin"), &host.path("greeter.new"));
    std::fs::rename(host.path("greeter.new"), host.path("plugins/10-greeter")).unwrap();
}

/// Replaces the installed plugin by a script in the same way.
fn install_script(host: &TestHost, text: &str) {
    host.put_program("greeter.new", &format!("#!/bin/sh\n{text}\n"));
    std::fs::rename(host.path("greeter.new"), host.path("plugins/10-greeter")).unwrap();
}

fn host(more: &str) -> TestHost {
    let mut host = TestHost::new(more);
    std::fs::create_dir(host.path("plugins")).unwrap();
    install(&host);
    configure(&host, "saw");
    host.start_daemon();
    host
}

/// Creates a container with a separate bundle, and checks that the plugin adjusts it.
#[track_caller]
fn is_greeted(host: &TestHost, id: &str) {
    succeeds(&create(host, id));
    let seen = host.read(&format!("fake/seen-{id}.json"));
    assert!(seen.contains("GREETING"), "{id} was created without the plugin: {seen}");
}

/// Ends the load when the test ends, even by a panic.
struct Load<'a>(&'a AtomicBool);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_replaced_plugin_file_takes_over_without_a_gap() {
    let host = host("");
    let mut pid = process(&host, "greeter", 0);
    for round in 0..3 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let creates = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::SeqCst) {
                    is_greeted(&host, &format!("r{round}-{count}"));
                    count += 1;
                }
                count
            });
            let load = Load(&is_over);
            install(&host);
            // One of the processes is always connected.
            let new = loop {
                let output = host.call(&["nri", "--json", "plugins"]);
                let plugins: Value = serde_json::from_slice(&output.stdout)
                    .unwrap_or_else(|error| panic!("{error}: {output:?}"));
                let is_there = |row: &&Value| row["state"] == "synchronized";
                let found = plugins.as_array().into_iter().flatten().find(is_there);
                let found = found.unwrap_or_else(|| panic!("no process takes part: {plugins}"));
                let found = i32::try_from(found["pid"].as_i64().unwrap()).unwrap();
                if found != pid {
                    break found;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            wait_until("the old process is gone", || !is_running(pid));
            pid = new;
            drop(load);
            assert!(creates.join().unwrap() > 0);
        });
    }
    host.logs(&["10-greeter: process", "took over from process"], 3);
    assert_eq!(host.logged(&["could not be"]), 0, "{}", host.read("daemon.err"));
}

#[test]
fn a_new_file_that_fails_leaves_the_old_process() {
    for (text, why) in [
        ("echo no such device >&2\nexit 3", "no such device"),
        ("exec sleep 100", "did not register in time"),
    ] {
        let host = host("[nri]\nplugin_registration_timeout = \"3s\"\n");
        let pid = process(&host, "greeter", 0);
        install_script(&host, text);
        wait_until("it was tried twice", || {
            host.logged(&["10-greeter could not be started", why]) >= 2
        });
        assert_eq!(row(&host, "greeter").unwrap()["pid"], pid);
        assert!(is_running(pid));
        host.logs_at_least(&["starting the changed 10-greeter again", "the old one stays"], 1);
        is_greeted(&host, "c1");
        // The next file works.
        install(&host);
        process(&host, "greeter", pid);
        wait_until("the old process is gone", || !is_running(pid));
        is_greeted(&host, "c2");
    }
}

#[test]
fn an_old_process_that_dies_after_a_failed_update_is_removed() {
    let host = host("");
    let pid = process(&host, "greeter", 0);
    install_script(&host, "exit 3");
    wait_until("it was tried", || host.logged(&["10-greeter could not be started"]) >= 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    wait_until("none is there", || row(&host, "greeter").is_none());
    install(&host);
    process(&host, "greeter", pid);
    is_greeted(&host, "c1");
}

#[test]
fn a_removed_file_ends_the_old_and_the_failing_process() {
    let host = host("");
    let pid = process(&host, "greeter", 0);
    install_script(&host, "exec sleep 100");
    wait_until("it was started", || host.logged(&["10-greeter", "has changed"]) == 1);
    std::fs::remove_file(host.path("plugins/10-greeter")).unwrap();
    wait_until("none is there", || host.admin(&["status"])["plugins"] == 0);
    wait_until("the old process is gone", || !is_running(pid));
}

#[test]
fn a_replaced_launched_plugin_returns_when_its_successor_leaves() {
    let host = host("[plugin.greeter]\ndisplace = \"any\"");
    let pid = process(&host, "greeter", 0);
    let other = works("other");
    let other = other.connect_as(&host, "10-greeter");
    wait_until("its process is gone", || !is_running(pid));
    let is_logged = || host.logged(&["10-greeter is restarted only after process"]) == 1;
    wait_until("it gives way", is_logged);
    // Longer than the pause before a restart.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(row(&host, "greeter").unwrap()["launched"], false);
    other.leave();
    wait_until("it is gone", || row(&host, "greeter").is_none_or(|row| row["launched"] == true));
    is_greeted(&host, "c1");
    assert_eq!(row(&host, "greeter").map(|row| row["launched"].clone()), Some(Value::Bool(true)));
}
