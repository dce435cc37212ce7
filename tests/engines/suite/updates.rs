// SPDX-License-Identifier: Apache-2.0
//! An engine's update and restart of a container with a plugin that owns some of the fields
//! (decision D21 and `docs/compatibility.md`, "Who wins").

use nri_plugin::{Adjustment, Resources, Update};
use serde_json::{Value, json};
use test_support::scripted_plugin::{ReceivedRequests, listening};
use test_support::{LIFE, Script, cgroup, has_received};

use super::client::Client;
use super::{Wanted, exec};

const MIB: i64 = 1 << 20;

/// No limit of the CPU quota, by the value of [`limits`].
const UNLIMITED: i64 = -1;

/// A plugin that owns CPU shares, the pids limit and a variable.
fn owns_half() -> Script {
    Adjustment::new()
        .env("HELLO", "there")
        .resources(Resources::new().cpu_shares(300).pids_limit(77))
        .into()
}

/// Runs a container for which the engine sets more limits than the plugin owns.
fn limited(host: &impl Client) -> String {
    let options = &["--memory=64m", "--memory-swap=96m", "--cpu-shares=512", "--pids-limit=50"];
    host.run(&Wanted { options, ..Wanted::default() }).unwrap()
}

/// MiB of the memory limit by the engine's record.
fn recorded_memory(host: &impl Client) -> i64 {
    host.inspect("web")["HostConfig"]["Memory"].as_i64().unwrap() / MIB
}

/// Checks the cgroups: MiB of memory, shares, quota, pids.
#[track_caller]
fn assert_limits(host: &impl Client, id: &str, [memory, shares, quota, pids]: [i64; 4]) {
    let quota =
        if quota == UNLIMITED && cgroup::is_v2() { "max".into() } else { quota.to_string() };
    let wanted = [(memory * MIB).to_string(), shares.to_string(), quota, pids.to_string()];
    assert_eq!(host.limits(id), wanted);
}

fn requests(seen: &ReceivedRequests, event: &str) -> Vec<Value> {
    let all = seen.lock().unwrap();
    all.iter().filter(|(what, _)| what == event).map(|(_, request)| request.clone()).collect()
}

/// The resources that plugins received for the last update.
fn asked(seen: &ReceivedRequests) -> Value {
    let mut last = requests(seen, "UpdateContainer").pop().unwrap();
    let mut resources = last["linuxResources"].take();
    resources.as_object_mut().unwrap().retain(|_, part| *part != json!({}));
    resources
}

fn value(number: i64) -> Value {
    json!({"value": number.to_string()})
}

pub(super) fn an_engines_update_wins_for_new_values_and_keeps_owned_ones<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let (script, seen) = listening(owns_half());
    let received = host.plugin("10-half", script);
    let id = limited(&host);
    assert_limits(&host, &id, [64, 300, UNLIMITED, 77]);
    let updates = |option: &str, limits: [i64; 4]| {
        host.good(&["update", option, "web"]);
        assert_limits(&host, &id, limits);
        asked(&seen)
    };

    // The engine changes fields without an owner.
    let memory = updates("--memory=48m", [48, 300, UNLIMITED, 77]);
    assert_eq!(memory, json!({"memory": {"limit": value(48 * MIB)}}));
    let quota = updates("--cpus=0.5", [48, 300, 50_000, 77]);
    assert_eq!(quota, json!({"cpu": {"quota": value(50_000), "period": value(100_000)}}));

    // A repeated update changes nothing: plugins receive all of the engine's values.
    let repeated = updates("--memory=48m", [48, 300, 50_000, 77]);
    assert_eq!(repeated["memory"]["limit"], value(48 * MIB));
    if E::RECORDS_REQUESTS {
        let others = (&repeated["cpu"]["quota"], &repeated["pids"]["limit"]);
        assert_eq!(others, (&value(50_000), &json!("50")));
    }
    updates("--cpu-shares=512", [48, 300, 50_000, 77]);
    assert_eq!(requests(&seen, "UpdateContainer").len(), 4);

    // The engine deliberately changes a value that the plugin owns.
    let shares = updates("--cpu-shares=700", [48, 700, 50_000, 77]);
    assert_eq!(shares, json!({"cpu": {"shares": value(700)}}));
    host.wait_until("it is reported", || requests(&seen, "PostUpdateContainer").len() == 5);
    let last = &requests(&seen, "PostUpdateContainer")[4]["container"]["linux"]["resources"];
    assert_eq!(last["cpu"]["shares"], value(700));
    assert_eq!(last["memory"]["limit"], value(48 * MIB));
    assert_eq!(last["pids"]["limit"], "77");
    let recorded = host.inspect("web")["HostConfig"]["PidsLimit"].take();
    assert!(recorded == 50 || !E::RECORDS_REQUESTS, "the engine recorded a plugin's value");
    // The plugin's value does not come back with the next update.
    updates("--memory=40m", [40, 700, 50_000, 77]);

    host.remove(&["web"]);
    host.nothing_is_left();
    let updates = ["UpdateContainer", "PostUpdateContainer"].repeat(6);
    assert_eq!(received.lock().unwrap()[..], life_with(&updates));
}

/// The events of the container `web`, with others while it runs.
fn life_with(others: &[&str]) -> Vec<String> {
    let events = [&LIFE[..5], others, &LIFE[5..]].concat();
    events.into_iter().map(|event| format!("{event} web")).collect()
}

pub(super) fn an_update_refused_by_a_plugin_changes_nothing<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let at = Some("UpdateContainer".to_owned());
    let guard = Script { refuses: Some("no more memory today"), at, ..owns_half() };
    let received = host.plugin("90-guard", guard);
    let id = limited(&host);
    let update = ["update", "--memory=48m", "--cpu-shares=700", "--cpus=0.5", "web"];
    let output = host.call(&update);
    assert!(!output.status.success());
    let printed = String::from_utf8_lossy(&output.stderr);
    for word in ["nri-runc: cannot update", "90-guard", "no more memory today"] {
        assert!(printed.contains(word), "{word} is not in: {printed}");
    }
    assert_limits(&host, &id, [64, 300, UNLIMITED, 77]);
    assert!(recorded_memory(&host) == 64 || !E::RECORDS_REQUESTS, "the engine records it");
    assert!(!has_received(&received, "PostUpdateContainer web"));
    let refused = host.admin(&["explain", "web"])["refused"].to_string();
    assert!(refused.contains("no more memory today"), "{refused}");
    // The container keeps running, and ends as usual.
    assert_eq!(exec(&host, &["/bin/sh", "-c", "echo yes"]).text, "yes\n");
    host.remove(&["web"]);
    host.wait_until("its end is reported", || has_received(&received, "RemovePodSandbox web"));
    host.no_container_is_left();
}

pub(super) fn a_plugins_response_overrides_an_update<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let id = limited(&host);
    // The engine requests the first of these fields, and not the second.
    let answer = Update::of(&id).resources(Resources::new().cpu_shares(333).pids_limit(55));
    let script = Script { updates: vec![answer.into()], ..Script::default() };
    let _plugin = host.plugin("20-answers", script);
    host.good(&["update", "--cpu-shares=700", "--memory=48m", "web"]);
    assert_limits(&host, &id, [48, 333, UNLIMITED, 55]);
    let explained = host.admin(&["explain", "web"]);
    let changes = explained["changes"].as_array().unwrap();
    let of_it = changes.iter().filter(|change| change["plugin"] == "20-answers");
    let mut values: Vec<_> = of_it.map(|change| change["after"].as_i64().unwrap()).collect();
    values.sort_unstable();
    assert_eq!(values, [55, 333], "{explained}");
    assert!(explained.to_string().contains("UpdateContainer"), "{explained}");
    // The plugin set the values after the creation, and the engine has requested no others, so the
    // restarted container begins with the plugin's. Podman 4 returns to the shares of the creation.
    host.good(&["restart", "--time=0", "web"]);
    host.wait_until("they are set again", || host.limits(&id)[3] == "55");
    if E::RECORDS_REQUESTS {
        assert_limits(&host, &id, [48, 333, UNLIMITED, 55]);
    }
    host.remove(&["web"]);
    host.nothing_is_left();
}

pub(super) fn a_plugins_own_update_outlives_the_engines_next_one<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let id = limited(&host);
    let wanted = Update::of(&id).resources(Resources::new().cpu_shares(300).pids_limit(44));
    let script = Script { wants: vec![wanted.into()], ..Script::default() };
    let _plugin = host.plugin("10-late", script);
    host.wait_until("it is carried out", || host.limits(&id)[3] == "44");
    assert_limits(&host, &id, [64, 300, UNLIMITED, 44]);
    host.good(&["update", "--memory=48m", "web"]);
    assert_limits(&host, &id, [48, 300, UNLIMITED, 44]);
    host.remove(&["web"]);
}

pub(super) fn a_restart_lets_the_plugin_set_its_values_again<E: Client>() {
    let Some(host) = E::with_nri_runc() else { return };
    let (script, seen) = listening(owns_half());
    let received = host.plugin("10-half", script);
    let id = limited(&host);
    host.good(&["update", "--memory=48m", "--cpu-shares=700", "web"]);
    assert_limits(&host, &id, [48, 700, UNLIMITED, 77]);
    host.good(&["restart", "--time=0", "web"]);
    // If the engine records its earlier request, that is in its document now, and the plugin's
    // response to that takes precedence.
    let memory = recorded_memory(&host);
    assert!(memory == 48 || !E::RECORDS_REQUESTS, "{memory} MiB");
    assert_limits(&host, &id, [memory, 300, UNLIMITED, 77]);
    let environ = exec(&host, &["/bin/cat", "/proc/1/environ"]).text;
    assert_eq!(environ.matches("HELLO=there").count(), 1, "{environ}");
    assert_eq!(host.inspect("web")["Id"], id);
    let creates = requests(&seen, "CreateContainer");
    let ids: Vec<_> = creates.iter().map(|create| &create["container"]["id"]).collect();
    assert_eq!(ids, [&id, &id]);
    let again = &creates[1]["container"]["linux"]["resources"];
    assert_eq!(again["memory"]["limit"], value(memory * MIB));
    assert!(again["cpu"]["shares"] == value(700) || !E::RECORDS_REQUESTS, "{again}");
    host.remove(&["web"]);
    host.nothing_is_left();
    let updated = life_with(&["UpdateContainer", "PostUpdateContainer"]);
    assert_eq!(received.lock().unwrap()[..], [updated, life_with(&[])].concat());
}
