// SPDX-License-Identifier: Apache-2.0
//! iSulad: the annotations of containerd's CRI plugin, with gaps. Only the sandbox's document has
//! the UID; neither document has user labels. Bundles are in `/var/lib/isulad/engines/RUNTIME/ID`,
//! where RUNTIME is the handler.

use super::{DetectedEngine, Facts, Seen, cri};

/// An annotation that iSulad writes on every container.
pub(super) const CGROUP_DIR: &str = "cgroup.dir";
/// An annotation that iSulad writes on sandboxes.
pub(super) const ATTEMPT: &str = "io.kubernetes.cri.sandbox-attempt";

/// Prefixes of annotations that iSulad adds to a pod. iSulad's own NRI sends only the annotations
/// of the request.
const OWN: [&str; 10] = [
    "cri.sandbox.isulad.checkpoint",
    "io.kubernetes.cri.",
    "cgroup.dir",
    "files.limit",
    "host.network.mode",
    "log.console.",
    "native.umask",
    "proc.oom_score_adj",
    "rootfs.mount",
    "system.container",
];

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let mut facts = cri::facts(engine, seen);
    let is_own = |key: &str| OWN.iter().any(|own| key.starts_with(own));
    facts.pod.annotations.retain(|key, _| !is_own(key));
    let handler = seen.call.bundle.split_once("/isulad/engines/").map(|(_, rest)| rest);
    let handler = handler.and_then(|rest| rest.split_once('/')).map(|(runtime, _)| runtime);
    facts.pod.runtime_handler = handler.unwrap_or_default().to_owned();
    facts
}
