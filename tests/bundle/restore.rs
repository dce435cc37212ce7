// SPDX-License-Identifier: Apache-2.0
//! `restore` is a create and a start to plugins. A small runtime stands in for runc, which needs
//! CRIU for it.

use super::player::Manner;
use super::rig::{BUNDLE, Rig, wait_until};
use super::{life, refused, sets, started, succeeds};

fn restore(rig: &Rig, flags: &[&str]) -> std::process::Output {
    let bundle = rig.path("bundle").display().to_string();
    let log = rig.path("log.json").display().to_string();
    let globals = ["--log", &log, "--log-format", "json"];
    let words = ["restore", "--image-path", "/checkpoint", "--bundle", &bundle];
    rig.verb(&[&globals[..], &words, flags, &["c1"]].concat())
}

#[test]
fn a_restored_container_is_adjusted_and_its_life_is_told() {
    let rig = started("");
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&restore(&rig, &["--detach"]));
    let wanted = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"HELLO=there\"]");
    assert_eq!(rig.read("fake/seen.json"), wanted);
    wait_until("the start is told", || told.lock().unwrap().len() >= 5);
    assert_eq!(*told.lock().unwrap(), life("c1")[..5]);
    assert_eq!(rig.admin(&["pods"])[0]["containers"][0]["state"], "running");
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    succeeds(&rig.verb(&["delete", "c1"]));
    wait_until("the end is told", || told.lock().unwrap().len() >= 9);
    assert_eq!(*told.lock().unwrap(), life("c1"));
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_restore_in_the_foreground_is_told_whole() {
    let rig = started("");
    let told = rig.plugin("10", "env", sets("HELLO", "there"));
    let mut process = rig.spawn(&["restore", "--bundle", "BUNDLE", "c1"]);
    wait_until("the start is told", || told.lock().unwrap().len() >= 5);
    succeeds(&rig.verb(&["kill", "c1", "9"]));
    assert_eq!(process.wait().unwrap().code(), Some(137));
    wait_until("the end is told", || told.lock().unwrap().len() >= 9);
    assert_eq!(*told.lock().unwrap(), life("c1"));
    assert_eq!(rig.read("bundle/config.json"), BUNDLE);
}

#[test]
fn a_refused_restore_leaves_nothing() {
    let rig = started("");
    let guard = Manner { refuses: Some("not signed"), ..Manner::default() };
    let _told = rig.plugin("90", "guard", guard);
    refused(&rig, &restore(&rig, &[]), &["cannot restore c1", "90-guard", "not signed"]);
}

#[test]
fn a_restore_without_its_daemon_goes_on_or_fails_as_configured() {
    let rig = Rig::new("autostart = false");
    succeeds(&restore(&rig, &["--detach"]));
    let rig = Rig::new("autostart = false\non_daemon_failure = \"fail\"");
    refused(&rig, &restore(&rig, &["--detach"]), &["cannot restore c1", "reaching the daemon"]);
}
