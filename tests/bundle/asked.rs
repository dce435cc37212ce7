// SPDX-License-Identifier: Apache-2.0
//! The runtime is asked what it can do by the daemon, once, and only where it matters; one that
//! does not answer holds nobody up for long.

use std::time::{Duration, Instant};

use nri_runc::plugin::api;

use super::player::Manner;
use super::rig::Rig;
use super::{refused, sets, started, succeeds};

/// Asks for something that not every runtime honours.
fn schedules() -> Manner {
    let scheduler = api::LinuxScheduler {
        policy: api::LinuxSchedulerPolicy::SCHED_BATCH.into(),
        ..Default::default()
    };
    let linux =
        api::LinuxContainerAdjustment { scheduler: Some(scheduler).into(), ..Default::default() };
    let adjust = api::ContainerAdjustment { linux: Some(linux).into(), ..Default::default() };
    Manner { adjust, ..Manner::default() }
}

fn times_asked(rig: &Rig) -> usize {
    rig.read("fake/asked").lines().count()
}

#[test]
fn a_runtime_is_asked_once_for_all_containers_and_again_when_it_is_replaced() {
    let rig = started("");
    rig.write("fake/version", "runc version 1.4.0\n");
    let _told = rig.plugin("10", "sched", schedules());
    for id in ["c1", "c2", "c3"] {
        succeeds(&rig.create(id));
        succeeds(&rig.verb(&["delete", "--force", id]));
        assert_eq!(rig.read("fake/asked"), "--version\nfeatures\n", "{id}");
    }
    rig.write("fake/version", "runc version 1.1.5\n");
    let program = rig.read("fake/runc");
    let mode = std::fs::metadata(rig.path("fake/runc")).unwrap().permissions();
    rig.write("fake/runc", &format!("{program}# another build\n"));
    std::fs::set_permissions(rig.path("fake/runc"), mode).unwrap();
    rig.write("fake/argv", "");
    rig.write("log.json", "");
    refused(&rig, &rig.create("c4"), &["10-sched", "LinuxSched", "runc 1.1.5"]);
    assert_eq!(times_asked(&rig), 4);
}

#[test]
fn everyday_adjustments_and_verbs_ask_no_runtime() {
    let rig = started("");
    let _told = rig.plugin("10", "env", sets("A", "1"));
    succeeds(&rig.create("c1"));
    succeeds(&rig.verb(&["start", "c1"]));
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    assert_eq!(times_asked(&rig), 0);
}

#[test]
fn a_runtime_that_does_not_answer_is_trusted_after_two_seconds() {
    let rig = started("");
    rig.write("fake/version", "runc version 1.1.5\n");
    rig.write("fake/mute", "");
    let _told = rig.plugin("10", "sched", schedules());
    let begun = Instant::now();
    succeeds(&rig.create("c1"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(rig.read("fake/seen.json").contains("SCHED_BATCH"));
    assert_eq!(rig.logged(&["c1", "does not say what it can do"]), 1);
    std::fs::remove_file(rig.path("fake/mute")).unwrap();
    succeeds(&rig.verb(&["delete", "--force", "c1"]));
    let late = rig.create("c2");
    let line = String::from_utf8_lossy(&late.stderr);
    assert!(line.contains("runc 1.1.5"), "what was not known is asked again: {line}");
}
