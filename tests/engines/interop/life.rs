// SPDX-License-Identifier: Apache-2.0
//! The built binary and its daemon with a plugin of each version, connected by itself and
//! pre-installed, during the whole lifecycle of a container and its pod.

use serde_json::{Value, json};
use test_support::golang;
use test_support::{TestHost, wait_until};

use super::{by_hand, document, lines, of_each_version, wait_for};

/// A host on which every request of the plugin is valid.
fn world() -> TestHost {
    let host = TestHost::default();
    let furnished = document::furnish_host(&host);
    let patience = "[nri]\nplugin_request_timeout = \"20s\"";
    host.configure(&host.path("fake/runc"), &format!("{furnished}\n{patience}"));
    host.write("bundle/config.json", &document::original().to_string());
    host
}

fn is_synchronized(host: &TestHost) -> bool {
    host.admin(&["plugins"])[0]["state"] == "synchronized"
}

#[track_caller]
fn verb(host: &TestHost, words: &[&str]) {
    let output = host.verb(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a container from creation to removal; checks that the runtime received the plugin's
/// changes.
fn live(host: &TestHost, minor: u32) {
    let created = host.create("c1");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let seen: Value = serde_json::from_str(&host.read("fake/seen.json")).unwrap();
    let differing = differences("", &seen, &document::adjusted(minor));
    assert!(differing.is_empty(), "{differing:#?}");
    verb(host, &["start", "c1"]);
    verb(host, &["update", "--cpu-share", "900", "c1"]);
    let update: Value = serde_json::from_str(&host.read("fake/update.json")).unwrap();
    assert_eq!(update["cpu"]["shares"], 512, "{update}");
    verb(host, &["kill", "c1", "9"]);
    verb(host, &["delete", "c1"]);
    wait_for(&host.path("told"), &["RemovePodSandbox", "c1"]);
}

/// The places where two documents differ, so that a failure shows all of them.
fn differences(place: &str, seen: &Value, wanted: &Value) -> Vec<String> {
    let (Value::Object(seen), Value::Object(wanted)) = (seen, wanted) else {
        let differs = seen != wanted;
        return differs.then(|| format!("{place}: {seen}, not {wanted}")).into_iter().collect();
    };
    let mut keys: Vec<&String> = seen.keys().chain(wanted.keys()).collect();
    keys.sort();
    keys.dedup();
    let of = |key: &String| {
        let (seen, wanted) = (seen.get(key), wanted.get(key));
        let place = format!("{place}.{key}");
        differences(&place, seen.unwrap_or(&Value::Null), wanted.unwrap_or(&Value::Null))
    };
    keys.into_iter().flat_map(of).collect()
}

/// The events of the lifecycle, in order. Validators exist since v0.10.
fn life(minor: u32) -> Vec<Value> {
    let mut received = vec![
        json!({"event": "RunPodSandbox", "pod": "c1"}),
        json!({"event": "CreateContainer", "pod": "c1", "container": "c1", "state": "CONTAINER_UNKNOWN"}),
    ];
    if minor >= 10 {
        received.push(json!({
            "event": "ValidateContainerAdjustment", "pod": "c1", "container": "c1",
            "owner": "10-stub", "plugins": 1,
        }));
    }
    let mut on_request = |event: &str, state: &str| {
        received.push(json!({"event": event, "pod": "c1", "container": "c1", "state": state}));
    };
    on_request("PostCreateContainer", "CONTAINER_CREATED");
    on_request("StartContainer", "CONTAINER_CREATED");
    on_request("PostStartContainer", "CONTAINER_RUNNING");
    on_request("UpdateContainer", "CONTAINER_RUNNING");
    on_request("PostUpdateContainer", "CONTAINER_RUNNING");
    on_request("StopContainer", "CONTAINER_STOPPED");
    on_request("RemoveContainer", "CONTAINER_STOPPED");
    // The stub of v0.2.0 does not pass on the engine's values of an update.
    let shares = if minor >= 4 { 900 } else { 0 };
    let is_update = |line: &&mut Value| line["event"] == "UpdateContainer";
    received.iter_mut().filter(is_update).for_each(|line| line["shares"] = json!(shares));
    received.push(json!({"event": "StopPodSandbox", "pod": "c1"}));
    received.push(json!({"event": "RemovePodSandbox", "pod": "c1"}));
    received
}

/// The lines about a lifecycle, without those of another container and of the plugin's own
/// requests.
fn about_c1(received: &[Value]) -> Vec<Value> {
    received.iter().filter(|line| line["pod"] == "c1").cloned().collect()
}

/// The events of this lifecycle that plugins before v0.12 receive as StateChange.
const DEPRECATED: [&str; 8] = [
    "PostCreateContainer",
    "PostStartContainer",
    "PostUpdateContainer",
    "RemoveContainer",
    "RemovePodSandbox",
    "RunPodSandbox",
    "StartContainer",
    "StopPodSandbox",
];

fn end_daemon(host: &TestHost) {
    let daemon = nix::unistd::Pid::from_raw(host.daemon_pid());
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGTERM).unwrap();
}

/// The responses to the plugin's own requests from inside a handler, which must block no other
/// peer; they are carried out, and the plugin receives the events.
fn answers(received: &[Value]) -> Vec<Value> {
    received.iter().filter(|line| line["event"] == "UpdateContainers").cloned().collect()
}

fn connects_adjusts_and_receives_a_whole_life(version: &str, minor: u32) {
    let Some(program) = golang::program(&format!("stub-{version}")) else { return };
    let mut host = world();
    host.start_daemon();
    assert!(host.create("old").status.success());
    let received = host.path("told");
    let _plugin = by_hand(&program, &host.path("nri.sock"), &received, "all");
    wait_until("the plugin is synchronized", || is_synchronized(&host));
    let status = host.admin(&["plugins"])[0].clone();
    assert_eq!((&status["index"], &status["name"]), (&json!("10"), &json!("stub")));
    live(&host, minor);
    let requests = lines(&received);
    assert_eq!(requests[0]["event"], "Configure");
    assert_eq!(requests[0]["config"], "");
    assert_eq!(requests[0]["runtime"], "nri-runc");
    assert_eq!(requests[0]["version"], format!("v{}", env!("CARGO_PKG_VERSION")));
    let all = json!({"event": "Synchronize", "pods": ["old"], "containers": ["old"]});
    assert_eq!(requests[1], all);
    assert_eq!(about_c1(&requests), life(minor));
    let answer =
        |id: &str| json!({"event": "UpdateContainers", "asked": id, "failed": [], "error": ""});
    assert_eq!(answers(&requests), [answer("old"), answer("c1")]);
    // The daemon reports what the reference warns of: each event that has a separate method since
    // v0.12.
    let deprecated = host.admin(&["plugins"])[0]["deprecated_events"].clone();
    let log = host.logged(&["10-stub takes ", " as the deprecated StateChange"]);
    let wanted = if minor >= 12 { json!([]) } else { json!(DEPRECATED) };
    assert_eq!((deprecated, log), (wanted.clone(), wanted.as_array().unwrap().len()));
    end_daemon(&host);
    wait_for(&received, &["Closed"]);
    let ends: Vec<Value> =
        lines(&received).iter().rev().take(2).map(|l| l["event"].clone()).collect();
    assert_eq!(ends, ["Closed", "Shutdown"]);
}
of_each_version!(connects_adjusts_and_receives_a_whole_life);

fn is_launched_and_configured_and_receives_a_whole_life(version: &str, minor: u32) {
    let Some(program) = golang::program(&format!("stub-{version}")) else { return };
    let mut host = world();
    std::fs::create_dir_all(host.path("plugins")).unwrap();
    std::os::unix::fs::symlink(program, host.path("plugins/10-stub")).unwrap();
    let received = host.path("told");
    host.write("10-stub.conf", &received.display().to_string());
    host.start_daemon();
    wait_until("the plugin is synchronized", || is_synchronized(&host));
    live(&host, minor);
    end_daemon(&host);
    wait_for(&received, &["Shutdown"]);
    let requests = lines(&received);
    let environment = json!({
        "NRI_PLUGIN_NAME": "stub", "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3",
    });
    assert_eq!(requests[0]["event"], "Configure");
    assert_eq!(requests[0]["config"], received.display().to_string());
    assert_eq!(requests[0]["environment"], environment);
    assert_eq!((&requests[0]["variables"], &requests[0]["arguments"]), (&json!(3), &json!(1)));
    assert_eq!(requests[1], json!({"event": "Synchronize", "pods": [], "containers": []}));
    assert_eq!(about_c1(&requests), life(minor));
}
of_each_version!(is_launched_and_configured_and_receives_a_whole_life);
