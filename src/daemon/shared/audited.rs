// SPDX-License-Identifier: Apache-2.0
//! Makes entries of the audit log, with their pod and container, and queues them (`audit/writer.rs` writes); those
//! about refused commands, evictions, and plugins that connect or disconnect become events too. Without an audit log,
//! no entry of applied or skipped values is built.

use crate::audit::{AuditAction, AuditEntry, AuditSubject, AuditValues};
use crate::daemon::shared::Daemon;
use crate::error::Error;
use crate::state::{Change, Container, ContainerKey, Pod, Skipped};
use std::borrow::Cow;

impl Daemon {
    /// Queues an entry about a container, which may be refused or gone.
    pub(crate) fn audit(&self, key: &ContainerKey, entry: impl FnOnce() -> AuditEntry) {
        let entry = AuditEntry { subject: self.subject_of(key), ..entry() };
        self.record(entry);
    }

    pub(crate) fn audit_pod(&self, id: &str, entry: impl FnOnce() -> AuditEntry) {
        let entry = AuditEntry { subject: self.subject_of_pod(id), ..entry() };
        self.record(entry);
    }

    /// Queues an entry about a plugin that connected, disconnected or was refused.
    pub(crate) fn audit_plugin(&self, action: AuditAction, plugin: &str, reason: &str) {
        self.record(AuditEntry::new(action).by(plugin).because(reason));
    }

    fn record(&self, entry: AuditEntry) {
        self.emit_audited(&entry);
        if self.report.audit.is_on() {
            self.report.record_audit(entry);
        }
    }

    /// Queues an entry for each change whose value differs from the previous one.
    pub(crate) fn audit_applied(&self, key: &ContainerKey, changes: &[Change]) {
        if !self.report.audit.is_on() {
            return;
        }
        let subject = self.subject_of(key);
        for change in changes.iter().filter(|change| change.before != change.after) {
            let entry = AuditEntry::new(AuditAction::Applied).at_event(&change.event);
            let entry = entry.by(&change.plugin).of_field(&change.field);
            self.report.record_audit(AuditEntry {
                values: Some(AuditValues { from: change.before.clone(), to: change.after.clone() }),
                subject: subject.clone(),
                ..entry
            });
        }
    }

    /// Queues an entry for each skipped plugin or value.
    pub(crate) fn audit_skipped(&self, key: &ContainerKey, event: &str, skipped: &[Skipped]) {
        if !self.report.audit.is_on() {
            return;
        }
        for Skipped { plugin, reason } in skipped {
            let entry = || AuditEntry::new(AuditAction::Skipped).at_event(event);
            self.audit(key, || entry().by(plugin).because(reason));
        }
    }

    /// Queues an entry about a refused command.
    pub(crate) fn audit_refusal(&self, key: &ContainerKey, verb: &str, error: &Error) {
        self.audit(key, || refusal(verb, error));
    }

    /// Queues an entry about a refused command for a pod.
    pub(crate) fn audit_pod_refusal(&self, id: &str, verb: &str, error: &Error) {
        self.audit_pod(id, || refusal(verb, error));
    }

    /// Returns the pod of an entry or event.
    pub(super) fn subject_of_pod(&self, id: &str) -> AuditSubject {
        let store = self.records.read();
        let pod = store.pod(id).map(of_pod);
        pod.unwrap_or_else(|| AuditSubject { pod_id: id.to_owned(), ..AuditSubject::default() })
    }

    /// Returns the container of an entry or event, and its pod.
    pub(super) fn subject_of(&self, key: &ContainerKey) -> AuditSubject {
        let store = self.records.read();
        let living = store.container(key).map(Cow::Borrowed);
        let Some(container) = living.or_else(|| store.newest_gone(key, |_| true)) else {
            return AuditSubject { container_id: key.id.clone(), ..AuditSubject::default() };
        };
        of_container(&container, store.pod(&container.pod))
    }
}

fn refusal(verb: &str, error: &Error) -> AuditEntry {
    let entry = AuditEntry::new(AuditAction::Refused).at_event(verb).by(error.plugin());
    let rule = error.rule().to_owned();
    AuditEntry { rule, ..entry.of_field(error.field()).because(&error.why()) }
}

fn of_pod(pod: &Pod) -> AuditSubject {
    AuditSubject {
        engine: pod.engine.to_string(),
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        pod_id: pod.id.clone(),
        ..AuditSubject::default()
    }
}

/// Returns the subject of a container. If its pod's record is gone, the container's record has the names.
fn of_container(container: &Container, pod: Option<&Pod>) -> AuditSubject {
    AuditSubject {
        engine: container.engine.to_string(),
        namespace: pod.map_or(&container.pod_namespace, |pod| &pod.namespace).clone(),
        pod: pod.map_or(&container.pod_name, |pod| &pod.name).clone(),
        pod_id: container.pod.clone(),
        container: container.name.clone(),
        container_id: container.key.id.clone(),
    }
}
