// SPDX-License-Identifier: Apache-2.0
//! Programs that cannot replace the daemon's, unusable states, and daemons that are killed at each
//! point of a re-execution: at worst the result is an ordinary restart.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nri_runc::testing::files::replace;
use nri_runc::testing::host::POINTS;
use test_support::{Script, TestHost, fails, has_received, started, succeeds, wait_until};

use super::{Installed, install, install_script};

const GOES_ON: &str = "the daemon continues unchanged";

/// Checks that the daemon is the same, and that its plugin is connected.
#[track_caller]
fn nothing_has_changed(installed: &Installed, id: &str, received: &std::sync::Mutex<Vec<String>>) {
    assert!(installed.pid() > 0);
    succeeds(&installed.host.create(id));
    assert!(has_received(received, &format!("CreateContainer {id}")));
    succeeds(&installed.host.verb(&["delete", "--force", id]));
}

#[test]
fn a_program_that_cannot_start_leaves_the_daemon_running() {
    let installed = Installed::new("");
    let host = &installed.host;
    let received = host.plugin("10", "a", Script::default());
    let before = installed.pid();
    for (number, (script, why)) in [
        ("exit 1", "it failed"),
        ("echo nonsense", "cannot replace a running daemon"),
        (
            "echo '{\"version\":\"9.9\",\"states\":[77]}'",
            "9.9) cannot continue from this daemon's state",
        ),
        (
            "echo '{\"version\":\"0.0\",\"states\":[]}'",
            "0.0) cannot continue from this daemon's state",
        ),
        ("sleep 60", "did not report its features within 5 s"),
        ("kill -9 $$", "it failed"),
    ]
    .into_iter()
    .enumerate()
    {
        install_script(host, script);
        fails(&installed.reexec(), &[GOES_ON, why]);
        nothing_has_changed(&installed, &format!("c{number}"), &received);
    }
    std::fs::set_permissions(host.path("installed"), PermissionsExt::from_mode(0o644)).unwrap();
    fails(&installed.reexec(), &[GOES_ON, "asking"]);
    std::fs::remove_file(host.path("installed")).unwrap();
    fails(&installed.reexec(), &[GOES_ON, "there is no program"]);
    nothing_has_changed(&installed, "d1", &received);
    assert_eq!(installed.pid(), before);
    install(host, b"");
    installed.reexecuted();
    nothing_has_changed(&installed, "d2", &received);
    assert!(!received.lock().unwrap().iter().any(|line| line.starts_with("Synchronize")));
}

#[test]
fn a_state_of_another_version_is_not_continued() {
    for version in [0, 2] {
        let installed = Installed::new(&format!("[debug]\nstate_version = {version}\n"));
        let received = installed.host.plugin("10", "a", Script::default());
        fails(&installed.reexec(), &[GOES_ON, "cannot continue from this daemon's state"]);
        nothing_has_changed(&installed, "c1", &received);
        // A program that claims to know the state's form and does not: an ordinary restart.
        let script = "case $* in *--probe-state) echo '{\"version\":\"x\",\"states\":[0,2]}' ;; \
                      *) exec PROGRAM \"$@\" ;; esac";
        install_script(&installed.host, &script.replace("PROGRAM", env!("CARGO_BIN_EXE_nri-runc")));
        let before = installed.pid();
        let _cut_off = installed.reexec();
        wait_until("the next program answers", || installed.pid() == before);
        wait_until("it says why", || {
            installed.host.logged(&["previous program's state was dropped", "form"]) == 1
        });
        let received = installed.host.plugin("10", "b", Script::default());
        nothing_has_changed(&installed, "c2", &received);
    }
}

#[test]
fn the_daemon_can_restart_after_the_next_program_fails() {
    let mut installed = Installed::new("");
    succeeds(&installed.host.create("c1"));
    let script =
        "case $* in *--probe-state) echo '{\"version\":\"x\",\"states\":[1]}' ;; *) exit 3 ;; esac";
    install_script(&installed.host, script);
    let what = "exited while it replaced the daemon, and no daemon runs";
    fails(&installed.reexec(), &["the next program", what, "install.sh --rollback"]);
    installed.start_again();
    let received = installed.host.plugin("10", "a", Script::default());
    assert!(has_received(&received, "Synchronize c1"));
    succeeds(&installed.host.verb(&["start", "c1"]));
    succeeds(&installed.host.verb(&["delete", "--force", "c1"]));
    wait_until("the event is received", || has_received(&received, "RemoveContainer c1"));
}

#[test]
fn a_broken_configuration_or_moved_run_directory_stops_a_reexec() {
    let installed = Installed::new("");
    let host = &installed.host;
    let received = host.plugin("10", "a", Script::default());
    let good = host.read("config.toml");
    host.write("config.toml", &format!("{good}[plugin.a]\nrequird = true\n"));
    fails(&installed.reexec(), &[GOES_ON, "config.toml:", "requird", "fix it first"]);
    host.write("config.toml", &format!("runtime_roots = [\"/x\"]\n{good}"));
    fails(&installed.reexec(), &[GOES_ON, "need a restart: runtime_roots"]);
    host.write("config.toml", &good);
    nothing_has_changed(&installed, "c1", &received);
    installed.reexecuted();
}

#[test]
fn without_a_daemon_there_is_nothing_to_replace() {
    let host = TestHost::default();
    let output = host.call(&["nri", "reexec"]);
    succeeds(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the daemon is not running\n");
}

/// A daemon that receives this file as the state of the previous program.
fn with_state(host: &TestHost, name: &str) -> std::process::Child {
    let script = format!(
        "exec 9<'{}' && exec '{}' nri daemon --state-fd {}",
        host.path(name).display(),
        env!("CARGO_BIN_EXE_nri-runc"),
        if name == "missing" { 77 } else { 9 }
    );
    let mut options = std::fs::OpenOptions::new();
    let log = options.append(true).create(true).open(host.path("daemon.err")).unwrap();
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", &script]).env("NRI_RUNC_CONFIG", host.path("config.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

#[test]
fn a_truncated_or_foreign_state_is_dropped_at_the_start() {
    let magic = "nri-runc reexec\n";
    for text in ["", "nonsense", magic, &format!("{magic}\u{1}\0\0\0{}", "x".repeat(60))] {
        let host = TestHost::default();
        host.write("state", text);
        let name = "state";
        let mut daemon = with_state(&host, name);
        wait_until("it answers", || host.admin(&["status"])["pid"] == daemon.id());
        host.logs(&["previous program's state was dropped"], 1);
        succeeds(&host.create("c1"));
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
    let host = TestHost::default();
    host.write("missing", "");
    let mut daemon = with_state(&host, "missing");
    wait_until("it answers", || host.admin(&["status"])["pid"] == daemon.id());
    host.logs(&["previous program's state was dropped"], 1);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn a_daemon_killed_at_any_point_of_a_reexec_is_restarted() {
    let points = POINTS.iter().map(|point| point.name());
    let points: Vec<&str> = points.filter(|name| name.starts_with("daemon.reexec-")).collect();
    assert_eq!(points.len(), 6);
    for point in points {
        let temp = tempfile::tempdir().unwrap();
        let fault = temp.path().join("fault");
        let more = format!("autostart = false\n[debug]\nfault = \"@{}\"\n", fault.display());
        let mut installed = Installed::new(&more);
        let _plugin = installed.host.plugin("10", "a", Script::default());
        succeeds(&installed.host.create("c1"));
        succeeds(&installed.host.verb(&["start", "c1"]));
        replace(&fault, format!("{point}:kill").as_bytes()).unwrap();
        let output = installed.reexec();
        assert!(!output.status.success(), "{point}");
        assert!(!fault.exists(), "{point} has struck");
        installed.start_again();
        let received = installed.host.plugin("10", "a", Script::default());
        assert!(has_received(&received, "Synchronize c1"), "{point}");
        succeeds(&installed.host.verb(&["kill", "c1", "9"]));
        succeeds(&installed.host.verb(&["delete", "--force", "c1"]));
        wait_until("its end is received", || has_received(&received, "RemovePodSandbox c1"));
        wait_until("nothing is left", || installed.host.admin(&["pods"]) == serde_json::json!([]));
    }
}

#[test]
fn a_failure_at_any_point_before_the_execution_changes_nothing() {
    for point in ["probe", "held", "state", "exec"] {
        let temp = tempfile::tempdir().unwrap();
        let fault = temp.path().join("fault");
        let installed = Installed::new(&format!("[debug]\nfault = \"@{}\"\n", fault.display()));
        let received = installed.host.plugin("10", "a", Script::default());
        let before = installed.pid();
        replace(&fault, format!("daemon.reexec-{point}:fail").as_bytes()).unwrap();
        fails(&installed.reexec(), &[GOES_ON, "fault injected"]);
        assert_eq!(installed.pid(), before);
        nothing_has_changed(&installed, "c1", &received);
        installed.reexecuted();
        nothing_has_changed(&installed, "c2", &received);
    }
}

#[test]
fn both_a_reexec_and_a_slow_delete_in_progress_succeed() {
    // The runtime of this create takes longer than the daemon waits.
    let host = started("");
    host.write("fake/slow-delete", "");
    succeeds(&host.create("c1"));
    let mut delete = host.spawn(&["delete", "--force", "c1"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The old program keeps running beside the other one for a while.
            std::thread::sleep(Duration::from_secs(2));
            std::fs::remove_file(host.path("fake/slow-delete")).unwrap();
        });
        succeeds(&host.call(&["nri", "reexec"]));
    });
    assert!(delete.wait().unwrap().success());
}

#[test]
fn connections_that_do_not_register_hold_up_no_request() {
    let installed = Installed::new("");
    let received = installed.host.plugin("10", "a", Script::default());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut kept = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(mut stream) = UnixStream::connect(installed.host.path("nri.sock")) {
                    let _refused = stream.write_all(&[0, 0, 0]);
                    kept.push_back(stream);
                }
                if kept.len() > 8 {
                    kept.pop_front();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let over = std::panic::catch_unwind(AssertUnwindSafe(|| installed.reexecuted()));
        is_over.store(true, Ordering::Relaxed);
        over.unwrap();
    });
    nothing_has_changed(&installed, "c1", &received);
}
