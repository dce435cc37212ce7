// SPDX-License-Identifier: Apache-2.0
//! What the daemon knows survives whatever becomes of its files: records that are garbage, a disk
//! that is full, a run directory that is wiped, a boot; and plugins that come back are told of
//! what happened meanwhile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod away;
mod full;
#[path = "../support/player.rs"]
mod player;
mod records;
#[path = "../bundle/rig.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod rig;
mod wiped;

use nri_runc::plugin::api;
use serde_json::Value;

use player::Manner;
use rig::Rig;

/// A plugin that sets a variable, so that every document is patched.
fn sets() -> Manner {
    let env = api::KeyValue { key: "HELLO".into(), value: "there".into(), ..Default::default() };
    let adjust = api::ContainerAdjustment { env: vec![env], ..Default::default() };
    Manner { adjust, ..Manner::default() }
}

fn started(more: &str) -> Rig {
    let mut rig = Rig::new(more);
    rig.start_daemon();
    rig
}

#[track_caller]
fn succeeds(output: &std::process::Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Fails with one line that has all these words.
#[track_caller]
fn fails(output: &std::process::Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.lines().count() == 1, "{line}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

/// A bundle of its own for a container, which has the container's name.
fn bundle(rig: &Rig, id: &str) {
    std::fs::create_dir_all(rig.path(id).join("rootfs")).unwrap();
    rig.write(&format!("{id}/config.json"), rig::BUNDLE);
}

/// Makes a container from a bundle of its own, and starts it.
fn run(rig: &Rig, id: &str) {
    bundle(rig, id);
    succeeds(&rig.create_from(id, id));
    succeeds(&rig.verb(&["start", id]));
}

/// A container as `pods` shows it.
fn shown(rig: &Rig, id: &str) -> Value {
    let pods = rig.admin(&["pods"]);
    let pods = pods.as_array().into_iter().flatten();
    let mut all = pods.flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
    all.find(|container| container["id"] == id).unwrap_or_default()
}

fn state(rig: &Rig, id: &str) -> String {
    shown(rig, id)["state"].as_str().unwrap_or_default().to_owned()
}

/// The record files of one kind.
fn files(rig: &Rig, kind: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(rig.path("run/state").join(kind)).into_iter().flatten();
    // A daemon that was killed while it wrote leaves the half of it under a hidden name.
    let is_whole = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_whole).collect()
}
