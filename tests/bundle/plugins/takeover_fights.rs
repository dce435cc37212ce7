// SPDX-License-Identifier: Apache-2.0
//! Processes that compete for the identity of one plugin are distinguished from an upgrade: the
//! newcomer is refused, and every container has the plugin throughout.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::example::example;
use test_support::{Started, TestHost, skip, started, wait_until};

use super::takeover::{create, creates, first, states, works};
use crate::succeeds;

const ID: &str = "10-foo";

/// Starts a process of the plugin, which sets each container's pids limit to `limit`, in a cgroup if
/// one is given.
fn process(host: &TestHost, limit: u32, cgroup: Option<&PathBuf>, more: &[&str]) -> Started {
    let config = host.path(&format!("limit-{limit}.json"));
    host.write(&format!("limit-{limit}.json"), &format!("{{\"pids\":{{\"limit\":{limit}}}}}"));
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg("[ -z \"$1\" ] || echo $$ >\"$1/cgroup.procs\"; shift; exec \"$@\"");
    command.arg("sh").arg(cgroup.map_or_else(String::new, |path| path.display().to_string()));
    command.arg(example("resource_defaults")).arg("--id").arg(ID);
    command.arg("--socket").arg(host.path("nri.sock")).arg("--config").arg(config).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Started(command.spawn().unwrap())
}

/// The process that has the plugin's place.
fn holder(host: &TestHost) -> u32 {
    let plugins = host.admin(&["plugins"]);
    let mut rows = plugins.as_array().into_iter().flatten();
    let row = rows.find(|row| row["name"] == "foo" && row["state"] == "synchronized");
    row.and_then(|row| row["pid"].as_u64()).map_or(0, |pid| u32::try_from(pid).unwrap())
}

fn takes_part(host: &TestHost, process: &Started) {
    wait_until("the process takes part", || holder(host) == process.0.id());
}

fn limit(host: &TestHost, id: &str) -> Value {
    succeeds(&create(host, id));
    let seen: Value = serde_json::from_str(&host.read(&format!("fake/seen-{id}.json"))).unwrap();
    seen["linux"]["resources"]["pids"]["limit"].clone()
}

#[test]
fn of_two_reconnecting_processes_one_stays_without_a_gap() {
    let (host, begun) = (started(""), Instant::now());
    let one = process(&host, 101, None, &["--reconnect"]);
    takes_part(&host, &one);
    let other = process(&host, 102, None, &["--reconnect"]);
    let mut containers = 0;
    wait_until("one is refused", || {
        let found = limit(&host, &format!("c{containers}"));
        assert!(found == 101 || found == 102, "c{containers}: {found}");
        containers += 1;
        host.logged(&[ID, "was refused"]) > 0
    });
    let log = host.read("daemon.err");
    let line = log.lines().find(|line| line.contains("was refused")).unwrap();
    for process in [&one, &other] {
        assert!(line.contains(&format!("process {}", process.0.id())), "{line}");
    }
    assert!(line.contains("3 times within 60 seconds"), "{line}");
    // The repeated connections of the refused process cause one line and one failure.
    let failures = || host.admin(&["status"])["failures"].clone();
    let count = || {
        let failures = failures();
        let mut rows = failures.as_array().unwrap().iter().filter(|row| row["plugin"] == ID);
        rows.next().and_then(|row| row["count"].as_u64()).unwrap_or(0)
    };
    wait_until("it comes back", || count() > 3);
    host.logs(&[ID, "was refused"], 1);
    let page = String::from_utf8(host.call(&["nri", "metrics"]).stdout).unwrap();
    let row = "nri_runc_plugin_takeovers_total{plugin=\"10-foo\",result=\"completed\"} ";
    let completed = page.lines().find_map(|line| line.strip_prefix(row)?.parse::<u64>().ok());
    // Each further minute of a slow machine permits three more takeovers.
    let most = 3 * (begun.elapsed().as_secs() / 60 + 1);
    assert!(completed.is_some_and(|count| (3..=most).contains(&count)), "{page}");
    let stays = holder(&host);
    assert!(limit(&host, "last").is_number());
    // When the winner disconnects, the other one gets the place immediately.
    drop(if stays == one.0.id() { one } else { other });
    wait_until("the other one takes part", || holder(&host) != stays && holder(&host) != 0);
}

#[test]
fn the_fourth_takeover_within_a_minute_is_refused() {
    let upgraded = || {
        let (host, begun) = (started(""), Instant::now());
        let mut old = first(&host, works("v0"));
        for name in ["v1", "v2", "v3"] {
            let new = works(name).connect(&host);
            old.wait_for_event("Shutdown");
            creates(&host, name, name);
            old = new;
        }
        (begun.elapsed() < Duration::from_secs(50)).then_some((host, old))
    };
    // A machine that is too busy for three takeovers within a minute may soon be less busy.
    let (host, old) = (0..5).find_map(|_| upgraded()).unwrap();
    let fourth = works("v4").connect(&host);
    wait_until("it is refused", || host.logged(&[ID, "was refused"]) == 1);
    wait_until("it is gone", || states(&host) == ["synchronized"]);
    assert_eq!(fourth.count("Synchronize"), 0, "it was received of nothing");
    assert_eq!(old.count("Shutdown"), 0);
    creates(&host, "after", "v3");
}

#[test]
fn replacing_a_disconnected_plugin_is_never_a_takeover() {
    let host = started("");
    let mut old = first(&host, works("v0"));
    for name in ["v1", "v2", "v3"] {
        let new = works(name).connect(&host);
        old.wait_for_event("Shutdown");
        old = new;
    }
    old.leave();
    wait_until("the place is empty", || states(&host).iter().all(|state| state == "gone"));
    let _next = first(&host, works("next"));
    creates(&host, "c1", "next");
    assert_eq!(host.logged(&[ID, "was refused"]), 0);
}

/// Cgroups with names as kubelet gives them to pods.
struct Pods(Vec<PathBuf>);

impl Pods {
    fn new(names: &[&str]) -> Option<Self> {
        let mounts = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let mount = mounts.iter().find(|mount| PathBuf::from(mount).join("cgroup.procs").exists());
        let root = PathBuf::from(mount?).join(format!("kubepods-test-{}", std::process::id()));
        let mut pods = Self(Vec::new());
        for name in names {
            // The path is as long as a real one, because nri-runc uses the longest path of all
            // hierarchies.
            let path = root.join(format!("pod0a1b2c3d-0000-4000-8000-00000000000{name}"));
            if std::fs::create_dir_all(&path).is_err() {
                skip::machine_lacks("cgroups cannot be made here");
                return None;
            }
            pods.0.push(path);
        }
        Some(pods)
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for path in &self.0 {
            // The processes in it were killed, but may not have exited yet.
            let gone = || std::fs::remove_dir(path).is_ok() || !path.exists();
            let _left_behind = (0..100).any(|_try| {
                std::thread::sleep(Duration::from_millis(10));
                gone()
            });
        }
        let _if_empty = self.0.first().and_then(|path| std::fs::remove_dir(path.parent()?).ok());
    }
}

#[test]
fn a_restarted_container_of_a_replaced_pod_stays_displaced() {
    let Some(pods) = Pods::new(&["a", "b", "c"]) else { return };
    let [a, b, c] = [0, 1, 2].map(|index| pods.0.get(index));
    let host = started("");
    let old = process(&host, 101, a, &[]);
    takes_part(&host, &old);
    let new = process(&host, 102, b, &[]);
    takes_part(&host, &new);
    // A plugin exits when its connection ends, and kubelet restarts it in the pod that is being
    // deleted.
    let again = process(&host, 103, a, &[]);
    let words = ["was refused", "a process outside its pod has since replaced its pod's process"];
    wait_until("it is refused", || host.logged(&words) == 1);
    for process in [&again, &new] {
        let name = format!("process {}", process.0.id());
        host.logs(&[words[0], &name], 1);
    }
    assert_eq!(limit(&host, "c1"), 102);
    // Another pod may take over, and so may another process of that pod.
    let third = process(&host, 104, c, &[]);
    takes_part(&host, &third);
    let third_again = process(&host, 105, c, &[]);
    takes_part(&host, &third_again);
    // Once the place is free, any pod may take it.
    drop(third_again);
    wait_until("the place is empty", || holder(&host) == 0);
    let last = process(&host, 106, a, &[]);
    takes_part(&host, &last);
    assert_eq!(limit(&host, "c2"), 106);
    drop((old, new, again, third, last));
    drop(pods);
}
