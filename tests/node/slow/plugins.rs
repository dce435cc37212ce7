// SPDX-License-Identifier: Apache-2.0
//! Plugins that do not read, do not respond or do not stop printing.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::adjustments::sets;
use test_support::{Script, TestHost, example, is_synchronized, scripted_plugin, wait_until};

use super::{Place, Row};

pub(super) const CASES: &[Row] = &[
    ("a plugin that stops", |strace| stopped(&strace)),
    ("launched plugins that print without end, or say nothing", |strace| prints(&strace)),
    ("a plugin whose answers come a byte a second", |strace| drips(&strace)),
    ("a plugin whose answers are as long as the protocol allows", |strace| answers_most(&strace)),
];

const WAITS: &str =
    "[nri]\nplugin_registration_timeout = \"3s\"\nplugin_request_timeout = \"2s\"\n";

/// A plugin in another process, which is stopped from here on.
fn stopped(strace: &Path) -> Option<Place> {
    let mut host = TestHost::new(WAITS);
    std::fs::create_dir(host.path("plugins")).unwrap();
    symlink(example("demo_plugin"), host.path("plugins/10-greeter")).unwrap();
    host.write("10-greeter.conf", &format!("data=/etc\nsaw={}\n", host.path("saw").display()));
    host.start_daemon();
    let plugins = || host.admin(&["plugins"]);
    wait_until("the plugin is synchronized", || is_synchronized(&plugins(), "10-greeter"));
    let pid = i32::try_from(plugins()[0]["pid"].as_i64().unwrap()).unwrap();
    let mut place = Place::new(host, strace);
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    for id in ["c1", "c2", "c3"] {
        place.lives(id);
    }
    Some(place)
}

/// A plugin that was synchronized, and whose bytes arrive one a second from then on.
fn drips(strace: &Path) -> Option<Place> {
    let mut host = TestHost::new(WAITS);
    host.start_daemon();
    let slow = Arc::new(AtomicBool::new(false));
    between(&host, &slow);
    let _plugin =
        scripted_plugin::connect(host.path("between.sock"), "10", "drip", Script::default());
    wait_until("the plugin is synchronized", || {
        is_synchronized(&host.admin(&["plugins"]), "10-drip")
    });
    let mut place = Place::new(host, strace);
    slow.store(true, Ordering::Relaxed);
    for id in ["c1", "c2"] {
        place.lives(id);
    }
    Some(place)
}

/// Opens a socket that forwards the bytes of one plugin to the daemon.
fn between(host: &TestHost, slow: &Arc<AtomicBool>) {
    let listener = UnixListener::bind(host.path("between.sock")).unwrap();
    let (socket, slow) = (host.path("nri.sock"), Arc::clone(slow));
    std::thread::spawn(move || {
        let (mut plugin, _) = listener.accept().unwrap();
        let mut daemon = UnixStream::connect(socket).unwrap();
        let (mut to_plugin, mut from_daemon) =
            (plugin.try_clone().unwrap(), daemon.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_daemon, &mut to_plugin));
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = plugin.read(&mut bytes) {
            for byte in &bytes[..count] {
                if slow.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_secs(1));
                }
                if daemon.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        }
    });
}

fn answers_most(strace: &Path) -> Option<Place> {
    let mut host = TestHost::default();
    host.start_daemon();
    let _plugin = host.plugin("10", "most", sets("A", &"x".repeat((4 << 20) - 4096)));
    let mut place = Place::new(host, strace);
    for id in ["c1", "c2"] {
        place.lives(id);
    }
    Some(place)
}

fn prints(strace: &Path) -> Option<Place> {
    let mut host = TestHost::new(WAITS);
    std::fs::create_dir(host.path("plugins")).unwrap();
    for (name, text) in [
        ("10-endless", "exec yes a line of a plugin"),
        ("20-long", "exec cat /dev/zero"),
        ("30-drip", "while :; do printf x; sleep 1; done"),
        ("40-mute", "exec sleep 1000"),
        ("50-closed", "exec sleep 1000 3>&- >&- 2>&-"),
        ("60-over", "exit 3"),
    ] {
        host.put_program(&format!("plugins/{name}"), &format!("#!/bin/sh\n{text}\n"));
    }
    host.start_daemon();
    let mut place = Place::new(host, strace);
    for id in ["c1", "c2"] {
        place.lives(id);
    }
    Some(place)
}
