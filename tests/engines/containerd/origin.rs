// SPDX-License-Identifier: Apache-2.0
//! A plugin in a container of containerd, with a `from` that names its pod: another container is
//! refused, and the named one connects.

use test_support::example::example;
use test_support::is_synchronized;

use super::ctr::{ctr, image};
use super::host::{self, Engine};

/// Runs the plugin `10-ear` in a container, with the host's libraries.
fn plugin_in(engine: &Engine, image: &str, name: &str) {
    let program = example("event_logger").display().to_string();
    let folder = program.rsplit_once('/').unwrap().0;
    let dir = engine.path("").display().to_string();
    let dir = dir.trim_end_matches('/');
    let socket = format!("{dir}/nri.sock");
    let cgroup = format!("/{}/{name}", engine.cgroup());
    let mounts = ["/usr", "/lib", "/lib64", folder, dir]
        .map(|path| format!("type=bind,src={path},dst={path},options=rbind:ro"));
    let us = env!("CARGO_BIN_EXE_nri-runc");
    let mut words = vec!["run", "--detach", "--snapshotter", "native", "--runc-binary", us];
    words.extend(["--cgroup", &cgroup]);
    for mount in &mounts {
        words.extend(["--mount", mount]);
    }
    words.extend([image, name, &program, "--id", "10-ear", "--socket", &socket]);
    ctr(engine, &words);
}

#[test]
fn a_container_that_is_not_the_named_pod_cannot_be_that_plugin() {
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let config = std::fs::read_to_string(engine.path("nri-runc.toml")).unwrap();
    let config = format!("{config}[plugin.ear]\nfrom = [\"pod:containerd/ear\"]\n");
    nri_runc::testing::files::replace(&engine.path("nri-runc.toml"), config.as_bytes()).unwrap();
    let _daemon = engine.start_daemon();
    let (image, _digest) = image(&engine);
    plugin_in(&engine, &image, "other");
    engine.wait_until("another container is refused", || {
        let status = engine.admin(&["status"])["failures"].to_string();
        status.contains("10-ear was refused") && status.contains("in pod containerd/other")
    });
    plugin_in(&engine, &image, "ear");
    engine.wait_until("the named pod is the plugin", || {
        is_synchronized(&engine.admin(&["plugins"]), "10-ear")
    });
    ctr(&engine, &["task", "kill", "--signal", "SIGKILL", "ear"]);
    for name in ["other", "ear"] {
        engine.wait_until("its task can be deleted", || {
            let deleted = engine.containerd.ctr_in("lab", &["task", "delete", name]);
            deleted.is_ok_and(|output| output.status.success())
        });
        ctr(&engine, &["containers", "delete", name]);
    }
}
