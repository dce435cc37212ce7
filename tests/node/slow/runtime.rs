// SPDX-License-Identifier: Apache-2.0
//! A runtime that never answers the daemon's calls: version and features, and an update of another
//! container.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nri_plugin::Adjustment;
use serde_json::json;
use test_support::adjustments::{bind_mount, update_of};
use test_support::{Script, TestHost};

use super::{Place, Row};

pub(super) const CASES: &[Row] =
    &[("a runtime that never answers", |strace| never_answers(&strace))];

/// Creates, starts and deletes; hangs at all other verbs.
const HANGS: &str = "#!/bin/sh
for word; do
    case $word in
    --version | features | state | update) echo $$ >\"HOST/hangs-${word#--}\"; exec sleep 1000 ;;
    esac
done
exec HOST/fake/runc \"$@\"
";

/// The daemon waits for half a minute, which is longer than the test may take.
const BEATS: usize = 20;

fn never_answers(strace: &Path) -> Option<Place> {
    let mut host = TestHost::new("[nri]\nplugin_request_timeout = \"2s\"\n");
    let folder = host.path("").display().to_string();
    std::fs::create_dir(host.path("fake/hangs")).unwrap();
    host.put_program("fake/hangs/runc", &HANGS.replace("HOST/", &folder));
    host.configure(&host.path("fake/hangs/runc"), "");
    host.start_daemon();
    let mut place = Place::new(host, strace);
    assert!(place.host.create("c1").status.success());
    place.host.verb(&["start", "c1"]);
    // The runtime must support the mount's options, and is the only one that can update the other
    // container.
    let mount = bind_mount(&place.host.path("bundle"), "/mnt").option("rro");
    let adjust = Adjustment::new().env("HELLO", "there").mount(mount);
    let limit = json!({"memory": {"limit": 1 << 30}});
    let script = Script { update: vec![update_of("c1", &limit)], ..adjust.into() };
    let _plugin = place.host.plugin("10", "a", script);
    let mut create = place.host.spawn(&["create", "--bundle", "BUNDLE", "c2"]);
    let mut updates = 0;
    let created = loop {
        if let Some(status) = create.try_wait().unwrap() {
            break status;
        }
        place.beat();
        std::thread::sleep(Duration::from_millis(20));
        let pid = place.host.read("hangs-update");
        if let Ok(pid) = pid.trim().parse() {
            (0..BEATS).for_each(|_| drop(place.beat()));
            std::fs::remove_file(place.host.path("hangs-update")).unwrap();
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            updates += 1;
        }
    };
    assert!(created.success() && updates > 0, "{updates} updates");
    assert!(place.host.path("hangs-version").exists(), "the runtime was asked nothing");
    for id in ["c2", "c1"] {
        let deleted = place.during(|host| host.verb(&["delete", "--force", id]));
        assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    }
    Some(place)
}
