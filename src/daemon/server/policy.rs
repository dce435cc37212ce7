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

/// Returns the rules' decisions about a pod, for the connected plugins, the configured ones, and `plugins`.
/// `wanted` names one pod (`pods_meant`).
///
/// # Errors
/// Fails with one line if `wanted` matches no pod, or several.
pub(super) fn policy(daemon: &Daemon, wanted: &str, plugins: Vec<String>) -> Result<PolicyAnswer> {
    let store = daemon.records.read();
    let pod = match rows::pods_meant(store.pods(), wanted).as_slice() {
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
