// SPDX-License-Identifier: Apache-2.0
//! helm, and the chart as a user installs it on this node.

use std::path::PathBuf;
use std::process::Stdio;

use super::control::{KUBECONFIG, NODE_ADDRESS, SERVER_PORT};
use super::kubectl;
use super::machine::{command, write};
use super::node::CONFIGURATION;

/// The namespace and the name of the release.
pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const RELEASE: &str = "nri-runc";
/// The configuration that the release gives the nodes.
const CONFIG_FILE: &str = "/var/lib/kubernetes/node.toml";

/// The folder of the chart, or one beside it.
pub(super) fn contrib(name: &str) -> String {
    test_support::program::project().join("contrib/kubernetes").join(name).display().to_string()
}

pub(super) fn chart() -> String {
    contrib("chart/nri-runc")
}

fn program() -> PathBuf {
    std::env::var_os("NRI_RUNC_HELM").map(PathBuf::from).expect("scripts/kube.sh names helm")
}

/// A program of the node helper's crate, built by `scripts/kube.sh`.
pub(super) fn node_helper(name: &str) -> PathBuf {
    let folder = std::env::var_os("NRI_RUNC_NODE_HELPER").map(PathBuf::from);
    folder.expect("scripts/kube.sh names the folder of the node helper").join(name)
}

/// Runs helm; returns its output, or its error.
pub(super) fn run(words: &[&str]) -> Result<String, String> {
    let mut helm = command(&program().display().to_string());
    helm.arg("--kubeconfig").arg(KUBECONFIG).args(words).stdin(Stdio::null());
    let output = helm.output().map_err(|error| format!("helm: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    Err(format!("{printed}{}", String::from_utf8_lossy(&output.stderr)))
}

#[track_caller]
pub(super) fn does(words: &[&str]) -> String {
    run(words).unwrap_or_else(|error| panic!("helm {}: {error}", words.join(" ")))
}

/// Runs `install` or `upgrade` with the values of this node; `comment` changes the configuration.
pub(super) fn release(verb: &str, tag: &str, comment: &str) -> Result<String, String> {
    write(CONFIG_FILE, &format!("# {comment}\n{CONFIGURATION}"), 0o644);
    let printed = run(&[
        verb,
        RELEASE,
        &chart(),
        "--namespace",
        NAMESPACE,
        "--set",
        &format!("image.tag={tag},image.pullPolicy=Never"),
        // No kube-proxy runs here.
        "--set",
        &format!("apiServer.host={NODE_ADDRESS},apiServer.port={SERVER_PORT}"),
        "--set-file",
        &format!("config={CONFIG_FILE}"),
    ])?;
    // `--wait` counts the pods that may be unavailable as ready: on one node, that is all.
    let daemonset = format!("daemonset/{RELEASE}");
    let words = ["--namespace", NAMESPACE, "rollout", "status", &daemonset, "--timeout=180s"];
    kubectl::run(&words).map(|_rolled_out| printed)
}
