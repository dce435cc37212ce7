// SPDX-License-Identifier: Apache-2.0
//! containerd's CRI plugin, 1.6 to 2.x: what its annotations say. They are set after those of
//! the pod's author, who cannot override them. User labels, handler and addresses are not in a
//! bundle; what is unknown is left out.

use std::collections::BTreeMap;

use super::{Call, Engine, Facts, Role};

/// `sandbox` or `container`.
pub(super) const TYPE: &str = "io.kubernetes.cri.container-type";
const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
const SANDBOX_NAME: &str = "io.kubernetes.cri.sandbox-name";
const SANDBOX_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const SANDBOX_UID: &str = "io.kubernetes.cri.sandbox-uid";
const LOG_DIRECTORY: &str = "io.kubernetes.cri.sandbox-log-directory";
const CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";
const IMAGE_NAME: &str = "io.kubernetes.cri.image-name";

pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    annotations: &BTreeMap<String, String>,
) -> Facts {
    let text = |key: &str| annotations.get(key).cloned().unwrap_or_default();
    let is_sandbox = text(TYPE) == "sandbox";
    let role = if is_sandbox { Role::Sandbox } else { Role::Container };
    let pod_id = if is_sandbox { call.id.to_owned() } else { text(SANDBOX_ID) };
    let pod_uid = match text(SANDBOX_UID) {
        uid if uid.is_empty() => uid_of_log_directory(&text(LOG_DIRECTORY)),
        uid => uid,
    };
    let (pod_name, pod_namespace) = (text(SANDBOX_NAME), text(SANDBOX_NAMESPACE));
    let container_name = text(CONTAINER_NAME);
    let mut pod_labels = kubelet_labels(&pod_name, &pod_namespace, &pod_uid);
    let mut container_labels = pod_labels.clone();
    container_labels.insert("io.kubernetes.container.name".to_owned(), container_name.clone());
    container_labels.insert("io.cri-containerd.kind".to_owned(), "container".to_owned());
    pod_labels.insert("io.cri-containerd.kind".to_owned(), "sandbox".to_owned());
    Facts {
        engine,
        role,
        container_id: call.id.to_owned(),
        container_name,
        container_labels,
        image: annotations.get(IMAGE_NAME).cloned(),
        sandbox_config: sandbox_config(call.bundle, &pod_id).filter(|_| !is_sandbox),
        pod_id,
        pod_name,
        pod_namespace,
        pod_uid,
        pod_labels,
    }
}

/// kubelet's own labels can be made from the annotations.
fn kubelet_labels(name: &str, namespace: &str, uid: &str) -> BTreeMap<String, String> {
    [
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", namespace),
        ("io.kubernetes.pod.uid", uid),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// Before 1.6.11 the uid stands only at the end of `/var/log/pods/NAMESPACE_NAME_UID`.
fn uid_of_log_directory(path: &str) -> String {
    path.rsplit_once('_').map(|(_, uid)| uid.to_owned()).unwrap_or_default()
}

/// The sandbox's bundle is a sibling; an id that could lead elsewhere is not followed.
fn sandbox_config(bundle: &str, pod_id: &str) -> Option<String> {
    let is_id = !pod_id.is_empty() && pod_id.bytes().all(|b| b.is_ascii_alphanumeric());
    let (tasks, _) = bundle.trim_end_matches('/').rsplit_once('/')?;
    is_id.then(|| format!("{tasks}/{pod_id}/config.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_is_a_sibling_of_the_bundle() {
        assert_eq!(
            sandbox_config("/t/k8s.io/c1", "ab12").as_deref(),
            Some("/t/k8s.io/ab12/config.json")
        );
    }

    #[test]
    fn an_id_that_leads_elsewhere_is_not_followed() {
        for id in ["", "../../etc", "a/b", ".."] {
            assert_eq!(sandbox_config("/t/k8s.io/c1", id), None);
        }
    }

    #[test]
    fn an_old_containerd_shows_the_uid_in_its_log_directory() {
        assert_eq!(uid_of_log_directory("/var/log/pods/shop_web-7_3f1c"), "3f1c");
        assert_eq!(uid_of_log_directory(""), "");
    }
}
