// SPDX-License-Identifier: Apache-2.0
//! All operations of a cluster's user go through kubectl; each row of the table has a separate
//! Kubernetes namespace, which is deleted at its end.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use super::control::KUBECONFIG;
use super::machine::{command, wait_for};

/// Runs kubectl; returns its output, or its error.
pub(super) fn run(words: &[&str]) -> Result<String, String> {
    run_with(words, "")
}

pub(super) fn run_with(words: &[&str], input: &str) -> Result<String, String> {
    let mut kubectl = command("kubectl");
    kubectl.arg("--kubeconfig").arg(KUBECONFIG).args(words);
    kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = kubectl.spawn().map_err(|error| format!("kubectl: {error}"))?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

#[track_caller]
pub(super) fn does(words: &[&str]) -> String {
    run(words).unwrap_or_else(|error| panic!("kubectl {}: {error}", words.join(" ")))
}

#[track_caller]
pub(super) fn apply(manifest: &Value) {
    run_with(&["apply", "-f", "-"], &manifest.to_string()).unwrap();
}

/// A namespace of Kubernetes; it is deleted with its content, unless it existed before.
pub(super) struct Namespace(&'static str, bool);

impl Namespace {
    pub(super) fn new(name: &'static str) -> Self {
        apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        Self(name, true)
    }

    /// A namespace that this row must not delete.
    pub(super) fn existing(name: &'static str) -> Self {
        Self(name, false)
    }

    pub(super) fn name(&self) -> &'static str {
        self.0
    }

    pub(super) fn run(&self, words: &[&str]) -> Result<String, String> {
        run(&[&["--namespace", self.0], words].concat())
    }

    #[track_caller]
    pub(super) fn does(&self, words: &[&str]) -> String {
        does(&[&["--namespace", self.0], words].concat())
    }

    #[track_caller]
    pub(super) fn apply(&self, mut manifest: Value) {
        manifest["metadata"]["namespace"] = json!(self.0);
        apply(&manifest);
    }

    #[track_caller]
    pub(super) fn pod(&self, name: &str) -> Value {
        serde_json::from_str(&self.does(&["get", "pod", name, "-o", "json"])).unwrap()
    }

    /// Returns the namespace's pods that are not being deleted.
    #[track_caller]
    pub(super) fn pods(&self) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.does(&["get", "pods", "-o", "json"])).unwrap();
        let pods = list["items"].as_array().unwrap().iter();
        pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).cloned().collect()
    }

    /// Waits for a pod's condition; prints the pod if it never comes.
    #[track_caller]
    pub(super) fn waits(&self, pod: &str, condition: &str, seconds: u32) {
        let (pod, until) = (format!("pod/{pod}"), format!("--for={condition}"));
        let most = format!("--timeout={seconds}s");
        if let Err(error) = self.run(&["wait", &pod, &until, &most]) {
            panic!("{pod} is never {condition} ({error}): {}", self.warnings());
        }
    }

    /// The warnings of Kubernetes here.
    pub(super) fn warnings(&self) -> String {
        let words = ["get", "events", "--field-selector=type=Warning", "-o", "json"];
        let list: Value = serde_json::from_str(&self.run(&words).unwrap_or_default())
            .unwrap_or_else(|_no_answer| json!({"items": []}));
        let events = list["items"].as_array().into_iter().flatten();
        let texts = events.map(|event| event["message"].as_str().unwrap_or_default().to_owned());
        texts.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn logs(&self, pod: &str, container: &str) -> String {
        self.run(&["logs", pod, "-c", container]).unwrap_or_default()
    }

    /// Deletes its whole content, and waits until no pod is left.
    #[track_caller]
    pub(super) fn empties(&self) {
        // First the objects that would replace a deleted pod.
        self.does(&["delete", "deployments", "--all", "--cascade=foreground", "--timeout=120s"]);
        self.does(&["delete", "pods", "--all", "--wait=false"]);
        wait_for("all pods are gone", || {
            self.does(&["get", "pods", "-o", "name"]).is_empty().then_some(())
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.1 {
            let words = ["delete", "namespace", self.0, "--wait=false"];
            let _of_a_row_that_failed = run(&words);
        }
    }
}
