// SPDX-License-Identifier: Apache-2.0
//! Reads CRI-O's facts about a container and its pod (CRI-O 1.2x to 1.37). CRI-O writes nearly everything into the
//! sandbox's config.json, which is on disk even if the pod has no infrastructure container.
//!
//! In the sandbox's document a pod's author can shadow CRI-O's keys; in a container's document
//! CRI-O's keys take precedence; and a sandbox's document can look like a container's. So role, IDs
//! and names come from the storage's records and conmon's arguments, and the sandbox is found by
//! its ID. An entry of CRI-O's lists of labels and annotations is used only if the document also
//! has it as a separate annotation; separate annotations that both lists lack are added, except
//! CRI-O's own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::identity::{Claims, Field, Source, Writer, contradiction};
use super::{
    CallerInfo, ContainerFacts, DetectedEngine, Document, Facts, FetchedFacts, Image, PodDocument,
    PodFacts, Role, SeccompProfile, Seen, Wanted, conmon, cri, digest, pod_cgroup, storage, text,
    texts,
};

/// The annotation that names the engine: `cri-o`, or `libpod` for Podman.
pub(super) const MANAGER: &str = "io.container.manager";
pub(super) const SANDBOX_ID: &str = "io.kubernetes.cri-o.SandboxID";
const PREFIX: &str = "io.kubernetes.cri-o.";
/// Key of the annotation with the pod's overhead: until CRI-O 1.34, and since 1.35.
const OVERHEAD: [&str; 2] = ["pod-linux-overhead.crio.io", "io.kubernetes.cri-o.PodLinuxOverhead"];
/// Key of the annotation with the pod's resources, in the same versions.
const RESOURCES: [&str; 2] =
    ["pod-linux-resources.crio.io", "io.kubernetes.cri-o.PodLinuxResources"];
/// Other keys and prefixes that CRI-O writes.
const BESIDE: [&str; 5] = [
    PREFIX,
    MANAGER,
    "io.kubernetes.container.name",
    "org.opencontainers.image.",
    "org.systemd.property.",
];
/// The annotation of a pod for which the runtime is never called, under its earlier and its present key.
const SPOOFED: [&str; 2] = ["spoofed.crio.io", "io.kubernetes.cri-o.Spoofed"];

/// The annotations of a document, with CRI-O's among them.
struct CrioKeys<'a>(&'a BTreeMap<String, String>);

impl CrioKeys<'_> {
    fn own(&self, name: &str) -> Option<&str> {
        self.0.get(&format!("{PREFIX}{name}")).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn json(&self, name: &str) -> Option<Value> {
        serde_json::from_str(self.own(name)?).ok()
    }

    fn block(&self, names: [&str; 2]) -> Option<Map<String, Value>> {
        let said = names.iter().find_map(|name| self.0.get(*name))?;
        serde_json::from_str(said).ok()
    }
}

fn is_sandbox(document: &Document<'_>) -> bool {
    CrioKeys(document.annotations).own("ContainerType") == Some("sandbox")
}

/// Whether the document describes a pod for which the runtime is never called. In this document the
/// author's annotations take precedence, but they can only hide a pod until its first container.
pub(super) fn is_pod_without_runtime(document: &Document<'_>) -> bool {
    is_sandbox(document) && is_spoofed(document.annotations)
}

fn is_spoofed(annotations: &BTreeMap<String, String>) -> bool {
    SPOOFED.iter().any(|key| annotations.get(*key).is_some_and(|on| on == "true"))
}

/// Returns the files of the pod that the document names, which may be another's, and the storage's records.
pub(super) fn wanted(call: &CallerInfo<'_>, document: &Document<'_>) -> Wanted {
    let mut files = Vec::new();
    if let Some(pod) = document.said(SANDBOX_ID).filter(|pod| pod != call.id) {
        files.extend(storage::beside(call, &pod, "config.json"));
        files.extend(storage::beside(call, &pod, "pidfile"));
    }
    files.extend(storage::records(call));
    Wanted { files, store: None }
}

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document, found } = seen;
    let keys = CrioKeys(document.annotations);
    let mut contradictions = engine.contradictions().to_vec();
    let identity = identify(seen, &mut contradictions);
    let is_sandbox = identity.role == Role::Sandbox;
    let mut pod = PodFacts {
        id: identity.pod_id,
        name: identity.name,
        namespace: identity.namespace,
        uid: identity.uid,
        ..PodFacts::default()
    };
    let paths = storage::beside(call, &pod.id, "config.json");
    let bytes = if is_sandbox { None } else { found.first(&paths) };
    let theirs = if is_sandbox {
        document.annotations.clone()
    } else {
        bytes.map(cri::annotations_of).unwrap_or_default()
    };
    let mut missing = Vec::new();
    let is_believed =
        is_sandbox || bytes.is_some() && (identity.is_proven || agrees(&theirs, &pod));
    if is_believed {
        of_sandbox(&mut pod, &CrioKeys(&theirs), document, is_sandbox, &mut contradictions);
    } else if bytes.is_some() {
        missing.push("the document of the pod's sandbox names another pod: ignored".into());
    } else {
        let what = "the document of the pod's sandbox could not be read";
        missing.push(format!("{what}: pod labels, annotations, handler and overhead are absent"));
    }
    pod.ips = ips(&keys, &CrioKeys(&theirs), is_believed);
    pod.pid = document.joined_process(&["pid"]).unwrap_or(0);
    if is_sandbox {
        pod.pid = 0;
    } else if pod.pid == 0 && pod.lives_with.is_none() {
        let pids = storage::beside(call, &pod.id, "pidfile");
        pod.pid = pids.iter().find_map(|path| found.pid(path)).unwrap_or(0);
    }
    pod.lives_with =
        pod.lives_with.and_then(|_| paths.iter().find(|path| found.file(path).is_some()).cloned());
    pod.document = match bytes {
        _ if is_sandbox => PodDocument::Own,
        Some(bytes) if is_believed => PodDocument::Sandbox(bytes.to_vec()),
        Some(_) | None => PodDocument::Unknown,
    };
    let mut container = container(call, &keys, document);
    container.name = identity.container.unwrap_or(container.name);
    Facts {
        engine,
        role: identity.role,
        container,
        pod,
        namespace_by: identity.namespace_by,
        has_image_annotations: false,
        names_pod: false,
        contradictions,
        unread: None,
        missing,
    }
}

/// A container's identity.
struct Identity {
    role: Role,
    pod_id: String,
    name: String,
    namespace: String,
    uid: String,
    container: Option<String>,
    namespace_by: Option<Writer>,
    /// Whether CRI-O, not an author, names the pod.
    is_proven: bool,
}

const SANDBOX: &str = "sandbox";
const CONTAINER: &str = "container";

/// Determines the identity by the storage's record, else by conmon's arguments, the cgroup, and
/// last by annotations.
fn identify(seen: Seen<'_>, contradictions: &mut Vec<String>) -> Identity {
    let Seen { call, document, found } = seen;
    let keys = CrioKeys(document.annotations);
    let mut claims = Claims::new(super::EngineKind::Crio);
    let is_told_by_record = of_record(&mut claims, call, found);
    let is_told_by_conmon = of_conmon(&mut claims, call);
    let own = if is_sandbox(document) { SANDBOX } else { CONTAINER };
    claims.add(Field::Role, Source::MaybeSandbox, Some(own.to_owned()));
    let settled = claims.settle(Field::Role, contradictions);
    let role = match settled {
        Some((role, _)) if role == SANDBOX => Role::Sandbox,
        Some(_) | None => Role::Container,
    };
    // In the document of a known container, CRI-O's keys take precedence.
    let is_proven = is_told_by_record || is_told_by_conmon;
    let source = match role {
        Role::Container if is_proven => Source::Annotation,
        Role::Container | Role::Sandbox => Source::MaybeSandbox,
    };
    of_annotations(&mut claims, &keys, document, source);
    if role == Role::Sandbox {
        claims.add(Field::PodId, Source::RuntimeId, Some(call.id.to_owned()));
    }
    claims.add(Field::PodUid, Source::CgroupPath, pod_cgroup::pod_uid(document.cgroups_path));
    let mut settle = |field| claims.settle(field, contradictions);
    let value = |settled: Option<(String, Writer)>| settled.map(|(value, _)| value);
    let (pod_id, name) = (value(settle(Field::PodId)), value(settle(Field::PodName)));
    let namespace = settle(Field::PodNamespace);
    Identity {
        role,
        pod_id: pod_id.unwrap_or_else(|| call.id.to_owned()),
        name: name.unwrap_or_default(),
        namespace_by: namespace.as_ref().map(|(_, writer)| *writer),
        namespace: value(namespace).unwrap_or_default(),
        uid: value(settle(Field::PodUid)).unwrap_or_default(),
        container: value(settle(Field::ContainerName)),
        is_proven,
    }
}

/// Adds the claims of CRI-O's record in containers/storage; returns whether there is one.
fn of_record(claims: &mut Claims, call: &CallerInfo<'_>, found: &FetchedFacts) -> bool {
    let Some(record) = storage::metadata(call, found, call.id) else { return false };
    let Some(pod) = text(&record, "/pod-id") else { return false };
    let is_sandbox = pod == call.id;
    let role = if is_sandbox { SANDBOX } else { CONTAINER };
    claims.add(Field::Role, Source::StorageRecord, Some(role.to_owned()));
    claims.add(Field::PodId, Source::StorageRecord, Some(pod));
    let names = text(&record, "/pod-name").unwrap_or_default();
    let [name, namespace, uid] = pod_names(&names);
    let own = |key: &str| text(&record, key).filter(|_| is_sandbox);
    let say = |claims: &mut Claims, field, own: Option<String>, of_name: String| {
        claims.add(field, Source::StorageRecord, own.or(Some(of_name)));
    };
    say(claims, Field::PodName, own("/metadata-name"), name);
    say(claims, Field::PodNamespace, own("/namespace"), namespace);
    say(claims, Field::PodUid, own("/uid"), uid);
    if !is_sandbox {
        claims.add(Field::ContainerName, Source::StorageRecord, text(&record, "/metadata-name"));
    }
    true
}

/// Adds the claims of conmon's name, `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT`; returns whether
/// there is one. `POD` marks a sandbox: no container can have this name.
fn of_conmon(claims: &mut Claims, call: &CallerInfo<'_>) -> bool {
    let name = conmon::option(call, &["-n", "--name"]).unwrap_or_default();
    let parts: Vec<&str> = name.split('_').collect();
    let ["k8s", container, name, namespace, uid, _attempt] = parts[..] else { return false };
    let role = if container == "POD" { SANDBOX } else { CONTAINER };
    let all = [
        (Field::Role, role),
        (Field::ContainerName, container),
        (Field::PodName, name),
        (Field::PodNamespace, namespace),
        (Field::PodUid, uid),
    ];
    for (field, value) in all {
        claims.add(field, Source::Conmon, Some(value.to_owned()));
    }
    true
}

fn of_annotations(
    claims: &mut Claims,
    keys: &CrioKeys<'_>,
    document: &Document<'_>,
    source: Source,
) {
    let said = keys.own("SandboxName").or_else(|| keys.own("Name"));
    let [name, namespace, uid] = pod_names(said.unwrap_or_default());
    let by_cgroup = pod_cgroup::pod_uid(document.cgroups_path);
    claims.add(Field::PodUid, source, Some(uid.clone()));
    if source == Source::MaybeSandbox && by_cgroup.is_some_and(|by_cgroup| by_cgroup != uid) {
        return; // The cgroup belongs to another pod than the one that the annotations name.
    }
    claims.add(Field::PodId, source, document.said(SANDBOX_ID));
    claims.add(Field::PodName, source, Some(name));
    claims.add(Field::PodNamespace, source, Some(namespace));
    if source == Source::Annotation {
        claims.add(Field::ContainerName, source, document.said("io.kubernetes.container.name"));
    }
}

/// Returns name, namespace and UID of `k8s_NAME_NAMESPACE_UID_ATTEMPT`: none of them contains an
/// underscore.
fn pod_names(text: &str) -> [String; 3] {
    let mut parts = text.split('_').skip(1).map(ToOwned::to_owned);
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

fn agrees(theirs: &BTreeMap<String, String>, pod: &PodFacts) -> bool {
    let Some(metadata) = CrioKeys(theirs).json("Metadata") else { return false };
    let said = |key: &str| text(&metadata, key).unwrap_or_default();
    said("/name") == pod.name && said("/namespace") == pod.namespace && said("/uid") == pod.uid
}

fn of_sandbox(
    pod: &mut PodFacts,
    keys: &CrioKeys<'_>,
    document: &Document<'_>,
    is_own: bool,
    contradictions: &mut Vec<String>,
) {
    let labels = confirmed(keys, "Labels", Field::PodLabels, contradictions);
    let annotations = confirmed(keys, "Annotations", Field::PodAnnotations, contradictions);
    // Entries that are missing from a shadowed list exist as separate annotations.
    let is_left = |key: &str| {
        let is_engines = BESIDE.iter().any(|own| key.starts_with(own)) || key.ends_with(".crio.io");
        !is_engines && !labels.contains_key(key) && !annotations.contains_key(key)
    };
    let left = keys.0.iter().filter(|(key, _)| is_left(key));
    let left: Vec<(String, String)> = left.map(|(k, v)| (k.clone(), v.clone())).collect();
    pod.labels = labels;
    if !pod.labels.contains_key(cri::KUBELET_UID) && keys.0.contains_key(cri::KUBELET_UID) {
        pod.labels.extend(left.clone());
    }
    pod.annotations = annotations;
    if keys.own("Annotations").is_some() {
        pod.annotations.extend(left);
    }
    pod.runtime_handler = keys.own("RuntimeHandler").unwrap_or_default().to_owned();
    pod.cgroup_parent = cgroup_parent(keys, document, is_own, contradictions);
    pod.overhead = keys.block(OVERHEAD);
    pod.resources = keys.block(RESOURCES);
    pod.lives_with = is_spoofed(keys.0).then(String::new);
}

/// Returns the entries of CRI-O's list (labels or annotations) that the document also has as separate
/// annotations; reports the others as contradictions. The pod's author can forge the list with an
/// annotation of its key, but a separate annotation only by giving the pod that very annotation.
fn confirmed(
    keys: &CrioKeys<'_>,
    list: &str,
    field: Field,
    contradictions: &mut Vec<String>,
) -> BTreeMap<String, String> {
    let mut all = texts(keys.json(list).as_ref());
    // If a label and an annotation have the same key, the separate annotation has the label's value.
    let hiding = texts(keys.json("Labels").as_ref());
    all.retain(|key, value| match keys.0.get(key) {
        Some(plain) if plain == value || hiding.get(key) == Some(plain) => true,
        plain => {
            let other = (format!("CRI-O's list of {list}"), format!("{key}={value}"));
            let is = plain.map_or_else(String::new, |plain| format!("{key}={plain}"));
            let line =
                contradiction(field, (&other.0, &other.1), ("its separate annotations", &is));
            contradictions.push(line);
            false
        }
    });
    all
}

/// Returns the pod's cgroup according to CRI-O, if its last part is that of the container's parent
/// cgroup, or the container has no cgroup path.
fn cgroup_parent(
    keys: &CrioKeys<'_>,
    document: &Document<'_>,
    is_own: bool,
    contradictions: &mut Vec<String>,
) -> Option<String> {
    let said = keys.own("CgroupParent")?.to_owned();
    let parent = pod_cgroup::cgroup_parent(document.cgroups_path);
    let last = |path: &str| path.trim_end_matches('/').rsplit('/').next().map(ToOwned::to_owned);
    if last(&parent) == last(&said) || document.cgroups_path.is_empty() {
        return Some(said);
    }
    if is_own {
        contradictions.push(format!(
            "cgroup parent: annotation {PREFIX}CgroupParent does not fit the cgroup path"
        ));
    }
    None
}

/// Returns the addresses: `IP.0`, `IP.1` of the container's document, else the CNI plugin's result
/// in the sandbox's document, if that agrees.
fn ips(keys: &CrioKeys<'_>, theirs: &CrioKeys<'_>, agrees: bool) -> Vec<String> {
    let own: Vec<String> =
        (0..).map_while(|n| keys.own(&format!("IP.{n}")).map(ToOwned::to_owned)).collect();
    if !own.is_empty() || !agrees {
        return own;
    }
    let Some(result) = theirs.json("CNIResult") else { return Vec::new() };
    let all = result["ips"].as_array().into_iter().flatten();
    let addresses = all.filter_map(|ip| text(ip, "/address"));
    addresses.map(|ip| ip.split('/').next().unwrap_or_default().to_owned()).collect()
}

fn container(
    call: &CallerInfo<'_>,
    keys: &CrioKeys<'_>,
    document: &Document<'_>,
) -> ContainerFacts {
    let metadata = keys.json("Metadata").and_then(|metadata| text(&metadata, "/name"));
    let name = document.said("io.kubernetes.container.name").or(metadata);
    let image = keys.own("ImageName").or_else(|| keys.own("Image"));
    let digests = keys.own("ImageRepoDigests").unwrap_or_default();
    let repo_digest = digests.split(',').find_map(|whole| whole.split_once('@'));
    ContainerFacts {
        id: call.id.to_owned(),
        name: name.unwrap_or_else(|| call.id.to_owned()),
        labels: texts(keys.json("Labels").as_ref()),
        image: image.map(|name| Image {
            name: name.to_owned(),
            digest: repo_digest.map(|(_, digest)| digest.to_owned()).unwrap_or_default(),
            config_digest: keys.own("ImageRef").map(digest).unwrap_or_default(),
        }),
        seccomp: keys.own("SeccompProfilePath").and_then(seccomp),
        ..ContainerFacts::default()
    }
}

fn seccomp(said: &str) -> Option<SeccompProfile> {
    match said {
        "RuntimeDefault" | "runtime/default" => Some(SeccompProfile::RuntimeDefault),
        "Unconfined" | "unconfined" => Some(SeccompProfile::Unconfined),
        file => {
            let file = file.strip_prefix("localhost/").unwrap_or(file);
            Some(SeccompProfile::Localhost(file.to_owned()))
        }
    }
}
