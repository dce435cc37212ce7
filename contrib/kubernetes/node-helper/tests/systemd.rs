// SPDX-License-Identifier: Apache-2.0
//! `systemd`: the helper with a fake systemd (`examples/fake_systemd.rs`). The chosen unit, the
//! condition for success, and the line of each failure.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::disallowed_methods,
    reason = "programs under test, and files that nobody else reads"
)]

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Systemd {
    temp: tempfile::TempDir,
    serving: Child,
}

impl Systemd {
    /// Starts a fake systemd with these units; `script` performs their operations, with verb and
    /// unit as `$1` and `$2`.
    fn new(script: &str, units: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let program = temp.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\necho \"$*\" >>\"$0.calls\"\n{script}\n"))
            .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(example("fake_systemd"));
        command.arg(temp.path().join("private")).arg(&program).args(units);
        let serving = command.stderr(Stdio::null()).spawn().unwrap();
        let systemd = Self { temp, serving };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !systemd.socket().exists() {
            assert!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        systemd
    }

    fn socket(&self) -> PathBuf {
        self.temp.path().join("private")
    }

    fn asked(&self, words: &[&str]) -> Output {
        asked(&self.socket(), words)
    }

    /// The operations of the units.
    fn calls(&self) -> String {
        std::fs::read_to_string(self.temp.path().join("program.calls")).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ended = self.serving.kill();
        let _reaped = self.serving.wait();
    }
}

/// Returns the path of an example, which is built beside this test's folder.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples").join(name)
}

fn asked(socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nri-runc-node-helper"));
    command.arg("systemd").arg(socket).args(words).stdin(Stdio::null()).output().unwrap()
}

/// Returns the only line of a call that failed with exit code 1.
#[track_caller]
fn failed(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("nri-runc-node-helper: "), "{line}");
    line
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn the_active_one_of_several_units_is_restarted_and_waited_for() {
    let systemd =
        Systemd::new("sleep 1; echo over >>\"$0.calls\"", &["k3s=inactive", "k3s-agent=active"]);
    succeeded(&systemd.asked(&["restart", "k3s", "k3s-agent"]));
    assert_eq!(
        systemd.calls(),
        "restart k3s-agent.service\nover\n",
        "it returned before the job ended"
    );
}

#[test]
fn a_failed_engine_is_started_unless_another_is_active() {
    let systemd = Systemd::new("", &["k3s=failed", "k3s-agent=active", "other=absent"]);
    succeeded(&systemd.asked(&["restart", "k3s", "k3s-agent"]));
    succeeded(&systemd.asked(&["restart", "other", "k3s"]));
    assert_eq!(systemd.calls(), "restart k3s-agent.service\nrestart k3s.service\n");
}

#[test]
fn reloading_one_unit_and_all_units_are_different_calls() {
    let systemd = Systemd::new("", &["docker=active"]);
    succeeded(&systemd.asked(&["reload", "docker.service"]));
    succeeded(&systemd.asked(&["daemon-reload"]));
    assert_eq!(systemd.calls(), "reload docker.service\ndaemon-reload\n");
}

#[test]
fn an_unsuccessful_job_is_a_failure() {
    for (code, result) in [("1", "failed"), ("2", "timeout")] {
        let systemd = Systemd::new(&format!("exit {code}"), &["containerd=active"]);
        let line = failed(&systemd.asked(&["restart", "containerd"]));
        assert!(
            line.contains(&format!("the job of containerd.service ended with \"{result}\"")),
            "{line}"
        );
    }
}

#[test]
fn without_an_active_unit_nothing_is_started() {
    let systemd = Systemd::new("", &["k3s=inactive", "k3s-agent=absent"]);
    let line = failed(&systemd.asked(&["restart", "k3s", "k3s-agent"]));
    assert!(line.contains("k3s.service is inactive, k3s-agent.service is not loaded"), "{line}");
    assert!(failed(&systemd.asked(&["restart"])).contains("no unit is named"));
    assert!(failed(&systemd.asked(&["stop", "k3s"])).contains("stop is no verb"));
    assert_eq!(systemd.calls(), "");
}

#[test]
fn a_refusal_by_systemd_is_printed_verbatim() {
    let systemd = Systemd::new("exit 1", &["containerd=active"]);
    let line = failed(&systemd.asked(&["reload", "containerd"]));
    assert!(
        line.contains("Job type reload is not applicable for unit containerd.service."),
        "{line}"
    );
    assert!(failed(&systemd.asked(&["daemon-reload"])).contains("reloading failed"));
}

#[test]
fn an_unanswered_socket_is_an_error_line_within_seconds() {
    let temp = tempfile::tempdir().unwrap();
    let line = failed(&asked(&temp.path().join("none"), &["restart", "containerd"]));
    assert!(line.contains("/none: "), "{line}");
    let silent = temp.path().join("private");
    let _listener = UnixListener::bind(&silent).unwrap();
    let begin = Instant::now();
    let line = failed(&asked(&silent, &["restart", "containerd"]));
    assert!(line.contains("did not answer within 10 s"), "{line}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_systemd_that_disconnects_does_not_count_as_done() {
    let mut systemd = Systemd::new("exit 3", &["containerd=active"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_nri-runc-node-helper"));
    command.arg("systemd").arg(systemd.socket()).args(["restart", "containerd"]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while systemd.calls().is_empty() {
        assert!(Instant::now() < deadline, "it was never asked");
        std::thread::sleep(Duration::from_millis(20));
    }
    systemd.serving.kill().unwrap();
    let mut line = String::new();
    child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(
        line.contains("closed the connection before the job of containerd.service ended"),
        "{line}"
    );
}
