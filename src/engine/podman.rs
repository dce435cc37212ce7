// SPDX-License-Identifier: Apache-2.0
//! Podman, plain, in pods and from Kubernetes YAML. Names are on conmon's command line, the pod's
//! id in the cgroup's path, images in the storage's records; labels, the pod's name and addresses in
//! Podman's database (`libpod`). Members name the infrastructure container as their sandbox;
//! it is recognised by naming none, or by the database.

use super::libpod::{self, Rows};
use super::{
    Call, Document, Engine, Facts, Found, Image, PodDocument, Role, SeccompProfile, Wanted, conmon,
    crio, digest, own, storage, text, texts,
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
    files.extend(databases(call));
    if let Some(infra) = document.said(crio::SANDBOX_ID) {
        files.extend(storage::beside(call, &infra, "config.json"));
    }
    Wanted { files, store: None }
}

/// Podman keeps its database below the graph root, a transient one below the run root.
fn databases(call: &Call<'_>) -> Vec<String> {
    let homes = storage::homes(call);
    let roots = homes.iter().filter_map(|home| Some(home.rsplit_once('/')?.0));
    let places = roots.flat_map(|root| libpod::FILES.map(|file| format!("{root}/{file}")));
    places.collect()
}

/// Podman's database, the one of them that knows this container; it may have kept an older one.
fn rows<'f>(call: &Call<'_>, found: &'f Found) -> Option<Rows<'f>> {
    let places = databases(call);
    let mut all = places.iter().filter_map(|path| Rows::open(found.file(path)?));
    all.find(|rows| rows.container(call.id).is_some())
}

pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    document: &Document<'_>,
    found: &Found,
) -> Facts {
    let mut facts = Facts::alone(engine, call);
    let rows = rows(call, found);
    let name = conmon::option(call, &["-n", "--name"]);
    let infra = document.said(crio::SANDBOX_ID);
    let of_pod = pod_in_cgroup(document.cgroups_path).or_else(|| rows?.pod_of(call.id));
    let is_infra = infra.is_none()
        && (of_pod.is_some() || name.as_deref().is_some_and(|name| name.ends_with("-infra")));
    let is_infra = match of_pod.as_ref().and_then(|pod| rows?.infra_of(pod)) {
        Some(infra) => infra == call.id,
        None => is_infra,
    };
    if is_infra {
        facts.role = Role::Sandbox;
    }
    named(&mut facts, call, found, name);
    let pod = &mut facts.pod;
    let is_alone = infra.is_none() && of_pod.is_none() && !is_infra;
    pod.id = of_pod.or_else(|| infra.clone()).unwrap_or_else(|| call.id.to_owned());
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
    from_database(&mut facts, rows, infra.as_deref().unwrap_or(call.id));
    own::apply(&mut facts, document.annotations);
    facts
}

/// Name and image, from conmon and the storage's record.
fn named(facts: &mut Facts, call: &Call<'_>, found: &Found, name: Option<String>) {
    let record = storage::metadata(call, found, call.id);
    facts.container.image = record.as_ref().and_then(storage::image);
    if let Some(name) = name.or_else(|| text(record.as_ref()?, "/name")) {
        facts.container.name = name;
    } else {
        facts.missing.push("the container's name is neither on conmon's command line nor in the storage's records: its id stands for it".into());
    }
}

fn from_database(facts: &mut Facts, rows: Option<Rows<'_>>, network_of: &str) {
    let known = rows.and_then(|rows| Some((rows, rows.container(&facts.container.id)?)));
    let Some((rows, config)) = known else {
        let why = "Podman's database does not show this container";
        facts.missing.push(format!("{why}: labels, the pod's name and addresses are absent unless annotations nri-runc.dev/… say them"));
        return;
    };
    facts.container.labels = texts(config.get("labels"));
    // conmon's words are those of the Podman that started the container, maybe another one's.
    if let Some(runtime) = text(&config, "/runtime") {
        facts.pod.runtime_handler = runtime;
    }
    if facts.container.image.is_none() {
        facts.container.image = text(&config, "/rootfsImageName").map(|name| Image {
            name,
            config_digest: digest(&text(&config, "/rootfsImageID").unwrap_or_default()),
            ..Image::default()
        });
    }
    facts.pod.ips = rows.ips(network_of);
    if let Some(pod) = rows.pod(&facts.pod.id) {
        facts.pod.labels = texts(pod.get("labels"));
        facts.pod.name = text(&pod, "/name").unwrap_or_default();
    } else if facts.pod.id == facts.container.id {
        facts.pod.labels = facts.container.labels.clone();
    }
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
