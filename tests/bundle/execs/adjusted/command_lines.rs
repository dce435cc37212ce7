// SPDX-License-Identifier: Apache-2.0
//! The command line and the document of an `exec`, as the runtime receives them.

use serde_json::json;
use test_support::adjustments::adjusts;
use test_support::{Script, TestHost, fails, started, succeeds};

use super::{CHANGED, PROCESS, changing, exec, last_words, marks, process};

/// A host with a container that is created but not started, whose process plugins changed.
fn changed(more: &str) -> TestHost {
    let host = started(more);
    let _plugin = host.plugin("10", "env", changing());
    succeeds(&host.create("c1"));
    host
}

#[test]
fn an_exec_after_create_or_start_has_the_plugins_changes() {
    let host = changed("");
    for _twice in 0..2 {
        succeeds(&exec(&host, "c1", PROCESS));
        assert_eq!(host.read("fake/process.json"), CHANGED);
        assert_eq!(host.read("process"), PROCESS, "the engine's file is as it was");
        succeeds(&host.verb(&["start", "c1"]));
    }
}

#[test]
fn every_spelling_of_the_process_flag_names_the_edited_copy() {
    let host = changed("");
    let file = process(&host, PROCESS);
    for (before, after) in [
        (vec!["--process", &file], "--process /proc/self/fd/200"),
        (vec![&format!("--process={file}")], "--process=/proc/self/fd/200"),
        (vec!["-p", &file], "-p /proc/self/fd/200"),
    ] {
        let words = [&["exec", "--detach"], &before[..], &["--pid-file", "/p", "c1"]].concat();
        succeeds(&host.verb(&words));
        let wanted = format!("exec --detach {after} --pid-file /p c1");
        let root = format!("--root {} ", host.path("root").display());
        assert_eq!(last_words(&host).join(" "), root + &wanted);
        assert_eq!(host.read("fake/process.json"), CHANGED, "{before:?}");
    }
}

#[test]
fn values_that_an_exec_sets_win_over_the_plugins() {
    let host = changed("");
    let asked = PROCESS.replace("\"A=1\"", "\"A=mine\",\"HELLO=me\"");
    succeeds(&exec(&host, "c1", &asked));
    assert_eq!(host.read("fake/process.json"), asked.replace("\"PATH=/bin\",", ""));
    let own = PROCESS.replace("PATH=/bin", "PATH=/usr/bin");
    succeeds(&exec(&host, "c1", &own));
    assert_eq!(
        host.read("fake/process.json"),
        CHANGED.replace("\"A=2\"", "\"PATH=/usr/bin\",\"A=2\"")
    );
}

#[test]
fn an_exec_in_an_unchanged_container_passes_unchanged() {
    let host = started("");
    let _plugin = host.plugin("10", "witness", Script::default());
    succeeds(&host.create("c1"));
    succeeds(&exec(&host, "c1", PROCESS));
    assert_eq!(host.read("fake/process.json"), PROCESS);
    let file = host.path("process").display().to_string();
    assert_eq!(last_words(&host)[2..], ["exec", "--process", &file, "--detach", "c1"]);
    assert_eq!(marks(&host), Vec::<String>::new());
}

#[test]
fn an_exec_without_a_document_is_passed_on_unchanged() {
    let host = changed("");
    succeeds(&host.verb(&["exec", "--env", "A=1", "c1", "--process", "x"]));
    assert_eq!(last_words(&host)[2..], ["exec", "--env", "A=1", "c1", "--process", "x"]);
}

#[test]
fn a_document_that_cannot_be_edited_goes_to_the_runtime() {
    let host = changed("");
    let huge = format!("{{\"env\":[\"A={}\"]}}", "x".repeat(17 << 20));
    for odd in ["", "{\"env\":", "[]", r#"{"env":["A=1"],"Env":[]}"#, r#"{"env":{}}"#, &huge] {
        succeeds(&exec(&host, "c1", odd));
        assert_eq!(host.read("fake/process.json"), odd);
        assert!(last_words(&host).iter().any(|word| word.ends_with("/process")));
    }
    let missing = host.path("nowhere").display().to_string();
    for file in [missing, host.path("").display().to_string()] {
        let _the_runtime_says_so = host.verb(&["exec", "--process", &file, "c1"]);
        assert_eq!(last_words(&host)[2..], ["exec", "--process", &file, "c1"]);
    }
}

#[test]
fn a_document_from_a_pipe_reaches_the_runtime_whole() {
    let host = changed("");
    let pipe = host.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (document, wanted) in [(PROCESS, CHANGED), ("{ \"env\" : [", "{ \"env\" : [")] {
        let words = ["exec", "--process", &pipe.display().to_string(), "c1"].map(str::to_owned);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut child = host.spawn(&words);
        std::fs::OpenOptions::new()
            .write(true)
            .open(&pipe)
            .and_then(|mut pipe| std::io::Write::write_all(&mut pipe, document.as_bytes()))
            .unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(host.read("fake/process.json"), wanted);
    }
}

#[test]
fn while_disabled_an_exec_is_passed_on_unchanged() {
    let host = changed("");
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&exec(&host, "c1", PROCESS));
    assert_eq!(host.read("fake/process.json"), PROCESS);
    succeeds(&host.call(&["nri", "enable"]));
    succeeds(&exec(&host, "c1", PROCESS));
    assert_eq!(host.read("fake/process.json"), CHANGED);
}

#[test]
fn an_exec_gets_the_plugins_changes_without_a_daemon() {
    let mut host = changed("autostart = false\non_daemon_failure = \"fail\"\n");
    let before = host.admin(&["status"])["requests"].clone();
    succeeds(&exec(&host, "c1", PROCESS));
    assert_eq!(host.admin(&["status"])["requests"], before);
    host.kill_daemon();
    succeeds(&exec(&host, "c1", PROCESS));
    assert_eq!(host.read("fake/process.json"), CHANGED);
    fails(&host.create("c2"), &["daemon"]);
}

#[test]
fn limits_scores_and_scheduling_reach_a_later_process() {
    let host = started("");
    host.write("fake/features", r#"{"ociVersionMax":"1.3.0"}"#);
    host.write("fake/version", "runc version 1.5.2\nspec: 1.3.0\n");
    let script = adjusts(&json!({
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 321, "soft": 123}],
        "linux": {
            "oomScoreAdj": {"value": 500},
            "scheduler": {"policy": "SCHED_BATCH", "nice": 5},
            "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 6},
        },
    }));
    let _plugin = host.plugin("10", "limits", script);
    succeeds(&host.create("c1"));
    succeeds(&exec(
        &host,
        "c1",
        r#"{"args":["id"],"rlimits":[{"type":"RLIMIT_CORE","hard":1,"soft":1}]}"#,
    ));
    let wanted = json!({
        "args": ["id"],
        "rlimits": [
            {"type": "RLIMIT_CORE", "hard": 1, "soft": 1},
            {"type": "RLIMIT_NOFILE", "hard": 321, "soft": 123},
        ],
        "oomScoreAdj": 500,
        "scheduler": {"policy": "SCHED_BATCH", "nice": 5},
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 6},
    });
    assert_eq!(super::seen(&host), wanted);
}

#[test]
fn the_edited_copy_is_not_among_the_preserved_descriptors() {
    let host = changed("");
    let file = process(&host, PROCESS);
    // A runtime that lists what it inherited.
    host.put_program("fake/runc", "#!/bin/sh\nls -l /proc/self/fd >\"$(dirname \"$0\")/open\"\n");
    let words = ["exec", "--preserve-fds", "5", "--process", &file, "c1"];
    succeeds(&host.verb(&words));
    let open = host.read("fake/open");
    let copies: Vec<&str> = open.lines().filter(|line| line.contains("memfd:")).collect();
    assert!(copies.len() == 1 && copies[0].contains(" 200 -> "), "{open}");
}
