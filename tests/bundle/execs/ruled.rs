// SPDX-License-Identifier: Apache-2.0
//! `[[exec_rule]]`: which execs are refused, with one line and runc's exit code, by both forms of
//! `exec`, in every kind of container, with and without the daemon.

use std::process::Output;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use test_support::{TestHost, started, succeeds, wait_until};

use super::{document, host, last_words, lines, reconfigure};

const NO_TERMINALS: &str = "[[exec_rule]]\nname = \"no terminals\"\nterminal = true\n";
const NOTHING: &str = "[[exec_rule]]\nname = \"nothing\"\n";
const ONLY_HEALTH: &str = "[[exec_rule]]\nname = \"health\"\ncommands = [\"/bin/health\"]\nallow = true\n\
                           [[exec_rule]]\nname = \"nothing else\"\n";

/// A host with these rules and a running container `c1`; earlier calls are cleared.
fn ruled(rules: &str) -> TestHost {
    let host = host("", rules);
    succeeds(&host.create("c1"));
    host.write("fake/argv", "");
    host
}

/// Calls `exec` with a document of these members, and with a log file as engines set one.
fn exec(host: &TestHost, process: &Value) -> Output {
    host.write("process", &document(process).to_string());
    let [file, log] = ["process", "exec.log"].map(|name| host.path(name).display().to_string());
    let words = ["--log", &log, "--log-format", "json", "exec", "--process", &file, "--detach"];
    host.verb(&[&words[..], &["c1"]].concat())
}

/// Checks that the call was refused with one line, also in the engine's log, that has these words, and
/// that runc never ran.
#[track_caller]
fn refused(host: &TestHost, output: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(255), 1), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    assert!(!last_words(host).iter().any(|word| word == "exec"), "the runtime ran: {line}");
}

#[test]
fn a_terminal_is_refused_in_both_forms_with_exit_code_255() {
    let host = ruled(NO_TERMINALS);
    let words = ["nri-runc: cannot exec c1: ", "the exec rule \"no terminals\" does not permit"];
    refused(&host, &exec(&host, &json!({"terminal": true})), &words);
    let log: Value = serde_json::from_str(host.read("exec.log").trim()).unwrap();
    assert_eq!(log["level"], "error");
    assert!(log["msg"].as_str().unwrap().contains("no terminals"), "{log}");
    refused(&host, &host.verb(&["exec", "-t", "c1", "sh"]), &words);
    succeeds(&exec(&host, &json!({"terminal": false})));
    assert!(!last_words(&host).iter().any(|word| word.contains("/process")), "a copy is used");
    assert_eq!(host.read("fake/process.json"), document(&json!({"terminal": false})).to_string());
    succeeds(&host.verb(&["exec", "c1", "sh"]));
    let metrics = host.call(&["nri", "metrics"]);
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    for row in [
        "nri_runc_requests_total{verb=\"exec\",outcome=\"refused\"} 2",
        "nri_runc_requests_total{verb=\"exec\",outcome=\"proceeded\"} 2",
        "nri_runc_rule_hits_total{rule=\"no terminals\",result=\"refused\"} 2",
    ] {
        assert!(metrics.contains(row), "{row}: {metrics}");
    }
}

#[test]
fn exec_rules_match_users_and_commands_after_an_exception() {
    let host = ruled(ONLY_HEALTH);
    for program in ["/bin/health", "/bin//health", "/bin/./health"] {
        succeeds(&exec(&host, &json!({"args": [program, "-x"]})));
    }
    host.write("fake/argv", "");
    for program in ["/bin/sh", "health", "./bin/health", "/bin/x/../health", "", "*"] {
        refused(&host, &exec(&host, &json!({"args": [program]})), &["nothing else"]);
    }
    refused(&host, &exec(&host, &json!({"args": []})), &["nothing else"]);
    let rule = "[[exec_rule]]\nname = \"root\"\nusers = [\"root\"]\n";
    reconfigure(&host, "", rule);
    succeeds(&host.call(&["nri", "reload"]));
    host.write("fake/argv", "");
    for user in [json!({"uid": 0}), json!({"gid": 5}), json!(null)] {
        refused(&host, &exec(&host, &json!({"user": user})), &["\"root\""]);
    }
    refused(&host, &host.verb(&["exec", "c1", "sh"]), &["\"root\""]);
    // runc 1.1 keeps only 32 bits of a number.
    for user in ["00:5", "4294967296", "-4294967296", "8589934592:7", "root", " 0"] {
        refused(&host, &host.verb(&["exec", "--user", user, "c1", "sh"]), &["\"root\""]);
    }
    succeeds(&exec(&host, &json!({"user": {"uid": 1000, "gid": 0}})));
    succeeds(&host.verb(&["exec", "--user", "1000", "c1", "sh"]));
}

#[test]
fn an_unreadable_document_is_refused_if_a_rule_may_match() {
    let host = ruled(NO_TERMINALS);
    host.write("process", "{\"terminal\": tru");
    let file = host.path("process").display().to_string();
    refused(&host, &host.verb(&["exec", "--process", &file, "c1"]), &["no terminals"]);
    refused(&host, &host.verb(&["exec", "--process", "/nowhere", "c1"]), &["no terminals"]);
    // runc takes the last of two members, regardless of case.
    host.write("process", r#"{"terminal": false, "Terminal": true, "args": ["sh"]}"#);
    refused(&host, &host.verb(&["exec", "-p", &file, "c1"]), &["no terminals"]);
    // If the later list has a null, runc keeps the word of the earlier list.
    host.write("process", r#"{"terminal": false, "args": ["sh"], "args": [null]}"#);
    refused(&host, &host.verb(&["exec", "-p", &file, "c1"]), &["no terminals"]);
    refused(&host, &host.verb(&["exec", "--tty", "--process=", "c1", "sh"]), &["no terminals"]);
}

#[test]
fn a_rule_in_audit_mode_refuses_nothing_and_is_noted() {
    let rule = format!("{NOTHING}mode = \"audit\"\n");
    let host = host("exec = true\n", &rule);
    succeeds(&host.create("c1"));
    succeeds(&exec(&host, &json!({})));
    assert_eq!(lines(&host, 1)[0]["result"], "started");
    let noted = host.admin(&["audit", "--action", "would_refuse"]);
    assert_eq!((&noted[0]["rule"], &noted[0]["event"]), (&json!("nothing"), &json!("exec")));
    assert_eq!(host.admin(&["explain", "c1"])["would_refuse"][0]["rule"], "nothing");
}

#[test]
fn a_refused_process_is_in_the_audit_log_status_and_explain() {
    let host = host("exec = true\n", NOTHING);
    succeeds(&host.create("c1"));
    assert_eq!(exec(&host, &json!({"args": ["id"]})).status.code(), Some(255));
    let line = &lines(&host, 1)[0];
    assert_eq!((&line["result"], &line["rule"]), (&json!("refused"), &json!("nothing")));
    assert_eq!(line["args"], json!(["id"]));
    let refused = host.admin(&["audit", "--action", "refused"]);
    assert_eq!((&refused[0]["event"], &refused[0]["rule"]), (&json!("exec"), &json!("nothing")));
    let explained = host.admin(&["explain", "c1"]);
    assert!(explained["refused"][0].as_str().unwrap().contains("nothing"), "{explained}");
    assert_eq!(explained["exec_rules"][0]["rule"], "nothing");
    assert!(host.admin(&["status"])["failures"].to_string().contains("nothing"));
    let page = String::from_utf8(host.call(&["nri", "explain", "c1"]).stdout).unwrap();
    assert!(page.contains("exec rule"), "{page}");
}

#[test]
fn an_exec_rule_applies_to_its_pods_and_policy_test_shows_it() {
    let rules = "[[exec_rule]]\nname = \"podman\"\nengines = [\"podman\"]\n\
                 [[exec_rule]]\nname = \"plain\"\nengines = [\"plain\"]\nterminal = true\n";
    let host = ruled(rules);
    succeeds(&exec(&host, &json!({})));
    host.write("fake/argv", "");
    refused(&host, &exec(&host, &json!({"terminal": true})), &["\"plain\""]);
    let tested = host.admin(&["policy", "test", "--pod", "c1"]);
    let row =
        |at: usize| (&tested["exec_rules"][at]["matches"], &tested["exec_rules"][at]["decides"]);
    assert_eq!(row(0), (&json!("no"), &json!(false)), "{tested}");
    assert_eq!(row(1), (&json!("yes"), &json!(true)), "{tested}");
    let page =
        String::from_utf8(host.call(&["nri", "policy", "test", "--pod", "c1"]).stdout).unwrap();
    assert!(page.contains("exec rule \"plain\" refuses processes with a terminal"), "{page}");
}

#[test]
fn rules_apply_to_earlier_and_to_unknown_containers() {
    let mut host = host("", "");
    succeeds(&host.create("c1"));
    host.kill_daemon();
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.create("c2"));
    succeeds(&host.call(&["nri", "enable"]));
    host.start_daemon();
    reconfigure(&host, "", NO_TERMINALS);
    succeeds(&host.call(&["nri", "reload"]));
    host.write("fake/argv", "");
    for id in ["c1", "c2", "nobody"] {
        refused(&host, &host.verb(&["exec", "-t", id, "sh"]), &["no terminals"]);
        succeeds(&host.verb(&["exec", id, "sh"]));
        host.write("fake/argv", "");
    }
    // A rule that may match an unknown container applies.
    let rule = "[[exec_rule]]\nname = \"podman\"\nengines = [\"podman\"]\n";
    reconfigure(&host, "", rule);
    succeeds(&host.call(&["nri", "reload"]));
    refused(&host, &host.verb(&["exec", "nobody", "sh"]), &["podman"]);
    succeeds(&host.verb(&["exec", "c1", "sh"]));
}

#[test]
fn without_a_daemon_the_rules_of_the_files_decide() {
    let mut host = ruled(NO_TERMINALS);
    host.kill_daemon();
    let output = exec(&host, &json!({"terminal": true}));
    refused(&host, &output, &["the exec rule \"no terminals\" does not permit", "daemon"]);
    succeeds(&exec(&host, &json!({})));
    // The rule is removed from the files, and no daemon has it in force.
    reconfigure(&host, "", "");
    succeeds(&exec(&host, &json!({"terminal": true})));
    // The state after a boot, before any daemon ran.
    reconfigure(&host, "", NO_TERMINALS);
    std::fs::remove_dir_all(host.path("run")).unwrap();
    host.write("fake/argv", "");
    refused(&host, &host.verb(&["exec", "-t", "c1", "sh"]), &["no terminals"]);
    succeeds(&host.verb(&["exec", "c1", "sh"]));
    host.start_daemon();
    wait_until("the refusal is on record", || {
        host.admin(&["status"])["failures"].to_string().contains("no terminals")
    });
}

#[test]
fn an_exec_waits_about_a_second_for_a_hanging_daemon() {
    let host = ruled(NO_TERMINALS);
    let daemon = nix::unistd::Pid::from_raw(host.daemon_pid());
    kill(daemon, Signal::SIGSTOP).unwrap();
    // Every exec waits equally long. On a busy machine one may take longer, so the test repeats
    // until one was short.
    wait_until("one waits no longer", || {
        let begun = Instant::now();
        succeeds(&exec(&host, &json!({})));
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(900), "{took:?}");
        took < Duration::from_secs(3)
    });
    refused(
        &host,
        &{
            host.write("fake/argv", "");
            exec(&host, &json!({"terminal": true}))
        },
        &["no terminals"],
    );
    kill(daemon, Signal::SIGCONT).unwrap();
}

#[test]
fn a_disabled_node_refuses_no_process() {
    let host = ruled(NOTHING);
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&exec(&host, &json!({})));
    succeeds(&host.call(&["nri", "enable"]));
    host.write("fake/argv", "");
    refused(&host, &exec(&host, &json!({})), &["\"nothing\""]);
}

#[test]
fn an_invalid_exec_rule_refuses_unless_a_valid_one_is_in_force() {
    let mut host = started("");
    succeeds(&host.create("c1"));
    host.configure(&host.path("fake/runc"), "[[exec_rule]]\nterminl = true\n");
    let reload = host.call(&["nri", "reload"]);
    assert!(!reload.status.success());
    succeeds(&exec(&host, &json!({})));
    host.kill_daemon();
    std::fs::remove_dir_all(host.path("run")).unwrap();
    host.write("fake/argv", "");
    refused(&host, &exec(&host, &json!({})), &["config.toml:", "does not permit"]);
}

#[test]
fn a_misspelt_exec_rule_section_refuses_execs() {
    let mut host = started("");
    succeeds(&host.create("c1"));
    host.kill_daemon();
    for (text, is_refused) in [
        ("[[exec_rules]]\nterminal = true\n", true),
        ("[[Exec-Rule]]\nterminal = true\n", true),
        ("[exec_rule]\nterminal = true\n", true),
        ("[execrule]\n", true),
        ("[[rules]]\nhide = true\n", false),
        ("[audit]\nexec = 3\n", false),
    ] {
        host.configure(&host.path("fake/runc"), text);
        let _absent = std::fs::remove_dir_all(host.path("run"));
        host.write("fake/argv", "");
        let output = exec(&host, &json!({}));
        match is_refused {
            true => refused(&host, &output, &["config.toml:", "does not permit"]),
            false => succeeds(&output),
        }
    }
}

#[test]
fn check_and_reload_warn_about_a_bare_denial() {
    let host = host("", "");
    reconfigure(&host, "", NOTHING);
    let reload = host.call(&["nri", "reload"]);
    let warned = String::from_utf8_lossy(&reload.stdout).into_owned();
    assert!(warned.contains("exec probes"), "{warned}");
    let check = String::from_utf8_lossy(&host.call(&["nri", "check"]).stdout).into_owned();
    assert!(check.contains("exec rule \"nothing\"") && check.contains("exec probes"), "{check}");
    reconfigure(&host, "", NO_TERMINALS);
    let reload = host.call(&["nri", "reload"]);
    assert!(!String::from_utf8_lossy(&reload.stdout).contains("exec probes"));
}
