// SPDX-License-Identifier: Apache-2.0
//! The plugin socket between this daemon and an engine's own NRI: taken when it becomes free, lost
//! and taken back, and what an operator is told meanwhile.

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;

use serde_json::Value;

use super::rig::{BUNDLE, Rig, wait_until};
use super::{env, sets, started, succeeds};

fn state(rig: &Rig) -> Value {
    rig.admin(&["status"])["plugin_socket_state"].clone()
}

fn becomes(rig: &Rig, wanted: &str) {
    wait_until(&format!("the socket is {wanted}"), || state(rig)["state"] == wanted);
}

/// What `check` says of the socket.
fn checked(rig: &Rig) -> Value {
    let found = rig.admin(&["check"]);
    let mut found = found.as_array().unwrap().iter();
    found.find(|finding| finding["check"] == "plugin socket").unwrap().clone()
}

/// An engine ends in order: its socket's file goes with it.
fn let_go(rig: &Rig, engine: UnixListener) {
    std::fs::remove_file(rig.path("nri.sock")).unwrap();
    drop(engine);
}

/// Another process that listens for plugins; it ends when it is killed.
fn other_process(rig: &Rig) -> Child {
    rig.write("other.jsonl", "{\"wait\":{\"synchronized\":[\"10-never\"],\"timeout\":\"300s\"}}\n");
    let script = rig.path("other.jsonl").display().to_string();
    let socket = rig.path("nri.sock").display().to_string();
    let other = rig.spawn_plain(&["nri", "replay", "--socket", &socket, &script]);
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    other
}

#[test]
fn the_plugin_socket_is_taken_when_the_engine_lets_go_of_it() {
    let mut rig = Rig::new("---[plugin.env]\nrequired = true\n");
    std::fs::create_dir(rig.path("plugins")).unwrap();
    rig.write("plugins/20-file", "#!/bin/sh\ntouch \"$0.was-started\"\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(rig.path("plugins/20-file"), mode).unwrap();
    let engine = UnixListener::bind(rig.path("nri.sock")).unwrap();
    rig.start_daemon();
    let taken = state(&rig);
    assert_eq!(taken["state"], "taken", "{taken}");
    assert_eq!(taken["listener"]["pid"], std::process::id(), "{taken}");
    succeeds(&rig.create("c1"));
    assert_eq!(rig.read("fake/seen.json"), BUNDLE, "it is nothing but the runtime");

    let_go(&rig, engine);
    becomes(&rig, "open");
    assert_eq!(rig.logged(&["no process listens on", "plugins can connect"]), 1);
    wait_until("the pre-installed one starts", || rig.path("plugins/20-file.was-started").exists());
    // Nothing is passed through any more: the required plugin is, by now.
    let refused = rig.create("c2");
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(line.contains("required plugin env is not connected"), "{line}");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c3"));
    assert!(rig.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(rig.admin(&["status"])["pass_through"], false);
    assert_eq!(checked(&rig)["ok"], true);
}

#[test]
fn an_engine_that_is_killed_leaves_the_plugin_socket_to_us() {
    let mut rig = Rig::new("");
    let mut engine = other_process(&rig);
    rig.start_daemon();
    let taken = state(&rig);
    assert_eq!(taken["listener"]["pid"], engine.id(), "{taken}");
    assert_eq!(taken["listener"]["name"], "nri-runc", "{taken}");
    let line = checked(&rig)["detail"].as_str().unwrap().to_owned();
    assert!(line.contains(&format!("nri-runc (process {})", engine.id())), "{line}");
    let below = String::from_utf8(rig.call(&["nri", "plugins"]).stdout).unwrap();
    assert!(below.contains("plugin socket: nri-runc (process"), "{below}");
    engine.kill().unwrap();
    engine.wait().unwrap();
    becomes(&rig, "open");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&rig.create("c1"));
    assert!(rig.read("fake/seen.json").contains("HELLO=there"));
}

#[test]
fn a_socket_that_is_closed_without_a_sign_is_found_free_after_a_while() {
    let mut rig = Rig::new("");
    let engine = UnixListener::bind(rig.path("nri.sock")).unwrap();
    engine.set_nonblocking(true).unwrap();
    rig.start_daemon();
    assert_eq!(state(&rig)["state"], "taken");
    while engine.accept().is_ok() {}
    // Twice the time after which it is looked at: an engine logs every connection.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert!(engine.accept().is_err(), "the engine was connected to again");
    drop(engine);
    assert!(rig.path("nri.sock").exists());
    becomes(&rig, "open");
}

#[test]
fn a_plugin_socket_that_an_engine_replaced_is_named_and_taken_back() {
    let rig = started("---[plugin.env]\nrequired = true\n");
    let _told = rig.plugin("10", "env", sets("HELLO", "there"));
    std::fs::remove_file(rig.path("nri.sock")).unwrap();
    let engine = UnixListener::bind(rig.path("nri.sock")).unwrap();
    becomes(&rig, "lost");
    let status = rig.admin(&["status"]);
    let said = status["plugin_socket"].as_str().unwrap();
    let us = format!("(process {})", std::process::id());
    assert!(said.contains(&us) && said.contains("listens on"), "{said}");
    assert_eq!(status["pass_through"], false, "who is connected is asked as before");
    let failure = status["failures"][0]["what"].as_str().unwrap();
    assert!(failure.contains("has taken the plugin socket") && failure.contains(&us), "{failure}");
    assert_eq!(rig.logged(&["has taken the plugin socket", &us]), 1);
    assert_eq!(checked(&rig)["ok"], false);
    succeeds(&rig.create("c1"));
    assert!(rig.read("fake/seen.json").contains("HELLO=there"), "its plugin was disconnected");
    assert!(UnixStream::connect(rig.path("nri.sock")).is_ok(), "the engine's was removed");

    let_go(&rig, engine);
    becomes(&rig, "open");
    assert_eq!(checked(&rig)["ok"], true);
    assert_eq!(rig.logged(&["plugins can connect at", "again"]), 1);
    let late = nri_runc::plugin::api::ContainerAdjustment {
        env: vec![env("LATE", "1")],
        ..Default::default()
    };
    let manner = super::player::Manner { adjust: late, ..Default::default() };
    let _told = rig.plugin("20", "late", manner);
    succeeds(&rig.create("c2"));
    assert!(rig.read("fake/seen.json").contains("LATE=1"));
}

#[test]
fn a_plugin_socket_that_was_removed_is_made_again_with_its_folder() {
    let rig = Rig::new("");
    let dir = rig.path("").display().to_string();
    let text =
        rig.read("config.toml").replace(&format!("{dir}nri.sock"), &format!("{dir}nri/nri.sock"));
    let text = text.replace("//nri", "/nri");
    rig.write("config.toml", &text);
    let mut rig = rig;
    rig.start_daemon();
    let path = rig.path("nri/nri.sock");
    for is_folder in [false, true, false] {
        let _first = UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        if is_folder {
            std::fs::remove_dir(rig.path("nri")).unwrap();
        }
        wait_until("it is there again", || UnixStream::connect(&path).is_ok());
    }
    becomes(&rig, "open");
}
