// SPDX-License-Identifier: Apache-2.0
//! An engine that repeats its values with an `update`: plugins that own some of them receive the
//! engine's, their values stay unless they answer, and that is noted once.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::adjustments::{owns, update_of};
use test_support::scripted_plugin::OnRequest;
use test_support::{BUNDLE, Script, TestHost, fails, started, succeeds, wait_until};

use super::{count, runtime_got, settled, update};

/// Creates a container to which its engine gives 128 MiB and half a processor.
fn create(host: &TestHost) {
    let engine = json!({
        "cpu": {"shares": 1024, "quota": 50_000, "period": 100_000},
        "memory": {"limit": 134_217_728},
    });
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["linux"]["resources"] = engine;
    host.write("bundle/config.json", &document.to_string());
    succeeds(&host.create("c1"));
    settled(host);
}

/// Records the resources of each UpdateContainer.
fn noting(script: Script) -> (Arc<Mutex<Vec<api::LinuxResources>>>, Script) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let on_request: OnRequest = Arc::new(move |_event, request| {
        if let Some(request) = request.downcast_ref::<api::UpdateContainerRequest>() {
            noted.lock().unwrap().push(request.linux_resources.clone().unwrap_or_default());
        }
    });
    (asked, Script { on_request: Some(on_request), ..script })
}

fn memory() -> Value {
    json!({"memory": {"limit": 134_217_728}})
}

#[test]
fn plugins_receive_a_repeated_value_and_the_owners_stays() {
    let host = started("");
    let (asked, script) = noting(owns(&json!({"memory": {"limit": 67_108_864}})));
    let received = host.plugin("10", "half", script);
    create(&host);
    succeeds(&update(&host, &memory()));
    assert_eq!(runtime_got(&host)["memory"]["limit"], 67_108_864);
    wait_until("the success is reported", || count(&received, "PostUpdateContainer c1") == 1);
    let asked = asked.lock().unwrap().clone();
    let [resources] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(resources.memory.limit.value, 134_217_728, "the engine's own value");
    assert_eq!((resources.cpu.shares.value, resources.devices.len()), (1024, 0));
    let explained = host.admin(&["explain", "c1"]);
    let repeated = &explained["repeated"][0];
    assert_eq!(repeated["field"], "linux.resources.memory.limit", "{explained}");
    let values = (&repeated["engine"], &repeated["value"], &repeated["plugin"]);
    assert_eq!(values, (&json!(134_217_728), &json!(67_108_864), &json!("10-half")));
    let page = host.call(&["nri", "explain", "c1"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    let line = "linux.resources.memory.limit = 134217728; 67108864, which 10-half set, stays";
    assert!(page.contains(line), "{page}");
}

#[test]
fn kubelets_repetitions_are_noted_once_and_write_no_record() {
    let host = started("[log]\nlevel = \"info\"\n");
    let received = host.plugin("10", "pin", owns(&json!({"cpu": {"shares": 77}})));
    create(&host);
    let record = || {
        let entries = std::fs::read_dir(host.path("run/state/containers")).unwrap().flatten();
        let files: Vec<_> = entries.map(|entry| entry.metadata().unwrap().ino()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files
    };
    let request = json!({"cpu": {"shares": 1024, "cpus": ""}});
    let repeat = |times| {
        succeeds(&update(&host, &request));
        wait_until("the success is reported", || {
            count(&received, "PostUpdateContainer c1") == times
        });
        assert_eq!(runtime_got(&host)["cpu"]["shares"], 77);
    };
    repeat(1);
    let before = record();
    (2..=4).for_each(repeat);
    assert_eq!(record(), before, "the record was replaced");
    host.logs(&["c1", "repeats linux.resources.cpu.shares = 1024", "77", "10-pin"], 1);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["repeated"].as_array().map(Vec::len), Some(1), "{explained}");
    // An engine's update with a new value is treated as a change by the engine, not as a repeated
    // value.
    succeeds(&update(&host, &json!({"cpu": {"shares": 512}})));
    wait_until("it is settled", || count(&received, "PostUpdateContainer c1") == 5);
    assert_eq!(runtime_got(&host)["cpu"]["shares"], 512);
    assert_eq!(host.admin(&["explain", "c1"])["repeated"], json!([]));
}

#[test]
fn a_response_to_a_repeated_update_keeps_derived_swap() {
    let host = started("");
    let answer = json!({"memory": {"limit": 100_663_296}, "unified": {"a.b": "1"}});
    let updates = vec![update_of("c1", &answer)];
    let script = Script { updates, ..owns(&json!({"memory": {"limit": 67_108_864}})) };
    let received = host.plugin("10", "half", script);
    create(&host);
    succeeds(&update(&host, &json!({"memory": {"limit": 134_217_728, "swap": 134_217_728}})));
    let limits = json!({"limit": 100_663_296, "swap": 100_663_296});
    assert_eq!(runtime_got(&host)["memory"], limits);
    wait_until("the success is reported", || count(&received, "PostUpdateContainer c1") == 1);
    let explained = host.admin(&["explain", "c1"]);
    let owners = json!({"MemLimit": "10-half", "CgroupsUnified[a.b]": "10-half"});
    assert_eq!((&explained["owners"], &explained["repeated"]), (&owners, &json!([])));
}

#[test]
fn a_refused_repetition_fails_and_changes_nothing() {
    let host = started("");
    let (refuses, at) = (Some("not now"), Some("UpdateContainer".to_owned()));
    let script = Script { refuses, at, ..owns(&json!({"memory": {"limit": 67_108_864}})) };
    let _plugin = host.plugin("10", "guard", script);
    create(&host);
    fails(&update(&host, &memory()), &["cannot update c1", "10-guard refused: not now"]);
    assert!(!host.path("fake/update.json").exists());
    assert_eq!(host.admin(&["explain", "c1"])["repeated"], json!([]));
}

#[test]
fn a_repetition_that_failed_is_not_noted() {
    let host = started("");
    let _plugin = host.plugin("10", "half", owns(&json!({"memory": {"limit": 67_108_864}})));
    create(&host);
    host.write("fake/fail-update", "");
    assert!(!update(&host, &memory()).status.success());
    assert_eq!(host.admin(&["explain", "c1"])["repeated"], json!([]));
}

#[test]
fn a_repeated_value_without_an_owner_sends_no_request() {
    let host = started("");
    let received = host.plugin("10", "quiet", Script::default());
    create(&host);
    let request = memory();
    succeeds(&update(&host, &request));
    assert_eq!(runtime_got(&host), request, "it is passed on as it came");
    assert_eq!(count(&received, "UpdateContainer"), 0);
}

#[test]
fn a_new_quota_keeps_the_period_that_a_plugin_owns() {
    let host = started("");
    let received = host.plugin("10", "slow", owns(&json!({"cpu": {"period": 60_000}})));
    create(&host);
    // containerd always sends its period too.
    succeeds(&update(&host, &json!({"cpu": {"quota": 40_000, "period": 100_000}})));
    let got = runtime_got(&host);
    assert_eq!((&got["cpu"]["quota"], &got["cpu"]["period"]), (&json!(40_000), &json!(60_000)));
    wait_until("the success is reported", || count(&received, "PostUpdateContainer c1") == 1);
    let explained = host.admin(&["explain", "c1"]);
    assert_eq!(explained["owners"], json!({"CPUPeriod": "10-slow"}), "{explained}");
    assert_eq!(explained["repeated"][0]["field"], "linux.resources.cpu.period", "{explained}");
    // A period that the engine changes belongs to the engine again.
    succeeds(&update(&host, &json!({"cpu": {"quota": 40_000, "period": 80_000}})));
    assert_eq!(runtime_got(&host)["cpu"]["period"], 80_000);
}

#[test]
fn a_request_is_read_as_runc_reads_it() {
    let host = started("");
    let received = host.plugin("10", "half", owns(&json!({"cpu": {"shares": 77}})));
    create(&host);
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", "c1"];
    let request =
        "{\"Memory\":{\"LIMIT\":1},\"memory\":{\"limit\":4096},\"cpu\":{\"\u{17f}hares\":9}} {}";
    succeeds(&host.call_with(&words, request));
    let got = runtime_got(&host);
    let values = (&got["memory"]["limit"], &got["cpu"]["shares"], got.get("Memory"));
    assert_eq!(values, (&json!(4096), &json!(9), None), "{got}");
    assert_eq!(count(&received, "UpdateContainer c1"), 1);
}
