// SPDX-License-Identifier: Apache-2.0
//! Faults of the node: the runtime, cgroups, the audit log, the registration with an engine.

use std::os::unix::fs::{PermissionsExt, symlink};

use test_support::{succeeds, wait_until};

use super::{FAULT, Fault, Fix, World, try_all};

fn set_mode(world: &World, name: &str, mode: u32) {
    std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

/// Restores the usual runtime.
fn put_back(world: &mut World) {
    world.configure("");
    set_mode(world, "fake/runc", 0o755);
}

const RUNTIME: &[Fault] = &[
    Fault {
        name: "missing",
        seed: |world| world.configure_with("/nowhere/runc".as_ref(), ""),
        row: "real runtime",
        says: "/nowhere/runc is missing",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
    Fault {
        name: "not executable",
        seed: |world| set_mode(world, "fake/runc", 0o644),
        row: "real runtime",
        says: "is not an executable file",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
    Fault {
        name: "open to everybody",
        seed: |world| set_mode(world, "fake/runc", 0o777),
        row: "real runtime",
        says: "is writable by all users",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
    Fault {
        name: "nri-runc itself",
        seed: |world| {
            symlink(env!("CARGO_BIN_EXE_nri-runc"), world.path("fake/own")).unwrap();
            world.configure_with(&world.path("fake/own"), "");
        },
        row: "real runtime",
        says: "is nri-runc itself",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
    Fault {
        name: "a wrapper that executes nri-runc",
        seed: |world| {
            let script = format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_nri-runc"));
            world.host.put_program("fake/round", &script);
            world.configure_with(&world.path("fake/round"), "");
        },
        row: "real runtime",
        says: "executes nri-runc again",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
    Fault {
        name: "of another architecture",
        seed: |world| {
            let mut program = std::fs::read(env!("CARGO_BIN_EXE_nri-runc")).unwrap();
            // The machine type of an ELF file; this one does not exist.
            program[18..20].copy_from_slice(&[0xfe, 0xfe]);
            test_support::program::put(&world.path("fake/odd"), &program);
            world.configure_with(&world.path("fake/odd"), "");
        },
        row: "real runtime",
        says: "exec format error",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
    Fault {
        name: "a script without its interpreter",
        seed: |world| {
            world.host.put_program("fake/odd", "#!/nowhere/sh\n");
            world.configure_with(&world.path("fake/odd"), "");
        },
        row: "real runtime",
        says: "it is missing",
        next: "install runc, or set `runtime`",
        mend: Fix::By(put_back),
        ..FAULT
    },
];

const AROUND: &[Fault] = &[
    Fault {
        name: "no cgroups",
        seed: |world| {
            std::fs::remove_file(world.path("host/sys")).unwrap();
            std::fs::create_dir_all(world.path("host/sys/fs/cgroup")).unwrap();
        },
        row: "cgroups",
        says: "not mounted",
        next: "mount /sys/fs/cgroup",
        mend: Fix::By(|world| {
            world.host.write("host/sys/fs/cgroup/cgroup.controllers", "memory");
        }),
        ..FAULT
    },
    Fault {
        name: "an audit log below a file",
        config: "[audit]\ntarget = \"file\"\npath = \"DIR/file/audit.log\"",
        seed: |world| world.host.write("file", ""),
        row: "audit log",
        says: "file",
        next: "make it writable",
        mend: Fix::By(|world| std::fs::remove_file(world.path("file")).unwrap()),
        ..FAULT
    },
    Fault {
        name: "an audit log that is a folder, and a daemon that loses lines",
        config: "[audit]\ntarget = \"file\"\npath = \"DIR/audit.log\"",
        runs: true,
        seed: |world| {
            std::fs::create_dir(world.path("audit.log")).unwrap();
            let _plugin = world.host.plugin("10", "a", test_support::Script::default());
        },
        row: "audit log",
        says: "audit.log: it is a folder",
        next: "make it writable",
        mend: Fix::By(|world| {
            std::fs::remove_dir(world.path("audit.log")).unwrap();
            // Lost lines stay counted until the daemon is replaced.
            world.host.kill_daemon();
            world.host.start_daemon();
        }),
        ..FAULT
    },
    Fault {
        name: "a log that cannot be written",
        config: "[log]\ntarget = \"file\"",
        seed: |world| {
            world.make_run_dir();
            std::fs::create_dir(world.path("run/daemon.log")).unwrap();
            world.host.start_daemon();
            let lost = || world.host.admin(&["status"])["log_lines_lost"].as_u64();
            wait_until("a line is lost", || lost() > Some(0));
        },
        row: "log",
        says: "daemon.log: it is a folder (EISDIR); ",
        next: "restart the service that reads the log, or make its file writable",
        mend: Fix::By(|world| {
            std::fs::remove_dir(world.path("run/daemon.log")).unwrap();
            let _logs_a_line = world.host.plugin("10", "a", test_support::Script::default());
        }),
        ..FAULT
    },
];

/// Registers a copy of the program with Podman, which needs no process.
fn register(world: &World) {
    let built = std::fs::read(env!("CARGO_BIN_EXE_nri-runc")).unwrap();
    for folder in ["host/usr/local/bin", "host/usr/bin", "host/etc/containers"] {
        std::fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.host.put_program("host/usr/bin/podman", "#!/bin/sh\n");
    let program = world.path("host/usr/local/bin/nri-runc");
    test_support::program::put(&program, &built);
    let program = program.display().to_string();
    succeeds(&world.host.call(&["nri", "install", "podman", "--binary", &program]));
}

fn program(world: &World) -> std::path::PathBuf {
    world.path("host/usr/local/bin/nri-runc")
}

const REGISTERED: &[Fault] = &[
    Fault {
        name: "the engine's file was edited",
        seed: |world| {
            register(world);
            let folder = world.path("host/etc/containers/containers.conf.d");
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                std::fs::remove_file(entry.path()).unwrap();
            }
        },
        row: "registered with podman",
        says: "no longer matches the registration",
        next: "nri-runc nri install podman",
        mend: Fix::By(|world| register(world)),
        ..FAULT
    },
    Fault {
        name: "the program that the engine calls is gone",
        seed: |world| {
            register(world);
            std::fs::remove_file(program(world)).unwrap();
        },
        row: "registered with podman",
        says: "nri-runc is missing",
        next: "reinstall nri-runc at this path",
        mend: Fix::By(|world| register(world)),
        ..FAULT
    },
    Fault {
        name: "the program that the engine calls does not run",
        seed: |world| {
            register(world);
            test_support::program::put(&program(world), b"\x7fELF no more");
        },
        row: "program",
        says: "does not run",
        next: "install nri-runc at ",
        mend: Fix::By(|world| register(world)),
        ..FAULT
    },
];

#[test]
fn a_runtime_that_does_not_run_is_named() {
    try_all(RUNTIME);
}

#[test]
fn missing_features_of_the_node_are_named() {
    try_all(AROUND);
}

#[test]
fn a_broken_registration_is_named() {
    try_all(REGISTERED);
}
