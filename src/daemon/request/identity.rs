// SPDX-License-Identifier: Apache-2.0
//! Claims about who a container is, held against the configuration and the pods that are known.
//! What the engine contradicts is not believed, and the operator reads of it.

use tracing::warn;

use crate::engine::Facts;
use crate::engine::identity::Exemptions;
use crate::error::quoted;

use crate::daemon::node::{Node, now};

/// How many contradictions `status` shows.
const LATEST: usize = 100;

/// A claim that was not believed.
#[derive(Debug, Clone)]
pub(crate) struct Contradiction {
    pub(crate) at: i64,
    pub(crate) id: String,
    pub(crate) engine: &'static str,
    pub(crate) what: String,
}

/// Takes back what keys of our own and images may not say: they name no exempt namespace, no pod
/// of Kubernetes or of another engine, and excuse nobody. Tells whether the pod is exempt.
pub(crate) fn judge(node: &Node, facts: &mut Facts) -> bool {
    let config = &node.config;
    let is_exempt = facts.judge(Exemptions {
        namespaces: &config.exempt_namespaces,
        by_annotation: config.exempt_by_annotation,
        annotation: &config.default_validator.tolerate_missing_plugins_annotation,
    });
    let store = node.store.borrow();
    let known = store.pod(&facts.pod.id).filter(|_| facts.names_pod);
    if let Some(pod) = known.filter(|pod| pod.engine != facts.engine.name()) {
        facts.leave_pod(&format!("is a pod of {}", pod.engine));
    }
    is_exempt
}

/// Warns of what was not believed, once for each container and claim among the latest.
pub(crate) fn note(node: &Node, id: &str, facts: &Facts) {
    let mut latest = node.contradictions.borrow_mut();
    for what in &facts.contradictions {
        if latest.iter().any(|known| known.id == id && known.what == *what) {
            continue;
        }
        let engine = facts.engine.name();
        warn!("{engine}: {}: identity: {}", quoted(id), quoted(what));
        if latest.len() >= LATEST {
            latest.pop_front();
        }
        let (id, what) = (id.to_owned(), what.clone());
        latest.push_back(Contradiction { at: now(), id, engine, what });
    }
}
