// SPDX-License-Identifier: Apache-2.0
//! The results that a plugin receives for its updates: applied, failed, no longer in force. The
//! daemon does not try repeatedly failing updates each time.

use nri_plugin::api::extension::{UpdateOutcome, UpdateResult};
use nri_plugin::{ExtensionEvent, PluginHandle, Update, Updates, api};
use serde_json::json;
use test_support::exec_plugin::ExecPlugin;
use test_support::{TestHost, started, succeeds, wait_until};

use super::plugins::connect;
use crate::updates::{settled, update as engine_updates};

fn listening() -> ExecPlugin {
    ExecPlugin::subscribed(&[ExtensionEvent::UPDATE_RESULTS])
}

/// A host with a container `c1` and this plugin as `10-a`.
fn with(plugin: &ExecPlugin) -> (TestHost, PluginHandle) {
    let host = started("");
    succeeds(&host.create("c1"));
    settled(&host);
    let handle = connect(&host, plugin, "10-a");
    (host, handle)
}

/// Requests shares for a container; returns the failed updates.
fn ask(handle: &PluginHandle, container: &str, shares: u64) -> Vec<api::ContainerUpdate> {
    ask_all(handle, &[container], shares)
}

fn ask_all(handle: &PluginHandle, all: &[&str], shares: u64) -> Vec<api::ContainerUpdate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let update = |container: &&str| -> Update { Update::of(container).cpu_shares(shares) };
    let updates: Updates = all.iter().map(update).collect();
    runtime.block_on(handle.update(updates)).unwrap()
}

/// Waits for `count` results of the plugin.
#[track_caller]
fn results(plugin: &ExecPlugin, count: usize) -> Vec<UpdateResult> {
    wait_until("the results are there", || plugin.results.lock().unwrap().len() >= count);
    plugin.results.lock().unwrap().clone()
}

#[test]
fn an_applied_update_is_reported_with_its_container_and_request() {
    let plugin = listening();
    let (_host, handle) = with(&plugin);
    assert!(ask(&handle, "c1", 77).is_empty());
    let [result] = &results(&plugin, 1)[..] else { panic!() };
    assert_eq!(result.outcome, UpdateOutcome::UPDATE_APPLIED.into());
    assert_eq!((result.container_id.as_str(), result.event.as_str()), ("c1", "UpdateContainers"));
    assert_eq!((result.reason.as_str(), result.field.as_str()), ("", ""));
}

#[test]
fn a_failed_update_is_reported_with_its_reason() {
    let plugin = listening();
    let (host, handle) = with(&plugin);
    assert_eq!(ask(&handle, "nobody", 77).len(), 1);
    host.write("fake/fail-update", "");
    assert_eq!(ask(&handle, "c1", 77).len(), 1);
    for (result, id, why) in results(&plugin, 2)
        .iter()
        .zip([("nobody", "this container is unknown"), ("c1", "runtime says no")])
        .map(|(result, (id, why))| (result, id, why))
    {
        assert_eq!(result.outcome, UpdateOutcome::UPDATE_FAILED.into(), "{result}");
        assert!(result.container_id == id && result.reason.contains(why), "{result}");
    }
}

#[test]
fn a_value_changed_by_the_engine_or_another_plugin_is_reported() {
    let plugin = listening();
    let (host, handle) = with(&plugin);
    ask(&handle, "c1", 77);
    let second = listening();
    let other = connect(&host, &second, "20-b");
    ask(&other, "c1", 88);
    let changed = results(&plugin, 2)[1].clone();
    assert_eq!(changed.outcome, UpdateOutcome::UPDATE_CHANGED.into());
    assert_eq!((changed.field.as_str(), changed.changed_by.as_str()), ("CPUShares", "20-b"));
    succeeds(&engine_updates(&host, &json!({"cpu": {"shares": 1000}})));
    let changed = results(&second, 2)[1].clone();
    assert_eq!((changed.field.as_str(), changed.changed_by.as_str()), ("CPUShares", "engine"));
    assert_eq!(plugin.results.lock().unwrap().len(), 2, "it had lost it before");
}

#[test]
fn a_plugin_that_did_not_subscribe_receives_no_result() {
    let plugin = ExecPlugin::subscribed(&[ExtensionEvent::POST_EXEC]);
    let (host, handle) = with(&plugin);
    let second = listening();
    let other = connect(&host, &second, "20-b");
    ask(&handle, "c1", 77);
    ask(&other, "c1", 88);
    results(&second, 1);
    assert!(plugin.results.lock().unwrap().is_empty());
}

#[test]
fn repeatedly_failing_updates_are_throttled_until_one_succeeds() {
    let plugin = listening();
    let (host, handle) = with(&plugin);
    host.write("fake/fail-update", "");
    let is_paused =
        |result: &UpdateResult| result.reason.contains("times in a row and is not tried");
    let mut asked = 0;
    wait_until("one is not tried", || {
        assert_eq!(ask(&handle, "c1", 77).len(), 1);
        asked += 1;
        results(&plugin, asked).last().is_some_and(is_paused)
    });
    let results = plugin.results.lock().unwrap().clone();
    assert!(results.iter().take(4).all(|result| result.reason.contains("runtime says no")));
    assert!(host.admin(&["explain", "c1"])["skipped"].to_string().contains("times in a row"));
    // Neither another container nor another plugin is delayed.
    let second = listening();
    let other = connect(&host, &second, "20-b");
    std::fs::remove_file(host.path("fake/fail-update")).unwrap();
    assert!(ask(&other, "c1", 88).is_empty());
    succeeds(&host.create("c2"));
    let failed = ask_all(&handle, &["c1", "c2"], 78);
    assert!(failed.iter().all(|update| update.container_id == "c1"), "{failed:?}");
    wait_until("it is tried again", || ask(&handle, "c1", 77).is_empty());
    assert!(ask(&handle, "c1", 78).is_empty(), "a success ends the pauses");
}
