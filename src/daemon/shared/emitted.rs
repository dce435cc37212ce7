// SPDX-License-Identifier: Apache-2.0
//! Sends events to the readers of `nri events`, with their pod and container. Nothing waits for a reader.

use std::collections::BTreeSet;

use crate::audit::{AuditAction, AuditEntry, AuditSubject};
use crate::daemon::shared::{Daemon, messages};
use crate::state::{Change, ContainerKey};
use crate::stream::{EventKind, NodeEvent};

impl Daemon {
    /// Sends an event about a container, which may be refused or gone.
    pub(crate) fn emit(&self, key: &ContainerKey, event: NodeEvent) {
        let subject = self.subject_of(key);
        self.emit_about(subject, event);
    }

    pub(crate) fn emit_pod(&self, id: &str, event: NodeEvent) {
        let subject = self.subject_of_pod(id);
        self.emit_about(subject, event);
    }

    /// Writes the changes of an update by plugins to the audit log; sends an event if a value changed.
    pub(crate) fn note_update(&self, key: &ContainerKey, changes: &[Change]) {
        let new = changes.iter().filter(|change| change.before != change.after);
        let plugins: BTreeSet<&str> = new.map(|change| change.plugin.as_str()).collect();
        if !plugins.is_empty() {
            let plugins = Vec::from_iter(plugins).join(",");
            self.emit(key, NodeEvent::new(EventKind::Updated).by(&plugins));
        }
        self.audit_applied(key, changes);
    }

    /// Sends the event of an audit entry, if that kind has one, even if the entry itself is not written.
    pub(super) fn emit_audited(&self, entry: &AuditEntry) {
        let kind = match entry.action {
            AuditAction::Refused => EventKind::Refused,
            AuditAction::Evicted => EventKind::Evicted,
            AuditAction::Connected => EventKind::Connected,
            AuditAction::Disconnected => EventKind::Disconnected,
            AuditAction::Applied
            | AuditAction::WouldRefuse
            | AuditAction::WouldInject
            | AuditAction::Skipped
            | AuditAction::Exec
            | AuditAction::Rejected
            | AuditAction::Lost => return,
        };
        let event = NodeEvent {
            at: entry.at,
            event: entry.event.clone(),
            rule: entry.rule.clone(),
            field: entry.field.clone(),
            reason: entry.reason.clone(),
            ..NodeEvent::new(kind).by(&entry.plugin)
        };
        self.emit_about(entry.subject.clone(), event);
    }

    fn emit_about(&self, subject: AuditSubject, event: NodeEvent) {
        let (labels, pod_uid) = {
            let store = self.records.read();
            let pod = store.newest_pod(&subject.pod_id);
            let uid = pod.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default();
            (pod.map(|pod| messages::pod_labels(&pod)), uid)
        };
        self.stream.push(NodeEvent { labels, pod_uid, ..event.about(subject) });
    }
}
