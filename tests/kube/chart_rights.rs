// SPDX-License-Identifier: Apache-2.0
//! The permissions of the chart's DaemonSet pod on its node, and of its token in the cluster: an attacker
//! who controls the pod gets no more.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::Cluster;
use super::chart::installed;
use super::control::{CERTIFICATES, NODE_ADDRESS, SERVER_PORT};
use super::helm::{NAMESPACE, RELEASE, node_helper};
use super::kubectl::{Namespace, apply, does, run};
use super::machine::{command, wait_for, write};
use super::node::NAME;

/// The file with a token of the pod's account, as kubelet gives it to the pod.
pub(super) const ACCOUNT: &str = "/var/lib/kubernetes/account";

/// Requests that its account must not make.
const FORBIDDEN: [&[&str]; 11] = [
    &["get", "nodes"],
    &["update", "nodes"],
    &["update", "nodes", "--subresource=status"],
    &["patch", "events", "--namespace", NAMESPACE],
    &["list", "events", "--namespace", NAMESPACE],
    &["get", "pods", "--all-namespaces"],
    &["get", "secrets", "--namespace", NAMESPACE],
    &["delete", "daemonsets/nri-runc", "--namespace", NAMESPACE],
    &["get", "daemonsets/other", "--namespace", NAMESPACE],
    &["create", "pods", "--namespace", NAMESPACE],
    &["list", "pods", "--namespace", NAMESPACE],
];

/// Patches that RBAC permits and the policy does not, with its reason.
const REFUSED: [(&str, &str); 5] = [
    (r#"{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}"#, "no label but"),
    (r#"{"metadata":{"labels":{"kubernetes.io/hostname":null}}}"#, "no label but"),
    (r#"{"metadata":{"annotations":{"a":"b"}}}"#, "nothing of a node but its label"),
    (r#"{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}"#, "no taint but"),
    (r#"{"spec":{"unschedulable":true}}"#, "nothing of a node but its label"),
];

/// A field of the status of the pod's process.
fn status_field(name: &str) -> String {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let found = processes.filter_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        if !line.starts_with(b"/nri-runc\0nri\0node\0") {
            return None;
        }
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let field = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")))?;
        Some(field.trim().to_owned())
    });
    found.collect::<Vec<_>>().join(" and ")
}

fn may(account: &str, words: &[&str]) -> bool {
    let answer = run(&[&["auth", "can-i", account], words].concat());
    answer.unwrap_or_else(|error| error).trim().starts_with("yes")
}

/// Stores a token of the pod's account, bound to the pod like kubelet's.
fn take_token() {
    let space = Namespace::existing(NAMESPACE);
    let pods = space.pods();
    let is_its = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == RELEASE;
    let pod = pods.iter().find(is_its).expect("the DaemonSet has no pod");
    take_token_of(&space, pod["metadata"]["name"].as_str().unwrap());
}

/// Stores a token of the account, bound to the pod of this name.
pub(super) fn take_token_of(space: &Namespace, name: &str) {
    let bound = ["--bound-object-kind=Pod", "--bound-object-name", name];
    let token = space.does(&[&["create", "token", RELEASE], &bound[..]].concat());
    write(&format!("{ACCOUNT}/token"), &token, 0o600);
    let authority = std::fs::read_to_string(Path::new(CERTIFICATES).join("apiserver.crt")).unwrap();
    write(&format!("{ACCOUNT}/ca.crt"), &authority, 0o600);
}

/// Patches a node with that token; returns the line of a failure.
fn patch(node: &str, patch: &str) -> Result<(), String> {
    api("PATCH", &format!("nodes/{node}"), patch)
}

/// Sends a request with that token; returns the line of a failure.
pub(super) fn api(method: &str, path: &str, body: &str) -> Result<(), String> {
    let mut helper = command(&node_helper("nri-runc-node-helper").display().to_string());
    helper.args(["api", method, &format!("/api/v1/{path}")]);
    helper.env("NRI_RUNC_SERVICE_ACCOUNT", ACCOUNT);
    helper.env("KUBERNETES_SERVICE_HOST", NODE_ADDRESS).env("KUBERNETES_SERVICE_PORT", SERVER_PORT);
    helper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = helper.spawn().unwrap();
    child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

pub(super) fn its_pod_may_do_what_it_needs_alone(_: &Cluster) -> String {
    drop(installed());
    for (field, wanted) in [("CapEff", "0000000000000000"), ("NoNewPrivs", "1"), ("Seccomp", "2")] {
        assert_eq!(status_field(field), wanted, "{field}");
    }
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:{RELEASE}");
    for words in [
        &["patch", "nodes"][..],
        &["patch", "nodes", "--subresource=status"],
        &["create", "events"],
    ] {
        assert!(may(&account, words), "its account may not {words:?}");
    }
    assert!(may(&account, &["get", "daemonsets/nri-runc", "--namespace", NAMESPACE]));
    for words in FORBIDDEN {
        assert!(!may(&account, words), "its account may {words:?}");
    }
    take_token();
    for (wrong, why) in REFUSED {
        // A policy is in force a moment after its creation.
        let printed = wait_for("the policy refuses it", || patch(NAME, wrong).err());
        assert!(printed.contains(why), "{wrong}: {printed}");
    }
    let label = r#"{"metadata":{"labels":{"nri-runc.dev/ready":"true"}}}"#;
    patch(NAME, label).unwrap();
    apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}));
    let printed = patch("other", label).expect_err("another node was labelled");
    assert!(printed.contains("the node that its pod runs on, and no other"), "{printed}");
    does(&["delete", "node", "other"]);
    std::fs::remove_dir_all(ACCOUNT).unwrap();
    "no capability, no new privileges, seccomp; its token reads one DaemonSet and sets one label, of its own \
     node alone, beside its reports"
        .to_owned()
}
