// SPDX-License-Identifier: Apache-2.0
//! The newest Go stub and the real runc: a plugin's values are in force in the container, as far as
//! a kernel permits; and values that this runc would drop silently are refused.

use std::path::Path;

use nri_runc::testing::runtime::{RuntimeKind, features};
use serde_json::json;
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, wait_until};
use test_support::{golang, skip};

use super::{Started, by_hand, document};

/// A host with the real runc, and a plugin that sets `fields`; skipped without Go, runc or root.
fn world(fields: &str) -> Option<(TestHost, RealRuntime, Started)> {
    let program = golang::program("stub-v0.12.5")?;
    let mut host = TestHost::default();
    let real = RealRuntime::new(&host.path(""))?;
    let patience = "[nri]\nplugin_request_timeout = \"20s\"";
    host.configure(real.runc(), &format!("{}\n{patience}", document::furnish_host(&host)));
    let mut config = real.document("c1", &["sleep", "1"]);
    config["process"]["env"] = json!(["PATH=/bin", "GONE=1", "KEPT=before"]);
    host.write("bundle/config.json", &config.to_string());
    host.start_daemon();
    let plugin = by_hand(&program, &host.path("nri.sock"), &host.path("told"), fields);
    wait_until("the plugin is synchronized", || {
        host.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    Some((host, real, plugin))
}

/// A file of the container's cgroup: by its name in version 1, or in version 2.
fn cgroup(path: &str, controller: &str, v1: &str, v2: &str) -> String {
    let root = Path::new("/sys/fs/cgroup");
    let path = path.trim_start_matches('/');
    let first = root.join(controller).join(path).join(v1);
    let text = std::fs::read_to_string(first);
    let text = text.or_else(|_| std::fs::read_to_string(root.join(path).join(v2)));
    text.unwrap_or_default().trim().to_owned()
}

#[test]
fn the_container_has_the_plugins_values() {
    let Some((host, real, _plugin)) = world("real") else { return };
    let created = host.create("c1");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let started = host.verb(&["start", "c1"]);
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    wait_until("the container has spoken", || host.read("stdout").contains("end\n"));
    let printed = host.read("stdout");
    let ipc = std::fs::read_link("/proc/self/ns/ipc").unwrap();
    for wanted in [
        "env yes after [] one".to_owned(),
        "oom 123".to_owned(),
        "nofile 200 100".to_owned(),
        "device 640 0 6 1 3".to_owned(),
        "device takes".to_owned(),
        "sysctl 77".to_owned(),
        format!("ipc {}", ipc.display()),
        "cpus Cpus_allowed_list:\t0".to_owned(),
    ] {
        assert!(printed.lines().any(|line| line == wanted), "{wanted} is not in: {printed}");
    }
    assert!(printed.contains("poolsize"), "{printed}");
    assert!(printed.contains("Function not implemented"), "{printed}");
    let path = real.cgroup("c1");
    let of = |controller, v1, v2| cgroup(&path, controller, v1, v2);
    assert_eq!(of("memory", "memory.limit_in_bytes", "memory.max"), "67108864");
    assert_eq!(of("pids", "pids.max", "pids.max"), "77");
    let (quota, period) = ("20000", "50000");
    let max = of("cpu", "cpu.cfs_quota_us", "cpu.max");
    assert!(max == quota || max == format!("{quota} {period}"), "{max}");
}

/// Whether it is older than network devices and memory policy; later versions drop nothing.
fn is_old(runc: &Path) -> bool {
    let known = features::ask(runc).unwrap();
    let is_old = known.is_before(RuntimeKind::Runc, (1, 4, 0));
    if !is_old {
        skip::machine_lacks(&format!("{known} honours all that a plugin can set"));
    }
    is_old
}

#[test]
fn fields_that_this_runc_would_skip_are_refused_by_name() {
    let Some((host, real, _plugin)) = world("all") else { return };
    if !is_old(real.runc()) {
        return;
    }
    let before = host.read("bundle/config.json");
    let created = host.create("c1");
    let line = String::from_utf8_lossy(&created.stderr).into_owned();
    assert_eq!((created.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    for word in ["10-stub", "runc", "has no"] {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
    assert_eq!(host.read("bundle/config.json"), before);
}
