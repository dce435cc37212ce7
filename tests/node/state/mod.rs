// SPDX-License-Identifier: Apache-2.0
//! What the daemon knows survives whatever becomes of its files: records that are garbage, a disk
//! that is full, a run directory that is wiped, a boot; and plugins that come back are told of
//! what happened meanwhile.

mod away;
mod disabled;
mod forgotten;
mod full;
mod lost;
mod records;
mod wiped;

use serde_json::Value;
use test_support::{Script, TestHost, fails, started, succeeds};

/// A bundle of its own for a container, which has the container's name.
fn bundle(host: &TestHost, id: &str) {
    std::fs::create_dir_all(host.path(id).join("rootfs")).unwrap();
    host.write(&format!("{id}/config.json"), test_support::BUNDLE);
}

/// Makes a container from a bundle of its own, and starts it.
fn run(host: &TestHost, id: &str) {
    bundle(host, id);
    succeeds(&host.create_from(id, id));
    succeeds(&host.verb(&["start", id]));
}

/// A container as `pods` shows it.
fn shown(host: &TestHost, id: &str) -> Value {
    let pods = host.admin(&["pods"]);
    let pods = pods.as_array().into_iter().flatten();
    let mut all = pods.flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
    all.find(|container| container["id"] == id).unwrap_or_default()
}

fn state(host: &TestHost, id: &str) -> String {
    shown(host, id)["state"].as_str().unwrap_or_default().to_owned()
}

/// The record files of one kind.
fn files(host: &TestHost, kind: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(host.path("run/state").join(kind)).into_iter().flatten();
    // A daemon that was killed while it wrote leaves the half of it under a hidden name.
    let is_whole = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_whole).collect()
}
