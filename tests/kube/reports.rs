// SPDX-License-Identifier: Apache-2.0
//! Reports of `nri node`, with the account, the permissions and the policies of the kustomization: a missing
//! required plugin keeps pods off the node until the plugin's DaemonSet, which tolerates that, has brought it
//! back; the refused pod has an Event.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::example::example;

use super::Cluster;
use super::chart::start_systemd;
use super::chart_rights::{ACCOUNT, api, take_token_of};
use super::control::{NODE_ADDRESS, SERVER_PORT};
use super::helm::{contrib, node_helper};
use super::kubectl::{Namespace, apply, does};
use super::machine::{PROGRAMS, Process, wait_for, write};
use super::node::{NAME, Node, PLUGINS};

const KEY: &str = "nri-runc.dev/missing-guard";
/// Time for the removal, which restarts the engine.
const REMOVAL: Duration = Duration::from_secs(120);
const HELPER: &str = "/usr/local/bin/reports-helper";

/// Requests that RBAC permits and a policy does not, with a word of its reason.
const REFUSED: [(&str, &str, &str, &str); 6] = [
    (
        "PATCH",
        "nodes/node",
        r#"{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}"#,
        "no taint but",
    ),
    (
        "PATCH",
        "nodes/node",
        r#"{"spec":{"taints":[{"key":"nri-runc.dev/missing-a","effect":"NoExecute"}]}}"#,
        "no taint but",
    ),
    (
        "STRATEGIC",
        "nodes/node/status",
        r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#,
        "no condition but",
    ),
    (
        "STRATEGIC",
        "nodes/node/status",
        r#"{"status":{"capacity":{"example.org/x":"1"}}}"#,
        "nothing of a node but",
    ),
    ("STRATEGIC", "nodes/node/status", r#"{"metadata":{"labels":{"a":"b"}}}"#, "no label but"),
    (
        "POST",
        "namespaces/default/events",
        r#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"x","namespace":"default"},"involvedObject":{"kind":"Node","name":"node","namespace":"default"},"type":"Warning","reportingComponent":"nri-runc","source":{"component":"nri-runc","host":"node"}}"#,
        "warnings about pods",
    ),
];

/// The DaemonSet's pod, only for its account and node: the program runs beside it.
fn take_token() -> Namespace {
    let space = Namespace::existing("kube-system");
    space.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "reporter"},
        "spec": {
            "serviceAccountName": "nri-runc", "automountServiceAccountToken": false, "nodeName": NAME,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "localhost/busybox:1", "command": ["busybox", "sleep", "9999"]}],
        },
    }));
    take_token_of(&space, "reporter");
    space
}

fn web(space: &Namespace, name: &str) {
    space.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "runtimeClassName": "nri-runc", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "localhost/busybox:1", "command": ["busybox", "sleep", "9999"]}],
        },
    }));
}

/// The plugin as a DaemonSet, with the toleration in docs/kubernetes.md.
fn plugin() -> Value {
    let program = example("event_logger").display().to_string();
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "guard"},
        "spec": {
            "selector": {"matchLabels": {"app": "guard"}},
            "template": {
                "metadata": {"labels": {"app": "guard"}},
                "spec": {
                    "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                    "tolerations": [{"key": KEY, "operator": "Exists"}],
                    "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
                    "containers": [{
                        "name": "guard", "image": "localhost/busybox:1",
                        "command": ["busybox", "chroot", "/host", program, "--reconnect", "--id", "10-guard",
                            "--socket", PLUGINS],
                        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
                    }],
                },
            },
        },
    })
}

/// Whether the node has the condition, and the taint.
fn reported() -> (bool, bool) {
    let node = Node::state();
    let has = |list: &Value, member: &str| {
        list.as_array().into_iter().flatten().any(|one| one[member] == KEY)
    };
    (has(&node["status"]["conditions"], "type"), has(&node["spec"]["taints"], "key"))
}

fn waits(wanted: bool) {
    let what = format!("condition and taint are there: {wanted}");
    wait_for(&what, || (reported() == (wanted, wanted)).then_some(()));
}

/// Creates the account with its permissions, and the policies.
fn apply_rights() {
    for file in ["serviceaccount", "rbac", "admission"] {
        does(&["apply", "-f", &contrib(&format!("kustomize/base/{file}.yaml"))]);
    }
    // The kustomization sets no taint: the chart renders this for report.taint=NoSchedule.
    let policy = std::fs::read_to_string(contrib("kustomize/base/admission.yaml")).unwrap();
    let taints = r#"taint in variables.taintsBefore || (taint.key.startsWith("nri-runc.dev/missing-") && taint.effect == "NoSchedule"))"#;
    let policy = policy.replacen("taint in variables.taintsBefore)", taints, 1);
    assert!(policy.contains(taints));
    write("/etc/kubernetes/admission.yaml", &policy, 0o600);
    does(&["apply", "-f", "/etc/kubernetes/admission.yaml"]);
}

/// Starts `nri node` as the pod would, with the account's token.
fn start_program(cluster: &Cluster) -> Process {
    let account =
        format!("export NRI_RUNC_SERVICE_ACCOUNT={ACCOUNT} KUBERNETES_SERVICE_HOST={NODE_ADDRESS}");
    let program = node_helper("nri-runc-node-helper").display().to_string();
    let script = format!(
        "#!/bin/sh\n{account} KUBERNETES_SERVICE_PORT={SERVER_PORT}\nexec {program} \"$@\"\n"
    );
    write(HELPER, &script, 0o755);
    write("/etc/kubernetes/node.toml", "[plugin.guard]\nrequired = true\n", 0o644);
    std::fs::create_dir_all("/host").unwrap();
    cluster.machine.run("mount", &["--rbind", "/", "/host"]);
    let link = Path::new(PROGRAMS).join("node-program");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nri-runc"), link).unwrap();
    let options = "nri node containerd --root /host --take-over-nri --unit containerd --node-config /etc/kubernetes/node.toml \
         --conditions --taint NoSchedule --missing-after 1s --pod-events --uninstall-on-exit";
    let words: Vec<&str> =
        options.split_whitespace().chain(["--node-name", NAME, "--helper", HELPER]).collect();
    cluster.machine.start("node-program", &words)
}

/// Checks that the refused pod has its Event, and that the scheduler places no other pod on the
/// node.
fn shows_the_refusal(space: &Namespace) {
    let event = wait_for("the refused pod has its Event", || {
        let words =
            ["get", "events", "--field-selector=reason=RequiredPluginMissing", "-o", "json"];
        let list: Value = serde_json::from_str(&space.run(&words).ok()?).ok()?;
        list["items"].as_array()?.first().cloned()
    });
    assert!(space.does(&["describe", "pod", "first"]).contains("RequiredPluginMissing"), "{event}");
    web(space, "second");
    wait_for("the scheduler keeps a pod off", || {
        let pod = space.pod("second");
        let printed = pod["status"]["conditions"].to_string();
        (printed.contains("untolerated taint") && pod["spec"]["nodeName"].is_null()).then_some(())
    });
}

pub(super) fn a_missing_plugin_keeps_pods_off_until_its_own_daemonset_is_there(
    cluster: &Cluster,
) -> String {
    apply_rights();
    let system = take_token();
    let mut systemd = start_systemd(cluster);
    let mut program = start_program(cluster);
    apply(
        &json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nri-runc"}, "handler": "nri-runc"}),
    );
    wait_for("kubelet sees the handler", || {
        Node::handlers().contains(&"nri-runc".to_owned()).then_some(())
    });
    let space = Namespace::new("reports");
    web(&space, "first");
    waits(true);
    let path = "jsonpath={.status.conditions[?(@.reason==\"RequiredPluginMissing\")]}";
    let condition = does(&["get", "node", NAME, "-o", path]);
    assert!(condition.contains(&format!("\"type\":\"{KEY}\"")), "{condition}");
    shows_the_refusal(&space);
    for (method, path, body, why) in REFUSED {
        // A policy is in force a moment after its creation.
        let printed = wait_for("the policy refuses it", || api(method, path, body).err());
        assert!(printed.contains(why), "{path} {body}: {printed}");
    }
    space.apply(plugin());
    waits(false);
    for pod in ["first", "second"] {
        space.waits(pod, "condition=Ready", 120);
    }
    let deletion = "delete daemonset guard --cascade=foreground --timeout=120s";
    space.does(&deletion.split(' ').collect::<Vec<_>>());
    waits(true);
    space.empties();
    program.stop_within(REMOVAL);
    waits(false);
    wait_for("the node is as it was", || {
        (!Path::new("/opt/nri-runc/bin/nri-runc").exists()).then_some(())
    });
    systemd.stop();
    system.does(&["delete", "pod", "reporter", "--wait=false"]);
    does(&["delete", "runtimeclass", "nri-runc"]);
    for file in ["admission", "rbac", "serviceaccount"] {
        does(&["delete", "-f", &contrib(&format!("kustomize/base/{file}.yaml"))]);
    }
    format!(
        "condition and taint while the plugin is missing, an Event on the refused pod, another pod kept off; the \
         plugin's DaemonSet tolerates the taint, and both pods run; {} requests refused by policies; nothing is \
         left at the end",
        REFUSED.len()
    )
}
