// SPDX-License-Identifier: Apache-2.0
//! Which engine called. First the parent processes, then the bundle's path, annotations last: a
//! pod's author can write annotations, but neither processes nor paths. Annotations alone decide
//! only where nothing stronger speaks; each piece of evidence is kept for `explain`.

use super::{Call, Document, cri, crio, ctr, isulad};

/// The engines that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// containerd's CRI plugin.
    ContainerdCri,
    /// containerd through ctr or another client.
    Containerd,
    /// containerd through nerdctl.
    Nerdctl,
    /// Docker.
    Docker,
    /// CRI-O.
    Crio,
    /// Podman.
    Podman,
    /// iSulad.
    Isulad,
    /// An engine that is not known, with Kubernetes' annotations.
    Kubernetes,
    /// A bundle and a person.
    Plain,
}

/// An engine and why it was taken for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Which.
    pub kind: Kind,
    evidence: Vec<String>,
}

impl Engine {
    /// The word in JSON.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::ContainerdCri => "containerd-cri",
            Kind::Containerd => "containerd",
            Kind::Nerdctl => "nerdctl",
            Kind::Docker => "docker",
            Kind::Crio => "cri-o",
            Kind::Podman => "podman",
            Kind::Isulad => "isulad",
            Kind::Kubernetes => "kubernetes",
            Kind::Plain => "plain",
        }
    }

    /// What spoke for it.
    pub fn evidence(&self) -> &[String] {
        &self.evidence
    }
}

/// Finds out who called.
pub fn detect(call: &Call<'_>, document: &Document<'_>) -> Engine {
    let parents = [call.parent, call.grandparent];
    let by_parent = parents.into_iter().find_map(parent_kind);
    let by_bundle = bundle_kind(call.bundle).map(|(kind, what)| (kind, what.to_owned()));
    let (kind, first) = match (by_parent, by_bundle) {
        (Some((kind, what)), _) => (kind, format!("parent process {what}")),
        (None, Some((kind, what))) => (kind, format!("bundle below {what}")),
        (None, None) => return by_annotations(document),
    };
    let mut evidence = vec![first];
    let kind = refine(kind, call, document, &mut evidence);
    Engine { kind, evidence }
}

fn parent_kind(words: &[Vec<u8>]) -> Option<(Kind, String)> {
    let program = String::from_utf8_lossy(words.first()?).into_owned();
    let name = program.rsplit('/').next().unwrap_or_default();
    let has = |wanted: &str| words.iter().any(|word| word == wanted.as_bytes());
    let kind = match name {
        "containerd-shim-runc-v2" | "containerd-shim-runc-v1" => {
            if has("moby") {
                Kind::Docker
            } else {
                Kind::Containerd
            }
        }
        "conmon" | "conmonrs" | "crio-conmonrs" => {
            let libpod = words.iter().any(|word| {
                [&b"podman"[..], b"libpod"]
                    .iter()
                    .any(|part| word.windows(part.len()).any(|window| window == *part))
            });
            if libpod { Kind::Podman } else { Kind::Crio }
        }
        "crio" => Kind::Crio,
        "podman" => Kind::Podman,
        "isulad" | "isulad-shim" => Kind::Isulad,
        "dockerd" | "buildkitd" => Kind::Docker,
        _ => return None,
    };
    Some((kind, name.to_owned()))
}

fn bundle_kind(bundle: &str) -> Option<(Kind, &'static str)> {
    if let Some((_, rest)) = bundle.split_once("/io.containerd.runtime.v2.task/") {
        let kind = if rest.starts_with("moby/") { Kind::Docker } else { Kind::Containerd };
        return Some((kind, "io.containerd.runtime.v2.task"));
    }
    if bundle.contains("-containers/") && bundle.ends_with("/userdata") {
        return Some((Kind::Crio, "containers/storage"));
    }
    bundle.contains("/isulad/engines/").then_some((Kind::Isulad, "isulad/engines"))
}

/// Annotations decide between engines that share processes and paths.
fn refine(
    kind: Kind,
    call: &Call<'_>,
    document: &Document<'_>,
    evidence: &mut Vec<String>,
) -> Kind {
    let has = |key: &str| document.annotations.contains_key(key);
    match kind {
        Kind::Containerd if has(cri::TYPE) && call.bundle.contains("/k8s.io/") => {
            evidence.push("bundle in the namespace k8s.io".to_owned());
            evidence.push(format!("annotation {}", cri::TYPE));
            Kind::ContainerdCri
        }
        Kind::Containerd if has(ctr::NERDCTL_NAMESPACE) => {
            evidence.push(format!("annotation {}", ctr::NERDCTL_NAMESPACE));
            Kind::Nerdctl
        }
        Kind::Crio | Kind::Podman => {
            let told = match document.annotations.get(crio::MANAGER).map(String::as_str) {
                Some("libpod") => Kind::Podman,
                Some("cri-o") => Kind::Crio,
                _ => return kind,
            };
            evidence.push(format!("annotation {}", crio::MANAGER));
            told
        }
        Kind::Containerd
        | Kind::Nerdctl
        | Kind::ContainerdCri
        | Kind::Docker
        | Kind::Isulad
        | Kind::Kubernetes
        | Kind::Plain => kind,
    }
}

/// Nothing stronger speaks: whoever wrote this document wrote its annotations too.
fn by_annotations(document: &Document<'_>) -> Engine {
    let has = |key: &str| document.annotations.contains_key(key);
    let manager = document.annotations.get(crio::MANAGER).map(String::as_str);
    let (kind, key) = match manager {
        Some("cri-o") if has(crio::SANDBOX_ID) => (Kind::Crio, crio::MANAGER),
        Some("libpod") => (Kind::Podman, crio::MANAGER),
        _ if has(ctr::NERDCTL_NAMESPACE) => (Kind::Nerdctl, ctr::NERDCTL_NAMESPACE),
        _ if has(cri::TYPE) && (has(isulad::CGROUP_DIR) || has(isulad::ATTEMPT)) => {
            (Kind::Isulad, cri::TYPE)
        }
        _ if has(cri::TYPE) => (Kind::Kubernetes, cri::TYPE),
        _ if has(cri::KUBELET_NAME) && has(cri::KUBELET_UID) => {
            (Kind::Kubernetes, cri::KUBELET_UID)
        }
        _ => {
            let why = "no engine among the parents, in the bundle's path or in the annotations";
            return Engine { kind: Kind::Plain, evidence: vec![why.to_owned()] };
        }
    };
    let why = "no engine among the parents, none in the bundle's path".to_owned();
    Engine { kind, evidence: vec![why, format!("annotation {key}")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn detected(parent: &str, bundle: &str, annotations: &[(&str, &str)]) -> Kind {
        let parent = words(parent);
        let call =
            Call { id: "c", root: "/r", bundle, parent: &parent, grandparent: &[], variables: &[] };
        let map = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let document = Document {
            annotations: &map,
            root_path: "",
            cgroups_path: "",
            mounts: Vec::new(),
            namespaces: Vec::new(),
            clos: None,
            limits_block_io: false,
            has_seccomp: false,
        };
        let engine = detect(&call, &document);
        assert!(!engine.evidence().is_empty(), "{engine:?}");
        engine.kind
    }

    const TASK: &str = "/run/containerd/io.containerd.runtime.v2.task";
    const STORAGE: &str = "/run/containers/storage/overlay-containers/c/userdata";

    #[test]
    fn engines_are_told_by_parent_path_and_annotation() {
        let shim = "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x";
        let cri = [(cri::TYPE, "container")];
        assert_eq!(detected(shim, &format!("{TASK}/k8s.io/c"), &cri), Kind::ContainerdCri);
        assert_eq!(detected("", &format!("{TASK}/k8s.io/c"), &cri), Kind::ContainerdCri);
        assert_eq!(detected(shim, &format!("{TASK}/default/c"), &[]), Kind::Containerd);
        let nerdctl = [(ctr::NERDCTL_NAMESPACE, "default")];
        assert_eq!(detected(shim, &format!("{TASK}/default/c"), &nerdctl), Kind::Nerdctl);
        let moby = "containerd-shim-runc-v2 -namespace moby -id x";
        assert_eq!(detected(moby, &format!("{TASK}/moby/c"), &[]), Kind::Docker);
        assert_eq!(detected("/usr/bin/conmon -c x", "/b", &[]), Kind::Crio);
        assert_eq!(detected("conmon -c x --exit-command /usr/bin/podman", "/b", &[]), Kind::Podman);
        assert_eq!(detected("isulad-shim c", "/b", &[]), Kind::Isulad);
    }

    #[test]
    fn storage_paths_are_shared_and_the_manager_decides() {
        assert_eq!(detected("", STORAGE, &[(crio::MANAGER, "libpod")]), Kind::Podman);
        assert_eq!(detected("", STORAGE, &[(crio::MANAGER, "cri-o")]), Kind::Crio);
    }

    #[test]
    fn annotations_decide_only_where_nothing_stronger_speaks() {
        let bundle = "/home/me/bundle";
        let manager = (crio::MANAGER, "cri-o");
        assert_eq!(detected("/bin/sh", bundle, &[(cri::TYPE, "sandbox")]), Kind::Kubernetes);
        assert_eq!(detected("", bundle, &[manager, (crio::SANDBOX_ID, "a")]), Kind::Crio);
        assert_eq!(detected("", bundle, &[manager]), Kind::Plain);
        let containerd = format!("{TASK}/k8s.io/c");
        let spoofed = [(cri::TYPE, "container"), manager, (crio::SANDBOX_ID, "a")];
        assert_eq!(detected("", &containerd, &spoofed), Kind::ContainerdCri);
    }

    #[test]
    fn a_cri_annotation_outside_of_the_cri_namespace_is_not_believed() {
        let cri = [(cri::TYPE, "container")];
        assert_eq!(detected("", &format!("{TASK}/default/c"), &cri), Kind::Containerd);
        assert_eq!(detected("", &format!("{TASK}/moby/c"), &cri), Kind::Docker);
    }

    #[test]
    fn an_ordinary_bundle_is_plain() {
        assert_eq!(detected("/bin/bash", "/home/me/bundle", &[("a", "b")]), Kind::Plain);
    }
}
