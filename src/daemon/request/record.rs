// SPDX-License-Identifier: Apache-2.0
//! The first record of a container: the data of the call, the bundle and the engine.

use crate::daemon::request::VerbRequest;
use crate::daemon::request::describe::Description;
use crate::daemon::shared::{Daemon, messages};
use crate::engine::Role;
use crate::error::quoted;
use crate::plugin::{Event, api};
use crate::state::{CompactObject, Container, InFlight, Lifecycle, SCHEMA, Skipped};

/// A new record from the call, the bundle and the engine.
pub(crate) fn new_record(
    daemon: &Daemon,
    call: &VerbRequest,
    description: &Description,
) -> Container {
    let mut record = blank_record(daemon, call);
    fill_in(daemon, &mut record, description);
    record
}

/// Adds the data of the bundle and the engine.
pub(crate) fn fill_in(daemon: &Daemon, record: &mut Container, description: &Description) {
    let pod = known_pod(daemon, description);
    record.is_sandbox = description.role == Role::Sandbox;
    (record.pod, record.pod_name, record.pod_namespace) = (pod.id, pod.name, pod.namespace);
    record.name = description.container.name.clone();
    record.engine = description.engine.name().to_owned();
    record.evidence = description.engine.evidence().to_vec();
    record.message = messages::to_wire(&description.container);
    record.engine_resources = CompactObject::from(&description.resources);
    record.skipped = description.contradictions.iter().map(|what| not_believed(what)).collect();
}

/// A new record from the call alone.
pub(crate) fn blank_record(daemon: &Daemon, call: &VerbRequest) -> Container {
    // USER matters only for the root, which is in the key.
    let variables = call.question().variables.iter().filter(|(name, _)| name != "USER");
    let (verb, pid) = (call.verb().to_owned(), call.question().pid);
    Container {
        schema: SCHEMA,
        boot_id: daemon.records.boot_id(),
        key: call.key.clone(),
        incarnation: daemon.records.next_incarnation(),
        runtime: call.question().runtime.to_string_lossy().into_owned(),
        global_flags: call.global_flags(),
        bundle: call.bundle.to_string_lossy().into_owned(),
        is_sandbox: false,
        pod: String::new(),
        pod_name: String::new(),
        pod_namespace: String::new(),
        name: String::new(),
        state: Lifecycle::Creating,
        pid_file: call.pid_file.as_ref().map(|path| path.to_string_lossy().into_owned()),
        by_hook: call.question().hook.is_some(),
        init_pid: None,
        init_start: None,
        created_at: 0,
        started_at: 0,
        finished_at: 0,
        exit_code: None,
        status_reason: String::new(),
        status_message: String::new(),
        engine: String::new(),
        evidence: Vec::new(),
        variables: variables.map(|(k, v)| (k.clone(), v.to_string_lossy().into_owned())).collect(),
        message: Default::default(),
        engine_resources: Default::default(),
        overlay: Default::default(),
        at_creation: Default::default(),
        owners: Default::default(),
        patched: None,
        changes: Vec::new(),
        changed_behind: Vec::new(),
        process_values: None,
        makes_group: None,
        exec_subject: None,
        refused: Vec::new(),
        refused_at: 0,
        skipped: Vec::new(),
        would_refuse: Vec::new(),
        would_inject: Vec::new(),
        gave_way: Vec::new(),
        exec_changes: Vec::new(),
        promises: Vec::new(),
        repeated: Vec::new(),
        hidden_from: Vec::new(),
        deferred: Vec::new(),
        in_flight: Some(InFlight { verb, pid, executed: false }),
        updating: None,
        deleting: None,
        is_deleted: false,
        made_by: pid,
        is_found: false,
        by_plain_runtime: false,
        unknown: Default::default(),
    }
}

/// A rejected claim about the container's identity, for `explain`.
fn not_believed(what: &str) -> Skipped {
    Skipped { plugin: String::new(), reason: format!("identity: {}", quoted(what)) }
}

/// The pod as plugins know it, else as this call describes it.
pub(crate) fn known_pod(daemon: &Daemon, description: &Description) -> api::PodSandbox {
    let known = daemon.pod_notification(Event::CreateContainer, &description.pod.id);
    known.map_or_else(|| description.pod.clone(), |known| known.pod)
}
