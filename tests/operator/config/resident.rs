// SPDX-License-Identifier: Apache-2.0
//! A daemon that is signalled, stopped, restarted, or older than its files on disk.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::{TestHost, wait_until};

use super::{fails, finding, started, succeeds};

fn configure(host: &TestHost, more: &str) {
    host.configure(&host.path("fake/runc"), more);
}

fn pid(host: &TestHost) -> Option<u64> {
    host.admin(&["status"])["pid"].as_u64()
}

#[test]
fn creates_continue_once_a_mistake_is_fixed() {
    let host = started("[plugin.a]\ndeny = \"Env\"\n");
    let before = pid(&host);
    fails(&host.create("c1"), &["configuration has an error"]);
    configure(&host, "[plugin.a]\ndeny = [\"Env\"]\n");
    wait_until("creates go on", || host.create("c1").status.success());
    assert_eq!(pid(&host), before, "it was reloaded");
    assert_eq!(finding(&host, "configuration")["ok"], true);
}

#[test]
fn stop_ends_the_daemon_and_the_next_container_starts_it() {
    let host = started("");
    let before = pid(&host).unwrap();
    let printed = host.admin(&["stop"]);
    assert_eq!((&printed["stopped"], &printed["pid"]), (&true.into(), &before.into()), "{printed}");
    assert_eq!(pid(&host), None);
    let output = host.call(&["nri", "stop"]);
    succeeds(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the daemon is not running\n");
    succeeds(&host.create("c1"));
    assert!(pid(&host).is_some_and(|now| now != before));
}

#[test]
fn restart_keeps_the_daemons_configuration_file() {
    let host = started("");
    succeeds(&host.create("c1"));
    let before = pid(&host).unwrap();
    // Another file for the same run directory: the restarting operator need not know the earlier
    // file.
    let text = host.read("config.toml");
    host.write("other.toml", &text);
    let other = host.path("other.toml").display().to_string();
    let printed = host.admin(&["--config", &other, "restart"]);
    assert_eq!(printed["was"], before, "{printed}");
    let status = host.admin(&["status"]);
    assert_eq!(status["pid"], printed["pid"]);
    assert_eq!(status["configuration"]["file"], host.path("config.toml").display().to_string());
    assert_eq!(status["containers"], 1, "the next daemon knows the containers");
    succeeds(&host.verb(&["start", "c1"]));
}

fn freeze(host: &TestHost) {
    kill(Pid::from_raw(host.daemon_pid()), Signal::SIGSTOP).unwrap();
}

#[test]
fn a_daemon_that_hangs_is_stopped_within_bounds() {
    let host = started("");
    let before = pid(&host).unwrap();
    freeze(&host);
    fails(&host.call(&["nri", "status"]), &["stopped responding", "nri-runc nri restart"]);
    let begun = Instant::now();
    let printed = host.admin(&["stop"]);
    assert_eq!((&printed["killed"], &printed["pid"]), (&true.into(), &before.into()), "{printed}");
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
    succeeds(&host.create("c1"));
    assert!(pid(&host).is_some_and(|now| now != before));
}

#[test]
fn check_reports_that_the_daemon_hangs() {
    let host = started("[log]\ntarget = \"file\"\n");
    let row = |host: &TestHost, name: &str| {
        let output = host.call(&["nri", "check", "--json"]);
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        rows.into_iter().find(|row| row["check"] == name).unwrap()
    };
    assert_eq!(row(&host, "daemon")["ok"], true);
    let log = host.read("run/daemon.log");
    assert!(log.contains("is ready") && !log.contains("plugin connection"), "{log}");
    freeze(&host);
    // The daemon itself holds the plugin socket, and is not reported as another process.
    let socket = row(&host, "plugin socket");
    assert!(
        socket["detail"].as_str().unwrap().ends_with("unknown: the daemon gave no status"),
        "{socket}"
    );
    let frozen = row(&host, "daemon");
    assert_eq!(frozen["ok"], false, "{frozen}");
    let detail = frozen["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("listening at ") && detail.contains("stopped responding"),
        "{detail}"
    );
    assert!(frozen["hint"].as_str().unwrap().contains("nri-runc nri restart"), "{frozen}");
}

#[test]
fn a_hanging_daemon_with_a_full_queue_is_restarted() {
    let host = started("");
    let before = pid(&host).unwrap();
    freeze(&host);
    // The daemon's queue is full, so an ordinary connect would wait for ever.
    let mut waiting = Vec::new();
    loop {
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None);
        let socket = socket.unwrap();
        let address = UnixAddr::new(&host.path("run/daemon.sock")).unwrap();
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => waiting.push(socket),
            Err(errno) => break assert_eq!(errno, nix::errno::Errno::EAGAIN),
        }
    }
    let text = host.read("config.toml");
    host.write("other.toml", &text);
    let other = host.path("other.toml").display().to_string();
    let output = host.call(&["nri", "--config", &other, "restart"]);
    succeeds(&output);
    assert!(pid(&host).is_some_and(|now| now != before));
    let file = host.admin(&["status"])["configuration"]["file"].clone();
    assert_eq!(file, host.path("config.toml").display().to_string());
}

#[test]
fn a_process_without_the_daemons_lock_is_never_signalled() {
    let host = TestHost::default();
    std::fs::create_dir_all(host.path("run")).unwrap();
    let _silent = UnixListener::bind(host.path("run/daemon.sock")).unwrap();
    host.write("run/daemon.lock", "");
    fails(&host.call(&["nri", "stop"]), &["stopped responding"]);
}

/// A daemon that seems to run under systemd: it has sent its readiness.
fn run_by_systemd() -> (TestHost, std::process::Child) {
    let host = TestHost::default();
    let socket = host.path("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    let daemon = daemon(&host, Path::new(env!("CARGO_BIN_EXE_nri-runc")), Some(&socket));
    let mut printed = [0; 16];
    assert_eq!(listener.recv(&mut printed).unwrap(), b"READY=1\n".len());
    (host, daemon)
}

#[test]
fn stop_does_not_end_a_hanging_daemon_of_systemd() {
    let (host, mut daemon) = run_by_systemd();
    kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGSTOP).unwrap();
    fails(&host.call(&["nri", "stop"]), &["systemd runs the daemon", "systemctl stop"]);
    assert!(daemon.try_wait().unwrap().is_none(), "it was ended");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn restart_keeps_the_daemon_while_the_configuration_is_broken() {
    let host = started("");
    let before = pid(&host);
    configure(&host, "[plugin.a]\nrequird = true\n");
    let output = host.call(&["nri", "restart"]);
    fails(&output, &["config.toml:", "requird", "keeps running"]);
    assert_eq!(pid(&host), before);
}

#[test]
fn stop_and_restart_leave_systemds_daemon_running() {
    let (host, mut daemon) = run_by_systemd();
    fails(
        &host.call(&["nri", "stop"]),
        &["systemd runs the daemon", "systemctl stop nri-runc.socket"],
    );
    fails(
        &host.call(&["nri", "restart"]),
        &["systemd runs the daemon", "systemctl restart nri-runc"],
    );
    assert_eq!(pid(&host), Some(daemon.id().into()));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

fn daemon(host: &TestHost, program: &Path, notify: Option<&Path>) -> std::process::Child {
    let mut command = std::process::Command::new(program);
    command.env("NRI_RUNC_CONFIG", host.path("config.toml")).args(["nri", "daemon"]);
    if let Some(notify) = notify {
        command.env("NOTIFY_SOCKET", notify);
    }
    let null = std::process::Stdio::null;
    command.stdin(null()).stdout(null()).stderr(null()).spawn().unwrap()
}

/// The failed rows of `check` about the daemon.
fn against(host: &TestHost) -> Vec<String> {
    let findings = host.admin(&["check"]);
    let findings = findings.as_array().into_iter().flatten();
    let findings = findings.filter(|one| one["check"] == "daemon" && one["ok"] == false);
    findings.map(|one| format!("{} ({})", text(&one["detail"]), text(&one["hint"]))).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn check_finds_a_daemon_older_than_program_or_configuration() {
    let host = TestHost::default();
    let program = host.path("installed");
    let install = |more: &[u8]| {
        let built = std::fs::read(env!("CARGO_BIN_EXE_nri-runc")).unwrap();
        test_support::program::put(&program, [&built, more].concat());
    };
    install(b"");
    let mut daemon = daemon(&host, &program, None);
    wait_until("it answers", || pid(&host) == Some(daemon.id().into()));
    assert_eq!(against(&host), [""; 0]);
    install(b"");
    assert_eq!(against(&host), [""; 0], "the same bytes installed once more are no other program");
    install(b"newer");
    let older = format!("older than its executable {} (nri-runc nri reexec)", program.display());
    assert_eq!(against(&host), std::slice::from_ref(&older));
    let text = host.read("config.toml");
    host.write("config.toml", &format!("# a comment\n{text}"));
    assert_eq!(against(&host), std::slice::from_ref(&older), "a comment is no change");
    configure(&host, "[eviction]\nper_minute = 3\n");
    let wanted =
        "older than the configuration files; changed: eviction.per_minute (nri-runc nri reload)";
    assert_eq!(against(&host), [wanted.to_owned(), older]);
    std::fs::remove_file(&program).unwrap();
    let missing = format!("its executable {} is missing (nri-runc nri restart)", program.display());
    assert_eq!(against(&host)[1], missing);
    install(b"newer");
    // A re-execution would refuse a change that needs a restart.
    configure(&host, "runtime_roots = [\"/run/x\"]\n");
    assert!(against(&host)[1].ends_with("(nri-runc nri restart)"), "{:?}", against(&host));
    assert!(host.admin(&["restart"])["pid"].is_u64());
    daemon.wait().unwrap();
    assert_eq!(against(&host), [""; 0]);
}

/// A `systemctl` with one unit, whose main process is the daemon. It stops it, and starts it again
/// after its exit, as systemd does.
const SYSTEMCTL: &str = r#"#!/bin/sh
dir=$(dirname "$0")
echo "$*" >>"$dir/asked"
case "$*" in
*MainPID*nri-runc.service) cat "$dir/main" ;;
*MainPID*) echo 0 ;;
"--no-block stop nri-runc.socket") exit 5 ;;
"--no-block stop "*) [ -e "$dir/hangs" ] || kill "$(cat "$dir/main")" ;;
"--no-block restart "*)
  [ -e "$dir/hangs" ] || kill "$(cat "$dir/main")"
  export main="/proc/$(cat "$dir/main")/status" NOTIFY_SOCKET="$dir/none"
  setsid sh -c 'while grep -q "^State:.[^Z]" "$main"; do sleep 0.05; done
  exec "$NRI_RUNC_PROGRAM" nri daemon' </dev/null >/dev/null 2>&1 &
  # What is still in its process group ends with it.
  sleep 0.5 ;;
esac
"#;

/// Runs an admin verb with a daemon under systemd.
fn with_systemctl(host: &TestHost, main: u32, words: &[&str]) -> (bool, Value) {
    std::fs::create_dir_all(host.path("systemd")).unwrap();
    host.put_program("systemd/systemctl", SYSTEMCTL);
    host.write("systemd/main", &main.to_string());
    let program = env!("CARGO_BIN_EXE_nri-runc");
    let path = format!("{}:/usr/bin:/bin", host.path("systemd").display());
    let output = std::process::Command::new(program)
        .args(["nri", "--json"])
        .args(words)
        .env("NRI_RUNC_CONFIG", host.path("config.toml"))
        .env("NRI_RUNC_PROGRAM", program)
        .env("PATH", path)
        .output()
        .unwrap();
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[test]
fn systemd_restarts_and_stops_the_daemon_that_it_runs() {
    for hangs in [false, true] {
        let (host, mut daemon) = run_by_systemd();
        std::fs::create_dir_all(host.path("systemd")).unwrap();
        if hangs {
            host.write("systemd/hangs", "");
            kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGSTOP).unwrap();
        }
        let (is_done, printed) = with_systemctl(&host, daemon.id(), &["restart"]);
        daemon.wait().unwrap();
        assert!(is_done && printed["by"] == "systemd" && printed["killed"] == hangs, "{printed}");
        assert_eq!(printed["was"], daemon.id(), "{printed}");
        let next = u32::try_from(printed["pid"].as_u64().unwrap()).unwrap();
        assert_eq!(pid(&host), Some(next.into()));
        let _hangs_no_more = std::fs::remove_file(host.path("systemd/hangs"));
        let (is_done, printed) = with_systemctl(&host, next, &["stop"]);
        assert!(is_done && printed["by"] == "systemd" && printed["pid"] == next, "{printed}");
        assert_eq!(pid(&host), None);
    }
}

#[test]
fn check_names_the_configuration_in_force_and_a_mistake() {
    let host = started("");
    configure(&host, "[plugin.guard]\nrequired = true\n");
    let row = finding(&host, "required plugins");
    assert!(text(&row["detail"]).contains("older than the configuration"), "{row}");
    configure(&host, "[plugin.guard]\nrequird = true\n");
    // The row is right: the running daemon refuses nothing.
    succeeds(&host.create("c1"));
    let row = finding(&host, "configuration");
    assert!(text(&row["detail"]).contains("the running daemon keeps"), "{row}");
    let page = String::from_utf8(host.call(&["nri", "check"]).stdout).unwrap();
    assert!(!page.contains("HINT"), "{page}");
    let mut lines = page.lines().skip_while(|line| !line.starts_with("NO  configuration"));
    let (row, hint) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    assert_eq!(row.find("/"), hint.find("fix: "), "the fix is below the detail: {page}");
    kill(Pid::from_raw(host.daemon_pid()), Signal::SIGKILL).unwrap();
    wait_until("it is gone", || !text(&finding(&host, "daemon")["detail"]).starts_with("answers"));
    let row = finding(&host, "configuration");
    assert!(text(&row["detail"]).ends_with("creates are refused until it is fixed"), "{row}");
    fails(&host.create("c2"), &["unknown key plugin.guard.requird"]);
}
