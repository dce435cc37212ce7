// SPDX-License-Identifier: Apache-2.0
//! Podman: single containers, pods and Kubernetes YAML. Names are on conmon's command line, the
//! pod's ID in the cgroup's path, images in the storage's records; labels, the pod's name and
//! addresses in Podman's database (`libpod`).
//!
//! Annotations of the document come from the operator and the image, so they prove neither the pod
//! nor the role; nri-runc's keys are accepted only if the image does not have them. The same
//! applies to the container's labels. The pod's labels come only from the pod's creator.

use std::collections::BTreeMap;

use serde_json::Value;

use super::identity::{Claims, Field, Source};
use super::image::ImageWords;
use super::libpod::{self, Rows};
use super::{
    CallerInfo, DetectedEngine, Document, EngineKind, Facts, FetchedFacts, Image, PodDocument,
    Role, SeccompProfile, Seen, Wanted, conmon, crio, digest, own, pod_cgroup, storage, text,
    texts,
};

/// Annotations that Podman writes.
const OWN: [&str; 5] = [
    "io.podman.annotations.",
    "io.container.manager",
    "io.kubernetes.cri-o.",
    "org.opencontainers.image.",
    "org.systemd.property.",
];

pub(super) fn wanted(call: &CallerInfo<'_>, document: &Document<'_>) -> Wanted {
    let mut files = storage::records(call);
    files.extend(databases(call));
    if let Some(infra) = document.said(crio::SANDBOX_ID) {
        files.extend(storage::beside(call, &infra, "config.json"));
    }
    Wanted { files, store: None }
}

/// Lists the paths of Podman's database: below the graph root, or a transient one below the run
/// root.
fn databases(call: &CallerInfo<'_>) -> Vec<String> {
    let homes = storage::homes(call);
    let roots = homes.iter().filter_map(|home| Some(home.rsplit_once('/')?.0));
    roots.flat_map(libpod::files).collect()
}

/// Opens the database that has this container; Podman may have left an older one.
fn rows<'f>(call: &CallerInfo<'_>, found: &'f FetchedFacts) -> Option<Rows<'f>> {
    let places = databases(call);
    let mut all = places.iter().filter_map(|path| Rows::open(found.file(path)?));
    all.find(|rows| rows.container(call.id).is_some())
}

/// Returns the image's manifests and configuration, because Podman copies their annotations and
/// labels to the container.
pub(super) fn wanted_more(Seen { call, found, .. }: Seen<'_>) -> Wanted {
    let Some(image) = image_id(call, found) else { return Wanted::default() };
    let mut files = storage::manifests(call, &image);
    files.extend(storage::image_records(call));
    files.extend(storage::all_manifests(call, &image, found).into_iter().flatten().flatten());
    files.extend(storage::image_configs(call, &image, found));
    Wanted { files, store: None }
}

/// Returns the ID of the container's image, if it is known.
fn image_id(call: &CallerInfo<'_>, found: &FetchedFacts) -> Option<String> {
    let record = storage::metadata(call, found, call.id);
    let by_record = record.as_ref().and_then(|record| text(record, "/image-id"));
    by_record.or_else(|| text(&rows(call, found)?.container(call.id)?, "/rootfsImageID"))
}

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document, found } = seen;
    let mut facts = Facts::alone(engine, call);
    let rows = rows(call, found);
    let name = conmon::option(call, &["-n", "--name"]);
    let of_pod = place(&mut facts, call, document, rows, name.as_deref());
    let infra = infra(seen, rows, of_pod.as_deref());
    set_name(&mut facts, call, found, name);
    let pod = &mut facts.pod;
    pod.name = match &of_pod {
        Some(id) => id.clone(),
        None => facts.container.name.clone(),
    };
    pod.id = of_pod.unwrap_or_else(|| call.id.to_owned());
    pod.uid.clone_from(&pod.id);
    pod.runtime_handler = conmon::exit_option(call, "--runtime").unwrap_or_default();
    let infra = infra.filter(|_| facts.role == Role::Container);
    if let Some(infra) = &infra {
        pod.pid = document.joined_process(&["network", "ipc", "uts"]).unwrap_or(0);
        pod.document = match found.first(&storage::beside(call, infra, "config.json")) {
            Some(bytes) => PodDocument::Sandbox(bytes.to_vec()),
            None => PodDocument::Unknown,
        };
    }
    from_database(&mut facts, rows, infra.as_deref().unwrap_or(call.id));
    if let (Some(image), Some(id)) = (&mut facts.container.image, image_id(call, found)) {
        image.digest = storage::manifest_digest(call, &id, found).unwrap_or_default();
    }
    let manifest = images(call, found, rows, |id| storage::all_manifests(call, id, found));
    facts.has_image_annotations = manifest.is_none();
    facts.container.seccomp = seccomp(document, manifest.as_ref());
    facts.pod.annotations = theirs(document, manifest.as_ref());
    let mut said = labels_said(&mut facts, call, found, rows);
    said.extend(own::of_operator(
        &mut facts,
        "annotation",
        document.annotations,
        manifest.as_ref(),
    ));
    if facts.pod.id != call.id {
        own::forbid_other_pod(&mut facts, &mut said);
    }
    own::apply(&mut facts, document, &said);
    facts
}

/// Returns the labels set by the creators of pod and container; the container's override the pod's.
fn labels_said(
    facts: &mut Facts,
    call: &CallerInfo<'_>,
    found: &FetchedFacts,
    rows: Option<Rows<'_>>,
) -> BTreeMap<String, String> {
    let pod = rows.and_then(|rows| rows.pod(&facts.pod.id));
    let pods = pod.map(|pod| texts(pod.get("labels"))).unwrap_or_default();
    let mut said = own::of_pod(facts, pods);
    let configs = |id: &str| Some(vec![storage::image_configs(call, id, found)]);
    let config = images(call, found, rows, configs);
    let labels = facts.container.labels.clone();
    said.extend(own::of_operator(facts, "label", &labels, config.as_ref()));
    said
}

/// Determines the role, and the ID of the pod if the container is in one. Podman's database has
/// both; without it the cgroup shows the pod, and Podman's name for the container shows the role.
fn place(
    facts: &mut Facts,
    call: &CallerInfo<'_>,
    document: &Document<'_>,
    rows: Option<Rows<'_>>,
    name: Option<&str>,
) -> Option<String> {
    const ALONE: &str = "none";
    let mut claims = Claims::new(EngineKind::Podman);
    let by_cgroup = pod_in_cgroup(document.cgroups_path);
    if let Some(rows) = rows {
        let pod = rows.pod_of(call.id);
        let is_infra = pod.as_ref().and_then(|pod| rows.infra_of(pod));
        if pod.is_none() || is_infra.is_some() {
            let is_infra = is_infra.is_some_and(|infra| infra == call.id);
            claims.add(Field::Role, Source::PodmanDatabase, Some(is_infra.to_string()));
        }
        let pod = pod.unwrap_or_else(|| ALONE.to_owned());
        claims.add(Field::PodId, Source::PodmanDatabase, Some(pod));
    }
    claims.add(Field::PodId, Source::CgroupPath, by_cgroup);
    let pod = claims.settle(Field::PodId, &mut facts.contradictions).map(|(pod, _)| pod);
    let pod = pod.filter(|pod| pod != ALONE);
    let is_infras =
        |pod: &String| name.and_then(|name| name.strip_suffix("-infra")) == pod.get(..12);
    let by_name = pod.as_ref().is_some_and(is_infras);
    claims.add(Field::Role, Source::Conmon, by_name.then(|| true.to_string()));
    // Podman annotates each member with its infrastructure container; a user can change this
    // annotation, but not remove it.
    let is_nameless = pod.is_some() && !document.annotations.contains_key(crio::SANDBOX_ID);
    claims.add(Field::Role, Source::Annotation, is_nameless.then(|| true.to_string()));
    let role = claims.settle(Field::Role, &mut facts.contradictions);
    if role.is_some_and(|(role, _)| role == true.to_string()) {
        facts.role = Role::Sandbox;
    }
    pod
}

/// Returns the pod's infrastructure container: from the database, else the one that the document
/// names, if its cgroup is in the same pod.
fn infra(seen: Seen<'_>, rows: Option<Rows<'_>>, pod: Option<&str>) -> Option<String> {
    let Seen { call, document, found } = seen;
    let pod = pod?;
    if let Some(infra) = rows.and_then(|rows| rows.infra_of(pod)) {
        return Some(infra);
    }
    let said = document.said(crio::SANDBOX_ID)?;
    let beside = found.first(&storage::beside(call, &said, "config.json"))?;
    let path = pod_cgroup::path_in(beside)?;
    (pod_in_cgroup(&path).as_deref() == Some(pod)).then_some(said)
}

/// Reads these documents of the image, each from the first of its paths that exists. Empty for a
/// container without an image; `None` if the image is unknown or a document cannot be read.
fn images(
    call: &CallerInfo<'_>,
    found: &FetchedFacts,
    rows: Option<Rows<'_>>,
    documents: impl Fn(&str) -> Option<Vec<Vec<String>>>,
) -> Option<ImageWords> {
    let has_no_image = rows
        .and_then(|rows| rows.container(call.id))
        .is_some_and(|config| text(&config, "/rootfs").is_some());
    if has_no_image {
        return Some(ImageWords::default());
    }
    let documents = documents(&image_id(call, found)?).filter(|all| !all.is_empty())?;
    let mut said = ImageWords::default();
    for files in documents {
        said.add(found.first(&files)?)?;
    }
    Some(said)
}

/// Sets name and image, from conmon and the storage's record.
fn set_name(facts: &mut Facts, call: &CallerInfo<'_>, found: &FetchedFacts, name: Option<String>) {
    let record = storage::metadata(call, found, call.id);
    facts.container.image = record.as_ref().and_then(storage::image);
    if let Some(name) = name.or_else(|| text(record.as_ref()?, "/name")) {
        facts.container.name = name;
    } else {
        facts.missing.push("the container's name is neither on conmon's command line nor in the storage's records: its ID is used instead".into());
    }
}

fn from_database(facts: &mut Facts, rows: Option<Rows<'_>>, network_of: &str) {
    let known = rows.and_then(|rows| Some((rows, rows.container(&facts.container.id)?)));
    let Some((rows, config)) = known else {
        let why = "Podman's database does not show this container";
        facts.unread = Some(why.to_owned());
        facts.missing.push(format!("{why}: labels, the pod's name and addresses are absent unless annotations nri-runc.dev/… set them"));
        return;
    };
    facts.container.labels = texts(config.get("labels"));
    // conmon's arguments may come from a Podman of another version, so the database's value wins.
    if let Some(runtime) = text(&config, "/runtime") {
        facts.pod.runtime_handler = runtime;
    }
    let devices = config["cdiDevices"].as_array().into_iter().flatten();
    facts.container.cdi_devices =
        devices.filter_map(Value::as_str).map(ToOwned::to_owned).collect();
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

/// Returns the pod's ID in `PARENT/POD/libpod-ID` or `….libpod_pod_POD.slice:libpod:ID`.
fn pod_in_cgroup(path: &str) -> Option<String> {
    let is_id = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let pod = match path.split_once(':') {
        Some((slice, _)) => slice.strip_suffix(".slice")?.rsplit_once("libpod_pod_")?.1,
        None => path.rsplit_once('/')?.0.rsplit('/').next()?,
    };
    Some(pod).filter(is_id).map(ToOwned::to_owned)
}

/// Returns the user's annotations. Podman's pods have none, but `kube play` copies the YAML's
/// annotations to each member. The image's annotations are removed if they are known.
fn theirs(document: &Document<'_>, images: Option<&ImageWords>) -> BTreeMap<String, String> {
    let is_own = |key: &String| OWN.iter().any(|own| key.starts_with(own));
    let is_images =
        |key: &String, value: &String| images.is_some_and(|images| images.has(key, value));
    let all = document.annotations.iter();
    let all = all.filter(|(key, value)| !is_own(key) && !is_images(key, value));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the seccomp profile: Podman records a user's profile in an annotation. An image may have
/// that annotation too, but it cannot change the document's filter.
fn seccomp(document: &Document<'_>, images: Option<&ImageWords>) -> Option<SeccompProfile> {
    const KEY: &str = "io.podman.annotations.seccomp";
    if !document.has_seccomp {
        return Some(SeccompProfile::Unconfined);
    }
    let Some(said) = document.said(KEY) else { return Some(SeccompProfile::RuntimeDefault) };
    let is_users = images.is_some_and(|images| !images.has(KEY, &said));
    (is_users && said.starts_with('/')).then_some(SeccompProfile::Localhost(said))
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
    fn a_cgroup_outside_of_a_pod_has_no_pod() {
        for path in ["", "/libpod_parent/libpod-c", "machine.slice:libpod:c", "x"] {
            assert_eq!(pod_in_cgroup(path), None);
        }
    }

    fn profile(filter: bool, said: Option<&str>, image: Option<&str>) -> Option<SeccompProfile> {
        let key = "io.podman.annotations.seccomp".to_owned();
        let annotations: BTreeMap<String, String> =
            said.map(|said| (key, said.to_owned())).into_iter().collect();
        let document = Document {
            annotations: &annotations,
            root_path: "",
            cgroups_path: "",
            mounts: Vec::new(),
            namespaces: Vec::new(),
            clos: None,
            limits_block_io: false,
            has_seccomp: filter,
        };
        let images = image.map(|json| ImageWords::read(json.as_bytes()).unwrap());
        seccomp(&document, images.as_ref())
    }

    #[test]
    fn the_seccomp_profile_never_comes_from_the_image() {
        let file = |path: &str| Some(SeccompProfile::Localhost(path.to_owned()));
        assert_eq!(profile(true, None, Some("{}")), Some(SeccompProfile::RuntimeDefault));
        assert_eq!(profile(true, Some("/p.json"), Some("{}")), file("/p.json"));
        let forged = r#"{"annotations":{"io.podman.annotations.seccomp":"/p.json"}}"#;
        assert_eq!(profile(true, Some("/p.json"), Some(forged)), None);
        assert_eq!(profile(true, Some("/p.json"), None), None, "the image is not known");
        assert_eq!(profile(true, Some("unconfined"), Some("{}")), None, "it has a filter");
        for said in [None, Some("unconfined"), Some("/p.json")] {
            assert_eq!(profile(false, said, Some("{}")), Some(SeccompProfile::Unconfined));
        }
    }
}
