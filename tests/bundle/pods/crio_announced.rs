// SPDX-License-Identifier: Apache-2.0
//! Pods of CRI-O that no runtime call announces: their folders appear, disappear, are invalid or
//! late, or were created while no daemon ran. The host's files are in a private folder.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use protobuf::MessageDyn;
use serde_json::{Value, json};
use test_support::scripted_plugin::json_of;
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::succeeds;

const HOME: &str = "host/run/containers/storage/overlay-containers";

/// A test host that resolves paths below its `host`, with this machine's processes.
fn host() -> TestHost {
    let host = TestHost::default();
    std::fs::create_dir(host.path("host")).unwrap();
    std::os::unix::fs::symlink("/proc", host.path("host/proc")).unwrap();
    let root = host.path("host").display().to_string();
    host.configure(&host.path("fake/runc"), &format!("[debug]\nhost_root = \"{root}\""));
    host
}

fn document(annotations: &Value) -> String {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = annotations.clone();
    document["linux"]["cgroupsPath"] = json!("/pod/crio-x");
    document.to_string()
}

/// CRI-O's document of a pod that has no infrastructure container.
fn pod(id: &str, name: &str) -> Value {
    json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
        "io.kubernetes.cri-o.SandboxID": id,
        "io.kubernetes.cri-o.Name": format!("k8s_{name}_shop_u_0"),
        "io.kubernetes.cri-o.SandboxName": format!("k8s_{name}_shop_u_0"),
        "io.kubernetes.cri-o.Metadata":
            json!({"name": name, "uid": "u", "namespace": "shop", "attempt": 0}).to_string(),
        "io.kubernetes.cri-o.Labels": "{\"app\": \"web\"}",
        "io.kubernetes.cri-o.Annotations": "{\"a.b/c\": \"d\"}",
        "io.kubernetes.cri-o.RuntimeHandler": "nri-runc",
        "io.kubernetes.cri-o.CgroupParent": "/pod",
        "io.kubernetes.cri-o.CNIResult": "{\"ips\": [{\"address\": \"10.1.2.3/24\"}]}",
        "spoofed.crio.io": "true",
        "app": "web",
        "a.b/c": "d",
    })
}

fn member(pod: &str, name: &str) -> Value {
    json!({
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": pod,
        "io.kubernetes.cri-o.SandboxName": format!("k8s_{name}_shop_u_0"),
        "io.kubernetes.cri-o.Metadata": "{\"name\": \"app\"}",
        "io.kubernetes.cri-o.IP.0": "10.1.2.3",
    })
}

/// Writes a file as CRI-O does: creates it, then writes the content.
fn write(host: &TestHost, name: &str, text: &str) {
    std::fs::write(host.path(name), text).unwrap();
}

/// Writes a pod's document into the folder that CRI-O would use; returns the folder.
fn put(host: &TestHost, id: &str, text: &str) -> String {
    let folder = format!("{HOME}/{id}/userdata");
    std::fs::create_dir_all(host.path(&folder)).unwrap();
    write(host, &format!("{folder}/config.json"), text);
    folder
}

fn remove(host: &TestHost, id: &str) {
    std::fs::remove_dir_all(host.path(&format!("{HOME}/{id}"))).unwrap();
}

struct Ear(Arc<Mutex<Vec<String>>>);

impl Ear {
    fn count(&self, line: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|received| *received == line).count()
    }

    fn wait_for_event(&self, line: &str) {
        wait_until(line, || self.count(line) > 0);
    }

    fn order(&self, line: &str) -> Option<usize> {
        self.0.lock().unwrap().iter().position(|received| received == line)
    }
}

fn listener(host: &TestHost) -> Ear {
    Ear(host.plugin("10", "listener", Script::default()))
}

fn known_pods(host: &TestHost) -> Vec<String> {
    let pods = host.admin(&["pods"]);
    let names = pods.as_array().into_iter().flatten().map(|pod| pod["name"].as_str());
    names.map(|name| name.unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_pod_without_containers_is_announced_stopped_and_removed() {
    let mut host = host();
    host.start_daemon();
    let observer = listener(&host);
    // None of the folders exists yet, and each is created separately.
    for folder in ["run", "run/containers", "run/containers/storage"] {
        std::fs::create_dir(host.path("host").join(folder)).unwrap();
    }
    let folder = put(&host, "5a0d", &document(&pod("5a0d", "web")));
    observer.wait_for_event("RunPodSandbox web");
    let pods = host.admin(&["pods"]);
    assert_eq!((&pods[0]["id"], &pods[0]["state"]), (&json!("5a0d"), &json!("ready")), "{pods}");
    assert_eq!((&pods[0]["engine"], &pods[0]["containers"]), (&json!("cri-o"), &json!([])));
    host.write(&format!("{folder}/stopped"), "");
    observer.wait_for_event("StopPodSandbox web");
    remove(&host, "5a0d");
    observer.wait_for_event("RemovePodSandbox web");
    wait_until("it is forgotten", || known_pods(&host).is_empty());
    for event in ["RunPodSandbox web", "StopPodSandbox web", "RemovePodSandbox web"] {
        assert_eq!(observer.count(event), 1, "{event}");
    }
    // A second pod disappears without having been stopped.
    put(&host, "5a0e", &document(&pod("5a0e", "shop")));
    observer.wait_for_event("RunPodSandbox shop");
    remove(&host, "5a0e");
    observer.wait_for_event("RemovePodSandbox shop");
    assert!(observer.order("StopPodSandbox shop") < observer.order("RemovePodSandbox shop"));
}

/// Messages of RunPodSandbox, without the parts that depend on the time.
fn run_messages(host: &TestHost) -> Arc<Mutex<Vec<Value>>> {
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let requests = Arc::clone(&seen);
    let on_request = move |event: &str, request: &dyn MessageDyn| {
        if event == "RunPodSandbox" {
            requests.lock().unwrap().push(json_of(request));
        }
    };
    let script = Script { on_request: Some(Arc::new(on_request)), ..Script::default() };
    let _plugin = host.plugin("10", "listener", script);
    seen
}

#[test]
fn the_first_source_that_reports_a_pod_announces_it_once() {
    let mut received = Vec::new();
    for folder_first in [true, false] {
        let mut host = host();
        host.start_daemon();
        let seen = run_messages(&host);
        let count = || seen.lock().unwrap().len();
        let text = document(&pod("5a0d", "web"));
        if folder_first {
            put(&host, "5a0d", &text);
            wait_until("the pod is reported", || count() == 1);
        } else {
            // The folder is in a place that is unknown until the container shows it.
            let home = "host/elsewhere/overlay-containers/5a0d/userdata";
            std::fs::create_dir_all(host.path(home)).unwrap();
            host.write(&format!("{home}/config.json"), &text);
        }
        let home = if folder_first { HOME } else { "host/elsewhere/overlay-containers" };
        let bundle = format!("{home}/c1/userdata");
        std::fs::create_dir_all(host.path(&bundle)).unwrap();
        host.write(&format!("{bundle}/config.json"), &document(&member("5a0d", "web")));
        succeeds(&host.create_from(&bundle, "c1"));
        succeeds(&host.verb(&["start", "c1"]));
        assert_eq!(count(), 1);
        if !folder_first {
            // The daemon now knows the folder of the pods.
            let home = "host/elsewhere/overlay-containers/5a0f/userdata";
            std::fs::create_dir_all(host.path(home)).unwrap();
            write(&host, &format!("{home}/config.json"), &document(&pod("5a0f", "later")));
            wait_until("the other pod is reported", || count() == 2);
        }
        received.push(seen.lock().unwrap()[0].clone());
    }
    assert_eq!(received[0], received[1]);
    assert_eq!(received[0]["pod"]["labels"]["app"], "web");
    assert_eq!(received[0]["pod"]["ips"], json!(["10.1.2.3"]));
}

#[test]
fn other_files_are_skipped_and_a_slow_pod_document_is_awaited() {
    let mut host = host();
    std::fs::create_dir_all(host.path(HOME)).unwrap();
    host.start_daemon();
    let observer = listener(&host);
    write(&host, &format!("{HOME}/containers.lock"), "");
    std::os::unix::fs::symlink("/", host.path(&format!("{HOME}/link"))).unwrap();
    std::fs::create_dir(host.path(&format!("{HOME}/.odd name"))).unwrap();
    put(&host, "9a", "no document at all");
    put(&host, "9b", &"x".repeat(40 << 20));
    put(&host, "9c", &document(&member("5a0d", "web")));
    let mut libpod = pod("9d", "podman");
    libpod["io.container.manager"] = json!("libpod");
    put(&host, "9d", &document(&libpod).replace("/pod/crio-x", "/libpod_parent/libpod-x"));
    let mut infrastructure = pod("9e", "paused");
    infrastructure["spoofed.crio.io"] = json!("false");
    put(&host, "9e", &document(&infrastructure));
    let fifo = host.path(&format!("{HOME}/9f/userdata"));
    std::fs::create_dir_all(&fifo).unwrap();
    nix::unistd::mkfifo(&fifo.join("config.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A pod whose folder disappears before it has a document.
    std::fs::create_dir_all(host.path(&format!("{HOME}/90/userdata"))).unwrap();
    remove(&host, "90");
    // At first half of a document.
    let text = document(&pod("5a0d", "web"));
    let folder = put(&host, "5a0d", &text[..text.len() / 2]);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(known_pods(&host), Vec::<String>::new());
    write(&host, &format!("{folder}/config.json"), &text);
    observer.wait_for_event("RunPodSandbox web");
    assert_eq!(known_pods(&host), ["web"]);
    assert_eq!(observer.0.lock().unwrap().len(), 1, "{:?}", observer.0.lock().unwrap());
}

#[test]
fn pods_that_changed_while_no_daemon_ran_are_known_to_the_next() {
    let mut host = host();
    host.start_daemon();
    let observer = listener(&host);
    put(&host, "5a02", &document(&pod("5a02", "stays")));
    put(&host, "5a03", &document(&pod("5a03", "goes")));
    observer.wait_for_event("RunPodSandbox stays");
    observer.wait_for_event("RunPodSandbox goes");
    host.kill_daemon();
    remove(&host, "5a03");
    put(&host, "5a04", &document(&pod("5a04", "meanwhile")));
    host.start_daemon();
    let again = listener(&host);
    wait_until("what went is forgotten", || {
        let mut pods = known_pods(&host);
        pods.sort();
        pods == ["meanwhile", "stays"]
    });
    for id in ["5a02", "5a04"] {
        remove(&host, id);
    }
    for name in ["stays", "meanwhile"] {
        again.wait_for_event(&format!("RemovePodSandbox {name}"));
        assert_eq!(again.count(&format!("RunPodSandbox {name}")), 0, "{name}: by Synchronize");
    }
}

#[test]
fn a_pod_older_than_the_daemon_is_announced_with_its_container() {
    let mut host = host();
    put(&host, "5a01", &document(&pod("5a01", "before")));
    host.start_daemon();
    let observer = listener(&host);
    put(&host, "5a02", &document(&pod("5a02", "after")));
    observer.wait_for_event("RunPodSandbox after");
    assert_eq!(known_pods(&host), ["after"]);
    let bundle = format!("{HOME}/c1/userdata");
    std::fs::create_dir_all(host.path(&bundle)).unwrap();
    host.write(&format!("{bundle}/config.json"), &document(&member("5a01", "before")));
    succeeds(&host.create_from(&bundle, "c1"));
    assert_eq!(observer.count("RunPodSandbox before"), 1);
}

#[test]
fn pods_are_announced_after_the_engines_folder_is_recreated() {
    let mut host = host();
    host.start_daemon();
    let observer = listener(&host);
    put(&host, "5a01", &document(&pod("5a01", "first")));
    observer.wait_for_event("RunPodSandbox first");
    std::fs::remove_dir_all(host.path("host/run")).unwrap();
    observer.wait_for_event("RemovePodSandbox first");
    put(&host, "5a02", &document(&pod("5a02", "second")));
    observer.wait_for_event("RunPodSandbox second");
}

/// A plugin that refuses every pod until the flag is set.
fn strict(host: &TestHost, recovered: &Arc<AtomicBool>) -> Ear {
    let at = Some("RunPodSandbox".to_owned());
    let recovered = Arc::clone(recovered);
    let script = Script { refuses: Some("no room"), at, recovered, ..Script::default() };
    Ear(host.plugin("10", "strict", script))
}

/// Writes a container's bundle in a pod as CRI-O does.
fn put_member(host: &TestHost, id: &str, pod: &str, name: &str) -> String {
    let bundle = put(host, id, &document(&member(pod, name)));
    std::fs::create_dir(host.path(&bundle).join("rootfs")).unwrap();
    bundle
}

#[track_caller]
fn is_refused(host: &TestHost, bundle: &str, id: &str) {
    let before = host.read(&format!("{bundle}/config.json"));
    let output = host.create_from(bundle, id);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    for word in ["10-strict", "RunPodSandbox", "no room"] {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
    assert_eq!(host.read(&format!("{bundle}/config.json")), before);
    let explained = host.admin(&["explain", id])["refused"].to_string();
    assert!(explained.contains("no room"), "{explained}");
}

#[test]
fn a_refused_pod_refuses_each_create_until_plugins_accept() {
    let mut host = host();
    host.start_daemon();
    let recovered = Arc::default();
    let observer = strict(&host, &recovered);
    put(&host, "5a0d", &document(&pod("5a0d", "web")));
    observer.wait_for_event("RemovePodSandbox web");
    let is_created = || host.admin(&["pods"])[0]["state"] == "created";
    wait_until("the pod is on record as not announced", is_created);
    let failures = host.admin(&["status"])["failures"].to_string();
    assert!(failures.contains("no room") && failures.contains("10-strict"), "{failures}");
    let [first, second] = ["c1", "c2"].map(|id| put_member(&host, id, "5a0d", "web"));
    for (bundle, id, asked) in [(&first, "c1", 2), (&first, "c1", 3), (&second, "c2", 4)] {
        is_refused(&host, bundle, id);
        assert_eq!(observer.count("RunPodSandbox web"), asked);
        assert_eq!(observer.count("RemovePodSandbox web"), asked);
    }
    let late = Ear(host.plugin("20", "late", Script::default()));
    recovered.store(true, Ordering::SeqCst);
    succeeds(&host.create_from(&first, "c1"));
    succeeds(&host.create_from(&second, "c2"));
    assert_eq!(observer.count("RunPodSandbox web"), 5, "an accepted pod is announced once");
    assert_eq!((late.count("RunPodSandbox web"), observer.count("StopPodSandbox web")), (1, 4));
    assert_eq!(host.admin(&["pods"])[0]["state"], "ready");
}

/// A daemon takes over the pods that appeared while none ran, except for one that its predecessor
/// refused.
#[test]
fn a_refused_pod_stays_refused_after_a_daemon_restart() {
    let mut host = host();
    host.start_daemon();
    put(&host, "5a0d", &document(&pod("5a0d", "web")));
    wait_until("the first daemon knows it", || known_pods(&host) == ["web"]);
    let observer = strict(&host, &Arc::default());
    put(&host, "5a0e", &document(&pod("5a0e", "shop")));
    observer.wait_for_event("RemovePodSandbox shop");
    wait_until("it is recorded", || {
        let pods = host.admin(&["pods"]);
        pods.as_array().unwrap().iter().any(|pod| pod["state"] == "created")
    });
    host.kill_daemon();
    host.start_daemon();
    let recovered = Arc::default();
    let again = strict(&host, &recovered);
    let bundle = put_member(&host, "c1", "5a0e", "shop");
    is_refused(&host, &bundle, "c1");
    recovered.store(true, Ordering::SeqCst);
    succeeds(&host.create_from(&bundle, "c1"));
    assert_eq!(again.count("RunPodSandbox shop"), 2);
}

#[test]
fn a_refused_pod_is_forgotten_with_its_folder() {
    let mut host = host();
    host.start_daemon();
    let observer = strict(&host, &Arc::default());
    let folder = put(&host, "5a0d", &document(&pod("5a0d", "web")));
    observer.wait_for_event("RemovePodSandbox web");
    let is_created = || host.admin(&["pods"])[0]["state"] == "created";
    wait_until("the pod is on record as not announced", is_created);
    let late = Ear(host.plugin("20", "late", Script::default()));
    host.write(&format!("{folder}/stopped"), "");
    remove(&host, "5a0d");
    wait_until("it is forgotten", || known_pods(&host).is_empty());
    for event in ["RunPodSandbox web", "StopPodSandbox web", "RemovePodSandbox web"] {
        assert_eq!((observer.count(event), late.count(event)), (1, 0), "{event}");
    }
}

/// A required plugin connects late: the pod was refused without it, and starts with it.
#[test]
fn a_pod_refused_for_a_missing_plugin_starts_once_it_connects() {
    let mut host = host();
    let root = host.path("host").display().to_string();
    let more = "[plugin.guard]\nrequired = true\nwait = \"0s\"\n";
    host.configure(&host.path("fake/runc"), &format!("{more}[debug]\nhost_root = \"{root}\""));
    host.start_daemon();
    put(&host, "5a0d", &document(&pod("5a0d", "web")));
    let failures = || host.admin(&["status"])["failures"].to_string();
    wait_until("the pod is refused", || failures().contains("guard is not connected"));
    let bundle = put_member(&host, "c1", "5a0d", "web");
    let output = host.create_from(&bundle, "c1");
    let line = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && line.contains("guard is not connected"), "{line}");
    let guard = Ear(host.plugin("10", "guard", Script::default()));
    succeeds(&host.create_from(&bundle, "c1"));
    assert_eq!(guard.count("RunPodSandbox web"), 1);
}

/// A pod's author may write CRI-O's keys into the pod's document, but a runtime is called for it:
/// it is one pod, announced once.
#[test]
fn a_pod_with_forged_metadata_is_announced_once() {
    let mut host = host();
    host.start_daemon();
    let observer = listener(&host);
    let folder = put(&host, "5a0d", &document(&pod("5a0d", "web")));
    observer.wait_for_event("RunPodSandbox web");
    succeeds(&host.create_from(&folder, "5a0d"));
    succeeds(&host.verb(&["start", "5a0d"]));
    succeeds(&host.verb(&["kill", "5a0d", "9"]));
    succeeds(&host.verb(&["delete", "5a0d"]));
    assert!(Path::new(&host.path(&folder)).exists());
    observer.wait_for_event("RemovePodSandbox web");
    for event in ["RunPodSandbox web", "StopPodSandbox web", "RemovePodSandbox web"] {
        assert_eq!(observer.count(event), 1, "{event}: {:?}", observer.0.lock().unwrap());
    }
}

#[test]
fn a_pod_of_another_handler_is_not_announced() {
    let mut host = host();
    std::fs::create_dir_all(host.path("host/var/lib/nri-runc/engines")).unwrap();
    let record = "host/var/lib/nri-runc/engines/crio.json";
    let registered =
        |default: bool| json!({"name": "nri-runc", "default": default, "binary": "/b"}).to_string();
    host.write(record, &registered(false));
    std::fs::create_dir_all(host.path(HOME)).unwrap();
    host.start_daemon();
    let observer = listener(&host);
    let with = |id: &str, name: &str, handler: &str| {
        let mut pod = pod(id, name);
        pod["io.kubernetes.cri-o.RuntimeHandler"] = json!(handler);
        put(&host, id, &document(&pod));
    };
    with("5a01", "kata", "kata");
    with("5a02", "default", "");
    with("5a03", "ours", "nri-runc");
    observer.wait_for_event("RunPodSandbox ours");
    host.write(record, &registered(true));
    with("5a04", "default-now", "");
    observer.wait_for_event("RunPodSandbox default-now");
    // Without a registration the engine never calls the wrapper, so no call can announce the pod
    // that the daemon missed.
    std::fs::remove_file(host.path(record)).unwrap();
    with("5a05", "after", "nri-runc");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut known = known_pods(&host);
    known.sort();
    assert_eq!(known, ["default-now", "ours"]);
}

/// An engine that was killed cleans up at its start, and calls no runtime for the pods that it
/// gives up.
#[test]
fn pods_that_a_killed_engine_drops_end_exactly_once() {
    let mut host = host();
    let root = host.path("host").display().to_string();
    let debug = format!("[debug]\nhost_root = \"{root}\"\nlook_every = \"100ms\"");
    host.configure(&host.path("fake/runc"), &debug);
    std::fs::create_dir_all(host.path(HOME)).unwrap();
    host.start_daemon();
    let observer = listener(&host);
    let pods: Vec<String> = (0..6).map(|number| format!("90d{number}")).collect();
    let members: Vec<String> = (0..5).map(|number| format!("c0{number}")).collect();
    for id in &pods {
        put(&host, id, &document(&pod(id, &format!("web-{id}"))));
        observer.wait_for_event(&format!("RunPodSandbox web-{id}"));
    }
    for (pod, id) in pods.iter().zip(&members) {
        let folder = put(&host, id, &document(&member(pod, &format!("web-{pod}"))));
        std::fs::create_dir(host.path(&folder).join("rootfs")).unwrap();
        succeeds(&host.create_from(&folder, id));
        succeeds(&host.verb(&["start", id]));
    }
    assert_eq!(known_pods(&host).len(), 6);
    for id in &members {
        let pid: i32 = host.read(&format!("root/{id}/pid")).trim().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
        std::fs::remove_dir_all(host.path(&format!("root/{id}"))).unwrap();
    }
    pods.iter().chain(&members).for_each(|id| remove(&host, id));
    wait_until("no pod is known", || known_pods(&host).is_empty());
    for id in &pods {
        for event in ["StopPodSandbox", "RemovePodSandbox"] {
            assert_eq!(observer.count(&format!("{event} web-{id}")), 1, "{event} {id}");
        }
    }
    let received = observer.0.lock().unwrap().clone();
    for event in ["StopContainer", "RemoveContainer"] {
        let count = received.iter().filter(|line| line.starts_with(event)).count();
        assert_eq!(count, members.len(), "{event}: {received:?}");
    }
    assert_eq!(std::fs::read_dir(host.path("run/state/containers")).unwrap().count(), 0);
    let late = host.plugin("20", "late", Script::default());
    assert!(late.lock().unwrap().is_empty(), "a newcomer is synchronized with the dead");
}
