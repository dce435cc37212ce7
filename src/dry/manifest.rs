// SPDX-License-Identifier: Apache-2.0
//! The containers of Kubernetes manifests, as rules, injections and promises match them. It uses
//! only the manifest, and no facts about a node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::{Map, Value};

use crate::engine::{Allocated, Allocations, PodAllocations};
use crate::error::{Context, Error, Result};
use crate::files;
use crate::limits;
use crate::plugin::api;
use crate::rules::RuledPod;

use super::compare::JudgedCreation;

/// The namespace of an object that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// Returns the containers of each pod and each pod template in a file.
///
/// # Errors
/// Fails when the file is unreadable, or has no pod.
pub(super) fn creations(file: &Path, engine: &str) -> Result<Vec<JudgedCreation>> {
    let shown = file.display();
    let text =
        files::read_text(file, limits::SETTINGS_FILE).doing(|| format!("reading {shown}"))?;
    let documents = Yaml::load_from_str(&text).map_err(|error| {
        let error = crate::error::quoted(&error.to_string());
        Error::new(format!("the manifest {shown} is not YAML: {error}"))
    })?;
    let mut found = Vec::new();
    for document in &documents {
        add_pods(&json_of(document, 0), engine, &mut found);
    }
    if found.is_empty() {
        let error = Error::new(format!("the manifest {shown} has no pod"));
        return Err(error.hint("render a chart or a kustomization first"));
    }
    Ok(found)
}

fn json_of(node: &Yaml<'_>, depth: usize) -> Value {
    if depth > limits::MANIFEST_DEPTH {
        return Value::Null;
    }
    if let Some(items) = node.as_sequence() {
        return items.iter().map(|item| json_of(item, depth + 1)).collect();
    }
    if let Some(members) = node.as_mapping() {
        let member = |(key, value): (&Yaml<'_>, &Yaml<'_>)| {
            Some((key.as_str()?.to_owned(), json_of(value, depth + 1)))
        };
        return members.iter().filter_map(member).collect::<Map<String, Value>>().into();
    }
    let text = node.as_str().map(Value::from);
    let number =
        || node.as_integer().map(Value::from).or_else(|| Some(node.as_floating_point()?.into()));
    text.or_else(number).or_else(|| node.as_bool().map(Value::from)).unwrap_or_default()
}

fn add_pods(object: &Value, engine: &str, found: &mut Vec<JudgedCreation>) {
    for item in object["items"].as_array().into_iter().flatten() {
        add_pods(item, engine, found);
    }
    let template = match object["kind"].as_str() {
        Some("Pod") => object,
        Some("CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"],
        Some("PodTemplate") => &object["template"],
        _ => &object["spec"]["template"],
    };
    let name = text(&object["metadata"]["name"]);
    let spec = &template["spec"];
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array());
    let containers: Vec<&Value> = lists.into_iter().flatten().flatten().collect();
    if containers.is_empty() {
        return;
    }
    let namespace = match text(&object["metadata"]["namespace"]) {
        none if none.is_empty() => DEFAULT_NAMESPACE.to_owned(),
        namespace => namespace,
    };
    let pod = api::PodSandbox {
        id: format!("{namespace}/{name}"),
        name,
        namespace,
        labels: texts(&template["metadata"]["labels"]),
        annotations: texts(&template["metadata"]["annotations"]),
        runtime_handler: text(&spec["runtimeClassName"]),
        ..api::PodSandbox::default()
    };
    let ruled = RuledPod::of(&pod, engine, false);
    let allocations = allocations(spec, &containers);
    found.extend(containers.into_iter().map(|container| JudgedCreation {
        pod: pod.clone(),
        container: container_of(&pod, spec, container),
        ruled: ruled.clone(),
        allocations: allocations.clone(),
        ..JudgedCreation::default()
    }));
}

fn container_of(pod: &api::PodSandbox, spec: &Value, container: &Value) -> api::Container {
    let name = text(&container["name"]);
    let list = |member: &str| container[member].as_array().into_iter().flatten();
    let source = |volume: &Value| {
        let volumes = spec["volumes"].as_array().into_iter().flatten();
        let named = volumes
            .filter(|other| other["name"] == *volume)
            .map(|volume| &volume["hostPath"]["path"]);
        named.map(text).next().unwrap_or_default()
    };
    let mount = |mount: &Value| api::Mount {
        destination: text(&mount["mountPath"]),
        source: source(&mount["name"]),
        ..api::Mount::default()
    };
    let image = api::Image { name: text(&container["image"]), ..api::Image::default() };
    api::Container {
        id: format!("{}/{name}", pod.id),
        pod_sandbox_id: pod.id.clone(),
        args: list("command").chain(list("args")).map(text).collect(),
        env: list("env")
            .map(|one| format!("{}={}", text(&one["name"]), text(&one["value"])))
            .collect(),
        mounts: list("volumeMounts").map(mount).collect(),
        image: Some(image).into(),
        name,
        ..api::Container::default()
    }
}

/// Returns the extended resources that the containers request; unreadable if the pod has resource
/// claims, because a manifest does not name their drivers.
fn allocations(spec: &Value, containers: &[&Value]) -> Allocations {
    if spec["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty()) {
        return Allocations::Unreadable(
            "a manifest does not name the drivers of claims".to_owned(),
        );
    }
    let of = |container: &&Value| {
        let limits = container["resources"]["limits"].as_object().into_iter().flatten();
        let names = limits.map(|(name, _)| name.clone());
        let resources: BTreeSet<String> = names.filter(|name| name.contains('/')).collect();
        (text(&container["name"]), Allocated { claims: BTreeSet::new(), resources })
    };
    let listed: BTreeMap<String, Allocated> = containers.iter().map(of).collect();
    Allocations::Listed(PodAllocations::from(listed))
}

/// Returns the value as text, even if YAML parsed it as a number.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn texts(value: &Value) -> std::collections::HashMap<String, String> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(key, value)| (key.clone(), text(value))).collect()
}
