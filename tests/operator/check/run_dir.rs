// SPDX-License-Identifier: Apache-2.0
//! Faults of the run directory, and files that are left in it.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use nix::mount::MsFlags;
use test_support::wait_until;

use super::{FAULT, Fault, Fix, World, try_all};

fn set_mode(world: &World, name: &str, mode: u32) {
    std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

fn skip_unless(world: &World, is_there: bool) {
    if !is_there {
        world.host.write("skipped", "");
    }
}

/// Fills the disk to the last byte.
fn fill(world: &World) {
    let mut options = std::fs::OpenOptions::new();
    let mut filler = options.append(true).create(true).open(world.path("run/filler")).unwrap();
    let mut chunk = vec![b'x'; 64 << 10];
    while !chunk.is_empty() {
        if filler.write_all(&chunk).is_err() {
            chunk.truncate(chunk.len() / 2);
        }
    }
}

fn make_room(world: &mut World) {
    std::fs::remove_file(world.path("run/filler")).unwrap();
}

/// Starts a process that holds a lock as long as it lives.
fn hold(world: &mut World, lock: &str) {
    world.make_run_dir();
    let path = world.path("run").join(lock).display().to_string();
    world.shell(&format!("exec flock -o {path} sleep 300"));
    wait_until("the lock is held", || {
        let test = format!("flock -n {path} true");
        !world.shell_command(&test).status().unwrap().success()
    });
}

const FOLDER: &[Fault] = &[
    Fault {
        name: "open to others",
        seed: |world| {
            world.make_run_dir();
            set_mode(world, "run", 0o777);
        },
        row: "run directory",
        says: "is writable by others (mode 0777)",
        next: "chmod 700 ",
        ..FAULT
    },
    Fault {
        name: "of another user",
        seed: |world| {
            world.make_run_dir();
            chown(world.path("run"), Some(12345), None).unwrap();
        },
        row: "run directory",
        says: "belongs to user 12345",
        next: "chown 0 ",
        ..FAULT
    },
    Fault {
        name: "a file",
        seed: |world| world.host.write("run", ""),
        row: "run directory",
        says: "is a file, not a folder",
        next: "rm ",
        ..FAULT
    },
    Fault {
        name: "a link",
        seed: |world| {
            std::fs::create_dir(world.path("elsewhere")).unwrap();
            symlink(world.path("elsewhere"), world.path("run")).unwrap();
        },
        row: "run directory",
        says: "is a symbolic link, not a folder",
        next: "rm ",
        ..FAULT
    },
    Fault {
        name: "below a file",
        config: "",
        seed: |world| {
            world.host.write("file", "");
            let text = world.host.read("config.toml").replace("/run\"", "/file/run\"");
            world.host.write("config.toml", &text);
        },
        row: "run directory",
        says: "a path component is not a folder",
        next: "make ",
        mend: Fix::By(|world| std::fs::remove_file(world.path("file")).unwrap()),
        ..FAULT
    },
    Fault {
        name: "a path that is too long for a socket",
        seed: |world| {
            let long = format!("/{}\"", "x".repeat(100));
            let text = world.host.read("config.toml").replace("/run\"", &long);
            world.host.write("config.toml", &text);
        },
        row: "run directory",
        says: "is too long for a socket",
        next: "set a shorter run_dir",
        mend: Fix::By(|world| world.configure("")),
        ..FAULT
    },
    Fault {
        name: "the folder of notes open to others",
        seed: |world| {
            world.make_run_dir();
            std::fs::create_dir(world.path("run/bypassed")).unwrap();
            set_mode(world, "run/bypassed", 0o777);
        },
        row: "run directory",
        says: "bypassed is writable by others",
        next: "chmod 700 ",
        ..FAULT
    },
    Fault {
        name: "a file in the place of the records",
        seed: |world| {
            world.make_run_dir();
            world.host.write("run/state", "");
        },
        row: "run directory",
        says: "state is a file, not a folder",
        next: "rm ",
        ..FAULT
    },
    Fault {
        name: "a folder in the place of a lock",
        seed: |world| {
            world.make_run_dir();
            std::fs::create_dir(world.path("run/start.lock")).unwrap();
        },
        row: "run directory",
        says: "start.lock",
        next: "rm -r ",
        ..FAULT
    },
    Fault {
        name: "a folder in the place of the socket",
        seed: |world| {
            world.make_run_dir();
            std::fs::create_dir(world.path("run/daemon.sock")).unwrap();
        },
        row: "run directory",
        says: "daemon.sock is a folder, not a socket",
        next: "rm -r ",
        ..FAULT
    },
];

const DISK: &[Fault] = &[
    Fault {
        name: "read-only",
        seed: |world| {
            let is_there = world.disk("size=4m");
            skip_unless(world, is_there);
            if is_there {
                world.remount(MsFlags::MS_RDONLY, "");
            }
        },
        row: "run directory",
        says: "read-only file system",
        next: "make ",
        mend: Fix::By(|world| world.remount(MsFlags::empty(), "")),
        ..FAULT
    },
    Fault {
        name: "full",
        seed: |world| {
            let is_there = world.disk("size=4m");
            skip_unless(world, is_there);
            if is_there {
                fill(world);
            }
        },
        row: "run directory",
        says: "no space left",
        next: "make ",
        mend: Fix::By(make_room),
        ..FAULT
    },
    Fault {
        name: "nearly full",
        seed: |world| {
            let is_there = world.disk("size=4m");
            skip_unless(world, is_there);
            if is_there {
                let filler = vec![b'x'; 7 << 19];
                std::fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(world.path("run/filler"))
                    .and_then(|mut file| file.write_all(&filler))
                    .unwrap();
            }
        },
        row: "run directory",
        says: "KiB left",
        next: "free space in ",
        mend: Fix::By(make_room),
        ..FAULT
    },
    Fault {
        name: "without inodes",
        seed: |world| {
            let is_there = world.disk("size=4m,nr_inodes=2");
            skip_unless(world, is_there);
            if is_there {
                world.host.write("other", "");
                std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(world.path("run/filler"))
                    .unwrap();
            }
        },
        row: "run directory",
        says: "no space left",
        next: "make ",
        mend: Fix::By(|world| world.remount(MsFlags::empty(), "nr_inodes=1000")),
        ..FAULT
    },
    Fault {
        name: "full under a daemon, which refuses creates",
        config: "autostart = false",
        seed: |world| {
            let is_there = world.disk("size=4m");
            skip_unless(world, is_there);
            if is_there {
                world.host.start_daemon();
                fill(world);
                assert!(!world.host.create("c1").status.success());
                let printed = world.host.admin(&["metrics"])["text"].as_str().unwrap().to_owned();
                assert!(printed.contains("nri_runc_records{problem=\"unwritten\"} 1"), "{printed}");
            }
        },
        row: "records",
        says: "1 requests failed",
        next: "free space in ",
        mend: Fix::By(make_room),
        ..FAULT
    },
    Fault {
        name: "a record that cannot be read",
        runs: true,
        seed: |world| {
            std::fs::create_dir_all(world.path("run/state/aside")).unwrap();
            world.host.write("run/state/aside/c1.json", "{");
        },
        row: "records",
        says: "1 unusable: c1.json",
        next: "the log says why",
        mend: Fix::By(|world| {
            std::fs::remove_file(world.path("run/state/aside/c1.json")).unwrap();
        }),
        ..FAULT
    },
];

const LEFT: &[Fault] = &[
    Fault {
        name: "the lock of a start is held",
        seed: |world| hold(world, "start.lock"),
        row: "daemon",
        says: "start.lock but does not accept connections: no daemon can start",
        next: "kill ",
        ..FAULT
    },
    Fault {
        name: "the daemon's lock is held by another program",
        seed: |world| hold(world, "daemon.lock"),
        row: "daemon",
        says: "daemon.lock but does not accept connections: no daemon can start",
        next: "kill ",
        ..FAULT
    },
    Fault {
        name: "commands bypassed a daemon that cannot start",
        config: "[debug]\nfault = \"daemon.start:panic\"",
        seed: |world| assert!(world.host.create("c1").status.success()),
        row: "bypassed",
        says: "1 command ran without plugins, because the daemon was away; the last",
        next: "nri-runc nri restart",
        mend: Fix::Then(|world| {
            world.configure("");
            assert!(world.host.verb(&["delete", "--force", "c1"]).status.success());
        }),
        ..FAULT
    },
    Fault {
        name: "containers were created without plugins",
        config: "[debug]\nfault = \"daemon.start:fail\" # the machine's root",
        seed: |world| {
            assert!(world.host.create("c1").status.success());
            world.configure("# the machine's root");
            world.host.start_daemon();
        },
        row: "bypassed",
        says: "1 container created without plugins, because the daemon was away: c1",
        next: "recreate them",
        mend: Fix::By(|world| {
            assert!(world.host.verb(&["delete", "--force", "c1"]).status.success());
        }),
        ..FAULT
    },
    Fault {
        name: "commands were refused without a daemon",
        config: "on_daemon_failure = \"fail\"\n[debug]\nfault = \"daemon.start:fail\"",
        seed: |world| assert!(!world.host.create("c1").status.success()),
        row: "refusals",
        says: "1 command refused, because the daemon was away; the last",
        next: "nri-runc nri restart",
        mend: Fix::Then(|world| world.configure("on_daemon_failure = \"fail\"\n")),
        ..FAULT
    },
];

#[test]
fn a_run_directory_that_cannot_be_used_is_named() {
    try_all(FOLDER);
}

#[test]
fn a_disk_that_refuses_records_is_named() {
    try_all(DISK);
}

#[test]
fn leftovers_in_the_run_directory_are_named() {
    try_all(LEFT);
}

#[test]
fn a_run_directory_fault_names_where_bypasses_are_noted() {
    let world = World::new("");
    world.make_run_dir();
    set_mode(&world, "run", 0o777);
    let detail = |world: &World| -> String {
        let findings = world.check();
        let row = findings.iter().find(|row| row["check"] == "run directory");
        row.and_then(|row| row["detail"].as_str()).unwrap_or_default().to_owned()
    };
    assert!(detail(&world).ends_with("recorded nowhere"), "{}", detail(&world));
    std::fs::create_dir_all(world.path("host/dev")).unwrap();
    let log = std::os::unix::net::UnixDatagram::bind(world.path("host/dev/log")).unwrap();
    assert!(detail(&world).ends_with("recorded only in syslog"), "{}", detail(&world));
    assert!(world.host.create("c1").status.success(), "it passes");
    // The folder of notes must be private to receive the note; otherwise the log has it.
    set_mode(&world, "run/bypassed", 0o777);
    assert!(world.host.create("c2").status.success(), "it passes");
    let mut line = [0; 4096];
    let length = log.recv(&mut line).unwrap();
    let line = String::from_utf8_lossy(&line[..length]).into_owned();
    assert!(line.contains("create c2 ran without plugins: "), "{line}");
    assert!(line.contains("no record of it could be written"), "{line}");
}
