// SPDX-License-Identifier: Apache-2.0
//! Answers `policy test --pod`: what the rules in force permit plugins to do with a known pod. It
//! reads records and changes nothing.

use crate::answers::PolicyAnswer;
use crate::daemon::server::rows;
use crate::daemon::shared::{Daemon, events, messages};
use crate::engine::Allocations;
use crate::error::{Error, Result};
use crate::inject;
use crate::rules::{PromiseFacts, promise_rows, report};
use crate::state::Pod;

/// Returns the rules' decisions about a pod, for the connected plugins, the configured ones, and `plugins`.
/// `wanted` is an ID, NAMESPACE/NAME, a name or an unambiguous prefix of an ID.
///
/// # Errors
/// Fails with one line if `wanted` matches no pod, or several.
pub(super) fn policy(daemon: &Daemon, wanted: &str, plugins: Vec<String>) -> Result<PolicyAnswer> {
    let store = daemon.records.read();
    let is_named =
        |pod: &&Pod| format!("{}/{}", pod.namespace, pod.name) == wanted || pod.name == wanted;
    let is_begun = |pod: &&Pod| !wanted.is_empty() && pod.id.starts_with(wanted);
    let mut found: Vec<&Pod> = store.pod(wanted).into_iter().collect();
    if found.is_empty() {
        found = store.pods().filter(is_named).collect();
    }
    if found.is_empty() {
        found = store.pods().filter(is_begun).collect();
    }
    let pod = match found.as_slice() {
        [pod] => *pod,
        [] => {
            let error = Error::new(format!("no pod matches {wanted}"));
            return Err(error.hint("see: nri-runc nri pods"));
        }
        several => return Err(rows::ambiguous_pods(wanted, several)),
    };
    let connected = daemon.registry.connected();
    let ids = connected.iter().map(|plugin| plugin.id().to_owned()).chain(plugins);
    let (rules, ruled) = (daemon.registry.rules(), events::ruled_pod(pod));
    let mut answer = report(&daemon.config(), &rules, &ruled, ids);
    answer.injections = inject::report(&daemon.registry.injections(), &rules, &ruled, None);
    let message = messages::pod(pod);
    let allocations = pod.allocations.clone().map(Allocations::Listed).unwrap_or_default();
    let facts = PromiseFacts::new(&ruled, &message, &allocations);
    answer.promises = promise_rows(&daemon.config().promises, &facts);
    answer.pod.id.clone_from(&pod.id);
    answer.pod.name.clone_from(&pod.name);
    Ok(answer)
}
