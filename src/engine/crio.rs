// SPDX-License-Identifier: Apache-2.0
//! CRI-O, 1.2x to 1.37. It writes nearly everything into the sandbox's config.json, which lies
//! on disk even where the pod has no infrastructure container.
//!
//! In the sandbox's document a pod's author can shadow CRI-O's keys, in a container's CRI-O's win.
//! So ids and names come from the container, the sandbox is found by its id, and it is believed
//! only if it agrees with them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    Call, ContainerFacts, Document, Engine, Facts, Found, Image, PodDocument, PodFacts, Role,
    SeccompProfile, Wanted, cri, digest, storage, text, texts,
};

/// `cri-o`, or `libpod` for Podman.
pub(super) const MANAGER: &str = "io.container.manager";
pub(super) const SANDBOX_ID: &str = "io.kubernetes.cri-o.SandboxID";
const PREFIX: &str = "io.kubernetes.cri-o.";
/// Until 1.34, and from 1.35 on.
const OVERHEAD: [&str; 2] = ["pod-linux-overhead.crio.io", "io.kubernetes.cri-o.PodLinuxOverhead"];
const RESOURCES: [&str; 2] =
    ["pod-linux-resources.crio.io", "io.kubernetes.cri-o.PodLinuxResources"];
const SPOOFED: [&str; 2] = ["spoofed.crio.io", "io.kubernetes.cri-o.Spoofed"];

/// Annotations, some of them CRI-O's own.
struct Keys<'a>(&'a BTreeMap<String, String>);

impl Keys<'_> {
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
    Keys(document.annotations).own("ContainerType") == Some("sandbox")
}

/// Whether it describes a pod for which no runtime is ever called. In this document the pod's author
/// has the last word: it can hide a pod until its first container comes, and no more.
pub(super) fn is_pod_without_runtime(document: &Document<'_>) -> bool {
    is_sandbox(document) && is_spoofed(document.annotations)
}

fn is_spoofed(annotations: &BTreeMap<String, String>) -> bool {
    SPOOFED.iter().any(|key| annotations.get(*key).is_some_and(|on| on == "true"))
}

/// A sandbox is its own id: its author may have written another one.
fn pod_id(call: &Call<'_>, document: &Document<'_>) -> String {
    let said = document.said(SANDBOX_ID).filter(|_| !is_sandbox(document));
    said.unwrap_or_else(|| call.id.to_owned())
}

pub(super) fn wanted(call: &Call<'_>, document: &Document<'_>) -> Wanted {
    let mut files = Vec::new();
    if !is_sandbox(document) {
        let pod = pod_id(call, document);
        files.extend(storage::beside(call, &pod, "config.json"));
        files.extend(storage::beside(call, &pod, "pidfile"));
    }
    files.extend(storage::records(call));
    Wanted { files, store: None }
}

pub(super) fn facts(
    engine: Engine,
    call: &Call<'_>,
    document: &Document<'_>,
    found: &Found,
) -> Facts {
    let is_sandbox = is_sandbox(document);
    let keys = Keys(document.annotations);
    let pod_id = pod_id(call, document);
    let paths = storage::beside(call, &pod_id, "config.json");
    let bytes = if is_sandbox { None } else { found.first(&paths) };
    let theirs = if is_sandbox {
        document.annotations.clone()
    } else {
        bytes.map(cri::annotations_of).unwrap_or_default()
    };
    let identity = identity(&keys, call, found, &pod_id, is_sandbox);
    let mut pod = PodFacts { id: pod_id.clone(), ..PodFacts::default() };
    let mut missing = Vec::new();
    [pod.name, pod.namespace, pod.uid] = identity;
    let agrees = is_sandbox || agrees(&theirs, &pod);
    if agrees {
        of_sandbox(&mut pod, &Keys(&theirs));
    } else if bytes.is_some() {
        missing.push("the document of the pod's sandbox names another pod: not believed".into());
    } else {
        let what = "the document of the pod's sandbox could not be read";
        missing.push(format!("{what}: pod labels, annotations, handler and overhead are absent"));
    }
    pod.ips = ips(&keys, &Keys(&theirs), agrees);
    pod.pid = document.joined_process(&["pid"]).unwrap_or(0);
    if is_sandbox {
        pod.pid = 0;
    } else if pod.pid == 0 && pod.lives_with.is_none() {
        let pids = storage::beside(call, &pod_id, "pidfile");
        pod.pid = pids.iter().find_map(|path| found.pid(path)).unwrap_or(0);
    }
    pod.lives_with =
        pod.lives_with.and_then(|_| paths.iter().find(|path| found.file(path).is_some()).cloned());
    pod.document = match bytes {
        _ if is_sandbox => PodDocument::Own,
        Some(bytes) if agrees => PodDocument::Sandbox(bytes.to_vec()),
        Some(_) | None => PodDocument::Unknown,
    };
    let role = if is_sandbox { Role::Sandbox } else { Role::Container };
    Facts { engine, role, container: container(call, &keys, document), pod, missing }
}

/// The pod's name, namespace and uid: from `k8s_NAME_NAMESPACE_UID_ATTEMPT`, for none of them
/// holds an underscore; from the storage's record for the sandbox itself.
fn identity(
    keys: &Keys<'_>,
    call: &Call<'_>,
    found: &Found,
    pod_id: &str,
    is_sandbox: bool,
) -> [String; 3] {
    let record = storage::metadata(call, found, pod_id);
    let of_record = |key: &str| record.as_ref().and_then(|record| text(record, key));
    if let (true, Some(name)) = (is_sandbox, of_record("/metadata-name")) {
        let namespace = of_record("/namespace").unwrap_or_default();
        return [name, namespace, of_record("/uid").unwrap_or_default()];
    }
    let said = keys.own("SandboxName").or_else(|| keys.own("Name"));
    let mut parts = said.unwrap_or_default().split('_').skip(1).map(ToOwned::to_owned);
    [(); 3].map(|()| parts.next().unwrap_or_default())
}

fn agrees(theirs: &BTreeMap<String, String>, pod: &PodFacts) -> bool {
    let Some(metadata) = Keys(theirs).json("Metadata") else { return false };
    let said = |key: &str| text(&metadata, key).unwrap_or_default();
    said("/name") == pod.name && said("/namespace") == pod.namespace && said("/uid") == pod.uid
}

fn of_sandbox(pod: &mut PodFacts, keys: &Keys<'_>) {
    pod.labels = texts(keys.json("Labels").as_ref());
    pod.annotations = texts(keys.json("Annotations").as_ref());
    pod.runtime_handler = keys.own("RuntimeHandler").unwrap_or_default().to_owned();
    pod.cgroup_parent = keys.own("CgroupParent").map(ToOwned::to_owned);
    pod.overhead = keys.block(OVERHEAD);
    pod.resources = keys.block(RESOURCES);
    pod.lives_with = is_spoofed(keys.0).then(String::new);
}

/// CRI-O writes them as `IP.0`, `IP.1` on containers; a sandbox has the plugin's result.
fn ips(keys: &Keys<'_>, theirs: &Keys<'_>, agrees: bool) -> Vec<String> {
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

fn container(call: &Call<'_>, keys: &Keys<'_>, document: &Document<'_>) -> ContainerFacts {
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
