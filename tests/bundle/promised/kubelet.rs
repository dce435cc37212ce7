// SPDX-License-Identifier: Apache-2.0
//! Promises by kubelet's data: claims of DRA drivers and extended resources, from a fake kubelet on a
//! PodResources socket. The pod is refused as a whole.

use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use test_support::{BUNDLE, Script, TestHost, fails, succeeds};
use tokio::net::UnixListener;

use super::promise;

const CLAIMS: &str = "claims = [\"dra.net\"]\nresources = [\"a.com/*\"]";

fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    assert!(length < 0x80, "longer ones have a longer length");
    [&[number << 3 | 2, length], value].concat()
}

/// A pod as kubelet lists it, whose container `app` has this claim and this resource.
fn pod(name: &str, claim: &str, resource: &str) -> Vec<u8> {
    let mut app = field(1, b"app");
    if !claim.is_empty() {
        app.extend(field(5, &[field(2, b"c"), field(4, &field(2, claim.as_bytes()))].concat()));
    }
    if !resource.is_empty() {
        app.extend(field(2, &field(1, resource.as_bytes())));
    }
    let all = [
        field(1, name.as_bytes()),
        field(2, b"shop"),
        field(3, &app),
        field(3, &field(1, b"side")),
    ];
    field(1, &all.concat())
}

/// A kubelet that counts the requests.
struct Kubelet {
    questions: Arc<Mutex<usize>>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Kubelet {
    fn answering(socket: PathBuf, pods: Vec<u8>) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let questions = Arc::new(Mutex::new(0));
        let (count, (stop, stopped)) = (Arc::clone(&questions), tokio::sync::oneshot::channel());
        let (is_bound, bound) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::bind(socket).unwrap();
                is_bound.send(()).unwrap();
                let serve = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        *count.lock().unwrap() += 1;
                        serve(stream, &pods).await;
                    }
                };
                tokio::select! { () = serve => {}, _ended = stopped => {} }
            });
        });
        bound.recv().unwrap();
        Self { questions, _stop: stop }
    }

    fn questions(&self) -> usize {
        *self.questions.lock().unwrap()
    }
}

async fn serve(stream: tokio::net::UnixStream, pods: &[u8]) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
        let mut body = respond.send_response(http::Response::new(()), false).unwrap();
        let length = u32::try_from(pods.len()).unwrap().to_be_bytes();
        body.send_data([&[0], &length[..], pods].concat().into(), true).unwrap();
    }
}

fn socket(host: &TestHost) -> PathBuf {
    host.path("kubelet/pod-resources/kubelet.sock")
}

/// A host with a promise by kubelet's data, and its kubelet's socket.
fn host(lines: &str) -> TestHost {
    let mut host = TestHost::default();
    let socket = socket(&host).display().to_string();
    let kubernetes = format!("[kubernetes]\npod_resources = \"{socket}\"\n");
    host.configure(&host.path("fake/runc"), &format!("{kubernetes}{}", promise(lines)));
    host.start_daemon();
    host
}

/// Writes a bundle as containerd's CRI plugin does.
fn bundle(host: &TestHost, pod: &str, name: &str) -> String {
    let id = if name.is_empty() { pod.to_owned() } else { format!("{pod}-{name}") };
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": if name.is_empty() { "sandbox" } else { "container" },
        "io.kubernetes.cri.sandbox-id": pod,
        "io.kubernetes.cri.sandbox-name": pod,
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-uid": format!("uid-of-{pod}"),
        "io.kubernetes.cri.container-name": name,
    });
    let folder = format!("io.containerd.runtime.v2.task/k8s.io/{id}");
    std::fs::create_dir_all(host.path(&folder).join("rootfs")).unwrap();
    host.write(&format!("{folder}/config.json"), &document.to_string());
    folder
}

/// Creates the sandbox of a pod and starts it; returns the result of the start.
fn run_pod(host: &TestHost, pod: &str) -> Output {
    succeeds(&host.create_from(&bundle(host, pod, ""), pod));
    host.verb(&["start", pod])
}

fn member(host: &TestHost, pod: &str, name: &str) -> Output {
    host.create_from(&bundle(host, pod, name), &format!("{pod}-{name}"))
}

#[test]
fn a_pod_with_the_claim_is_refused_as_a_whole() {
    let host = host(CLAIMS);
    let pods =
        [pod("p1", "dra.net", ""), pod("p2", "", "a.com/gpu"), pod("p3", "dra.cpu", "b.com/x")];
    let kubelet = Kubelet::answering(socket(&host), pods.concat());
    for (pod, why) in [("p1", "claims: \"dra.net\""), ("p2", "resources: \"a.com/gpu\"")] {
        fails(
            &run_pod(&host, pod),
            &[
                &format!("the promise \"gpu driver\" refuses pod shop/{pod} ({why})"),
                "it needs the plugin gpu, which is not connected (the pod was not started",
            ],
        );
        let refused = host.admin(&["explain", pod])["refused"].to_string();
        assert!(refused.contains("gpu driver"), "{refused}");
    }
    succeeds(&run_pod(&host, "p3"));
    succeeds(&member(&host, "p3", "app"));
    assert_eq!(kubelet.questions(), 3, "the pod's record has the answer for its containers");
}

#[test]
fn a_connected_plugin_meets_the_promise_to_a_claim() {
    let host = host(CLAIMS);
    let _kubelet = Kubelet::answering(socket(&host), pod("p1", "dra.net", ""));
    let received = host.plugin("10", "gpu", Script::default());
    succeeds(&run_pod(&host, "p1"));
    succeeds(&member(&host, "p1", "app"));
    let promises = &host.admin(&["explain", "p1-app"])["promises"];
    assert_eq!(
        (&promises[0]["why"], &promises[0]["result"]),
        (&json!("claims: \"dra.net\""), &json!("met"))
    );
    assert!(test_support::scripted_plugin::has_received(&received, "RunPodSandbox p1"));
    assert_eq!(host.admin(&["explain", "p1"])["promises"][0]["plugin"], "gpu");
}

#[test]
fn after_a_restart_of_the_daemon_the_pods_claims_are_known() {
    let mut host = host(CLAIMS);
    let kubelet = Kubelet::answering(socket(&host), pod("p1", "dra.net", ""));
    let _plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&run_pod(&host, "p1"));
    host.kill_daemon();
    host.start_daemon();
    fails(&member(&host, "p1", "app"), &["refuses container app (claims: \"dra.net\")"]);
    succeeds(&member(&host, "p1", "side"));
    assert_eq!(kubelet.questions(), 1);
}

#[test]
fn unknown_claims_refuse_a_pod_only_while_the_plugin_is_missing() {
    let host = host(CLAIMS);
    let path = socket(&host).display().to_string();
    let unreadable = format!("(claims: \"(not readable: {path}: ");
    fails(&run_pod(&host, "p1"), &["refuses pod shop/p1", &unreadable]);
    let kubelet = Kubelet::answering(socket(&host), pod("other", "dra.net", ""));
    fails(&run_pod(&host, "p2"), &["kubelet does not list the pod shop/p2"]);
    drop(kubelet);
    let _plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&run_pod(&host, "p3"));
    succeeds(&member(&host, "p3", "app"));
}

/// kubelet does not list a container, such as an init container: its claims are then read from the records
/// alone.
#[test]
fn unlisted_claims_are_read_from_kubelets_records() {
    let host = host(CLAIMS);
    let pods = [pod("p1", "dra.cpu", ""), pod("p2", "", ""), pod("p3", "", ""), pod("p4", "", "")];
    let _kubelet = Kubelet::answering(socket(&host), pods.concat());
    let claim = |pod: &str, driver: &str| json!({"ClaimName": pod, "PodUIDs": {format!("uid-of-{pod}"): {}}, "DriverState": {driver: {}}});
    let claims = [claim("p1", "dra.net"), claim("p4", "dra.cpu")];
    let claims = json!({"ClaimInfoStateList": claims}).to_string();
    host.write("kubelet/dra_manager_state", &json!({"Data": claims}).to_string());
    let device =
        json!({"PodUID": "uid-of-p2", "ContainerName": "init", "ResourceName": "a.com/gpu"});
    std::fs::create_dir_all(host.path("kubelet/device-plugins")).unwrap();
    host.write(
        "kubelet/device-plugins/kubelet_internal_checkpoint",
        &json!({"Data": {"PodDeviceEntries": [device]}}).to_string(),
    );
    fails(&run_pod(&host, "p1"), &["refuses pod shop/p1 (claims: \"dra.net\")"]);
    fails(&run_pod(&host, "p2"), &["refuses pod shop/p2 (resources: \"a.com/gpu\")"]);
    succeeds(&run_pod(&host, "p3"));
    succeeds(&run_pod(&host, "p4"));
    let plugin = host.plugin("10", "gpu", Script::default());
    succeeds(&run_pod(&host, "p2"));
    drop(plugin);
}

#[test]
fn a_kubelet_record_of_unknown_format_refuses_only_its_pods() {
    let host = host(CLAIMS);
    let _kubelet =
        Kubelet::answering(socket(&host), [pod("p1", "", ""), pod("p2", "", "")].concat());
    host.write("kubelet/dra_manager_state", r#"{"entries":[{"PodUIDs":["uid-of-p1"]}]}"#);
    fails(&run_pod(&host, "p1"), &["has an unknown format: dra_manager_state"]);
    succeeds(&run_pod(&host, "p2"));
}

#[test]
fn check_fails_while_kubelet_does_not_respond() {
    let host = host(CLAIMS);
    let row = || {
        let check = host.call(&["nri", "check", "--json"]);
        let check: Value = serde_json::from_slice(&check.stdout).unwrap();
        let rows = check.as_array().unwrap().iter();
        rows.clone().find(|row| row["check"] == "kubelet").cloned().unwrap()
    };
    assert_eq!(row()["ok"], false);
    let _kubelet = Kubelet::answering(socket(&host), pod("p1", "", ""));
    assert_eq!(row()["ok"], true);
}

#[test]
fn kubelet_is_queried_only_for_pods_a_promise_may_match() {
    let host = host(&format!("{CLAIMS}\nnamespaces = [\"prod\"]"));
    let kubelet = Kubelet::answering(socket(&host), pod("p1", "dra.net", ""));
    succeeds(&run_pod(&host, "p1"));
    succeeds(&member(&host, "p1", "app"));
    succeeds(&host.create("plain"));
    assert_eq!(kubelet.questions(), 0);
}
