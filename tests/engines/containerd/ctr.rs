// SPDX-License-Identifier: Apache-2.0
//! A container of `ctr run`, which has no pod and no Kubernetes namespace: the data of containerd's
//! records, and of its process once that exists.

use nri_plugin::Adjustment;
use serde_json::json;
use test_support::adjustments::gives_address;
use test_support::scripted_plugin::listening;

use super::host::{self, Engine};

/// Runs ctr successfully; returns its output.
#[track_caller]
pub(super) fn ctr(engine: &Engine, words: &[&str]) -> String {
    let output = engine.containerd.ctr_in("lab", words).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(output.status.success(), "{words:?}: {}\n{}", text(&output.stderr), engine.log_tail());
    text(&output.stdout)
}

/// Name and digest of the image.
pub(super) fn image(engine: &Engine) -> (String, String) {
    let tar = engine.path("image/image.tar").display().to_string();
    ctr(engine, &["images", "import", &tar]);
    let listed = ctr(engine, &["images", "ls"]);
    let words: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(words[2].starts_with("sha256:"), "{listed}");
    (words[0].to_owned(), words[2].to_owned())
}

#[tokio::test]
async fn a_ctr_container_has_its_image_exec_and_addresses() {
    let Some(hooks) = gives_address("192.0.2.7") else { return };
    let Some(tools) = host::tools() else { return };
    let engine = Engine::start(&tools);
    let _daemon = engine.start_daemon();
    let (script, received) = listening(Adjustment::new().hooks(hooks));
    let _plugin =
        test_support::scripted_plugin::connect(engine.path("nri.sock"), "10", "network", script);
    engine.wait_until("the plugin is synchronized", || {
        engine.admin(&["plugins"])[0]["state"] == "synchronized"
    });
    let (name, digest) = image(&engine);
    let us = env!("CARGO_BIN_EXE_nri-runc");
    let cgroup = format!("/{}/c1", engine.cgroup());
    let run = ["run", "--detach", "--snapshotter", "native", "--runc-binary", us, "--cgroup"];
    let what = [cgroup.as_str(), &name, "c1", "/bin/sleep", "1000"];
    ctr(&engine, &[&run[..], &what].concat());
    let at = |event: &str| {
        engine.wait_until(event, || received.lock().unwrap().iter().any(|(name, _)| name == event));
        let received = received.lock().unwrap();
        received.iter().find(|(name, _)| name == event).unwrap().1.clone()
    };
    let create = at("CreateContainer");
    let (pod, container) = (&create["pod"], &create["container"]);
    assert_eq!(
        container["image"],
        json!({"name": name, "digest": digest}),
        "{}",
        engine.log_tail()
    );
    assert_eq!([&pod["namespace"], &pod["runtimeHandler"]], ["containerd", us]);
    assert_eq!((&pod["pid"], &pod["ips"]), (&json!(null), &json!(null)));
    // By default, ctr sets no seccomp filter.
    assert_eq!(container["linux"]["seccompProfile"]["profileType"], "UNCONFINED");
    let started = at("PostStartContainer");
    let pid = ctr(&engine, &["task", "ls"]);
    let pid =
        pid.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let pod = &started["pod"];
    assert_eq!((&pod["pid"], &pod["ips"]), (&json!(pid), &json!(["192.0.2.7"])));
    ctr(&engine, &["task", "kill", "--signal", "SIGKILL", "c1"]);
    assert_eq!(at("StopContainer")["pod"]["pid"], json!(null));
    engine.wait_until("its task can be deleted", || {
        let deleted = engine.containerd.ctr_in("lab", &["task", "delete", "c1"]);
        deleted.is_ok_and(|output| output.status.success())
    });
    at("RemovePodSandbox");
    ctr(&engine, &["containers", "delete", "c1"]);
}
