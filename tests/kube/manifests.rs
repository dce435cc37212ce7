// SPDX-License-Identifier: Apache-2.0
//! Pods as their authors write them, on the image of the node.

use serde_json::{Value, json};

/// The annotations of a pod that requests the card (a CDI device with a variable, `CARD=one`).
pub(super) fn card() -> Value {
    json!({"cdi-devices.noderesource.dev": r#"["example.org/card=one"]"#})
}

/// Prints the card's variable, and then sleeps.
pub(super) const SHOWS_CARD: &str = "echo card=$CARD; exec sleep 100000";

/// A container that runs a script.
pub(super) fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": "localhost/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    })
}

/// The specification of a pod whose containers run through nri-runc.
pub(super) fn spec(containers: &[Value]) -> Value {
    json!({
        "runtimeClassName": "nri-runc",
        "containers": containers,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
    })
}

pub(super) fn pod(name: &str, annotations: &Value, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    })
}

pub(super) fn deployment(name: &str, replicas: u32, annotations: &Value, spec: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": annotations},
                "spec": spec,
            },
        },
    })
}
