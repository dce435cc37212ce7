// SPDX-License-Identifier: Apache-2.0
//! Bundles that the real runc runs, with a plugin: `run` in the foreground and detached, create to
//! delete, refusals, failures. The plugin receives each event once and in order, and the bundle has
//! the engine's document again afterwards.

use test_support::real_runtime::RealRuntime;
use test_support::{Script, TestHost, has_received, wait_until};

use crate::{life, sets, succeeds};

/// The fields are dropped in this order, so containers end first.
struct Live {
    real: RealRuntime,
    host: TestHost,
    document: String,
}

impl Live {
    /// A container `c1` that runs `args`, with a daemon, before a plugin connects.
    fn new(args: &[&str]) -> Option<Self> {
        let mut host = TestHost::default();
        let real = RealRuntime::new(&host.path(""))?;
        let document = serde_json::to_string_pretty(&real.document("c1", args)).unwrap();
        host.write("bundle/config.json", &document);
        host.configure(real.runc(), "");
        host.start_daemon();
        Some(Self { real, host, document })
    }

    fn run(&self, flags: &[&str]) -> std::process::Output {
        let bundle = self.host.path("bundle").display().to_string();
        self.host.verb(&[&["run", "--bundle", &bundle], flags, &["c1"]].concat())
    }

    fn init(&self) -> u32 {
        self.host.read("pid").trim().parse().unwrap()
    }

    /// Checks that the runtime, the bundle and the daemon have no trace of the container.
    fn nothing_is_left(&self) {
        wait_until("no pod is known", || {
            self.host.admin(&["pods"]) == serde_json::Value::Array(vec![])
        });
        assert_eq!(self.host.read("bundle/config.json"), self.document);
        let names = std::fs::read_dir(self.host.path("bundle")).unwrap();
        assert_eq!(names.count(), 2, "something was left in the bundle");
        assert!(!self.host.path("root/c1").exists());
        for controller in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let cgroup = format!("{}{}", controller.path().display(), self.real.cgroup("c1"));
            assert!(!std::path::Path::new(&cgroup).exists(), "{cgroup} was left");
        }
    }
}

/// Waits until the program has the variable: the runtime exits when it releases init, which
/// executes the program a moment later.
fn the_program_sees(pid: u32, variable: &str) {
    let environment = std::path::PathBuf::from(format!("/proc/{pid}/environ"));
    wait_until("the program sees the variable", || {
        std::fs::read_to_string(&environment).unwrap().contains(variable)
    });
}

#[test]
fn a_detached_run_is_adjusted_and_has_all_events() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    let pid_file = live.host.path("pid").display().to_string();
    succeeds(&live.run(&["--detach", "--pid-file", &pid_file]));
    the_program_sees(live.init(), "HELLO=there");
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..5]);
    succeeds(&live.host.verb(&["kill", "c1", "KILL"]));
    wait_until("the stop is reported", || has_received(&received, "StopContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..6]);
    succeeds(&live.host.verb(&["delete", "c1"]));
    live.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn a_paused_container_is_shown_as_paused() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    succeeds(&live.run(&["--detach"]));
    let state = || live.host.admin(&["pods"])[0]["containers"][0]["state"].clone();
    wait_until("it runs", || state() == "running");
    succeeds(&live.host.verb(&["pause", "c1"]));
    assert_eq!(state(), "paused");
    assert_eq!(live.host.admin(&["explain", "c1"])["state"], "paused");
    succeeds(&live.host.verb(&["resume", "c1"]));
    assert_eq!(state(), "running");
    succeeds(&live.host.verb(&["delete", "--force", "c1"]));
    live.nothing_is_left();
}

#[test]
fn a_foreground_run_returns_its_output_and_exit_code() {
    let script = "cat; echo $HELLO >&2; sleep 0.2; exit 3";
    let Some(live) = Live::new(&["sh", "-c", script]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    let bundle = live.host.path("bundle").display().to_string();
    let root = live.host.path("root").display().to_string();
    let words = ["--root", &root, "run", "--bundle", &bundle, "c1"];
    let output = live.host.call_with(&words, "from outside\n");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "from outside\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "there\n");
    live.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

/// The container exits only milliseconds after its start.
#[test]
fn a_very_short_run_has_all_events_each_time() {
    let Some(live) = Live::new(&["sh", "-c", "exit 4"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    for round in 1..=5 {
        assert_eq!(live.run(&[]).status.code(), Some(4));
        live.nothing_is_left();
        let received = std::mem::take(&mut *received.lock().unwrap());
        assert_eq!(received, life("c1"), "in round {round}");
    }
}

#[test]
fn a_run_killed_from_elsewhere_has_all_events() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    let mut process = live.host.spawn(&["run", "--bundle", "BUNDLE", "c1"]);
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    succeeds(&live.host.verb(&["kill", "c1", "KILL"]));
    assert_eq!(process.wait().unwrap().code(), Some(137));
    live.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

const UNTIL_TOLD: &str = "trap 'exit 5' TERM; while :; do sleep 0.1; done";

#[test]
fn a_foreground_run_outlives_its_daemon_and_its_end_is_reported() {
    let Some(mut live) = Live::new(&["sh", "-c", UNTIL_TOLD]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    let mut process = live.host.spawn(&["run", "--bundle", "BUNDLE", "c1"]);
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    live.host.kill_daemon();
    live.host.start_daemon();
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&live.host.verb(&["kill", "c1", "TERM"]));
    assert_eq!(process.wait().unwrap().code(), Some(5));
    live.nothing_is_left();
    let mut wanted = vec!["Synchronize c1".to_owned()];
    wanted.extend_from_slice(&life("c1")[5..]);
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn a_container_from_create_to_delete_has_all_events() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&live.host.create("c1"));
    wait_until("the creation is reported", || has_received(&received, "PostCreateContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..3]);
    succeeds(&live.host.verb(&["start", "c1"]));
    the_program_sees(live.init(), "HELLO=there");
    succeeds(&live.host.verb(&["kill", "c1", "KILL"]));
    wait_until("the stop is reported", || has_received(&received, "StopContainer c1"));
    succeeds(&live.host.verb(&["delete", "c1"]));
    live.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn a_forced_delete_of_a_running_container_sends_its_events() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&live.run(&["--detach"]));
    succeeds(&live.host.verb(&["delete", "--force", "c1"]));
    live.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
    // Some engines delete a removed container again; plugins receive no event of that.
    succeeds(&live.host.verb(&["delete", "--force", "c1"]));
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn a_refused_run_leaves_nothing() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let received = {
        let guard = Script { refuses: Some("not signed"), ..Script::default() };
        let received = live.host.plugin("90", "guard", guard);
        let output = live.run(&["--detach"]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        assert!(line.starts_with("nri-runc: cannot run c1: 90-guard"), "{line}");
        live.nothing_is_left();
        received
    };
    let is_later = |event: &String| event.contains("Post") || event.contains("Start");
    let wanted: Vec<String> = life("c1").into_iter().filter(|event| !is_later(event)).collect();
    assert_eq!(*received.lock().unwrap(), wanted);
}

/// `run` is create and start in one, so plugins are asked about the start before anything runs.
#[test]
fn a_run_with_a_refused_start_leaves_nothing() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let _env = live.host.plugin("10", "env", sets("HELLO", "there"));
    let at = Some("StartContainer".to_owned());
    let guard = Script { refuses: Some("not yet"), at, ..Script::default() };
    let received = live.host.plugin("90", "guard", guard);
    let output = live.run(&[]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    assert!(line.contains("90-guard") && line.contains("not yet"), "{line}");
    live.nothing_is_left();
    let wanted: Vec<String> =
        life("c1").into_iter().filter(|event| !event.contains("PostStart")).collect();
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn a_run_that_fails_in_runc_is_undone_and_not_started() {
    let Some(live) = Live::new(&["no-such-program"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    for flags in [&[][..], &["--detach"]] {
        let output = live.run(flags);
        assert_eq!(output.status.code(), Some(1));
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains("no-such-program") && !line.contains("nri-runc"), "{line}");
        live.nothing_is_left();
        let received = std::mem::take(&mut *received.lock().unwrap());
        let wanted: Vec<String> =
            life("c1").into_iter().filter(|event| !event.contains("PostStart")).collect();
        assert_eq!(received, wanted);
    }
}

#[test]
fn a_second_create_of_a_running_id_leaves_the_first_unchanged() {
    let Some(live) = Live::new(&["sleep", "1000"]) else { return };
    let received = live.host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&live.run(&["--detach"]));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    for output in [live.host.create("c1"), live.run(&["--detach"]), live.run(&[])] {
        assert_eq!(output.status.code(), Some(1));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("nri-runc"));
    }
    assert_eq!(live.host.admin(&["pods"])[0]["containers"][0]["state"], "running");
    succeeds(&live.host.verb(&["delete", "--force", "c1"]));
    live.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
}
