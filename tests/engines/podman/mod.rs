// SPDX-License-Identifier: Apache-2.0
//! A real Podman calls nri-runc instead of runc, registered as in `docs/install.md`, on a private
//! host (`tests/support/src/podman.rs`), with the real runc behind it. The messages of plugins are
//! compared with `podman inspect`; their values are checked inside and in the cgroups.

mod builds;
mod crun;
mod described;
mod ends;
mod installs;
mod labels;
mod pods;
mod rootless;
mod tested;

use std::sync::{Arc, Mutex};

use nri_plugin::Resources;
use serde_json::Value;
use test_support::podman::{IMAGE, PodmanHost};
use test_support::scripted_plugin::{ReceivedRequests, listening};
use test_support::{Script, cgroup};

type EventLines = Arc<Mutex<Vec<String>>>;

/// A host on which nri-runc is registered and the daemon runs.
fn installed(more: &str) -> Option<PodmanHost> {
    let mut host = PodmanHost::new(more)?;
    let output = host.nri(&["install", "podman"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    host.start_daemon();
    Some(host)
}

#[test]
fn a_configuration_beside_the_executable_is_used_under_conmon() {
    let Some(mut host) = PodmanHost::new("") else { return };
    assert!(host.nri(&["install", "podman"]).status.success());
    // conmon passes on no variable that could name it.
    std::fs::rename(host.path("etc/nri-runc/config.toml"), host.path("nri-runc.toml")).unwrap();
    host.start_daemon();
    let received = host.plugin("10", "witness", Script::default());
    run(&host, "web", &[], &[]);
    host.good(&["rm", "--force", "--time", "0", "web"]);
    host.wait_until_no_pods();
    assert_eq!(*received.lock().unwrap(), test_support::life("web"));
}

/// The words of `podman --runtime nri-runc run -d --name NAME … IMAGE …`, up to the image.
fn run_words<'w>(cgroup: &'w str, name: &'w str, options: &[&'w str]) -> Vec<&'w str> {
    let mut words = vec!["--runtime", "nri-runc", "run", "--name", name, "--network", "none"];
    words.extend(["--cgroup-parent", cgroup]);
    words.extend(options);
    words.push(IMAGE);
    words
}

/// Runs a container in the background; returns its ID.
#[track_caller]
fn run(host: &PodmanHost, name: &str, options: &[&str], args: &[&str]) -> String {
    let cgroup = host.cgroup();
    let options = [&["--detach"], options].concat();
    host.good(&[&run_words(&cgroup, name, &options), args].concat())
}

fn inspect(host: &PodmanHost, name: &str) -> Value {
    let printed = host.good(&["inspect", name]);
    serde_json::from_str::<Value>(&printed).unwrap()[0].clone()
}

/// The first request of `event` about the container or pod `name`.
#[track_caller]
fn request_of(requests: &ReceivedRequests, event: &str, name: &str) -> Value {
    let requests = requests.lock().unwrap();
    let subject = |request: &Value| {
        let key = if event.contains("Pod") { "pod" } else { "container" };
        request[key]["name"] == name
    };
    let found = requests.iter().find(|(known, request)| known == event && subject(request));
    found
        .map(|(_, request)| request.clone())
        .unwrap_or_else(|| Value::String(format!("{requests:?}")))
}

/// The received events of `name`, without the name.
fn events_of(received: &EventLines, name: &str) -> Vec<String> {
    let received = received.lock().unwrap();
    let of_it = received.iter().filter_map(|event| event.strip_suffix(&format!(" {name}")));
    of_it.map(ToOwned::to_owned).collect()
}

/// A plugin's resources: memory in MiB, shares, pids.
fn resources(mebibytes: i64, shares: u64, pids: i64) -> Resources {
    let mut resources = Resources::new();
    if mebibytes > 0 {
        resources = resources.memory_limit(mebibytes << 20);
    }
    if shares > 0 {
        resources = resources.cpu_shares(shares);
    }
    if pids > 0 { resources.pids_limit(pids) } else { resources }
}

/// A limit in the cgroup of a container, for both cgroup versions.
fn limit(host: &PodmanHost, id: &str, what: &str) -> String {
    let file = match what {
        "memory" => ("memory", "memory.limit_in_bytes"),
        "shares" => ("cpu", "cpu.shares"),
        "quota" => ("cpu", "cpu.cfs_quota_us"),
        _ => ("pids", "pids.max"),
    };
    cgroup::read(host.cgroup().trim_start_matches('/'), ("libpod", id), file)
}

fn bytes(mebibytes: u64) -> String {
    (mebibytes << 20).to_string()
}
