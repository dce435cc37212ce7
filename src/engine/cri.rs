// SPDX-License-Identifier: Apache-2.0
//! The annotations of containerd's CRI plugin, which iSulad and other engines write too. containerd
//! sets them after the annotations of the pod's author, so the author cannot override them.

use std::collections::BTreeMap;

use super::identity::{Claims, Field, Source, Writer};
use super::{
    CallerInfo, ContainerFacts, DetectedEngine, Document, Facts, Image, PodDocument, PodFacts,
    Role, Seen, Wanted, is_id, pod_cgroup,
};

/// The annotation whose value is `sandbox` or `container`.
pub(super) const TYPE: &str = "io.kubernetes.cri.container-type";
/// Labels that kubelet sets on pods and containers; some engines add them as annotations.
pub(super) const KUBELET_NAME: &str = "io.kubernetes.pod.name";
pub(super) const KUBELET_UID: &str = "io.kubernetes.pod.uid";
const KUBELET_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const KUBELET_CONTAINER: &str = "io.kubernetes.container.name";
const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
const SANDBOX_NAME: &str = "io.kubernetes.cri.sandbox-name";
const SANDBOX_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const SANDBOX_UID: &str = "io.kubernetes.cri.sandbox-uid";
const LOG_DIRECTORY: &str = "io.kubernetes.cri.sandbox-log-directory";
const CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";
const IMAGE_NAME: &str = "io.kubernetes.cri.image-name";

/// Returns the pod's ID, for a container and for the sandbox itself.
pub(super) fn pod_id(call: &CallerInfo<'_>, document: &Document<'_>) -> String {
    match document.said(SANDBOX_ID) {
        Some(id) if !is_sandbox(document) => id,
        _ => call.id.to_owned(),
    }
}

pub(super) fn is_sandbox(document: &Document<'_>) -> bool {
    document.annotations.get(TYPE).is_some_and(|kind| kind == "sandbox")
}

/// Returns the path of a file in the sandbox's bundle, a sibling of the container's.
pub(super) fn beside(call: &CallerInfo<'_>, pod_id: &str, file: &str) -> Option<String> {
    let (tasks, _) = call.bundle.trim_end_matches('/').rsplit_once('/')?;
    (is_id(pod_id) && pod_id != call.id).then(|| format!("{tasks}/{pod_id}/{file}"))
}

pub(super) fn wanted(call: &CallerInfo<'_>, document: &Document<'_>) -> Wanted {
    let pod_id = pod_id(call, document);
    Wanted::files(["config.json", "init.pid"].map(|file| beside(call, &pod_id, file)))
}

/// Builds the facts from the annotations and the sandbox's document.
pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let claims = Claims::new(engine.kind);
    facts_beside(claims, engine, seen)
}

/// Builds the facts like [`facts`], with the claims of stronger sources.
pub(super) fn facts_beside(mut claims: Claims, engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let Seen { call, document, found } = seen;
    let mut contradictions = engine.contradictions().to_vec();
    let role = role(&mut claims, &engine, call, document, &mut contradictions);
    let is_sandbox = role == Role::Sandbox;
    if !is_sandbox {
        claims.add(Field::PodId, Source::Annotation, document.said(SANDBOX_ID));
    }
    let id = claims.settle(Field::PodId, &mut contradictions).map(|(id, _)| id);
    let id = id.filter(|_| !is_sandbox).unwrap_or_else(|| call.id.to_owned());
    let is_doubtful = !contradictions.is_empty();
    let sandbox = beside(call, &id, "config.json").and_then(|path| found.file(&path));
    let theirs = sandbox.map(annotations_of).unwrap_or_default();
    claim_names(&mut claims, &engine, document, &theirs);
    let mut settle = |field| claims.settle(field, &mut contradictions);
    let value = |settled: Option<(String, Writer)>| settled.map(|(value, _)| value);
    let (name, uid) = (value(settle(Field::PodName)), value(settle(Field::PodUid)));
    let (name, uid) = (name.unwrap_or_default(), uid.unwrap_or_default());
    let namespace = settle(Field::PodNamespace);
    let namespace_by = namespace.as_ref().map(|(_, writer)| {
        // Contradictory annotations show that the engine did not write them last.
        let is_doubted = is_doubtful && *writer == Writer::EngineLast;
        if is_doubted { Writer::Anybody } else { *writer }
    });
    let namespace = value(namespace).unwrap_or_default();
    let container_name = value(settle(Field::ContainerName));
    let labels = kubelet_labels(&name, &namespace, &uid);
    let pid = document.joined_process(&["network", "ipc", "uts"]);
    let pid = pid.or_else(|| found.pid(&beside(call, &id, "init.pid")?));
    let own = if is_sandbox { document.annotations.clone() } else { theirs };
    Facts {
        engine,
        role,
        container: container(call, document, container_name, &labels),
        pod: PodFacts {
            id,
            name,
            namespace,
            uid,
            labels,
            annotations: own,
            pid: pid.filter(|_| !is_sandbox).unwrap_or(0),
            document: match sandbox {
                _ if is_sandbox => PodDocument::Own,
                Some(bytes) => PodDocument::Sandbox(bytes.to_vec()),
                None => PodDocument::Unknown,
            },
            ..PodFacts::default()
        },
        namespace_by,
        has_image_annotations: false,
        names_pod: false,
        contradictions,
        unread: None,
        missing: Vec::new(),
    }
}

/// Determines whether the container is infrastructure or workload. Except with containerd
/// (`has_certain_sandboxes`), a container that claims to be a sandbox must look like one: it must
/// name no other sandbox, and join no process's namespaces.
fn role(
    claims: &mut Claims,
    engine: &DetectedEngine,
    call: &CallerInfo<'_>,
    document: &Document<'_>,
    contradictions: &mut Vec<String>,
) -> Role {
    let said = if is_sandbox(document) { "sandbox" } else { "container" };
    claims.add(Field::Role, Source::Annotation, Some(said.to_owned()));
    let settled = claims.settle(Field::Role, contradictions);
    if settled.is_none_or(|(role, _)| role != "sandbox") {
        return Role::Container;
    }
    if engine.kind.behaviour().has_certain_sandboxes {
        return Role::Sandbox;
    }
    let names_another = document.said(SANDBOX_ID).is_some_and(|id| id != call.id);
    let joins = document.joined_process(&["network", "ipc", "uts", "pid"]).is_some();
    if names_another || joins {
        let what = if joins { "joins the namespaces of a process" } else { "names another" };
        contradictions.push(format!("role: annotation {TYPE} says sandbox, but it {what}"));
        return Role::Container;
    }
    Role::Sandbox
}

/// Adds the claims of the cgroup's path, the annotations and the sandbox's document, and of
/// kubelet's labels if an unknown engine writes no other names.
fn claim_names(
    claims: &mut Claims,
    engine: &DetectedEngine,
    document: &Document<'_>,
    theirs: &BTreeMap<String, String>,
) {
    let uid = theirs.get(LOG_DIRECTORY).map(|path| uid_of_log_directory(path));
    let own_uid = document.said(LOG_DIRECTORY).map(|path| uid_of_log_directory(&path));
    claims.add(Field::PodUid, Source::CgroupPath, pod_cgroup::pod_uid(document.cgroups_path));
    let all = [
        (Field::PodName, SANDBOX_NAME, KUBELET_NAME),
        (Field::PodNamespace, SANDBOX_NAMESPACE, KUBELET_NAMESPACE),
        (Field::PodUid, SANDBOX_UID, KUBELET_UID),
        (Field::ContainerName, CONTAINER_NAME, KUBELET_CONTAINER),
    ];
    for (field, key, kubelet) in all {
        let (own, other) = (document.said(key), theirs.get(key).cloned());
        let is_said = own.is_some() || other.is_some();
        claims.add(field, Source::Annotation, own);
        if field != Field::ContainerName {
            claims.add(field, Source::SandboxDocument, other);
        }
        if !is_said && engine.kind.behaviour().has_only_labels {
            claims.add(field, Source::Annotation, document.said(kubelet));
        }
    }
    claims.add(Field::PodUid, Source::Annotation, own_uid);
    claims.add(Field::PodUid, Source::SandboxDocument, uid);
}

fn container(
    call: &CallerInfo<'_>,
    document: &Document<'_>,
    name: Option<String>,
    pod_labels: &BTreeMap<String, String>,
) -> ContainerFacts {
    let name = name.unwrap_or_default();
    let mut labels = pod_labels.clone();
    if !name.is_empty() {
        labels.insert(KUBELET_CONTAINER.to_owned(), name.clone());
    }
    let image = document.said(IMAGE_NAME).map(|name| Image { name, ..Image::default() });
    let id = call.id.to_owned();
    ContainerFacts { id, name, labels, image, ..ContainerFacts::default() }
}

/// Returns the annotations of another document.
pub(super) fn annotations_of(bytes: &[u8]) -> BTreeMap<String, String> {
    #[derive(serde::Deserialize)]
    struct Annotated {
        annotations: Option<BTreeMap<String, String>>,
    }
    let read: Option<Annotated> = serde_json::from_slice(bytes).ok();
    read.and_then(|document| document.annotations).unwrap_or_default()
}

/// Builds kubelet's own labels from the pod's name, namespace and UID.
fn kubelet_labels(name: &str, namespace: &str, uid: &str) -> BTreeMap<String, String> {
    let pairs = [(KUBELET_NAME, name), (KUBELET_NAMESPACE, namespace), (KUBELET_UID, uid)];
    let known = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the UID at the end of `/var/log/pods/NAMESPACE_NAME_UID`; before containerd 1.6.11 only
/// this path has it.
fn uid_of_log_directory(path: &str) -> String {
    path.rsplit_once('_').map(|(_, uid)| uid.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(bundle: &str) -> CallerInfo<'_> {
        CallerInfo { id: "c1", bundle, parent: &[], grandparent: &[], variables: &[] }
    }

    #[test]
    fn the_sandbox_is_a_sibling_of_the_bundle() {
        let told = beside(&call("/t/k8s.io/c1"), "ab12", "config.json");
        assert_eq!(told.as_deref(), Some("/t/k8s.io/ab12/config.json"));
    }

    #[test]
    fn an_id_that_leads_elsewhere_is_not_followed() {
        for id in ["", "../../etc", "a/b", "..", "c1"] {
            assert_eq!(beside(&call("/t/k8s.io/c1"), id, "config.json"), None);
        }
    }

    #[test]
    fn the_pod_uid_is_read_from_the_log_directory() {
        assert_eq!(uid_of_log_directory("/var/log/pods/shop_web-7_3f1c"), "3f1c");
        assert_eq!(uid_of_log_directory(""), "");
    }
}
