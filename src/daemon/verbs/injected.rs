// SPDX-License-Identifier: Apache-2.0
//! Chooses the operator's injections for a container that is being created, tries each injection that may not fit this
//! node or this document, and records failures. `chain` merges the enforced injections.

use std::sync::Arc;

use nri_adaptation::{Creation, Merged, Rights};
use tracing::warn;

use crate::audit::{AuditAction, AuditEntry};
use crate::clock::now;
use crate::daemon::verbs::admitted::Admitted;
use crate::daemon::verbs::{hook, host_facts};
use crate::error::{Error, Result, quoted};
use crate::inject::{Injected, Injection};
use crate::plugin::{Event, api};
use crate::resolve::ResourceWriter;
use crate::rules::{RuledPod, Rules};
use crate::spec::patch::PatchError;
use crate::state::{GaveWay, Skipped, WouldInject};

/// The injections for one container.
#[derive(Default)]
pub(super) struct ChosenInjections {
    /// The injections that are merged with the plugins' responses, in order.
    pub(super) enforced: Vec<Injected>,
    /// The injections in audit mode, each with its ID, the fields that it alone would set, and
    /// whether it is merged like a plugin's response (`when = "always"`).
    audited: Vec<(String, Vec<String>, bool)>,
}

impl Admitted {
    /// Chooses the injections for this container.
    ///
    /// # Errors
    /// Fails with the first impossible injection that is configured to refuse the container.
    pub(super) async fn choose_injections(
        &self,
        pod: &api::PodSandbox,
        (rules, ruled): (&Rules, &RuledPod),
        writer: ResourceWriter,
    ) -> Result<ChosenInjections> {
        let mut chosen = ChosenInjections::default();
        let injections = self.daemon.registry.injections();
        let image = self.description.container.image.as_ref().map(|image| image.name.as_str());
        for (injection, doubt) in injections.for_container(rules, ruled, image) {
            let prepared = match doubt {
                Some(doubt) => Err(doubt),
                None => self.prepare(&injection, pod, writer).await,
            };
            match prepared {
                Ok((injected, fields)) if injection.is_audit() => {
                    chosen.audited.push((injected.id, fields, injected.is_always));
                }
                Ok((injected, _)) => chosen.enforced.push(injected),
                Err(why) => self.note_failed(&injection, &why)?,
            }
        }
        Ok(chosen)
    }

    /// Refuses the container for an impossible injection, or leaves the injection out.
    fn note_failed(&self, injection: &Injection, why: &str) -> Result<()> {
        let Self { daemon, key, .. } = self;
        let (id, why) = (&injection.id, quoted(why));
        if injection.section.refuses() {
            daemon.report.metrics.plugins().count_injection(&injection.section.name, "refused");
            let hint = format!("the bundle is unchanged; see: nri-runc nri explain {}", key.id);
            let error = Error::new(format!("{id} cannot be injected: {why}")).by(id.clone());
            return Err(error.hint(hint));
        }
        daemon.report.metrics.plugins().count_injection(&injection.section.name, "skipped");
        warn!("{}: {id} was left out: {why}", quoted(&key.id));
        let skipped = Skipped { plugin: id.clone(), reason: format!("was left out: {why}") };
        let event = Event::CreateContainer.name();
        daemon.audit_skipped(key, event, std::slice::from_ref(&skipped));
        daemon.records.change_in_memory(key, |record| record.outcome.skipped.push(skipped));
        Ok(())
    }

    /// Returns the values of an injection. If they may not fit this node and this document (always for a hook), or
    /// the injection is in audit mode, it is first tried alone; only then the names of its fields are returned too.
    async fn prepare(
        &self,
        injection: &Arc<Injection>,
        pod: &api::PodSandbox,
        writer: ResourceWriter,
    ) -> std::result::Result<(Injected, Vec<String>), String> {
        let prepared = if let Some(profile) = &injection.section.seccomp {
            // The seccomp profile may be on a disk that does not respond.
            let injection = Arc::clone(injection);
            self.daemon.off_loop(&profile.display().to_string(), move || injection.prepare()).await
        } else {
            injection.prepare()
        };
        let injected = prepared.map_err(|error| error.why())?;
        let is_certain = !injection.may_fail() && writer == ResourceWriter::Runtime;
        if is_certain && !injection.is_audit() {
            return Ok((injected, Vec::new()));
        }
        let alone = Creation::new(pod.clone(), api::Container::clone(&self.description.container));
        let merged = injected.merge(alone, &Rights::default()).and_then(Creation::settle);
        let merged = merged.map_err(|error| error.to_string())?.finish();
        self.try_alone(&merged, writer).await.map_err(|error| error.to_string())?;
        let fields = merged.owners.to_flat(&self.key.id).into_keys();
        Ok((injected, fields.collect()))
    }

    async fn try_alone(
        &self,
        merged: &Merged,
        writer: ResourceWriter,
    ) -> std::result::Result<(), PatchError> {
        let Self { daemon, key, bundle, .. } = self;
        let names =
            host_facts::resolve_for_runtime(daemon, &key.id, self.runtime(), merged, writer);
        let (names, missing) = names.await?;
        if let Some(missing) = missing.into_iter().next() {
            return Err(missing);
        }
        let engines = &bundle.original.bytes;
        let facts = host_facts::host_facts(daemon, merged, names).await;
        let facts = facts.map_err(|error| {
            let problem = error.why();
            PatchError::Invalid { field: "Mounts".to_owned(), problem }
        })?;
        let written = host_facts::patch(engines, merged, &facts).await?;
        let document = match writer {
            ResourceWriter::Runtime => written.patched.bytes.as_ref().unwrap_or(engines),
            ResourceWriter::Daemon => engines,
        };
        host_facts::check_node(&daemon.config(), merged, &facts.names, document)?;
        match hook::beyond_cgroups(&written.patched).filter(|_| writer == ResourceWriter::Daemon) {
            None => Ok(()),
            Some(change) => {
                let problem = "config.json was already read: make nri-runc the engine's runtime";
                let (field, problem) = (change.nri_field.clone(), problem.to_owned());
                Err(PatchError::Invalid { field, problem })
            }
        }
    }

    /// Records the results of the injections once every plugin has answered.
    pub(super) fn note_injections(&self, chosen: &ChosenInjections, merged: &Merged) {
        let Self { daemon, key, .. } = self;
        let metrics = daemon.report.metrics.plugins();
        let owners = merged.owners.to_flat(&key.id);
        let name = |id: &str| id.split_once(':').map_or(id, |(_, name)| name).to_owned();
        for injected in &chosen.enforced {
            let is_its = |owner: &String| owner.split(',').any(|one| one == injected.id);
            let result = if owners.values().any(is_its) { "applied" } else { "gave_way" };
            metrics.count_injection(&name(&injected.id), result);
        }
        let mut would_inject = Vec::new();
        for (id, fields, is_always) in &chosen.audited {
            metrics.count_injection(&name(id), "would_inject");
            let is_free = |field: &&String| *is_always || !owners.contains_key(*field);
            let (at, event) = (now(), Event::CreateContainer.name());
            for field in fields.iter().filter(is_free) {
                daemon.audit(key, || {
                    AuditEntry::new(AuditAction::WouldInject).at_event(event).by(id).of_field(field)
                });
                let (plugin, field) = (id.clone(), field.clone());
                would_inject.push(WouldInject { at, plugin, field });
            }
        }
        let gave_way = merged.yielded.iter().map(|yielded| GaveWay {
            plugin: yielded.from.clone(),
            field: yielded.field.clone(),
            to: yielded.to.clone().unwrap_or_default(),
        });
        let gave_way: Vec<GaveWay> = gave_way.collect();
        if !gave_way.is_empty() || !would_inject.is_empty() {
            daemon.records.change_in_memory(key, |record| {
                record.outcome.gave_way = gave_way;
                record.outcome.would_inject = would_inject;
            });
        }
    }
}
