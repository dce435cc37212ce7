// SPDX-License-Identifier: Apache-2.0
//! Faults of the plugin socket and of plugins.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use serde_json::Value;
use test_support::example::example;
use test_support::{Script, is_synchronized, wait_until};

use super::{FAULT, Fault, Fix, World, try_all};

fn listen(world: &mut World) {
    world.keep(UnixListener::bind(world.path("nri.sock")).unwrap());
}

fn hang_up(world: &mut World) {
    world.kept.lock().unwrap().clear();
    let _gone = std::fs::remove_file(world.path("nri.sock"));
}

/// Starts a daemon that launches the sample plugin as `10-a`, and waits until it is synchronized.
fn launch_sample(world: &mut World) {
    std::fs::create_dir_all(world.path("plugins")).unwrap();
    test_support::program::copy(&example("demo_plugin"), &world.path("plugins/10-a"));
    world.host.start_daemon();
    let is_there = || is_synchronized(&world.host.admin(&["plugins"]), "10-a");
    wait_until("it is synchronized", is_there);
}

/// Writes a pre-installed plugin that is a script.
fn install(world: &World, name: &str, text: &str) {
    std::fs::create_dir_all(world.path("plugins")).unwrap();
    world.host.put_program("script", &format!("#!/bin/sh\n{text}\n"));
    std::fs::rename(world.path("script"), world.path("plugins").join(name)).unwrap();
}

fn uninstall(world: &mut World) {
    for entry in std::fs::read_dir(world.path("plugins")).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
}

fn connect(world: &World, script: Script) {
    let _plugin = world.host.plugin("10", "slow", script);
}

fn hanging() -> Script {
    // Only CreateContainer: a response in between would end the row of time-outs.
    Script { hangs: true, events: Some(1 << 3), ..Script::default() }
}

const SOCKET: &[Fault] = &[
    Fault {
        name: "taken by another program, without a daemon",
        seed: listen,
        row: "plugin socket",
        says: "listens on ",
        next: "free the socket",
        mend: Fix::By(hang_up),
        ..FAULT
    },
    Fault {
        name: "taken by another program before the daemon started",
        seed: |world| {
            listen(world);
            world.host.start_daemon();
        },
        row: "plugin socket",
        says: "until then containers are created without plugins",
        next: "free the socket",
        mend: Fix::By(hang_up),
        ..FAULT
    },
    Fault {
        name: "a plain file",
        seed: |world| world.host.write("nri.sock", ""),
        row: "plugin socket",
        says: "it exists and is not a socket",
        next: "remove ",
        mend: Fix::By(hang_up),
        ..FAULT
    },
    Fault {
        name: "below a file",
        seed: |world| {
            world.host.write("file", "");
            let text = world.host.read("config.toml").replace("/nri.sock", "/file/nri.sock");
            world.host.write("config.toml", &text);
        },
        row: "plugin socket",
        says: "file",
        next: "make the folder writable",
        mend: Fix::By(|world| std::fs::remove_file(world.path("file")).unwrap()),
        ..FAULT
    },
    Fault {
        name: "of another mode",
        runs: true,
        seed: |world| {
            let mode = PermissionsExt::from_mode(0o666);
            std::fs::set_permissions(world.path("nri.sock"), mode).unwrap();
        },
        row: "plugin socket",
        says: "has mode 0666",
        next: "chmod ",
        ..FAULT
    },
];

/// Creates a container with a mount of the socket's folder.
fn mount_socket(world: &mut World) {
    let mut document: Value = serde_json::from_str(test_support::BUNDLE).unwrap();
    let dir = world.path("").display().to_string();
    let mount = serde_json::json!({
        "destination": "/mnt", "type": "bind", "source": dir, "options": ["rbind", "ro"],
    });
    document["mounts"] = Value::Array(vec![mount]);
    world.host.write("bundle/config.json", &document.to_string());
    assert!(world.host.create("tenant").status.success());
}

fn set_mode(world: &World, name: &str, mode: u32) {
    std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

fn reconfigure(world: &mut World) {
    world.configure("");
}

const ACCESS: &[Fault] = &[
    Fault {
        name: "others may write to its folder",
        seed: |world| set_mode(world, "", 0o777),
        row: "plugin socket",
        says: "is writable by others (mode 0777): they can put another socket",
        next: "chmod 700 ",
        ..FAULT
    },
    Fault {
        name: "its folder is another user's",
        seed: |world| std::os::unix::fs::chown(world.path(""), Some(12345), None).unwrap(),
        row: "plugin socket",
        says: "belongs to user 12345",
        next: "chown 0 ",
        ..FAULT
    },
    Fault {
        name: "others may enter its folder",
        seed: |world| {
            std::fs::create_dir(world.path("nri")).unwrap();
            set_mode(world, "nri", 0o755);
            let text = world.host.read("config.toml").replace("/nri.sock", "/nri/nri.sock");
            world.host.write("config.toml", &text);
        },
        row: "plugin socket",
        says: "may be entered by others (mode 0755)",
        next: "chmod 700 ",
        ..FAULT
    },
    Fault {
        name: "every user may connect",
        config: "[nri]\nsocket_mode = \"0666\"",
        row: "plugin socket",
        says: "nri.socket_mode 0666 opens the socket to every user",
        next: "set nri.socket_mode to \"0600\"",
        mend: Fix::By(reconfigure),
        ..FAULT
    },
    Fault {
        name: "a group may connect",
        config: "[nri]\nsocket_gid = 12345",
        row: "plugin socket",
        says: "nri.socket_gid gives the socket to group 12345",
        next: "remove nri.socket_gid",
        mend: Fix::By(reconfigure),
        ..FAULT
    },
    Fault {
        name: "another user may be a plugin",
        config: "[nri]\nallowed_uids = [0, 12345]",
        row: "plugin socket",
        says: "nri.allowed_uids lets user 12345 be a plugin",
        next: "set nri.allowed_uids to [0]",
        mend: Fix::By(reconfigure),
        ..FAULT
    },
    Fault {
        name: "it is mounted into a container",
        runs: true,
        seed: mount_socket,
        row: "plugin socket",
        says: "1 container can connect as a plugin, since the socket is mounted there",
        next: "remove the mount from the pod",
        mend: Fix::By(|world| {
            assert!(world.host.verb(&["delete", "--force", "tenant"]).status.success());
        }),
        ..FAULT
    },
    Fault {
        name: "the same, and then plugins are restricted",
        runs: true,
        seed: mount_socket,
        row: "plugin socket",
        says: "can connect as a plugin",
        next: "remove the mount from the pod, or set `from` in [plugin.\"*\"]",
        mend: Fix::By(|world| {
            world.configure("[plugin.\"*\"]\nfrom = [\"pod:kube-system/*\"]");
            assert!(world.host.call(&["nri", "reload"]).status.success());
        }),
        ..FAULT
    },
    Fault {
        name: "others may write to the folder of plugins",
        seed: |world| set_mode(world, "plugins", 0o777),
        row: "pre-installed plugins",
        says: "is writable by others (mode 0777): what they put there runs as root",
        next: "chmod 755 ",
        ..FAULT
    },
    Fault {
        name: "a plugin is another user's",
        seed: |world| {
            install(world, "10-a", "");
            std::os::unix::fs::chown(world.path("plugins/10-a"), Some(12345), None).unwrap();
        },
        row: "pre-installed plugins",
        says: "10-a belongs to user 12345: what they put there runs as root",
        next: "chown 0 ",
        ..FAULT
    },
    Fault {
        name: "others may write to a plugin",
        seed: |world| {
            install(world, "10-a", "");
            set_mode(world, "plugins/10-a", 0o777);
        },
        row: "pre-installed plugins",
        says: "10-a is writable by others (mode 0777)",
        next: "chmod go-w ",
        ..FAULT
    },
];

const INSTALLED: &[Fault] = &[
    Fault {
        name: "no such folder",
        seed: |world| {
            let text = world.host.read("config.toml").replace("/plugins\"", "/elsewhere\"");
            world.host.write("config.toml", &text);
        },
        row: "pre-installed plugins",
        says: "elsewhere is missing",
        next: "create the folder",
        mend: Fix::By(|world| std::fs::create_dir(world.path("elsewhere")).unwrap()),
        ..FAULT
    },
    Fault {
        name: "not executable",
        seed: |world| {
            install(world, "10-a", "");
            let mode = PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(world.path("plugins/10-a"), mode).unwrap();
        },
        row: "pre-installed plugins",
        says: "it is not executable",
        next: "make it executable",
        mend: Fix::By(|world| install(world, "10-a", "")),
        ..FAULT
    },
    Fault {
        name: "of a wrong name",
        seed: |world| install(world, "a", ""),
        row: "pre-installed plugins",
        says: "not of the form NN-name",
        next: "name it NN-name, with two digits (10-name), or move it out of the folder",
        mend: Fix::By(uninstall),
        ..FAULT
    },
    Fault {
        name: "a page of documentation",
        seed: |world| world.host.write("plugins/README.md", "Plugins go here.\n"),
        row: "pre-installed plugins",
        says: "README.md was skipped: it is neither executable nor named NN-name",
        next: "move it out of the folder",
        mend: Fix::By(|world| std::fs::remove_file(world.path("plugins/README.md")).unwrap()),
        ..FAULT
    },
    Fault {
        name: "a configuration that is no text",
        seed: |world| {
            install(world, "10-a", "");
            nri_runc::testing::files::replace(&world.path("a.conf"), b"\xff").unwrap();
        },
        row: "pre-installed plugins",
        says: "a.conf",
        next: "make its configuration file readable",
        mend: Fix::By(|world| std::fs::remove_file(world.path("a.conf")).unwrap()),
        ..FAULT
    },
    Fault {
        name: "it exits",
        seed: |world| {
            install(world, "10-a", "echo no device >&2; exit 3");
            world.host.start_daemon();
        },
        row: "pre-installed plugins",
        says: "10-a is not running: could not be started",
        next: "nri-runc nri plugins --logs 10-a",
        mend: Fix::By(uninstall),
        ..FAULT
    },
    Fault {
        name: "it never registers",
        config: "[nri]\nplugin_registration_timeout = \"300ms\"",
        seed: |world| {
            install(world, "10-a", "exec sleep 300");
            world.host.start_daemon();
        },
        row: "pre-installed plugins",
        says: "did not register in time",
        next: "nri-runc nri plugins --logs 10-a",
        mend: Fix::By(uninstall),
        ..FAULT
    },
    Fault {
        name: "no program",
        seed: |world| {
            std::fs::create_dir_all(world.path("plugins")).unwrap();
            world.host.put_program("plugins/10-a", "\x7fELF no more");
            world.host.start_daemon();
        },
        row: "pre-installed plugins",
        says: "10-a is not running: could not be started",
        next: "nri-runc nri plugins --logs 10-a",
        mend: Fix::By(uninstall),
        ..FAULT
    },
    Fault {
        name: "its upgrade does not run",
        seed: |world| {
            launch_sample(world);
            install(world, "10-a", "echo no device >&2; exit 3");
            // Each command that an operator may use shows it.
            let printed_by = |verb: &str| {
                let output = world.host.call(&["nri", verb]);
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            let older = "older than its file or configuration: the newer one could not be started";
            wait_until("status says so", || printed_by("status").contains(older));
            assert!(printed_by("plugins").contains(older), "{}", printed_by("plugins"));
            assert!(printed_by("metrics").contains("nri_runc_outdated_plugins 1"));
        },
        row: "pre-installed plugins",
        says: "10-a: it is older than its file",
        next: "nri-runc nri plugins --logs 10-a",
        mend: Fix::By(|world| {
            test_support::program::copy(&example("demo_plugin"), &world.path("plugins/10-a"));
        }),
        ..FAULT
    },
    Fault {
        name: "its file was removed",
        seed: |world| {
            launch_sample(world);
            std::fs::remove_file(world.path("plugins/10-a")).unwrap();
            wait_until("it is stopped", || {
                !is_synchronized(&world.host.admin(&["plugins"]), "10-a")
            });
        },
        row: "plugins",
        says: "10-a disconnected",
        next: "put 10-a back into",
        mend: Fix::By(|world| {
            test_support::program::copy(&example("demo_plugin"), &world.path("plugins/10-a"));
        }),
        ..FAULT
    },
];

const CONNECTED: &[Fault] = &[
    Fault {
        name: "a required one is missing",
        config: "[plugin.guard]\nrequired = true",
        runs: true,
        row: "required plugins",
        says: "guard not connected: creates are refused",
        next: "start it",
        mend: Fix::By(|world| {
            let _plugin = world.host.plugin("10", "guard", Script::default());
        }),
        ..FAULT
    },
    Fault {
        name: "time-outs have disconnected it",
        config: "[nri]\nplugin_request_timeout = \"3s\"\n[plugin.slow]\nstrikes = 1",
        runs: true,
        seed: |world| {
            connect(world, hanging());
            assert!(world.host.create("c1").status.success());
        },
        row: "plugins",
        says: "10-slow disconnected",
        next: "restart 10-slow",
        mend: Fix::By(|world| connect(world, Script::default())),
        ..FAULT
    },
    Fault {
        name: "it has stopped answering and stays connected",
        config: "[nri]\nplugin_request_timeout = \"3s\"\n[plugin.slow]\nstrikes = 0",
        runs: true,
        seed: |world| {
            connect(world, hanging());
            for id in ["c1", "c2", "c3", "c4"] {
                assert!(world.host.create(id).status.success());
            }
        },
        row: "plugins",
        says: "10-slow does not answer: containers are created without it",
        next: "restart 10-slow",
        mend: Fix::By(|world| connect(world, Script::default())),
        ..FAULT
    },
    Fault {
        name: "it has left",
        runs: true,
        seed: |world| {
            let leaves = Script { leaves: true, ..Script::default() };
            connect(world, leaves);
            let _created = world.host.create("c1");
        },
        row: "plugins",
        says: "10-slow disconnected",
        next: "restart 10-slow",
        mend: Fix::By(|world| connect(world, Script::default())),
        ..FAULT
    },
    Fault {
        name: "one that the operator waits for never came",
        config: "[nri]\nwait_for = [\"slow\"]\nplugin_registration_timeout = \"300ms\"",
        runs: true,
        row: "plugins",
        says: "slow was connected before the daemon started, and has not reconnected",
        next: "start slow",
        mend: Fix::By(|world| connect(world, Script::default())),
        ..FAULT
    },
];

#[test]
fn a_plugin_socket_that_plugins_cannot_use_is_named() {
    try_all(SOCKET);
}

#[test]
fn each_way_to_connect_plugins_without_root_is_named() {
    try_all(ACCESS);
}

#[test]
fn a_restriction_to_programs_is_reported_as_advice() {
    let world = World::new("[plugin.ear]\nfrom = [\"exe:/usr/bin/ear\"]");
    let row = world.check().into_iter().find(|row| row["check"] == "plugin origins");
    let detail = row.as_ref().and_then(|row| row["detail"].as_str()).unwrap_or_default();
    assert!(
        detail.starts_with("plugin.ear.from: an exe: origin prevents only mistakes"),
        "{row:?}"
    );
    let by_pod = World::new("[plugin.ear]\nfrom = [\"pod:kube-system/ear\"]");
    assert!(by_pod.check().iter().all(|row| row["check"] != "plugin origins"));
}

#[test]
fn a_pre_installed_plugin_that_does_not_run_is_named() {
    try_all(INSTALLED);
}

#[test]
fn an_inactive_plugin_is_named() {
    try_all(CONNECTED);
}

#[test]
fn a_plugin_disconnected_for_time_outs_is_named_until_back() {
    let mut world =
        World::new("[nri]\nplugin_request_timeout = \"3s\"\n[plugin.slow]\nstrikes = 1");
    world.host.start_daemon();
    connect(&world, hanging());
    assert!(world.host.create("c1").status.success());
    let find = |world: &World| -> Option<Value> {
        world.check().into_iter().find(|row| row["check"] == "plugins" && row["ok"] == false)
    };
    wait_until("it is named", || find(&world).is_some());
    connect(&world, Script::default());
    assert_eq!(find(&world), None);
}
