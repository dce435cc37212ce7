// SPDX-License-Identifier: Apache-2.0
//! Podman with the real runc and nri-runc's definitions in its `--hooks-dir`.

use serde_json::json;
use test_support::adjustments::sets;
use test_support::podman::{IMAGE, PodmanHost};
use test_support::{LIFE, Script, wait_until};

use super::{EventLines, definitions, has_received};

struct Podman {
    host: PodmanHost,
}

impl Podman {
    /// `None` after printing why the test is skipped.
    fn new() -> Option<Self> {
        let mut host = PodmanHost::new("")?;
        for definition in definitions("/etc/nri-runc/config.toml") {
            let stage = definition["stages"][0].as_str().unwrap();
            host.write(&format!("hooks/{stage}.json"), &definition.to_string());
        }
        host.start_daemon();
        Some(Self { host })
    }

    fn run(&self, name: &str, check: impl Fn(&[&str])) {
        let (hooks, cgroup) = (self.host.path("hooks").display().to_string(), self.host.cgroup());
        check(&[
            "--hooks-dir",
            &hooks,
            "run",
            "-d",
            "--name",
            name,
            "--network",
            "host",
            "--cgroup-parent",
            &cgroup,
            IMAGE,
        ]);
    }
}

fn events(received: &EventLines) -> Vec<String> {
    received.lock().unwrap().iter().map(|event| event.replace(" web", "")).collect()
}

#[test]
fn podman_with_the_hooks_sends_events_once_and_in_order() {
    let Some(podman) = Podman::new() else { return };
    let received = podman.host.plugin("10", "witness", Script::default());
    podman.run("web", |words| drop(podman.host.good(words)));
    wait_until("the start is reported", || has_received(&received, "PostStartContainer web"));
    let pods = podman.host.admin(&["pods"]);
    assert_eq!(
        (&pods[0]["engine"], &pods[0]["containers"][0]["state"]),
        (&json!("podman"), &json!("running"))
    );
    podman.host.good(&["rm", "--force", "--time", "0", "web"]);
    podman.host.wait_until_no_pods();
    assert_eq!(events(&received), LIFE);
    assert_eq!(podman.host.admin(&["status"])["failures"], json!([]));
}

#[test]
fn podman_shows_the_hooks_refusal_and_keeps_nothing() {
    let Some(podman) = Podman::new() else { return };
    let _plugin = podman.host.plugin("10", "env", sets("HELLO", "there"));
    podman.run("web", |words| {
        podman.host.bad(words, &["nri-runc: cannot create", "10-env sets Env[HELLO]"]);
    });
    podman.host.wait_until_no_pods();
}
