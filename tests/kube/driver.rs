// SPDX-License-Identifier: Apache-2.0
//! The small DRA driver of the tests (`driver/main.go`) as a process of the node, with the class of its devices.

use std::path::Path;

use serde_json::{Value, json};
use test_support::tools;

use super::control::KUBECONFIG;
use super::kubectl::{Namespace, apply, run};
use super::machine::{Machine, PROGRAMS, Process, wait_for};
use super::node::NAME;

const PROGRAM: &str = "kube-driver";

/// A running driver, until it is dropped.
pub(super) struct Driver {
    name: &'static str,
    process: Process,
}

impl Driver {
    /// Starts it; its devices are published when this returns. `mode` is `devices` or nothing.
    pub(super) fn start(machine: &Machine, name: &'static str, mode: &[&str]) -> Self {
        let built = tools::kube().unwrap().with_file_name(PROGRAM);
        let link = Path::new(PROGRAMS).join(PROGRAM);
        if !link.exists() {
            std::os::unix::fs::symlink(built, link).unwrap();
        }
        let words = [&[name, NAME, KUBECONFIG][..], mode].concat();
        let started = Self { name, process: machine.start(PROGRAM, &words) };
        let selector = json!({"cel": {"expression": format!("device.driver == '{name}'")}});
        apply(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": [selector]},
        }));
        wait_for("the driver's devices are published", || {
            let list = run(&["get", "resourceslices", "-o", "json"]).ok()?;
            let list: Value = serde_json::from_str(&list).ok()?;
            let mut slices = list["items"].as_array()?.iter();
            slices.any(|slice| slice["spec"]["driver"] == name).then_some(())
        });
        started
    }

    /// Creates a template of claims for one of the driver's devices, named like the driver.
    pub(super) fn offer(&self, space: &Namespace) {
        let request = json!({"name": "one", "exactly": {"deviceClassName": self.name}});
        space.apply(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.process.stop();
        let selector = format!("--field-selector=spec.driver={}", self.name);
        for words in [["deviceclass", self.name], ["resourceslice", &selector]] {
            let _of_a_row_that_failed = run(&[&["delete"], &words[..]].concat());
        }
    }
}

/// The CDI files of prepared claims.
pub(super) fn prepared() -> Vec<String> {
    let files = std::fs::read_dir("/var/run/cdi").into_iter().flatten().flatten();
    files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

/// Whether the pod's first claim is prepared as a CDI device.
pub(super) fn is_prepared(space: &Namespace, pod: &str) -> bool {
    let claim = &space.pod(pod)["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
    let claim = claim.as_str().unwrap();
    let uid = space.does(&["get", "resourceclaim", claim, "-o", "jsonpath={.metadata.uid}"]);
    prepared().iter().any(|file| file.contains(&uid))
}
