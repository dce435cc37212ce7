// SPDX-License-Identifier: Apache-2.0
//! For plugins `restore` is a create and a start. A small runtime replaces runc, which needs CRIU
//! for it.

use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{life, refused, sets, started, succeeds};

fn restore(host: &TestHost, flags: &[&str]) -> std::process::Output {
    let bundle = host.path("bundle").display().to_string();
    let log = host.path("log.json").display().to_string();
    let globals = ["--log", &log, "--log-format", "json"];
    let words = ["restore", "--image-path", "/checkpoint", "--bundle", &bundle];
    host.verb(&[&globals[..], &words, flags, &["c1"]].concat())
}

#[test]
fn a_restored_container_is_adjusted_and_has_all_events() {
    let host = started("");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&restore(&host, &["--detach"]));
    let wanted = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    assert_eq!(host.read("fake/seen.json"), wanted);
    wait_until("the start is reported", || received.lock().unwrap().len() >= 5);
    assert_eq!(*received.lock().unwrap(), life("c1")[..5]);
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    succeeds(&host.verb(&["kill", "c1", "9"]));
    succeeds(&host.verb(&["delete", "c1"]));
    wait_until("the end is reported", || received.lock().unwrap().len() >= 9);
    assert_eq!(*received.lock().unwrap(), life("c1"));
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_restore_in_the_foreground_has_all_events() {
    let host = started("");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    let mut process = host.spawn(&["restore", "--bundle", "BUNDLE", "c1"]);
    wait_until("the start is reported", || received.lock().unwrap().len() >= 5);
    succeeds(&host.verb(&["kill", "c1", "9"]));
    assert_eq!(process.wait().unwrap().code(), Some(137));
    wait_until("the end is reported", || received.lock().unwrap().len() >= 9);
    assert_eq!(*received.lock().unwrap(), life("c1"));
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_refused_restore_leaves_nothing() {
    let host = started("");
    let guard = Script { refuses: Some("not signed"), ..Script::default() };
    let _plugin = host.plugin("90", "guard", guard);
    refused(&host, &restore(&host, &[]), &["cannot restore c1", "90-guard", "not signed"]);
}

#[test]
fn a_restore_without_a_daemon_follows_on_daemon_failure() {
    let host = TestHost::new("autostart = false");
    succeeds(&restore(&host, &["--detach"]));
    let host = TestHost::new("autostart = false\non_daemon_failure = \"fail\"");
    refused(&host, &restore(&host, &["--detach"]), &["cannot restore c1", "reaching the daemon"]);
}
