// SPDX-License-Identifier: Apache-2.0
//! Plugins that handle execs by the extension: what they change, refuse and receive, in both forms of `exec`, and that
//! an exec waits at most one second for each of them.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nri_plugin::ExtensionEvent;
use nri_plugin::api::KeyValue;
use nri_plugin::api::extension::{ExecAdjustment, ExecResult};
use serde_json::{Value, json};
use test_support::adjustments::{env, message};
use test_support::exec_plugin::{ExecAnswer, ExecPlugin};
use test_support::real_runtime::RealRuntime;
use test_support::{TestHost, started, succeeds, wait_until};

use super::{document, host, last_words, lines};

/// A host with a running container `c1` and this plugin as `10-a`.
pub(super) fn with(plugin: &ExecPlugin) -> TestHost {
    let host = host("exec = true\n", "");
    succeeds(&host.create("c1"));
    connect(&host, plugin, "10-a");
    host.write("fake/argv", "");
    host
}

pub(super) fn connect(host: &TestHost, plugin: &ExecPlugin, id: &str) -> nri_plugin::PluginHandle {
    let handle = plugin.connect(host.path("nri.sock"), id);
    wait_until("it takes part", || {
        let plugins = host.admin(&["plugins"]);
        let rows = plugins.as_array().unwrap();
        let is_it = |row: &&Value| {
            format!("{}-{}", row["index"].as_str().unwrap(), row["name"].as_str().unwrap()) == id
        };
        rows.iter().find(is_it).is_some_and(|row| row["state"] == "synchronized")
    });
    handle
}

pub(super) fn adjusting(adjust: ExecAdjustment) -> ExecPlugin {
    ExecPlugin::answering(ExecAnswer::Adjust(adjust))
}

pub(super) fn variable(name: &str, value: &str) -> ExecAdjustment {
    message(&json!({"env": [{"key": name, "value": value}]}))
}

fn all_four() -> ExecAdjustment {
    message(&json!({
        "args": ["/bin/wrap", "-x", "/bin/sh"],
        "env": [{"key": "NEW", "value": "n"}, {"key": "OLD", "value": "changed"}, {"key": "-GONE"}],
        "cwd": {"value": "/work"},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 99, "soft": 88}],
    }))
}

fn arguments(args: &[&str]) -> ExecAdjustment {
    message(&json!({ "args": args }))
}

fn directory(path: &str) -> ExecAdjustment {
    message(&json!({"cwd": {"value": path}}))
}

fn limit(kind: &str, soft: u64, hard: u64) -> ExecAdjustment {
    message(&json!({"rlimits": [{"type": kind, "hard": hard, "soft": soft}]}))
}

/// Calls `exec` with a document of these members.
pub(super) fn exec(host: &TestHost, process: &Value) -> Output {
    host.write("process", &document(process).to_string());
    let file = host.path("process").display().to_string();
    host.verb(&["exec", "--process", &file, "--detach", "c1"])
}

/// The document that the runtime received.
pub(super) fn got(host: &TestHost) -> Value {
    serde_json::from_str(&host.read("fake/process.json")).unwrap()
}

#[track_caller]
pub(super) fn refused(host: &TestHost, output: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(255), 1), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    assert!(!last_words(host).iter().any(|word| word == "exec"), "the runtime ran: {line}");
}

#[test]
fn a_plugin_changes_arguments_environment_directory_and_limits() {
    let plugin = adjusting(all_four());
    let host = with(&plugin);
    let asked = json!({"args": ["/bin/sh", "-l"], "env": ["OLD=1", "GONE=2", "STAYS=3"], "odd": 1,
        "user": {"uid": 7, "gid": 8}, "terminal": true});
    succeeds(&exec(&host, &asked));
    let got = got(&host);
    assert_eq!(got["args"], json!(["/bin/wrap", "-x", "/bin/sh"]));
    assert_eq!(got["env"], json!(["OLD=changed", "STAYS=3", "NEW=n"]));
    assert_eq!((&got["cwd"], &got["odd"]), (&json!("/work"), &json!(1)));
    assert_eq!(got["rlimits"], json!([{"type": "RLIMIT_NOFILE", "hard": 99, "soft": 88}]));
    let received = plugin.execs.lock().unwrap()[0].clone();
    assert_eq!((received.container.id.as_str(), received.process.cwd.as_str()), ("c1", "/"));
    assert_eq!((received.process.user.uid, received.process.terminal), (7, true));
    assert_eq!(received.process.env, ["OLD=1", "GONE=2", "STAYS=3"]);
    let explained = host.admin(&["explain", "c1"]);
    let change = &explained["exec_changes"][0];
    assert_eq!((&change["program"], &change["owners"]["Cwd"]), (&json!("/bin/sh"), &json!("10-a")));
    assert_eq!(change["owners"].as_object().unwrap().len(), 6, "{change}");
    assert!(!change.to_string().contains("changed"), "values are not kept");
    let page = String::from_utf8(host.call(&["nri", "explain", "c1"]).stdout).unwrap();
    assert!(page.contains("exec of /bin/sh at") && page.contains("10-a set Args"), "{page}");
    let audited = host.admin(&["audit", "--action", "applied"]);
    let is_cwd = |line: &&Value| line["field"] == "process.cwd" && line["plugin"] == "10-a";
    assert!(audited.as_array().unwrap().iter().any(|line| is_cwd(&line)), "{audited}");
    let metrics = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    assert!(metrics.contains("operation=\"ExecContainer\",status=\"success\""), "{metrics}");
    let row = host.admin(&["plugins"])[0]["extension_events"].clone();
    assert_eq!(row, json!(["ExecContainer"]));
}

#[test]
fn an_exec_without_process_file_gets_flags_and_arguments() {
    let adjust = ExecAdjustment { rlimits: Vec::new(), env: vec![env("NEW", "n")], ..all_four() };
    let plugin = adjusting(adjust);
    let host = with(&plugin);
    succeeds(
        &host.verb(&["exec", "-t", "--cwd", "/x", "-e", "NEW=mine", "c1", "ls", "--env", "q"]),
    );
    let words = last_words(&host);
    let from = words.iter().position(|word| word == "exec").unwrap();
    let wanted = "exec -t --cwd /x -e NEW=mine --env=NEW=n --cwd=/work c1 /bin/wrap -x /bin/sh";
    assert_eq!(words[from..].join(" "), wanted);
    let received = plugin.execs.lock().unwrap()[0].clone();
    assert_eq!(received.process.args, ["ls", "--env", "q"]);
    assert!(received.process.env.contains(&"NEW=mine".to_owned()) && received.process.cwd == "/x");
}

#[test]
fn without_a_process_file_a_change_without_a_flag_is_refused() {
    for (adjust, field) in [
        (limit("RLIMIT_NOFILE", 88, 99), "Rlimits[RLIMIT_NOFILE]"),
        (variable("-PATH", ""), "Env[PATH]"),
    ] {
        let host = with(&adjusting(adjust));
        let words = ["10-a changes", field, "--process"];
        refused(&host, &host.verb(&["exec", "-e", "PATH=/bin", "c1", "sh"]), &words);
        succeeds(&exec(&host, &json!({"env": ["PATH=/bin"]})));
    }
}

#[test]
fn a_refusal_is_one_line_with_code_255_and_names_the_plugin() {
    let noted = ExecPlugin::subscribed(&[ExtensionEvent::POST_EXEC]);
    let host = with(&ExecPlugin::answering(ExecAnswer::Refuse("not\nhere")));
    connect(&host, &noted, "20-notes");
    let words = ["cannot exec c1: 10-a refused: not here"];
    refused(&host, &exec(&host, &json!({})), &words);
    refused(&host, &host.verb(&["exec", "c1", "sh"]), &words);
    let line = &lines(&host, 2)[0];
    assert_eq!((&line["result"], &line["plugin"]), (&json!("refused"), &json!("10-a")));
    assert!(host.admin(&["explain", "c1"])["refused"].to_string().contains("10-a refused"));
    wait_until("the other is notified", || noted.posts.lock().unwrap().len() == 2);
    assert_eq!(noted.posts.lock().unwrap()[0].result, ExecResult::EXEC_REFUSED.into());
}

#[test]
fn two_plugins_conflict_about_one_field_and_share_the_others() {
    for (first, second, field) in [
        (variable("X", "1"), variable("X", "2"), "Env X"),
        (all_four(), directory("/work"), "Cwd"),
        (all_four(), arguments(&["sh"]), "Args"),
        (all_four(), limit("RLIMIT_NOFILE", 88, 99), "Rlimits"),
    ] {
        let host = with(&adjusting(first));
        connect(&host, &adjusting(second), "20-b");
        refused(&host, &exec(&host, &json!({})), &["20-b", "10-a", "both tried to set", field]);
    }
    let host = with(&adjusting(variable("X", "1")));
    let second = adjusting(variable("Y", "2"));
    connect(&host, &second, "20-b");
    succeeds(&exec(&host, &json!({})));
    assert_eq!(got(&host)["env"], json!(["X=1", "Y=2"]));
    assert_eq!(second.execs.lock().unwrap()[0].process.env, ["X=1"], "it sees the first one's");
}

#[test]
fn a_value_that_cannot_be_passed_on_is_refused() {
    for (adjust, word) in [
        (directory("relative"), "Cwd"),
        (directory(""), "Cwd"),
        (directory(&format!("/{}", "x".repeat(5000))), "Cwd"),
        (variable("A=B", "1"), "Env[A=B]"),
        (variable("A", "a\0b"), "Env[A]"),
        (limit("RLIMIT_BOGUS", 1, 1), "Rlimits"),
        (limit("RLIMIT_NOFILE", 2, 1), "soft limit"),
        (arguments(&["a\0"]), "Args"),
    ] {
        let host = with(&adjusting(adjust));
        refused(&host, &exec(&host, &json!({})), &[word, "cannot be applied"]);
    }
}

#[test]
fn denied_fields_apply_to_execs_as_to_creations() {
    let denied = "[plugin.a]\ndeny = [\"Args\"]\n";
    for (adjust, is_refused) in [
        (directory("/work"), true),
        (arguments(&["/bin/wrap", "-x", "/bin/sh"]), true),
        (variable("A", "1"), false),
    ] {
        let host = started(denied);
        succeeds(&host.create("c1"));
        connect(&host, &adjusting(adjust), "10-a");
        host.write("fake/argv", "");
        let output = exec(&host, &json!({}));
        match is_refused {
            true => refused(&host, &output, &["10-a", "may not set Args"]),
            false => succeeds(&output),
        }
    }
}

#[test]
fn execs_of_a_pod_reach_no_plugin_from_which_it_is_hidden() {
    let plugin = ExecPlugin::answering(ExecAnswer::Refuse("no"));
    let host = started(
        "[[rule]]\nname = \"hidden\"\nengines = [\"plain\"]\nplugins = [\"a\"]\nhide = true\n",
    );
    succeeds(&host.create("c1"));
    connect(&host, &plugin, "10-a");
    succeeds(&exec(&host, &json!({})));
    assert!(plugin.execs.lock().unwrap().is_empty());
}

#[test]
fn validators_receive_all_changes_and_any_may_reject() {
    let agrees = ExecPlugin::validating(None);
    let host = with(&adjusting(all_four()));
    connect(&host, &agrees, "80-agrees");
    succeeds(&exec(&host, &json!({"env": ["OLD=1"]})));
    let seen = agrees.validated.lock().unwrap()[0].clone();
    assert_eq!(
        (seen.process.env.as_slice(), seen.adjust.cwd.value.as_str()),
        (&["OLD=1".to_owned()][..], "/work")
    );
    assert_eq!((seen.owners["Args"].as_str(), seen.owners["Cwd"].as_str()), ("10-a", "10-a"));
    connect(&host, &ExecPlugin::validating(Some("no wrappers")), "90-rejects");
    host.write("fake/argv", "");
    let words = ["validator 90-rejects rejected the exec: no wrappers"];
    refused(&host, &exec(&host, &json!({})), &words);
}

#[test]
fn a_silent_plugin_delays_an_exec_less_than_a_second() {
    let silent = ExecPlugin::answering(ExecAnswer::Hang);
    let host = with(&silent);
    succeeds(&exec(&host, &json!({})));
    assert_eq!(host.read("fake/process.json"), document(&json!({})).to_string());
    let row = host.admin(&["plugins"])[0].clone();
    assert_eq!((&row["state"], &row["timeouts"]), (&json!("synchronized"), &json!(0)), "it stays");
    assert!(host.admin(&["explain", "c1"])["skipped"].to_string().contains("ExecContainer"));
    let host = with(&silent.clone().protecting());
    refused(&host, &exec(&host, &json!({})), &["10-a did not answer ExecContainer in time"]);
    refused(&host, &host.verb(&["exec", "c1", "sh"]), &["10-a"]);
}

#[test]
fn an_exec_plugin_that_disconnects_is_skipped_or_refuses() {
    let leaves = ExecPlugin::answering(ExecAnswer::Leave);
    let host = with(&leaves);
    succeeds(&exec(&host, &json!({})));
    wait_until("nothing wants to know of execs but the audit log", || {
        host.read("run/execs") == "audit\n"
    });
    succeeds(&exec(&host, &json!({})));
    assert_eq!(leaves.execs.lock().unwrap().len(), 1);
    let host = with(&leaves.protecting());
    refused(&host, &exec(&host, &json!({})), &["10-a disconnected during ExecContainer"]);
}

#[test]
fn an_unsubscribed_plugin_sees_no_exec_and_costs_nothing() {
    let host = started("");
    succeeds(&host.create("c1"));
    let plugin = ExecPlugin::subscribed(&[]);
    connect(&host, &plugin, "10-a");
    assert!(!host.path("run/execs").exists(), "wrappers go straight to the runtime");
    succeeds(&exec(&host, &json!({})));
    let file = host.path("process").display().to_string();
    assert!(last_words(&host).contains(&file), "the engine's own file is used");
    let marks = std::fs::read_dir(host.path("run/state/marks")).unwrap().count();
    assert_eq!((marks, plugin.execs.lock().unwrap().len()), (0, 0));
    let second = ExecPlugin::answering(ExecAnswer::Refuse("no"));
    let handle = connect(&host, &second, "20-b");
    assert_eq!(host.read("run/execs"), "plugins\n");
    assert_eq!(
        exec(&host, &json!({})).status.code(),
        Some(255),
        "a container from before it is known"
    );
    handle.shut_down();
    wait_until("nothing is left", || !host.path("run/execs").exists());
    succeeds(&exec(&host, &json!({})));
}

#[test]
fn an_exec_in_an_unknown_container_reaches_no_plugin() {
    let plugin = ExecPlugin::answering(ExecAnswer::Refuse("no"));
    let host = with(&plugin);
    succeeds(&host.verb(&["exec", "nobody", "sh"]));
    assert!(plugin.execs.lock().unwrap().is_empty());
}

#[test]
fn an_oversized_response_is_refused_and_the_plugin_stays() {
    let many =
        (0..20_000).map(|n| KeyValue { key: format!("V{n}"), ..Default::default() }).collect();
    let many = ExecAdjustment { env: many, ..Default::default() };
    let long = arguments(&[&"x".repeat(5 << 20)]);
    for (adjust, word) in [(many, "10-a answered with"), (long, "10-a refused")] {
        let host = with(&adjusting(adjust));
        refused(&host, &exec(&host, &json!({})), &[word]);
        let row = host.admin(&["plugins"])[0].clone();
        assert_eq!(row["state"], "synchronized", "{row}");
    }
}

#[test]
fn an_unreadable_process_is_refused_only_if_a_plugin_protects() {
    let plugin = ExecPlugin::answering(ExecAnswer::Refuse("no"));
    let protects = plugin.clone().protecting();
    for (plugin, is_refused) in [(&plugin, false), (&protects, true)] {
        let host = with(plugin);
        host.write("process", "{\"args\": \"sh\"}");
        let file = host.path("process").display().to_string();
        let output = host.verb(&["exec", "--process", &file, "c1"]);
        match is_refused {
            true => refused(&host, &output, &["could not be sent"]),
            false => succeeds(&output),
        }
        assert!(plugin.execs.lock().unwrap().is_empty());
    }
}

#[test]
fn without_a_daemon_the_policy_of_the_plugins_decides() {
    let plugin = ExecPlugin::answering(ExecAnswer::Refuse("no"));
    let mut host = with(&plugin);
    let daemon = nix::unistd::Pid::from_raw(host.daemon_pid());
    kill(daemon, Signal::SIGSTOP).unwrap();
    succeeds(&exec(&host, &json!({})));
    kill(daemon, Signal::SIGCONT).unwrap();
    host.kill_daemon();
    succeeds(&exec(&host, &json!({})));
    let mut host = with(&plugin.protecting());
    assert_eq!(host.read("run/execs"), "plugins protect\n");
    host.kill_daemon();
    let words = ["plugins handle execs; no process was started"];
    refused(&host, &exec(&host, &json!({})), &words);
    refused(&host, &host.verb(&["exec", "c1", "sh"]), &words);
    assert!(!host.read("run/refused").contains("/bin/sh"));
}

#[test]
fn a_subscription_survives_a_reexec_of_the_daemon() {
    let plugin = ExecPlugin::answering(ExecAnswer::Refuse("no")).protecting();
    let host = with(&plugin);
    succeeds(&host.call(&["nri", "reexec"]));
    assert_eq!(host.read("run/execs"), "plugins protect\n");
    refused(&host, &exec(&host, &json!({})), &["10-a refused: no"]);
}

#[test]
fn a_restart_refuses_protected_execs_until_a_plugin_is_back() {
    let plugin = ExecPlugin::answering(ExecAnswer::Adjust(variable("A", "1"))).protecting();
    let mut host = with(&plugin);
    host.kill_daemon();
    host.configure(&host.path("fake/runc"), "[nri]\nplugin_registration_timeout = \"60s\"\n");
    host.start_daemon();
    let words = ["the plugins that protect execs have not returned"];
    refused(&host, &exec(&host, &json!({})), &words);
    succeeds(&host.verb(&["exec", "nobody", "sh"]));
    host.write("fake/argv", "");
    // A plugin that protects nothing is no replacement for the awaited one.
    connect(&host, &adjusting(variable("B", "1")), "20-b");
    refused(&host, &exec(&host, &json!({})), &words);
    connect(&host, &plugin, "10-a");
    succeeds(&exec(&host, &json!({})));
    assert_eq!(got(&host)["env"], json!(["A=1", "B=1"]));
}

#[test]
fn a_plugin_is_notified_of_starts_and_ends_asynchronously() {
    let plugin = ExecPlugin::subscribed(&[ExtensionEvent::POST_EXEC]);
    let host = with(&plugin);
    assert_eq!(host.read("run/execs"), "audit\n", "no exec waits");
    succeeds(&exec(&host, &json!({})));
    host.write("fake/exec-code", "3");
    assert_eq!(host.verb(&["exec", "c1", "false"]).status.code(), Some(3));
    wait_until("both are there", || plugin.posts.lock().unwrap().len() == 2);
    let posts = plugin.posts.lock().unwrap().clone();
    let of = |result: ExecResult| posts.iter().find(|post| post.result == result.into()).unwrap();
    assert_eq!(of(ExecResult::EXEC_STARTED).args, ["/bin/sh"]);
    let exited = of(ExecResult::EXEC_EXITED);
    assert_eq!(
        (exited.args.as_slice(), exited.container.id.as_str()),
        (&["false".to_owned()][..], "c1")
    );
    assert!(exited.exit_code.as_ref().is_none_or(|code| code.value == 3));
    assert!(Arc::clone(&plugin.execs).lock().unwrap().is_empty());
}

#[test]
fn a_process_of_runc_has_a_plugins_values_in_both_forms() {
    let host = started("");
    let dir = host.path("").display().to_string();
    let Some(real) = RealRuntime::new(Path::new(dir.trim_end_matches('/'))) else { return };
    host.configure(real.runc(), "");
    succeeds(&host.call(&["nri", "reload"]));
    let adjust = message(&json!({
        "env": [{"key": "A", "value": "of a plugin"}], "cwd": {"value": "/tmp"},
    }));
    let document = real.document("c1", &["sleep", "1000"]);
    host.write("bundle/config.json", &document.to_string());
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["start", "c1"]));
    let _handle = connect(&host, &adjusting(adjust), "10-a");
    let look = "echo $A; pwd";
    let output = host.verb(&["exec", "--env", "A=mine", "c1", "sh", "-c", look]);
    succeeds(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "of a plugin\n/tmp\n");
    // Not RLIMIT_NOFILE, of which Go's runtime inside runc sometimes raises the soft limit.
    let _limits = connect(&host, &adjusting(limit("RLIMIT_CPU", 320, 321)), "20-b");
    let mut process = document["process"].clone();
    process["args"] = json!(["sh", "-c", "echo $A; pwd; ulimit -St; ulimit -Ht"]);
    host.write("process", &process.to_string());
    let file = host.path("process").display().to_string();
    let output = host.verb(&["exec", "--process", &file, "c1"]);
    succeeds(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "of a plugin\n/tmp\n320\n321\n");
    succeeds(&host.verb(&["delete", "--force", "c1"]));
}
