// SPDX-License-Identifier: Apache-2.0
//! Who called, by evidence, and what that engine's annotations say: facts, engine-neutral.
//!
//! First the parent process, then the bundle's path, annotations last: a pod's author can write
//! annotations, but no parent processes. It reads nothing; the caller did that.

mod containerd;
mod plain;

use std::collections::BTreeMap;
use std::ffi::OsString;

/// What a call shows of its caller.
#[derive(Debug)]
pub struct Call<'a> {
    /// Container id.
    pub id: &'a str,
    /// The runtime's state directory.
    pub root: &'a str,
    /// Bundle directory.
    pub bundle: &'a str,
    /// Command line of the parent.
    pub parent: &'a [Vec<u8>],
    /// Command line of its parent.
    pub grandparent: &'a [Vec<u8>],
    /// The engine's variables.
    pub variables: &'a [(String, OsString)],
}

/// The engines that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// containerd's CRI plugin.
    ContainerdCri,
    /// containerd through ctr or nerdctl.
    Containerd,
    /// Docker.
    Docker,
    /// CRI-O.
    Crio,
    /// Podman.
    Podman,
    /// iSulad.
    Isulad,
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
            Kind::Docker => "docker",
            Kind::Crio => "cri-o",
            Kind::Podman => "podman",
            Kind::Isulad => "isulad",
            Kind::Plain => "plain",
        }
    }

    /// What spoke for it.
    pub fn evidence(&self) -> &[String] {
        &self.evidence
    }

    /// Whether this version takes it for a plain bundle, because its facts are not read yet.
    pub fn is_narrow(&self) -> bool {
        !matches!(self.kind, Kind::ContainerdCri | Kind::Plain)
    }
}

/// What a container is to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The pod's infrastructure container.
    Sandbox,
    /// A workload.
    Container,
}

/// What the engine says about a container and its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Who says it.
    pub engine: Engine,
    /// Infrastructure container or workload.
    pub role: Role,
    /// Container id.
    pub container_id: String,
    /// Container name.
    pub container_name: String,
    /// Container labels.
    pub container_labels: BTreeMap<String, String>,
    /// Image name.
    pub image: Option<String>,
    /// Pod id.
    pub pod_id: String,
    /// Pod name.
    pub pod_name: String,
    /// Pod namespace.
    pub pod_namespace: String,
    /// Pod uid.
    pub pod_uid: String,
    /// Pod labels.
    pub pod_labels: BTreeMap<String, String>,
    /// The config.json of the pod's infrastructure container, if there is one elsewhere.
    pub sandbox_config: Option<String>,
}

/// What the engine says about the container of this call.
pub fn facts(call: &Call<'_>, annotations: &BTreeMap<String, String>) -> Facts {
    let engine = detect(call, annotations);
    match engine.kind {
        Kind::ContainerdCri => containerd::facts(engine, call, annotations),
        Kind::Containerd
        | Kind::Docker
        | Kind::Crio
        | Kind::Podman
        | Kind::Isulad
        | Kind::Plain => plain::facts(engine, call, annotations),
    }
}

/// Finds out who called.
pub fn detect(call: &Call<'_>, annotations: &BTreeMap<String, String>) -> Engine {
    let mut evidence = Vec::new();
    let by_parent = [call.parent, call.grandparent].into_iter().find_map(parent_kind);
    if let Some((kind, what)) = by_parent {
        evidence.push(format!("parent process {what}"));
        let kind = refine(kind, call, annotations, &mut evidence);
        return Engine { kind, evidence };
    }
    if let Some((kind, what)) = bundle_kind(call.bundle) {
        evidence.push(format!("bundle below {what}"));
        let kind = refine(kind, call, annotations, &mut evidence);
        return Engine { kind, evidence };
    }
    evidence.push("no engine among the parents, none in the bundle's path".to_owned());
    Engine { kind: Kind::Plain, evidence }
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
            let libpod = words.iter().any(|word| word.windows(6).any(|part| part == b"podman"));
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
    if bundle.contains("/overlay-containers/") && bundle.ends_with("/userdata") {
        return Some((Kind::Crio, "overlay-containers"));
    }
    bundle.contains("/isulad/engines/").then_some((Kind::Isulad, "isulad/engines"))
}

/// Annotations decide only between engines that share processes and paths.
fn refine(
    kind: Kind,
    call: &Call<'_>,
    annotations: &BTreeMap<String, String>,
    evidence: &mut Vec<String>,
) -> Kind {
    let is_cri = annotations.contains_key(containerd::TYPE);
    match kind {
        Kind::Containerd if is_cri && call.bundle.contains("/k8s.io/") => {
            evidence.push(format!("annotation {}", containerd::TYPE));
            Kind::ContainerdCri
        }
        Kind::Crio | Kind::Podman => {
            match annotations.get("io.container.manager").map(String::as_str) {
                Some("libpod") => Kind::Podman,
                Some("cri-o") => Kind::Crio,
                _ => kind,
            }
        }
        Kind::Containerd | Kind::ContainerdCri | Kind::Docker | Kind::Isulad | Kind::Plain => kind,
    }
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
        detect(&call, &map).kind
    }

    const TASK: &str = "/run/containerd/io.containerd.runtime.v2.task";

    #[test]
    fn engines_are_told_by_parent_path_and_annotation() {
        let shim = "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x";
        let cri = [(containerd::TYPE, "container")];
        assert_eq!(detected(shim, &format!("{TASK}/k8s.io/c"), &cri), Kind::ContainerdCri);
        assert_eq!(detected("", &format!("{TASK}/k8s.io/c"), &cri), Kind::ContainerdCri);
        assert_eq!(detected(shim, &format!("{TASK}/default/c"), &[]), Kind::Containerd);
        let moby = "containerd-shim-runc-v2 -namespace moby -id x";
        assert_eq!(detected(moby, &format!("{TASK}/moby/c"), &[]), Kind::Docker);
        assert_eq!(detected("/usr/bin/conmon -c x", "/b", &[]), Kind::Crio);
    }

    #[test]
    fn annotations_alone_make_no_engine() {
        let spoofed = [(containerd::TYPE, "sandbox"), ("io.container.manager", "cri-o")];
        assert_eq!(detected("/bin/bash", "/home/me/bundle", &spoofed), Kind::Plain);
    }

    #[test]
    fn a_cri_annotation_outside_of_the_cri_namespace_is_not_believed() {
        let cri = [(containerd::TYPE, "container")];
        assert_eq!(detected("", &format!("{TASK}/default/c"), &cri), Kind::Containerd);
    }
}
