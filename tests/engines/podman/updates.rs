// SPDX-License-Identifier: Apache-2.0
//! `podman update` with a plugin that owns half of the fields (decision D21 and
//! `docs/compatibility.md`, "Who wins").

use nri_plugin::{Adjustment, Update};
use serde_json::json;
use test_support::{Script, cgroup};

use super::{
    EventLines, PodmanHost, bytes, installed, limit, listening, request_of, resources, run,
};

/// The memory limit, CPU shares and pids limit in the cgroup.
fn limits(host: &PodmanHost, id: &str) -> [String; 3] {
    ["memory", "shares", "pids"].map(|what| limit(host, id, what))
}

fn limits_of(memory: u64, cpu: u64, pids: &str) -> [String; 3] {
    [bytes(memory), cpu.to_string(), pids.to_owned()]
}

fn count_received(received: &EventLines, event: &str) -> usize {
    received.lock().unwrap().iter().filter(|known| **known == format!("{event} web")).count()
}

/// The engine sets memory and shares; a plugin sets other shares, and a pids limit.
fn owned(script: Script) -> Option<(PodmanHost, EventLines, String)> {
    let host = installed("")?;
    let adjust = Script::from(Adjustment::new().resources(resources(0, 300, 77))).adjust;
    let received = host.plugin("10", "owner", Script { adjust, ..script });
    let id = run(&host, "web", &["--memory", "64m", "--cpu-shares", "512"], &[]);
    assert_eq!(limits(&host, &id), limits_of(64, 300, "77"));
    Some((host, received, id))
}

#[test]
fn an_engine_changes_its_own_values_not_the_plugins() {
    let (script, requests) = listening(Script::default());
    let Some((host, received, id)) = owned(script) else { return };
    host.good(&["update", "--memory", "96m", "web"]);
    assert_eq!(limits(&host, &id), limits_of(96, 300, "77"));
    // A repeated value is not a change by the engine: plugins are asked, and none answers.
    host.good(&["update", "--cpu-shares", "512", "web"]);
    assert_eq!(limits(&host, &id), limits_of(96, 300, "77"));
    assert_eq!(count_received(&received, "UpdateContainer"), 2);
    let asked = request_of(&requests, "UpdateContainer", "web");
    let linux = &asked["linuxResources"];
    assert_eq!(linux["memory"]["limit"]["value"], (96_u64 << 20).to_string());
    assert_eq!(linux["cpu"]["shares"], json!(null), "{linux}");
    host.wait_until("its success is reported", || {
        count_received(&received, "PostUpdateContainer") >= 1
    });
}

#[test]
fn a_value_that_the_engine_changes_becomes_the_engines() {
    let Some((host, received, id)) = owned(Script::default()) else { return };
    host.good(&["update", "--cpu-shares", "700", "web"]);
    assert_eq!(limits(&host, &id), limits_of(64, 700, "77"));
    host.good(&["update", "--memory", "96m", "web"]);
    assert_eq!(
        limits(&host, &id),
        limits_of(96, 700, "77"),
        "it does not come back with the next one"
    );
    assert_eq!(count_received(&received, "UpdateContainer"), 2);
}

#[test]
fn a_podman_update_gives_the_runtime_the_plugins_values() {
    // The plugin answers for the ID of only one container.
    let answers = |id: &str| Update::of(id).resources(resources(48, 0, 55)).into();
    let Some(host) = installed("") else { return };
    let id = run(&host, "web", &["--memory", "64m", "--cpu-shares", "512"], &[]);
    let script = Script { updates: vec![answers(&id)], ..Script::default() };
    let _plugin = host.plugin("10", "owner", script);
    host.good(&["update", "--memory", "96m", "--cpu-shares", "200", "web"]);
    assert_eq!(limits(&host, &id), limits_of(48, 200, "55"));
    let explained = host.admin(&["explain", &id]).to_string();
    assert!(explained.contains("10-owner") && explained.contains("UpdateContainer"), "{explained}");
}

#[test]
fn a_refused_update_changes_nothing_and_names_the_plugin() {
    let refuses = Script {
        refuses: Some("the budget is spent"),
        at: Some("UpdateContainer".to_owned()),
        ..Script::default()
    };
    let Some((host, received, id)) = owned(refuses) else { return };
    let update = ["update", "--memory", "96m", "--cpu-shares", "700", "--cpus", "0.5", "web"];
    host.bad(&update, &["10-owner", "the budget is spent"]);
    assert_eq!(limits(&host, &id), limits_of(64, 300, "77"));
    assert_eq!(limit(&host, &id, "quota"), unlimited());
    assert_eq!(count_received(&received, "PostUpdateContainer"), 0);
    host.good(&["exec", "web", "true"]);
}

fn unlimited() -> &'static str {
    if cgroup::is_v2() { "max" } else { "-1" }
}

#[test]
fn plugin_values_return_with_a_restarted_container() {
    let Some((host, _plugin, id)) = owned(Script::default()) else { return };
    host.good(&["update", "--memory", "96m", "web"]);
    host.good(&["restart", "--time", "0", "web"]);
    assert_eq!(limits(&host, &id)[1..], limits_of(0, 300, "77")[1..]);
}

#[test]
fn a_plugins_own_update_outlives_the_engines_next_one() {
    let Some(host) = installed("") else { return };
    let id = run(&host, "web", &["--memory", "64m", "--cpu-shares", "512"], &[]);
    let wants = vec![Update::of(&id).resources(resources(0, 300, 44)).into()];
    let script = Script { wants, ..Script::default() };
    let _plugin = host.plugin("10", "late", script);
    host.wait_until("it is carried out", || limits(&host, &id) == limits_of(64, 300, "44"));
    host.good(&["update", "--memory", "96m", "web"]);
    assert_eq!(limits(&host, &id), limits_of(96, 300, "44"));
}
