// SPDX-License-Identifier: Apache-2.0
//! The audit log: one JSON line for each value that a plugin or injection changed or that was not
//! applied, for each refusal (also if audit mode only reports it), for each eviction, for each plugin
//! that connects, disconnects or is refused, and optionally for each process that `exec` starts.
//!
//! A separate thread writes the lines, to a file with a bounded size or to the journal, so that a
//! slow or full disk delays no container. Lines that do not fit the thread's queue or cannot be
//! written are counted, and a later line states their number. This folder does not use the daemon's
//! records, decides nothing and never fails a request.

mod entry;
mod file;
mod journal;
mod line;
mod redact;
mod search;
mod tail;
mod writer;

pub(crate) use entry::{
    AuditAction, AuditEntry, AuditSubject, AuditValues, ExecOutcome, ExecutedProcess,
};
pub(crate) use journal::IDENTIFIER;
#[cfg(test)]
pub(crate) use line::Line;
pub(crate) use line::ascii;
pub(crate) use redact::redact;
pub(crate) use search::{AuditFilter, LoggedLine, open_files, search, since};
pub(crate) use tail::AuditTail;
pub(crate) use writer::AuditLog;
