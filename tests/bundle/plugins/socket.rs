// SPDX-License-Identifier: Apache-2.0
//! The plugin socket between this daemon and an engine's own NRI: taken when it becomes free, lost
//! and taken back, and the messages for an operator meanwhile.

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;

use serde_json::Value;
use test_support::{BUNDLE, TestHost, wait_until};

use crate::{sets, started, succeeds};

fn state(host: &TestHost) -> Value {
    host.admin(&["status"])["plugin_socket_state"].clone()
}

fn becomes(host: &TestHost, wanted: &str) {
    wait_until(&format!("the socket is {wanted}"), || state(host)["state"] == wanted);
}

/// The result of `check` for the socket.
fn checked(host: &TestHost) -> Value {
    let found = host.admin(&["check"]);
    let mut found = found.as_array().unwrap().iter();
    found.find(|finding| finding["check"] == "plugin socket").unwrap().clone()
}

/// Ends an engine cleanly: it also removes its socket's file.
fn let_go(host: &TestHost, engine: UnixListener) {
    std::fs::remove_file(host.path("nri.sock")).unwrap();
    drop(engine);
}

/// Another process that listens for plugins until it is killed.
fn other_process(host: &TestHost) -> Child {
    host.write(
        "other.jsonl",
        "{\"wait\":{\"synchronized\":[\"10-never\"],\"timeout\":\"300s\"}}\n",
    );
    let script = host.path("other.jsonl").display().to_string();
    let socket = host.path("nri.sock").display().to_string();
    let other = host.spawn_plain(&["nri", "replay", "--socket", &socket, &script]);
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    other
}

#[test]
fn the_plugin_socket_is_taken_once_the_engine_frees_it() {
    let mut host = TestHost::new("[plugin.env]\nrequired = true\n");
    std::fs::create_dir(host.path("plugins")).unwrap();
    host.put_program("plugins/20-file", "#!/bin/sh\ntouch \"$0.was-started\"\n");
    let engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    host.start_daemon();
    let taken = state(&host);
    assert_eq!(taken["state"], "taken", "{taken}");
    assert_eq!(taken["listener"]["pid"], std::process::id(), "{taken}");
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), BUNDLE, "it is nothing but the runtime");

    let_go(&host, engine);
    becomes(&host, "open");
    host.logs(&["no process listens on", "plugins can connect"], 1);
    wait_until("the pre-installed one starts", || {
        host.path("plugins/20-file.was-started").exists()
    });
    // The daemon no longer passes calls through, so the missing required plugin refuses this
    // container.
    let refused = host.create("c2");
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(line.contains("required plugin env is not connected"), "{line}");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c3"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
    assert_eq!(host.admin(&["status"])["pass_through"], false);
    assert_eq!(checked(&host)["ok"], true);
}

#[test]
fn the_plugin_socket_of_a_killed_engine_is_taken() {
    let mut host = TestHost::default();
    let mut engine = other_process(&host);
    host.start_daemon();
    let taken = state(&host);
    assert_eq!(taken["listener"]["pid"], engine.id(), "{taken}");
    assert_eq!(taken["listener"]["name"], "nri-runc", "{taken}");
    let line = checked(&host)["detail"].as_str().unwrap().to_owned();
    assert!(line.contains(&format!("nri-runc (process {})", engine.id())), "{line}");
    let below = String::from_utf8(host.call(&["nri", "plugins"]).stdout).unwrap();
    assert!(below.contains("plugin socket: nri-runc (process"), "{below}");
    engine.kill().unwrap();
    engine.wait().unwrap();
    becomes(&host, "open");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
}

#[test]
fn a_plugin_socket_closed_silently_is_found_free_later() {
    let mut host = TestHost::default();
    let engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    engine.set_nonblocking(true).unwrap();
    host.start_daemon();
    assert_eq!(state(&host)["state"], "taken");
    while engine.accept().is_ok() {}
    // Waits for two checks. They must not connect, because an engine logs every connection.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert!(engine.accept().is_err(), "the engine was connected to again");
    drop(engine);
    assert!(host.path("nri.sock").exists());
    becomes(&host, "open");
}

/// A daemon with a required plugin, whose plugin socket this process has replaced, as an engine
/// would.
fn replaced_by_an_engine() -> (TestHost, UnixListener) {
    let host = started("[plugin.env]\nrequired = true\n");
    drop(host.plugin("10", "env", sets("HELLO", "there")));
    std::fs::remove_file(host.path("nri.sock")).unwrap();
    let engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    becomes(&host, "lost");
    (host, engine)
}

#[test]
fn status_check_and_log_name_the_plugin_sockets_owner() {
    let (host, _engine) = replaced_by_an_engine();
    let status = host.admin(&["status"]);
    let printed = status["plugin_socket"].as_str().unwrap();
    let us = format!("(process {})", std::process::id());
    assert!(printed.contains(&us) && printed.contains("listens on"), "{printed}");
    let failure = status["failures"][0]["what"].as_str().unwrap();
    assert!(failure.contains("has taken the plugin socket") && failure.contains(&us), "{failure}");
    host.logs(&["has taken the plugin socket", &us], 1);
    assert_eq!(checked(&host)["ok"], false);
}

#[test]
fn connected_plugins_stay_while_an_engine_has_the_socket() {
    let (host, _engine) = replaced_by_an_engine();
    assert_eq!(host.admin(&["status"])["pass_through"], false);
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"), "its plugin was disconnected");
    assert!(UnixStream::connect(host.path("nri.sock")).is_ok(), "the engine's was removed");
}

#[test]
fn a_lost_plugin_socket_is_retaken_once_the_engine_frees_it() {
    let (host, engine) = replaced_by_an_engine();
    let_go(&host, engine);
    becomes(&host, "open");
    assert_eq!(checked(&host)["ok"], true);
    host.logs(&["plugins can connect at", "again"], 1);
    let _plugin = host.plugin("20", "late", sets("LATE", "1"));
    succeeds(&host.create("c2"));
    assert!(host.read("fake/seen.json").contains("LATE=1"));
}

#[test]
fn a_removed_plugin_socket_is_recreated_with_its_folder() {
    let host = TestHost::default();
    let dir = host.path("").display().to_string();
    let text =
        host.read("config.toml").replace(&format!("{dir}nri.sock"), &format!("{dir}nri/nri.sock"));
    let text = text.replace("//nri", "/nri");
    host.write("config.toml", &text);
    let mut host = host;
    host.start_daemon();
    let path = host.path("nri/nri.sock");
    for is_folder in [false, true, false] {
        let _first = UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        if is_folder {
            std::fs::remove_dir(host.path("nri")).unwrap();
        }
        wait_until("it is there again", || UnixStream::connect(&path).is_ok());
    }
    becomes(&host, "open");
}
