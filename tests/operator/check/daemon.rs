// SPDX-License-Identifier: Apache-2.0
//! Faults of the daemon, of its program and of its configuration.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::wait_until;

use super::{FAULT, Fault, Fix, World, try_all};

fn signal(world: &World, signal: Signal) {
    kill(Pid::from_raw(world.host.daemon_pid()), signal).unwrap();
}

const HUNG: &[Fault] = &[
    Fault {
        name: "it hangs",
        runs: true,
        seed: |world| signal(world, Signal::SIGSTOP),
        row: "daemon",
        says: "the daemon stopped responding",
        next: "nri-runc nri restart",
        ..FAULT
    },
    Fault {
        name: "it hangs and has lost its socket",
        runs: true,
        seed: |world| {
            signal(world, Signal::SIGSTOP);
            std::fs::remove_file(world.path("run/daemon.sock")).unwrap();
        },
        row: "daemon",
        says: "does not accept connections: no daemon can start",
        next: "nri-runc nri restart",
        ..FAULT
    },
];

const START: &[Fault] = &[
    Fault {
        name: "it panics at its start, and no container has tried",
        config: "[debug]\nfault = \"daemon.start:panic\"",
        row: "daemon",
        says: "none can start: thread",
        next: "install another version",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "it panicked when a container was created",
        config: "[debug]\nfault = \"daemon.start:panic\"",
        seed: |world| assert!(world.host.create("c1").status.success()),
        row: "daemon",
        says: "the last one ended with: thread",
        next: "nri-runc nri restart",
        mend: Fix::Then(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "it could not open its records",
        seed: |world| {
            world.make_run_dir();
            std::fs::create_dir(world.path("run/state")).unwrap();
            world.host.write("run/state/containers", "");
            assert!(world.host.create("c1").status.success());
        },
        row: "daemon",
        says: "the last one ended with: nri-runc: ",
        next: "nri-runc nri restart",
        mend: Fix::Then(|world| {
            std::fs::remove_file(world.path("run/state/containers")).unwrap();
        }),
        ..FAULT
    },
    Fault {
        name: "it was killed and nothing starts it",
        config: "autostart = false",
        runs: true,
        seed: |world| world.host.kill_daemon(),
        row: "daemon",
        says: "not running; autostart is off",
        next: "start the service",
        mend: Fix::By(|world| world.host.start_daemon()),
        ..FAULT
    },
    Fault {
        name: "another program listens in its place",
        seed: |world| {
            world.make_run_dir();
            let path = world.path("run/daemon.sock");
            world.keep(std::os::unix::net::UnixListener::bind(path).unwrap());
        },
        row: "daemon",
        says: "the daemon stopped responding",
        next: "kill ",
        mend: Fix::By(|world| world.kept.lock().unwrap().clear()),
        ..FAULT
    },
    Fault {
        name: "it is of another protocol",
        runs: true,
        seed: |world| world.configure("[debug]\nprotocol = 99"),
        row: "daemon",
        says: "this nri-runc speaks 99",
        next: "install this version at ",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
];

const CONFIGURED: &[Fault] = &[
    Fault {
        name: "switched off by command",
        runs: true,
        seed: |world| {
            world.host.admin(&["disable"]);
        },
        row: "switched on",
        says: "every command goes straight to the runtime",
        next: "nri-runc nri enable",
        ..FAULT
    },
    Fault {
        name: "switched off by configuration",
        config: "[nri]\ndisable = true",
        row: "switched on",
        says: "nri.disable is set",
        next: "remove it",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "no TOML",
        seed: |world| world.configure("= = =\n"),
        row: "configuration",
        says: "config.toml:3:",
        next: "correct the error in this file",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "an unknown key",
        seed: |world| world.configure("autostat = true\n"),
        row: "configuration",
        says: "autostart",
        next: "correct the error in this file",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "a mistake in what protects",
        seed: |world| world.configure("[plugin.a]\ndeny = \"Env\""),
        row: "configuration",
        says: "creates are refused until it is fixed",
        next: "correct the error in this file",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "a change that a reload applies",
        runs: true,
        seed: |world| world.configure("[eviction]\nper_minute = 3"),
        row: "daemon",
        says: "older than the configuration files; changed: eviction.per_minute",
        next: "nri-runc nri reload",
        ..FAULT
    },
    Fault {
        name: "a change that needs a restart",
        runs: true,
        seed: |world| world.configure("runtime_roots = [\"/run/x\"]\n"),
        row: "daemon",
        says: "older than the configuration files; changed: runtime_roots",
        next: "nri-runc nri restart",
        ..FAULT
    },
];

#[test]
fn the_suggested_command_replaces_a_daemon_that_hangs() {
    std::thread::scope(|scope| {
        for fault in HUNG {
            scope.spawn(|| try_all(std::slice::from_ref(fault)));
        }
    });
}

#[test]
fn a_daemon_that_cannot_start_is_named_with_its_output() {
    try_all(START);
}

#[test]
fn a_configuration_that_is_not_in_force_is_named() {
    try_all(CONFIGURED);
}

#[test]
fn a_changed_runtime_applies_at_once_and_is_no_finding() {
    let mut world = World::new("");
    world.host.start_daemon();
    test_support::program::copy(&world.path("fake/runc"), &world.path("fake/other"));
    world.configure_with(&world.path("fake/other"), "");
    let daemon =
        world.check().into_iter().find(|row| row["check"] == "daemon" && row["ok"] == false);
    assert_eq!(daemon, None);
}

#[test]
fn a_restart_right_after_the_daemon_died_starts_one() {
    let mut world = World::new("");
    for _round in 0..5 {
        world.host.start_daemon();
        let before = world.host.daemon_pid();
        // The test does not wait for the exit, because `restart` must also work while the daemon is
        // exiting.
        signal(&world, Signal::SIGKILL);
        let printed = world.host.admin(&["restart"]);
        assert!(printed["pid"].as_i64().is_some_and(|pid| pid != i64::from(before)), "{printed}");
        world.host.kill_daemon();
        assert_eq!(world.host.admin(&["status"])["pid"], printed["pid"]);
        assert_eq!(world.host.admin(&["stop"])["stopped"], true);
    }
}

#[test]
fn the_next_daemon_reports_the_panic_of_the_last_one() {
    let mut world = World::new("[debug]\nfault = \"daemon.start:panic\"");
    let created = world.host.create("c1");
    assert!(created.status.success());
    let notes = std::fs::read_dir(world.path("run/bypassed")).unwrap().flatten();
    let notes: Vec<String> =
        notes.map(|note| std::fs::read_to_string(note.path()).unwrap()).collect();
    assert!(notes[0].contains("fault injected at daemon.start"), "{notes:?}");
    world.configure("");
    world.host.start_daemon();
    let is_reported = |status: &Value| {
        status["failures"].to_string().contains("the previous daemon ended with: thread")
    };
    wait_until("it is reported", || is_reported(&world.host.admin(&["status"])));
    assert_eq!(world.host.admin(&["status"])["bypassed"], 1);
}
