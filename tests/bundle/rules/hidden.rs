// SPDX-License-Identifier: Apache-2.0
//! `hide = true`: the plugin receives no pod and no container by any means, and cannot distinguish
//! a hidden container from one that does not exist; other plugins are unaffected.

use std::sync::{Arc, Mutex};

use nri_runc::plugin::api;
use serde_json::json;
use test_support::adjustments::{sets, update_of};
use test_support::scripted_plugin::has_received;
use test_support::{Script, TestHost, fails, started, succeeds, wait_until};

use super::host::{Asker, lay_down, pod_container};

const SECRET: &str =
    "[[rule]]\nname = \"secret\"\nnamespaces = [\"vault\"]\nplugins = [\"nosy\"]\nhide = true\n";

/// Every event up to RemoveContainer, and validation.
const WITH_VALIDATION: i32 = 0x7ff | 1 << 13;

fn received_of(received: &Mutex<Vec<String>>, id: &str) -> Vec<String> {
    received.lock().unwrap().iter().filter(|line| line.ends_with(id)).cloned().collect()
}

fn whole_life(host: &TestHost, namespace: &str, id: &str) {
    let bundle = pod_container(host, namespace, id);
    succeeds(&host.create_from(&bundle, id));
    succeeds(&host.verb(&["start", id]));
    succeeds(&host.verb(&["delete", "--force", id]));
}

#[test]
fn a_plugin_receives_no_event_of_a_hidden_pod() {
    let host = started(SECRET);
    let script = Script { events: Some(WITH_VALIDATION), ..sets("HELLO", "nosy") };
    let nosy = host.plugin("10", "nosy", script);
    let other = host.plugin("20", "other", Script::default());
    whole_life(&host, "vault", "hidden");
    whole_life(&host, "dev", "open");
    for id in ["hidden", "open"] {
        wait_until("all is reported", || {
            has_received(&other, &format!("RemovePodSandbox pod-of-{id}"))
        });
        assert_eq!(received_of(&other, id).len(), 9, "{:?}", other.lock().unwrap());
    }
    wait_until("all is reported", || has_received(&nosy, "RemovePodSandbox pod-of-open"));
    assert_eq!(received_of(&nosy, "hidden"), [""; 0]);
    assert!(has_received(&nosy, "ValidateContainerAdjustment open"));
}

#[test]
fn a_new_plugin_receives_neither_hidden_pods_nor_their_ends() {
    let host = started(SECRET);
    for (namespace, id) in [("vault", "hidden"), ("dev", "open")] {
        let bundle = pod_container(&host, namespace, id);
        succeeds(&host.create_from(&bundle, id));
    }
    let pods = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&pods);
    let on_request: test_support::scripted_plugin::OnRequest = Arc::new(move |event, request| {
        let request = request.downcast_ref::<api::SynchronizeRequest>();
        if let Some(request) = request.filter(|_| event == "Synchronize") {
            noted.lock().unwrap().extend(request.pods.iter().map(|pod| pod.name.clone()));
        }
    });
    let nosy =
        host.plugin("10", "nosy", Script { on_request: Some(on_request), ..Script::default() });
    assert_eq!(*pods.lock().unwrap(), ["pod-of-open"]);
    for id in ["hidden", "open"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
    wait_until("the end is reported", || has_received(&nosy, "RemovePodSandbox pod-of-open"));
    assert_eq!(received_of(&nosy, "hidden"), [""; 0]);
    assert!(has_received(&nosy, "Synchronize open"));
}

#[test]
fn a_hidden_container_looks_like_a_missing_one() {
    let host = started(SECRET);
    let (asker, script) = Asker::new();
    let _plugin = host.plugin("10", "nosy", script);
    let bundle = pod_container(&host, "vault", "hidden");
    succeeds(&host.create_from(&bundle, "hidden"));
    let limit = json!({"memory": {"limit": 4096}});
    let failed = asker.ask(
        vec![update_of("hidden", &limit), update_of("nothing", &limit)],
        &["hidden", "nothing"],
    );
    assert_eq!(failed, ["hidden", "nothing"]);
    let explained = host.admin(&["explain", "hidden"]);
    let reasons = explained["skipped"].to_string();
    assert!(
        reasons.contains("may not know of container hidden (rule \\\"secret\\\")"),
        "{reasons}"
    );
    assert_eq!(explained["hidden_from"], json!([{"plugin": "10-nosy", "rule": "secret"}]));
    assert_eq!((&explained["changes"], &explained["owners"]), (&json!([]), &json!({})));
}

/// A validator receives the updates that others request for other containers, except for containers
/// that are hidden from it.
#[test]
fn a_validator_sees_no_updates_of_hidden_containers() {
    let host = started(SECRET);
    let limit = json!({"memory": {"limit": 4096}});
    let update = vec![update_of("hidden", &limit), update_of("open", &limit)];
    let script = Script { update, only: Some("last"), ..sets("HELLO", "there") };
    let _plugin = host.plugin("10", "a", script);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let on_request: test_support::scripted_plugin::OnRequest = Arc::new(move |_event, request| {
        if let Some(asked) = request.downcast_ref::<api::ValidateContainerAdjustmentRequest>() {
            let mut noted = noted.lock().unwrap();
            noted.extend(asked.update.iter().map(|update| update.container_id.clone()));
            noted.extend(asked.owners.owners.keys().map(|id| format!("owners of {id}")));
        }
    });
    let events = Some(WITH_VALIDATION);
    let _plugin = host.plugin(
        "20",
        "nosy",
        Script { events, on_request: Some(on_request), ..Script::default() },
    );
    for (namespace, id) in [("vault", "hidden"), ("dev", "open"), ("dev", "last")] {
        let bundle = pod_container(&host, namespace, id);
        succeeds(&host.create_from(&bundle, id));
    }
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["open", "owners of last", "owners of open"]);
}

#[test]
fn a_required_plugin_that_cannot_see_the_pod_refuses_it() {
    let lines = "[plugin.nosy]\nrequired = true\n[[rule]]\nnamespaces = [\"vault\", \"kube-system\"]\nhide = true\n";
    let host = started(lines);
    let _plugin = host.plugin("10", "nosy", Script::default());
    let bundle = pod_container(&host, "vault", "c1");
    let wanted = "a rule hides this pod from the required plugin nosy";
    fails(&host.create_from(&bundle, "c1"), &["cannot create c1", wanted, "exempt_namespaces"]);
    let bundle = pod_container(&host, "kube-system", "c2");
    succeeds(&host.create_from(&bundle, "c2"));
    let bundle = pod_container(&host, "dev", "c3");
    succeeds(&host.create_from(&bundle, "c3"));
}

#[test]
fn a_forged_namespace_neither_hides_a_pod_nor_permits_changes() {
    let host = started(SECRET);
    let nosy = host.plugin("10", "nosy", Script::default());
    let bundle = lay_down(&host, "vault", "forged", "forged");
    succeeds(&host.create_from(&bundle, "forged"));
    assert!(has_received(&nosy, "CreateContainer forged"), "it does not escape the plugin");
    let host = started(SECRET);
    let _plugin = host.plugin("10", "nosy", sets("HELLO", "there"));
    let bundle = lay_down(&host, "vault", "forged", "forged");
    fails(&host.create_from(&bundle, "forged"), &["may not set Env", "(rule \"secret\")"]);
}

#[test]
fn a_reload_hides_later_pods_and_the_next_one_shows_them() {
    let host = started("");
    let nosy = host.plugin("10", "nosy", Script::default());
    let create = |id: &str| {
        let bundle = pod_container(&host, "vault", id);
        succeeds(&host.create_from(&bundle, id));
    };
    let reload = |lines: &str| {
        host.configure(&host.path("fake/runc"), lines);
        succeeds(&host.call(&["nri", "reload"]));
    };
    create("known");
    reload(SECRET);
    create("hidden");
    succeeds(&host.verb(&["delete", "--force", "known"]));
    wait_until("the end is reported", || has_received(&nosy, "RemovePodSandbox pod-of-known"));
    assert_eq!(received_of(&nosy, "hidden"), [""; 0]);
    reload("");
    wait_until("it is to come again", || {
        let row = host.admin(&["plugins"])[0].clone();
        row["state"] == "gone" && row["reason"].to_string().contains("no longer hide pods")
    });
    let again = host.plugin("10", "nosy", Script::default());
    assert!(has_received(&again, "Synchronize hidden"), "{:?}", again.lock().unwrap());
}

/// Adds the time for which creates wait for plugins that may reconnect.
fn waiting(lines: &str, seconds: u32) -> String {
    format!("[nri]\nplugin_registration_timeout = \"{seconds}s\"\n{lines}")
}

#[test]
fn creates_wait_for_a_plugin_that_will_see_more_pods() {
    let host = started(&waiting(SECRET, 60));
    let nosy = host.plugin("10", "nosy", sets("HELLO", "nosy"));
    let create = |id: &str| {
        let bundle = pod_container(&host, "vault", id);
        succeeds(&host.create_from(&bundle, id));
        host.admin(&["explain", id])
    };
    assert_eq!(create("hidden")["changes"], json!([]));
    host.configure(&host.path("fake/runc"), &waiting("", 60));
    succeeds(&host.call(&["nri", "reload"]));
    let bundles: Vec<String> =
        (0..3).map(|n| pod_container(&host, "vault", &format!("c{n}"))).collect();
    std::thread::scope(|scope| {
        for (n, bundle) in bundles.iter().enumerate() {
            let bundle = host.path(bundle).display().to_string();
            let host = &host;
            scope.spawn(move || {
                let id = format!("c{n}");
                let mut create = host.spawn(&["create", "--bundle", &bundle, &id]);
                assert!(create.wait().unwrap().success());
            });
        }
        host.logs(&["requests wait up to", "10-nosy"], 1);
        let again = host.plugin("10", "nosy", sets("HELLO", "nosy"));
        assert!(has_received(&again, "Synchronize hidden"), "{:?}", again.lock().unwrap());
    });
    for n in 0..3 {
        let explained = host.admin(&["explain", &format!("c{n}")]);
        assert_eq!(explained["changes"][0]["plugin"], "10-nosy", "{explained}");
        assert_eq!(explained["hidden_from"], json!([]));
    }
    assert!(!has_received(&nosy, "Synchronize hidden"), "one connection has one Synchronize");
}

#[test]
fn a_create_continues_and_logs_a_timed_out_wait() {
    let host = started(&waiting(SECRET, 1));
    let _plugin = host.plugin("10", "nosy", sets("HELLO", "nosy"));
    let bundle = pod_container(&host, "vault", "hidden");
    succeeds(&host.create_from(&bundle, "hidden"));
    host.configure(&host.path("fake/runc"), &waiting("", 1));
    succeeds(&host.call(&["nri", "reload"]));
    let bundle = pod_container(&host, "vault", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
    let explained = host.admin(&["explain", "c1"]);
    let skipped = &explained["skipped"][0];
    assert_eq!(skipped["plugin"], "10-nosy", "{explained}");
    assert!(skipped["reason"].as_str().unwrap().contains("did not connect in time"), "{explained}");
}

#[test]
fn explain_shows_past_decisions_not_todays_rules() {
    let host = started(SECRET);
    let _nosy = host.plugin("10", "nosy", Script::default());
    let create = |id: &str| {
        let bundle = pod_container(&host, "vault", id);
        succeeds(&host.create_from(&bundle, id));
    };
    let hidden_from = |id: &str| host.admin(&["explain", id])["hidden_from"].clone();
    create("old");
    let decided = json!([{"plugin": "10-nosy", "rule": "secret"}]);
    assert_eq!((hidden_from("old"), hidden_from("pod-of-old")), (decided.clone(), decided.clone()));
    // A plugin that connects later does not receive it either.
    let _late = host.plugin("11", "nosy", Script::default());
    let both = json!([
        {"plugin": "10-nosy", "rule": "secret"}, {"plugin": "11-nosy", "rule": "secret"}]);
    assert_eq!((hidden_from("old"), hidden_from("pod-of-old")), (both.clone(), both.clone()));
    let reload = |lines: &str| {
        host.configure(&host.path("fake/runc"), &waiting(lines, 1));
        succeeds(&host.call(&["nri", "reload"]));
    };
    reload("");
    assert_eq!((hidden_from("old"), hidden_from("pod-of-old")), (both.clone(), both));
    create("open");
    reload(&SECRET.replace("secret", "other"));
    assert_eq!((hidden_from("open"), hidden_from("pod-of-open")), (json!([]), json!([])));
}
