// SPDX-License-Identifier: Apache-2.0
//! Shows operators how their rules changed plugins' requests: in the log, in `explain`, in the audit
//! log and in the metrics. This module decides nothing.

use nri_adaptation::{DroppedRequest, RuleNote};
use tracing::warn;

use crate::audit::{AuditAction, AuditEntry};
use crate::clock::now;
use crate::daemon::resources::{target, updates};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::few_lines::FewOf;
use crate::error::quoted;
use crate::limits;
use crate::state::{ContainerKey, RuleHit, Skipped};

/// Records changes that a rule in audit mode would refuse, each once per container.
pub(crate) fn note_hits(
    daemon: &Daemon,
    notes: &[RuleNote],
    event: &str,
    subject: Option<&ContainerKey>,
) {
    for note in notes {
        daemon.report.metrics.plugins().count_rule(&note.rule, "would_refuse");
        let Ok(key) = target::find(&daemon.records, &note.container, subject) else { continue };
        let is_known = |hit: &RuleHit| {
            (&hit.plugin, hit.field.as_str(), &hit.rule) == (&note.plugin, note.field(), &note.rule)
        };
        let record = daemon.container(&key);
        let hits = record
            .as_ref()
            .map(|record| record.outcome.would_refuse.as_slice())
            .unwrap_or_default();
        if record.is_none() || hits.len() >= limits::RULE_HITS || hits.iter().any(is_known) {
            continue;
        }
        if daemon.report.few_lines.admit(FewOf::WouldRefuse, &note.plugin) {
            warn!("{}: a rule in audit mode would refuse it: {note}", quoted(&key.id));
        }
        daemon.audit(&key, || {
            let entry = AuditEntry::new(AuditAction::WouldRefuse).at_event(event);
            AuditEntry { rule: note.rule.clone(), ..entry.by(&note.plugin).of_field(note.field()) }
        });
        let hit = RuleHit {
            at: now(),
            event: event.to_owned(),
            plugin: note.plugin.clone(),
            field: note.field().to_owned(),
            rule: note.rule.clone(),
        };
        daemon.change(&key, |record| record.outcome.would_refuse.push(hit));
    }
}

/// Records updates and evictions of other containers that rules dropped.
pub(super) fn note_dropped(
    daemon: &Daemon,
    dropped: &[DroppedRequest],
    event: &str,
    subject: Option<&ContainerKey>,
) {
    for DroppedRequest { note, is_eviction, ignores_failure } in dropped {
        let metrics = daemon.report.metrics.plugins();
        metrics.count_rule(&note.rule, "refused");
        if *is_eviction {
            metrics.count_eviction(&note.plugin, "failed");
        } else {
            metrics.count_update(&note.plugin, if *ignores_failure { "ignored" } else { "failed" });
        }
        let what = if *is_eviction { "its eviction" } else { "an update" };
        let reason = format!("{what} requested at {event} failed: {note}");
        let of = if *is_eviction { FewOf::Eviction } else { FewOf::Update };
        if daemon.report.few_lines.admit(of, &note.plugin) {
            warn!("{}: {}: {reason}", quoted(&note.container), note.plugin);
        }
        if let Ok(key) = target::find(&daemon.records, &note.container, subject) {
            let skipped = Skipped { plugin: note.plugin.clone(), reason };
            updates::note_skipped(daemon, &key, "", vec![skipped]);
        }
    }
}
