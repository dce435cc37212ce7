// SPDX-License-Identifier: Apache-2.0
//! An unknown engine that writes Kubernetes' annotations: those of containerd's CRI plugin, or
//! kubelet's labels as annotations. The document in the sibling bundle that a container names as its
//! sandbox's is used only if its own annotations call it a sandbox.

use super::{DetectedEngine, Facts, PodDocument, Role, Seen, cri};

pub(super) fn facts(engine: DetectedEngine, seen: Seen<'_>) -> Facts {
    let call = seen.call;
    let mut facts = cri::facts(engine, seen);
    if facts.container.name.is_empty() {
        facts.container.name = call.id.to_owned();
    }
    if facts.role == Role::Sandbox {
        return facts;
    }
    let is_sandbox = match &facts.pod.document {
        PodDocument::Sandbox(bytes) => {
            let theirs = cri::annotations_of(bytes);
            theirs.get(cri::TYPE).is_some_and(|kind| kind == "sandbox")
        }
        PodDocument::Own | PodDocument::Unknown => false,
    };
    if !is_sandbox {
        facts.pod.annotations.clear();
        facts.pod.document =
            if facts.pod.id == call.id { PodDocument::Own } else { PodDocument::Unknown };
    }
    facts
}
