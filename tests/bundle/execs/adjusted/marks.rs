// SPDX-License-Identifier: Apache-2.0
//! Which containers have a mark, in all events of the containers, the daemon and the run directory.

use nri_plugin::Adjustment;
use serde_json::json;
use test_support::adjustments::update_of;
use test_support::{Script, TestHost, fails, started, succeeds, task, wait_until};

use super::{CHANGED, PROCESS, changing, exec, marks, seen};
use crate::pods::stop_order as pods;

fn has_marks(host: &TestHost, count: usize) {
    wait_until(&format!("there are {count} marks"), || marks(host).len() == count);
}

/// The values that the runtime received for a process in the container.
fn given(host: &TestHost, id: &str) -> String {
    succeeds(&exec(host, id, PROCESS));
    host.read("fake/process.json")
}

#[test]
fn a_mark_ends_with_its_container_and_is_not_reused() {
    let host = started("");
    let plugin = Script { only: Some("c1"), ..changing() };
    let _plugin = host.plugin("10", "env", plugin);
    succeeds(&host.create("c1"));
    assert_eq!(given(&host, "c1"), CHANGED);
    succeeds(&host.verb(&["start", "c1"]));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    has_marks(&host, 0);
    succeeds(&host.verb(&["delete", "c1"]));
    // A restart under the same ID, and a container that the plugin does not change.
    succeeds(&host.create("c1"));
    succeeds(&host.create_from("bundle", "c2"));
    has_marks(&host, 1);
    assert_eq!(given(&host, "c1"), CHANGED);
    assert_eq!(given(&host, "c2"), PROCESS);
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    has_marks(&host, 0);
}

#[test]
fn a_container_created_while_disabled_inherits_no_mark() {
    let mut host = started("");
    let _plugin = host.plugin("10", "env", changing());
    succeeds(&host.create("c1"));
    has_marks(&host, 1);
    host.kill_daemon();
    succeeds(&host.call(&["nri", "disable"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    succeeds(&host.create("c1"));
    succeeds(&host.call(&["nri", "enable"]));
    assert_eq!(marks(&host), Vec::<String>::new());
    assert_eq!(given(&host, "c1"), PROCESS);
}

#[test]
fn an_update_keeps_hundreds_of_variables_in_the_mark() {
    const VARIABLES: usize = 450;
    let host = started("");
    let adjust = (0..VARIABLES).fold(Adjustment::new(), |all, n| all.env(&format!("V{n}"), "1"));
    let updates = vec![update_of("c1", &json!({"cpu": {"shares": 300}}))];
    let _plugin = host.plugin("10", "env", Script { updates, ..adjust.into() });
    succeeds(&host.create("c1"));
    let root = host.path("root").display().to_string();
    let update = r#"{"cpu": {"shares": 200}}"#;
    succeeds(&host.call_with(&["--root", &root, "update", "--resources", "-", "c1"], update));
    wait_until("the update is on record", || {
        host.admin(&["explain", "c1"])["changes"].to_string().contains("UpdateContainer")
    });
    succeeds(&exec(&host, "c1", PROCESS));
    let variables = seen(&host)["env"].as_array().unwrap().len();
    assert_eq!(variables, 2 + VARIABLES);
}

#[test]
fn a_creation_that_fails_leaves_no_mark() {
    let host = started("");
    let _plugin = host.plugin("10", "env", changing());
    host.write("fake/fail", "");
    assert!(!host.create("c1").status.success());
    has_marks(&host, 0);
    std::fs::remove_file(host.path("fake/fail")).unwrap();
    let guard = Script { refuses: Some("not today"), ..Script::default() };
    let _plugin = host.plugin("90", "guard", guard);
    fails(&host.create("c1"), &["not today"]);
    has_marks(&host, 0);
}

#[test]
fn marks_outlive_the_daemon_and_the_next_one_removes_stale_ones() {
    let mut host = started("autostart = false\n");
    let _plugin = host.plugin("10", "env", changing());
    for id in ["c1", "c2"] {
        std::fs::create_dir_all(host.path(id)).unwrap();
        host.write(&format!("{id}/config.json"), test_support::BUNDLE);
        succeeds(&host.create_from(id, id));
    }
    wait_until("both are settled", || {
        host.read("daemon.err").is_empty() || marks(&host).len() == 2
    });
    host.kill_daemon();
    assert_eq!((marks(&host).len(), given(&host, "c1").as_str()), (2, CHANGED));
    // One container is deleted while no daemon runs, and a file is half written.
    succeeds(&host.verb(&["delete", "--force", "c2"]));
    host.write("run/state/marks/.0123.new", "half");
    host.write("run/state/marks/ffff", "nri-runc mark 1\n");
    host.start_daemon();
    has_marks(&host, 1);
    assert_eq!(given(&host, "c1"), CHANGED);
}

#[test]
fn a_run_directory_that_was_wiped_gets_its_marks_back() {
    let host = started("");
    let _plugin = host.plugin("10", "env", changing());
    succeeds(&host.create("c1"));
    wait_until("it is settled", || host.admin(&["pods"])[0]["containers"][0]["state"] == "created");
    let before = marks(&host);
    std::fs::rename(host.path("run"), host.path("wiped")).unwrap();
    wait_until("the mark is there again", || marks(&host) == before);
    assert_eq!(given(&host, "c1"), CHANGED);
}

#[test]
fn records_of_an_earlier_version_are_marked_by_their_changes() {
    let mut host = started("autostart = false\n");
    let _plugin = host.plugin("10", "env", changing());
    succeeds(&host.create("c1"));
    wait_until("it is settled", || host.admin(&["pods"])[0]["containers"][0]["state"] == "created");
    host.kill_daemon();
    // The earlier version had no marks.
    std::fs::remove_dir_all(host.path("run/state/marks")).unwrap();
    assert_eq!(given(&host, "c1"), PROCESS);
    host.start_daemon();
    assert_eq!(given(&host, "c1"), CHANGED);
}

#[test]
fn a_mark_does_not_apply_to_a_later_bypassed_container() {
    let mut host = started("autostart = false\n");
    let _plugin = host.plugin("10", "env", changing());
    succeeds(&host.create("c1"));
    host.kill_daemon();
    // The engine wrote its document again, as it does at a restart.
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    host.write("bundle/config.json", test_support::BUNDLE);
    succeeds(&host.create("c1"));
    assert_eq!(host.read("fake/seen.json"), test_support::BUNDLE);
    assert_eq!(given(&host, "c1"), PROCESS);
    host.start_daemon();
    has_marks(&host, 0);
    assert_eq!(given(&host, "c1"), PROCESS);
}

#[test]
fn a_refused_create_of_an_existing_id_keeps_its_mark() {
    let mut host = started("autostart = false\n");
    let _plugin = host.plugin("10", "env", changing());
    succeeds(&host.create("c1"));
    host.kill_daemon();
    let _refused_or_not = host.create("c1");
    assert_eq!(given(&host, "c1"), CHANGED);
}

#[test]
fn created_and_adopted_infrastructure_containers_are_marked() {
    let mut host = started("autostart = false\n");
    pods::document(&host, "pause", "sandbox");
    succeeds(&host.create_from(&task("pause"), "pause"));
    has_marks(&host, 1);
    succeeds(&exec(&host, "pause", PROCESS));
    assert_eq!(host.read("fake/process.json"), PROCESS, "no plugin changed it");
    succeeds(&host.verb(&["delete", "--force", "pause"]));
    has_marks(&host, 0);
    // The next daemon takes over a container that bypassed its predecessor.
    host.kill_daemon();
    succeeds(&host.create_from(&task("pause"), "pause"));
    assert_eq!(marks(&host).len(), 0);
    host.start_daemon();
    has_marks(&host, 1);
}

#[test]
fn a_foreign_or_damaged_mark_is_ignored() {
    let host = started("");
    let _plugin = host.plugin("10", "env", Script { only: Some("c1"), ..changing() });
    succeeds(&host.create("c1"));
    let dir = host.path("run/state/marks");
    let own = dir.join(&marks(&host)[0]);
    let bytes = std::fs::read(&own).unwrap();
    let write = |bytes: &[u8]| nri_runc::testing::files::replace(&own, bytes).unwrap();
    for damaged in [&bytes[..bytes.len() - 1], b"", b"nri-runc mark 2\n", b"\xff\xff\xff"] {
        write(damaged);
        assert_eq!(given(&host, "c1"), PROCESS);
    }
    let other = [&bytes[..], &[2, 2, 0, 0, 0], b"c2"].concat();
    write(&other);
    assert_eq!(given(&host, "c1"), PROCESS, "the mark is of another container");
    write(&bytes);
    assert_eq!(given(&host, "c1"), CHANGED);
    let mode = |path: &std::path::Path| {
        std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).unwrap()) & 0o777
    };
    assert_eq!((mode(&own), mode(&dir)), (0o600, 0o700));
}
