// SPDX-License-Identifier: Apache-2.0
//! The facts about an engine on which the rest of the program depends, one row per engine, so that
//! a new engine cannot be forgotten. Code outside this folder asks here and never decides by
//! variant.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CallerInfo, DetectedEngine, Document, EngineKind, Facts, Seen, Wanted};
use super::{containerd, cri, crio, ctr, docker, isulad, kubernetes, own, podman};

/// Names the sources on the host that have more data about a container.
type WantedFn = fn(&CallerInfo<'_>, &Document<'_>) -> Wanted;

/// Describes a container and its pod.
type FactsFn = fn(DetectedEngine, Seen<'_>) -> Facts;

/// The place where an engine's monitor writes a container's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitPlace {
    /// Nowhere.
    Nowhere,
    /// `exit.json` in the bundle, by containerd's shim since 2.4.
    Bundle,
    /// A file with the container's ID in this folder, by conmon.
    Folder(&'static str),
}

/// The place where an engine keeps exit codes after it has removed the exit files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastingExit {
    /// Podman's databases.
    Databases,
    /// conmon's second file, in CRI-O's storage.
    SecondFile,
}

/// The behaviour of an engine, as far as the rest of the program depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behaviour {
    /// The parent of its containers is containerd's shim.
    pub(crate) has_shim: bool,
    /// It has pods, each with a namespace.
    pub(crate) has_pods: bool,
    /// Its pods are Kubernetes pods.
    pub(crate) is_kubernetes: bool,
    /// It reports process and addresses of its pods.
    pub(crate) reports_pods: bool,
    /// It never reuses a container's ID; Docker and Podman do at each restart.
    pub(crate) uses_ids_once: bool,
    /// Users run it themselves, so the calling process has the user's login UID.
    pub(crate) has_login: bool,
    /// Its own NRI omits, in RemoveContainer, the processes of the container and of a stopped pod,
    /// and in RemovePodSandbox, the pod's process and network.
    pub(crate) forgets_at_removal: bool,
    /// Its own NRI omits the process of a pod that stops or is removed.
    pub(crate) forgets_at_stop: bool,
    /// A pod's annotations are on its members, not on its infrastructure container.
    pub(crate) annotates_members: bool,
    pub(crate) exit_place: ExitPlace,
    /// The record that keeps the exit code, if there is one: the engine then removes the exit file
    /// after reading it, before the runtime deletes the container.
    pub(crate) lasting_exit: Option<LastingExit>,
    /// Returns the folder that the engine keeps for a container until it removes the container, if
    /// that is after the runtime's state is deleted.
    pub(crate) folder_until_removed: fn(bundle: &str, id: &str, is_sandbox: bool) -> Option<String>,
    /// A bundle without an engine, for which no evidence is required.
    pub(super) is_no_engine: bool,
    /// A container with a sandbox's annotations is always a sandbox.
    pub(super) has_certain_sandboxes: bool,
    /// Its documents may have only kubelet's labels as annotations.
    pub(super) has_only_labels: bool,
    /// Annotations name RDT and block I/O classes; its documents have only the effect of a class.
    pub(super) has_classes: bool,
    pub(super) wanted: WantedFn,
    /// Names the sources to which the fetched ones refer; some may have been requested before.
    pub(super) wanted_more: fn(Seen<'_>) -> Wanted,
    pub(super) facts: FactsFn,
}

const fn row(wanted: WantedFn, facts: FactsFn) -> Behaviour {
    Behaviour {
        has_shim: false,
        has_pods: false,
        is_kubernetes: false,
        reports_pods: false,
        uses_ids_once: false,
        has_login: false,
        forgets_at_removal: false,
        forgets_at_stop: false,
        annotates_members: false,
        exit_place: ExitPlace::Nowhere,
        lasting_exit: None,
        folder_until_removed: |_, _, _| None,
        is_no_engine: false,
        has_certain_sandboxes: false,
        has_only_labels: false,
        has_classes: false,
        wanted,
        wanted_more: |_| Wanted::default(),
        facts,
    }
}

const UNKNOWN: Behaviour = row(|_, _| Wanted::default(), own::facts);

const fn shim(wanted: WantedFn, facts: FactsFn) -> Behaviour {
    Behaviour { has_shim: true, exit_place: ExitPlace::Bundle, ..row(wanted, facts) }
}

const fn kubernetes(wanted: WantedFn, facts: FactsFn) -> Behaviour {
    Behaviour { has_pods: true, is_kubernetes: true, uses_ids_once: true, ..row(wanted, facts) }
}

impl EngineKind {
    pub(crate) const fn behaviour(self) -> Behaviour {
        match self {
            Self::ContainerdCri => Behaviour {
                has_shim: true,
                reports_pods: true,
                forgets_at_removal: true,
                exit_place: ExitPlace::Bundle,
                folder_until_removed: containerd::cri_folder,
                has_certain_sandboxes: true,
                has_classes: true,
                ..kubernetes(containerd::wanted, containerd::facts)
            },
            Self::Containerd => shim(ctr::wanted, ctr::facts),
            Self::Nerdctl => shim(ctr::wanted, ctr::facts_of_nerdctl),
            Self::Docker => Behaviour {
                wanted_more: docker::wanted_more,
                ..shim(docker::wanted, docker::facts)
            },
            // CRI-O makes the runtime delete a container only when it removes the container, so it
            // keeps no folder beyond the runtime's state.
            Self::Crio => Behaviour {
                reports_pods: true,
                forgets_at_stop: true,
                exit_place: ExitPlace::Folder("/var/run/crio/exits"),
                lasting_exit: Some(LastingExit::SecondFile),
                has_classes: true,
                ..kubernetes(crio::wanted, crio::facts)
            },
            Self::Podman => Behaviour {
                has_login: true,
                annotates_members: true,
                exit_place: ExitPlace::Folder("/run/libpod/exits"),
                lasting_exit: Some(LastingExit::Databases),
                wanted_more: podman::wanted_more,
                ..row(podman::wanted, podman::facts)
            },
            Self::Isulad => Behaviour { has_pods: true, ..row(cri::wanted, isulad::facts) },
            Self::Kubernetes => {
                Behaviour { has_only_labels: true, ..kubernetes(cri::wanted, kubernetes::facts) }
            }
            Self::Plain => Behaviour { has_login: true, is_no_engine: true, ..UNKNOWN },
        }
    }
}

/// An engine in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Cow<str>", into = "String")]
pub(crate) enum EngineName {
    /// A known engine.
    Known(EngineKind),
    /// An engine that only a newer version knows, or the empty name of a record without one.
    Other(Box<str>),
}

impl EngineName {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Known(kind) => kind.name(),
            Self::Other(name) => name,
        }
    }

    /// Returns the engine, if it is known.
    pub(crate) fn kind(&self) -> Option<EngineKind> {
        match self {
            Self::Known(kind) => Some(*kind),
            Self::Other(_) => None,
        }
    }

    /// Returns the engine's behaviour; nothing is assumed about an unknown engine.
    pub(crate) fn behaviour(&self) -> Behaviour {
        self.kind().map_or(UNKNOWN, EngineKind::behaviour)
    }
}

impl Default for EngineName {
    fn default() -> Self {
        Self::Other("".into())
    }
}

impl From<EngineKind> for EngineName {
    fn from(kind: EngineKind) -> Self {
        Self::Known(kind)
    }
}

impl From<Cow<'_, str>> for EngineName {
    fn from(name: Cow<'_, str>) -> Self {
        EngineKind::named(&name).map_or_else(|| Self::Other(name.into()), Self::Known)
    }
}

impl From<EngineName> for String {
    fn from(engine: EngineName) -> Self {
        engine.as_str().to_owned()
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
