// SPDX-License-Identifier: Apache-2.0
//! The effect of rules on a node: creates, updates of others and evictions are refused or noted,
//! operators see the deciding rule, and a mistyped rule refuses the containers that it was meant to
//! protect.

use nri_plugin::Adjustment;
use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::adjustments::{sets, update_of};
use test_support::scripted_plugin::{Ask, has_received};
use test_support::{BUNDLE, Script, TestHost, fails, started, succeeds, wait_until};

/// Writes a container of a namespace as containerd's CRI plugin does; returns its bundle.
pub(crate) fn pod_container(host: &TestHost, namespace: &str, id: &str) -> String {
    lay_down(host, namespace, id, &format!("io.containerd.runtime.v2.task/k8s.io/{id}"))
}

/// Writes a container of the namespace into any folder, as an author who forges its annotations can.
pub(crate) fn lay_down(host: &TestHost, namespace: &str, id: &str, bundle: &str) -> String {
    let mut document: Value = serde_json::from_str(BUNDLE).unwrap();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": id,
        "io.kubernetes.cri.sandbox-id": format!("pod-of-{id}"),
        "io.kubernetes.cri.sandbox-name": format!("pod-of-{id}"),
        "io.kubernetes.cri.sandbox-namespace": namespace,
        "io.kubernetes.cri.sandbox-uid": "u1",
    });
    std::fs::create_dir_all(host.path(bundle).join("rootfs")).unwrap();
    host.write(&format!("{bundle}/config.json"), &document.to_string());
    bundle.to_owned()
}

/// A plugin that sends updates and evictions unprompted.
pub(crate) struct Asker(tokio::sync::mpsc::UnboundedSender<Ask>);

impl Asker {
    pub(crate) fn new() -> (Self, Script) {
        let (sender, asks) = tokio::sync::mpsc::unbounded_channel();
        let asks = std::sync::Arc::new(tokio::sync::Mutex::new(asks));
        (Self(sender), Script { asks: Some(asks), ..Script::default() })
    }

    /// Sends the updates and evictions; returns the containers whose updates failed.
    pub(crate) fn ask(&self, update: Vec<api::ContainerUpdate>, evict: &[&str]) -> Vec<String> {
        let evict = evict.iter().map(|id| api::ContainerEviction {
            container_id: (*id).to_owned(),
            ..Default::default()
        });
        let request =
            api::UpdateContainersRequest { update, evict: evict.collect(), ..Default::default() };
        let (sender, answer) = std::sync::mpsc::channel();
        self.0.send((request, sender)).unwrap();
        let answer = answer.recv_timeout(std::time::Duration::from_secs(60)).unwrap().unwrap();
        answer.failed.into_iter().map(|update| update.container_id).collect()
    }
}

fn seen(host: &TestHost) -> String {
    host.read("fake/seen.json")
}

fn metric(host: &TestHost, line: &str) -> bool {
    let output = host.call(&["nri", "metrics"]);
    String::from_utf8_lossy(&output.stdout).lines().any(|other| other == line)
}

const NO_ENV: &str = "[[rule]]\nname = \"no env\"\nnamespaces = [\"prod-*\"]\ndeny = [\"Env\"]\n";

#[test]
fn a_denied_field_refuses_the_create_and_names_the_rule() {
    let host = started(NO_ENV);
    let received = host.plugin("10", "a", sets("HELLO", "there"));
    let bundle = pod_container(&host, "prod-eu", "c1");
    let before = host.read(&format!("{bundle}/config.json"));
    let wanted = "plugin \"10-a\" may not set Env of container c1 (rule \"no env\")";
    fails(&host.create_from(&bundle, "c1"), &["cannot create c1", wanted, "unchanged"]);
    assert_eq!(host.read(&format!("{bundle}/config.json")), before);
    assert!(!host.path("fake/seen.json").exists(), "the runtime was never asked");
    let explained = host.admin(&["explain", "c1"]);
    assert!(explained["refused"][0].as_str().unwrap().contains(wanted), "{explained}");
    assert!(metric(&host, "nri_runc_rule_hits_total{rule=\"no env\",result=\"refused\"} 1"));
    // The plugin receives the end of a container about which it was asked.
    wait_until("the pod's end is reported", || {
        has_received(&received, "RemovePodSandbox pod-of-c1")
    });
    // In another namespace the plugin may set the field.
    let bundle = pod_container(&host, "dev", "c2");
    succeeds(&host.create_from(&bundle, "c2"));
    assert!(seen(&host).contains("HELLO=there"));
}

#[test]
fn audit_mode_sets_the_field_and_explain_shows_the_denial() {
    let host = started(&format!("{NO_ENV}mode = \"audit\"\n"));
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    let bundle = pod_container(&host, "prod-eu", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
    assert!(seen(&host).contains("HELLO=there"));
    let explained = host.admin(&["explain", "c1"]);
    let hit = &explained["would_refuse"][0];
    assert_eq!(
        (&hit["plugin"], &hit["field"], &hit["rule"]),
        (&json!("10-a"), &json!("Env"), &json!("no env"))
    );
    assert_eq!((&hit["event"], &explained["refused"]), (&json!("CreateContainer"), &json!([])));
    let page = host.call(&["nri", "explain", "c1"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("audit: 10-a set Env, which rule \"no env\" would refuse"), "{page}");
    host.logs(&["a rule in audit mode would refuse it", "\"no env\""], 1);
    assert!(metric(&host, "nri_runc_rule_hits_total{rule=\"no env\",result=\"would_refuse\"} 1"));
}

#[test]
fn a_rule_does_not_widen_the_plugins_section() {
    let lines = "[plugin.a]\ndeny = [\"Env\"]\n[[rule]]\nplugins = [\"a\"]\nallow = [\"*\"]\n";
    let host = started(lines);
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    fails(&host.create("c1"), &["10-a", "Env", "see allow and deny for this plugin"]);
}

#[test]
fn a_pod_that_names_its_own_namespace_escapes_no_rule() {
    let host = started(NO_ENV);
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    let bundle = lay_down(&host, "dev", "forged", "forged");
    fails(&host.create_from(&bundle, "forged"), &["may not set Env", "(rule \"no env\")"]);
}

#[test]
fn rules_use_the_default_namespace_without_pods() {
    let lines = "[[rule]]\nname = \"plain\"\nnamespaces = [\"plain\"]\nengines = [\"plain\"]\ndeny = [\"Env\"]\n";
    let host = started(lines);
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    fails(&host.create("c1"), &["may not set Env", "(rule \"plain\")"]);
    let host = started(&lines.replace("[\"plain\"]\nengines", "[\"prod\"]\nengines"));
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    succeeds(&host.create("c1"));
}

/// Creates a container in each of two namespaces.
fn two_pods(host: &TestHost) {
    for (namespace, id) in [("kube-system", "c1"), ("dev", "c2")] {
        let bundle = pod_container(host, namespace, id);
        succeeds(&host.create_from(&bundle, id));
    }
    wait_until("both are created", || {
        let pods = host.admin(&["pods"]).to_string();
        pods.matches("\"state\":\"created\"").count() == 2
    });
}

#[test]
fn rules_of_the_target_pod_decide_on_updates_and_evictions() {
    let host = started(
        "[[rule]]\nname = \"system stays\"\nnamespaces = [\"kube-system\"]\n\
         deny = [\"MemLimit\", \"Eviction\"]\n",
    );
    let (asker, script) = Asker::new();
    let _plugin = host.plugin("10", "asker", script);
    two_pods(&host);
    let failed = asker.ask(vec![update_of("c1", &json!({"memory": {"limit": 4096}}))], &["c1"]);
    assert_eq!(failed, ["c1"]);
    let explained = host.admin(&["explain", "c1"]);
    let reasons = explained["skipped"].to_string();
    for what in ["set MemLimit of container c1", "evict container c1"] {
        assert!(reasons.contains(&format!("plugin \\\"10-asker\\\" may not {what}")), "{reasons}");
    }
    assert_eq!((&explained["changes"], &explained["owners"]), (&json!([]), &json!({})));
    assert!(metric(&host, "nri_runc_rule_hits_total{rule=\"system stays\",result=\"refused\"} 2"));
}

#[test]
fn an_answers_update_of_a_protected_container_is_left_out() {
    let host = started(
        "[[rule]]\nname = \"system stays\"\nnamespaces = [\"kube-system\"]\ndeny = [\"*\"]\n",
    );
    let update = vec![update_of("c1", &json!({"memory": {"limit": 4096}}))];
    let mut script = sets("HELLO", "there");
    script = Script { update, only: Some("c2"), ..script };
    let _plugin = host.plugin("10", "a", script);
    // The plugin's other responses are empty: only the one to c2 requests an update.
    let bundle = pod_container(&host, "kube-system", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
    let bundle = pod_container(&host, "dev", "c2");
    succeeds(&host.create_from(&bundle, "c2"));
    assert!(seen(&host).contains("HELLO=there"));
    let explained = host.admin(&["explain", "c1"]);
    let reason = explained["skipped"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("requested at CreateContainer failed"), "{explained}");
    assert!(reason.contains("(rule \"system stays\")"), "{explained}");
}

#[test]
fn an_engines_update_is_refused_by_a_rule_and_changes_nothing() {
    let host = started(&NO_ENV.replace("\"Env\"", "\"CPUShares\""));
    let updates = vec![update_of("c1", &json!({"cpu": {"shares": 77}}))];
    let _plugin = host.plugin("10", "half", Script { updates, ..Script::default() });
    let bundle = pod_container(&host, "prod-eu", "c1");
    succeeds(&host.create_from(&bundle, "c1"));
    let root = host.path("root").display().to_string();
    let words = ["--root", &root, "update", "--resources", "-", "c1"];
    let output = host.call_with(&words, &json!({"pids": {"limit": 5}}).to_string());
    fails(&output, &["may not set CPUShares", "(rule \"no env\")", "its resources are unchanged"]);
    assert!(!host.path("fake/update.json").exists());
}

#[test]
fn a_mistyped_rule_refuses_creates_and_hides_possible_matches() {
    let host = started("[[rule]]\nnamespace = [\"vault\"]\nhide = true\n");
    let received = host.plugin("10", "a", sets("HELLO", "there"));
    let bundle = pod_container(&host, "dev", "c1");
    let wanted = "unknown key rule.namespace (did you mean namespaces?)";
    fails(&host.create_from(&bundle, "c1"), &["configuration has an error", wanted]);
    // An exempt namespace continues, and no plugin receives it.
    let bundle = pod_container(&host, "kube-system", "c2");
    succeeds(&host.create_from(&bundle, "c2"));
    assert!(!seen(&host).contains("HELLO"));
    assert_eq!(*received.lock().unwrap(), [""; 0]);
}

#[test]
fn among_a_hundred_rules_the_matching_one_decides() {
    let mut lines = String::new();
    for number in 0..100 {
        lines.push_str(&format!(
            "[[rule]]\nname = \"r{number}\"\nnamespaces = [\"tenant-{number}-*\"]\ndeny = [\"*\"]\n"
        ));
    }
    let host = started(&format!(
        "{lines}[[rule]]\nname = \"last\"\nnamespaces = [\"prod\"]\ndeny = [\"Env\"]\n"
    ));
    let _plugin = host.plugin("10", "a", sets("HELLO", "there"));
    for (namespace, rule) in [("tenant-99-x", "r99"), ("prod", "last")] {
        let bundle = pod_container(&host, namespace, rule);
        fails(&host.create_from(&bundle, rule), &[&format!("(rule \"{rule}\")")]);
    }
    let bundle = pod_container(&host, "tenant-100", "free");
    succeeds(&host.create_from(&bundle, "free"));
}

fn annotates(key: &str) -> Adjustment {
    Adjustment::new().annotation(key, "x")
}

#[test]
fn a_plugin_sets_only_the_runtime_annotations_it_may_set() {
    let may = "[plugin.allowed]\nruntime_annotations = [\"run.oci.*\"]\n";
    let host = started(may);
    let _plugin = host.plugin("20", "allowed", annotates("run.oci.handler"));
    succeeds(&host.create("c1"));
    assert!(host.read("fake/seen.json").contains("run.oci.handler"));
    // Another plugin may set no annotation, and this one none outside of its pattern.
    for (index, name, key) in
        [("10", "other", "run.oci.handler"), ("30", "allowed", "org.systemd.property.Delegate")]
    {
        let host = started(may);
        let _plugin = host.plugin(index, name, annotates(key));
        let field = format!("Annotations[{key}]");
        fails(&host.create("c1"), &[&field, name, "the bundle is unchanged"]);
    }
}
