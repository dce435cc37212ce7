// SPDX-License-Identifier: Apache-2.0
//! `policy test --pod`: what the rules in force let plugins do with a pod that is known. It reads
//! records and changes nothing.

use serde_json::Value;

use crate::daemon::node::{Node, events};
use crate::rules::report;
use crate::state::Pod;

/// What the rules say about a pod, by ID, by NAMESPACE/NAME, or by a name that one pod has; for the
/// connected plugins, those that the configuration names, and `plugins`.
///
/// # Errors
/// One line if no pod, or several, are meant.
pub(super) fn policy(node: &Node, wanted: &str, plugins: &Value) -> Result<Value, String> {
    let store = node.records.read();
    let is_named =
        |pod: &&Pod| format!("{}/{}", pod.namespace, pod.name) == wanted || pod.name == wanted;
    let by_id = store.pod(wanted).into_iter();
    let mut found: Vec<&Pod> = by_id.collect();
    if found.is_empty() {
        found = store.pods().filter(is_named).collect();
    }
    let pod = match found.as_slice() {
        [pod] => *pod,
        [] => return Err(format!("no pod {wanted} is known (see: nri-runc nri pods)")),
        several => {
            let ids: Vec<&str> = several.iter().map(|pod| pod.id.as_str()).collect();
            return Err(format!("{wanted} is ambiguous; pods: {}", ids.join(", ")));
        }
    };
    let asked = plugins.as_array().into_iter().flatten().filter_map(Value::as_str);
    let connected = node.registry.connected();
    let ids = connected.iter().map(|plugin| plugin.chained.id());
    let ids = ids.chain(asked.map(ToOwned::to_owned));
    let mut document = report(&node.config(), &node.registry.rules(), &events::ruled_pod(pod), ids);
    document["pod"]["id"] = pod.id.clone().into();
    document["pod"]["name"] = pod.name.clone().into();
    Ok(document)
}
