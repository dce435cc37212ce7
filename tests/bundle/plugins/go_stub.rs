// SPDX-License-Identifier: Apache-2.0
//! The usual lifecycle with a plugin on the official Go stub (NRI v0.12.5), if Go is installed: our
//! framing, handshake and calls with the reference's code.

use std::path::Path;
use std::process::{Command, Stdio};

use test_support::{BUNDLE, Started, TestHost, golang, wait_until};

/// Starts the Go plugin, and waits until it is synchronized.
fn connect(host: &TestHost, program: &Path) -> Started {
    let mut command = Command::new(program);
    command.arg("-socket").arg(host.path("nri.sock")).arg("-out").arg(host.path("told"));
    command.arg("-deadlines").arg(host.path("deadlines"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let plugin = Started(command.spawn().unwrap());
    wait_until("the Go plugin is synchronized", || {
        host.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    plugin
}

#[test]
fn a_go_stub_plugin_adjusts_a_container_and_receives_its_events() {
    let Some(program) = golang::program("recorder") else { return };
    let mut host = TestHost::default();
    host.start_daemon();
    let _plugin = connect(&host, &program);
    let received = host.admin(&["plugins"]);
    assert_eq!(
        (received[0]["index"].as_str(), received[0]["name"].as_str()),
        (Some("10"), Some("recorder"))
    );
    assert!(host.create("c1").status.success());
    let wanted = BUNDLE.replace("\"A=1\"]", "\"A=1\",\"FROM_GO=yes\"]");
    assert_eq!(host.read("fake/seen.json"), wanted);
    assert!(host.verb(&["start", "c1"]).status.success());
    assert!(host.verb(&["kill", "c1", "9"]).status.success());
    assert!(host.verb(&["delete", "c1"]).status.success());
    wait_until("the end is reported", || host.read("told").contains("RemovePodSandbox"));
    assert_eq!(host.read("told").lines().collect::<Vec<_>>(), crate::life("c1"));
}

/// The remaining time is sent with each request, and is the deadline of a handler's context.
#[test]
fn a_go_stub_handler_receives_its_deadline() {
    let Some(program) = golang::program("recorder") else { return };
    let mut host =
        TestHost::new("[plugin.recorder]\nrequest_timeout = \"20s\"\nsync_timeout = \"300s\"\n");
    host.start_daemon();
    let _plugin = connect(&host, &program);
    assert!(host.create("c1").status.success());
    let lines = host.read("deadlines");
    let left = |event: &str| {
        let line = lines.lines().find_map(|line| line.strip_prefix(event)).unwrap();
        line.trim().parse::<i64>().unwrap()
    };
    // Without a limit it would be -1; each request has a separate one.
    assert!((1..=20_000).contains(&left("CreateContainer")), "{lines}");
    assert!((20_001..=300_000).contains(&left("Synchronize")), "{lines}");
}

/// The reference's reader fails at a request of several hundred KB if frames are cut incorrectly.
#[test]
fn a_large_container_reaches_a_plugin_on_the_go_stub() {
    let Some(program) = golang::program("recorder") else { return };
    let mut host = TestHost::default();
    host.start_daemon();
    let many: Vec<String> = (0..20_000).map(|n| format!("\"V{n}=some value\"")).collect();
    let large = BUNDLE.replace("\"A=1\"", &format!("\"A=1\", {}", many.join(", ")));
    host.write("bundle/config.json", &large);
    let _plugin = connect(&host, &program);
    assert!(host.create("c1").status.success());
    assert!(host.read("fake/seen.json").contains("FROM_GO=yes"));
}
