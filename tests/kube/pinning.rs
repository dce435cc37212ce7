// SPDX-License-Identifier: Apache-2.0
//! kubelet's static CPU manager beside a plugin that pins.

use serde_json::json;

use super::Cluster;
use super::inside::running;
use super::kubectl::Namespace;
use super::machine::wait_for;
use super::manifests::{container, pod, spec};
use super::node::Node;

/// The reconcile period of the CPU manager is 1 s, so it has run more than once.
const RECONCILED: std::time::Duration = std::time::Duration::from_secs(4);

pub(super) fn the_static_cpu_manager_and_a_plugin_both_pin(_: &Cluster) -> String {
    let capacity = Node::state()["status"]["capacity"]["cpu"].as_str().unwrap().to_owned();
    assert_ne!(capacity, "1", "with one CPU kubelet has none to give away");
    let space = Namespace::new("pinning");
    let pinned = json!({"resources.nri-runc.dev/pod": r#"{"cpu": {"cpus": "0"}}"#});
    space.apply(pod("pinned", &pinned, &spec(&[container("app", "exec sleep 100000")])));
    space.apply(pod("shared", &json!({}), &spec(&[container("app", "exec sleep 100000")])));
    for name in ["pinned", "shared"] {
        space.waits(name, "condition=Ready", 60);
    }
    let (plugins, shared) =
        (running("pinning", "pinned", "app"), running("pinning", "shared", "app"));
    std::thread::sleep(RECONCILED);
    assert_eq!(plugins.cpus(), "0", "kubelet's repetition undid the plugin's pin");
    let before = shared.cpus();

    let mut exclusive = container("app", "exec sleep 100000");
    let whole = json!({"cpu": "1", "memory": "32Mi"});
    exclusive["resources"] = json!({"requests": whole, "limits": whole});
    space.apply(pod("exclusive", &json!({}), &spec(&[exclusive])));
    space.waits("exclusive", "condition=Ready", 60);
    let own = running("pinning", "exclusive", "app").cpus();
    assert!(own.parse::<u32>().is_ok_and(|cpu| cpu > 0), "kubelet's exclusive CPU is {own}");
    wait_for("the shared pool has lost that CPU", || {
        let is_left = |cpus: String| cpus != before && !cpus.contains(&own);
        is_left(shared.cpus()).then_some(())
    });
    std::thread::sleep(RECONCILED);
    assert_eq!(
        (plugins.cpus().as_str(), running("pinning", "exclusive", "app").cpus()),
        ("0", own.clone())
    );
    format!(
        "of {capacity} CPUs kubelet gave CPU {own} away for itself and left the shared pool {}; the plugin's pin \
         stayed 0 throughout",
        shared.cpus()
    )
}
