// SPDX-License-Identifier: Apache-2.0
//! A pod as plugins receive it, from the document of its infrastructure container; a container
//! without one is described as its own pod.

use crate::engine::{Facts, PodDocument, cgroup_parent};
use crate::plugin::api;

use super::resources::from_cri;
use super::view::{Shown, Spec};

/// Describes a pod; `own` is the document of the current container (the infrastructure container or
/// a member).
pub fn pod(facts: &Facts, own: &Spec) -> api::PodSandbox {
    let known = &facts.pod;
    // An invalid document of the sandbox only makes the pod's description less complete.
    let read = match &known.document {
        PodDocument::Sandbox(bytes) => Spec::parse(bytes).ok(),
        PodDocument::Own | PodDocument::Unknown => None,
    };
    let spec = read.as_ref().or((known.document == PodDocument::Own).then_some(own));
    api::PodSandbox {
        id: known.id.clone(),
        name: known.name.clone(),
        uid: known.uid.clone(),
        namespace: known.namespace.clone(),
        labels: known.labels.clone().into_iter().collect(),
        annotations: known.annotations.clone().into_iter().collect(),
        runtime_handler: known.runtime_handler.clone(),
        linux: Some(linux(facts, spec, own)).into(),
        pid: known.pid,
        ips: known.ips.clone(),
        special_fields: Default::default(),
    }
}

/// Builds the linux part. NRI: containerd and CRI-O always send it with its resources, and plugins
/// rely on it.
fn linux(facts: &Facts, spec: Option<&Spec>, own: &Spec) -> api::LinuxPodSandbox {
    let known = &facts.pod;
    let cgroups_path = spec.map(|spec| spec.linux.cgroups_path.clone()).unwrap_or_default();
    // A member's cgroup is a sibling of the infrastructure container's.
    let beside = spec.unwrap_or(own).linux.cgroups_path.as_str();
    let parent = known.cgroup_parent.clone();
    api::LinuxPodSandbox {
        pod_overhead: known.overhead.as_ref().map(from_cri).into(),
        pod_resources: known.resources.as_ref().map(from_cri).into(),
        cgroup_parent: parent.unwrap_or_else(|| cgroup_parent(beside)),
        cgroups_path,
        namespaces: spec.map(|spec| spec.linux.namespaces.shown()).unwrap_or_default(),
        resources: Some(spec.map(super::resources).unwrap_or_default()).into(),
        special_fields: Default::default(),
    }
}
