// SPDX-License-Identifier: Apache-2.0
//! A daemon with a memory limit, as a systemd unit may set one, and documents that exceed it: the
//! kernel kills the daemon. The container that caused this does not bypass the protections.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, skip};

use crate::{refused, succeeds};

/// The cgroup root of the memory controller, and the name of its limit file.
fn memory() -> Option<(PathBuf, &'static str)> {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    if v1.join("memory.limit_in_bytes").exists() {
        return Some((v1.to_owned(), "memory.limit_in_bytes"));
    }
    let v2 = Path::new("/sys/fs/cgroup");
    let text = std::fs::read_to_string(v2.join("cgroup.subtree_control")).ok()?;
    text.contains("memory").then(|| (v2.to_owned(), "memory.max"))
}

/// A cgroup for the daemon alone, removed on drop.
struct Limited(PathBuf);

impl Limited {
    fn new(host: &TestHost, more: u64) -> Option<Self> {
        let pid = host.daemon_pid();
        let (top, file) = memory()?;
        let cgroup = Self(top.join(format!("nri-runc-limited-{pid}")));
        std::fs::create_dir(&cgroup.0).ok()?;
        std::fs::write(cgroup.0.join("cgroup.procs"), pid.to_string()).ok()?;
        // The daemon's existing memory is charged to the cgroup in which it was allocated.
        std::fs::write(cgroup.0.join(file), more.to_string()).ok()?;
        // Otherwise the kernel swaps. The file is absent if there is no swap or it is not counted.
        for swap in ["memory.swappiness", "memory.swap.max"] {
            let _not_there = std::fs::write(cgroup.0.join(swap), "0");
        }
        Some(cgroup)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        test_support::wait_until("the cgroup is empty", || {
            std::fs::remove_dir(&self.0).is_ok() || !self.0.exists()
        });
    }
}

/// A document of a few megabytes whose processing takes many times as much memory.
fn large() -> String {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    let annotations = (0..150_000).map(|n| (format!("example.com/key-{n}"), json!("v".repeat(16))));
    document["annotations"] = Value::Object(annotations.collect());
    document.to_string()
}

/// A daemon that is killed while it creates a container; `None` if this machine cannot limit
/// memory.
fn killed(settings: &str) -> Option<(TestHost, std::process::Output)> {
    let mut host = TestHost::new(&format!("autostart = false\n{settings}"));
    host.start_daemon();
    let _plugin = host.plugin("10", "policy", Script::default());
    let Some(limited) = Limited::new(&host, 4 << 20) else {
        skip::machine_lacks("no memory controller whose files can be written");
        return None;
    };
    host.write("bundle/config.json", &large());
    let output = host.create("c1");
    let is_killed = host.admin(&["status"])["pid"].is_null();
    assert!(is_killed, "the daemon lives: the test is too mild");
    host.kill_daemon();
    drop(limited);
    Some((host, output))
}

#[test]
fn a_protected_create_fails_if_the_daemon_is_killed_for_memory() {
    let protected = "[plugin.policy]\nrequired = true\n";
    let Some((mut host, output)) = killed(protected) else { return };
    assert!(host.read("bundle/config.json") == large(), "the document was changed");
    host.write("bundle/config.json", BUNDLE);
    refused(&host, &output, &["cannot create c1", "plugin policy is required"]);
    // The next daemon, and a container that needs less memory.
    host.start_daemon();
    let _plugin = host.plugin("10", "policy", Script::default());
    succeeds(&host.create("c2"));
}

#[test]
fn a_daemon_killed_for_memory_fails_no_unprotected_container() {
    let Some((host, output)) = killed("") else { return };
    succeeds(&output);
    assert!(host.read("fake/argv").contains("create"), "the runtime was called");
}
