// SPDX-License-Identifier: Apache-2.0
//! Ends of containers: by Podman, by themselves, by SIGKILL, with and without a daemon. Each end is
//! sent once, and nothing is left behind.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use test_support::podman::PodmanHost;
use test_support::{LIFE, Script, life};

use super::{inspect, installed, listening, request_of, run, run_words};

fn killed(pid: i64) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}

#[test]
fn stop_kill_and_rm_each_report_one_end() {
    let Some(host) = installed("") else { return };
    let seen = host.plugin("10", "witness", Script::default());
    let ends: [&[&[&str]]; 4] = [
        &[&["stop", "--time", "0", "web"], &["rm", "web"]],
        &[&["kill", "web"], &["wait", "web"], &["rm", "--force", "web"]],
        &[&["rm", "--force", "--time", "0", "web"]],
        &[&["pause", "web"], &["unpause", "web"], &["rm", "--force", "--time", "0", "web"]],
    ];
    for words in ends {
        run(&host, "web", &[], &[]);
        words.iter().for_each(|words| drop(host.good(words)));
        host.wait_until_no_pods();
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), life("web"), "{words:?}");
        assert_eq!(host.good(&["ps", "--all", "--quiet"]), "", "{words:?}");
    }
    assert_eq!(host.admin(&["status"])["failures"], json!([]));
}

#[test]
fn a_container_that_exits_by_itself_has_its_exit_code() {
    let Some(host) = installed("") else { return };
    let (script, requests) = listening(Script::default());
    let seen = host.plugin("10", "witness", script);
    run(&host, "web", &[], &["sh", "-c", "sleep 0.2; exit 3"]);
    assert_eq!(host.good(&["wait", "web"]), "3");
    host.wait_until_no_pods();
    assert_eq!(*seen.lock().unwrap(), life("web"));
    // The stop waits only a moment for the code; on a busy machine the removal has it.
    let removed = &request_of(&requests, "RemoveContainer", "web")["container"];
    assert_eq!((&removed["exitCode"], &removed["statusReason"]), (&json!(3), &json!("Error")));
    host.good(&["rm", "web"]);
}

#[test]
fn container_and_exec_events_are_streamed_without_a_plugin() {
    let rule = "[[exec_rule]]\nname = \"no shells\"\ncommands = [\"sh\"]\n";
    let Some(host) = installed(rule) else { return };
    run(&host, "web", &[], &["sleep", "1000"]);
    host.good(&["exec", "web", "true"]);
    host.bad(&["exec", "web", "sh"], &["no shells"]);
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    let output = host.nri(&["events", "-o", "json"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let events = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut events: Vec<serde_json::Value> = events.collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    let wanted = [
        "pod_running",
        "created",
        "started",
        "exec",
        "refused",
        "exited",
        "removed",
        "pod_stopped",
        "pod_removed",
    ];
    assert_eq!(kinds, wanted, "{lines}");
    assert!(events.iter().all(|event| event["pod"] == "web" && event["engine"] == "podman"));
    let removed = events.swap_remove(6);
    assert_eq!(removed["exit_code"], 137, "{removed}");
}

#[test]
fn a_foreground_run_returns_its_exit_code_and_leaves_nothing() {
    let Some(host) = installed("") else { return };
    let seen = host.plugin("10", "witness", Script::default());
    let cgroup = host.cgroup();
    let words = run_words(&cgroup, "web", &["--rm"]);
    let output = host.podman(&[&words[..], &["sh", "-c", "echo said; exit 3"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "said\n");
    host.wait_until_no_pods();
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), life("web"));
    assert_eq!(host.good(&["ps", "--all", "--quiet"]), "");
    let missing = host.podman(&[&words[..], &["/no/such/program"]].concat());
    assert_eq!(missing.status.code(), Some(127), "Podman still reads what runc says");
    host.wait_until_no_pods();
    assert_eq!(*seen.lock().unwrap(), [&life("web")[..2], &life("web")[5..]].concat());
}

/// Checks a container whose exit was not recorded: Podman fails once or not at all, and then drops
/// the container without calling the runtime. If a person deletes it there, plugins receive its
/// removal.
fn forgotten_by_podman(host: &PodmanHost, seen: &super::EventLines, id: &str) {
    let _first = host.podman(&["rm", "--force", "--time", "0", "web"]);
    let _second = host.podman(&["rm", "--force", "--time", "0", "web"]);
    assert_eq!(host.good(&["ps", "--all", "--quiet"]), "");
    host.wait_until("its end is reported", || {
        seen.lock().unwrap().contains(&"StopContainer web".to_owned())
    });
    let deleted = host.call(&host.program(), &["delete", "--force", id]);
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    host.wait_until_no_pods();
    assert_eq!(*seen.lock().unwrap(), life("web"));
}

#[test]
fn a_container_outlives_its_monitor_and_ends_once() {
    let Some(host) = installed("") else { return };
    let seen = host.plugin("10", "witness", Script::default());
    let id = run(&host, "web", &[], &[]);
    killed(inspect(&host, "web")["State"]["ConmonPid"].as_i64().unwrap());
    assert_eq!(host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    forgotten_by_podman(&host, &seen, &id);
}

#[test]
fn a_container_that_is_killed_with_its_monitor_ends_once() {
    let Some(host) = installed("") else { return };
    let seen = host.plugin("10", "witness", Script::default());
    let id = run(&host, "web", &[], &[]);
    let state = inspect(&host, "web")["State"].clone();
    killed(state["ConmonPid"].as_i64().unwrap());
    killed(state["Pid"].as_i64().unwrap());
    host.wait_until("its end is reported", || {
        seen.lock().unwrap().contains(&"StopContainer web".to_owned())
    });
    forgotten_by_podman(&host, &seen, &id);
}

#[test]
fn the_next_daemon_sees_the_end_of_an_earlier_container() {
    let Some(mut host) = installed("autostart = false") else { return };
    run(&host, "web", &[], &[]);
    run(&host, "gone", &[], &[]);
    host.wait_until("both run", || {
        let pods = host.admin(&["pods"]).to_string();
        pods.matches("running").count() == 2
    });
    host.kill_daemon();
    killed(inspect(&host, "gone")["State"]["Pid"].as_i64().unwrap());
    host.start_daemon();
    let seen = host.plugin("10", "witness", Script::default());
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.good(&["rm", "--force", "--time", "0", "gone"]);
    host.wait_until_no_pods();
    let seen = super::events_of(&seen, "web");
    assert_eq!(seen, [&["Synchronize"], &LIFE[5..]].concat());
}

#[test]
fn the_next_daemon_knows_a_create_that_a_kill_interrupted() {
    let Some(mut host) = installed("autostart = false") else { return };
    let hangs = Script { hangs: true, ..Script::default() };
    let seen = host.plugin("10", "slow", hangs);
    let cgroup = host.cgroup();
    let mut podman = host.spawn_podman(&run_words(&cgroup, "web", &["--detach"]));
    host.wait_until("the plugin is asked", || {
        seen.lock().unwrap().contains(&"CreateContainer web".to_owned())
    });
    host.kill_daemon();
    assert!(podman.wait().unwrap().success(), "on_daemon_failure is \"continue\"");
    assert_eq!(inspect(&host, "web")["State"]["Running"], true);
    host.start_daemon();
    let seen = host.plugin("10", "witness", Script::default());
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    let seen = super::events_of(&seen, "web");
    assert_eq!(seen, [&["Synchronize"], &LIFE[5..]].concat());
}

#[test]
fn without_a_daemon_a_create_fails_if_configured() {
    let more = "autostart = false\non_daemon_failure = \"fail\"";
    let Some(mut host) = installed(more) else { return };
    host.kill_daemon();
    let cgroup = host.cgroup();
    let words = run_words(&cgroup, "web", &["--detach"]);
    host.bad(&words, &["nri-runc", "daemon"]);
    host.good(&["rm", "web"]);
    host.start_daemon();
    run(&host, "web", &[], &[]);
}

fn parent_of(pid: u64) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let parent = after.split_whitespace().nth(1).unwrap_or_default();
    std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default().trim().to_owned()
}

fn is_there(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// The first container starts the daemon, below conmon.
fn started_by(host: &PodmanHost, args: &[&str]) -> (u64, u64) {
    run(host, "web", &[], args);
    let conmon = inspect(host, "web")["State"]["ConmonPid"].as_u64().unwrap_or(0);
    (host.admin(&["status"])["pid"].as_u64().unwrap(), conmon)
}

#[test]
fn the_monitor_that_started_the_daemon_ends_with_its_container() {
    let Some(mut host) = installed("") else { return };
    host.kill_daemon();
    let ends_on_a_signal = "trap 'exit 3' TERM; while :; do sleep 0.1; done";
    let (daemon, conmon) = started_by(&host, &["sh", "-c", ends_on_a_signal]);
    assert!(conmon > 1 && is_there(conmon));
    host.good(&["kill", "--signal", "TERM", "web"]);
    assert_eq!(host.good(&["wait", "web"]), "3");
    host.wait_until("the monitor has ended", || !is_there(conmon));
    assert!(is_there(daemon), "the daemon went with it");
    host.wait_until("nobody stands in between", || parent_of(daemon) != "nri-runc");
    host.good(&["rm", "web"]);
    // Killing a monitor ends no other process.
    killed(i64::try_from(daemon).unwrap());
    let (daemon, conmon) = started_by(&host, &[]);
    killed(i64::try_from(conmon).unwrap());
    host.wait_until("nobody stands in between", || parent_of(daemon) != "nri-runc");
    assert_eq!(host.admin(&["status"])["pid"], daemon);
}
