// SPDX-License-Identifier: Apache-2.0
//! The sources of each field of a container's identity, for each engine, in the order of trust, and
//! their possible writers. `docs/identity.md` is generated from this table.
//!
//! An engine's file collects the claims of each source ([`Claims`]); the first source of the table
//! that has a value decides. A later source with another value contradicts it: this is reported to
//! the operator, and the value is ignored. This module reads nothing and uses no configuration.

use super::{EngineKind, Facts};

use crate::limits;
use crate::named::named;

named! {
    /// A field of a container's identity.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Field {
        /// Infrastructure container or workload.
        Role => "role",
        /// The pod's id.
        PodId => "pod id",
        /// The pod's name.
        PodName => "pod name",
        /// The pod's namespace.
        PodNamespace => "pod namespace",
        /// The pod's uid.
        PodUid => "pod uid",
        /// The container's name in the pod.
        ContainerName => "container name",
        /// The pod's labels.
        PodLabels => "pod labels",
        /// The pod's annotations.
        PodAnnotations => "pod annotations",
    }

    /// The source of a value.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Source {
        /// The ID among the runtime's arguments.
        RuntimeId => "the runtime's arguments",
        /// containerd's record of the container or of its sandbox.
        ContainerdRecord => "containerd's record",
        /// conmon's arguments.
        Conmon => "conmon's arguments",
        /// The record in containers/storage.
        StorageRecord => "the storage's record",
        /// Podman's database.
        PodmanDatabase => "Podman's database",
        /// `config.v2.json`.
        DockerFile => "Docker's config.v2.json",
        /// `linux.cgroupsPath`.
        CgroupPath => "the cgroup path",
        /// The path of the bundle.
        BundlePath => "the bundle's path",
        /// Annotations of the container's document.
        Annotation => "the bundle's annotations",
        /// Annotations of a document that may be a sandbox's.
        MaybeSandbox => "annotations of a bundle that may be a sandbox's",
        /// The document of the pod's sandbox.
        SandboxDocument => "the sandbox's document",
        /// Annotations of the container that are not its image's.
        OwnAnnotation => "annotations that are not the image's",
        /// Keys `nri-runc.dev/…`.
        OwnKey => "keys nri-runc.dev/…",
    }

    /// The possible writer of a source's value.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Writer {
        /// Only the engine, or kubelet through it.
        Engine => "engine alone",
        /// The engine, after all other writers.
        EngineLast => "engine, last",
        /// The user who commands the engine.
        Operator => "operator",
        /// The pod's author, about the pod itself: its labels and annotations.
        Author => "pod's author",
        /// Anyone who can write annotations.
        Anybody => "anybody",
    }
}

type Ranks = &'static [(Source, Writer)];

/// Defines `ranks`: for each engine and field, the possible writers with their sources, in the
/// order of trust.
macro_rules! ranks {
    ($($($kind:ident)|+ {
        $($($field:ident)|+ => $($writer:ident($($source:ident),+))+;)+
    })+) => {
        /// Returns the sources of a field in the order of trust.
        pub fn ranks(kind: EngineKind, field: Field) -> Ranks {
            match kind {
                $($(EngineKind::$kind)|+ => match field {
                    $($(Field::$field)|+ => &[$($((Source::$source, Writer::$writer)),+),+],)+
                },)+
            }
        }
    };
}

ranks! {
    ContainerdCri {
        Role | PodId | ContainerName => Engine(ContainerdRecord) EngineLast(Annotation);
        PodName | PodNamespace => Engine(ContainerdRecord) EngineLast(Annotation, SandboxDocument);
        // Before 1.6.11 containerd does not write `sandbox-uid`, so the pod's author may have written it.
        PodUid => Engine(ContainerdRecord, CgroupPath) EngineLast(Annotation, SandboxDocument);
        PodLabels => Author(ContainerdRecord);
        PodAnnotations => Author(ContainerdRecord, SandboxDocument);
    }
    Crio {
        Role => Engine(StorageRecord, Conmon) Anybody(MaybeSandbox);
        PodId => Engine(StorageRecord, RuntimeId) EngineLast(Annotation) Anybody(MaybeSandbox);
        PodUid =>
            Engine(StorageRecord, Conmon, CgroupPath) EngineLast(Annotation) Anybody(MaybeSandbox);
        PodName | PodNamespace | ContainerName =>
            Engine(StorageRecord, Conmon) EngineLast(Annotation) Anybody(MaybeSandbox);
        PodLabels | PodAnnotations => Author(SandboxDocument);
    }
    Podman {
        Role => Engine(PodmanDatabase, Conmon) EngineLast(Annotation);
        PodId => Operator(OwnKey) Engine(PodmanDatabase, CgroupPath, RuntimeId);
        PodName => Operator(OwnKey) Engine(PodmanDatabase, Conmon, RuntimeId);
        PodUid => Operator(OwnKey) Engine(RuntimeId);
        PodNamespace => Operator(OwnKey);
        ContainerName => Operator(OwnKey) Engine(Conmon, StorageRecord, RuntimeId);
        PodLabels => Operator(OwnKey, PodmanDatabase);
        PodAnnotations => Operator(OwnKey, OwnAnnotation);
    }
    Docker {
        Role => Engine(RuntimeId);
        PodId | PodUid => Operator(OwnKey) Engine(RuntimeId);
        PodName | ContainerName => Operator(OwnKey) Engine(DockerFile, RuntimeId);
        PodNamespace => Operator(OwnKey);
        PodLabels => Operator(OwnKey) Anybody(DockerFile);
        PodAnnotations => Operator(OwnKey, Annotation);
    }
    Nerdctl {
        Role => Engine(RuntimeId);
        PodId | PodUid => Operator(OwnKey) Engine(RuntimeId);
        PodName | ContainerName => Operator(OwnKey) EngineLast(Annotation) Engine(RuntimeId);
        PodNamespace => Operator(OwnKey) Engine(BundlePath) EngineLast(Annotation);
        PodLabels => Operator(OwnKey) Anybody(ContainerdRecord);
        PodAnnotations => Operator(OwnKey, Annotation);
    }
    Containerd {
        Role => Engine(RuntimeId);
        PodId | PodUid | PodName | ContainerName => Operator(OwnKey) Engine(RuntimeId);
        PodNamespace => Operator(OwnKey);
        PodLabels => Operator(OwnKey) Anybody(ContainerdRecord);
        PodAnnotations => Operator(OwnKey, Annotation);
    }
    Isulad {
        Role | PodId | PodName | PodNamespace | ContainerName =>
            EngineLast(Annotation, SandboxDocument);
        PodUid => Engine(CgroupPath) EngineLast(Annotation, SandboxDocument);
        PodLabels => EngineLast(Annotation);
        PodAnnotations => Author(SandboxDocument);
    }
    Kubernetes {
        Role | PodId | PodName | PodNamespace | ContainerName =>
            Anybody(Annotation, SandboxDocument);
        PodUid => Engine(CgroupPath) Anybody(Annotation, SandboxDocument);
        PodLabels => Anybody(Annotation);
        PodAnnotations => Anybody(SandboxDocument);
    }
    Plain {
        Role => Engine(RuntimeId);
        PodId | PodName | PodUid | ContainerName => Operator(OwnKey) Engine(RuntimeId);
        PodNamespace | PodLabels => Operator(OwnKey);
        PodAnnotations => Operator(OwnKey, Annotation);
    }
}

/// The claims of all sources, before one of them is chosen.
#[derive(Debug)]
pub(super) struct Claims {
    kind: EngineKind,
    said: Vec<(Field, Source, String)>,
}

impl Claims {
    pub(super) fn new(kind: EngineKind) -> Self {
        Self { kind, said: Vec::new() }
    }

    /// Adds a source's value; empty values are ignored.
    pub(super) fn add(&mut self, field: Field, source: Source, value: Option<String>) {
        let value = value.filter(|value| !value.is_empty());
        self.said.extend(value.map(|value| (field, source, value)));
    }

    /// Returns the value of the most trusted source, and who may have written it; adds a line to
    /// `contradictions` for each different value.
    pub(super) fn settle(
        &self,
        field: Field,
        contradictions: &mut Vec<String>,
    ) -> Option<(String, Writer)> {
        let of = |source: Source| {
            let said = self.said.iter().filter(move |(of, by, _)| (*of, *by) == (field, source));
            said.map(|(_, _, value)| value)
        };
        let ranked = ranks(self.kind, field).iter();
        let mut all = ranked.flat_map(|rank| of(rank.0).map(move |value| (rank, value)));
        let ((source, writer), value) = all.next()?;
        for ((other, _), what) in all.filter(|(_, what)| *what != value) {
            let (by, other) = (source.name(), other.name());
            contradictions.push(contradiction(field, (other, what), (by, value)));
        }
        Some((value.clone(), *writer))
    }
}

/// Formats the line about two sources with different values.
pub(super) fn contradiction(
    field: Field,
    (other, what): (&str, &str),
    (by, value): (&str, &str),
) -> String {
    let (what, value) = (shown(what), shown(value));
    format!("{}: {value:?} by {by}; {what:?} by {other} is ignored", field.name())
}

/// Shortens a tenant's value for a line.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(limits::CLAIM) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// The exemptions from protections that the operator configures.
#[derive(Debug, Clone, Copy)]
pub struct Exemptions<'a> {
    /// The namespaces whose pods are exempt.
    pub namespaces: &'a [String],
    /// Whether annotations and labels are sufficient evidence of the namespace.
    pub by_annotation: bool,
    /// Key of the annotation that exempts a pod; empty if none does.
    pub annotation: &'a str,
}

impl Facts {
    /// Drops values that nri-runc's keys and images must not set, and returns whether the pod is in
    /// an exempt namespace ([`Facts::is_in`]).
    pub fn judge(&mut self, exemptions: Exemptions<'_>) -> bool {
        let Exemptions { namespaces, by_annotation, annotation } = exemptions;
        if !by_annotation {
            self.forbid_own_namespaces(namespaces);
        }
        self.forbid_image_annotation(annotation);
        self.is_in(namespaces, by_annotation)
    }

    /// Sets the namespace of a pod without one, on an engine without pods: the configured one, else
    /// the engine's name. Callers do this after [`Facts::judge`], so that such a namespace exempts
    /// no pod, even if it is listed as exempt.
    pub fn name_namespace(&mut self, configured: &str) {
        if self.engine.kind.behaviour().has_pods || !self.pod.namespace.is_empty() {
            return;
        }
        let name = if configured.is_empty() { self.engine.name() } else { configured };
        name.clone_into(&mut self.pod.namespace);
        self.namespace_by = None;
    }

    /// Whether the pod is in one of these namespaces, according to a source that tenants cannot
    /// write; with `by_annotation`, according to annotations or labels too.
    pub fn is_in(&self, namespaces: &[String], by_annotation: bool) -> bool {
        let is_proven = match self.namespace_by {
            Some(Writer::Engine | Writer::EngineLast) => self.engine.is_proven(),
            Some(Writer::Operator | Writer::Author | Writer::Anybody) | None => false,
        };
        (is_proven || by_annotation) && namespaces.contains(&self.pod.namespace)
    }

    /// Whether the pod's namespace is a default, or an untrusted writer may have set it.
    pub fn has_unproven_namespace(&self) -> bool {
        let is_proven = match self.namespace_by {
            Some(Writer::Engine | Writer::EngineLast) => self.engine.is_proven(),
            Some(Writer::Operator) => {
                self.engine.is_proven() || self.engine.kind.behaviour().is_no_engine
            }
            Some(Writer::Author | Writer::Anybody) | None => self.pod.namespace.is_empty(),
        };
        !is_proven
    }

    /// Whether facts that rules examine may be a tenant's: the tenant may have written the
    /// namespace or determined the engine, or the engine has pods and the namespace is missing. A
    /// default namespace is not doubtful.
    pub fn is_doubtful(&self) -> bool {
        let behaviour = self.engine.kind.behaviour();
        if !self.engine.is_proven() && !behaviour.is_no_engine {
            return true;
        }
        if behaviour.has_pods && self.pod.namespace.is_empty() {
            return true;
        }
        let is_default = !behaviour.has_pods && self.namespace_by.is_none();
        !is_default && self.has_unproven_namespace()
    }

    /// Drops the annotation that exempts a pod, in all its forms, if it may be the image's.
    pub fn forbid_image_annotation(&mut self, key: &str) {
        if key.is_empty() || !self.has_image_annotations {
            return;
        }
        let is_form = |has: &str| {
            let rest = has.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let known = self.pod.annotations.len();
        self.pod.annotations.retain(|has, _| !is_form(has));
        if self.pod.annotations.len() != known {
            self.contradictions.push(format!(
                "annotation {key} does not count: it may be the image's, whose annotations could \
                 not be read"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::Named;

    #[test]
    fn sources_of_the_engine_rank_above_sources_of_the_author() {
        let rank = |writer: Writer| match writer {
            Writer::Operator | Writer::Engine => 0,
            Writer::EngineLast => 1,
            Writer::Author | Writer::Anybody => 2,
        };
        let fields = |kind: EngineKind| Field::ALL.iter().map(move |field| (kind, *field));
        for (kind, field) in EngineKind::ALL.iter().copied().flat_map(fields) {
            let order: Vec<i32> = ranks(kind, field).iter().map(|(_, w)| rank(*w)).collect();
            let sorted =
                order.is_sorted() || (kind, field) == (EngineKind::Nerdctl, Field::PodName);
            let sorted = sorted || (kind, field) == (EngineKind::Nerdctl, Field::ContainerName);
            assert!(sorted, "{kind:?} {field:?}");
        }
    }

    #[test]
    fn nri_runc_keys_never_count_in_pods_of_kubernetes() {
        use EngineKind::{ContainerdCri, Crio, Isulad, Kubernetes};
        for kind in [ContainerdCri, Crio, Isulad, Kubernetes] {
            for field in Field::ALL.iter().copied() {
                let has_key =
                    ranks(kind, field).iter().any(|(source, _)| *source == Source::OwnKey);
                assert!(!has_key, "{kind:?} {field:?}");
            }
        }
    }

    #[test]
    fn the_trusted_source_wins_in_any_order_and_the_other_is_noted() {
        for is_first in [true, false] {
            let mut claims = Claims::new(EngineKind::Crio);
            let forged = || Some("kube-system\n".repeat(40));
            if is_first {
                claims.add(Field::PodNamespace, Source::MaybeSandbox, forged());
            }
            claims.add(Field::PodNamespace, Source::Conmon, Some("tenant".to_owned()));
            claims.add(Field::PodNamespace, Source::MaybeSandbox, forged());
            let mut noted = Vec::new();
            let settled = claims.settle(Field::PodNamespace, &mut noted);
            assert_eq!(settled, Some(("tenant".to_owned(), Writer::Engine)));
            let wanted = "pod namespace: \"tenant\" by conmon's arguments; \"kube-system\\nkube";
            assert!(noted[0].starts_with(wanted), "{noted:?}");
            assert!(noted[0].len() < 300 && !noted[0].contains('\n'), "{noted:?}");
        }
    }

    #[test]
    fn without_claims_a_field_has_no_value() {
        let mut claims = Claims::new(EngineKind::Crio);
        claims.add(Field::PodName, Source::Conmon, Some(String::new()));
        claims.add(Field::PodName, Source::DockerFile, Some("not in the table".to_owned()));
        let mut noted = Vec::new();
        assert_eq!(claims.settle(Field::PodName, &mut noted), None);
        assert!(noted.is_empty());
    }
}
