// SPDX-License-Identifier: Apache-2.0
//! nri-runc's keys, with which an operator names a container's pod on engines without pods. They
//! are used only if the user who commands the engine set them: not if the image has them, nor if
//! Kubernetes made the container. `docs/engines.md` shows each with an example.

use std::collections::BTreeMap;

use super::identity::{Writer, shown};
use super::image::ImageWords;
use super::{DetectedEngine, Document, Facts, Seen, cri, is_id, pod_cgroup};

use crate::limits;

const PREFIX: &str = "nri-runc.dev/";
/// Pod ID; several containers may have the same.
const POD_ID: &str = "nri-runc.dev/pod-id";
const POD_NAME: &str = "nri-runc.dev/pod-name";
const POD_NAMESPACE: &str = "nri-runc.dev/pod-namespace";
const POD_UID: &str = "nri-runc.dev/pod-uid";
const CONTAINER_NAME: &str = "nri-runc.dev/container-name";
/// Prefix of pod labels: `nri-runc.dev/label/app` is the label `app`.
const LABEL_PREFIX: &str = "nri-runc.dev/label/";
const ANNOTATION_PREFIX: &str = "nri-runc.dev/annotation/";

/// Describes a container without an engine: it is its own pod, unless annotations set another.
pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let mut facts = Facts::alone(engine, seen.call);
    facts.pod.annotations = seen.document.annotations.clone();
    apply(&mut facts, seen.document, seen.document.annotations);
    facts
}

/// Returns the labels or annotations (`what`) without the nri-runc keys that are the image's;
/// without any nri-runc key if the image's are unknown.
pub(super) fn of_operator(
    facts: &mut Facts,
    what: &str,
    all: &BTreeMap<String, String>,
    images: Option<&ImageWords>,
) -> BTreeMap<String, String> {
    let mut said = all.clone();
    let Some(images) = images else {
        said.retain(|key, _| !key.starts_with(PREFIX));
        if said.len() != all.len() {
            facts.missing.push(format!(
                "the {what}s of the image could not be read: {what}s {PREFIX}… may be its own and \
                 do not count"
            ));
        }
        return said;
    };
    for (key, value) in all.iter().filter(|(key, _)| key.starts_with(PREFIX)) {
        if images.has(key, value) {
            said.remove(key);
            let value = shown(value);
            facts.contradictions.push(format!(
                "the image's {what} {}={value:?} is ignored: only the operator may set it",
                shown(key)
            ));
        }
    }
    said
}

/// Removes, from the labels of an engine's pod, the nri-runc keys of the pod's ID and of a
/// container's name, because the engine sets both.
pub(super) fn of_pod(
    facts: &mut Facts,
    labels: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut said = labels;
    for key in [POD_ID, CONTAINER_NAME] {
        if said.remove(key).is_some() {
            facts.contradictions.push(format!("the pod's label {key} does not count"));
        }
    }
    said
}

/// Removes the key of the pod's ID, for a container in a pod that the engine made.
pub(super) fn forbid_other_pod(facts: &mut Facts, said: &mut BTreeMap<String, String>) {
    if let Some(id) = said.remove(POD_ID) {
        let id = shown(&id);
        facts.contradictions.push(format!(
            "{POD_ID}: {id:?} does not count for a container of the engine's pod {}",
            facts.pod.id
        ));
    }
}

/// Reports the first nri-runc key that is a label but not an annotation of the same value: the
/// label may be the image's, so it is ignored.
pub(super) fn note_labels(
    facts: &mut Facts,
    labels: &BTreeMap<String, String>,
    document: &Document<'_>,
) {
    let is_alone = |key: &&String| {
        key.starts_with(PREFIX) && document.annotations.get(*key) != labels.get(*key)
    };
    if let Some(key) = labels.keys().find(is_alone) {
        facts.contradictions.push(format!(
            "the label {} does not count, for the image may have it: use --annotation",
            shown(key)
        ));
    }
}

/// Whether Kubernetes made the container, through any engine: kubelet made its cgroup or set its
/// labels, or it has an annotation of containerd's CRI plugin.
fn is_of_kubernetes(document: &Document<'_>, said: &BTreeMap<String, String>) -> bool {
    let keys = [cri::KUBELET_NAME, cri::KUBELET_UID, cri::TYPE];
    let has = |key: &str| said.contains_key(key) || document.annotations.contains_key(key);
    pod_cgroup::is_kubelets(document.cgroups_path) || keys.into_iter().any(has)
}

/// Applies to the facts the nri-runc keys that the operator set.
pub(super) fn apply(facts: &mut Facts, document: &Document<'_>, said: &BTreeMap<String, String>) {
    if !said.keys().any(|key| key.starts_with(PREFIX)) {
        return;
    }
    if is_of_kubernetes(document, said) {
        facts.contradictions.push(format!("keys {PREFIX}… do not count below Kubernetes"));
        return;
    }
    match said.get(POD_ID) {
        Some(id) if is_id(id) && id.len() <= limits::POD_ID => {
            facts.names_pod = *id != facts.pod.id;
            facts.pod.id.clone_from(id);
        }
        Some(id) => facts.contradictions.push(format!("{POD_ID}: {:?} is no id", shown(id))),
        None => {}
    }
    let names = [POD_NAME, POD_UID, CONTAINER_NAME, POD_NAMESPACE].map(|key| {
        let value = said.get(key)?;
        let is_short = value.len() <= limits::POD_ID;
        if !is_short {
            let (length, most) = (value.len(), limits::POD_ID);
            facts.contradictions.push(format!("{key} has {length} bytes, more than {most}"));
        }
        is_short.then_some(value)
    });
    let [pod, uid, container, namespace] = names;
    let pairs = [
        (pod, &mut facts.pod.name),
        (uid, &mut facts.pod.uid),
        (container, &mut facts.container.name),
    ];
    for (value, field) in pairs {
        if let Some(value) = value {
            field.clone_from(value);
        }
    }
    if let Some(namespace) = namespace {
        facts.pod.namespace.clone_from(namespace);
        facts.namespace_by = Some(Writer::Operator);
    }
    for (key, value) in said {
        if let Some(label) = key.strip_prefix(LABEL_PREFIX) {
            facts.pod.labels.insert(label.to_owned(), value.clone());
        }
        if let Some(annotation) = key.strip_prefix(ANNOTATION_PREFIX) {
            facts.pod.annotations.insert(annotation.to_owned(), value.clone());
        }
    }
}

impl Facts {
    /// Drops a namespace that an nri-runc key sets, if it is one of these exempt namespaces.
    pub fn forbid_own_namespaces(&mut self, namespaces: &[String]) {
        let is_own = self.namespace_by == Some(Writer::Operator);
        if is_own && namespaces.contains(&self.pod.namespace) {
            let namespace = shown(&std::mem::take(&mut self.pod.namespace));
            self.namespace_by = None;
            self.contradictions.push(format!(
                "pod namespace: {namespace:?} is exempt from required plugins, and no nri-runc key \
                 may name it (exempt_by_annotation)"
            ));
        }
    }

    /// Drops a pod ID that an nri-runc key sets: the container is then its own pod.
    pub fn leave_pod(&mut self, why: &str) {
        let pod = shown(&std::mem::replace(&mut self.pod.id, self.container.id.clone()));
        self.names_pod = false;
        self.contradictions.push(format!("pod id: {pod:?} named by an nri-runc key {why}"));
    }
}
