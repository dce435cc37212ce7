// SPDX-License-Identifier: Apache-2.0
//! `explain` for a pod: whether it was refused, which plugins were skipped, and its containers. It
//! reads records, also of removed pods, and changes nothing.

use std::collections::BTreeMap;

use crate::answers::{MemberRow, PodExplained, PodKind, SandboxState};
use crate::daemon::server::{recent, rows};
use crate::daemon::shared::Daemon;
use crate::state::{Container, Pod, Store};

/// The pod that matches: by its ID; if no container matches, also by a prefix of the ID, by
/// namespace/name, or by name if it has no namespace. `None` if no pod matches.
pub(crate) fn explain(
    daemon: &Daemon,
    store: &Store,
    wanted: &str,
    is_no_container: bool,
) -> Option<Result<PodExplained, String>> {
    if let Some(pod) = newest(store, wanted) {
        return Some(Ok(explained(daemon, store, pod)));
    }
    if !is_no_container || wanted.is_empty() {
        return None;
    }
    let is_named = |pod: &&Pod| {
        pod.id.starts_with(wanted)
            || wanted == format!("{}/{}", pod.namespace, pod.name)
            || pod.namespace.is_empty() && wanted == pod.name
    };
    let mut found: Vec<&Pod> = store.pods().filter(is_named).collect();
    if found.is_empty() {
        // The last of several removed pods of one name: an engine creates one for each attempt.
        found = store.gone_pods().rev().find(is_named).into_iter().collect();
    }
    match found.as_slice() {
        [] => None,
        [pod] => Some(Ok(explained(daemon, store, pod))),
        several => Some(Err(rows::ambiguous_pods(wanted, several))),
    }
}

/// The pod of this ID, or the last removed one.
pub(crate) fn newest<'s>(store: &'s Store, id: &str) -> Option<&'s Pod> {
    store.pod(id).or_else(|| store.gone_pods().rev().find(|pod| pod.id == id))
}

fn explained(daemon: &Daemon, store: &Store, pod: &Pod) -> PodExplained {
    let living = store.of_pod(&pod.id);
    let members = living.chain(store.gone().filter(|container| container.pod == pod.id));
    let row = |container: &Container| MemberRow {
        id: container.key.id.clone(),
        name: container.name.clone(),
        state: container.state.into(),
        exit_code: container.exit_code,
        refused: container.refused.clone(),
    };
    let is_gone = store.pod(&pod.id).is_none();
    let known = pod.clone();
    PodExplained {
        kind: PodKind::Pod,
        state: if is_gone { SandboxState::Removed } else { pod.state.into() },
        found: false,
        owners: BTreeMap::new(),
        changes: Vec::new(),
        times: recent::times(daemon, &pod.id, ""),
        promises: rows::promises(&pod.promises),
        containers: members.filter(|member| !member.is_sandbox).map(row).collect(),
        id: known.id,
        pod: known.name.clone(),
        name: known.name,
        namespace: known.namespace,
        uid: known.uid,
        engine: known.engine,
        evidence: known.evidence,
        refused: known.refused,
        skipped: known.skipped,
        hidden_from: known.hidden_from,
    }
}
