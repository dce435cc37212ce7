// SPDX-License-Identifier: Apache-2.0
//! The daemon's knowledge survives damage of its files: invalid records, a full disk, a wiped run
//! directory, a boot; and reconnecting plugins receive the changes since.

mod away;
mod disabled;
mod forgotten;
mod full;
mod lost;
mod records;
mod wiped;

use serde_json::Value;
use test_support::{Script, TestHost, fails, started, succeeds};

/// Writes a separate bundle for a container, with the container's name.
fn bundle(host: &TestHost, id: &str) {
    std::fs::create_dir_all(host.path(id).join("rootfs")).unwrap();
    host.write(&format!("{id}/config.json"), test_support::BUNDLE);
}

/// Creates a container from a separate bundle, and starts it.
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
    // A daemon that was killed while writing leaves a partial file under a hidden name.
    let is_whole = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_whole).collect()
}
