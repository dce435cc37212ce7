// SPDX-License-Identifier: Apache-2.0
//! A pod is resized in place while a plugin owns some of its resources, and while another one
//! refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nri_runc::plugin::Event;
use serde_json::{Value, json};
use test_support::responding_plugin::{RespondingPlugin, Response};

use super::Cluster;
use super::inside::{Running, running};
use super::kubectl::Namespace;
use super::machine::wait_for;
use super::manifests::{container, pod, spec};
use super::plugins::Plugin;

const REFUSAL: &str = "no more today";

/// A pod with limits, whose memory a plugin reduces.
fn resizable() -> Value {
    let mut app = container("resized", "exec sleep 100000");
    app["resources"] = json!({
        "requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"cpu": "200m", "memory": "128Mi"},
    });
    let owns = json!({"resources.nri-runc.dev/pod": r#"{"memory": {"limit": 100663296}}"#});
    pod("web", &owns, &spec(&[app]))
}

fn patch(space: &Namespace, resources: &Value) {
    let containers = json!([{"name": "resized", "resources": resources}]);
    let patch = json!({"spec": {"containers": containers}}).to_string();
    space.does(&["patch", "pod", "web", "--subresource", "resize", "--patch", &patch]);
}

fn is(running: &Running, quota: &str, memory: u64) -> Option<()> {
    let now = (running.cpu_quota(), running.memory_limit());
    (now == (quota.to_owned(), (memory << 20).to_string())).then_some(())
}

/// Waits until Kubernetes shows it too.
#[track_caller]
fn shows(space: &Namespace, what: &str, limit: &str) {
    wait_for("Kubernetes shows the resize", || {
        let status = &space.pod("web")["status"]["containerStatuses"][0];
        (status["resources"]["limits"][what] == limit).then_some(())
    });
}

pub(super) fn a_resize_leaves_a_plugin_its_half(_: &Cluster) -> String {
    let space = Namespace::new("resize");
    space.apply(resizable());
    space.waits("web", "condition=Ready", 60);
    let web = running("resize", "web", "resized");
    wait_for("the plugin's limit is in force", || is(&web, "20000", 96));
    patch(&space, &json!({"requests": {"cpu": "150m"}, "limits": {"cpu": "300m"}}));
    wait_for("the new quota is in force, beside the plugin's memory", || is(&web, "30000", 96));
    shows(&space, "cpu", "300m");
    // A value that kubelet changes is kubelet's, even if it was the plugin's (D21).
    patch(&space, &json!({"limits": {"memory": "160Mi"}}));
    wait_for("the new memory is in force", || is(&web, "30000", 160));
    shows(&space, "memory", "160Mi");
    let restarts = &space.pod("web")["status"]["containerStatuses"][0]["restartCount"];
    assert_eq!(*restarts, 0, "the container was restarted");
    "cpu 200m to 300m beside a plugin's 96 MiB, then memory to 160Mi: kubelet's; in the cgroup and in \
     the pod's status, no restart"
        .to_owned()
}

pub(super) fn a_resize_that_a_plugin_refuses_changes_nothing(_: &Cluster) -> String {
    let space = Namespace::new("refused-resize");
    space.apply(resizable());
    space.waits("web", "condition=Ready", 60);
    let web = running("refused-resize", "web", "resized");
    let refuses = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&refuses);
    let guard = RespondingPlugin::new(move |event, name| {
        let is_it = event == Event::UpdateContainer && name == "resized";
        if is_it && still.load(Ordering::SeqCst) {
            Response::Refuse(REFUSAL)
        } else {
            Response::Answer
        }
    });
    let _guard = Plugin::connect("90-guard", Arc::new(guard));
    patch(&space, &json!({"limits": {"cpu": "400m"}}));
    let received = wait_for("the user is told why", || {
        let conditions = space.pod("web")["status"]["conditions"].clone();
        let mut conditions = conditions.as_array()?.clone().into_iter();
        let condition = conditions.find(|one| one["type"] == "PodResizeInProgress")?;
        let message = condition["message"].as_str()?.to_owned();
        message.contains(REFUSAL).then_some(message)
    });
    assert!(received.contains("90-guard"), "{received}");
    assert_eq!(is(&web, "20000", 96), Some(()), "a refused resize changed something");
    refuses.store(false, Ordering::SeqCst);
    wait_for("kubelet has tried again", || is(&web, "40000", 96));
    shows(&space, "cpu", "400m");
    format!(
        "the pod's condition has the plugin and \"{REFUSAL}\", the cgroup stays; once allowed, it is done"
    )
}
