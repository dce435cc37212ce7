// SPDX-License-Identifier: Apache-2.0
//! Hooks beside the wrapper: no event is sent twice, and calls that bypass the wrapper are
//! detected.

use serde_json::json;
use test_support::adjustments::sets;
use test_support::{Script, wait_until};

use super::{Hooked, has_received, life, succeeds};

#[test]
fn a_hook_repeats_no_event_of_the_wrapper() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let received = hooked.host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&hooked.host.create("c1"));
    let explained = hooked.host.admin(&["explain", "c1"]);
    assert_eq!(explained["changes"][0]["field"], "process.env[HELLO]", "{explained}");
    succeeds(&hooked.host.verb(&["start", "c1"]));
    succeeds(&hooked.host.verb(&["kill", "c1", "KILL"]));
    wait_until("the stop is reported", || has_received(&received, "StopContainer c1"));
    succeeds(&hooked.host.verb(&["delete", "c1"]));
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
    let status = hooked.host.admin(&["status"]);
    assert_eq!(status["failures"], json!([]));
    // prestart, createRuntime, poststart, poststop.
    assert_eq!(status["requests"]["hook"], 4, "{status}");
}

#[test]
fn a_run_by_the_wrapper_has_its_events_once() {
    let Some(hooked) = Hooked::new(&["sh", "-c", "exit 3"], "") else { return };
    let received = hooked.host.plugin("10", "env", sets("HELLO", "there"));
    let bundle = hooked.host.path("bundle").display().to_string();
    let output = hooked.host.verb(&["run", "--bundle", &bundle, "c1"]);
    assert_eq!(output.status.code(), Some(3));
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn a_container_removed_without_the_wrapper_is_noticed_at_once() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    let received = hooked.host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&hooked.host.create("c1"));
    succeeds(&hooked.host.verb(&["start", "c1"]));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer c1"));
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
    assert_eq!(*received.lock().unwrap(), life("c1"));
    // The engine's delete comes late.
    succeeds(&hooked.host.verb(&["delete", "--force", "c1"]));
    assert_eq!(*received.lock().unwrap(), life("c1"));
}

#[test]
fn an_id_reused_without_the_wrapper_is_two_containers() {
    let Some(hooked) = Hooked::new(&["sleep", "1000"], "") else { return };
    succeeds(&hooked.host.create("c1"));
    wait_until("the create is settled", || {
        hooked.host.admin(&["pods"])[0]["containers"][0]["state"] == "created"
    });
    let received = hooked.host.plugin("10", "witness", Script::default());
    // No plugin receives this end, because plugins are disabled.
    succeeds(&hooked.host.call(&["nri", "disable"]));
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    succeeds(&hooked.host.call(&["nri", "enable"]));
    succeeds(&hooked.create());
    wait_until("the second creation is reported", || {
        has_received(&received, "PostCreateContainer c1")
    });
    let mut wanted = vec!["Synchronize c1".to_owned()];
    wanted.extend_from_slice(&life("c1")[5..]);
    wanted.extend_from_slice(&life("c1")[..3]);
    assert_eq!(*received.lock().unwrap(), wanted);
    succeeds(&hooked.runc(&["delete", "--force", "c1"]));
    hooked.nothing_is_left();
}
