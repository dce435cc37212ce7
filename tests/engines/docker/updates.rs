// SPDX-License-Identifier: Apache-2.0
//! `docker update` and `docker restart` with a plugin that owns half of the fields.

use nri_plugin::{Adjustment, Resources, Update};
use serde_json::{Value, json};

use test_support::{Script, wait_until};

use super::engine::{Docker, Limits, reason, text};
use super::{events, has_received, listening, requests};

const MIB: i64 = 1 << 20;

/// A plugin that owns CPU shares and the pids limit.
fn owns_half() -> Script {
    Adjustment::new().resources(Resources::new().cpu_shares(300).pids_limit(77)).into()
}

/// A container for which Docker sets more limits than the plugin owns.
fn limited(docker: &Docker) -> String {
    let words = ["--memory=64m", "--memory-swap=96m", "--cpu-shares=512", "--pids-limit=50"];
    docker.runs("web", &words)
}

/// Checks the cgroups: shares, quota, memory in MiB, pids. The weights of cgroup v2 are coarse:
/// similar numbers of shares have the same weight.
#[track_caller]
fn assert_limits(docker: &Docker, id: &str, shares: i64, quota: i64, memory: i64, pids: i64) {
    let found = docker.limits(id);
    let near = found.shares.filter(|found| (found - shares).abs() <= 27);
    let wanted = Limits {
        shares: near.map(|_| shares),
        // Without a limit v1 has a negative number, and v2 a word.
        quota: if quota > 0 { Some(quota) } else { found.quota.filter(|found| *found < 0) },
        memory: Some(memory * MIB),
        pids: Some(pids),
    };
    let found = Limits { shares: near.map(|_| shares), ..found };
    assert!(near.is_some(), "{shares} shares wanted, {:?}", docker.limits(id));
    assert_eq!(found, wanted);
}

/// The request that plugins received for the last update.
fn asked(seen: &super::ReceivedRequests) -> Value {
    let mut last = requests(seen, "UpdateContainer").pop().unwrap();
    let mut resources = last["linuxResources"].take();
    resources.as_object_mut().unwrap().retain(|_, part| *part != json!({}));
    resources
}

fn value(number: i64) -> Value {
    json!({"value": number.to_string()})
}

#[test]
fn a_docker_update_wins_for_new_values_and_keeps_owned_ones() {
    let Some(docker) = Docker::new() else { return };
    let (script, seen) = listening(owns_half());
    let received = docker.host.plugin("10", "half", script);
    let id = limited(&docker);
    assert_limits(&docker, &id, 300, -1, 64, 77);

    // Docker changes a field without an owner.
    docker.output_of(&["update", "--memory=48m", "web"]);
    assert_limits(&docker, &id, 300, -1, 48, 77);
    assert_eq!(asked(&seen), json!({"memory": {"limit": value(48 * MIB)}}));
    docker.output_of(&["update", "--cpus=0.5", "web"]);
    assert_limits(&docker, &id, 300, 50_000, 48, 77);
    let quota = json!({"cpu": {"quota": value(50_000), "period": value(100_000)}});
    assert_eq!(asked(&seen), quota);

    // A repeated update changes nothing: plugins receive all of Docker's values.
    docker.output_of(&["update", "--memory=48m", "web"]);
    assert_limits(&docker, &id, 300, 50_000, 48, 77);
    assert_eq!(requests(&seen, "UpdateContainer").len(), 3);
    let repeated = asked(&seen);
    assert_eq!(repeated["memory"]["limit"], value(48 * MIB));
    assert_eq!(
        (&repeated["cpu"]["quota"], &repeated["pids"]["limit"]),
        (&value(50_000), &json!("50"))
    );

    // Docker deliberately changes a value that the plugin owns.
    docker.output_of(&["update", "--cpu-shares=700", "web"]);
    assert_limits(&docker, &id, 700, 50_000, 48, 77);
    assert_eq!(asked(&seen), json!({"cpu": {"shares": value(700)}}));
    wait_until("the last is reported", || requests(&seen, "PostUpdateContainer").len() == 4);
    let last = &requests(&seen, "PostUpdateContainer")[3]["container"]["linux"]["resources"];
    assert_eq!(last["cpu"]["shares"], value(700));
    assert_eq!(last["memory"]["limit"], value(48 * MIB));
    assert_eq!(last["pids"]["limit"], "77");
    assert_eq!(
        docker.inspect("web")["HostConfig"]["PidsLimit"],
        50,
        "Docker does not record plugins' values"
    );

    docker.output_of(&["rm", "--force", "web"]);
    docker.nothing_is_left();
    let updates = ["UpdateContainer", "PostUpdateContainer"].repeat(4);
    let received = events(&received, "web");
    assert_eq!(received[5..received.len() - 4], updates);
}

#[test]
fn a_docker_restart_lets_the_plugin_set_its_values_again() {
    let Some(docker) = Docker::new() else { return };
    let (script, seen) = listening(owns_half());
    let received = docker.host.plugin("10", "half", script);
    let id = limited(&docker);
    docker.output_of(&["update", "--memory=48m", "--cpu-shares=700", "web"]);
    assert_limits(&docker, &id, 700, -1, 48, 77);
    docker.output_of(&["restart", "--time=0", "web"]);
    // The engine's earlier request is in its document now, and the plugin's response to that takes
    // precedence.
    assert_limits(&docker, &id, 300, -1, 48, 77);
    let creates = requests(&seen, "CreateContainer");
    assert_eq!(creates.len(), 2);
    assert_eq!(
        (&creates[0]["container"]["id"], &creates[1]["container"]["id"]),
        (&json!(id), &json!(id))
    );
    let again = &creates[1]["container"]["linux"]["resources"];
    assert_eq!(
        (&again["cpu"]["shares"], &again["memory"]["limit"]),
        (&value(700), &value(48 * MIB))
    );
    docker.output_of(&["rm", "--force", "web"]);
    docker.nothing_is_left();
    let one = &super::LIFE[..];
    let updated = [&one[..5], &["UpdateContainer", "PostUpdateContainer"], &one[5..]].concat();
    assert_eq!(events(&received, "web"), [&updated[..], one].concat());
}

#[test]
fn a_plugins_response_overrides_an_update_of_docker() {
    let Some(docker) = Docker::new() else { return };
    let id = limited(&docker);
    let updates = vec![Update::of(&id).cpu_shares(333).into()];
    let _plugin = docker.host.plugin("20", "answers", Script { updates, ..Script::default() });
    docker.output_of(&["update", "--cpu-shares=700", "--memory=48m", "web"]);
    assert_limits(&docker, &id, 333, -1, 48, 50);
    let explained = docker.host.admin(&["explain", "web"]);
    let changes = explained["changes"].as_array().unwrap();
    let of_it: Vec<&Value> = changes.iter().filter(|c| c["plugin"] == "20-answers").collect();
    assert_eq!((of_it.len(), &of_it[0]["after"]), (1, &json!(333)), "{explained}");
    // The plugin set the value after the creation, and Docker has requested no other value, so the
    // restarted container begins with the plugin's.
    docker.output_of(&["restart", "--time=0", "web"]);
    wait_until("it is set again", || docker.limits(&id).shares.is_some_and(|s| s < 500));
    assert_limits(&docker, &id, 333, -1, 48, 50);
    docker.output_of(&["rm", "--force", "web"]);
    docker.nothing_is_left();
}

#[test]
fn a_docker_update_refused_by_a_plugin_changes_nothing() {
    let Some(docker) = Docker::new() else { return };
    let at = Some("UpdateContainer".to_owned());
    let guard = Script { refuses: Some("no more memory today"), at, ..Script::default() };
    let received = docker.host.plugin("90", "guard", guard);
    let id = limited(&docker);
    let output = docker.call(&["update", "--memory=48m", "--cpu-shares=700", "web"]);
    assert!(!output.status.success());
    let printed = text(&output);
    let line = reason(&output);
    for word in
        ["Cannot update container", "nri-runc: cannot update", "90-guard", "no more memory today"]
    {
        assert!(line.contains(word), "{word} is not in: {printed}");
    }
    assert_limits(&docker, &id, 512, -1, 64, 50);
    assert_eq!(docker.inspect("web")["HostConfig"]["Memory"], 64 * MIB);
    assert!(!has_received(&received, "PostUpdateContainer web"));
    let refused = docker.host.admin(&["explain", "web"])["refused"].to_string();
    assert!(refused.contains("no more memory today"), "{refused}");
    // The container keeps running, and ends as usual.
    assert_eq!(docker.output_of(&["exec", "web", "/bin/sh", "-c", "echo yes"]), "yes");
    docker.output_of(&["rm", "--force", "web"]);
    wait_until("its end is reported", || has_received(&received, "RemovePodSandbox web"));
    docker.no_container_is_left();
}
