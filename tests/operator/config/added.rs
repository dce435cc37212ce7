// SPDX-License-Identifier: Apache-2.0
//! A reload that adds plugins: creates wait for them, as after a daemon start.

use std::os::unix::fs::symlink;

use test_support::adjustments::sets;
use test_support::example::example;
use test_support::{Script, TestHost, started, succeeds, wait_until};

const PATIENT: &str = "[nri]\nplugin_registration_timeout = \"60s\"\n";

fn reload(host: &TestHost, lines: &str) {
    host.configure(&host.path("fake/runc"), lines);
    succeeds(&host.call(&["nri", "reload"]));
}

/// Checks that a create that begins now waits until `arrive` has run, and is adjusted.
fn create_waits(host: &TestHost, id: &str, adjusted: &str, arrive: impl FnOnce()) {
    let mut create = host.spawn(&["create", "--bundle", "BUNDLE", id]);
    host.logs_at_least(&["requests wait up to"], 1);
    arrive();
    assert!(create.wait().unwrap().success());
    let seen = host.read("fake/seen.json");
    assert!(seen.contains(adjusted), "{seen}");
}

#[test]
fn creates_wait_for_a_plugin_that_a_reload_names() {
    let host = started(PATIENT);
    succeeds(&host.create("c1"));
    reload(&host, &format!("{PATIENT}wait_for = [\"10-late\"]\n"));
    create_waits(&host, "c2", "HELLO=late", || {
        let _plugin = host.plugin("10", "late", sets("HELLO", "late"));
    });
    assert_eq!(host.logged(&["requests wait up to"]), 1, "{}", host.read("daemon.err"));
}

#[test]
fn creates_wait_for_the_plugins_of_another_plugin_path() {
    let host = started(PATIENT);
    std::fs::create_dir(host.path("more")).unwrap();
    symlink(example("demo_plugin"), host.path("more/10-greeter")).unwrap();
    host.write("10-greeter.conf", &format!("data=/etc\nsaw={}\n", host.path("saw").display()));
    let text = host.read("config.toml");
    let (old, new) = (host.path("plugins"), host.path("more"));
    let text = text.replace(&old.display().to_string(), &new.display().to_string());
    host.write("config.toml", &text);
    succeeds(&host.call(&["nri", "reload"]));
    create_waits(&host, "c1", "GREETING=hello-from-a-plugin", || {});
}

#[test]
fn creates_wait_for_plugins_lost_while_the_socket_was_closed() {
    let host = started(PATIENT);
    let at = Some("PostCreateContainer".to_owned());
    let _plugin = host.plugin("10", "a", Script { leaves: true, at, ..sets("HELLO", "a") });
    reload(&host, &format!("{PATIENT}disable_connections = true\n"));
    succeeds(&host.create("c1"));
    wait_until("it has left", || host.admin(&["status"])["plugins"] == 0);
    reload(&host, PATIENT);
    create_waits(&host, "c2", "HELLO=a", || {
        let _plugin = host.plugin("10", "a", sets("HELLO", "a"));
    });
}

#[test]
fn creates_do_not_wait_after_a_reload_for_a_connected_plugin() {
    let host = started(PATIENT);
    let _plugin = host.plugin("10", "a", sets("HELLO", "a"));
    reload(&host, &format!("{PATIENT}wait_for = [\"10-a\"]\n[log]\nlevel = \"debug\"\n"));
    succeeds(&host.create("c1"));
    assert_eq!(host.logged(&["requests wait up to"]), 0);
}
