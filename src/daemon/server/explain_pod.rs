// SPDX-License-Identifier: Apache-2.0
//! Answers `explain` for a pod: whether it was refused, which plugins were skipped, and its
//! containers. It reads the records of existing and removed pods, and changes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::answers::{MemberRow, PodExplained, PodKind, SandboxState};
use crate::daemon::server::{explain::searched, recent, rows};
use crate::daemon::shared::Report;
use crate::error::Result;
use crate::state::{Container, Pod, Store};

/// Explains the pod of this ID; if no container matches, also the one that `wanted` names otherwise (`pods_meant`).
/// `None` if no pod matches; fails if several do.
pub(crate) fn explain(
    report: &Report,
    store: &Store,
    wanted: &str,
    is_no_container: bool,
) -> Option<Result<PodExplained>> {
    if let Some(pod) = store.newest_pod(wanted) {
        return Some(Ok(explained(report, store, &pod)));
    }
    if !is_no_container {
        return None;
    }
    match rows::pods_meant(store.pods(), wanted).as_slice() {
        [] => {
            // An engine creates a new pod for each attempt, so the last removed pod of the name is meant.
            let gone: Vec<_> = store.gone_pods(searched(wanted)).rev().collect();
            let last = rows::pods_meant(gone.iter().map(Cow::as_ref), wanted).into_iter().next();
            last.map(|pod| Ok(explained(report, store, pod)))
        }
        [pod] => Some(Ok(explained(report, store, pod))),
        several => Some(Err(rows::ambiguous_pods(wanted, several))),
    }
}

fn explained(report: &Report, store: &Store, pod: &Pod) -> PodExplained {
    let living = store.of_pod(&pod.id).map(Cow::Borrowed);
    let members = living.chain(store.gone(&pod.id).filter(|container| container.pod == pod.id));
    let row = |container: Cow<'_, Container>| MemberRow {
        id: container.key.id.clone(),
        name: container.name.clone(),
        state: container.state.into(),
        exit_code: container.process.exit_code,
        refused: container.outcome.refused.clone(),
    };
    let is_gone = store.pod(&pod.id).is_none();
    let known = pod.clone();
    PodExplained {
        kind: PodKind::Pod,
        state: if is_gone { SandboxState::Removed } else { pod.state.into() },
        found: false,
        owners: BTreeMap::new(),
        changes: Vec::new(),
        times: recent::times(report, &pod.id, ""),
        promises: rows::promises(&pod.promises),
        containers: members.filter(|member| !member.is_sandbox).map(row).collect(),
        id: known.id,
        pod: known.name.clone(),
        name: known.name,
        namespace: known.namespace,
        uid: known.uid,
        engine: known.engine.into(),
        evidence: known.evidence,
        refused: known.refused,
        skipped: known.skipped,
        hidden_from: known.hidden_from,
    }
}
