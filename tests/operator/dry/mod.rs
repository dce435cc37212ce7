// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri replay` and `adjust` with a driver outside of the project: every kind of line,
//! every cause of failure, plugins that connect, hang, refuse and disconnect.

mod adjust;
mod execs;
mod failures;
mod recording;
mod script;

use nri_runc::plugin::{ALL_EVENTS, Event, api};
use serde_json::json;
use test_support::replay::{Action, Replay, ReplayPlugin, create, setting, shares};

#[test]
fn adjustments_of_several_plugins_are_merged_with_owners() {
    let mut replay = Replay::start();
    // The plugin with the later index connects first.
    let second = replay.plugin("20-second", ReplayPlugin::new().creating(setting("B", "2")));
    replay.plugin("10-first", ReplayPlugin::new().creating(setting("A", "1")));
    let answer = replay.create();
    let env = json!([{"key": "A", "value": "1"}, {"key": "B", "value": "2"}]);
    assert_eq!(answer["reply"]["adjust"]["env"], env, "{answer}");
    assert_eq!(answer["owners"], json!({"Env[A]": "10-first", "Env[B]": "20-second"}));
    assert!(second.last("CreateContainer").contains("A=1"), "the earlier plugin's work is seen");
}

#[test]
fn without_plugins_the_reply_is_empty() {
    let mut replay = Replay::start();
    let answer = replay.create();
    assert!(answer.get("error").is_none() && answer["owners"] == json!({}), "{answer}");
    let (rest, status) = replay.end();
    assert!(rest.is_empty() && status.success());
}

#[test]
fn every_request_reaches_exactly_its_subscribers() {
    let mut replay = Replay::start();
    let all = replay.plugin("10-all", ReplayPlugin::new());
    let one = replay.plugin("20-one", ReplayPlugin::new().subscribing(&[Event::StartContainer]));
    let mut wanted = vec!["Configure".to_owned(), "Synchronize".to_owned()];
    for event in ALL_EVENTS {
        if event == Event::ValidateContainerAdjustment {
            continue;
        }
        let request = if event.name().contains("Pod") {
            json!({"pod": {"id": "p0"}})
        } else {
            json!({"pod": {"id": "p0"}, "container": {"id": "c0"}})
        };
        let line = json!({"id": event.name(), "call": event.name(), "request": request});
        let answer = replay.ask(&line);
        assert!(answer.get("error").is_none() && answer.get("reply").is_some(), "{answer}");
        wanted.push(event.name().to_owned());
    }
    assert_eq!(all.methods(), wanted);
    assert_eq!(one.methods(), ["Configure", "Synchronize", "StartContainer"]);
}

#[test]
fn a_resized_pods_resources_are_sent() {
    let mut replay = Replay::start();
    let requests = replay.plugin("10-a", ReplayPlugin::new());
    let line = json!({"id": 1, "call": "UpdatePodSandbox", "request": {"pod": {"id": "p0"},
        "overheadLinuxResources": {"cpu": {"shares": {"value": "77"}}},
        "linux_resources": {"memory": {"limit": {"value": 4096}}}}});
    assert!(replay.ask(&line).get("error").is_none());
    let received = requests.last("UpdatePodSandbox");
    assert!(received.contains("77") && received.contains("4096"), "{received}");
}

#[test]
fn newcomers_are_synchronized_with_the_last_state() {
    let mut replay = Replay::start();
    let state = json!({"id": 1, "state": {"pods": [{"id": "p7"}], "containers": [{"id": "c7"}]}});
    assert_eq!(replay.ask(&state), json!({"id": 1, "ok": true}));
    let plugin = ReplayPlugin::new().synchronizing(Action::Update(shares("c7", 12)));
    let requests = plugin.connect(replay.path("nri.sock"), "10-a");
    replay.event("registered", "10-a");
    let line = replay.event("synchronized", "10-a");
    assert_eq!(line["updates"][0]["containerId"], "c7", "{line}");
    let received = requests.last("Synchronize");
    assert!(received.contains("p7") && received.contains("c7"), "{received}");
}

#[test]
fn updates_and_evictions_are_merged() {
    let mut replay = Replay::start();
    replay.plugin(
        "10-a",
        ReplayPlugin::new().at(Event::UpdateContainer, Action::Update(shares("c1", 7))),
    );
    replay.plugin(
        "20-b",
        ReplayPlugin::new().at(Event::UpdateContainer, Action::Evict("c2", "noisy")),
    );
    let own = ReplayPlugin::new().at(Event::UpdateContainer, Action::Update(shares("c0", 6)));
    replay.plugin("30-c", own.at(Event::StopContainer, Action::Update(shares("c3", 9))));
    let request = json!({"pod": {"id": "p0"}, "container": {"id": "c0"},
        "linuxResources": {"cpu": {"shares": {"value": 5}, "cpus": "0-3"}}});
    let update = json!({"id": 1, "call": "UpdateContainer", "request": request});
    let answer = replay.ask(&update);
    let updates = &answer["reply"]["update"];
    let (other, own) = (&updates[0], &updates[1]);
    assert_eq!((&other["containerId"], &own["containerId"]), (&json!("c1"), &json!("c0")));
    let cpu = json!({"shares": {"value": "6"}, "cpus": "0-3"});
    assert_eq!(own["linux"]["resources"]["cpu"], cpu, "the engine's own wish is kept");
    assert_eq!(answer["owners"], json!({"CPUShares": "30-c"}));
    assert_eq!(answer["reply"]["evict"], json!([{"containerId": "c2", "reason": "noisy"}]));
    let stop = json!({"id": 2, "call": "StopContainer", "request": {"container": {"id": "c0"}}});
    let answer = replay.ask(&stop);
    assert_eq!(answer["reply"]["update"][0]["containerId"], "c3", "{answer}");
}

#[test]
fn an_update_from_inside_a_handler_is_accepted_and_printed() {
    let mut replay = Replay::start();
    replay.plugin("10-a", ReplayPlugin::new().creating(Action::Ask(shares("c1", 3))));
    let answer = replay.create();
    assert_eq!(answer["reply"]["adjust"]["env"][0], json!({"key": "FAILED", "value": "0"}));
    let line = replay.event("UpdateContainers", "10-a");
    assert_eq!(line["request"]["update"][0]["containerId"], "c1", "{line}");
}

#[test]
fn replay_ask_updates_takes_the_answer_from_the_script() {
    for (reply, wanted) in [
        (json!({"reply": {"failed": [{"containerId": "c1"}]}}), ("FAILED", "1")),
        (json!({"error": "not now"}), ("REFUSED", "not now")),
        (json!({}), ("FAILED", "0")),
    ] {
        let mut replay = Replay::with("", &["--ask-updates"]);
        replay.plugin("10-a", ReplayPlugin::new().creating(Action::Ask(shares("c1", 3))));
        replay.send(&create(json!(1)));
        let line = replay.event("UpdateContainers", "10-a");
        let mut answer = json!({"answer": line["ask"]});
        answer.as_object_mut().unwrap().extend(reply.as_object().unwrap().clone());
        replay.send(&answer);
        let created = replay.answer(&json!(1));
        let (key, value) = wanted;
        let env = &created["reply"]["adjust"]["env"][0];
        assert_eq!(*env, json!({"key": key, "value": value}), "{created}");
    }
}

#[test]
fn replay_ask_sync_takes_the_state_from_the_script() {
    let mut replay = Replay::with("", &["--ask-sync"]);
    let requests = ReplayPlugin::new().connect(replay.path("nri.sock"), "10-a");
    let line = replay.event("synchronize", "10-a");
    replay.send(&json!({"answer": line["ask"], "state": {"pods": [{"id": "p9"}]}}));
    replay.event("synchronized", "10-a");
    assert!(requests.last("Synchronize").contains("p9"));
}

#[test]
fn a_validator_receives_all_changes_and_their_owners() {
    let mut replay = Replay::start();
    replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
    let events = [Event::ValidateContainerAdjustment];
    let validator = replay.plugin("90-judge", ReplayPlugin::new().subscribing(&events));
    let answer = replay.create();
    assert!(answer.get("error").is_none(), "{answer}");
    let seen = validator.last("ValidateContainerAdjustment");
    assert!(seen.contains("10-a") && seen.contains("key: \"A\""), "{seen}");
}

#[test]
fn plugins_receive_the_runtime_named_on_the_command_line() {
    let flags = ["--runtime-name", "engine", "--runtime-version", "v7", "--nri-version", "v0.11.0"];
    let mut replay = Replay::with("", &flags);
    let received = replay.plugin("10-a", ReplayPlugin::new()).last("Configure");
    for word in ["engine", "v7", "v0.11.0"] {
        assert!(received.contains(word), "{received}");
    }
}

#[test]
fn a_declared_policy_keeps_a_silent_plugin_and_fails_the_call() {
    let mut replay = Replay::with("plugin_request_timeout = \"3s\"", &[]);
    let policy =
        api::FailurePolicy { fail_request: true, keep_connected: true, ..Default::default() };
    let plugin = ReplayPlugin::new().creating(Action::Hang).declaring(policy);
    replay.plugin("10-slow", plugin);
    let answer = replay.create();
    assert_eq!(answer["cause"], "timeout", "{answer}");
    let wait = json!({"id": 2, "wait": {"synchronized": ["10-slow"], "timeout": "1s"}});
    assert_eq!(replay.ask(&wait), json!({"id": 2, "ok": true}));
}
