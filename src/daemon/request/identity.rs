// SPDX-License-Identifier: Apache-2.0
//! Claims about a container's identity, checked against the configuration and the known pods. A
//! claim that the engine contradicts is rejected, and the operator is warned.

use crate::engine::Facts;
use crate::limits;

use crate::daemon::shared::Daemon;

/// Drops claims that an untrusted source must not make: an exempt namespace, a pod of Kubernetes or
/// of another engine, an exempt container. A pod of an engine without namespaces gets the default
/// one (D47), which exempts none. Returns whether the pod is exempt.
pub(crate) fn judge(daemon: &Daemon, facts: &mut Facts) -> bool {
    let config = &daemon.config();
    let is_exempt = facts.judge(config.exemptions());
    let store = daemon.records.read();
    let known = store.pod(&facts.pod.id).filter(|_| facts.names_pod);
    if let Some(pod) = known.filter(|pod| pod.engine != facts.engine.name()) {
        facts.leave_pod(&format!("is a pod of {}", pod.engine));
    }
    facts.name_namespace(&config.default_namespace);
    is_exempt
}

/// Warns of claims that the engine contradicts. The pod's author chooses how many there are, so the
/// line lists the first ones and counts the others.
pub(crate) fn note(daemon: &Daemon, id: &str, facts: &mut Facts) {
    limits::list_first(&mut facts.contradictions, limits::CONTRADICTIONS);
    for what in &facts.contradictions {
        daemon.report.note_contradiction(facts.engine.name(), id, what);
    }
}
