// SPDX-License-Identifier: Apache-2.0
//! `[[require]]` with the built binary: containers with certain devices need the plugin of their driver.

mod away;
mod devices;
mod kubelet;

use serde_json::{Value, json};
use test_support::{BUNDLE, TestHost, started};

/// A host with a promise of the plugin `gpu` with these further lines.
fn host(lines: &str) -> TestHost {
    started(&promise(lines))
}

fn promise(lines: &str) -> String {
    format!("[[require]]\nname = \"gpu driver\"\nplugin = \"gpu\"\n{lines}\n")
}

/// Writes a bundle with the device `path` and this annotation; returns its folder.
fn with_device(host: &TestHost, bundle: &str, path: &str, annotation: (&str, &str)) -> String {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    if !path.is_empty() {
        let device = json!({"path": path, "type": "c", "major": 195, "minor": 0});
        document["linux"]["devices"] = json!([device]);
    }
    if !annotation.0.is_empty() {
        document["annotations"] = json!({annotation.0: annotation.1});
    }
    std::fs::create_dir_all(host.path(bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), &document.to_string());
    bundle.to_owned()
}

/// The bundle of a container with `/dev/nvidia0`.
fn gpu(host: &TestHost) -> String {
    with_device(host, "gpu", "/dev/nvidia0", ("", ""))
}

fn metric(host: &TestHost, line: &str) -> bool {
    let output = host.call(&["nri", "metrics"]);
    String::from_utf8_lossy(&output.stdout).lines().any(|other| other == line)
}
