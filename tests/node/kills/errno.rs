// SPDX-License-Identifier: Apache-2.0
//! Each system call of the daemon and the wrapper fails once, in each way of a host in trouble (no
//! descriptor, no space, no memory, a bad disk), during the lifecycle of a container with the real
//! runc. nri-runc then reports the runtime's state, plugins receive each event once and in order,
//! nothing protected passes unadjusted, no injection that is always set is missing, no exec that a
//! rule refuses runs, and no document is half written. A first lifecycle lists the calls.
//! `ERRNO=all` (`make soak`) runs all of them; `ERRNO=SEED` or `ERRNO=SEED/COUNT`, or the day,
//! selects a sample; a name selects one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::adjustments::{env, limits_processes};
use test_support::real_runtime::RealRuntime;
use test_support::tracer::{self, Attached, ERRORS};
use test_support::{Script, TestHost, skip, wait_until};

use super::{say, world};

/// Number of cases in `make test`.
const SAMPLE: usize = 40;

/// An engine's verbs for a container; `REFUSED` is an `exec` that a rule refuses.
const VERBS: [&str; 7] = ["create", "start", "update", "exec", REFUSED, "kill", "delete"];
const REFUSED: &str = "exec-refused";

/// The plugin's pids limit, and the engine's.
const PLUGINS: i64 = 42;
const ENGINES: i64 = 10;

/// One failure: the process and the verb in which the call is made, the call, and its error.
#[derive(Debug, Clone)]
struct Case {
    is_daemon: bool,
    verb: &'static str,
    call: String,
    nth: usize,
    error: &'static str,
}

impl Case {
    fn name(&self) -> String {
        let Self { is_daemon, verb, call, nth, error } = self;
        format!("{} {verb} {call} {nth} {error}", if *is_daemon { "daemon" } else { "wrapper" })
    }

    fn fault(&self) -> (&str, usize, &str) {
        (&self.call, self.nth, self.error)
    }
}

/// A daemon with a required plugin, and containers of the real runc.
struct Place {
    host: TestHost,
    real: RealRuntime,
    strace: PathBuf,
    view: Arc<Mutex<Vec<String>>>,
    /// Number of containers so far.
    count: usize,
    /// An operation that must never fail has failed: no further case runs.
    is_spoiled: bool,
}

fn script() -> Script {
    let mut script = limits_processes(PLUGINS);
    script.adjust.env = vec![env("HELLO", "there")];
    script
}

impl Place {
    fn new(strace: PathBuf) -> Option<Self> {
        let mut host = TestHost::default();
        let real = RealRuntime::new(&host.path(""))?;
        let more = "autostart = false\n[nri]\nplugin_request_timeout = \"20s\"\n\
                    [nri.default_validator]\nenable = true\nrequired_plugins = [\"limits\"]\n\
                    [[inject]]\nname = \"always\"\nwhen = \"always\"\nenv = { INJECTED = \"yes\" }\n\
                    [[exec_rule]]\nname = \"env alone\"\ncommands = [\"!env\"]\n";
        host.configure(real.runc(), more);
        host.start_daemon();
        let view = host.plugin("10", "limits", script());
        Some(Self { host, real, strace, view, count: 0, is_spoiled: false })
    }

    /// Restarts a daemon that has exited, as systemd does, and reconnects a disconnected plugin, as
    /// plugins do.
    fn restart_what_ended(&mut self) {
        let pid = self.host.daemon_pid();
        let is_ours = || self.host.admin(&["status"])["pid"] == pid;
        let has_ended = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        wait_until("the daemon answers or has ended", || is_ours() || has_ended());
        if has_ended() {
            self.host.kill_daemon();
            self.host.start_daemon();
        }
        if self.host.admin(&["status"])["plugins"] == 0 {
            self.view = self.host.plugin("10", "limits", script());
        }
    }

    fn bundle(&self, id: &str) -> String {
        let mut document = self.real.document(id, &["sleep", "300"]);
        document["linux"]["resources"] = json!({"pids": {"limit": ENGINES}});
        let text = document.to_string();
        std::fs::create_dir_all(self.host.path(id)).unwrap();
        self.host.write(&format!("{id}/config.json"), &text);
        let process = json!({"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["env"],
            "env": ["PATH=/bin", "A=1"]});
        self.host.write(&format!("{id}.process"), &process.to_string());
        text
    }

    fn verb(&self, verb: &str, id: &str, tracer: &[String]) -> Output {
        let path = |name: &str| self.host.path(name).display().to_string();
        let (root, bundle) = (path("root"), path(id));
        let (pid_file, process) = (path(&format!("{id}.pid")), path(&format!("{id}.process")));
        let update = format!("{{\"pids\":{{\"limit\":{ENGINES}}}}}");
        let words: &[&str] = match verb {
            "create" => &["create", "--bundle", &bundle, "--pid-file", &pid_file, id],
            "update" => &["update", "--resources", "-", id],
            "exec" => &["exec", "--process", &process, id],
            REFUSED => &["exec", id, "sh", "-c", "echo it ran"],
            "kill" => &["kill", id, "9"],
            "delete" => &["delete", "--force", id],
            verb => &[verb, id],
        };
        let words = [&["--root", &root][..], words].concat();
        let stdin = if verb == "update" { &update } else { "" };
        self.host.call_by(tracer, &words, stdin)
    }

    /// Runs a verb under a trace; returns the trace.
    fn traced(
        &self,
        verb: &str,
        id: &str,
        case: Option<&Case>,
        is_daemon: bool,
    ) -> (Output, String) {
        let (log, fault) = (self.host.path("strace"), case.map(Case::fault));
        let _of_another = std::fs::remove_file(&log);
        if is_daemon {
            let daemon = Attached::to(self.host.daemon_pid(), &self.strace, &log, fault);
            let output = self.verb(verb, id, &[]);
            self.is_quiet();
            return (output, daemon.detach());
        }
        let output = self.verb(verb, id, &tracer::around_wrapper(&self.strace, &log, fault));
        (output, std::fs::read_to_string(&log).unwrap_or_default())
    }

    /// Waits until the daemon is idle for a moment, because the work after a verb is traced too.
    fn is_quiet(&self) {
        let mut last = (self.work(), 0);
        for _look in 0..100 {
            std::thread::sleep(Duration::from_millis(10));
            let now = self.work();
            last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
            if last.1 == 12 {
                return;
            }
        }
    }

    /// The number of times that the daemon was scheduled.
    fn work(&self) -> String {
        let pid = self.host.daemon_pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap_or_default().to_owned()
    }

    /// The runtime's state of a container; empty if it has none.
    fn runtimes_state(&self, id: &str) -> Value {
        let mut command = std::process::Command::new(self.real.runc());
        command.arg("--root").arg(self.host.path("root")).args(["state", id]);
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap_or_default()
    }

    fn daemons_state(&self, id: &str) -> String {
        let pods = self.host.admin(&["pods"]);
        let pods = pods.as_array().into_iter().flatten();
        let containers = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
        let found = containers.filter(|container| container["id"] == id);
        found.map(|container| container["state"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Checks that nri-runc reports the runtime's state of the container after the fault.
    fn agrees(&mut self, id: &str, what: &str) -> String {
        self.restart_what_ended();
        let states = || {
            let state = self.runtimes_state(id);
            (self.daemons_state(id), state["status"].as_str().unwrap_or_default().to_owned())
        };
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut found = states();
        while found.0 != found.1 {
            assert!(Instant::now() < deadline, "{what}: nri-runc and the runtime say {found:?}");
            std::thread::sleep(Duration::from_millis(20));
            found = states();
        }
        let is_alive = matches!(found.1.as_str(), "created" | "running");
        let (create, stop) = (format!("CreateContainer {id}"), format!("StopContainer {id}"));
        let view = self.view.lock().unwrap().clone();
        let of_this_life = view.iter().rposition(|line| *line == create).unwrap_or(0);
        let is_reported = view[of_this_life..].contains(&stop);
        assert!(!(is_alive && is_reported), "{what}: a living container was received as stopped");
        found.1
    }

    /// Checks that a living container is adjusted.
    fn is_adjusted(&self, id: &str, what: &str) {
        let state = self.runtimes_state(id);
        let limit = super::real::pids_limit(&self.real, id);
        assert_eq!(limit, PLUGINS.to_string(), "{what}: the plugin's limit");
        if state["status"] == "running" {
            let environment = format!("/proc/{}/environ", state["pid"]);
            let environment = std::fs::read(environment).unwrap_or_default();
            let environment = String::from_utf8_lossy(&environment);
            for wanted in ["HELLO=there", "INJECTED=yes"] {
                assert!(environment.contains(wanted), "{what}: {environment}");
            }
        }
    }

    /// Runs a lifecycle in which this call fails. Returns whether the call was made at all.
    fn life(&mut self, case: Option<&Case>) -> bool {
        self.count += 1;
        let id = format!("c{}", self.count);
        let what = case.map(Case::name).unwrap_or_default();
        let pristine = self.bundle(&id);
        let (received_before, pid_before) = (Arc::clone(&self.view), self.host.daemon_pid());
        let (mut is_made, mut has_failed) = (false, false);
        for verb in VERBS {
            let case = case.filter(|case| case.verb == verb);
            let output = match case {
                Some(case) => {
                    let (output, log) = self.traced(verb, &id, Some(case), case.is_daemon);
                    is_made = log.contains("(INJECTED)");
                    if tracer::was_wake_up(&log) {
                        self.is_spoiled = true;
                        return false;
                    }
                    output
                }
                None => self.verb(verb, &id, &[]),
            };
            let is_ok = output.status.success() != (verb == REFUSED);
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            let ran = verb == REFUSED && output.stdout.starts_with(b"it ran");
            assert!(!ran, "{what}: a refused process ran");
            assert!(is_ok || case.is_some(), "{what}: then {verb}: {printed}");
            assert!(!printed.contains("panicked"), "{what}: {printed}");
            if verb == "exec" && is_ok {
                let printed = String::from_utf8_lossy(&output.stdout);
                assert!(
                    printed.contains("HELLO=there"),
                    "{what}: exec without the values: {printed}"
                );
            }
            if verb == "kill" {
                wait_until("the process has ended", || {
                    !matches!(self.runtimes_state(&id)["status"].as_str(), Some("running"))
                        || !is_ok
                });
            }
            let mut state = self.agrees(&id, &format!("{what}: after {verb}"));
            if !is_ok {
                has_failed = true;
                state = self.try_again(verb, &id, &state, &pristine, &what);
            }
            if matches!(state.as_str(), "created" | "running") {
                self.is_adjusted(&id, &format!("{what}: after {verb}"));
            }
        }
        self.check_gone(&id, &pristine, &what);
        let is_same =
            Arc::ptr_eq(&received_before, &self.view) && self.host.daemon_pid() == pid_before;
        self.saw_each_event(&id, &what, is_same && !has_failed);
        is_made
    }

    /// Retries as an engine does after a failed verb.
    fn try_again(
        &mut self,
        verb: &str,
        id: &str,
        state: &str,
        pristine: &str,
        what: &str,
    ) -> String {
        if verb == "create" {
            assert!(self.verb("delete", id, &[]).status.success(), "{what}");
            wait_until(&format!("{what}: the create is undone"), || {
                self.host.read(&format!("{id}/config.json")) == pristine
                    && self.daemons_state(id).is_empty()
            });
        }
        let is_done = matches!((verb, state), ("start", "running") | ("delete", ""));
        if !is_done {
            let output = self.verb(verb, id, &[]);
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{what}: {verb} again: {printed}");
            if verb == "kill" {
                wait_until("the process has ended", || {
                    self.runtimes_state(id)["status"] != "running"
                });
            }
        }
        self.agrees(id, &format!("{what}: {verb} again"))
    }

    /// Checks that nothing of the container is left, and that its document is the engine's.
    fn check_gone(&mut self, id: &str, pristine: &str, what: &str) {
        wait_until(&format!("{what}: no pod is left"), || {
            self.host.admin(&["pods"]) == Value::Array(vec![])
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        while !world::leftovers(&self.host).is_empty() {
            let left = world::leftovers(&self.host);
            assert!(Instant::now() < deadline, "{what} left {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.host.read(&format!("{id}/config.json")), pristine, "{what}");
        let names = std::fs::read_dir(self.host.path(id)).unwrap().count();
        assert_eq!(names, 1, "{what}: something is left in the bundle");
        assert_eq!(self.host.logged(&["panicked"]), 0, "{what}: {}", self.host.read("daemon.err"));
        std::fs::remove_dir_all(self.host.path(id)).unwrap();
    }

    /// Checks that each event came once and in order; also that all came, if no failure was visible
    /// to an engine or plugin.
    fn saw_each_event(&self, id: &str, what: &str, is_whole: bool) {
        let ends = format!(" {id}");
        let events = || -> Vec<String> {
            let view = self.view.lock().unwrap();
            view.iter().filter(|line| line.ends_with(&ends)).cloned().collect()
        };
        wait_until(&format!("{what}: the plugin saw its end"), || {
            world::open_ends(&events()).is_empty()
        });
        let events = events();
        world::in_order(&events, what);
        let names = [
            "CreateContainer",
            "PostCreateContainer",
            "StartContainer",
            "PostStartContainer",
            "StopContainer",
            "RemoveContainer",
        ];
        for name in names.iter().filter(|_| is_whole) {
            let count = events.iter().filter(|line| **line == format!("{name} {id}")).count();
            assert_eq!(count, 1, "{what}: {name} in {events:?}");
        }
    }

    /// Prints the daemon's last log lines, and the call that failed.
    fn show(&self) {
        let (log, trace) = (self.host.read("daemon.err"), self.host.read("strace"));
        let last = log.lines().rev().take(12).collect::<Vec<_>>();
        last.iter().rev().for_each(|line| say(&format!("  {line}")));
        trace.lines().filter(|line| line.contains("(INJECTED)")).for_each(|line| {
            say(&format!("  {line}"));
        });
    }

    /// The daemon's processor time, in ticks.
    fn ticks(&self) -> u64 {
        let stat = format!("/proc/{}/stat", self.host.daemon_pid());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
    }

    /// Checks that an idle daemon uses no processor time.
    fn is_idle(&self) {
        let before = self.ticks();
        std::thread::sleep(Duration::from_secs(1));
        let ticks = self.ticks() - before;
        assert!(ticks < 20, "the daemon is busy with nothing: {ticks} ticks in a second");
    }
}

/// Runs a lifecycle, and lists the calls and the ways in which each can fail.
fn cases(place: &mut Place) -> Vec<Case> {
    let mut found = Vec::new();
    for is_daemon in [true, false] {
        place.count += 1;
        let id = format!("c{}", place.count);
        place.bundle(&id);
        for verb in VERBS {
            let (output, log) = place.traced(verb, &id, None, is_daemon);
            assert_eq!(output.status.success(), verb != REFUSED, "{verb}: {output:?}");
            place.agrees(&id, verb);
            let calls: BTreeMap<String, usize> = tracer::counted(&log);
            for (call, most) in &calls {
                for (nth, error) in (1..=*most).flat_map(|nth| ERRORS.map(|error| (nth, error))) {
                    if tracer::can_fail(call, error) {
                        let call = call.clone();
                        found.push(Case { is_daemon, verb, call, nth, error });
                    }
                }
            }
        }
    }
    found
}

/// All cases, or a sample: another one every day, the same for the same seed.
fn chosen(mut cases: Vec<Case>) -> Vec<Case> {
    let wanted = std::env::var("ERRNO").unwrap_or_default();
    if wanted == "all" {
        return cases;
    }
    if wanted.contains(' ') {
        cases.retain(|case| case.name().contains(&wanted));
        return cases;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let (seed, count) = wanted.split_once('/').unwrap_or((&wanted, ""));
    let seed = seed.parse().unwrap_or(now.as_secs() / 86_400);
    say(&format!("ERRNO={seed}"));
    let mut dice = super::dice(seed);
    let count = count.parse().unwrap_or(SAMPLE).min(cases.len());
    (0..count).map(|_| cases.swap_remove(dice(cases.len()))).collect()
}

#[test]
fn after_a_failed_system_call_the_state_and_events_are_right() {
    let Some(strace) = tracer::find() else { return };
    let Some(mut first) = Place::new(strace.clone()) else { return };
    let all = cases(&mut first);
    if all.is_empty() {
        return skip::machine_lacks("strace cannot trace here (ptrace is refused)");
    }
    let (count, cases) = (all.len(), chosen(all));
    let queue = Mutex::new(cases.iter());
    let (failed, unmade): (Mutex<Vec<String>>, Mutex<usize>) = Default::default();
    let work = |mut place: Place| {
        loop {
            let Some(case) = queue.lock().unwrap().next() else { return place.is_idle() };
            let lived = std::panic::AssertUnwindSafe(|| place.life(Some(case)));
            match std::panic::catch_unwind(lived) {
                Ok(true) => {}
                Ok(false) => {
                    *unmade.lock().unwrap() += 1;
                    if place.is_spoiled {
                        place = Place::new(strace.clone()).unwrap();
                    }
                }
                Err(_) => {
                    say(&format!("failed: ERRNO='{}'", case.name()));
                    place.show();
                    failed.lock().unwrap().push(case.name());
                    place = Place::new(strace.clone()).unwrap();
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(Place::new(strace.clone()).unwrap()));
        work(first);
    });
    let (failed, unmade) = (failed.into_inner().unwrap(), unmade.into_inner().unwrap());
    let run = cases.len();
    say(&format!("{run} of {count} calls failed, {unmade} were not made, {} badly", failed.len()));
    assert!(failed.is_empty(), "{failed:#?}");
}
