// SPDX-License-Identifier: Apache-2.0
//! Claims about who a container is, held against the configuration and the pods that are known.
//! What the engine contradicts is not believed, and the operator reads of it.

use crate::engine::Facts;
use crate::engine::identity::Exemptions;

use crate::daemon::node::Node;

/// Takes back what keys of our own and images may not say: they name no exempt namespace, no pod
/// of Kubernetes or of another engine, and excuse nobody. Tells whether the pod is exempt.
pub(crate) fn judge(node: &Node, facts: &mut Facts) -> bool {
    let config = &node.config;
    let is_exempt = facts.judge(Exemptions {
        namespaces: &config.exempt_namespaces,
        by_annotation: config.exempt_by_annotation,
        annotation: &config.default_validator.tolerate_missing_plugins_annotation,
    });
    let store = node.records.read();
    let known = store.pod(&facts.pod.id).filter(|_| facts.names_pod);
    if let Some(pod) = known.filter(|pod| pod.engine != facts.engine.name()) {
        facts.leave_pod(&format!("is a pod of {}", pod.engine));
    }
    is_exempt
}

/// Warns of claims that the engine contradicts.
pub(crate) fn note(node: &Node, id: &str, facts: &Facts) {
    for what in &facts.contradictions {
        node.report.note_contradiction(facts.engine.name(), id, what);
    }
}
