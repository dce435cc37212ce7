// SPDX-License-Identifier: Apache-2.0
//! A pod as NRI plugins see it, from the document of its infrastructure container where there is
//! one, else from the container's own.

use std::collections::BTreeMap;

use crate::engine::{Facts, Kind};
use crate::plugin::api;

use super::container::namespace;
use super::view::Spec;

/// Describes a pod: `sandbox` is the document of its infrastructure container, `own` that of
/// the container at hand (the same for the infrastructure container itself).
pub fn pod(facts: &Facts, sandbox: Option<&Spec>, own: &Spec) -> api::PodSandbox {
    let is_own = facts.engine.kind != Kind::ContainerdCri || facts.sandbox_config.is_none();
    let spec = sandbox.or(is_own.then_some(own));
    api::PodSandbox {
        id: facts.pod_id.clone(),
        name: facts.pod_name.clone(),
        uid: facts.pod_uid.clone(),
        namespace: facts.pod_namespace.clone(),
        labels: facts.pod_labels.clone().into_iter().collect(),
        annotations: spec
            .map(|spec| spec.annotations.clone().into_iter().collect())
            .unwrap_or_default(),
        runtime_handler: String::new(),
        linux: spec.map(linux).into(),
        pid: 0,
        ips: Vec::new(),
        special_fields: Default::default(),
    }
}

fn linux(spec: &Spec) -> api::LinuxPodSandbox {
    let cgroups_path = spec.linux.cgroups_path.clone();
    api::LinuxPodSandbox {
        pod_overhead: None.into(),
        pod_resources: pod_resources(&spec.annotations).into(),
        cgroup_parent: cgroup_parent(&cgroups_path),
        cgroups_path,
        namespaces: spec.linux.namespaces.iter().map(namespace).collect(),
        resources: Some(super::resources(spec)).into(),
        special_fields: Default::default(),
    }
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

/// containerd keeps the sum of the containers' limits in annotations of the sandbox.
fn pod_resources(annotations: &BTreeMap<String, String>) -> Option<api::LinuxResources> {
    let text = |key: &str| annotations.get(&format!("io.kubernetes.cri.sandbox-{key}"));
    let signed = |key: &str| {
        let value = text(key)?.parse().ok()?;
        Some(api::OptionalInt64 { value, special_fields: Default::default() })
    };
    let unsigned = |key: &str| {
        let value = text(key)?.parse().ok()?;
        Some(api::OptionalUInt64 { value, special_fields: Default::default() })
    };
    let is_there =
        ["cpu-period", "cpu-quota", "cpu-shares", "memory"].iter().any(|key| text(key).is_some());
    if !is_there {
        return None;
    }
    let cpu = api::LinuxCPU {
        shares: unsigned("cpu-shares").into(),
        quota: signed("cpu-quota").into(),
        period: unsigned("cpu-period").into(),
        ..api::LinuxCPU::default()
    };
    let memory = api::LinuxMemory { limit: signed("memory").into(), ..api::LinuxMemory::default() };
    Some(api::LinuxResources {
        cpu: Some(cpu).into(),
        memory: Some(memory).into(),
        ..api::LinuxResources::default()
    })
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

    #[test]
    fn pod_resources_come_from_the_sandbox_annotations_or_not_at_all() {
        let key = |name: &str| format!("io.kubernetes.cri.sandbox-{name}");
        let annotations =
            [(key("cpu-quota"), "-1".to_owned()), (key("memory"), "junk".to_owned())].into();
        let told = pod_resources(&annotations).unwrap();
        assert_eq!(told.cpu.quota.value, -1);
        assert!(told.memory.limit.is_none());
        assert_eq!(pod_resources(&BTreeMap::new()), None);
    }
}
