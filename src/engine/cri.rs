// SPDX-License-Identifier: Apache-2.0
//! The annotations that containerd's CRI plugin made common; iSulad and others write them too.
//! containerd sets them after those of the pod's author, who cannot override them.

use std::collections::BTreeMap;

use super::{
    Call, ContainerFacts, Document, Engine, Facts, Found, Image, PodDocument, PodFacts, Role,
    Wanted, is_id,
};

/// `sandbox` or `container`.
pub(super) const TYPE: &str = "io.kubernetes.cri.container-type";
/// What kubelet labels a pod with; some engines repeat it as annotations.
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

/// The pod's id, for a container and for the sandbox itself.
pub(super) fn pod_id(call: &Call<'_>, document: &Document<'_>) -> String {
    match document.said(SANDBOX_ID) {
        Some(id) if !is_sandbox(document) => id,
        _ => call.id.to_owned(),
    }
}

pub(super) fn is_sandbox(document: &Document<'_>) -> bool {
    document.annotations.get(TYPE).is_some_and(|kind| kind == "sandbox")
}

/// A file in the sandbox's bundle, which is a sibling of the container's.
pub(super) fn beside(call: &Call<'_>, pod_id: &str, file: &str) -> Option<String> {
    let (tasks, _) = call.bundle.trim_end_matches('/').rsplit_once('/')?;
    (is_id(pod_id) && pod_id != call.id).then(|| format!("{tasks}/{pod_id}/{file}"))
}

pub(super) fn wanted(call: &Call<'_>, document: &Document<'_>) -> Wanted {
    let pod_id = pod_id(call, document);
    Wanted::files(["config.json", "init.pid"].map(|file| beside(call, &pod_id, file)))
}

/// What the annotations say, and the sandbox's document.
pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    document: &Document<'_>,
    found: &Found,
) -> Facts {
    let is_sandbox = is_sandbox(document);
    let id = pod_id(call, document);
    let sandbox = beside(call, &id, "config.json").and_then(|path| found.file(&path));
    let theirs = sandbox.map(annotations_of).unwrap_or_default();
    let said = |key: &str, kubelet: &str| {
        let here = document.said(key).or_else(|| theirs.get(key).cloned());
        here.or_else(|| document.said(kubelet)).unwrap_or_default()
    };
    let uid = match said(SANDBOX_UID, KUBELET_UID) {
        uid if uid.is_empty() => {
            let log = theirs.get(LOG_DIRECTORY).cloned().or_else(|| document.said(LOG_DIRECTORY));
            log.as_deref().map(uid_of_log_directory).unwrap_or_default()
        }
        uid => uid,
    };
    let (name, namespace) =
        (said(SANDBOX_NAME, KUBELET_NAME), said(SANDBOX_NAMESPACE, KUBELET_NAMESPACE));
    let labels = kubelet_labels(&name, &namespace, &uid);
    let pid = document.joined_process(&["network", "ipc", "uts"]);
    let pid = pid.or_else(|| found.pid(&beside(call, &id, "init.pid")?));
    let own = if is_sandbox { document.annotations.clone() } else { theirs };
    Facts {
        engine,
        role: if is_sandbox { Role::Sandbox } else { Role::Container },
        container: container(call, document, &labels),
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
        missing: Vec::new(),
    }
}

fn container(
    call: &Call<'_>,
    document: &Document<'_>,
    pod_labels: &BTreeMap<String, String>,
) -> ContainerFacts {
    let name = document.said(CONTAINER_NAME).or_else(|| document.said(KUBELET_CONTAINER));
    let name = name.unwrap_or_default();
    let mut labels = pod_labels.clone();
    if !name.is_empty() {
        labels.insert(KUBELET_CONTAINER.to_owned(), name.clone());
    }
    let image = document.said(IMAGE_NAME).map(|name| Image { name, ..Image::default() });
    let id = call.id.to_owned();
    ContainerFacts { id, name, labels, image, ..ContainerFacts::default() }
}

/// The annotations of another document.
pub(super) fn annotations_of(bytes: &[u8]) -> BTreeMap<String, String> {
    #[derive(serde::Deserialize)]
    struct Annotated {
        annotations: Option<BTreeMap<String, String>>,
    }
    let read: Option<Annotated> = serde_json::from_slice(bytes).ok();
    read.and_then(|document| document.annotations).unwrap_or_default()
}

/// kubelet's own labels can be made from the annotations.
fn kubelet_labels(name: &str, namespace: &str, uid: &str) -> BTreeMap<String, String> {
    let pairs = [(KUBELET_NAME, name), (KUBELET_NAMESPACE, namespace), (KUBELET_UID, uid)];
    let known = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Before 1.6.11 the uid stands only at the end of `/var/log/pods/NAMESPACE_NAME_UID`.
fn uid_of_log_directory(path: &str) -> String {
    path.rsplit_once('_').map(|(_, uid)| uid.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(bundle: &str) -> Call<'_> {
        Call { id: "c1", root: "/r", bundle, parent: &[], grandparent: &[], variables: &[] }
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
    fn an_old_containerd_shows_the_uid_in_its_log_directory() {
        assert_eq!(uid_of_log_directory("/var/log/pods/shop_web-7_3f1c"), "3f1c");
        assert_eq!(uid_of_log_directory(""), "");
    }
}
