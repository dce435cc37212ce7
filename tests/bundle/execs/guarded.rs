// SPDX-License-Identifier: Apache-2.0
//! Protections of execs by plugins in edge cases: while the daemon stops, while a plugin disconnects, beside a hanging
//! plugin, and for a wrapper that did not know of the plugins.

use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nri_plugin::ExtensionEvent;
use nri_plugin::api::extension::UpdateOutcome;
use serde_json::{Value, json};
use test_support::exec_plugin::{ExecAnswer, ExecPlugin};
use test_support::{TestHost, succeeds, wait_until};
use tokio::sync::Notify;

use super::plugins::{adjusting, connect, exec, got, refused, variable, with};
use super::{host, last_words, reconfigure};
use crate::updates::{settled, update as engine_updates};

fn hanging() -> ExecPlugin {
    ExecPlugin::answering(ExecAnswer::Hang)
}

fn has_run(host: &TestHost) -> bool {
    last_words(host).iter().any(|word| word == "exec")
}

#[test]
fn no_exec_passes_while_the_daemon_shuts_down() {
    let validator = ExecPlugin::validating(Some("never")).hanging_otherwise();
    let host = with(&validator);
    let daemon = nix::unistd::Pid::from_raw(host.daemon_pid());
    kill(daemon, Signal::SIGTERM).unwrap();
    let mut is_gone = false;
    // The closure tries one more exec after the socket has disappeared.
    wait_until("the daemon has ended", || {
        assert_eq!(exec(&host, &json!({})).status.code(), Some(255));
        std::mem::replace(&mut is_gone, !host.path("run/daemon.sock").exists())
    });
    assert!(!has_run(&host));
    assert_eq!(host.read("run/execs"), "plugins protect\n");
}

#[test]
fn a_plugin_that_hangs_in_notifications_still_protects() {
    let events = [ExtensionEvent::VALIDATE_EXEC, ExtensionEvent::POST_EXEC];
    let validator = ExecPlugin::subscribed(&events).hanging_otherwise();
    let host = with(&validator);
    for count in 1..5 {
        succeeds(&exec(&host, &json!({})));
        wait_until("it is notified", || validator.posts.lock().unwrap().len() >= count.min(2));
    }
    assert_eq!(validator.validated.lock().unwrap().len(), 4);
    let row = host.admin(&["plugins"])[0].clone();
    assert_eq!((&row["state"], &row["timeouts"]), (&json!("synchronized"), &json!(0)));
}

#[test]
fn a_queued_exec_is_refused_too_when_the_plugin_disconnects() {
    let leave = Arc::new(Notify::new());
    let plugin = ExecPlugin::answering(ExecAnswer::LeaveLater(Arc::clone(&leave))).protecting();
    let host = with(&plugin);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| host.verb(&["exec", "c1", "first"]));
        wait_until("it is asked", || plugin.execs.lock().unwrap().len() == 1);
        let second = scope.spawn(|| host.verb(&["exec", "c1", "second"]));
        wait_until("both are served", || host.admin(&["status"])["requests"]["exec"] == 2);
        leave.notify_one();
        (first.join().unwrap(), second.join().unwrap())
    });
    assert_eq!((first.status.code(), second.status.code()), (Some(255), Some(255)));
    assert!(!has_run(&host));
}

#[test]
fn a_plugin_that_hangs_takes_no_time_from_a_validator() {
    let (silent, validator) = (hanging(), ExecPlugin::validating(None));
    let host = with(&silent);
    connect(&host, &validator, "90-v");
    succeeds(&exec(&host, &json!({})));
    assert!(has_run(&host));
    assert_eq!(validator.validated.lock().unwrap().len(), 1);
}

#[test]
fn a_plugin_that_times_out_on_three_execs_is_no_longer_awaited() {
    for (plugin, code) in [(hanging(), 0), (hanging().protecting(), 255)] {
        let host = with(&plugin);
        for _ in 0..4 {
            assert_eq!(exec(&host, &json!({})).status.code(), Some(code));
        }
        assert_eq!(plugin.execs.lock().unwrap().len(), 3);
        let failure = host.admin(&["plugins"])[0]["last_failure"].to_string();
        assert!(failure.contains("did not respond to the last execs"), "{failure}");
    }
}

/// A host with an exec rule, whose wrappers do not know yet that plugins handle execs.
fn unaware(plugin: &ExecPlugin) -> TestHost {
    let host = with(plugin);
    reconfigure(&host, "", "[[exec_rule]]\nname = \"none\"\nterminal = true\n");
    succeeds(&host.call(&["nri", "reload"]));
    host.write("run/execs", "rules\n");
    host
}

#[test]
fn a_command_line_sent_for_rules_alone_reaches_no_plugin() {
    let host = unaware(&adjusting(variable("A", "1")));
    succeeds(&host.verb(&["exec", "c1", "sh", "-c", "true"]));
    let words = last_words(&host);
    assert_eq!(words[words.len() - 4..], ["c1", "sh", "-c", "true"], "nothing of it is lost");
    let validator = ExecPlugin::validating(None);
    let host = unaware(&validator);
    let why = ["could not be sent to the plugins"];
    refused(&host, &host.verb(&["exec", "c1", "sh", "-c", "true"]), &why);
    assert!(validator.validated.lock().unwrap().is_empty());
}

#[test]
fn an_unreadable_subscription_file_refuses_execs() {
    let mut host = with(&ExecPlugin::validating(None));
    host.kill_daemon();
    std::fs::remove_file(host.path("run/execs")).unwrap();
    std::fs::create_dir(host.path("run/execs")).unwrap();
    refused(&host, &exec(&host, &json!({})), &["plugins handle execs"]);
}

#[test]
fn plugin_protection_from_before_a_restart_survives_a_reexec() {
    let plugin = ExecPlugin::validating(None);
    let mut host = with(&plugin);
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "[nri]\nplugin_registration_timeout = \"60s\"\n");
    host.start_daemon();
    succeeds(&host.call(&["nri", "reexec"]));
    let words = ["the plugins that protect execs have not returned"];
    refused(&host, &exec(&host, &json!({})), &words);
    connect(&host, &plugin, "10-a");
    succeeds(&exec(&host, &json!({})));
}

#[test]
fn an_exec_without_process_file_has_the_user_of_runc() {
    let plugin = ExecPlugin::validating(None);
    let host = host("", "");
    let mut spec: Value = serde_json::from_str(&host.read("bundle/config.json")).unwrap();
    spec["process"]["user"] = json!({"uid": 1, "gid": 2, "additionalGids": [3]});
    host.write("bundle/config.json", &spec.to_string());
    succeeds(&host.create("c1"));
    connect(&host, &plugin, "10-a");
    for flags in [&[][..], &["--user", "7"], &["--user", "7:8"]] {
        succeeds(&host.verb(&[&["exec"][..], flags, &["c1", "sh"]].concat()));
    }
    let seen = plugin.validated.lock().unwrap().clone();
    let users = seen.iter().map(|request| &request.process.user);
    let users: Vec<_> = users.map(|u| (u.uid, u.gid, u.additional_gids.clone())).collect();
    assert_eq!(users, [(1, 2, vec![3]), (7, 2, vec![3]), (7, 8, vec![3])]);
    host.write("fake/argv", "");
    // Only the container's files define this name, so its user is unknown here.
    refused(&host, &host.verb(&["exec", "--user", "mary", "c1", "sh"]), &["could not be sent"]);
}

#[test]
fn the_log_line_of_a_changed_exec_has_no_arguments() {
    let mut adjust = variable("A", "1");
    adjust.args = vec!["wrap".into(), "TOKEN=other".into()];
    let host = with(&adjusting(adjust));
    succeeds(&exec(&host, &json!({"args": ["sh", "TOKEN=secret"]})));
    assert_eq!(got(&host)["args"], json!(["wrap", "TOKEN=other"]));
    wait_until("the change is in the log", || {
        host.admin(&["audit", "--action", "applied"]).to_string().contains("process.args")
    });
    let log = host.read("log/audit.log");
    assert!(!log.contains("secret") && !log.contains("TOKEN=other"), "{log}");
}

#[test]
fn a_plugin_receives_the_result_of_its_answer_to_an_update() {
    let mut plugin = ExecPlugin::subscribed(&[ExtensionEvent::UPDATE_RESULTS]);
    plugin.shares = Some(77);
    let host = with(&plugin);
    settled(&host);
    let outcome = |count: usize| {
        wait_until("the result is there", || plugin.results.lock().unwrap().len() == count);
        let result = plugin.results.lock().unwrap()[count - 1].clone();
        assert_eq!(
            (result.container_id.as_str(), result.event.as_str()),
            ("c1", "UpdateContainer")
        );
        result
    };
    succeeds(&engine_updates(&host, &json!({"cpu": {"shares": 1000}})));
    assert_eq!(outcome(1).outcome, UpdateOutcome::UPDATE_APPLIED.into());
    host.write("fake/fail-update", "");
    assert!(!engine_updates(&host, &json!({"cpu": {"shares": 900}})).status.success());
    let failed = outcome(2);
    assert_eq!(failed.outcome, UpdateOutcome::UPDATE_FAILED.into());
    assert!(failed.reason.contains("the runtime did not accept"), "{failed}");
}
