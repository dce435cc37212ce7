// SPDX-License-Identifier: Apache-2.0
//! Unusable records, records of other versions, and records of another boot.

use serde_json::{Value, json};
use test_support::adjustments::sets;
use test_support::{BUNDLE, TestHost, wait_until};

use super::{Script, files, run, shown, started, state, succeeds};

fn check(host: &TestHost, name: &str) -> Vec<Value> {
    let findings = host.admin(&["check"]);
    let findings = findings.as_array().cloned().unwrap_or_default();
    findings.into_iter().filter(|finding| finding["check"] == name).collect()
}

/// Changes a record on disk.
fn alter(path: &std::path::Path, change: impl FnOnce(&mut Value)) {
    let mut record: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut record);
    nri_runc::testing::files::replace(path, record.to_string().as_bytes()).unwrap();
}

/// A daemon that found three of its four records unusable: a partial one, an invalid one, and one
/// of a later version.
fn with_unusable_records() -> TestHost {
    let mut host = started("");
    for id in ["c1", "c2", "c3", "c4"] {
        run(&host, id);
    }
    assert_eq!(host.admin(&["status"])["set_aside"], json!([]));
    assert!(check(&host, "records").is_empty());
    host.kill_daemon();
    let record = |id: &str| {
        let mut all = files(&host, "containers").into_iter();
        all.find(|path| path.display().to_string().contains(&format!("/{id}-"))).unwrap()
    };
    let half = std::fs::read(record("c1")).unwrap();
    nri_runc::testing::files::replace(&record("c1"), &half[..half.len() / 2]).unwrap();
    nri_runc::testing::files::replace(&record("c2"), b"\x00\xff garbage").unwrap();
    alter(&record("c3"), |record| record["schema"] = json!(99));
    host.start_daemon();
    host
}

#[test]
fn unreadable_records_are_set_aside_and_the_rest_is_known() {
    let host = with_unusable_records();
    assert_eq!(state(&host, "c4"), "running");
    assert!(["c1", "c2", "c3"].iter().all(|id| state(&host, id).is_empty()));
    let status = host.admin(&["status"]);
    let aside = status["set_aside"].as_array().unwrap();
    assert_eq!(aside.len(), 3, "{status}");
    assert!(aside[0].as_str().unwrap().contains("state/aside/c1-"), "{status}");
}

#[test]
fn a_record_set_aside_is_a_failure_and_a_log_line() {
    let host = with_unusable_records();
    let failures = host.admin(&["status"])["failures"].to_string();
    assert!(failures.contains("was set aside") && failures.contains("schema 99"), "{failures}");
    host.logs(&["cannot be used and was set aside"], 3);
}

#[test]
fn records_set_aside_are_in_status_and_check_until_removed() {
    let host = with_unusable_records();
    let page = host.call(&["nri", "status"]).stdout;
    let page = String::from_utf8_lossy(&page).into_owned();
    assert_eq!(page.lines().filter(|line| line.starts_with("set aside")).count(), 3, "{page}");
    let findings = check(&host, "records");
    assert_eq!((findings.len(), &findings[0]["ok"]), (1, &json!(false)), "{findings:?}");
    let (detail, hint) = (findings[0]["detail"].to_string(), findings[0]["hint"].to_string());
    assert!(detail.contains("c1-") && hint.contains("state/aside"), "{findings:?}");
    std::fs::remove_dir_all(host.path("run/state/aside")).unwrap();
    assert!(check(&host, "records").is_empty());
}

#[test]
fn containers_with_records_set_aside_are_deleted_unchanged() {
    let host = with_unusable_records();
    for id in ["c1", "c2", "c3", "c4"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
}

#[test]
fn a_pod_with_a_lost_record_is_described_from_its_container() {
    for damaged in [false, true] {
        let mut host = started("");
        let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
        run(&host, "c1");
        let before = host.admin(&["pods"]);
        host.kill_daemon();
        let record = &files(&host, "pods")[0];
        match damaged {
            true => nri_runc::testing::files::replace(record, b"{\"schema\": ").unwrap(),
            false => std::fs::remove_file(record).unwrap(),
        }
        host.start_daemon();
        let received = host.plugin("10", "env", sets("HELLO", "there"));
        let now = host.admin(&["pods"]);
        let seen = |pods: &Value| {
            ["id", "name", "namespace", "state"].map(|member| pods[0][member].clone())
        };
        assert_eq!((seen(&now), state(&host, "c1").as_str()), (seen(&before), "running"));
        assert_eq!(host.admin(&["explain", "c1"])["owners"]["Env[HELLO]"], "10-env");
        succeeds(&host.verb(&["delete", "--force", "c1"]));
        wait_until("its end is reported", || received.lock().unwrap().len() == 5);
        assert_eq!(received.lock().unwrap()[3..], ["StopPodSandbox c1", "RemovePodSandbox c1"]);
    }
}

#[test]
fn a_pod_lost_with_its_container_is_reported_and_blocks_nothing() {
    let mut host = started("");
    run(&host, "c1");
    run(&host, "c2");
    host.kill_daemon();
    std::fs::remove_dir_all(host.path("root/c1")).unwrap();
    files(&host, "pods").iter().for_each(|path| std::fs::remove_file(path).unwrap());
    host.start_daemon();
    host.logs(&["the pod c1 has no record, and the runtime does not know its container"], 1);
    assert_eq!(state(&host, "c2"), "running");
    run(&host, "c3");
}

#[test]
fn a_newer_versions_record_is_used_and_kept_by_an_older_one() {
    let mut host = started("");
    run(&host, "c1");
    host.kill_daemon();
    for kind in ["containers", "pods"] {
        alter(&files(&host, kind)[0], |record| {
            record["schema"] = json!(record["schema"].as_u64().unwrap() + 1);
            record["of_the_future"] = json!({"mood": "fine"});
        });
    }
    host.start_daemon();
    assert_eq!(state(&host, "c1"), "running");
    let received = host.plugin("10", "env", sets("HELLO", "there"));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    wait_until("its end is known", || state(&host, "c1") == "stopped");
    for kind in ["containers", "pods"] {
        let text = std::fs::read_to_string(&files(&host, kind)[0]).unwrap();
        assert!(text.contains("\"mood\":\"fine\""), "{kind}: {text}");
    }
    wait_until("it is reported", || received.lock().unwrap().len() == 2);
    assert_eq!(*received.lock().unwrap(), ["Synchronize c1", "StopContainer c1"]);
    assert_eq!(host.admin(&["status"])["set_aside"], json!([]));
}

#[test]
fn records_of_an_older_version_are_used_after_an_upgrade() {
    let mut host = started("");
    run(&host, "c1");
    host.kill_daemon();
    // Members that the first version did not write.
    let later = [
        "pod_name",
        "pod_namespace",
        "by_hook",
        "created_at",
        "started_at",
        "finished_at",
        "refused_at",
        "exit_code",
        "status_reason",
        "status_message",
        "at_creation",
        "deferred",
        "updating",
        "deleting",
        "made_by",
        "is_found",
    ];
    alter(&files(&host, "containers")[0], |record| {
        later.iter().for_each(|key| drop(record.as_object_mut().unwrap().remove(*key)));
    });
    std::fs::remove_file(host.path("run/state/boot_id")).unwrap();
    std::fs::remove_dir_all(host.path("run/state/kept")).unwrap();
    host.start_daemon();
    assert_eq!(shown(&host, "c1")["found"], false);
    assert_eq!(state(&host, "c1"), "running");
    let received = host.plugin("10", "env", Script::default());
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("no pod is known", || host.admin(&["pods"]) == json!([]));
    wait_until("it is reported", || received.lock().unwrap().len() == 5);
    assert_eq!(received.lock().unwrap()[1..3], ["StopContainer c1", "RemoveContainer c1"]);
}

#[test]
fn a_run_directory_of_an_earlier_boot_counts_as_empty() {
    let mut host = started("");
    let _plugin = host.plugin("10", "env", sets("HELLO", "there"));
    run(&host, "c1");
    host.kill_daemon();
    for kind in ["containers", "pods"] {
        alter(&files(&host, kind)[0], |record| record["boot_id"] = json!("before"));
    }
    host.write("run/state/boot_id", "before");
    host.write("run/state/aside/x.json", "{");
    // The boot ended the container, and cleared the runtime's own directory.
    let pid = host.read("root/c1/pid").trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
    std::fs::remove_dir_all(host.path("root")).unwrap();
    host.start_daemon();
    assert_eq!(host.admin(&["pods"]), json!([]));
    let status = host.admin(&["status"]);
    assert_eq!((&status["set_aside"], &status["failures"]), (&json!([]), &json!([])));
    // No create waits for the earlier plugins, and the engine may create the container again.
    host.write("c1/config.json", BUNDLE);
    succeeds(&host.create_from("c1", "c1"));
    assert_eq!(host.logged(&["requests wait up to"]), 0, "it waited for a plugin");
    assert_eq!(host.read("fake/seen.json"), BUNDLE);
    assert_eq!(files(&host, "containers").len(), 1);
}
