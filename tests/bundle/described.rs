// SPDX-License-Identifier: Apache-2.0
//! A container of which the engine's own files cannot be found: it runs, and the operator learns
//! of it from the log, from `status` and from `check`.

use serde_json::{Value, json};

use super::rig::{BUNDLE, Rig};
use super::succeeds;

const MOBY: &str = "run-docker/io.containerd.runtime.v2.task/moby";

fn docker_container(rig: &Rig, id: &str) {
    std::fs::create_dir_all(rig.path(&format!("{MOBY}/{id}/rootfs"))).unwrap();
    rig.write(&format!("{MOBY}/{id}/config.json"), BUNDLE);
    succeeds(&rig.create_from(&format!("{MOBY}/{id}"), id));
}

fn finding(rig: &Rig) -> Option<Value> {
    let output = rig.call(&["nri", "--json", "check"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all.as_array().unwrap().iter().find(|row| row["check"] == "engine docker").cloned()
}

#[test]
fn what_an_engine_does_not_tell_is_a_warning_in_the_log_in_status_and_in_check() {
    let mut rig = Rig::new("");
    // A host without any Docker daemon.
    let host = rig.path("host").display().to_string();
    std::fs::create_dir(&host).unwrap();
    let runtime = rig.path("fake/runc");
    rig.configure(&runtime, &format!("[debug]\nhost_root = \"{host}\""));
    rig.start_daemon();
    assert_eq!((rig.admin(&["status"])["missing"].clone(), finding(&rig)), (json!([]), None));
    for id in ["c1", "c2"] {
        docker_container(&rig, id);
    }
    let missing = rig.admin(&["status"])["missing"].clone();
    assert_eq!(missing.as_array().map(Vec::len), Some(1), "{missing}");
    assert_eq!((&missing[0]["count"], &missing[0]["id"]), (&json!(2), &json!("c2")));
    assert_eq!(rig.logged(&["WARN", "config.v2.json", "c1"]), 1, "{}", rig.read("daemon.err"));
    assert_eq!(rig.logged(&["config.v2.json", "c2"]), 0, "the same is logged once");
    let finding = finding(&rig).unwrap();
    assert_eq!((&finding["ok"], &finding["warning"]), (&json!(true), &json!(true)));
    let detail = finding["detail"].as_str().unwrap();
    assert!(detail.contains("no labels") && detail.contains("last c2"), "{detail}");
    assert!(!finding["hint"].as_str().unwrap().is_empty());
    let table = rig.call(&["nri", "check"]).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.lines().any(|line| line.starts_with("!!") && line.contains("engine docker")));
    for id in ["c1", "c2"] {
        succeeds(&rig.verb(&["delete", "--force", id]));
    }
}
