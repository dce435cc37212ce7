// SPDX-License-Identifier: Apache-2.0
//! Kills processes during changes without a verb of the runtime: a pod that kubelet resizes, and a
//! container and a pod that containerd keeps after the runtime has deleted them and removes later.
//! The daemon is killed before every side effect; the wrapper when an infrastructure container is
//! killed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nri_runc::testing::host::POINTS;
use serde_json::{Value, json};
use test_support::cgroup::{memory_limit, test_is_kubelet};
use test_support::scripted_plugin::WITH_RESIZES;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use super::is_quiet;
use super::world::{in_order, leftovers, open_ends};

/// The changes of the pod, in this order.
pub(super) const STEPS: [&str; 5] = ["resize", "keep", "remove", "stop", "remove-pod"];

const LIMIT: &str = "kubepods/podu1";

struct Cluster {
    host: TestHost,
    views: Vec<Arc<Mutex<Vec<String>>>>,
}

impl Cluster {
    /// A pod with one container, both running.
    fn new() -> Self {
        let host = TestHost::default();
        std::os::unix::fs::symlink("/proc", host.path("proc")).unwrap();
        let (root, fault) = (host.path(""), host.path("fault"));
        let more = format!(
            "autostart = false\n[nri]\nplugin_request_timeout = \"20s\"\n{}[debug]\nhost_root = \"{}\"\nfault = \"@{}\"\n",
            test_is_kubelet(),
            root.display().to_string().trim_end_matches('/'),
            fault.display()
        );
        host.configure(&host.path("fake/runc"), &more);
        let mut cluster = Self { host, views: Vec::new() };
        cluster.begin();
        cluster.limit("67108864");
        cluster.run("p1");
        cluster.run("c1");
        cluster
    }

    /// Starts a daemon and connects the plugin.
    fn begin(&mut self) {
        self.host.start_daemon();
        let script = Script { events: Some(WITH_RESIZES), ..Script::default() };
        self.views.push(self.host.plugin("10", "listener", script));
    }

    fn limit(&self, value: &str) {
        let (mount, file) = memory_limit();
        let folder = self.host.path("").join(mount.strip_prefix("/").unwrap()).join(LIMIT);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file), value).unwrap();
    }

    /// containerd's folder of a container or sandbox.
    fn kept(&self, id: &str) -> PathBuf {
        let kind = if id == "p1" { "sandboxes" } else { "containers" };
        self.host.path(&format!("io.containerd.grpc.v1.cri/{kind}/{id}"))
    }

    fn run(&self, id: &str) {
        std::fs::create_dir_all(self.kept(id)).unwrap();
        let kind = if id == "p1" { "sandbox" } else { "container" };
        let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
        document["linux"]["cgroupsPath"] = json!(format!("/{LIMIT}/{id}"));
        document["annotations"] = json!({
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.container-name": id,
            "io.kubernetes.cri.sandbox-id": "p1",
            "io.kubernetes.cri.sandbox-name": "p1",
            "io.kubernetes.cri.sandbox-namespace": "shop",
            "io.kubernetes.cri.sandbox-uid": "u1",
        });
        let bundle = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
        std::fs::create_dir_all(self.host.path(&bundle)).unwrap();
        self.host.write(&format!("{bundle}/config.json"), &document.to_string());
        assert!(self.host.create_from(&bundle, id).status.success());
        assert!(self.host.verb(&["start", id]).status.success());
        wait_until("it runs", || {
            self.record(id).is_some_and(|record| record["state"] == "running")
        });
    }

    fn state(&self, id: &str) -> String {
        let pods = self.host.admin(&["pods"]);
        let pods = pods.as_array().into_iter().flatten();
        let mut all =
            pods.flat_map(|pod| pod["containers"].as_array().cloned().unwrap_or_default());
        let found = all.find(|container| container["id"] == id).unwrap_or_default();
        found["state"].as_str().unwrap_or_default().to_owned()
    }

    /// The number of times that any connection received this event.
    fn count_received(&self, line: &str) -> usize {
        let count = |view: &Arc<Mutex<Vec<String>>>| {
            view.lock().unwrap().iter().filter(|received| *received == line).count()
        };
        self.views.iter().map(count).sum()
    }

    /// Whether the newest connection has nothing of this ID that must still be removed.
    fn is_over(&self, id: &str) -> bool {
        let view = self.views.last().unwrap().lock().unwrap();
        self.state(id).is_empty() && !open_ends(&view).iter().any(|open| open == id)
    }

    /// Calls these verbs, and retries those that failed because of a kill, as engines do.
    fn verbs(&self, verbs: &[&[&str]]) {
        for verb in verbs {
            wait_until(&format!("{verb:?}"), || {
                let id = verb.iter().find(|word| matches!(**word, "c1" | "p1")).unwrap();
                let is_gone = !self.host.path("root").join(id).exists();
                self.host.verb(verb).status.success() || (verb[0] == "delete" && is_gone)
            });
        }
    }

    /// Removes the engine's folder of the container, as the engine does.
    fn remove(&self, id: &str) {
        let _may_be_gone = std::fs::remove_dir_all(self.kept(id));
    }

    /// Makes one step, as kubelet and containerd do.
    fn step(&self, step: &str) {
        match step {
            "resize" => self.limit("134217728"),
            "keep" => self.verbs(&[&["kill", "c1", "9"], &["delete", "--force", "c1"]]),
            "remove" => self.remove("c1"),
            "stop" => self.verbs(&[&["kill", "p1", "9"], &["delete", "--force", "p1"]]),
            _ => self.remove("p1"),
        }
    }

    /// Whether the step is complete, whichever process was killed in it.
    fn is_done(&self, step: &str, has_died: bool) -> bool {
        match step {
            // The daemon records a resize before plugins receive it: a kill in between loses the
            // event, and the next snapshot has the values.
            "resize" => self.count_received("PostUpdatePodSandbox p1") == 1 || has_died,
            "keep" => self.state("c1") == "stopped" && self.is_recorded("c1"),
            "remove" => self.is_over("c1"),
            "stop" => self.count_received("StopPodSandbox p1") > 0 && self.is_recorded("p1"),
            _ => self.host.admin(&["pods"]) == json!([]),
        }
    }

    /// The record on disk.
    fn record(&self, id: &str) -> Option<Value> {
        let files = std::fs::read_dir(self.host.path("run/state/containers")).unwrap().flatten();
        let texts = files.filter_map(|file| std::fs::read(file.path()).ok());
        let mut records = texts.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
        records.find(|record| record["key"]["id"] == id)
    }

    /// Whether the record says that the runtime has deleted the container.
    fn is_recorded(&self, id: &str) -> bool {
        self.record(id).is_some_and(|record| record["is_deleted"] == true)
    }
}

/// Runs the pod's steps once, and lists the points that each passes.
pub(super) fn places() -> Vec<(&'static str, &'static str, usize)> {
    let cluster = Cluster::new();
    let mut found: Vec<(&'static str, &'static str, usize)> = Vec::new();
    is_quiet(&cluster.host);
    cluster.host.write("fault", "trace");
    let mut seen = cluster.host.read("fault.trace").lines().count();
    for step in STEPS {
        cluster.step(step);
        wait_until(step, || cluster.is_done(step, false));
        is_quiet(&cluster.host);
        let trace = cluster.host.read("fault.trace");
        for line in trace.lines().skip(seen) {
            let name = POINTS.iter().map(|point| point.name()).find(|name| *name == line).unwrap();
            let is_same = |(at, other, _): &&(&str, &str, usize)| *at == step && *other == name;
            found.push((step, name, found.iter().filter(is_same).count()));
        }
        seen = trace.lines().count();
    }
    found
}

/// Kills one process, and checks the conditions that must hold afterwards.
pub(super) fn kill(step: &str, point: &str, passing: usize) {
    let what = format!("{step} {point} {passing}");
    let mut cluster = Cluster::new();
    is_quiet(&cluster.host);
    for at in STEPS {
        if at != step {
            cluster.step(at);
            wait_until(&format!("{at} of {what}"), || cluster.is_done(at, cluster.views.len() > 1));
            continue;
        }
        cluster.host.write("fault", &format!("{point}:kill:{passing}"));
        let is_daemon = point.starts_with("daemon.");
        // A verb whose daemon is killed continues without it, or fails and is retried.
        cluster.step(at);
        wait_until(&format!("{what} has struck"), || !cluster.host.path("fault").exists());
        if is_daemon {
            cluster.host.kill_daemon();
            cluster.begin();
        }
        wait_until(&format!("{at} is done after {what}"), || cluster.is_done(at, is_daemon));
        if at == "resize" {
            another_resize(&cluster, &what);
        }
    }
    wait_until(&format!("nothing is left after {what}"), || leftovers(&cluster.host).is_empty());
    wait_until(&format!("the plugin has heard of it after {what}"), || {
        open_ends(&cluster.views.last().unwrap().lock().unwrap()).is_empty()
    });
    for view in &cluster.views {
        in_order(&view.lock().unwrap(), &what);
    }
    assert_eq!(cluster.count_received("RemovePodSandbox p1").max(1), 1, "{what}");
}

/// Checks that no resize is sent twice, and that the next one is sent. If a resize was not recorded
/// yet, the next daemon sends it, alone or together with the next one.
fn another_resize(cluster: &Cluster, what: &str) {
    let received_count = |event: &str| cluster.count_received(&format!("{event} p1"));
    assert!(received_count("UpdatePodSandbox") <= 1, "{what}");
    let before = received_count("PostUpdatePodSandbox");
    cluster.limit("268435456");
    wait_until(&format!("another resize after {what}"), || {
        received_count("PostUpdatePodSandbox") > before
    });
    // By then every other event has been sent.
    std::thread::sleep(Duration::from_millis(500));
    let events = [received_count("UpdatePodSandbox"), received_count("PostUpdatePodSandbox")];
    assert!(events.iter().all(|count| *count <= 2), "{what}: {events:?}");
}
