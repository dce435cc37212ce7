// SPDX-License-Identifier: Apache-2.0
//! Requests of the extension in a script: execs, their results, and the results of updates.

use nri_plugin::ExtensionEvent;
use nri_plugin::api::extension::ExecAdjustment;
use serde_json::{Value, json};
use test_support::adjustments::env;
use test_support::exec_plugin::{ExecAnswer, ExecPlugin};
use test_support::replay::Replay;
use test_support::wait_until;

fn variable(value: &str) -> ExecPlugin {
    let adjust = ExecAdjustment { env: vec![env("A", value)], ..ExecAdjustment::default() };
    ExecPlugin::answering(ExecAnswer::Adjust(adjust))
}

fn connect(replay: &mut Replay, plugin: &ExecPlugin, id: &str) {
    // No line is answered before the socket is open.
    replay.ask(&json!({"id": id, "state": {}}));
    let _stays_connected = plugin.connect(replay.path("nri.sock"), id);
    replay.event("synchronized", id);
}

/// The answer to an exec of `sh` in a container `c0`.
fn exec(replay: &mut Replay) -> Value {
    replay.ask(&json!({"id": 1, "call": "ExecContainer", "request": {"pod": {"id": "p0"},
        "container": {"id": "c0"}, "process": {"args": ["sh"], "env": ["HOME=/"], "cwd": "/"}}}))
}

#[test]
fn an_exec_of_a_script_has_the_changes_and_their_owners() {
    let mut replay = Replay::start();
    let (plugin, validator) = (variable("1"), ExecPlugin::validating(None));
    connect(&mut replay, &plugin, "10-a");
    connect(&mut replay, &validator, "20-v");
    let answer = exec(&mut replay);
    assert_eq!(answer["reply"]["adjust"], json!({"env": [{"key": "A", "value": "1"}]}), "{answer}");
    assert_eq!(answer["owners"], json!({"Env[A]": "10-a"}), "{answer}");
    assert_eq!(plugin.execs.lock().unwrap()[0].process.args, ["sh"]);
    assert_eq!(validator.validated.lock().unwrap()[0].owners["Env[A]"], "10-a");
}

#[test]
fn an_exec_without_a_subscriber_is_left_unchanged() {
    let answer = exec(&mut Replay::start());
    assert_eq!((&answer["reply"], &answer["owners"]), (&json!({"adjust": {}}), &json!({})));
}

#[test]
fn an_exec_is_refused_by_a_plugin_a_conflict_and_a_validator() {
    for (plugin, cause) in [
        (ExecPlugin::answering(ExecAnswer::Refuse("not here")), "refused"),
        (variable("2"), "conflict"),
        (ExecPlugin::validating(Some("not here")), "refused"),
        (ExecPlugin::answering(ExecAnswer::Leave).protecting(), "gone"),
    ] {
        let mut replay = Replay::start();
        connect(&mut replay, &variable("1"), "10-a");
        connect(&mut replay, &plugin, "20-b");
        let answer = exec(&mut replay);
        assert_eq!(answer["cause"], cause, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("20-b"), "{answer}");
    }
}

#[test]
fn results_of_execs_and_updates_reach_their_subscribers() {
    let events = [ExtensionEvent::POST_EXEC, ExtensionEvent::UPDATE_RESULTS];
    let (plugin, other) = (ExecPlugin::subscribed(&events), variable("1"));
    let mut replay = Replay::start();
    connect(&mut replay, &plugin, "10-a");
    connect(&mut replay, &other, "20-b");
    let post = json!({"id": 1, "call": "PostExec", "request": {"container": {"id": "c0"},
        "args": ["sh"], "result": "EXEC_EXITED", "exitCode": {"value": 3}}});
    assert_eq!(replay.ask(&post)["reply"], json!({}));
    let results =
        json!({"id": 2, "call": "UpdateResults", "request": {"results": [{"containerId": "c0"}]}});
    assert_eq!(replay.ask(&results)["reply"], json!({}));
    wait_until("both are there", || !plugin.results.lock().unwrap().is_empty());
    assert_eq!(plugin.posts.lock().unwrap()[0].exit_code.value, 3);
    assert_eq!(plugin.results.lock().unwrap()[0].container_id, "c0");
    assert!(other.posts.lock().unwrap().is_empty() && other.results.lock().unwrap().is_empty());
}

#[test]
fn a_script_cannot_request_a_validation_alone() {
    let mut replay = Replay::start();
    let answer = replay.ask(&json!({"id": 1, "call": "ValidateExec", "request": {}}));
    assert!(answer["error"].as_str().unwrap().contains("part of ExecContainer"), "{answer}");
}
