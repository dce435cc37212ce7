// SPDX-License-Identifier: Apache-2.0
//! Lifecycles of pods from a seed, as containerd and kubelet run them, while daemons are killed and
//! stopped: a sandbox, members, resizes of the pod's cgroup, exits, and the removal after the runtime's
//! `delete`. Each connection receives each pod's beginning, resizes and end once and in order; none is
//! missing while it lasted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protobuf::MessageDyn;
use serde_json::{Value, json};
use test_support::cgroup::{memory_limit, test_is_kubelet};
use test_support::scripted_plugin::WITH_RESIZES;
use test_support::scripted_plugin::json_of;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use super::{Dice, Stage, WORKERS, say};

/// Number of pods of each worker in `make test`.
const SAMPLE: u64 = 24;

/// The events of a connection: event, pod, and the memory limit in it (0 for none).
#[derive(Clone)]
pub(super) struct PodView {
    name: String,
    since: Duration,
    received: Arc<Mutex<Vec<(String, String, u64)>>>,
    pub(super) is_cut: bool,
}

/// The history of a pod.
struct PodFate {
    id: String,
    begun: Duration,
    /// The memory limits of its resizes, in order.
    limits: Vec<u64>,
}

const HOMES: &str = "io.containerd.grpc.v1.cri";

fn limit(host: &TestHost, pod: &str, bytes: u64) {
    let (at, file) = memory_limit();
    let folder = host.path(at.strip_prefix("/").unwrap().to_str().unwrap());
    let folder = folder.join(format!("kubepods/pod{pod}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(file), bytes.to_string()).unwrap();
}

impl Stage {
    /// Creates and starts a container of a pod, or its sandbox, as containerd does.
    fn run_in(&self, id: &str, pod: &str) {
        let is_sandbox = id == pod;
        let kind = if is_sandbox { "sandbox" } else { "container" };
        std::fs::create_dir_all(self.host.path(&kept(id, pod))).unwrap();
        let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
        document["linux"]["cgroupsPath"] = json!(format!("/kubepods/pod{pod}/{id}"));
        document["annotations"] = json!({
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.sandbox-id": pod,
            "io.kubernetes.cri.sandbox-name": pod,
            "io.kubernetes.cri.sandbox-namespace": "shop",
            "io.kubernetes.cri.sandbox-uid": format!("uid-of-{pod}"),
        });
        if !is_sandbox {
            document["annotations"]["io.kubernetes.cri.container-name"] = json!(id);
        }
        let bundle = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
        std::fs::create_dir_all(self.host.path(&bundle)).unwrap();
        self.host.write(&format!("{bundle}/config.json"), &document.to_string());
        let bundle = self.host.path(&bundle).display().to_string();
        assert!(self.call(id, &["create", "--bundle", &bundle, id]), "{id}");
        assert!(self.call(id, &["start", id]), "{id}");
    }

    fn end(&self, id: &str) {
        let _by_itself = self.call(id, &["kill", id, "9"]);
        wait_until("it is deleted", || self.call(id, &["delete", "--force", id]));
        let bundle = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
        std::fs::remove_dir_all(self.host.path(&bundle)).unwrap();
    }

    /// Whether a daemon has recorded this limit.
    fn is_noted(&self, pod: &str, bytes: u64) -> bool {
        let files = std::fs::read_dir(self.host.path("run/state/pods")).into_iter().flatten();
        let records = files.flatten().filter_map(|file| std::fs::read(file.path()).ok());
        let mut records = records.filter_map(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let record = records.find(|record| record["id"] == pod);
        record.is_some_and(|record| record["limits"][memory_limit().1] == *format!("{bytes}"))
    }

    fn live_as_pod(&self, pod: &str, dice: &mut Dice) -> PodFate {
        let begun = self.now();
        limit(&self.host, pod, 1 << 20);
        self.run_in(pod, pod);
        let members: Vec<String> = (0..dice.throw(3)).map(|n| format!("{pod}-c{n}")).collect();
        let (mut limits, mut ended) = (Vec::new(), Vec::new());
        for member in &members {
            self.run_in(member, pod);
            if dice.throw(2) == 0 {
                self.end(member);
                ended.push(member.clone());
            }
        }
        for resize in 0..dice.throw(4) {
            limits.push((2 + resize) << 20);
            limit(&self.host, pod, (2 + resize) << 20);
            std::thread::sleep(Duration::from_millis(dice.throw(250)));
        }
        if let Some(last) = limits.last() {
            wait_until("the resize is noted", || self.is_noted(pod, *last));
        }
        for member in members.iter().filter(|member| !ended.contains(member)) {
            self.end(member);
        }
        self.end(pod);
        std::thread::sleep(Duration::from_millis(dice.throw(100)));
        for id in members.iter().map(String::as_str).chain([pod]) {
            std::fs::remove_dir_all(self.host.path(&kept(id, pod))).unwrap();
        }
        PodFate { id: pod.to_owned(), begun, limits }
    }

    pub(super) fn connect_to_pods(&self, name: &str) {
        let received: Arc<Mutex<Vec<(String, String, u64)>>> = Arc::default();
        let observer = Arc::clone(&received);
        let on_request = move |event: &str, request: &dyn MessageDyn| {
            let request = json_of(request);
            let printed = |part: &Value| {
                let limit = part["memory"]["limit"]["value"].as_str();
                limit.and_then(|limit| limit.parse().ok()).unwrap_or(0)
            };
            let limit = match event {
                "UpdatePodSandbox" => printed(&request["linuxResources"]),
                _ => printed(&request["pod"]["linux"]["podResources"]),
            };
            let pod = request["pod"]["name"].as_str().unwrap_or_default().to_owned();
            observer.lock().unwrap().push((event.to_owned(), pod, limit));
        };
        let script = Script {
            events: Some(WITH_RESIZES),
            on_request: Some(Arc::new(on_request)),
            ..Script::default()
        };
        let socket = self.host.path("nri.sock");
        let _names_only = test_support::scripted_plugin::connect(socket, "10", name, script);
        wait_until("the plugin is seated", || self.is_listed_as_synchronized(name));
        let (name, since) = (name.to_owned(), self.now());
        self.pod_views.lock().unwrap().push(PodView { name, since, received, is_cut: false });
    }
}

/// The folder that the engine keeps.
fn kept(id: &str, pod: &str) -> String {
    let kind = if id == pod { "sandboxes" } else { "containers" };
    format!("{HOMES}/{kind}/{id}")
}

impl PodView {
    /// Whether it has received the end of every pod whose beginning it received.
    pub(super) fn is_whole(&self) -> bool {
        let received = self.received.lock().unwrap();
        let count = |event: &str| received.iter().filter(|(name, ..)| name == event).count();
        count("RunPodSandbox") <= count("RemovePodSandbox")
    }
}

/// Checks the events of a connection; returns the number of events of pods.
#[track_caller]
fn check(view: &PodView, fates: &[PodFate]) -> usize {
    const PODS: [&str; 5] = [
        "RunPodSandbox",
        "UpdatePodSandbox",
        "PostUpdatePodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
    ];
    let received = view.received.lock().unwrap().clone();
    let mut pods: HashMap<&str, Vec<(&str, u64)>> = HashMap::new();
    let of_pods = received.iter().filter(|(event, ..)| PODS.contains(&event.as_str()));
    let count = of_pods.clone().count();
    for (event, pod, limit) in of_pods {
        pods.entry(pod).or_default().push((event, *limit));
    }
    for (id, life) in &pods {
        let what = format!("{}, {id}: {life:?}", view.name);
        let is_resize = |event: &str| event.contains("Update");
        let ends: Vec<&str> =
            life.iter().map(|(event, _)| *event).filter(|event| !is_resize(event)).collect();
        let whole = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"];
        let fate = fates.iter().find(|fate| fate.id == **id).unwrap();
        let is_all = !view.is_cut && fate.begun >= view.since;
        // The received part of the sequence has each event once and in order.
        let is_part = ends.is_empty() || whole.windows(ends.len()).any(|part| part == ends);
        assert!(is_part, "{what}");
        assert!(!is_all || ends == whole, "{what}");
        let resizes: Vec<(&str, u64)> =
            life.iter().filter(|(event, _)| is_resize(event)).copied().collect();
        let asked: Vec<u64> = resizes
            .iter()
            .filter(|(event, _)| *event == "UpdatePodSandbox")
            .map(|(_, limit)| *limit)
            .collect();
        assert!(asked.windows(2).all(|pair| pair[0] < pair[1]), "{what}");
        assert!(asked.iter().all(|limit| fate.limits.contains(limit)), "{what}");
        // A connection that was synchronized between the two events receives only the second.
        let begins_late =
            resizes.first().is_some_and(|(event, _)| *event == "PostUpdatePodSandbox");
        assert!(!begins_late || !is_all, "{what}");
        for pair in resizes[usize::from(begins_late)..].chunks(2) {
            let is_pair = pair[0].0 == "UpdatePodSandbox"
                && pair.get(1).is_none_or(|(event, limit)| {
                    *event == "PostUpdatePodSandbox" && *limit == pair[0].1
                });
            assert!(is_pair, "{what}");
        }
        assert!(!is_all || asked.last() == fate.limits.last(), "{what} of {:?}", fate.limits);
        let stop = life.iter().position(|(event, _)| *event == "StopPodSandbox");
        let last = life.iter().rposition(|(event, _)| is_resize(event));
        assert!(stop.is_none_or(|stop| last.is_none_or(|last| last < stop)), "{what}");
    }
    count
}

#[test]
fn every_pod_resize_and_removal_is_sent_once_and_in_order() {
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let wanted = std::env::var("LIVES").unwrap_or_default();
    let mut wanted = wanted.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
    let count = wanted.next().unwrap_or(SAMPLE);
    let seed = wanted.next().unwrap_or(today.as_secs() / 86_400);
    say(&format!("LIVES='{count} {seed}' as pods"));
    let mut stage = super::stage();
    let root = stage.host.path("").display().to_string();
    // No plugin reconnects under its name, so a daemon's first create must not wait longer than the
    // daemon lives.
    let text = stage.host.read("config.toml");
    let text = text.replace("[nri]", "[nri]\nplugin_registration_timeout = \"800ms\"");
    let kubelet = test_is_kubelet();
    let more = format!("{kubelet}[debug]\nhost_root = \"{}\"\n", root.trim_end_matches('/'));
    stage.host.write("config.toml", &format!("{text}\n{more}"));
    std::os::unix::fs::symlink("/proc", stage.host.path("proc")).unwrap();
    stage.has_pods = true;
    let stage = Arc::new(stage);
    let fates: Mutex<Vec<PodFate>> = Mutex::default();
    std::thread::scope(|scope| {
        let restarts = scope.spawn(|| super::restart_daemons(&stage, &mut Dice(seed)));
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (stage, fates) = (&stage, &fates);
                scope.spawn(move || {
                    let mut dice = Dice(seed ^ (worker + 1) << 32);
                    for life in 0..count / WORKERS {
                        let fate = stage.live_as_pod(&format!("w{worker}-{life}"), &mut dice);
                        fates.lock().unwrap().push(fate);
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        stage.is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        restarts.join().unwrap();
        assert_eq!(failed, 0);
    });
    let (views, fates) = (stage.pod_views.lock().unwrap(), fates.lock().unwrap());
    let received: usize = views.iter().map(|view| check(view, &fates)).sum();
    say(&format!("{} pods, {} connections, {received} events", fates.len(), views.len()));
    assert!(received > 0);
}
