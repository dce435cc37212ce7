// SPDX-License-Identifier: Apache-2.0
//! Failing calls: each cause, the named plugin, and the effect on the plugin.

use nri_runc::plugin::{Event, api};
use serde_json::json;
use test_support::replay::{Action, Replay, ReplayPlugin, create, setting, shares};

fn error(answer: &serde_json::Value) -> &str {
    assert!(answer.get("reply").is_none(), "{answer}");
    answer["error"].as_str().unwrap()
}

#[test]
fn a_refusal_names_the_plugin_and_keeps_its_message() {
    let mut replay = Replay::start();
    replay.plugin("10-no", ReplayPlugin::new().creating(Action::Refuse("not on a Monday")));
    let later = replay.plugin("20-later", ReplayPlugin::new());
    let answer = replay.create();
    assert_eq!(answer["cause"], "refused");
    assert!(error(&answer).contains("10-no") && error(&answer).contains("not on a Monday"));
    assert!(!later.methods().iter().any(|method| method == "CreateContainer"));
}

#[test]
fn a_conflict_names_both_plugins_the_field_and_the_container() {
    let mut replay = Replay::start();
    replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
    replay.plugin("20-b", ReplayPlugin::new().creating(setting("A", "2")));
    let answer = replay.create();
    assert_eq!(answer["cause"], "conflict");
    for word in ["10-a", "20-b", "Env", "A", "c0"] {
        assert!(error(&answer).contains(word), "{answer}");
    }
}

#[test]
fn a_plugin_time_out_fails_the_call_if_configured() {
    let policy = "plugin_request_timeout = \"3s\"\n[plugin.slow]\non_failure = \"refuse\"";
    let mut replay = Replay::with(policy, &[]);
    replay.plugin("10-slow", ReplayPlugin::new().creating(Action::Hang));
    let answer = replay.create();
    assert_eq!(answer["cause"], "timeout");
    assert!(error(&answer).contains("10-slow") && error(&answer).contains("CreateContainer"));
    replay.event("gone", "10-slow");
}

#[test]
fn a_plugin_that_times_out_is_skipped_by_default() {
    let mut replay = Replay::with("plugin_request_timeout = \"3s\"", &[]);
    replay.plugin("10-slow", ReplayPlugin::new().creating(Action::Hang));
    replay.plugin("20-b", ReplayPlugin::new().creating(setting("B", "2")));
    let answer = replay.create();
    assert_eq!(answer["owners"], json!({"Env[B]": "20-b"}), "{answer}");
    let gone = replay.event("gone", "10-slow");
    assert!(gone["reason"].as_str().unwrap().contains("CreateContainer"), "{gone}");
}

#[test]
fn a_plugin_that_dies_in_the_call_differs_from_a_silent_one() {
    let policy = "[plugin.dies]\non_failure = \"refuse\"";
    let mut replay = Replay::with(policy, &[]);
    replay.plugin("10-dies", ReplayPlugin::new().creating(Action::Leave));
    let answer = replay.create();
    assert_eq!(answer["cause"], "gone");
    assert!(error(&answer).contains("10-dies") && error(&answer).contains("CreateContainer"));
    replay.event("gone", "10-dies");
}

#[test]
fn a_validator_that_rejects_or_dies_fails_the_call() {
    for (does, cause, word) in [
        (Action::Refuse("unsigned"), "refused", "unsigned"),
        (Action::Leave, "gone", "90-judge"),
        (Action::Hang, "timeout", "90-judge"),
    ] {
        let mut replay = Replay::with("plugin_request_timeout = \"3s\"", &[]);
        replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
        let judge = Event::ValidateContainerAdjustment;
        replay.plugin("90-judge", ReplayPlugin::new().subscribing(&[judge]).at(judge, does));
        let answer = replay.create();
        assert_eq!(answer["cause"], cause, "{answer}");
        assert!(error(&answer).contains(word), "{answer}");
    }
}

#[test]
fn the_built_in_validator_applies() {
    let policy = "[nri.default_validator]\nenable = true\nreject_sysctl_adjustment = true";
    let mut replay = Replay::with(policy, &[]);
    let mut linux = api::LinuxContainerAdjustment::new();
    linux.sysctl.insert("net.core.somaxconn".to_owned(), "1024".to_owned());
    let adjust = api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() };
    replay.plugin("10-a", ReplayPlugin::new().creating(Action::Adjust(Box::new(adjust))));
    let answer = replay.create();
    assert_eq!(answer["cause"], "refused", "{answer}");
    assert!(error(&answer).contains("10-a") && error(&answer).contains("sysctl"), "{answer}");
}

#[test]
fn a_denied_field_is_reported_as_refused() {
    let mut replay = Replay::with("[plugin.a]\ndeny = [\"Env\"]", &[]);
    replay.plugin("10-a", ReplayPlugin::new().creating(setting("A", "1")));
    let answer = replay.create();
    assert_eq!(answer["cause"], "refused", "{answer}");
}

#[test]
fn an_update_of_the_container_being_created_fails_it() {
    let mut replay = Replay::start();
    replay.plugin("10-a", ReplayPlugin::new().creating(Action::Update(shares("c0", 5))));
    let answer = replay.create();
    assert!(error(&answer).contains("10-a"), "{answer}");
}

#[test]
fn an_event_that_may_be_refused_ends_with_the_first_refusal() {
    for event in [Event::RunPodSandbox, Event::UpdatePodSandbox, Event::StartContainer] {
        let mut replay = Replay::start();
        replay.plugin("10-no", ReplayPlugin::new().at(event, Action::Refuse("no")));
        let later = replay.plugin("20-later", ReplayPlugin::new());
        let request = json!({"pod": {"id": "p0"}});
        let line = json!({"id": 1, "call": event.name(), "request": request});
        assert_eq!(replay.ask(&line)["cause"], "refused", "{}", event.name());
        assert!(!later.methods().iter().any(|method| method == event.name()));
    }
}

#[test]
fn an_event_reaches_all_plugins_despite_refusals() {
    for event in [Event::PostCreateContainer, Event::StopContainer, Event::RemovePodSandbox] {
        let mut replay = Replay::start();
        replay.plugin("10-no", ReplayPlugin::new().at(event, Action::Refuse("too late")));
        let later = replay.plugin("20-later", ReplayPlugin::new());
        let request = json!({"pod": {"id": "p0"}});
        let line = json!({"id": 1, "call": event.name(), "request": request});
        let answer = replay.ask(&line);
        assert!(error(&answer).contains("too late"), "{answer}");
        later.wait_for(event.name());
    }
}

#[test]
fn a_plugin_that_refuses_its_synchronization_takes_no_part() {
    let mut replay = Replay::start();
    let plugin = ReplayPlugin::new().synchronizing(Action::Refuse("wrong node"));
    plugin.connect(replay.path("nri.sock"), "10-a");
    let gone = replay.event("gone", "10-a");
    assert!(gone["reason"].as_str().unwrap().contains("wrong node"), "{gone}");
    let wait = json!({"id": 1, "wait": {"synchronized": ["10-a"], "timeout": "50ms"}});
    let answer = replay.ask(&wait);
    assert!(error(&answer).contains("10-a"), "{answer}");
}

#[test]
fn a_script_that_refuses_the_state_disconnects_the_plugin() {
    let mut replay = Replay::with("", &["--ask-sync"]);
    ReplayPlugin::new().connect(replay.path("nri.sock"), "10-a");
    let line = replay.event("synchronize", "10-a");
    replay.send(&json!({"answer": line["ask"], "error": "engine is restarting"}));
    let gone = replay.event("gone", "10-a");
    assert!(gone["reason"].as_str().unwrap().contains("engine is restarting"), "{gone}");
}

#[test]
fn a_response_of_the_wrong_kind_is_refused_and_can_be_repeated() {
    let mut replay = Replay::with("", &["--ask-sync"]);
    ReplayPlugin::new().connect(replay.path("nri.sock"), "10-a");
    let ask = replay.event("synchronize", "10-a")["ask"].clone();
    replay.send(&json!({"answer": ask, "reply": {}}));
    replay.line("the refusal", |line| line["error"].as_str().is_some_and(|e| e.contains("kind")));
    replay.send(&json!({"answer": ask, "state": {}}));
    replay.event("synchronized", "10-a");
}

#[test]
fn a_second_plugin_of_one_name_is_rejected() {
    let mut replay = Replay::start();
    let first = replay.plugin("10-a", ReplayPlugin::new());
    ReplayPlugin::new().creating(setting("B", "2")).connect(replay.path("nri.sock"), "10-a");
    std::thread::sleep(std::time::Duration::from_millis(200));
    let answer = replay.create();
    assert_eq!(answer["owners"], json!({}), "{answer}");
    first.wait_for("CreateContainer");
}

#[test]
fn disconnecting_an_unknown_plugin_is_an_error() {
    let mut replay = Replay::start();
    let answer = replay.ask(&json!({"id": 1, "disconnect": "10-nobody"}));
    assert!(error(&answer).contains("10-nobody"));
}

#[test]
fn a_failed_wait_names_missing_and_lingering_plugins() {
    let mut replay = Replay::start();
    replay.plugin("10-a", ReplayPlugin::new());
    let wait = json!({"synchronized": ["10-a", "20-b"], "gone": ["10-a"], "timeout": "50ms"});
    let answer = replay.ask(&json!({"id": 1, "wait": wait}));
    let text = error(&answer);
    assert!(text.contains("20-b") && text.contains("not gone in time: 10-a"), "{text}");
    assert!(!text.contains("10-a, 20-b"), "{text}");
}

#[test]
fn a_failed_call_does_not_affect_the_next_one() {
    let mut replay = Replay::start();
    replay.plugin("10-no", ReplayPlugin::new().creating(Action::Refuse("no")));
    assert_eq!(replay.create()["cause"], "refused");
    replay.send(&json!({"disconnect": "10-no"}));
    replay.event("gone", "10-no");
    assert!(replay.ask(&create(json!("again"))).get("reply").is_some());
}
