// SPDX-License-Identifier: Apache-2.0
//! Properties that the daemon would inherit from its first caller: limits, priorities,
//! no_new_privs, an ignored SIGCHLD. Each is reset, or the daemon refuses to start and gives the
//! reason, and the next caller without it gets a daemon.

use std::process::{Command, Output, Stdio};

use test_support::{BUNDLE, TestHost};

use crate::succeeds;

/// Creates `c1` from a shell that first runs `before`; no daemon runs yet.
fn create_after(host: &TestHost, before: &str) -> Output {
    let script = format!(
        "{before} \"$0\" --root '{}' create --bundle '{}' c1",
        host.path("root").display(),
        host.path("bundle").display()
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_nri-runc")]);
    command.env("NRI_RUNC_CONFIG", host.path("config.toml")).stdin(Stdio::null());
    command.output().unwrap()
}

/// Whether this process may raise limits: CAP_SYS_RESOURCE is bit 24.
fn may_raise_limits() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() & (1 << 24) != 0
}

fn daemon_file(host: &TestHost, name: &str) -> String {
    let pid = host.admin(&["status"])["pid"].as_i64().unwrap();
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap()
}

/// The field of /proc/PID/stat with this number in proc(5).
fn stat_field(host: &TestHost, number: usize) -> String {
    let stat = daemon_file(host, "stat");
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_whitespace().nth(number - 3).unwrap().to_owned()
}

/// Checks that the daemon refused to start for the reason `why`, and that the next caller gets a
/// daemon.
#[track_caller]
fn refused_until_the_next(host: &TestHost, output: &Output, why: &str) {
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert_eq!(printed.lines().count(), 1, "{printed}");
    assert!(printed.contains("the daemon refuses to start") && printed.contains(why), "{printed}");
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
    succeeds(&host.create("c1"));
    assert_eq!(host.admin(&["status"])["requests"]["create"], 1);
}

#[test]
fn low_hard_limits_are_raised_or_the_daemon_does_not_start() {
    for (flag, name) in [
        ("--nofile=40:40", "RLIMIT_NOFILE is 40, but the daemon needs 1024 or more"),
        ("--as=600000000:600000000", "RLIMIT_AS is 600000000"),
        ("--data=200000000:200000000", "RLIMIT_DATA is 200000000"),
        ("--nproc=200:200", "RLIMIT_NPROC is 200"),
        ("--fsize=1000000:1000000", "RLIMIT_FSIZE is 1000000"),
        ("--cpu=60:60", "RLIMIT_CPU is 60, but the daemon needs none"),
    ] {
        let host = TestHost::new("on_daemon_failure = \"fail\"");
        // Always without the capability, and with it if this machine grants it.
        let without = create_after(
            &host,
            &format!("exec prlimit {flag} setpriv --bounding-set -sys_resource"),
        );
        refused_until_the_next(&host, &without, name);
        if !may_raise_limits() {
            continue;
        }
        let host = TestHost::new("on_daemon_failure = \"fail\"");
        succeeds(&create_after(&host, &format!("exec prlimit {flag}")));
    }
}

#[test]
fn soft_limits_of_the_first_caller_are_lifted() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    succeeds(&create_after(&host, "ulimit -S -n 40; ulimit -S -t 60; exec"));
    let limits = daemon_file(&host, "limits");
    let soft = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        line.split_whitespace().next().unwrap().to_owned()
    };
    assert!(soft("Max open files").parse::<u64>().unwrap() >= 1024, "{limits}");
    assert_eq!(soft("Max cpu time"), "unlimited");
}

#[test]
fn the_daemon_does_not_inherit_the_first_callers_niceness() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    succeeds(&create_after(&host, "exec nice -n 15"));
    assert_eq!(stat_field(&host, 19), "0");
}

#[test]
fn the_daemon_has_the_ordinary_scheduling_policy() {
    for (policy, priority) in [("--idle", "0"), ("--batch", "0"), ("--fifo", "1"), ("--rr", "1")] {
        let host = TestHost::new("on_daemon_failure = \"fail\"");
        succeeds(&create_after(&host, &format!("exec chrt {policy} {priority}")));
        assert_eq!(stat_field(&host, 41), "0", "{policy}");
    }
}

#[test]
fn the_daemon_does_not_inherit_an_io_priority() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    succeeds(&create_after(&host, "exec ionice -c 3"));
    let pid = host.admin(&["status"])["pid"].to_string();
    let output = Command::new("ionice").args(["-p", &pid]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!printed.contains("idle") && !printed.is_empty(), "{printed}");
}

#[test]
fn a_caller_with_no_new_privs_starts_no_daemon() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    let output = create_after(&host, "exec setpriv --no-new-privs");
    refused_until_the_next(&host, &output, "no_new_privs");
}

#[test]
fn the_daemon_has_the_programs_name_in_ps_and_top() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    succeeds(&host.create("c1"));
    assert_eq!(daemon_file(&host, "comm"), "nri-runc\n");
}

#[test]
fn the_daemon_does_not_inherit_ignored_signals() {
    let host = TestHost::new("on_daemon_failure = \"fail\"");
    succeeds(&create_after(&host, "exec env --ignore-signal=CHLD --ignore-signal=HUP"));
    let status = daemon_file(&host, "status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    // Only SIGPIPE. The two signals above 31 are libc's own, which no program can set.
    assert_eq!(ignored & 0x7fff_ffff, 1 << 12, "{ignored:x}");
}
