// SPDX-License-Identifier: Apache-2.0
//! The manifests of `contrib/kubernetes`: the API server accepts each of them, the chart refuses invalid
//! values, and the kustomizations equal the rendered chart.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Cluster;
use super::helm::{self, NAMESPACE, RELEASE, chart, contrib};
use super::kubectl;

/// Each distribution of the chart, and the equal kustomization.
const DISTRIBUTIONS: [(&str, &str); 11] = [
    ("containerd", "kustomize/overlays/containerd"),
    ("kubeadm", ""),
    ("kind", ""),
    ("minikube", ""),
    ("eks", ""),
    ("flatcar", "kustomize/overlays/flatcar"),
    ("crio", "kustomize/overlays/crio"),
    ("k3s", "kustomize/overlays/k3s"),
    ("rke2", "kustomize/overlays/rke2"),
    ("k0s", "kustomize/overlays/k0s"),
    ("microk8s", "kustomize/overlays/microk8s"),
];

/// Values that are refused, and a word of the reason.
const REFUSED: [(&str, &str); 15] = [
    ("distribution=talos", "distribution"),
    ("imgae.tag=1", "imgae"),
    ("image.digest=sha256:12", "digest"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("handler=a/b", "handler"),
    ("nri.mode=off", "mode"),
    ("nri.socket=/run/x.sock", "nri.socket is for nri.mode=beside"),
    ("dataDir=/srv/k3s", "dataDir is for the distributions k3s and rke2"),
    ("label.key=a b", "key"),
    ("removal.waitSeconds=0", "waitSeconds"),
    ("report.taint=NoExecute", "taint"),
    ("report.conditions=false,report.taint=NoSchedule", "report.taint needs report.conditions"),
    ("probes.port=70000", "port"),
    ("maxUnavailable=0%", "maxUnavailable"),
    ("installDir=relative", "installDir"),
];

/// Other values, each of which uses another branch of the templates.
const VARIANTS: [&str; 8] = [
    "label.enabled=false,removal.enabled=false",
    "label.enabled=false,removal.enabled=false,report.conditions=false,report.events=false",
    "report.taint=NoSchedule,report.missingAfterSeconds=0",
    "restart.systemd=false,hostNetwork=true,apiServer.host=10.0.0.1",
    "nri.mode=beside,nri.socket=/run/nri-runc.sock,config=[log]",
    "distribution=k3s,dataDir=/srv/k3s,seLinuxType=spc_t",
    "runtimeClass.create=false,label.policy=false,restart.units={one,two}",
    "serviceAccount.name=other,imagePullSecrets[0].name=registry,runtimeClass.nodeSelector.pool=nri",
];

/// The address of the probe port: the pod's own, or with the node's network loopback, because others can
/// reach a node's address.
const PROBES: [(&str, &str); 3] = [
    ("hostNetwork=false", "$(POD_IP):9748"),
    ("probes.address=::1,probes.port=9000", "::1:9000"),
    ("hostNetwork=true", "127.0.0.1:9748"),
];

fn rendered(set: &str) -> Result<String, String> {
    let words = ["template", RELEASE, &chart(), "--namespace", NAMESPACE, "--kube-version=1.34.0"];
    helm::run(&[&words[..], &["--set", set]].concat())
}

#[track_caller]
fn accepted(what: &str, manifests: &str) -> usize {
    match kubectl::run_with(&["apply", "--dry-run=server", "-f", "-"], manifests) {
        Ok(printed) => printed.lines().count(),
        Err(why) => panic!("{what}: {why}"),
    }
}

pub(super) fn every_manifest_is_valid(_: &Cluster) -> String {
    let linted = helm::does(&["lint", "--strict", &chart()]);
    assert!(linted.contains("0 chart(s) failed"), "{linted}");
    // The pod of `helm test` is refused without it, even in a dry run.
    let class = json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nri-runc"},
        "handler": "nri-runc",
    });
    kubectl::apply(&class);
    let mut objects = 0;
    for (distribution, _) in DISTRIBUTIONS {
        let set = format!("distribution={distribution}");
        objects += accepted(&set, &rendered(&set).unwrap());
    }
    for set in VARIANTS {
        objects += accepted(set, &rendered(set).unwrap());
    }
    for (set, listens) in PROBES {
        let manifests = rendered(set).unwrap();
        let received = format!("--listen={listens}");
        assert!(manifests.contains(&received), "{set}: {received} is not in\n{manifests}");
    }
    for (set, why) in REFUSED {
        let printed = rendered(set).expect_err(set);
        assert!(printed.contains(why), "{set}: {printed}");
    }
    let mut examples = 0;
    for entry in std::fs::read_dir(contrib("examples")).unwrap().flatten() {
        if entry.path().join("kustomization.yaml").exists() {
            let folder = entry.path().display().to_string();
            objects += accepted(&folder, &kubectl::does(&["kustomize", &folder]));
            examples += 1;
        }
    }
    assert!(examples > 5, "{examples} examples");
    kubectl::does(&["delete", "runtimeclass", "nri-runc"]);
    format!(
        "helm lint; {objects} objects of {} distributions, {} other sets of values and {examples} examples \
         taken by the API server (dry run); {} wrong values refused",
        DISTRIBUTIONS.len(),
        VARIANTS.len(),
        REFUSED.len()
    )
}

pub(super) fn each_kustomization_is_the_chart(_: &Cluster) -> String {
    let mut compared = Vec::new();
    for (distribution, folder) in DISTRIBUTIONS.iter().filter(|(_, folder)| !folder.is_empty()) {
        let charts = objects(&rendered(&format!("distribution={distribution}")).unwrap());
        let kustomized = objects(&kubectl::does(&["kustomize", &contrib(folder)]));
        let names = |all: &BTreeMap<String, Value>| all.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&charts), names(&kustomized), "{folder}");
        for (name, object) in &charts {
            let difference = first_difference(object, &kustomized[name], name);
            assert!(difference.is_none(), "{folder}: {}", difference.unwrap_or_default());
        }
        compared.push(*distribution);
    }
    format!("`kubectl kustomize` gives what `helm template` does: {}", compared.join(", "))
}

/// The objects by kind and name, without hooks and without members that only Helm writes.
#[track_caller]
fn objects(manifests: &str) -> BTreeMap<String, Value> {
    let json =
        kubectl::run_with(&["create", "--dry-run=client", "-o", "json", "-f", "-"], manifests);
    let json = json.unwrap();
    let documents = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
    let mut all = BTreeMap::new();
    for mut object in documents.map(Result::unwrap).flat_map(listed) {
        if object["metadata"]["annotations"]["helm.sh/hook"].is_string() {
            continue;
        }
        if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
            labels.retain(|key, _| {
                !["helm.sh/chart", "app.kubernetes.io/managed-by"].contains(&key.as_str())
            });
        }
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        assert!(all.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    all
}

fn listed(document: Value) -> Vec<Value> {
    match document["items"].as_array() {
        Some(items) if document["kind"] == "List" => items.clone(),
        Some(_) | None => vec![document],
    }
}

/// The path of the first different value, with both values. The order of volumes does not matter.
fn first_difference(one: &Value, other: &Value, path: &str) -> Option<String> {
    let (one, other) = (sorted(one), sorted(other));
    match (&one, &other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let mut all = keys.map(|key| {
                first_difference(&one[key.as_str()], &other[key.as_str()], &format!("{path}.{key}"))
            });
            all.find_map(|found| found)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut all = a.iter().zip(b).enumerate();
            all.find_map(|(at, (a, b))| first_difference(a, b, &format!("{path}[{at}]")))
        }
        (a, b) => (a != b).then(|| format!("{path}: {a} in the chart, {b} in the kustomization")),
    }
}

/// Lists of objects with a name or a path, sorted by it.
fn sorted(value: &Value) -> Value {
    let Some(list) = value.as_array() else { return value.clone() };
    let key = |one: &Value| {
        let word = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
        (word("mountPath"), word("name"))
    };
    let mut list = list.clone();
    if list.iter().all(|one| one["name"].is_string()) {
        list.sort_by_key(key);
    }
    Value::Array(list)
}

#[test]
fn a_different_value_is_found_at_any_place_of_a_manifest() {
    let one = json!({"a": [{"name": "x", "v": 1}, {"name": "y"}], "b": {"c": "d"}});
    let turned = json!({"a": [{"name": "y"}, {"name": "x", "v": 1}], "b": {"c": "d"}});
    assert_eq!(first_difference(&one, &turned, ""), None);
    for (other, path) in [
        (json!({"a": [{"name": "x", "v": 2}, {"name": "y"}], "b": {"c": "d"}}), ".a[0].v: "),
        (json!({"a": [{"name": "x", "v": 1}], "b": {"c": "d"}}), ".a: "),
        (json!({"a": [{"name": "x", "v": 1}, {"name": "y"}], "b": {"c": "d", "e": 1}}), ".b.e: "),
    ] {
        let found = first_difference(&one, &other, "").unwrap_or_default();
        assert!(found.starts_with(path), "{found}");
    }
}
