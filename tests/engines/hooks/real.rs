// SPDX-License-Identifier: Apache-2.0
//! The real runc runs bundles with nri-runc's hooks, without a wrapper.

use serde_json::json;
use test_support::adjustments::{limits_processes, sets};
use test_support::{Script, wait_until};

use super::{Hooked, fails, has_received, life, life_without, succeeds};

#[test]
fn events_are_sent_once_and_in_order() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let received = hooked.host.plugin("10", "witness", Script::default());
    succeeds(&hooked.create());
    wait_until("the creation is reported", || has_received(&received, "PostCreateContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..3]);
    let container = &hooked.host.admin(&["pods"])[0]["containers"][0];
    assert_eq!(
        (&container["state"], &container["pid"]),
        (&json!("created"), &json!(hooked.init()))
    );
    succeeds(&hooked.runc(&["start", "c1"]));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..5]);
    succeeds(&hooked.runc(&["kill", "c1", "KILL"]));
    wait_until("the stop is reported", || has_received(&received, "StopContainer c1"));
    assert_eq!(*received.lock().unwrap(), life("c1")[..6]);
    succeeds(&hooked.runc(&["delete", "c1"]));
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
    assert_eq!(hooked.host.admin(&["status"])["failures"], json!([]));
}

#[test]
fn a_short_run_has_all_events() {
    let Some(hooked) = Hooked::new(&["sh", "-c", "exit 3"], "") else { return };
    let received = hooked.host.plugin("10", "witness", Script::default());
    for _round in 0..2 {
        let output = hooked.runc(&["run", "--bundle", "BUNDLE", "c1"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        hooked.nothing_is_left();
        assert_eq!(std::mem::take(&mut *received.lock().unwrap()), life("c1"));
    }
}

#[test]
fn a_container_that_ends_at_once_has_all_events() {
    let Some(hooked) = Hooked::new(&["true"], "") else { return };
    let received = hooked.host.plugin("10", "witness", Script::default());
    for _round in 0..2 {
        succeeds(&hooked.create());
        succeeds(&hooked.runc(&["start", "c1"]));
        while !hooked.runc(&["delete", "c1"]).status.success() {}
        hooked.nothing_is_left();
        assert_eq!(std::mem::take(&mut *received.lock().unwrap()), life("c1"));
    }
}

#[test]
fn a_container_without_a_start_has_no_start_event() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let received = hooked.host.plugin("10", "witness", Script::default());
    succeeds(&hooked.create());
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life_without(&["StartContainer", "PostStart"]));
}

/// The daemon's first check of the container's folder comes after `runc delete` has removed it.
#[test]
fn a_container_deleted_while_the_daemon_is_busy_is_not_started() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let received = hooked.host.plugin("10", "witness", Script::default());
    succeeds(&hooked.create());
    let daemon = nix::unistd::Pid::from_raw(hooked.host.daemon_pid());
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let deleted = hooked.runc(&["delete", "--force", "c1"]);
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGCONT).unwrap();
    succeeds(&deleted);
    hooked.nothing_is_left();
    let received = received.lock().unwrap();
    let is = |event: &str| received.iter().filter(|line| line.starts_with(event)).count();
    // PostCreateContainer depends on whether the daemon saw the runtime succeed.
    assert_eq!((is("CreateContainer"), is("StopContainer"), is("RemoveContainer")), (1, 1, 1));
    assert_eq!((is("StartContainer"), is("PostStartContainer")), (0, 0), "{received:?}");
}

#[test]
fn a_refusal_fails_the_runtimes_create_without_leftovers() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let guard = Script { refuses: Some("not signed"), ..Script::default() };
    let received = hooked.host.plugin("90", "guard", guard);
    fails(&hooked.create(), &["nri-runc: cannot create c1: 90-guard", "not signed"]);
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life_without(&["Start", "Post"]));
}

#[test]
fn cgroup_resources_are_set_and_explained() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let _plugin = hooked.host.plugin("10", "limit", limits_processes(77));
    succeeds(&hooked.create());
    let name = hooked.real.cgroup("c1");
    let files =
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|top| format!("{top}{name}/pids.max"));
    let limit = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    assert_eq!(limit.as_deref().map(str::trim), Some("77"));
    let explained = hooked.host.admin(&["explain", "c1"]);
    let change = &explained["changes"][0];
    assert_eq!(
        (&change["plugin"], &change["field"]),
        (&json!("10-limit"), &json!("cgroup:pids.max"))
    );
    assert_eq!(hooked.host.read("bundle/config.json"), hooked.document);
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
}

#[test]
fn a_change_that_a_hook_cannot_make_refuses_in_one_line() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let received = hooked.host.plugin("10", "env", sets("HELLO", "there"));
    let line = "10-env sets Env[HELLO], which cannot be changed from an OCI hook: config.json was already read";
    fails(&hooked.create(), &["cannot create c1", line, "make nri-runc the engine's runtime"]);
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life_without(&["Start", "Post"]));
    assert_eq!(hooked.host.admin(&["status"])["failures"][0]["plugin"], "10-env");
}

#[test]
fn a_create_that_fails_after_its_hooks_is_undone() {
    let Some(hooked) = Hooked::new(&["no-such-program"], "") else { return };
    let received = hooked.host.plugin("10", "witness", Script::default());
    fails(&hooked.create(), &["no-such-program"]);
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life_without(&["Start", "Post"]));
}

#[test]
fn after_a_kill_the_next_daemon_reports_start_and_end() {
    let Some(mut hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    succeeds(&hooked.create());
    wait_until("the create is settled", || {
        hooked.host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    hooked.host.kill_daemon();
    hooked.host.start_daemon();
    let received = hooked.host.plugin("10", "witness", Script::default());
    succeeds(&hooked.runc(&["start", "c1"]));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
    let wanted = [&["Synchronize c1".to_owned()], &life("c1")[3..]].concat();
    assert_eq!(*received.lock().unwrap(), wanted);
}

#[test]
fn without_a_daemon_a_hook_fails_or_its_container_is_adopted() {
    let Some(mut hooked) = Hooked::without_daemon(&["sleep", "1000"], "autostart = false") else {
        return;
    };
    succeeds(&hooked.create());
    hooked.host.start_daemon();
    let received = hooked.host.plugin("10", "witness", Script::default());
    assert_eq!(*received.lock().unwrap(), ["Synchronize c1"]);
    succeeds(&hooked.runc(&["start", "c1"]));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
    drop(hooked);
    let fail = "autostart = false\non_daemon_failure = \"fail\"";
    let Some(hooked) = Hooked::without_daemon(&["sleep", "1000"], fail) else { return };
    fails(&hooked.create(), &["nri-runc: cannot create c1: reaching the daemon"]);
    assert!(!hooked.host.path("root/c1").exists());
}

#[test]
fn the_daemon_is_started_by_a_hook_that_needs_it() {
    let Some(hooked) = Hooked::without_daemon(&["sleep", "1000"], "") else { return };
    succeeds(&hooked.create());
    assert_eq!(hooked.host.admin(&["pods"])[0]["containers"][0]["id"], "c1");
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
}

#[test]
fn while_disabled_a_hook_contacts_nothing() {
    let Some(hooked) = Hooked::without_daemon(&["sleep", "1000"], "[nri]\ndisable = true\n") else {
        return;
    };
    succeeds(&hooked.create());
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    assert!(!hooked.host.path("run").exists());
}
