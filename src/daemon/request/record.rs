// SPDX-License-Identifier: Apache-2.0
//! Builds a container's first record from the data of the call, the bundle and the engine.

use crate::daemon::request::VerbRequest;
use crate::daemon::request::describe::Description;
use crate::daemon::shared::{Records, events, messages};
use crate::engine::Role;
use crate::error::quoted;
use crate::plugin::{Event, api};
use crate::state::{
    CompactObject, Container, InFlight, Lifecycle, Pending, RuntimeCall, SCHEMA, Skipped,
};

/// Creates a new record from the call, the bundle and the engine.
pub(crate) fn new_record(
    records: &Records,
    call: &VerbRequest,
    description: &Description,
) -> Container {
    let mut record = blank_record(records, call);
    fill_in(records, &mut record, description);
    record
}

/// Adds the data of the bundle and the engine.
pub(crate) fn fill_in(records: &Records, record: &mut Container, description: &Description) {
    let pod = known_pod(records, description);
    record.is_sandbox = description.role == Role::Sandbox;
    (record.pod, record.pod_name, record.pod_namespace) = (pod.id, pod.name, pod.namespace);
    record.name = description.container.name.clone();
    record.engine = description.engine.kind.into();
    record.evidence = description.engine.evidence().to_vec();
    record.message = messages::to_wire(&description.container);
    record.resources.of_engine = CompactObject::from(&description.resources);
    record.outcome.skipped =
        description.contradictions.iter().map(|what| not_believed(what)).collect();
}

/// Creates a new record from the call alone.
pub(crate) fn blank_record(records: &Records, call: &VerbRequest) -> Container {
    // USER matters only for the root, which is in the key.
    let variables = call.question().variables.iter().filter(|(name, _)| name != "USER");
    let (verb, pid) = (call.verb().to_owned(), call.question().pid);
    Container {
        schema: SCHEMA,
        boot_id: records.boot_id(),
        key: call.key.clone(),
        incarnation: records.next_incarnation(),
        state: Lifecycle::Creating,
        call: RuntimeCall {
            runtime: call.question().runtime.to_string_lossy().into_owned(),
            global_flags: call.global_flags(),
            bundle: call.bundle.to_string_lossy().into_owned(),
            pid_file: call.pid_file.as_ref().map(|path| path.to_string_lossy().into_owned()),
            variables: variables
                .map(|(k, v)| (k.clone(), v.to_string_lossy().into_owned()))
                .collect(),
            made_by: pid,
        },
        pending: Pending {
            in_flight: Some(InFlight { verb, pid, executed: false }),
            ..Pending::default()
        },
        by_hook: call.question().hook.is_some(),
        ..Container::default()
    }
}

/// Returns a rejected claim about the container's identity, for `explain`.
fn not_believed(what: &str) -> Skipped {
    Skipped { plugin: String::new(), reason: format!("identity: {}", quoted(what)) }
}

/// Returns the pod as plugins know it, else as this call describes it.
pub(crate) fn known_pod(records: &Records, description: &Description) -> api::PodSandbox {
    let known = events::of_pod(&records.read(), Event::CreateContainer, &description.pod.id);
    known.map_or_else(|| description.pod.clone(), |known| known.pod)
}
