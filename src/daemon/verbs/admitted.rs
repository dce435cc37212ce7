// SPDX-License-Identifier: Apache-2.0
//! Does the common part of `create` and of creation hooks: describes, announces and records the
//! container, and asks the plugins.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::rc::Rc;
use std::sync::Arc;

use nri_adaptation::{Creation, Merged};
use serde_json::{Value, json};

use crate::chain::{
    self, ChainError, ChainObserver, ChainedPlugin, Notification, Participants, RuleScope,
};
use crate::clock::now;
use crate::daemon::bundle::Bundle;
use crate::daemon::lifecycle::notify;
use crate::daemon::pods::required::Requirement;
use crate::daemon::pods::{life, promises};
use crate::daemon::request::VerbRequest;
use crate::daemon::request::describe::{self, Description};
use crate::daemon::request::record;
use crate::daemon::resources::{target, updates};
use crate::daemon::shared::{Daemon, messages};
use crate::daemon::verbs::host_facts::{self, Written};
use crate::engine::Role;
use crate::error::{Error, Result, quoted};
use crate::host::Point;
use crate::link::Attached;
use crate::plugin::json::show;
use crate::plugin::{Event, api};
use crate::resolve::ResourceWriter;
use crate::spec::patch::{PatchError, PatchedSpec, Resolved};
use crate::state::{Container, ContainerKey, Skipped, Wire};

/// A container that is being created: described, announced and recorded.
pub(super) struct Admitted {
    pub(super) daemon: Rc<Daemon>,
    pub(super) key: ContainerKey,
    pub(super) runtime: String,
    pub(super) description: Description,
    pub(super) bundle: Bundle,
    /// The container as the engine requested it, encoded for the record.
    message: Wire,
}

/// The container to create, with the plugins' replies; not written yet.
pub(super) struct Adjusted {
    pub(super) merged: Merged,
    pub(super) patched: PatchedSpec,
    /// The resolved names of the adjustment.
    pub(super) names: Resolved,
}

/// The container to create, not checked yet against what this node has.
struct Edited {
    adjusted: Adjusted,
    container: Option<api::Container>,
    missing: Vec<PatchError>,
}

/// Does the steps before plugins are asked: describes the container, checks for the required
/// plugins, announces the pod and records the container. If a step fails, the data so far is
/// remembered for `explain`.
pub(super) async fn admit(
    daemon: &Rc<Daemon>,
    call: &mut VerbRequest,
    mut record: Container,
) -> Result<Admitted> {
    let admitted = describe_and_record(daemon, call, &mut record).await;
    let (bundle, description) = admitted.inspect_err(|error| {
        record.refuse(error.to_string(), now());
        daemon.records.remember(record.clone());
    })?;
    let (key, runtime, message) = (record.key, record.call.runtime, record.message);
    Ok(Admitted { daemon: Rc::clone(daemon), key, runtime, description, bundle, message })
}

async fn describe_and_record(
    daemon: &Rc<Daemon>,
    call: &mut VerbRequest,
    record: &mut Container,
) -> Result<(Bundle, Description)> {
    let dir = call.received.take(Attached::Bundle);
    let dir = dir.ok_or_else(|| Error::new("the request has no bundle descriptor"))?;
    let bundle = Bundle::open(daemon, dir, &call.bundle, &call.question().document).await?;
    let mut description = describe::describe(daemon, call, &bundle.original.bytes).await?;
    record::fill_in(&daemon.records, record, &description);
    if description.role == Role::Sandbox {
        life::sandbox_appears(daemon, &description, record)?;
    } else {
        let mut late = daemon.registry.wait_for_returning().await;
        let promises = promises::of_container(daemon, &description).await;
        let requirement = Requirement::of_container(daemon, &description, &promises);
        requirement.wait().await;
        requirement.settle_promises(record);
        let is_met = requirement.require_connected();
        promises::note(daemon, &record.key, &record.outcome.promises);
        is_met?;
        description.promises = promises;
        life::announce(daemon, &description, record).await?;
        if let Err(missed) = requirement.require_pod_answered() {
            life::end_if_empty(daemon, &description.pod.id).await;
            return Err(missed);
        }
        // Waits again, because a plugin may have disconnected before its successor is
        // synchronized (D41). This must be done before the container is on record: afterwards the
        // successor would know the container from its snapshot, and then receive its creation too.
        late.extend(daemon.registry.wait_for_returning().await);
        note_late(daemon, record, late);
    }
    put_on_record(daemon, &description, record.clone()).await?;
    Ok((bundle, description))
}

/// Records the plugins that did not connect while a create waited for them.
fn note_late(daemon: &Daemon, record: &mut Container, late: Vec<String>) {
    let reason = "was expected but did not connect in time";
    let late = late.into_iter().map(|plugin| Skipped { plugin, reason: reason.to_owned() });
    let late: Vec<Skipped> = late.collect();
    daemon.audit_skipped(&record.key, Event::CreateContainer.name(), &late);
    record.outcome.skipped.extend(late);
}

/// Records the container, because without a record the daemon would never watch it or its pod.
async fn put_on_record(
    daemon: &Rc<Daemon>,
    description: &Description,
    record: Container,
) -> Result<()> {
    let point = daemon.host.point(Point::DaemonRecord);
    let written = point.and_then(|()| daemon.records.put(record));
    if written.is_err() {
        life::end_if_empty(daemon, &description.pod.id).await;
    }
    written.map_err(|error| error.hint("nothing was changed or started"))
}

impl Admitted {
    /// Whether the container is its pod's infrastructure container; plugins receive no events about
    /// it.
    pub(super) fn is_sandbox(&self) -> bool {
        self.description.role == Role::Sandbox
    }

    /// Returns the user of the process, as in the engine's document.
    pub(super) fn engines_user(&self) -> Value {
        let user = self.description.container.user.get_or_default();
        json!({"uid": user.uid, "gid": user.gid, "additionalGids": user.additional_gids})
    }

    /// Returns the path of the runtime that the wrapper resolved.
    pub(super) fn runtime(&self) -> &OsStr {
        OsStr::new(&self.runtime)
    }

    /// Sends CreateContainer through the chain, and applies the replies to the document. From here
    /// on plugins receive the container as the resulting document describes it, even if the node
    /// cannot honour it; if there is no such document, as the engine requested it. The description is
    /// written to disk only with the decision, because a crash ends the request anyway.
    ///
    /// # Errors
    /// Fails with the plugin that refused or is missing, the conflict between two plugins, or the injection or
    /// adjustment that cannot be applied in general or on this node.
    pub(super) async fn adjust(&self, writer: ResourceWriter) -> Result<Adjusted> {
        let asked = self.ask_and_edit(writer).await;
        let written = asked.as_ref().ok().and_then(|edited| edited.container.as_ref());
        self.describe(written);
        let Edited { adjusted, container: _, missing } = asked?;
        let Adjusted { merged, patched, names } = &adjusted;
        let engines = &self.bundle.original.bytes;
        let document = match writer {
            ResourceWriter::Runtime => patched.bytes.as_ref().unwrap_or(engines),
            ResourceWriter::Daemon => engines,
        };
        let is_there = missing.into_iter().next().map_or(Ok(()), Err);
        is_there
            .and_then(|()| host_facts::check_node(&self.daemon.config(), merged, names, document))
            .map_err(|error| blame(merged, &error))?;
        Ok(adjusted)
    }

    /// Sets the container that plugins receive from now on; `None` means the engine's.
    pub(super) fn describe(&self, container: Option<&api::Container>) {
        let message = container.map_or_else(|| self.message.clone(), messages::to_wire);
        self.daemon.records.change_in_memory(&self.key, |record| record.message = message);
    }

    async fn ask_and_edit(&self, writer: ResourceWriter) -> Result<Edited> {
        let Self { daemon, key, bundle, .. } = self;
        let merged = self.ask(writer).await?;
        let names =
            host_facts::resolve_for_runtime(daemon, &key.id, self.runtime(), &merged, writer).await;
        let (names, missing) = names.map_err(|error| blame(&merged, &error))?;
        let facts = host_facts::host_facts(daemon, &merged, names).await?;
        let Written { patched, container } =
            host_facts::patch(&bundle.original.bytes, &merged, &facts)
                .await
                .map_err(|error| blame(&merged, &error))?;
        let adjusted = Adjusted { merged, patched, names: facts.names };
        Ok(Edited { adjusted, container, missing })
    }

    /// Sends CreateContainer through the chain.
    async fn ask(&self, writer: ResourceWriter) -> Result<Merged> {
        let Self { daemon, key, description, .. } = self;
        let pod = record::known_pod(&daemon.records, description);
        let container = Arc::clone(&description.container);
        let creation = Creation::new(pod.clone(), api::Container::clone(&container));
        let notification = Notification::new(Event::CreateContainer, pod, Some(container));
        let (engine, is_doubtful) = (description.engine.name(), description.is_doubtful);
        let notification = notification.below(&key.root).of_engine(engine, is_doubtful);
        let (rules, ruled) = (daemon.registry.rules(), notification.ruled_pod());
        let hidden_from = daemon.registry.hidden_from(&ruled);
        let hidden: Vec<String> = hidden_from.iter().map(|hidden| hidden.plugin.clone()).collect();
        daemon.records.change_in_memory(key, |record| record.outcome.hidden_from = hidden_from);
        let injections =
            self.choose_injections(&notification.pod, (&rules, &ruled), writer).await?;
        // Checked in the step that selects the plugins to ask, because a plugin may have disconnected
        // since the last check.
        let requirement = Requirement::of_container(daemon, description, &description.promises);
        requirement.require_connected()?;
        let mut registered = daemon.registry.participants();
        registered.retain(|chained| rules.hidden_by(chained.id(), &ruled).is_none());
        let pods = target::KnownPods { daemon, subject: Some(key) };
        let scope = RuleScope { rules: &rules, subject: Some((&key.id, &ruled)), pods: &pods };
        let subscribers = daemon.registry.record_and_select(&notification);
        let recorded = daemon.registry.recorders.last();
        let builtin = match daemon.is_bystander() {
            true => Rc::default(),
            false => daemon.registry.builtin(),
        };
        let participants = Participants {
            subscribers: &subscribers,
            registered: &registered,
            builtin: &builtin,
            scope,
            injections: &injections.enforced,
        };
        let answers = recorded.is_some().then(RefCell::default);
        let notes = RecordNotes { daemon, key, silent: RefCell::default(), answers };
        let asked = chain::create(&participants, creation, &notes).await;
        daemon.registry.forget_busy(&subscribers, &notification);
        let asked = asked.and_then(|merged| {
            requirement
                .require_answers(&notes.silent.borrow())
                .map(|()| merged)
                .map_err(|failure| ChainError { failure, asked: subscribers.len() })
        });
        let failure = asked.as_ref().err().map(|stopped| stopped.failure.text.as_str());
        self.record_decision(recorded, &registered, &hidden, notes.answers.as_ref(), failure);
        let ChainError { failure, asked } = match asked {
            Ok(merged) => {
                self.note_injections(&injections, &merged);
                return Ok(merged);
            }
            Err(stopped) => stopped,
        };
        daemon.registry.forget_unasked(&subscribers[asked.min(subscribers.len())..], &notification);
        if let Some(note) = &failure.against {
            daemon.report.metrics.plugins().count_rule(&note.rule, "refused");
        }
        let hint = format!("the bundle is unchanged; see: nri-runc nri explain {}", key.id);
        Err(failure.into_error().hint(hint))
    }

    /// Adds the decision to the recordings: a comparison of configurations uses it (D62).
    fn record_decision(
        &self,
        request: Option<u64>,
        registered: &[Rc<ChainedPlugin>],
        hidden: &[String],
        answers: Option<&RefCell<Vec<Value>>>,
        failure: Option<&str>,
    ) {
        let (Some(request), Some(answers)) = (request, answers) else { return };
        let Self { daemon, description, .. } = self;
        let connected: Vec<&str> = registered.iter().map(|chained| chained.id()).collect();
        let store = daemon.records.read();
        let pod = store.pod(&description.pod.id);
        let decision = json!({
            "evidence": description.engine.evidence(),
            "connected": connected,
            "hidden": hidden,
            "allocations": pod.and_then(|pod| pod.allocations.as_ref()),
            "answers": answers.take(),
            "refused": failure,
        });
        drop(store);
        daemon.registry.recorders.record_decision(request, decision);
    }

    /// Records the fields that plugins set but this version does not know (D23).
    pub(super) fn note_unknown(&self, merged: &Merged) {
        let skipped: Vec<Skipped> =
            merged.unknown.iter().cloned().map(updates::unknown_field).collect();
        self.daemon.audit_skipped(&self.key, Event::CreateContainer.name(), &skipped);
        self.daemon
            .records
            .change_in_memory(&self.key, |record| record.outcome.skipped.extend(skipped));
    }

    /// Sends PostCreateContainer and StartContainer for `run` and `restore`: every event that a
    /// plugin may refuse comes before the wrapper becomes the runtime (D5).
    ///
    /// # Errors
    /// Fails with the plugin that refused the start.
    pub(super) async fn before_start(&self) -> Result<()> {
        notify::notify(&self.daemon, Event::PostCreateContainer, &self.key).await;
        notify::ask_to_start(&self.daemon, &self.key, "nothing was started").await
    }
}

/// Returns the error of an adjustment that cannot be applied, with the plugin that set the field.
pub(super) fn blame(merged: &Merged, error: &PatchError) -> Error {
    let plugin = error.field().and_then(|field| merged.plugin_behind(field));
    let what = quoted(&match &plugin {
        Some(plugin) => format!("{plugin}: {error}"),
        None => error.to_string(),
    });
    let error_line = Error::new(what).hint("the bundle is unchanged");
    error_line.by(plugin.unwrap_or_default()).about(error.field().unwrap_or_default())
}

/// Writes the chain's progress to the container's record.
struct RecordNotes<'a> {
    daemon: &'a Daemon,
    key: &'a ContainerKey,
    /// The skipped plugins, and the reasons.
    silent: RefCell<Vec<Skipped>>,
    /// The responses for a recording, if there is a recording.
    answers: Option<RefCell<Vec<Value>>>,
}

impl ChainObserver for RecordNotes<'_> {
    /// Stores the container with the changes so far, for a plugin that registers now (D15). Not
    /// written to disk, because a crash ends the request anyway.
    fn container_changed(&self, so_far: &mut Creation) {
        let view = messages::encoded(&so_far.encode_container().unwrap_or_default());
        self.daemon.records.change_in_memory(self.key, |record| record.message = view);
    }

    fn answered(&self, plugin: &str, answer: &api::CreateContainerResponse) {
        if let Some(answers) = &self.answers {
            answers.borrow_mut().push(json!({"plugin": plugin, "reply": show(answer)}));
        }
    }

    fn skipped(&self, plugin: &str, why: &str) {
        if let Some(answers) = &self.answers {
            answers.borrow_mut().push(json!({"plugin": plugin, "skipped": why}));
        }
        let skipped = Skipped { plugin: plugin.to_owned(), reason: why.to_owned() };
        self.silent.borrow_mut().push(skipped.clone());
        let event = Event::CreateContainer.name();
        self.daemon.audit_skipped(self.key, event, std::slice::from_ref(&skipped));
        self.daemon
            .records
            .change_in_memory(self.key, |record| record.outcome.skipped.push(skipped));
    }
}
