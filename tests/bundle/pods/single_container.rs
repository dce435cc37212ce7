// SPDX-License-Identifier: Apache-2.0
//! A container that is its own pod, on engines without pods (D47): its namespace, which exempts no container, and the
//! pod's process and addresses as soon as they exist.

use nri_plugin::Adjustment;
use serde_json::{Value, json};
use test_support::adjustments::gives_address;
use test_support::real_runtime::RealRuntime;
use test_support::scripted_plugin::{ReceivedRequests, listening};
use test_support::{BUNDLE, Script, TestHost, wait_until};

use crate::{started, succeeds};

/// The pod in the message of an event.
fn pod_at(received: &ReceivedRequests, event: &str) -> Value {
    wait_until(event, || received.lock().unwrap().iter().any(|(name, _)| name == event));
    let received = received.lock().unwrap();
    received.iter().find(|(name, _)| name == event).unwrap().1["pod"].clone()
}

#[test]
fn a_pod_has_the_configured_namespace_or_the_engines_name() {
    for (more, wanted) in [("", "plain"), ("[defaults]\nnamespace = \"lab\"\n", "lab")] {
        let host = started(more);
        let (script, received) = listening(Script::default());
        let _plugin = host.plugin("10", "listener", script);
        succeeds(&host.create("c1"));
        assert_eq!(pod_at(&received, "RunPodSandbox")["namespace"], wanted);
        assert_eq!(pod_at(&received, "CreateContainer")["namespace"], wanted);
        assert_eq!(host.admin(&["pods"])[0]["namespace"], wanted);
        assert_eq!(host.admin(&["explain", "c1"])["namespace"], wanted);
    }
}

#[test]
fn an_nri_runc_key_may_name_any_but_an_exempt_namespace() {
    let host = started("");
    for (asked, wanted) in [("shop", "shop"), ("kube-system", "plain")] {
        let annotated = BUNDLE.replacen(
            '{',
            &format!("{{\"annotations\":{{\"nri-runc.dev/pod-namespace\":\"{asked}\"}},"),
            1,
        );
        host.write("bundle/config.json", &annotated);
        succeeds(&host.create(asked));
        let shown = host.admin(&["explain", asked]);
        assert_eq!(shown["namespace"], wanted, "{shown}");
    }
}

/// A namespace that only the configuration sets exempts no container from a protection.
#[test]
fn a_default_namespace_exempts_no_container() {
    let required = "[plugin.guard]\nrequired = true\n";
    for (more, name) in [
        ("exempt_namespaces = [\"plain\"]\n", "plain"),
        ("exempt_namespaces = [\"plain\"]\nexempt_by_annotation = true\n", "plain"),
        ("[defaults]\nnamespace = \"kube-system\"\n", "kube-system"),
        ("exempt_by_annotation = true\n[defaults]\nnamespace = \"kube-system\"\n", "kube-system"),
    ] {
        let host = started(&format!("{more}{required}"));
        let output = host.create("c1");
        assert!(!output.status.success(), "{more}");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(line.contains("guard"), "{more}: {line}");
        let shown = host.admin(&["explain", "c1"]);
        assert_eq!(shown["namespace"], name, "{more}: {shown}");
    }
}

#[test]
fn a_pod_has_the_pid_of_its_container_until_that_exits() {
    let mut host = TestHost::default();
    host.start_daemon();
    let (script, received) = listening(Script::default());
    let _plugin = host.plugin("10", "listener", script);
    succeeds(&host.create("c1"));
    let created = pod_at(&received, "PostCreateContainer");
    let pid: u64 = host.read("pid").trim().parse().unwrap();
    for event in ["RunPodSandbox", "CreateContainer"] {
        assert_eq!(pod_at(&received, event)["pid"], json!(null), "{event}");
    }
    assert_eq!((&created["pid"], &created["ips"]), (&json!(pid), &json!(null)), "{created}");
    succeeds(&host.verb(&["start", "c1"]));
    assert_eq!(pod_at(&received, "StartContainer")["pid"], pid);
    // The next daemon knows the namespace too, and sends it to plugins that connect later.
    host.kill_daemon();
    host.start_daemon();
    let (script, later) = listening(Script::default());
    let _plugin = host.plugin("20", "later", script);
    wait_until("it is synchronized", || !later.lock().unwrap().is_empty());
    let (event, request) = later.lock().unwrap()[0].clone();
    assert_eq!((event.as_str(), &request["pods"][0]["pid"]), ("Synchronize", &json!(pid)));
    succeeds(&host.verb(&["kill", "c1", "9"]));
    // The exited container's PID may belong to another process by now.
    assert_eq!(pod_at(&later, "StopContainer")["pid"], json!(null));
    succeeds(&host.verb(&["delete", "c1"]));
    assert_eq!(pod_at(&later, "StopPodSandbox")["pid"], json!(null));
}

/// Two containers that nri-runc's annotations put into one pod: after one exits, the pod has the process of the other.
#[test]
fn a_shared_pod_keeps_the_process_of_its_running_member() {
    let host = started("");
    let shared = BUNDLE.replacen('{', "{\"annotations\":{\"nri-runc.dev/pod-id\":\"shop\"},", 1);
    host.write("bundle/config.json", &shared);
    let mut pids = Vec::new();
    for id in ["c1", "c2"] {
        succeeds(&host.create(id));
        succeeds(&host.verb(&["start", id]));
        pids.push(host.read("pid").trim().parse::<u64>().unwrap());
    }
    let pod = || host.admin(&["pods"])[0].clone();
    let (script, received) = listening(Script::default());
    let _plugin = host.plugin("10", "listener", script);
    wait_until("it is synchronized", || !received.lock().unwrap().is_empty());
    assert_eq!(received.lock().unwrap()[0].1["pods"][0]["pid"], pids[0]);
    succeeds(&host.verb(&["kill", "c1", "9"]));
    assert_eq!(pod_at(&received, "StopContainer")["pid"], pids[1], "{}", pod());
    succeeds(&host.verb(&["kill", "c2", "9"]));
    wait_until("both have stopped", || {
        received.lock().unwrap().iter().filter(|(event, _)| event == "StopContainer").count() == 2
    });
    let last = received.lock().unwrap().last().unwrap().1["pod"]["pid"].clone();
    assert_eq!(last, json!(null));
}

/// A host with a real runtime; the fields are dropped in this order, so containers end first.
struct Place {
    real: RealRuntime,
    host: TestHost,
}

fn place() -> Option<Place> {
    let host = TestHost::default();
    let real = RealRuntime::new(&host.path(""))?;
    host.configure(real.runc(), "[nri]\nplugin_request_timeout = \"20s\"");
    let mut place = Place { host, real };
    place.host.start_daemon();
    Some(place)
}

impl Place {
    fn runs(&self, id: &str, own_network: bool) {
        self.runs_with(id, own_network, &json!({}));
    }

    fn runs_with(&self, id: &str, own_network: bool, annotations: &Value) {
        let mut document = self.real.document(id, &["sleep", "1000"]);
        document["annotations"] = annotations.clone();
        if own_network {
            let spaces = document["linux"]["namespaces"].as_array_mut().unwrap();
            spaces.push(json!({"type": "network"}));
        }
        std::fs::create_dir_all(self.host.path(id)).unwrap();
        self.host.write(&format!("{id}/config.json"), &document.to_string());
        succeeds(&self.host.create_from(id, id));
        succeeds(&self.host.verb(&["start", id]));
    }
}

#[test]
fn a_pods_addresses_come_from_its_own_network_namespace() {
    let Some(hooks) = gives_address("192.0.2.7") else { return };
    let Some(place) = place() else { return };
    let adjust = Adjustment::new().hooks(hooks);
    let (script, received) = listening(Script { only: Some("own"), ..adjust.into() });
    let _plugin = place.host.plugin("10", "network", script);
    place.runs("own", true);
    for event in ["RunPodSandbox", "CreateContainer"] {
        assert_eq!(pod_at(&received, event)["ips"], json!(null), "{event}");
    }
    for event in ["PostCreateContainer", "StartContainer", "PostStartContainer"] {
        assert_eq!(pod_at(&received, event)["ips"], json!(["192.0.2.7"]), "{event}");
    }
    received.lock().unwrap().clear();
    // One container in the host's network, and one whose network has only the loopback address.
    place.runs("hosts", false);
    assert_eq!(pod_at(&received, "PostStartContainer")["ips"], json!(null));
    received.lock().unwrap().clear();
    place.runs("none", true);
    assert_eq!(pod_at(&received, "PostStartContainer")["ips"], json!(null));
}

#[test]
fn a_pod_of_an_unknown_cri_engine_has_addresses() {
    let Some(hooks) = gives_address("192.0.2.7") else { return };
    let Some(place) = place() else { return };
    let (script, received) = listening(Adjustment::new().hooks(hooks));
    let _plugin = place.host.plugin("10", "network", script);
    let of_kubelet = json!({
        "io.kubernetes.pod.name": "web-7",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "3f1c2b9a-8d5e-4c77-9b1a-2f6e0d9c4a11",
        "io.kubernetes.container.name": "app",
    });
    place.runs_with("own", true, &of_kubelet);
    let pod = pod_at(&received, "PostStartContainer");
    assert_eq!((&pod["name"], &pod["ips"]), (&json!("web-7"), &json!(["192.0.2.7"])), "{pod}");
    assert_eq!(place.host.admin(&["pods"])[0]["engine"], "kubernetes");
}

/// Number of containers that a daemon recovers without records: it looks up their addresses while it serves commands.
const FOUND: usize = 200;

#[test]
fn synchronize_has_the_addresses_of_all_found_containers() {
    let Some(hooks) = gives_address("192.0.2.7") else { return };
    let Some(mut place) = place() else { return };
    let (script, received) = listening(Adjustment::new().hooks(hooks));
    let _plugin = place.host.plugin("10", "network", script);
    place.runs("own", true);
    assert_eq!(pod_at(&received, "PostStartContainer")["ips"], json!(["192.0.2.7"]));
    let root = place.host.path("root");
    let more = format!("runtime_roots = [\"{}\"]", root.display());
    place.host.configure(place.real.runc(), &more);
    place.host.kill_daemon();
    std::fs::remove_dir_all(place.host.path("run")).unwrap();
    let state = place.host.read("root/own/state.json");
    let copies: Vec<String> = (0..FOUND).map(|number| format!("root/copy{number}")).collect();
    for copy in &copies {
        std::fs::create_dir(place.host.path(copy)).unwrap();
        place.host.write(&format!("{copy}/state.json"), &state);
    }
    place.host.start_daemon();
    let (script, received) = listening(Script::default());
    let _plugin = place.host.plugin("11", "listener", script);
    let pods = || -> Vec<Value> {
        let received = received.lock().unwrap();
        let lists = received.iter().filter_map(|(_, request)| request["pods"].as_array());
        lists.flatten().cloned().collect()
    };
    wait_until("it is synchronized with all of them", || pods().len() > FOUND);
    let without: Vec<Value> =
        pods().into_iter().filter(|pod| pod["ips"] != json!(["192.0.2.7"])).collect();
    assert!(without.is_empty(), "{} of them: {}", without.len(), without[0]);
    for copy in &copies {
        std::fs::remove_dir_all(place.host.path(copy)).unwrap();
    }
}
