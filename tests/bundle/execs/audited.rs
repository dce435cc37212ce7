// SPDX-License-Identifier: Apache-2.0
//! `[audit] exec`: the content of a line for both forms of `exec`, the values that no line has, and
//! that no call waits for it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::{Script, TestHost, succeeds, tracer, wait_until};

use super::{document, host, last_words, lines, reconfigure};

const EXEC: &str = "exec = true\n";

/// Calls `exec` with that document as containerd does.
fn exec(host: &TestHost, id: &str, process: &Value) -> std::process::Output {
    host.write("process", &document(process).to_string());
    let file = host.path("process").display().to_string();
    let pid_file = host.path("exec.pid").display().to_string();
    host.verb(&["exec", "--process", &file, "--detach", "--pid-file", &pid_file, id])
}

#[test]
fn an_exec_line_has_user_program_terminal_and_result() {
    let host = host(EXEC, "");
    succeeds(&host.create("c1"));
    let process = json!({"args": ["/bin/sh", "-c", "TOKEN=s3cret run"], "terminal": true,
        "user": {"uid": 1000, "gid": 7}, "env": ["PASSWORD=s3cret"]});
    succeeds(&exec(&host, "c1", &process));
    let [line] = &lines(&host, 1)[..] else { panic!() };
    assert_eq!((&line["user"], &line["args"]), (&json!("1000:7"), &json!(["/bin/sh"])));
    assert_eq!((&line["terminal"], &line["result"]), (&json!(true), &json!("started")));
    assert_eq!((&line["container_id"], &line["engine"]), (&json!("c1"), &json!("plain")));
    assert!(line["caller"].as_array().unwrap().len() > 1, "the test has a parent: {line}");
    assert!(line.get("exit_code").is_none() && line.get("loginuid").is_some(), "{line}");
    assert!(!host.read("log/audit.log").contains("s3cret"));
    let output = host.call(&["nri", "events", "-o", "json", "--kind", "exec"]);
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&event["container_id"], &event["plugin"]), (&json!("c1"), &json!("")));
    let file = host.path("process").display().to_string();
    assert!(last_words(&host).contains(&file), "the engine's own file is used");
    let page = host.call(&["nri", "audit", "--action", "exec"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("  exec   ") && page.contains("/bin/sh  started"), "{page}");
}

#[test]
fn an_exec_line_without_process_file_has_user_and_exit_code() {
    let host = host(EXEC, "");
    succeeds(&host.create("c1"));
    host.write("fake/exec-code", "3");
    let output = host.verb(&["exec", "--tty", "c1", "ls", "-l"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(host.verb(&["exec", "--user", "5", "c1", "id"]).status.code(), Some(3));
    let found = lines(&host, 2);
    for (line, [user, program, terminal]) in found
        .iter()
        .zip([[json!("0:0"), json!("ls"), json!(true)], [json!("5"), json!("id"), json!(false)]])
    {
        assert_eq!((&line["user"], &line["args"][0]), (&user, &program), "{line}");
        assert_eq!((&line["terminal"], &line["result"]), (&terminal, &json!("exited")));
        assert!(line["exit_code"].is_null() || line["exit_code"] == 3, "{line}");
    }
}

#[test]
fn a_detached_process_that_did_not_start_is_a_failed_line() {
    let host = host(EXEC, "");
    succeeds(&host.create("c1"));
    host.write("fake/exec-code", "255");
    assert_eq!(exec(&host, "c1", &json!({})).status.code(), Some(255));
    assert_eq!(lines(&host, 1)[0]["result"], "failed");
}

#[test]
fn exec_args_all_hides_values_and_none_omits_arguments() {
    let host = host("exec = true\nexec_args = \"all\"\n", "");
    succeeds(&host.create("c1"));
    let args = json!(["env", "TOKEN=s3cret", "--password=s3cret", "sh"]);
    succeeds(&exec(&host, "c1", &json!({"args": args})));
    let wanted = json!(["env", "TOKEN=(hidden)", "--password=(hidden)", "sh"]);
    assert_eq!(lines(&host, 1)[0]["args"], wanted);
    let many: Vec<String> = (0..5000).map(|n| format!("\u{1b}argument {n}")).collect();
    succeeds(&exec(&host, "c1", &json!({"args": many})));
    let args = lines(&host, 2)[1]["args"].as_array().unwrap().clone();
    assert!(args.len() < 1000 && args.last() == Some(&json!("\u{2026}")), "{}", args.len());
    reconfigure(&host, "exec = true\nexec_args = \"none\"\n", "");
    succeeds(&host.call(&["nri", "reload"]));
    succeeds(&exec(&host, "c1", &json!({"args": ["sh"]})));
    let found = lines(&host, 3);
    assert!(found[2].get("args").is_none(), "{found:?}");
}

#[test]
fn a_reload_switches_exec_lines_for_existing_containers_too() {
    let host = host("", "");
    succeeds(&host.create("c1"));
    succeeds(&host.verb(&["exec", "c1", "before"]));
    assert!(!host.path("run/execs").exists());
    reconfigure(&host, EXEC, "");
    succeeds(&host.call(&["nri", "reload"]));
    succeeds(&host.verb(&["exec", "c1", "one"]));
    assert_eq!(lines(&host, 1)[0]["user"], "0:0", "the mark of an earlier container was written");
    reconfigure(&host, "", "");
    succeeds(&host.verb(&["exec", "c1", "two"]));
    assert_eq!(lines(&host, 2)[1]["args"], json!(["two"]), "what is in force counts");
    succeeds(&host.call(&["nri", "reload"]));
    assert!(!host.path("run/execs").exists());
    let marks = std::fs::read_dir(host.path("run/state/marks")).unwrap().count();
    assert_eq!(marks, 0, "no mark is left");
    succeeds(&host.verb(&["exec", "c1", "after"]));
    assert_eq!(lines(&host, 2).len(), 2);
}

#[test]
fn execs_in_unknown_containers_are_audited_too() {
    let mut host = host(EXEC, "");
    host.kill_daemon();
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.create("c1"));
    succeeds(&host.call(&["nri", "enable"]));
    host.start_daemon();
    succeeds(&host.verb(&["exec", "c1", "sh"]));
    succeeds(&host.verb(&["exec", "nobody", "sh"]));
    let found = lines(&host, 2);
    assert_eq!(
        (&found[0]["container_id"], &found[1]["container_id"]),
        (&json!("c1"), &json!("nobody"))
    );
}

#[test]
fn an_exec_without_a_daemon_starts_none_and_does_not_wait() {
    let mut host = host(EXEC, "");
    succeeds(&host.create("c1"));
    host.kill_daemon();
    // If execs waited, each would take at least a second.
    wait_until("one does not wait", || {
        let begun = Instant::now();
        succeeds(&exec(&host, "c1", &json!({})));
        begun.elapsed() < Duration::from_millis(900)
    });
    assert_eq!(host.admin(&["status"])["pid"], Value::Null);
}

#[test]
fn a_daemon_that_hangs_delays_no_process() {
    let host = host(EXEC, "");
    succeeds(&host.create("c1"));
    let daemon = nix::unistd::Pid::from_raw(host.daemon_pid());
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGSTOP).unwrap();
    // There are more calls than the socket's queue holds: if calls waited, each one beyond it would
    // take at least a second.
    let took = |_| {
        let begun = Instant::now();
        succeeds(&host.verb(&["exec", "c1", "sh"]));
        begun.elapsed()
    };
    let last: Vec<Duration> = (0..150).map(took).skip(130).collect();
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert!(last.iter().any(|took| *took < Duration::from_millis(900)), "{last:?}");
    wait_until("the lines that it took are written", || {
        host.admin(&["audit", "--action", "exec"]).as_array().is_some_and(|lines| !lines.is_empty())
    });
}

/// The files below the run directory that an `exec` looks up, and whether each existed.
fn looked_for(host: &TestHost, words: &[&str]) -> Option<Vec<String>> {
    let tracer = tracer::around_wrapper(&tracer::find()?, &host.path("strace"), None);
    let root = host.path("root").display().to_string();
    succeeds(&host.call_by(&tracer, &[&["--root", &root][..], words].concat(), ""));
    let run = host.path("run/").display().to_string();
    let calls = host.read("strace");
    Some(calls.lines().filter(|line| line.contains(&run)).map(str::to_owned).collect())
}

#[test]
fn an_unobserved_exec_looks_for_two_files_at_most() {
    let host = host("", "");
    let _plugin = host.plugin("10", "a", Script::default());
    succeeds(&host.create("c1"));
    for (words, count) in
        [(&["exec", "c1", "sh"][..], 1), (&["exec", "--process", "/dev/null", "c1"][..], 2)]
    {
        let Some(found) = looked_for(&host, words) else { return };
        assert_eq!(found.len(), count, "{found:?}");
        assert!(found[0].contains("/execs\"") && found.iter().all(|line| line.contains("ENOENT")));
        assert!(!host.read("strace").contains("socket("), "{words:?}");
    }
}
