// SPDX-License-Identifier: Apache-2.0
//! Handles calls that wrappers refused while the daemon was down or silent: each left a record in
//! `RUN_DIR/refused/`. The daemon logs them, counts them among the failures of `status`, writes them to
//! the audit log and shows them in the container's `explain`, like its own refusals.

use tracing::{error, warn};

use crate::audit::{AuditAction, AuditEntry};
use crate::error::{Result, quoted};
use crate::limits::REFUSAL_NOTES;
use crate::link::{REFUSED_DIR, Refused, WrapperNote};
use crate::text::rfc3339_nanos;

use crate::daemon::recovery::notes;
use crate::daemon::request::record::blank_record;
use crate::daemon::request::{ReceivedQuestion, VerbRequest};
use crate::daemon::shared::Daemon;

/// Handles all records, oldest first.
///
/// # Errors
/// Fails when the records cannot be listed, or one cannot be read now: it stays, and the others are handled.
pub(crate) fn take_up(daemon: &Daemon) -> Result<()> {
    let notes = notes::notes_in(&daemon.config().run_dir.join(REFUSED_DIR))?;
    if notes.len() >= REFUSAL_NOTES {
        warn!(
            "wrappers refused {REFUSAL_NOTES} requests or more: only the newest {REFUSAL_NOTES} refusals were kept"
        );
    }
    let mut taken = Ok(());
    for path in notes {
        match notes::read(&path) {
            Ok(note) => {
                if let Some(note) = note {
                    record_refusal(daemon, &note);
                }
                let _taken = std::fs::remove_file(&path);
            }
            Err(error) => taken = taken.and(Err(error)),
        }
    }
    taken
}

fn record_refusal(daemon: &Daemon, note: &WrapperNote<Refused>) {
    let (verb, id, why) =
        (&note.verb, quoted(note.id.as_deref().unwrap_or_default()), quoted(&note.why));
    let time = rfc3339_nanos(note.at).unwrap_or_default();
    error!("{verb} {id}: refused by the wrapper at {time}: {why}");
    daemon.report.count_failure(
        &format!("{verb} {id}: {why}"),
        &format!("{verb}: {why}"),
        "",
        note.at,
    );
    let Ok(question) = note.request() else { return };
    let Some(call) = VerbRequest::new(ReceivedQuestion::alone(question)) else { return };
    let entry = AuditEntry { at: note.at, ..AuditEntry::new(AuditAction::Refused).at_event(verb) };
    let entry = entry.because(&format!("refused by the wrapper: {why}"));
    if daemon.container(&call.key).is_some() {
        daemon.audit(&call.key, || entry);
        return daemon.change(&call.key, |record| record.refuse(why, note.at));
    }
    let mut record = blank_record(&daemon.records, &call);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    record.pod_namespace = text(&note.of_kind.namespace);
    record.pod_name = text(&note.of_kind.pod);
    record.name = text(&note.of_kind.name);
    record.refuse(why, note.at);
    let key = record.key.clone();
    daemon.records.remember(record);
    daemon.audit(&key, || entry);
}
