// SPDX-License-Identifier: Apache-2.0
//! Keys of our own with which the owner of a container names its pod, on engines without pods.
//! They count only where whoever writes them decides about the whole document anyway, never
//! below a CRI engine. `docs/engines.md` shows each with an example.

use std::collections::BTreeMap;

use super::Facts;

/// Pod id; several containers may name the same.
const POD_ID: &str = "nri-runc.dev/pod-id";
/// Pod name.
const POD_NAME: &str = "nri-runc.dev/pod-name";
/// Pod namespace.
const POD_NAMESPACE: &str = "nri-runc.dev/pod-namespace";
/// Pod uid.
const POD_UID: &str = "nri-runc.dev/pod-uid";
/// Container name.
const CONTAINER_NAME: &str = "nri-runc.dev/container-name";
/// Prefix of pod labels: `nri-runc.dev/label/app` is the label `app`.
const LABEL_PREFIX: &str = "nri-runc.dev/label/";
/// Prefix of pod annotations.
const ANNOTATION_PREFIX: &str = "nri-runc.dev/annotation/";

/// Applies the keys among `said` to the facts.
pub(super) fn apply(facts: &mut Facts, said: &BTreeMap<String, String>) {
    let pairs = [
        (POD_ID, &mut facts.pod.id),
        (POD_NAME, &mut facts.pod.name),
        (POD_NAMESPACE, &mut facts.pod.namespace),
        (POD_UID, &mut facts.pod.uid),
        (CONTAINER_NAME, &mut facts.container.name),
    ];
    for (key, field) in pairs {
        if let Some(value) = said.get(key) {
            field.clone_from(value);
        }
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
