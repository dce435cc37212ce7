// SPDX-License-Identifier: Apache-2.0
//! Detects the calling engine. The parent processes decide, then the bundle's path, then, between
//! CRI-O and Podman, the cgroup's path; pods' authors can write none of these. Annotations, which
//! they can write, decide only without stronger evidence, or between containerd's clients. An engine
//! that only they name is not proven, and its claims exempt no pod unless `exempt_by_annotation` is
//! set. All evidence and contradictions are kept for `explain`.

use super::{CallerInfo, Document, conmon, containerd, cri, crio, ctr, isulad, pod_cgroup};

use crate::named::{Named, named};

named! {
    /// The engines that nri-runc distinguishes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum EngineKind {
        /// containerd's CRI plugin.
        ContainerdCri => "containerd-cri",
        /// containerd through ctr or another client.
        Containerd => "containerd",
        /// containerd through nerdctl.
        Nerdctl => "nerdctl",
        /// Docker.
        Docker => "docker",
        /// CRI-O.
        Crio => "cri-o",
        /// Podman.
        Podman => "podman",
        /// iSulad.
        Isulad => "isulad",
        /// An unknown engine with Kubernetes' annotations.
        Kubernetes => "kubernetes",
        /// A bundle without an engine.
        Plain => "plain",
    }
}

impl EngineKind {
    /// Returns the engine of this name.
    pub fn named(name: &str) -> Option<Self> {
        <Self as Named>::named(name)
    }
}

/// An engine and the evidence for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedEngine {
    /// The engine.
    pub kind: EngineKind,
    evidence: Vec<String>,
    contradictions: Vec<String>,
    is_proven: bool,
}

impl DetectedEngine {
    /// Returns the engine's name in JSON.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the evidence for the engine.
    pub fn evidence(&self) -> &[String] {
        &self.evidence
    }

    /// Returns weaker evidence for another engine, which was rejected.
    pub fn contradictions(&self) -> &[String] {
        &self.contradictions
    }

    /// Whether some evidence for the engine cannot be written by a tenant.
    pub fn is_proven(&self) -> bool {
        self.is_proven
    }

    fn note(&mut self, evidence: String) {
        self.evidence.push(evidence);
    }

    /// Records that weaker evidence names another engine.
    fn contradict(&mut self, weaker: &str, other: EngineKind) {
        if self.kind != other {
            let (is, not) = (self.name(), other.name());
            self.contradictions.push(format!("engine: {weaker} says {not}, but it is {is}"));
        }
    }
}

/// Detects the calling engine.
pub fn detect(call: &CallerInfo<'_>, document: &Document<'_>) -> DetectedEngine {
    let by_parent = [call.parent, call.grandparent].into_iter().find_map(parent_kind);
    let by_bundle = bundle_kind(call.bundle);
    let (kind, first) = match (&by_parent, &by_bundle) {
        (Some((kind, what)), _) => (*kind, format!("parent process {what}")),
        (None, Some((kind, what))) => (*kind, format!("bundle below {what}")),
        (None, None) => return by_annotations(document),
    };
    let evidence = vec![first];
    let mut engine = DetectedEngine { kind, evidence, contradictions: Vec::new(), is_proven: true };
    match kind {
        EngineKind::Containerd => distinguish_clients(&mut engine, call, document),
        EngineKind::Crio | EngineKind::Podman => distinguish_storages(&mut engine, call, document),
        EngineKind::ContainerdCri
        | EngineKind::Nerdctl
        | EngineKind::Docker
        | EngineKind::Isulad
        | EngineKind::Kubernetes
        | EngineKind::Plain => {}
    }
    if let Some((other, what)) = by_bundle
        && !shares_bundles(engine.kind, other)
    {
        engine.contradict(&format!("a bundle below {what}"), other);
    }
    engine
}

/// Whether an engine's bundles may look like another's.
fn shares_bundles(kind: EngineKind, by_bundle: EngineKind) -> bool {
    let of = |kind: EngineKind| match kind {
        EngineKind::Podman => EngineKind::Crio,
        EngineKind::ContainerdCri | EngineKind::Nerdctl => EngineKind::Containerd,
        EngineKind::Crio
        | EngineKind::Containerd
        | EngineKind::Docker
        | EngineKind::Isulad
        | EngineKind::Kubernetes
        | EngineKind::Plain => kind,
    };
    of(kind) == of(by_bundle)
}

fn parent_kind(words: &[Vec<u8>]) -> Option<(EngineKind, String)> {
    let program = String::from_utf8_lossy(words.first()?).into_owned();
    let name = program.rsplit('/').next().unwrap_or_default();
    let kind = match name {
        "containerd-shim-runc-v2" | "containerd-shim-runc-v1" => {
            match containerd::option(words, "-namespace").as_deref() {
                Some("moby") => EngineKind::Docker,
                _ => EngineKind::Containerd,
            }
        }
        _ if conmon::is_conmon(words) => conmon::engine(words).unwrap_or(EngineKind::Crio),
        "conmonrs" | "crio-conmonrs" | "crio" => EngineKind::Crio,
        "podman" => EngineKind::Podman,
        "isulad" | "isulad-shim" => EngineKind::Isulad,
        "dockerd" | "buildkitd" => EngineKind::Docker,
        _ => return None,
    };
    Some((kind, name.to_owned()))
}

fn bundle_kind(bundle: &str) -> Option<(EngineKind, &'static str)> {
    if let Some(namespace) = containerd::namespace(bundle) {
        let kind = if namespace == "moby" { EngineKind::Docker } else { EngineKind::Containerd };
        return Some((kind, "io.containerd.runtime.v2.task"));
    }
    if bundle.contains("-containers/") && bundle.ends_with("/userdata") {
        return Some((EngineKind::Crio, "containers/storage"));
    }
    bundle.contains("/isulad/engines/").then_some((EngineKind::Isulad, "isulad/engines"))
}

/// Distinguishes containerd's clients, which share processes and paths. The CRI plugin writes its
/// annotations after the pod's, only in its own namespace; nerdctl writes its annotations last, in
/// any namespace.
fn distinguish_clients(
    engine: &mut DetectedEngine,
    call: &CallerInfo<'_>,
    document: &Document<'_>,
) {
    let has = |key: &str| document.annotations.contains_key(key);
    if has(cri::TYPE) && containerd::namespace(call.bundle) == Some(containerd::CRI_NAMESPACE) {
        engine.note("bundle in the namespace k8s.io".to_owned());
        engine.note(format!("annotation {}", cri::TYPE));
        engine.kind = EngineKind::ContainerdCri;
    } else if has(ctr::NERDCTL_NAMESPACE) {
        engine.note(format!("annotation {}", ctr::NERDCTL_NAMESPACE));
        engine.kind = EngineKind::Nerdctl;
    }
}

/// Distinguishes CRI-O and Podman, which share conmon and containers/storage: by the calling process (conmon's
/// arguments, or the name of another program of the two engines), else by the last part of the cgroup's path, which
/// tenants cannot write, else by `io.container.manager`, which a pod's author can write, so it proves nothing.
fn distinguish_storages(
    engine: &mut DetectedEngine,
    call: &CallerInfo<'_>,
    document: &Document<'_>,
) {
    let manager = match document.annotations.get(crio::MANAGER).map(String::as_str) {
        Some("libpod") => Some(EngineKind::Podman),
        Some("cri-o") => Some(EngineKind::Crio),
        _ => None,
    };
    let is_one = |kind: &EngineKind| matches!(kind, EngineKind::Crio | EngineKind::Podman);
    let by_parent = [call.parent, call.grandparent].into_iter().find_map(|words| {
        match conmon::is_conmon(words) {
            true => conmon::engine(words),
            false => parent_kind(words).map(|(kind, _)| kind).filter(is_one),
        }
    });
    let by_cgroup = pod_cgroup::engine(document.cgroups_path);
    match (by_parent, by_cgroup, manager) {
        (Some(kind), _, _) => engine.kind = kind,
        (None, Some(kind), _) => {
            engine.note("name of the cgroup".to_owned());
            engine.kind = kind;
        }
        (None, None, Some(kind)) => {
            engine.note(format!("annotation {}", crio::MANAGER));
            (engine.kind, engine.is_proven) = (kind, false);
        }
        (None, None, None) => engine.is_proven = false,
    }
    if let Some(other) = by_cgroup {
        engine.contradict("the name of the cgroup", other);
    }
    if let Some(other) = manager {
        engine.contradict(&format!("annotation {}", crio::MANAGER), other);
    }
}

/// Decides by annotations, if there is no stronger evidence: their writer usually wrote the whole
/// document. Below kubelet's cgroup, however, an unknown engine wrote the document and pods'
/// authors may have written the annotations, so there they do not select an engine without pods.
fn by_annotations(document: &Document<'_>) -> DetectedEngine {
    let has = |key: &str| document.annotations.contains_key(key);
    let is_kubelets = pod_cgroup::is_kubelets(document.cgroups_path);
    let manager = document.annotations.get(crio::MANAGER).map(String::as_str);
    let (kind, key) = match manager {
        Some("cri-o") if has(crio::SANDBOX_ID) => (EngineKind::Crio, crio::MANAGER),
        Some("libpod") if !is_kubelets => (EngineKind::Podman, crio::MANAGER),
        _ if has(ctr::NERDCTL_NAMESPACE) && !is_kubelets => {
            (EngineKind::Nerdctl, ctr::NERDCTL_NAMESPACE)
        }
        _ if has(cri::TYPE) && (has(isulad::CGROUP_DIR) || has(isulad::ATTEMPT)) => {
            (EngineKind::Isulad, cri::TYPE)
        }
        _ if has(cri::TYPE) => (EngineKind::Kubernetes, cri::TYPE),
        _ if has(cri::KUBELET_NAME) && has(cri::KUBELET_UID) => {
            (EngineKind::Kubernetes, cri::KUBELET_UID)
        }
        _ => {
            let why = "no engine among the parents, in the bundle's path or in the annotations";
            return unproven(EngineKind::Plain, why, None);
        }
    };
    let why = "no engine among the parents, none in the bundle's path";
    unproven(kind, why, Some(format!("annotation {key}")))
}

fn unproven(kind: EngineKind, why: &str, more: Option<String>) -> DetectedEngine {
    let evidence = [why.to_owned()].into_iter().chain(more).collect();
    DetectedEngine { kind, evidence, contradictions: Vec::new(), is_proven: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn detected(parent: &str, bundle: &str, annotations: &[(&str, &str)]) -> EngineKind {
        let parent = words(parent);
        let call =
            CallerInfo { id: "c", bundle, parent: &parent, grandparent: &[], variables: &[] };
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
    fn engines_are_detected_by_parent_path_and_annotation() {
        let shim = "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x";
        let cri = [(cri::TYPE, "container")];
        assert_eq!(detected(shim, &format!("{TASK}/k8s.io/c"), &cri), EngineKind::ContainerdCri);
        assert_eq!(detected("", &format!("{TASK}/k8s.io/c"), &cri), EngineKind::ContainerdCri);
        assert_eq!(detected(shim, &format!("{TASK}/default/c"), &[]), EngineKind::Containerd);
        let nerdctl = [(ctr::NERDCTL_NAMESPACE, "default")];
        assert_eq!(detected(shim, &format!("{TASK}/default/c"), &nerdctl), EngineKind::Nerdctl);
        let moby = "containerd-shim-runc-v2 -namespace moby -id x";
        assert_eq!(detected(moby, &format!("{TASK}/moby/c"), &[]), EngineKind::Docker);
        assert_eq!(detected("/usr/bin/conmon -c x", "/b", &[]), EngineKind::Crio);
        assert_eq!(
            detected("conmon -c x --exit-command /usr/bin/podman", "/b", &[]),
            EngineKind::Podman
        );
        assert_eq!(detected("isulad-shim c", "/b", &[]), EngineKind::Isulad);
    }

    #[test]
    fn conmon_is_known_by_each_of_its_names() {
        for name in ["conmon", "crio-conmon", "/usr/libexec/crio/conmon", "conmon-2.1.12"] {
            assert_eq!(detected(&format!("{name} -c x"), "/b", &[]), EngineKind::Crio, "{name}");
            let of_podman = format!("{name} -c x --exit-command /usr/bin/podman");
            assert_eq!(detected(&of_podman, "/b", &[]), EngineKind::Podman, "{name}");
        }
        for name in ["conmonrs", "/usr/bin/crio-conmonrs"] {
            assert_eq!(detected(name, "/b", &[]), EngineKind::Crio, "{name}");
        }
    }

    #[test]
    fn the_manager_annotation_decides_between_podman_and_crio() {
        assert_eq!(detected("", STORAGE, &[(crio::MANAGER, "libpod")]), EngineKind::Podman);
        assert_eq!(detected("", STORAGE, &[(crio::MANAGER, "cri-o")]), EngineKind::Crio);
    }

    #[test]
    fn annotations_decide_only_without_stronger_evidence() {
        let bundle = "/home/me/bundle";
        let manager = (crio::MANAGER, "cri-o");
        assert_eq!(detected("/bin/sh", bundle, &[(cri::TYPE, "sandbox")]), EngineKind::Kubernetes);
        assert_eq!(detected("", bundle, &[manager, (crio::SANDBOX_ID, "a")]), EngineKind::Crio);
        assert_eq!(detected("", bundle, &[manager]), EngineKind::Plain);
        let containerd = format!("{TASK}/k8s.io/c");
        let spoofed = [(cri::TYPE, "container"), manager, (crio::SANDBOX_ID, "a")];
        assert_eq!(detected("", &containerd, &spoofed), EngineKind::ContainerdCri);
    }

    #[test]
    fn a_cri_annotation_outside_the_cri_namespace_is_ignored() {
        let cri = [(cri::TYPE, "container")];
        assert_eq!(detected("", &format!("{TASK}/default/c"), &cri), EngineKind::Containerd);
        assert_eq!(detected("", &format!("{TASK}/moby/c"), &cri), EngineKind::Docker);
    }

    #[test]
    fn an_ordinary_bundle_is_plain() {
        assert_eq!(detected("/bin/bash", "/home/me/bundle", &[("a", "b")]), EngineKind::Plain);
    }
}
