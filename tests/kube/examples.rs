// SPDX-License-Identifier: Apache-2.0
//! A sample plugin as a DaemonSet, as in `contrib/kubernetes/examples`: it connects from its pod, and is
//! replaced by its next pod while containers are created.

use serde_json::{Value, json};

use super::Cluster;
use super::chart::{import_image, installed};
use super::helm::{NAMESPACE, contrib};
use super::inside::admin;
use super::kubectl::{Namespace, does};
use super::machine::wait_for;
use super::manifests::{container, pod, spec};

const PLUGIN: &str = "ulimit-adjuster";
const DAEMONSET: &str = "daemonset/nri-plugin-ulimit-adjuster";
/// Pods that are created during the replacement.
const PODS: usize = 12;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

fn is_synchronized() -> bool {
    let plugins = admin(&["plugins"]);
    let mut all = plugins.as_array().into_iter().flatten();
    all.any(|one| one["name"] == PLUGIN && one["state"] == "synchronized")
}

fn limited() -> Value {
    json!({"ulimits.noderesource.dev/container.app": r#"[{"type": "RLIMIT_NOFILE", "hard": 123, "soft": 123}]"#})
}

#[track_caller]
fn rolls_out() {
    does(&["--namespace", NAMESPACE, "rollout", "status", DAEMONSET, "--timeout=120s"]);
}

pub(super) fn a_sample_plugin_is_replaced_while_containers_are_created(
    cluster: &Cluster,
) -> String {
    drop(installed());
    import_image(cluster, "kube-plugin.tar");
    let folder = contrib("examples/ulimit-adjuster");
    does(&["apply", "--kustomize", &folder]);
    rolls_out();
    wait_for("the plugin is synchronized", || is_synchronized().then_some(()));
    let space = Namespace::new("examples");
    does(&["--namespace", NAMESPACE, "rollout", "restart", DAEMONSET]);
    for number in 0..PODS {
        let spec = spec(&[container("app", "ulimit -n; exec sleep 100000")]);
        space.apply(pod(&format!("web-{number}"), &limited(), &spec));
        std::thread::sleep(PAUSE);
    }
    rolls_out();
    for number in 0..PODS {
        let name = format!("web-{number}");
        space.waits(&name, "condition=Ready", 90);
        assert_eq!(space.logs(&name, "app"), "123\n", "{name} was created without the plugin");
    }
    space.empties();
    does(&["delete", "--kustomize", &folder]);
    format!(
        "{PLUGIN} was replaced by its next pod (maxSurge) while {PODS} pods came: each is adjusted"
    )
}
