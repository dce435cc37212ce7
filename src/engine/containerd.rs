// SPDX-License-Identifier: Apache-2.0
//! containerd's CRI plugin, 1.5 to 2.x. IDs and names are in annotations; user labels, handler,
//! addresses, overhead, image digests and CDI names are only in containerd's own records, which are
//! complete before the runtime is called for the first time. The task interface is never used for
//! them, because the shim holds its lock while it waits for nri-runc.

use serde_json::Value;

use super::identity::{Claims, Field, Source};
use super::{
    CallerInfo, DetectedEngine, Document, Facts, FetchedFacts, Image, Role, SeccompProfile, Seen,
    StoreQuery, Wanted, cri, digest, text, texts,
};

const SANDBOX: &str = "io.cri-containerd.sandbox.metadata";
const CONTAINER: &str = "io.cri-containerd.container.metadata";
const KIND: &str = "io.cri-containerd.kind";
/// The containerd namespace of the CRI plugin's containers.
pub(super) const CRI_NAMESPACE: &str = "k8s.io";
const DEFAULT_SOCKET: &str = "/run/containerd/containerd.sock";
/// State directories and sockets of the containerds of k3s and RKE2, k0s and MicroK8s.
const DISTRIBUTIONS: [(&str, &str); 3] = [
    ("/run/k3s/containerd", "/run/k3s/containerd/containerd.sock"),
    ("/run/k0s/containerd", "/run/k0s/containerd.sock"),
    ("/var/snap/microk8s/common/run/containerd", "/var/snap/microk8s/common/run/containerd.sock"),
];

pub(super) fn wanted(call: &CallerInfo<'_>, document: &Document<'_>) -> Wanted {
    let mut wanted = cri::wanted(call, document);
    let pod_id = cri::pod_id(call, document);
    let mut ids = vec![call.id.to_owned()];
    if pod_id != call.id {
        ids.push(pod_id);
    }
    wanted.store = query(call, ids);
    wanted
}

/// Returns the query for these containers; `None` if the bundle's path has no namespace. The socket is in
/// the shim's variables or command line, else it is the usual one.
pub(super) fn query(call: &CallerInfo<'_>, ids: Vec<String>) -> Option<StoreQuery> {
    let namespace = namespace(call.bundle)?.to_owned();
    let variable = |name| super::variable(call.variables, name)?.to_str();
    let ttrpc = variable("TTRPC_ADDRESS").and_then(|path| path.strip_suffix(".ttrpc"));
    let socket = variable("GRPC_ADDRESS").map(ToOwned::to_owned);
    let parents = [call.parent, call.grandparent];
    let address = parents.into_iter().find_map(|words| option(words, "-address"));
    let socket = socket.or(address);
    let socket = socket.or_else(|| ttrpc.map(ToOwned::to_owned));
    let socket = socket.unwrap_or_else(|| usual_socket(call.bundle).to_owned());
    let socket = socket.strip_prefix("unix://").map(ToOwned::to_owned).unwrap_or(socket);
    Some(StoreQuery { socket, namespace, ids, with_images: false })
}

/// Returns the socket of the containerd that created a container.
pub(crate) fn socket(call: &CallerInfo<'_>) -> Option<String> {
    query(call, Vec::new()).map(|query| query.socket)
}

/// Returns the usual socket of this bundle's containerd, used if no better source names one.
fn usual_socket(bundle: &str) -> &'static str {
    socket_of(bundle.split_once("/io.containerd.runtime.v2.task/").map_or("", |(state, _)| state))
}

/// Returns the socket that a distribution configures for this state directory; for any other, containerd's default
/// socket.
pub(crate) fn socket_of(state: &str) -> &'static str {
    let its = DISTRIBUTIONS.iter().find(|(folder, _)| *folder == state);
    its.map_or(DEFAULT_SOCKET, |(_, socket)| socket)
}

/// Returns the containerd namespace of this bundle's container.
pub(super) fn namespace(bundle: &str) -> Option<&str> {
    let (_, rest) = bundle.split_once("/io.containerd.runtime.v2.task/")?;
    rest.split('/').next().filter(|namespace| !namespace.is_empty())
}

/// Returns the folder of a container or sandbox that the CRI plugin keeps until it removes the
/// container, which it does after the task and the runtime's state are deleted.
pub(super) fn cri_folder(bundle: &str, id: &str, is_sandbox: bool) -> Option<String> {
    let (state, _) = bundle.split_once("/io.containerd.runtime.v2.task/")?;
    let kind = if is_sandbox { "sandboxes" } else { "containers" };
    super::is_id(id).then(|| format!("{state}/io.containerd.grpc.v1.cri/{kind}/{id}"))
}

/// Returns the value of an option of the shim's command line.
pub(super) fn option(words: &[Vec<u8>], name: &str) -> Option<String> {
    let at = words.iter().position(|word| word == name.as_bytes())?;
    String::from_utf8(words.get(at + 1)?.clone()).ok()
}

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document: _, found } = seen;
    let claims = claims_of_records(&engine, seen);
    let mut facts = cri::facts_beside(claims, engine, seen);
    let kind = |kind: &str| (KIND.to_owned(), kind.to_owned());
    facts.pod.labels.extend([kind("sandbox")]);
    facts.container.labels.extend([kind("container")]);
    if facts.pod.resources.is_none() {
        facts.pod.resources = resources_of(&facts.pod.annotations);
    }
    let mut absent = Vec::new();
    let sandbox = found.records.get(&facts.pod.id);
    match sandbox.and_then(|record| record.metadata(SANDBOX)) {
        Some(metadata) => sandbox_record(&mut facts, found, &metadata),
        None => absent.push("pod labels, runtime handler, addresses and overhead"),
    }
    if facts.role == Role::Container {
        let record = found.records.get(call.id);
        match record.and_then(|record| record.metadata(CONTAINER)) {
            Some(metadata) => container_record(&mut facts, found, &metadata),
            None => {
                facts.unread = Some("containerd's record of the container".to_owned());
                absent.push("image digests, CDI devices and the labels of the image");
            }
        }
    }
    if !absent.is_empty() {
        let why = found.store_problem.as_deref().unwrap_or("it has no record of them");
        facts.missing.push(format!("containerd did not provide {}: {why}", absent.join(", ")));
    }
    facts
}

/// Reads the identity from containerd's records, which pods' authors cannot write.
fn claims_of_records(engine: &DetectedEngine, seen: Seen<'_>) -> Claims {
    let Seen { call, document, found } = seen;
    let mut claims = Claims::new(engine.kind);
    let own = found.records.get(call.id);
    let mut pod_id = cri::pod_id(call, document);
    if let Some(metadata) = own.and_then(|record| record.metadata(CONTAINER)) {
        let said = |pointer: &str| text(&metadata, pointer);
        claims.add(Field::Role, Source::ContainerdRecord, Some("container".to_owned()));
        claims.add(Field::PodId, Source::ContainerdRecord, said("/SandboxID"));
        let name = said("/Config/metadata/name");
        claims.add(Field::ContainerName, Source::ContainerdRecord, name);
        pod_id = said("/SandboxID").unwrap_or(pod_id);
    } else if own.is_some_and(|record| record.metadata(SANDBOX).is_some()) {
        claims.add(Field::Role, Source::ContainerdRecord, Some("sandbox".to_owned()));
        call.id.clone_into(&mut pod_id);
    } else if own.is_some() {
        // The record has no data of the CRI plugin, so another client created the container.
        claims.add(Field::Role, Source::ContainerdRecord, Some("container".to_owned()));
    }
    let sandbox = found.records.get(&pod_id).and_then(|record| record.metadata(SANDBOX));
    for (field, pointer) in [
        (Field::PodName, "/Config/metadata/name"),
        (Field::PodNamespace, "/Config/metadata/namespace"),
        (Field::PodUid, "/Config/metadata/uid"),
    ] {
        let said = sandbox.as_ref().and_then(|metadata| text(metadata, pointer));
        claims.add(field, Source::ContainerdRecord, said);
    }
    claims
}

/// Adds the pod's facts in its sandbox's record. containerd's own labels and annotations override
/// the ones of the CRI request.
fn sandbox_record(facts: &mut Facts, found: &FetchedFacts, metadata: &Value) {
    let pod = &mut facts.pod;
    let mut labels = texts(metadata.pointer("/Config/labels"));
    if let Some(record) = found.records.get(&pod.id) {
        labels.extend(record.labels.clone());
        if !record.runtime.is_empty() {
            labels.insert("oci_runtime_type".to_owned(), record.runtime.clone());
        }
    }
    if !labels.is_empty() {
        pod.labels = labels;
    }
    let mut annotations = texts(metadata.pointer("/Config/annotations"));
    annotations.append(&mut pod.annotations);
    pod.annotations = annotations;
    let said = |pointer: &str| text(metadata, pointer);
    pod.runtime_handler = said("/RuntimeHandler").unwrap_or_default();
    pod.cgroup_parent = said("/Config/linux/cgroup_parent");
    let more = metadata.pointer("/AdditionalIPs").and_then(Value::as_array).into_iter().flatten();
    let more = more.filter_map(Value::as_str).map(ToOwned::to_owned);
    pod.ips = said("/IP").into_iter().chain(more).collect();
    let block =
        |name: &str| metadata.pointer(&format!("/Config/linux/{name}"))?.as_object().cloned();
    pod.overhead = block("overhead");
    if let Some(resources) = block("resources") {
        pod.resources = Some(resources);
    }
}

fn container_record(facts: &mut Facts, found: &FetchedFacts, metadata: &Value) {
    let container = &mut facts.container;
    if let Some(record) = found.records.get(&container.id) {
        container.labels = record.labels.clone();
    }
    container.annotations = texts(metadata.pointer("/Config/annotations"));
    let said = |pointer: &str| text(metadata, pointer);
    let user_written = container.image.take().map(|image| image.name);
    container.image = Some(Image {
        name: said("/ImageName").or(user_written).unwrap_or_default(),
        digest: said("/ImageDigest").unwrap_or_default(),
        config_digest: said("/ImageRef").map(|hex| digest(&hex)).unwrap_or_default(),
    });
    let devices = metadata.pointer("/Config/CDI_devices").and_then(Value::as_array);
    let devices = devices.into_iter().flatten();
    container.cdi_devices = devices.filter_map(|device| text(device, "/name")).collect();
    container.seccomp =
        metadata.pointer("/Config/linux/security_context/seccomp").and_then(seccomp);
}

/// Converts the CRI's SecurityProfile, whose JSON omits the default type.
fn seccomp(profile: &Value) -> Option<SeccompProfile> {
    let profile = profile.as_object()?;
    match profile.get("profile_type").map_or(Some(0), Value::as_u64)? {
        0 => Some(SeccompProfile::RuntimeDefault),
        1 => Some(SeccompProfile::Unconfined),
        2 => {
            let file = profile.get("localhost_ref").and_then(Value::as_str).unwrap_or_default();
            Some(SeccompProfile::Localhost(file.to_owned()))
        }
        _ => None,
    }
}

/// Returns the sums of resources that containerd has written as annotations of the sandbox since
/// 1.6, for use without its record.
fn resources_of(
    annotations: &std::collections::BTreeMap<String, String>,
) -> Option<serde_json::Map<String, Value>> {
    let keys = [
        ("cpu-period", "cpu_period"),
        ("cpu-quota", "cpu_quota"),
        ("cpu-shares", "cpu_shares"),
        ("memory", "memory_limit_in_bytes"),
    ];
    let told = keys.into_iter().filter_map(|(key, name)| {
        let value: i64 =
            annotations.get(&format!("io.kubernetes.cri.sandbox-{key}"))?.parse().ok()?;
        Some((name.to_owned(), Value::from(value)))
    });
    let told: serde_json::Map<String, Value> = told.collect();
    (!told.is_empty()).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_read_from_the_variable_or_the_shims_arguments() {
        let parent: Vec<Vec<u8>> =
            ["shim", "-address", "/x/c.sock"].map(|word| word.as_bytes().to_vec()).into();
        let variables = vec![("GRPC_ADDRESS".to_owned(), "/y/c.sock".into())];
        let bundle = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c";
        let asked = |parent, variables| {
            let call = CallerInfo { id: "c", bundle, parent, grandparent: &[], variables };
            query(&call, Vec::new()).unwrap()
        };
        assert_eq!(asked(&parent, &variables).socket, "/y/c.sock");
        assert_eq!(asked(&parent, &[]).socket, "/x/c.sock");
        assert_eq!(asked(&[], &[]).socket, DEFAULT_SOCKET);
        assert_eq!(asked(&[], &[]).namespace, "k8s.io");
        for (state, socket) in DISTRIBUTIONS {
            let task = "io.containerd.runtime.v2.task/k8s.io/c";
            assert_eq!(usual_socket(&format!("{state}/{task}")), socket);
            assert_eq!(usual_socket(&format!("{state}2/{task}")), DEFAULT_SOCKET);
        }
    }

    #[test]
    fn unreadable_resources_in_sandbox_annotations_are_skipped() {
        let key = |name: &str| format!("io.kubernetes.cri.sandbox-{name}");
        let annotations =
            [(key("cpu-quota"), "-1".to_owned()), (key("memory"), "junk".to_owned())].into();
        let told = resources_of(&annotations).unwrap();
        assert_eq!((told["cpu_quota"].as_i64(), told.len()), (Some(-1), 1));
        assert_eq!(resources_of(&Default::default()), None);
    }

    #[test]
    fn an_unknown_kind_of_profile_is_dropped() {
        let told = |json: &str| seccomp(&serde_json::from_str(json).unwrap());
        assert_eq!(told("{}"), Some(SeccompProfile::RuntimeDefault));
        assert_eq!(told("{\"profile_type\":1}"), Some(SeccompProfile::Unconfined));
        assert_eq!(told("{\"profile_type\":9}"), None);
        assert_eq!(told("null"), None);
    }
}
