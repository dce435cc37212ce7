// SPDX-License-Identifier: Apache-2.0
//! `nri-runc nri install podman` and `uninstall` on Podman's real configuration, which Podman then
//! reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use test_support::podman::IMAGE;
use test_support::{Script, life};

use super::{PodmanHost, inspect, installed, run};

/// Everything below the folders of Podman's configuration and of the undo records.
fn settings(host: &PodmanHost) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![host.path("etc/containers"), host.path("var-lib/nri-runc")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                files.insert(path.display().to_string(), Vec::new());
                folders.push(path);
            } else {
                files.insert(path.display().to_string(), std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[track_caller]
fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that `uninstall podman` refuses, names `id`, and changes nothing.
#[track_caller]
fn refuses(host: &PodmanHost, id: &str) {
    let before = settings(host);
    let output = host.nri(&["uninstall", "podman"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let id = nri_runc::testing::text::short_id(id);
    assert!(printed.contains("1 container still uses") && printed.contains(id), "{printed}");
    assert!(settings(host) == before, "a refusal changed something");
}

/// Runs one container with Podman's default runtime; returns which runtime that was.
fn by_default(host: &PodmanHost) -> Value {
    let cgroup = host.cgroup();
    let words = ["run", "--detach", "--name", "plain", "--network", "none", "--cgroup-parent"];
    host.good(&[&words[..], &[&cgroup, IMAGE]].concat());
    let printed = inspect(host, "plain");
    host.good(&["exec", "plain", "true"]);
    host.good(&["rm", "--force", "--time", "0", "plain"]);
    printed["OCIRuntime"].clone()
}

#[test]
fn uninstall_refuses_while_containers_exist_then_restores_all() {
    let Some(host) = PodmanHost::new("") else { return };
    let before = settings(&host);
    let cgroup = host.cgroup();
    let words = super::run_words(&cgroup, "early", &["--detach"]);
    host.bad(&words, &["nri-runc"]);
    let received = good(&host.nri(&["install", "podman"]));
    assert!(
        received.contains("wrote /etc/containers/containers.conf.d/50-nri-runc.conf"),
        "{received}"
    );
    assert!(good(&host.nri(&["install", "podman"])).contains("nothing to change"));
    let new = settings(&host);
    let kept = before.iter().all(|(path, text)| new.get(path) == Some(text));
    assert!(kept, "a file that was there was changed");
    let id = run(&host, "web", &[], &[]);
    refuses(&host, &id);
    host.good(&["stop", "--time", "0", "web"]);
    host.wait_until_no_pods();
    refuses(&host, &id);
    host.good(&["start", "web"]);
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    // conmon exits a moment later.
    host.wait_until("nobody names us", || {
        host.nri(&["uninstall", "podman", "--dry-run"]).status.success()
    });
    let received = good(&host.nri(&["uninstall", "podman"]));
    assert!(received.contains("removed"), "{received}");
    assert!(settings(&host) == before, "{:?}", settings(&host).keys());
    assert_eq!(by_default(&host), "runc");
    host.bad(&words, &["nri-runc"]);
}

#[test]
fn a_forced_uninstall_lists_containers_that_can_still_end() {
    let Some(host) = installed("") else { return };
    let received = host.plugin("10", "witness", Script::default());
    run(&host, "web", &[], &[]);
    let printed = good(&host.nri(&["uninstall", "podman", "--force"]));
    assert!(printed.contains("1 container still uses"), "{printed}");
    // Podman no longer knows the name, until it is registered for the last time.
    host.bad(&["exec", "web", "true"], &["nri-runc"]);
    good(&host.nri(&["install", "podman"]));
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    assert_eq!(*received.lock().unwrap(), life("web"));
}

#[test]
fn nri_runc_as_podmans_default_runs_all_until_uninstalled() {
    let Some(mut host) = PodmanHost::new("") else { return };
    let before = settings(&host);
    good(&host.nri(&["install", "podman", "--default"]));
    host.start_daemon();
    let received = host.plugin("10", "witness", Script::default());
    assert_eq!(by_default(&host), "nri-runc");
    host.wait_until_no_pods();
    assert_eq!(*received.lock().unwrap(), life("plain"));
    host.wait_until("nobody names us", || {
        host.nri(&["uninstall", "podman", "--dry-run"]).status.success()
    });
    let printed = good(&host.nri(&["uninstall", "podman"]));
    assert!(printed.contains("of the whole node until: nri-runc nri reload"), "{printed}");
    assert!(settings(&host) == before);
    good(&host.nri(&["reload"]));
    assert_eq!(by_default(&host), "runc");
    assert_eq!(received.lock().unwrap().len(), life("plain").len());
}

#[test]
fn a_manual_entry_is_not_overwritten() {
    let Some(host) = PodmanHost::new("") else { return };
    let by_hand = "# mine\n[engine.runtimes]\nnri-runc = [\"/opt/mine\"]\n";
    host.write("etc/containers/containers.conf.d/10-mine.conf", by_hand);
    let before = settings(&host);
    let output = host.nri(&["install", "podman"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("10-mine.conf") && printed.lines().count() == 1, "{printed}");
    assert!(settings(&host) == before);
    assert!(!Path::new(&host.path("var-lib/nri-runc")).exists());
}

#[test]
fn check_reports_whether_podman_has_the_runtime() {
    let Some(host) = installed("") else { return };
    let checks = |host: &PodmanHost| host.admin(&["check"]).to_string();
    assert!(checks(&host).contains("podman"), "{}", checks(&host));
    good(&host.nri(&["uninstall", "podman"]));
    assert!(!checks(&host).contains("50-nri-runc.conf"), "{}", checks(&host));
}
