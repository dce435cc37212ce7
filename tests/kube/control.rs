// SPDX-License-Identifier: Apache-2.0
//! The control plane: etcd, the API server, the controllers and the scheduler, on loopback and the
//! bridge of the pods.

use serde_json::json;

use super::machine::{Machine, Process, wait_for, write};

const STORE: &str = "http://127.0.0.1:2379";
const SERVER: &str = "https://127.0.0.1:6443";
pub(super) const SERVER_PORT: &str = "6443";
/// The server can only be reached from this machine.
const TOKEN: &str = "the-only-user-of-this-cluster";
pub(super) const KUBECONFIG: &str = "/etc/kubernetes/admin.conf";
/// The address of the node on the bridge of its pods.
pub(super) const NODE_ADDRESS: &str = "10.88.0.1";
pub(super) const CERTIFICATES: &str = "/var/lib/kubernetes";

/// Starts it; it responds when this returns.
pub(super) fn start(machine: &Machine) -> Vec<Process> {
    write_access();
    let store = etcd(machine);
    let server = api_server(machine);
    wait_for("the API server is ready", || {
        let asked = super::kubectl::run(&["get", "--raw", "/readyz"]);
        asked.is_ok_and(|printed| printed == "ok").then_some(())
    });
    let config = format!("--kubeconfig={KUBECONFIG}");
    let words = [config.as_str(), "--leader-elect=false"];
    // Pods verify the server by its own certificate.
    let authority = format!("--root-ca-file={CERTIFICATES}/apiserver.crt");
    let controllers = [&words[..], &[authority.as_str()]].concat();
    let controllers = machine.start("kube-controller-manager", &controllers);
    let scheduler = machine.start("kube-scheduler", &words);
    vec![scheduler, controllers, server, store]
}

fn write_access() {
    write("/etc/kubernetes/tokens.csv", &format!("{TOKEN},admin,1,\"system:masters\"\n"), 0o600);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": SERVER, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
        "current-context": "here",
    });
    write(KUBECONFIG, &config.to_string(), 0o600);
}

/// Starts etcd without syncing to disk, because its data is needed only for this test.
fn etcd(machine: &Machine) -> Process {
    let words = [
        "--data-dir=/var/lib/etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        &format!("--listen-client-urls={STORE}"),
        &format!("--advertise-client-urls={STORE}"),
    ];
    machine.start("etcd", &words)
}

fn api_server(machine: &Machine) -> Process {
    // The key of its own certificate signs the tokens of service accounts.
    let key = format!("{CERTIFICATES}/apiserver.key");
    let words = [
        &format!("--etcd-servers={STORE}"),
        // Pods contact it too, on the bridge.
        "--bind-address=0.0.0.0",
        &format!("--secure-port={SERVER_PORT}"),
        &format!("--advertise-address={NODE_ADDRESS}"),
        &format!("--cert-dir={CERTIFICATES}"),
        "--authorization-mode=RBAC",
        "--token-auth-file=/etc/kubernetes/tokens.csv",
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
        "--service-account-issuer=https://kubernetes.invalid",
        &format!("--service-account-key-file={key}"),
        &format!("--service-account-signing-key-file={key}"),
        "--service-cluster-ip-range=10.96.0.0/16",
        "--kubelet-preferred-address-types=InternalIP",
    ];
    machine.start("kube-apiserver", &words)
}
