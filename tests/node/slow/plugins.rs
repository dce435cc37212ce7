// SPDX-License-Identifier: Apache-2.0
//! Plugins that do not read, do not answer or do not stop printing.

use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{TestHost, example, is_synchronized, wait_until};

use super::{Place, Row};

pub(super) const CASES: &[Row] = &[
    ("a plugin that stops", |strace| stopped(&strace)),
    ("launched plugins that print without end, or say nothing", |strace| prints(&strace)),
];

const WAITS: &str = "---plugin_registration_timeout = \"3s\"\nplugin_request_timeout = \"2s\"\n";

/// A plugin of another process, which neither reads nor writes from here on.
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
