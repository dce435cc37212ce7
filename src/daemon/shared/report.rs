// SPDX-License-Identifier: Apache-2.0
//! Keeps the data that `status` shows besides the records: requests, failures, unreadable data of the
//! engines, and identity claims that an engine contradicts. Each list is bounded.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tracing::{error, warn};

use crate::answers::{Failure, IdentityClaim, MissingData};
use crate::audit::{AuditEntry, AuditLog};
use crate::clock::now;
use crate::error::{Error, quoted};
use crate::limits;
use crate::metrics::Metrics;
use crate::text::rfc3339_nanos;

use super::few_lines::FewLines;
use super::flight_recorder::FlightRecorder;
use super::refused::ConnectionLines;

/// Data that `status` shows besides the records.
#[derive(Debug)]
pub(crate) struct Report {
    /// When this daemon was started.
    pub(crate) started: Instant,
    /// All counters for Prometheus.
    pub(crate) metrics: Metrics,
    /// The last requests to plugins.
    pub(crate) flight: Arc<FlightRecorder>,
    /// The audit log, if there is one.
    pub(crate) audit: AuditLog,
    /// Numbers of requests by verb.
    pub(crate) requests: RefCell<BTreeMap<&'static str, u64>>,
    /// Failures, each with its kind, such as the line without the container's ID; one entry per kind and plugin.
    pub(crate) failures: RefCell<VecDeque<(String, Failure)>>,
    /// Unreadable data, by engine and item; an item is logged when it is added.
    pub(crate) missing: RefCell<BTreeMap<(&'static str, String), MissingData>>,
    /// The latest contradictions.
    pub(crate) contradictions: RefCell<VecDeque<IdentityClaim>>,
    /// Connections of plugins, by outcome.
    pub(crate) connections: ConnectionLines,
    /// Limits of log lines about requests of plugins, and about listeners.
    pub(crate) few_lines: FewLines,
    /// The numbers of values that differed at the last complete check of all containers: of cgroups,
    /// and of init processes.
    pub(crate) drifts: Cell<Option<(usize, usize)>>,
}

impl Default for Report {
    fn default() -> Self {
        let metrics = Metrics::default();
        Self {
            started: Instant::now(),
            flight: FlightRecorder::new(metrics.call_meter()),
            metrics,
            audit: AuditLog::default(),
            requests: RefCell::default(),
            failures: RefCell::default(),
            missing: RefCell::default(),
            contradictions: RefCell::default(),
            connections: ConnectionLines::default(),
            few_lines: FewLines::default(),
            drifts: Cell::default(),
        }
    }
}

impl Report {
    /// Counts a request for `status`.
    pub(crate) fn count(&self, verb: &'static str) {
        *self.requests.borrow_mut().entry(verb).or_default() += 1;
    }

    /// Counts commands that ran without the daemon and left no note.
    pub(crate) fn count_bypassed(&self, count: u64) {
        *self.requests.borrow_mut().entry("bypassed").or_default() += count;
    }

    /// Queues an entry of the audit log.
    pub(crate) fn record_audit(&self, entry: AuditEntry) {
        self.audit.record(entry);
        self.note_audit_failure();
    }

    /// Records for `status` that the audit log cannot be written; the log's thread has already logged it.
    pub(crate) fn note_audit_failure(&self) {
        if let Some(what) = self.audit.new_failure() {
            self.count_failure(&what, &what, "", now());
        }
    }

    /// Logs a failure and keeps it for `status`.
    pub(crate) fn note_failure(&self, what: &str, plugin: &str) {
        error!(plugin, "{what}");
        self.count_failure(what, what, plugin, now());
    }

    /// Records a refused call. The same refusal of another container is counted, not listed again,
    /// because kubelet retries forever under new IDs.
    pub(crate) fn note_refusal(&self, verb: &str, id: &str, error: &Error) {
        self.metrics.plugins().count_refusal(error.plugin(), verb);
        let why = error.why();
        let kind = format!("{verb}: {why}");
        let what = format!("{verb} {id}: {why}");
        error!(plugin = error.plugin(), verb, container_id = id, "{what}");
        self.count_failure(&what, &kind, error.plugin(), now());
    }

    /// Keeps a failure for `status`, without a log line. A plugin's failures of one kind are one entry.
    pub(crate) fn count_failure(&self, what: &str, kind: &str, plugin: &str, at: i64) {
        self.metrics.count_failure();
        let mut failures = self.failures.borrow_mut();
        let same = failures.iter().position(|(of, note)| of == kind && note.plugin == plugin);
        let earlier = same.and_then(|index| failures.remove(index)).map(|(_, note)| note);
        if failures.len() >= limits::FAILURES {
            failures.pop_front();
        }
        let note = Failure {
            at,
            time: rfc3339_nanos(at),
            first: earlier.as_ref().map_or(at, |earlier| earlier.first),
            count: earlier.map_or(1, |earlier| earlier.count.saturating_add(1)),
            what: what.to_owned(),
            plugin: plugin.to_owned(),
            // A refused call is not a fault of nri-runc: a plugin may refuse.
            refused: kind != what,
        };
        failures.push_back((kind.to_owned(), note));
    }

    /// Records data of an engine that could not be read for a container; logs it the first time.
    pub(crate) fn note_missing(&self, engine: &'static str, what: &str, id: &str) {
        let mut missing = self.missing.borrow_mut();
        let known = missing.len();
        let note = missing.entry((engine, what.to_owned()));
        let note = note.and_modify(|note| note.count += 1).or_insert_with(|| {
            match id {
                "" => warn!("{engine}: {what}"),
                id => warn!("{engine}: {what} (container {})", quoted(id)),
            }
            let (engine, what) = (engine.to_owned(), what.to_owned());
            MissingData { engine, what, count: 1, ..MissingData::default() }
        });
        (note.at, note.id) = (now(), id.to_owned());
        if known >= limits::MISSING {
            let oldest = missing.iter().min_by_key(|(_, note)| note.at).map(|(key, _)| key.clone());
            missing.retain(|key, _| Some(key) != oldest.as_ref());
        }
    }

    /// Warns of a rejected identity claim, unless the same claim of this container is among the latest.
    pub(crate) fn note_contradiction(&self, engine: &'static str, id: &str, what: &str) {
        let mut latest = self.contradictions.borrow_mut();
        if latest.iter().any(|known| known.id == id && known.what == what) {
            return;
        }
        warn!("{engine}: {}: identity: {}", quoted(id), quoted(what));
        if latest.len() >= limits::CONTRADICTED {
            latest.pop_front();
        }
        let (id, engine, what) = (id.to_owned(), engine.to_owned(), what.to_owned());
        latest.push_back(IdentityClaim { at: now(), id, engine, what });
    }

    /// Whether the last failure is this one.
    fn is_last_failure(&self, what: &str) -> bool {
        self.failures.borrow().back().is_some_and(|(_, last)| last.what == what)
    }

    /// Reports that a record could not be written, unless the last failure is the same one.
    pub(crate) fn note_unwritten(&self, id: &str, error: &Error) {
        let what = format!("the record of {id} could not be written: {error}");
        if !self.is_last_failure(&what) {
            self.note_failure(&what, "");
        }
    }
}
