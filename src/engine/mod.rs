// SPDX-License-Identifier: Apache-2.0
//! Detects the calling engine, and reads its data about a container, in one form for all engines.
//!
//! Each engine has a file (containerd's clients share `ctr.rs`, a plain bundle has none), and all
//! are pure: [`wanted`] names the sources on the host, `src/sources` fetches them
//! ([`FetchedFacts`]), and [`facts`] parses them. This module reads no file. Unknown values are
//! absent, never guessed.

mod behaviour;
mod class_names;
mod conmon;
mod containerd;
mod cri;
mod crio;
mod ctr;
mod detect;
mod docker;
mod dockerd;
pub(crate) mod identity;
mod image;
mod isulad;
mod kubelet;
mod kubernetes;
pub(crate) mod libpod;
mod own;
mod pod_cgroup;
mod podman;
mod storage;
mod wanted;

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde_json::{Map, Value};

use identity::Writer;

pub(crate) use behaviour::EngineName;
pub(crate) use behaviour::{ExitPlace, LastingExit};
pub(crate) use conmon::is_conmon;
pub(crate) use containerd::{socket as containerd_socket, socket_of as containerd_socket_of};
pub use detect::{DetectedEngine, EngineKind, detect};
pub(crate) use dockerd::Dockerd;
pub(crate) use kubelet::{Allocated, Allocations, PodAllocations};
pub(crate) use pod_cgroup::{cgroup_of_pod, cgroup_parent};
pub use wanted::{FetchedFacts, StoreRecord};
pub(crate) use wanted::{StoreQuery, Wanted};

/// A call of the runtime: the container, and the processes that called.
#[derive(Debug)]
pub struct CallerInfo<'a> {
    /// Container id.
    pub id: &'a str,
    /// Bundle directory.
    pub bundle: &'a str,
    /// Command line of the parent.
    pub parent: &'a [Vec<u8>],
    /// Command line of the parent's parent.
    pub grandparent: &'a [Vec<u8>],
    /// The engine's environment variables that matter here.
    pub variables: &'a [(String, OsString)],
}

/// Returns one of the engine's environment variables.
pub(crate) fn variable<'v>(
    variables: &'v [(String, OsString)],
    name: &str,
) -> Option<&'v OsString> {
    variables.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// The members of config.json that show the engine, and the facts that it wrote.
#[derive(Debug, Clone)]
pub struct Document<'a> {
    /// Annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// `root.path`.
    pub root_path: &'a str,
    /// `linux.cgroupsPath`.
    pub cgroups_path: &'a str,
    /// Destination and source of each mount.
    pub mounts: Vec<(&'a str, &'a str)>,
    /// Kind and path of each namespace.
    pub namespaces: Vec<(&'a str, &'a str)>,
    /// `linux.intelRdt.closID`.
    pub clos: Option<&'a str>,
    /// Whether `linux.resources.blockIO` has limits.
    pub limits_block_io: bool,
    /// Whether `linux.seccomp` filters system calls.
    pub has_seccomp: bool,
}

/// A container's call and document, and the fetched data of its engine.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'s> {
    /// The call.
    pub call: &'s CallerInfo<'s>,
    /// The document.
    pub document: &'s Document<'s>,
    /// The data fetched so far.
    pub found: &'s FetchedFacts,
}

impl Document<'_> {
    /// Returns an annotation that is not empty.
    fn said(&self, key: &str) -> Option<String> {
        self.annotations.get(key).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns the process whose namespaces of these kinds the container joins.
    fn joined_process(&self, kinds: &[&str]) -> Option<u32> {
        let joined = self.namespaces.iter().filter(|(kind, _)| kinds.contains(kind));
        joined
            .filter_map(|(_, path)| path.strip_prefix("/proc/")?.split_once("/ns/")?.0.parse().ok())
            .next()
    }
}

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The pod's infrastructure container.
    Sandbox,
    /// A workload.
    Container,
}

/// The document that has the pod's cgroup, namespaces and resources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PodDocument {
    /// The container's document: it is its own pod, or the infrastructure container.
    #[default]
    Own,
    /// This document, of the infrastructure container.
    Sandbox(Vec<u8>),
    /// The document is unreadable, or does not prove to be the pod's.
    Unknown,
}

/// The requested seccomp profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeccompProfile {
    /// The engine's default.
    RuntimeDefault,
    /// None.
    Unconfined,
    /// A file of the node; empty if only its content is known.
    Localhost(String),
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Name.
    pub name: String,
    /// Digest of the manifest.
    pub digest: String,
    /// Digest of the configuration.
    pub config_digest: String,
}

/// A container according to the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerFacts {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations in addition to the document's, which they override.
    pub annotations: BTreeMap<String, String>,
    /// Image.
    pub image: Option<Image>,
    /// Names of requested CDI devices.
    pub cdi_devices: Vec<String>,
    /// Seccomp profile.
    pub seccomp: Option<SeccompProfile>,
    /// Name of its RDT class.
    pub rdt_class: Option<String>,
    /// Name of its block I/O class.
    pub blockio_class: Option<String>,
}

/// A pod according to the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodFacts {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Namespace; empty if the engine has none, until [`Facts::name_namespace`] sets it.
    pub namespace: String,
    /// Uid.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Handler, empty for the default.
    pub runtime_handler: String,
    /// Process of the infrastructure container; 0 if there is none or it is unknown.
    pub pid: u32,
    /// Addresses.
    pub ips: Vec<String>,
    /// The pod's cgroup, the parent of its containers' cgroups, in the engine's form, if known.
    pub cgroup_parent: Option<String>,
    /// Overhead as a CRI message in JSON.
    pub overhead: Option<Map<String, Value>>,
    /// Sum of the containers' resources as a CRI message in JSON.
    pub resources: Option<Map<String, Value>>,
    /// The document that has the rest of the pod's data.
    pub document: PodDocument,
    /// A path that exists as long as the pod does, if the engine never calls the runtime for the
    /// pod itself (CRI-O without infrastructure containers).
    pub lives_with: Option<String>,
}

/// A container and its pod according to the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The engine.
    pub engine: DetectedEngine,
    /// Infrastructure container or workload.
    pub role: Role,
    /// The container.
    pub container: ContainerFacts,
    /// The container's pod.
    pub pod: PodFacts,
    /// The possible writer of the pod's namespace.
    pub namespace_by: Option<Writer>,
    /// Whether the pod's annotations may come from the image.
    pub has_image_annotations: bool,
    /// Whether an nri-runc key sets the pod's ID.
    pub names_pod: bool,
    /// Contradicting values of weaker sources, and other claims that are ignored.
    pub contradictions: Vec<String>,
    /// Set if the engine's record of the container was not read: the record's name, or the reason.
    pub unread: Option<String>,
    /// The engine's data that could not be read, each with the consequence.
    pub missing: Vec<String>,
}

impl Facts {
    /// Creates the facts of a container that is its own pod.
    fn alone(engine: DetectedEngine, call: &CallerInfo<'_>) -> Self {
        let id = call.id.to_owned();
        Self {
            contradictions: engine.contradictions().to_vec(),
            namespace_by: None,
            has_image_annotations: false,
            names_pod: false,
            engine,
            role: Role::Container,
            container: ContainerFacts {
                id: id.clone(),
                name: id.clone(),
                ..ContainerFacts::default()
            },
            pod: PodFacts { id: id.clone(), name: id, ..PodFacts::default() },
            unread: None,
            missing: Vec::new(),
        }
    }
}

/// Whether an infrastructure container exists only as its document, so that the runtime is never
/// called for it.
pub(crate) fn is_pod_without_runtime(call: &CallerInfo<'_>, document: &Document<'_>) -> bool {
    detect(call, document).kind == EngineKind::Crio && crio::is_pod_without_runtime(document)
}

/// Names the host's sources that have more data about this call's container.
pub fn wanted(engine: &DetectedEngine, call: &CallerInfo<'_>, document: &Document<'_>) -> Wanted {
    (engine.kind.behaviour().wanted)(call, document)
}

/// Whether Docker's record of this container was not found, so that the host's Docker daemons must
/// be asked for other locations.
pub(crate) fn is_dockers_record_missing(engine: &DetectedEngine, seen: Seen<'_>) -> bool {
    engine.kind == EngineKind::Docker && docker::record(seen).is_none()
}

/// Names Docker's record of this container in the data roots of these daemons.
pub(crate) fn wanted_of_dockers(call: &CallerInfo<'_>, dockers: &[Dockerd]) -> Wanted {
    docker::wanted_below(call, dockers.iter().map(Dockerd::data_root))
}

/// Maximum number of rounds of fetching the sources that [`wanted_more`] names.
pub const ROUNDS: usize = 3;

/// Names the sources to which the fetched ones refer; some may have been requested before.
pub fn wanted_more(engine: &DetectedEngine, seen: Seen<'_>) -> Wanted {
    (engine.kind.behaviour().wanted_more)(seen)
}

/// Describes this call's container according to the engine.
pub fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let mut facts = (engine.kind.behaviour().facts)(engine, seen);
    if facts.role == Role::Container {
        complete_workload(&mut facts, seen.document);
    }
    facts
}

/// Adds facts from a workload's document to the engine's.
fn complete_workload(facts: &mut Facts, document: &Document<'_>) {
    class_names::fill_in(facts, document);
    // With their own NRI, containerd and CRI-O report no profile if the pod requested none.
    let is_cri = facts.engine.kind.behaviour().reports_pods;
    let seccomp = &mut facts.container.seccomp;
    if seccomp.is_none() && !is_cri && !document.has_seccomp {
        // Only the engine knows the name of a filter; the document shows that there is none.
        *seccomp = Some(SeccompProfile::Unconfined);
    }
}

/// Treats a sandbox as a workload, about which plugins are asked, if only annotations name its
/// engine: a pod's author may have written them to bypass plugins.
pub(crate) fn doubt_sandbox(facts: &mut Facts, document: &Document<'_>) {
    if facts.role != Role::Sandbox || facts.engine.is_proven() {
        return;
    }
    facts.role = Role::Container;
    if facts.container.name.is_empty() {
        facts.container.name.clone_from(&facts.container.id);
    }
    complete_workload(facts, document);
    let what = "role: only annotations name it a sandbox; plugins are asked as for a workload";
    facts.contradictions.push(what.to_owned());
}

/// Names the host's sources for data that the engine does not have.
pub fn wanted_instead(facts: &Facts, document: &Document<'_>) -> Wanted {
    let files = if facts.engine.kind.behaviour().has_pods && facts.pod.resources.is_none() {
        pod_cgroup::files(document)
    } else {
        Vec::new()
    };
    Wanted { files, store: None }
}

/// Adds the data of the sources that [`wanted_instead`] named to the facts.
pub fn fill_in(facts: &mut Facts, document: &Document<'_>, found: &FetchedFacts) {
    if facts.pod.resources.is_none() {
        facts.pod.resources = pod_cgroup::resources(document, found);
    }
}

/// Whether a word may be used in a path: an ID with a slash or a leading dot could lead elsewhere.
pub(crate) fn is_id(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('.')
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

/// Reads a JSON object of strings, the form of labels and annotations in files.
fn texts(value: Option<&Value>) -> BTreeMap<String, String> {
    let pairs = value.and_then(Value::as_object).into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns a non-empty string in a JSON value.
fn text(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned)
}

/// Returns a digest with its algorithm, as in image names.
fn digest(hex: &str) -> String {
    match hex {
        "" => String::new(),
        whole if whole.contains(':') => whole.to_owned(),
        hex => format!("sha256:{hex}"),
    }
}
