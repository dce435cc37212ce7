// SPDX-License-Identifier: Apache-2.0
//! A container whose engine files cannot be found: it runs, and the log, `status` and `check`
//! report it.

use serde_json::{Value, json};
use test_support::{BUNDLE, TestHost};

use crate::succeeds;

const MOBY: &str = "run-docker/io.containerd.runtime.v2.task/moby";

fn docker_container(host: &TestHost, id: &str) {
    std::fs::create_dir_all(host.path(&format!("{MOBY}/{id}/rootfs"))).unwrap();
    host.write(&format!("{MOBY}/{id}/config.json"), BUNDLE);
    succeeds(&host.create_from(&format!("{MOBY}/{id}"), id));
}

fn finding(host: &TestHost) -> Option<Value> {
    let output = host.call(&["nri", "--json", "check"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all.as_array().unwrap().iter().find(|row| row["check"] == "engine docker").cloned()
}

#[test]
fn a_missing_engine_fact_is_in_status_check_and_the_log() {
    let mut host = TestHost::default();
    // A host without a Docker daemon.
    let host_root = host.path("host").display().to_string();
    std::fs::create_dir(&host_root).unwrap();
    let runtime = host.path("fake/runc");
    host.configure(&runtime, &format!("[debug]\nhost_root = \"{host_root}\""));
    host.start_daemon();
    assert_eq!((host.admin(&["status"])["missing"].clone(), finding(&host)), (json!([]), None));
    for id in ["c1", "c2"] {
        docker_container(&host, id);
    }
    let missing = host.admin(&["status"])["missing"].clone();
    assert_eq!(missing.as_array().map(Vec::len), Some(1), "{missing}");
    assert_eq!((&missing[0]["count"], &missing[0]["id"]), (&json!(2), &json!("c2")));
    host.logs(&["WARN", "config.v2.json", "c1"], 1);
    assert_eq!(host.logged(&["config.v2.json", "c2"]), 0, "the same is logged once");
    let finding = finding(&host).unwrap();
    assert_eq!((&finding["ok"], &finding["warning"]), (&json!(true), &json!(true)));
    let detail = finding["detail"].as_str().unwrap();
    assert!(detail.contains("no labels") && detail.contains("last c2"), "{detail}");
    assert!(!finding["hint"].as_str().unwrap().is_empty());
    let table = host.call(&["nri", "check"]).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.lines().any(|line| line.starts_with("!!") && line.contains("engine docker")));
    for id in ["c1", "c2"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
}
