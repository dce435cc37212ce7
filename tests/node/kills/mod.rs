// SPDX-License-Identifier: Apache-2.0
//! SIGKILL for the daemon, the wrapper and the runtime before every side effect of create, start, update and delete, of
//! the changes of pods without a verb, and of a takeover. Afterwards nothing is left over, the next operation works,
//! and plugins own the same values. A first lifecycle records the places, so none can be forgotten. `KILLS=all` (`make
//! soak`) runs all of them; `KILLS=SEED`, or the day, selects a sample.

mod errno;
mod pods;
mod real;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nri_runc::testing::host::POINTS;

use test_support::{BUNDLE, TestHost, wait_until};
use world::{PINS, World};

/// Number of cases in `make test`.
const SAMPLE: usize = 14;

const VERBS: [&str; 5] = ["create", "start", "update", "delete", TAKEOVER];

/// A step without a verb of the runtime: a plugin connects with the identity of the connected one.
const TAKEOVER: &str = "takeover";

/// The place of a kill, and the killed process.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// The daemon or the wrapper, at this pass of a fault point.
    Point(&'static str, usize),
    /// The wrapper at a fault point, without a daemon.
    Alone(&'static str),
    /// At this step of the runtime: the runtime itself, or the daemon.
    Step(usize, &'static str),
}

#[derive(Debug, Clone)]
struct Case {
    /// A verb of the runtime, or a step of a pod.
    verb: &'static str,
    place: Place,
    policy: &'static str,
}

impl Place {
    fn kills_daemon(&self) -> bool {
        match self {
            Self::Point(name, _) => name.starts_with("daemon."),
            Self::Alone(_) => true,
            Self::Step(_, whom) => *whom == "daemon",
        }
    }
}

/// Brings a container to the state before `verb`.
fn prepare(world: &World, verb: &str) {
    let before: &[&str] = match verb {
        "create" => &[],
        "start" => &["create"],
        _ => &["create", "start"],
    };
    let ids: &[&str] = if verb == "update" { &["c1", "other", "evicted"] } else { &["c1"] };
    for id in ids {
        for (verb, state) in before.iter().zip(["created", "running"]) {
            world.succeeds(verb, id);
            world.becomes(id, state);
        }
    }
}

/// Waits until no fault point is passed.
fn is_quiet(host: &TestHost) {
    let passed = || host.read("fault.trace").len();
    let mut last = (passed(), Instant::now());
    while last.1.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(20));
        let length = passed();
        if length != last.0 {
            last = (length, Instant::now());
        }
    }
}

/// Runs each verb once and records the places that it passes.
fn places() -> Vec<(&'static str, Place)> {
    let mut found = Vec::new();
    for verb in VERBS {
        let world = World::new("continue", verb == "update");
        prepare(&world, verb);
        world.host.write("fault", "trace");
        world.host.write("fake/die", "- 0 trace\n");
        world.succeeds(verb, "c1");
        is_quiet(&world.host);
        let mut passings: BTreeMap<&str, usize> = BTreeMap::new();
        let trace = world.host.read("fault.trace");
        for line in trace.lines() {
            let name = POINTS.iter().map(|point| point.name()).find(|name| *name == line).unwrap();
            let passing = passings.entry(name).or_default();
            found.push((verb, Place::Point(name, *passing)));
            *passing += 1;
        }
        let steps = world.host.read("fake/steps");
        // The list also has the daemon's own calls of the runtime.
        let own = steps.lines().filter_map(|line| line.strip_prefix(verb)?.trim().parse().ok());
        let own = own.max().unwrap_or(0);
        for step in 1..=own {
            found.extend(["runtime", "daemon"].map(|whom| (verb, Place::Step(step, whom))));
        }
        let alone = ["wrapper.ask", "wrapper.bypass", "wrapper.bypassed"];
        if verb != TAKEOVER {
            found.extend(alone.map(|name| (verb, Place::Alone(name))));
        }
    }
    found
}

/// Kills one process, and checks the conditions that must hold afterwards.
fn kill(case: &Case) {
    if let (true, Place::Point(point, passing)) = (pods::STEPS.contains(&case.verb), &case.place) {
        return pods::kill(case.verb, point, *passing);
    }
    let what = format!("{case:?}");
    let mut world = World::new(case.policy, case.verb == "update");
    prepare(&world, case.verb);
    if matches!(case.place, Place::Alone(_)) {
        world.kill_daemon();
    }
    let (file, text) = match &case.place {
        Place::Point(name, passing) => ("fault", format!("{name}:kill:{passing}")),
        Place::Alone(name) => ("fault", format!("{name}:kill")),
        Place::Step(step, whom) => ("fake/die", format!("{} {step} {whom}\n", case.verb)),
    };
    world.host.write(file, &text);
    let output = world.verb(case.verb, "c1");
    let is_struck = || !world.host.path(file).exists();
    if matches!(case.place, Place::Alone("wrapper.bypass" | "wrapper.bypassed"))
        && case.policy == "fail"
        && case.verb != "delete"
    {
        assert!(!output.status.success() && !is_struck(), "{what}");
        std::fs::remove_file(world.host.path(file)).unwrap();
    } else {
        wait_until(&format!("{what} has struck"), is_struck);
    }
    if case.place.kills_daemon() {
        if !matches!(case.place, Place::Alone(_)) {
            world.kill_daemon();
        }
        world.begin();
    }
    go_on(&world, case, output.status.success(), &what);
    for id in ["c1", "other", "evicted"] {
        world.succeeds("delete", id);
    }
    world.lives("c1");
    world.nothing_is_left(&what);
}

/// Continues as an engine does after a verb, failed or not.
fn go_on(world: &World, case: &Case, is_done: bool, what: &str) {
    match case.verb {
        "create" if is_done => {
            world.becomes("c1", "created");
            world.record_agrees("c1", what);
        }
        "create" => {
            // If the runtime has left nothing, a failed caller may simply retry.
            let is_retried = case.policy == "fail" && !world.host.path("root/c1").exists();
            if !is_retried {
                world.succeeds("delete", "c1");
                wait_until(&format!("it is undone after {what}"), || {
                    world.host.read("c1/config.json") == BUNDLE && world.state("c1").is_empty()
                });
            }
            world.succeeds("create", "c1");
            world.becomes("c1", "created");
            world.record_agrees("c1", what);
        }
        "start" => {
            if !is_done {
                let _may_have_been_started = world.verb("start", "c1");
            }
            world.becomes("c1", "running");
            world.record_agrees("c1", what);
        }
        "update" => {
            let answered = |cpus: &str| world.updated("c1") == cpus;
            world.succeeds("update", "c1");
            wait_until("the update is settled", || !world.is_updating());
            assert!(PINS.into_iter().any(answered), "{what}: {}", world.updated("c1"));
            let another = world.update("c1", 4096);
            assert!(another.status.success(), "{what}");
            wait_until("the update is settled", || !world.is_updating());
            assert!(answered(PINS[1]), "{what}: {}", world.updated("c1"));
            world.becomes("c1", "running");
        }
        TAKEOVER => {
            // Both processes reconnect to the next daemon.
            world.succeeds(TAKEOVER, "c1");
            world.record_agrees("c1", what);
            world.succeeds("update", "c1");
            wait_until("the update is settled", || !world.is_updating());
            assert_eq!(world.updated("c1"), PINS[1], "{what}: the newcomer answers");
            world.becomes("c1", "running");
        }
        _ => {}
    }
}

/// All cases, or a sample: another one every day, the same for the same seed.
fn chosen(mut cases: Vec<Case>) -> Vec<Case> {
    let wanted = std::env::var("KILLS").unwrap_or_default();
    if wanted == "all" {
        return cases;
    }
    if wanted.contains(' ') {
        cases.retain(|case| format!("{} {:?} {}", case.verb, case.place, case.policy) == wanted);
        return cases;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = wanted.parse().unwrap_or(now.as_secs() / 86_400);
    say(&format!("KILLS={seed}"));
    let mut dice = dice(seed);
    (0..SAMPLE.min(cases.len())).map(|_| cases.swap_remove(dice(cases.len()))).collect()
}

/// Random numbers below the argument, the same for the same seed.
fn dice(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |sides| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % sides
    }
}

#[expect(clippy::print_stderr, reason = "which cases were run")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[test]
fn a_kill_at_any_point_leaves_nothing_and_the_next_verb_works() {
    let (places, of_pods) = (places(), pods::places());
    // `tests/node/reexec` covers the points of a re-execution, `tests/operator/check` a daemon that does not start.
    let is_elsewhere = |name: &str| name.starts_with("daemon.reexec-") || name == "daemon.start";
    for name in POINTS.iter().map(|point| point.name()).filter(|name| !is_elsewhere(name)) {
        let is_passed = |(_, place): &(_, Place)| match place {
            Place::Point(known, _) | Place::Alone(known) => *known == name,
            Place::Step(..) => false,
        };
        let is_passed_by_pods = of_pods.iter().any(|(_, known, _)| *known == name);
        assert!(is_passed_by_pods || places.iter().any(is_passed), "nothing passes {name}");
    }
    let of_verbs = places.into_iter().flat_map(|(verb, place)| {
        ["continue", "fail"].map(|policy| Case { verb, place: place.clone(), policy })
    });
    let of_pods = of_pods.into_iter().map(|(verb, point, passing)| Case {
        verb,
        place: Place::Point(point, passing),
        policy: "continue",
    });
    let cases: Vec<Case> = of_verbs.chain(of_pods).collect();
    let (all, cases) = (cases.len(), chosen(cases));
    let failed: Mutex<Vec<String>> = Mutex::default();
    let queue = Mutex::new(cases.iter());
    std::thread::scope(|scope| {
        for _worker in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(case) = queue.lock().unwrap().next() else { return };
                    if std::panic::catch_unwind(|| kill(case)).is_err() {
                        let name = format!("{} {:?} {}", case.verb, case.place, case.policy);
                        say(&format!("failed: KILLS='{name}'"));
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    say(&format!("{} of {all} deaths were died, {} badly", cases.len(), failed.len()));
    assert!(failed.is_empty(), "{failed:#?}");
}
