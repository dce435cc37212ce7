// SPDX-License-Identifier: Apache-2.0
//! Podman, plain, in pods and from Kubernetes YAML. Names are on conmon's command line, the pod's
//! id in the cgroup's path, images in the storage's records; labels and the pod's name only in
//! Podman's database, which is not read. Members name the infrastructure container as their
//! sandbox; it is recognised by naming none.

use super::{
    Call, Document, Engine, Facts, Found, PodDocument, Role, SeccompProfile, Wanted, conmon, crio,
    own, storage,
};

/// Annotations that Podman itself writes.
const OWN: [&str; 5] = [
    "io.podman.annotations.",
    "io.container.manager",
    "io.kubernetes.cri-o.",
    "org.opencontainers.image.",
    "org.systemd.property.",
];

pub(super) fn wanted(call: &Call<'_>, document: &Document<'_>) -> Wanted {
    let mut files = storage::records(call);
    if let Some(infra) = document.said(crio::SANDBOX_ID) {
        files.extend(storage::beside(call, &infra, "config.json"));
    }
    Wanted { files, store: None }
}

pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    document: &Document<'_>,
    found: &Found,
) -> Facts {
    let mut facts = Facts::alone(engine, call);
    let name = conmon::option(call, &["-n", "--name"]);
    let infra = document.said(crio::SANDBOX_ID);
    let in_cgroup = pod_in_cgroup(document.cgroups_path);
    let is_infra = infra.is_none()
        && (in_cgroup.is_some() || name.as_deref().is_some_and(|name| name.ends_with("-infra")));
    if is_infra {
        facts.role = Role::Sandbox;
    }
    let record = storage::metadata(call, found, call.id);
    facts.container.image = record.as_ref().and_then(storage::image);
    let name = name.or_else(|| super::text(record.as_ref()?, "/name"));
    if let Some(name) = name {
        facts.container.name = name;
    } else {
        facts.missing.push("the container's name is neither on conmon's command line nor in the storage's records: its id stands for it".into());
    }
    let pod = &mut facts.pod;
    pod.id = in_cgroup.or_else(|| infra.clone()).unwrap_or_else(|| call.id.to_owned());
    let is_alone = infra.is_none() && !is_infra;
    pod.name = if is_alone { facts.container.name.clone() } else { pod.id.clone() };
    pod.uid.clone_from(&pod.id);
    pod.annotations = theirs(document);
    pod.runtime_handler = conmon::exit_option(call, "--runtime").unwrap_or_default();
    if let Some(infra) = &infra {
        pod.pid = document.joined_process(&["network", "ipc", "uts"]).unwrap_or(0);
        pod.document = match found.first(&storage::beside(call, infra, "config.json")) {
            Some(bytes) => PodDocument::Sandbox(bytes.to_vec()),
            None => PodDocument::Unknown,
        };
    }
    facts.container.seccomp = document.said("io.podman.annotations.seccomp").and_then(seccomp);
    if facts.role == Role::Container {
        facts.missing.push("labels and the pod's name stand in Podman's database, which is not read: they are absent unless annotations nri-runc.dev/… say them".into());
    }
    own::apply(&mut facts, document.annotations);
    facts
}

/// The pod's id in `PARENT/POD/libpod-ID` or `….libpod_pod_POD.slice:libpod:ID`.
fn pod_in_cgroup(path: &str) -> Option<String> {
    let is_id = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let pod = match path.split_once(':') {
        Some((slice, _)) => slice.strip_suffix(".slice")?.rsplit_once("libpod_pod_")?.1,
        None => path.rsplit_once('/')?.0.rsplit('/').next()?,
    };
    Some(pod).filter(is_id).map(ToOwned::to_owned)
}

/// The user's own annotations: Podman's pods have none, but `kube play` gives the YAML's to each
/// member.
fn theirs(document: &Document<'_>) -> std::collections::BTreeMap<String, String> {
    let is_own = |key: &String| OWN.iter().any(|own| key.starts_with(own));
    let all = document.annotations.iter().filter(|(key, _)| !is_own(key));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn seccomp(said: String) -> Option<SeccompProfile> {
    match said.as_str() {
        "unconfined" => Some(SeccompProfile::Unconfined),
        path if path.starts_with('/') => Some(SeccompProfile::Localhost(said)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_found_in_the_cgroup_of_both_drivers() {
        let id = "a".repeat(64);
        assert_eq!(pod_in_cgroup(&format!("/libpod_parent/{id}/libpod-c")), Some(id.clone()));
        let slice = format!("machine-libpod_pod_{id}.slice:libpod:c");
        assert_eq!(pod_in_cgroup(&slice), Some(id));
    }

    #[test]
    fn a_container_of_no_pod_has_none() {
        for path in ["", "/libpod_parent/libpod-c", "machine.slice:libpod:c", "x"] {
            assert_eq!(pod_in_cgroup(path), None);
        }
    }
}
