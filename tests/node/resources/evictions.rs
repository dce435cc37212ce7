// SPDX-License-Identifier: Apache-2.0
//! Evictions: carried out by the real runtime, with a reason, and only as far as permitted.

use nri_runc::plugin::api;
use serde_json::json;

use super::{Place, Script, anywhere, request, succeeds, wait_until};

fn eviction(id: &str) -> api::ContainerEviction {
    api::ContainerEviction {
        container_id: id.to_owned(),
        reason: "makes room".to_owned(),
        ..Default::default()
    }
}

fn evict(ids: &[&str]) -> api::UpdateContainersRequest {
    let evict = ids.iter().map(|id| eviction(id)).collect();
    api::UpdateContainersRequest { evict, ..request(Vec::new()) }
}

fn ends(place: &Place, id: &str) {
    wait_until("it has ended", || place.state(id).as_deref() == Some("stopped"));
}

#[test]
fn an_evicted_container_is_killed_and_explain_has_the_reason() {
    // A process 1 that ignores SIGTERM: sleep has no handler for it.
    let Some(place) = anywhere("runc", "[eviction]\ngrace = \"300ms\"\n") else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    asking.ask(evict(&["c1", "nobody", "c1"])).unwrap();
    asking.ask(evict(&["c1"])).unwrap();
    ends(&place, "c1");
    let explained = place.host.admin(&["explain", "c1"]);
    let changes = explained["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "once: {explained}");
    assert_eq!(changes[0]["plugin"], "10-asker");
    assert_eq!(changes[0]["after"], "makes room");
    assert_eq!(explained["skipped"], json!([]), "{explained}");
}

#[test]
fn an_update_response_may_evict_with_the_configured_signal() {
    let Some(place) = anywhere("runc", "[eviction]\nsignal = \"KILL\"\ngrace = \"100s\"\n") else {
        return;
    };
    place.run("c1", &json!({}));
    place.run("c2", &json!({}));
    let script = Script { evicts: vec![eviction("c2")], ..Script::default() };
    let _plugin = place.host.plugin("10", "evictor", script);
    succeeds(&place.update("c1", &json!({"pids": {"limit": 50}})));
    ends(&place, "c2");
    assert_eq!(place.state("c1").as_deref(), Some("running"));
}

#[test]
fn a_container_without_permitted_eviction_stays_alive() {
    for (more, why) in [
        ("[plugin.asker]\nevict = \"deny\"", "may not evict containers (plugin.asker.evict)"),
        ("[plugin.\"*\"]\nevict = \"deny\"", "(plugin.\"*\".evict)"),
        ("[plugin.asker]\nevict = \"own-namespace\"", "own namespace"),
        ("[eviction]\nper_minute = 0\n", "per_minute"),
    ] {
        let Some(place) = anywhere("runc", more) else { return };
        place.run("c1", &json!({}));
        let asking = place.asker();
        asking.ask(evict(&["c1"])).unwrap();
        let explained = place.host.admin(&["explain", "c1"]);
        let reason = explained["skipped"][0]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(why), "{explained}");
        assert_eq!(explained["changes"], json!([]), "{explained}");
        assert_eq!(place.state("c1").as_deref(), Some("running"));
    }
}

#[test]
fn an_eviction_that_could_not_begin_can_be_requested_again() {
    let Some(mut place) = anywhere("runc", "[debug]\nfault = \"daemon.evict:fail\"") else {
        return;
    };
    place.run("c1", &json!({}));
    let asking = place.asker();
    asking.ask(evict(&["c1"])).unwrap();
    let explained = place.host.admin(&["explain", "c1"]);
    let reason = explained["skipped"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("its eviction failed: fault injected"), "{explained}");
    assert_eq!(
        (place.state("c1").as_deref(), &explained["changes"]),
        (Some("running"), &json!([]))
    );
    place.host.configure(place.real.runc(), "[eviction]\nsignal = \"KILL\"");
    place.host.kill_daemon();
    place.host.start_daemon();
    place.asker().ask(evict(&["c1"])).unwrap();
    ends(&place, "c1");
}

#[test]
fn the_next_daemon_carries_out_a_pending_eviction() {
    let grace = "[eviction]\ngrace = \"300ms\"\n";
    let fault = format!("{grace}\n[debug]\nfault = \"daemon.evict:kill\"");
    let Some(mut place) = anywhere("runc", &fault) else { return };
    place.run("c1", &json!({}));
    let asking = place.asker();
    assert!(!matches!(asking.try_ask(evict(&["c1"])), Ok(Ok(_))), "nobody is left to answer");
    assert!(!place.file("c1", "pids", "cgroup.procs").is_empty());
    place.host.configure(place.real.runc(), grace);
    place.host.kill_daemon();
    place.host.start_daemon();
    ends(&place, "c1");
    let explained = place.host.admin(&["explain", "c1"]);
    assert_eq!(explained["changes"][0]["after"], "makes room", "{explained}");
}
