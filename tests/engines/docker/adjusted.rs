// SPDX-License-Identifier: Apache-2.0
//! A container of Docker that a plugin changes, checked inside and by Docker.

use serde_json::json;
use test_support::adjustments::{bind_mount, every_kind};
use test_support::{Script, wait_until};

use super::engine::{Docker, IMAGE};
use super::{LIFE, events, has_received};
use crate::suite::client::Client;

fn adjusts(docker: &Docker) -> Script {
    docker.host.write("bundle/hello", "mounted by a plugin\n");
    let mount = bind_mount(&docker.host.path("bundle"), "/plugged");
    every_kind(300, "/dev/nri-zero", 5).remove_env("FROM").mount(mount).into()
}

/// Prints the values inside the container.
const LOOK: &str = "env; cat /plugged/hello; echo soft $(ulimit -Sn) hard $(ulimit -Hn); \
    echo device $(head -c 3 /dev/nri-zero | wc -c); echo score $(cat /proc/self/oom_score_adj); \
    echo x >/plugged/x || echo read-only; exec sleep 1000";

#[test]
fn a_docker_container_is_adjusted_and_docker_works_as_before() {
    let Some(docker) = Docker::new() else { return };
    let received = docker.host.plugin("10", "adjust", adjusts(&docker));
    let run = ["run", "--detach", "--runtime=nri-runc", "--name=web", "--env=OWN=kept"];
    let limits = ["--memory=64m", "--cpu-shares=512", "--ulimit=nofile=1000:1000"];
    let id = docker.output_of(&[&run[..], &limits, &[IMAGE, "/bin/sh", "-c", LOOK]].concat());
    let seen = || docker.output_of(&["logs", "web"]);
    wait_until("it has looked", || seen().contains("read-only"));
    let seen = seen();
    for line in [
        "HELLO=there",
        "OWN=kept",
        "mounted by a plugin",
        "soft 123 hard 321",
        "device 3",
        "score 950",
    ] {
        assert!(seen.lines().any(|printed| printed == line), "{line} is not in: {seen}");
    }
    assert!(!seen.contains("FROM=image"), "the plugin had removed it: {seen}");
    assert_eq!(docker.limits(&id)[..2], [(32 << 20).to_string(), "300".to_owned()]);
    assert_eq!(docker.document(&id)["annotations"]["example.org/seen"], "yes");

    // Docker's operations on a container whose changes it does not know.
    assert_eq!(
        docker.output_of(&["exec", "web", "/bin/cat", "/plugged/hello"]),
        "mounted by a plugin"
    );
    docker.output_of(&["pause", "web"]);
    assert_eq!(docker.host.admin(&["pods"])[0]["containers"][0]["state"], "paused");
    docker.output_of(&["unpause", "web"]);
    assert!(docker.output_of(&["top", "web"]).contains("sleep 1000"));
    assert_eq!(docker.inspect("web")["HostConfig"]["Memory"], 64 << 20);
    let explained = docker.host.admin(&["explain", "web"]);
    let changes = explained["changes"].as_array().unwrap();
    // A dash precedes the plugin that removed a value.
    let is_its =
        |change: &serde_json::Value| change["plugin"].as_str().unwrap().ends_with("10-adjust");
    assert!(changes.len() > 8 && changes.iter().all(is_its), "{explained}");
    let pods = docker.host.admin(&["pods"]);
    assert_eq!((&pods[0]["engine"], &pods[0]["name"]), (&json!("docker"), &json!("web")));

    docker.output_of(&["stop", "--time=0", "web"]);
    wait_until("its end is reported", || has_received(&received, "RemovePodSandbox web"));
    assert_eq!(events(&received, "web"), LIFE);
    docker.output_of(&["rm", "web"]);
    docker.nothing_is_left();
}
