// SPDX-License-Identifier: Apache-2.0
//! A promise (`[[require]]`) by claims, with kubelet's data and a DRA driver: pods with the claim need the plugin,
//! others do not; unknown data is treated as a match.

use std::sync::Arc;

use serde_json::{Value, json};
use test_support::responding_plugin::{RespondingPlugin, Response};

use super::Cluster;
use super::driver::{Driver, is_prepared, prepared};
use super::inside::{admin, daemon, running};
use super::kubectl::Namespace;
use super::machine::{Machine, wait_for, write};
use super::manifests::{container, pod, spec};
use super::plugins::Plugin;

const FILE: &str = "/etc/nri-runc/config.d/claims.toml";
/// The driver that the promise names: its devices are CDI devices.
const GPU: &str = "gpu.example.org";
/// A driver that gives containers no device.
const NIC: &str = "nic.example.org";
/// The extended resource of its device plugin.
const UNIT: &str = "gpu.example.org/unit";
const PROMISE: &str = r#"[[require]]
name = "gpu driver"
claims = ["gpu.example.org"]
resources = ["gpu.example.org/unit"]
plugin = "gpu"
"#;
/// The reason for a pod with the claim.
const CLAIM: &str = "claims: \"gpu.example.org\"";
const HIDDEN: &str = "KubeletPodResourcesDynamicResources";

/// The configuration with the promise, until it is dropped.
struct Promised<'m>(&'m Machine);

impl<'m> Promised<'m> {
    fn new(machine: &'m Machine) -> Self {
        let promised = Self(machine);
        promised.configure("");
        promised
    }

    /// Puts the promise in force, with these lines before it.
    fn configure(&self, lines: &str) {
        write(FILE, &format!("{lines}{PROMISE}"), 0o644);
        if daemon().is_some() {
            self.0.run("nri-runc", &["nri", "reload"]);
        }
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        let _once = std::fs::remove_file(FILE);
        if daemon().is_some() {
            self.0.run("nri-runc", &["nri", "reload"]);
        }
    }
}

/// Applies a pod whose containers request these: a claim, by driver, or an extended resource. `init` is for an
/// ordinary init container.
fn put(space: &Namespace, name: &str, init: Option<&str>, app: Option<&str>) {
    let with = |name: &str, script: &str, wanted: Option<&str>| {
        let mut one = container(name, script);
        if let Some(wanted) = wanted {
            one["resources"] = match is_claim(wanted) {
                true => json!({"claims": [{"name": short(wanted)}]}),
                false => json!({"limits": {wanted: "1"}}),
            };
        }
        one
    };
    let mut both = spec(&[with("app", "echo claim=$CLAIM; exec sleep 100000", app)]);
    if init.is_some() {
        both["initContainers"] = json!([with("init", "echo claim=$CLAIM", init)]);
    }
    let drivers = [init, app].into_iter().flatten().filter(|wanted| is_claim(wanted));
    let claims =
        drivers.map(|driver| json!({"name": short(driver), "resourceClaimTemplateName": driver}));
    both["resourceClaims"] = claims.collect();
    space.apply(pod(name, &json!({}), &both));
}

fn is_claim(wanted: &str) -> bool {
    !wanted.contains('/')
}

fn short(driver: &str) -> &str {
    driver.split('.').next().unwrap()
}

/// Waits for the event with the refusal of a pod; the reason ends with `why`.
#[track_caller]
fn refused(space: &Namespace, pod: &str, why: &str) {
    let line = format!("the promise \"gpu driver\" refuses pod claims/{pod} ({why}");
    let what = format!("the event with: {line}");
    wait_for(&what, || {
        // kubelet quotes the engine's error in its own.
        let printed = space.warnings().replace('\\', "");
        printed.contains(&line).then_some(())
    });
    let is_running =
        |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
    assert!(!is_running(&space.pod(pod)), "{pod} runs");
}

fn connect() -> Plugin {
    Plugin::connect("10-gpu", Arc::new(RespondingPlugin::always(Response::Answer)))
}

/// The row of `check` about kubelet.
fn is_kubelet_readable() -> bool {
    let check = admin(&["check"]);
    let mut rows = check.as_array().unwrap().iter();
    rows.find(|row| row["check"] == "kubelet").unwrap()["ok"] == true
}

/// Checks that without the plugin pods with the claim do not start, and others do.
fn needs_the_plugin(cluster: &Cluster, space: &Namespace) {
    put(space, "plain", None, None);
    put(space, "nic", None, Some(NIC));
    put(space, "user", None, Some(GPU));
    put(space, "init", Some(GPU), Some(NIC));
    put(space, "unit", Some(UNIT), None);
    refused(space, "unit", "resources: \"gpu.example.org/unit\"");
    for pod in ["user", "init"] {
        refused(space, pod, CLAIM);
        assert!(is_prepared(space, pod), "kubelet asks the engine before the driver");
    }
    for pod in ["plain", "nic"] {
        space.waits(pod, "condition=Ready", 30);
    }
    let before = daemon().unwrap();
    cluster.machine.run("nri-runc", &["nri", "restart"]);
    assert_ne!(daemon().unwrap(), before);
    put(space, "late", None, Some(GPU));
    refused(space, "late", CLAIM);
}

/// Checks that kubelet's retries start the pods once the plugin is connected, and that running pods
/// continue without it.
fn starts_with_the_plugin(space: &Namespace) {
    let plugin = connect();
    for pod in ["user", "init", "unit", "late"] {
        space.waits(pod, "condition=Ready", 60);
    }
    for (pod, container) in [("user", "app"), ("init", "init")] {
        assert_eq!(space.logs(pod, container), "claim=gpu.example.org\n", "{pod}");
    }
    // A restarted kubelet forgets the device plugin.
    space.does(&["delete", "pod", "unit"]);
    let first = running("claims", "user", "app").id;
    let promise = admin(&["explain", &first])["promises"][0].clone();
    assert_eq!((&promise["why"], &promise["result"]), (&json!(CLAIM), &json!("met")));
    drop(plugin);
    put(space, "next", None, Some(GPU));
    refused(space, "next", CLAIM);
    assert_eq!(running("claims", "user", "app").id, first);
}

/// Checks that the claims are read from the records of a kubelet that lists none.
fn reads_the_record(cluster: &Cluster, space: &Namespace) {
    cluster.node.restart_kubelet(&cluster.machine, &[HIDDEN], || {
        for (pod, driver) in [("hidden", GPU), ("hidden-nic", NIC)] {
            put(space, pod, None, Some(driver));
            // A starting kubelet deletes the devices of its node, and a driver publishes them half a minute later.
            space.waits(pod, "condition=PodScheduled", 60);
        }
    });
    refused(space, "hidden", CLAIM);
    space.waits("hidden-nic", "condition=Ready", 60);
}

/// Checks that any pod may have the claim if the socket is absent or belongs to another program.
fn doubts_without_kubelet(space: &Namespace, promised: &Promised<'_>) {
    assert!(is_kubelet_readable());
    for (pod, socket) in
        [("absent", "/run/absent.sock"), ("wrong", "/run/containerd/containerd.sock")]
    {
        promised.configure(&format!("[kubernetes]\npod_resources = \"{socket}\"\n"));
        assert!(!is_kubelet_readable(), "{socket}");
        put(space, pod, None, None);
        refused(space, pod, &format!("claims: \"(not readable: {socket}: "));
    }
    let _plugin = connect();
    for pod in ["next", "hidden", "absent", "wrong"] {
        space.waits(pod, "condition=Ready", 60);
    }
}

pub(super) fn a_claim_needs_the_plugin_of_its_driver(cluster: &Cluster) -> String {
    let promised = Promised::new(&cluster.machine);
    let gpu = Driver::start(&cluster.machine, GPU, &["devices"]);
    let nic = Driver::start(&cluster.machine, NIC, &[]);
    let space = Namespace::new("claims");
    gpu.offer(&space);
    nic.offer(&space);
    needs_the_plugin(cluster, &space);
    starts_with_the_plugin(&space);
    reads_the_record(cluster, &space);
    doubts_without_kubelet(&space, &promised);
    space.empties();
    wait_for("every claim is unprepared", || prepared().is_empty().then_some(()));
    cluster.node.restart_kubelet(&cluster.machine, &[], || {});
    "without the plugin: pods with the claim or the resource are refused, also where only an init container has it, \
     after a restart of the daemon, and with a kubelet that lists no claims; others start; a running one lives on; \
     each is refused while kubelet's socket is absent or another program's; all start once the plugin is there"
        .to_owned()
}
