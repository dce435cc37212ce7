// SPDX-License-Identifier: Apache-2.0
//! A pod as NRI plugins see it, from the document of its infrastructure container where there is
//! one, else from the container's own.

use crate::engine::{Facts, PodDocument};
use crate::plugin::api;

use super::container::namespace;
use super::resources::from_cri;
use super::view::Spec;

/// Describes a pod; `own` is the document of the container at hand (the infrastructure
/// container's, or a member's).
pub fn pod(facts: &Facts, own: &Spec) -> api::PodSandbox {
    let told = &facts.pod;
    // A spoilt document of the sandbox only makes the pod's description poorer.
    let read = match &told.document {
        PodDocument::Sandbox(bytes) => Spec::parse(bytes).ok(),
        PodDocument::Own | PodDocument::Unknown => None,
    };
    let spec = read.as_ref().or((told.document == PodDocument::Own).then_some(own));
    api::PodSandbox {
        id: told.id.clone(),
        name: told.name.clone(),
        uid: told.uid.clone(),
        namespace: told.namespace.clone(),
        labels: told.labels.clone().into_iter().collect(),
        annotations: told.annotations.clone().into_iter().collect(),
        runtime_handler: told.runtime_handler.clone(),
        linux: linux(facts, spec).into(),
        pid: told.pid,
        ips: told.ips.clone(),
        special_fields: Default::default(),
    }
}

fn linux(facts: &Facts, spec: Option<&Spec>) -> Option<api::LinuxPodSandbox> {
    let told = &facts.pod;
    let cgroups_path = spec.map(|spec| spec.linux.cgroups_path.clone()).unwrap_or_default();
    let parent = told.cgroup_parent.clone();
    let namespaces = spec.map(|spec| spec.linux.namespaces.as_slice()).unwrap_or_default();
    let all = api::LinuxPodSandbox {
        pod_overhead: told.overhead.as_ref().map(from_cri).into(),
        pod_resources: told.resources.as_ref().map(from_cri).into(),
        cgroup_parent: parent.unwrap_or_else(|| cgroup_parent(&cgroups_path)),
        cgroups_path,
        namespaces: namespaces.iter().map(namespace).collect(),
        resources: spec.map(super::resources).into(),
        special_fields: Default::default(),
    };
    (spec.is_some() || all != api::LinuxPodSandbox::default()).then_some(all)
}

/// The pod's cgroup: the path without its last element, or the slice spelt out in full
/// (`a-b.slice` lies in `a.slice`, systemd.slice(5)).
fn cgroup_parent(path: &str) -> String {
    if let Some((slice, _)) = path.split_once(':') {
        let Some(name) = slice.strip_suffix(".slice") else { return slice.to_owned() };
        let mut parent = String::new();
        for (at, _) in name.match_indices('-').chain([(name.len(), "")]) {
            parent.push('/');
            parent.push_str(&name[..at]);
            parent.push_str(".slice");
        }
        return parent;
    }
    path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_both_cgroup_drivers_is_found() {
        assert_eq!(cgroup_parent("/kubepods/pod1/abc"), "/kubepods/pod1");
        assert_eq!(
            cgroup_parent("kubepods-burstable-pod1.slice:cri-containerd:abc"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
        );
    }

    #[test]
    fn an_odd_cgroup_path_has_no_parent_to_invent() {
        assert_eq!(cgroup_parent(""), "");
        assert_eq!(cgroup_parent("lonely"), "");
    }
}
