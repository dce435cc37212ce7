// SPDX-License-Identifier: Apache-2.0
//! Containers that a real runtime created without nri-runc, with `[nri] scope = "node"`: they are updated
//! through that runtime, so that its later updates keep the plugins' values, and evicted.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{Place, is_done, request, skip, unstarted_place, wait_until};
use nri_runc::plugin::api;

/// A host that shows plugins the whole node; its daemon is not started yet.
fn whole_node(runtime: &str) -> Option<Place> {
    if !Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
        skip::machine_lacks("this host has no cgroup v1");
        return None;
    }
    let place = unstarted_place(runtime, "")?;
    let root = place.host.path("root").display().to_string();
    std::fs::create_dir_all(&root).unwrap();
    let more = format!(
        "autostart = false\ndebug.runtime_roots = [\"{root}\"]\n[nri]\nscope = \"node\"\n[eviction]\nsignal = \"KILL\""
    );
    place.host.configure(place.real.runc(), &more);
    Some(place)
}

/// Calls the runtime directly.
fn plain(place: &Place, words: &[&str]) {
    let root = place.host.path("root").display().to_string();
    let mut called = Command::new(place.real.runc());
    let called = called.args(["--root", &root]).args(words);
    // A container's process keeps its inherited descriptors open.
    let called = called.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    assert!(called.stderr(std::process::Stdio::null()).status().unwrap().success(), "{words:?}");
}

fn plain_run(place: &Place, id: &str) {
    place.prepare(id, &json!({"memory": {"limit": 128 << 20}}));
    let bundle = place.host.path(id).display().to_string();
    plain(place, &["create", "--bundle", &bundle, id]);
    plain(place, &["start", id]);
}

#[test]
fn updates_go_through_the_runtime_that_made_the_container() {
    updates("runc");
}

/// crun refuses a hybrid of cgroups v1 and v2, so the test runs without the v2 hierarchy.
#[test]
fn updates_go_through_crun_and_keep_its_own_values() {
    test_support::cgroup::leave_v2_beside_v1();
    updates("crun");
}

fn updates(runtime: &str) {
    let Some(mut place) = whole_node(runtime) else { return };
    plain_run(&place, "theirs");
    place.host.start_daemon();
    let asking = place.asker();
    assert_eq!(place.state("theirs").as_deref(), Some("running"), "{runtime}");
    assert!(is_done(&asking, "theirs", &json!({"cpu": {"shares": 333}})), "{runtime}");
    assert_eq!(place.file("theirs", "cpu", "cpu.shares"), "333");
    assert_eq!(place.file("theirs", "memory", "memory.limit_in_bytes"), (128 << 20).to_string());
    // The engine updates it, and no wrapper is called.
    plain(&place, &["update", "--memory", "67108864", "theirs"]);
    assert_eq!(place.file("theirs", "cpu", "cpu.shares"), "333", "{runtime}");
    assert!(is_done(&asking, "theirs", &json!({"pids": {"limit": 77}})), "{runtime}");
    let memory = place.file("theirs", "memory", "memory.limit_in_bytes");
    assert_eq!(memory, (64 << 20).to_string(), "{runtime}: the engine's last word stays");
    assert_eq!(place.file("theirs", "pids", "pids.max"), "77");
    assert!(!is_done(&asking, "theirs", &json!({"cpu": {"cpus": "900"}})), "{runtime}");
    plain(&place, &["delete", "--force", "theirs"]);
    wait_until("it is removed", || place.state("theirs").is_none());
    assert!(!is_done(&asking, "theirs", &json!({"cpu": {"shares": 2}})), "it is gone");
}

#[test]
fn a_plain_container_is_evicted_with_or_without_exit_code() {
    let Some(mut place) = whole_node("runc") else { return };
    place.host.start_daemon();
    let asking = place.asker();
    plain_run(&place, "theirs");
    wait_until("it is seen", || place.state("theirs").as_deref() == Some("running"));
    let eviction = api::ContainerEviction {
        container_id: "theirs".to_owned(),
        reason: "makes room".to_owned(),
        ..Default::default()
    };
    asking
        .ask(api::UpdateContainersRequest { evict: vec![eviction], ..request(Vec::new()) })
        .unwrap();
    wait_until("it has ended", || place.state("theirs").as_deref() == Some("stopped"));
    let explained = place.host.admin(&["explain", "theirs"]);
    assert_eq!(explained["changes"][0]["plugin"], "10-asker", "{explained}");
    assert!(explained["exit_code"].is_null() || explained["exit_code"] == 137, "{explained}");
    plain(&place, &["delete", "theirs"]);
    wait_until("it is removed", || place.state("theirs").is_none());
}

#[test]
fn the_start_of_a_created_plain_container_is_noticed() {
    let Some(mut place) = whole_node("runc") else { return };
    place.prepare("theirs", &json!({}));
    let bundle = place.host.path("theirs").display().to_string();
    plain(&place, &["create", "--bundle", &bundle, "theirs"]);
    place.host.start_daemon();
    let received = place.host.plugin("10", "env", super::Script::default());
    assert_eq!(place.state("theirs").as_deref(), Some("created"));
    plain(&place, &["start", "theirs"]);
    wait_until("its start is seen", || place.state("theirs").as_deref() == Some("running"));
    let wanted = ["Synchronize theirs", "StartContainer theirs", "PostStartContainer theirs"];
    wait_until("it is reported", || *received.lock().unwrap() == wanted);
    plain(&place, &["delete", "--force", "theirs"]);
    wait_until("it is removed", || place.state("theirs").is_none());
}
