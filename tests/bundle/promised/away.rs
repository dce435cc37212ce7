// SPDX-License-Identifier: Apache-2.0
//! Promises while something is missing: the daemon, the plugin for a while, or all plugins because another
//! process serves them.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, fails, started, succeeds, wait_until};

use super::{gpu, promise, with_device};
use crate::rules::pod_container;

const DEVICES: &str = "devices = [\"/dev/nvidia*\", \"/proc\"]";

/// A document without the mount of `/proc`.
fn without_proc() -> String {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["mounts"] = json!([]);
    document.to_string()
}

#[test]
fn without_the_daemon_only_promised_containers_are_refused() {
    let lines = promise(DEVICES);
    let host = TestHost::new(&format!("autostart = false\n{lines}"));
    let bundle = gpu(&host);
    fails(
        &host.create_from(&bundle, "c1"),
        &["the promise \"gpu driver\" needs the plugin gpu", "nothing was changed or started"],
    );
    host.write("bundle/config.json", &without_proc());
    succeeds(&host.create("c2"));
    let exempt = pod_container(&host, "kube-system", "c3");
    succeeds(&host.create_from(&exempt, "c3"));
    let host = TestHost::new(&format!("autostart = false\n{lines}mode = \"audit\"\n"));
    let bundle = gpu(&host);
    succeeds(&host.create_from(&bundle, "c1"));
}

#[test]
fn without_the_daemon_a_kubelet_pod_is_assumed_to_have_claims() {
    for lines in ["claims = [\"dra.net\"]", "resources = [\"a.com/gpu\"]"] {
        let host = TestHost::new(&format!("autostart = false\n{}", promise(lines)));
        let bundle = pod_container(&host, "dev", "c1");
        fails(
            &host.create_from(&bundle, "c1"),
            &["the promise \"gpu driver\" needs the plugin gpu"],
        );
        // kubelet allocates nothing to a plain container.
        succeeds(&host.create("c2"));
    }
    let elsewhere = promise("claims = [\"dra.net\"]\nnamespaces = [\"prod\"]");
    let host = TestHost::new(&format!("autostart = false\n{elsewhere}"));
    let bundle = pod_container(&host, "dev", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
}

#[test]
fn promise_refusals_without_a_daemon_are_reported_later() {
    let mut host = TestHost::new(&format!("autostart = false\n{}", promise(DEVICES)));
    fails(&host.create("c1"), &["the promise \"gpu driver\" needs the plugin gpu"]);
    host.start_daemon();
    let refused = host.admin(&["explain", "c1"])["refused"].to_string();
    assert!(refused.contains("the promise \\\"gpu driver\\\""), "{refused}");
}

#[test]
fn a_promise_applies_after_restarts_of_daemon_and_plugin() {
    let mut host = started(&promise(DEVICES));
    let received = host.plugin("10", "gpu", Script::default());
    let bundle = gpu(&host);
    succeeds(&host.create_from(&bundle, "c1"));
    host.kill_daemon();
    host.start_daemon();
    drop(received);
    fails(&host.create_from(&bundle, "c2"), &["needs the plugin gpu, which is not connected"]);
    assert_eq!(host.admin(&["explain", "c1"])["promises"][0]["result"], "met");
    let _plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&host.create_from(&bundle, "c2"));
}

#[test]
fn a_promise_refuses_where_another_process_serves_plugins() {
    let mut host = TestHost::new(&promise("devices = [\"/dev/nvidia*\"]"));
    let engine = UnixListener::bind(host.path("nri.sock")).unwrap();
    host.start_daemon();
    let bundle = gpu(&host);
    let wanted = ["it needs the plugin gpu, which cannot connect: "];
    fails(&host.create_from(&bundle, "c1"), &wanted);
    succeeds(&host.create("c2"));
    let check = host.call(&["nri", "check", "--json"]);
    assert!(!check.status.success());
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();
    let rows = check.as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["check"] == name).unwrap();
    let (promises, socket) = (row("promises"), row("plugin socket"));
    assert_eq!((&promises["ok"], &promises["hint"]), (&json!(false), &socket["hint"]));
    drop(engine);
}

#[test]
fn a_container_waits_for_the_plugin_up_to_the_promises_limit() {
    let host = started(&format!("{}wait = \"60s\"\n", promise(DEVICES)));
    let bundle = gpu(&host);
    let root = host.path("root").display().to_string();
    let folder = host.path(&bundle).display().to_string();
    let mut create = host.spawn(&["--root", &root, "create", "--bundle", &folder, "c1"]);
    host.logs(&["wait up to", "for gpu, which is required"], 1);
    let _plugin = host.plugin("10", "gpu", Script::default());
    wait_until("it was created", || create.try_wait().unwrap().is_some());
    assert!(create.wait().unwrap().success());
    let host = started(&format!("{}wait = \"50ms\"\n", promise(DEVICES)));
    let bundle = with_device(&host, "gpu", "/dev/nvidia0", ("", ""));
    let began = std::time::Instant::now();
    fails(&host.create_from(&bundle, "c1"), &["needs the plugin gpu, which is not connected"]);
    assert!(began.elapsed() >= Duration::from_millis(50));
}

/// Each verb that creates a container, with a missing plugin, a missing daemon, and a stopped daemon.
#[test]
fn no_verb_bypasses_a_promise_without_daemon_or_plugin() {
    for away in ["the plugin", "the daemon", "a daemon that answers"] {
        let lines = promise("devices = [\"/dev/nvidia*\"]");
        let more = format!("autostart = false\n[debug]\nsilence = \"1s\"\n{lines}");
        let mut host = started(&more);
        match away {
            "the daemon" => host.kill_daemon(),
            "the plugin" => {}
            _ => signal(host.daemon_pid(), Signal::SIGSTOP),
        }
        let bundle = host.path(&gpu(&host)).display().to_string();
        let plain = host.path("bundle").display().to_string();
        for verb in ["create", "run", "restore"] {
            let call = |bundle: &str, id: &str| {
                let detached = if verb == "create" { &[][..] } else { &["--detach"] };
                host.verb(&[&[verb, "--bundle", bundle], detached, &[id]].concat())
            };
            let words = [&*format!("cannot {verb} c1"), "the promise \"gpu driver\""];
            fails(&call(&bundle, "c1"), &words);
            let id = format!("plain-{verb}");
            succeeds(&call(&plain, &id));
            let called = host.read("fake/argv");
            let names = |id: &str| called.lines().any(|line| line == id);
            assert!(names(&id) && !names("c1"), "{verb}, {away}: {called}");
        }
        if away == "a daemon that answers" {
            signal(host.daemon_pid(), Signal::SIGCONT);
        }
    }
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}
