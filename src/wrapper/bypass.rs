// SPDX-License-Identifier: Apache-2.0
//! Handles an unavailable daemon: the wrapper continues as the plain runtime, or fails, as the operator configured (D8,
//! D9). If anything protects containers, `protection.rs` decides which are created.
//!
//! A command that continues leaves a small record in `RUN_DIR/bypassed/`, so that the next daemon
//! learns of the container and `status` counts it. The number and size of records are limited;
//! removed records are counted. If the run directory cannot be written, a line goes to the system's
//! log instead. Nothing is printed, because stderr belongs to the real runtime.

use std::convert::Infallible;
use std::path::Path;

use serde_json::json;

use crate::argv::{CommandLine, Verb};
use crate::clock;
use crate::config::{Config, DaemonPolicy};
use crate::error::{Error, Result};
use crate::files;
use crate::host::Point;
use crate::limits;
use crate::link::{BYPASSED_DIR, Bypassed, DROPPED_NOTES, NoteBytes, WrapperNote, WrapperRequest};
use crate::log;
use crate::presence::IfThere;

use super::invocation::{BundleDocument, Invocation};
use super::{marked, protection, refusal, request};

impl Invocation<'_> {
    /// Continues without the daemon, or fails the verb; `why` names the cause.
    pub(super) fn bypass(&self, why: &str) -> Result<Infallible> {
        self.bypass_update(why, None)
    }

    /// Like [`bypass`](Self::bypass), for an `update` with the requested resources.
    pub(super) fn bypass_update(&self, why: &str, asks: Option<Vec<u8>>) -> Result<Infallible> {
        let may_fail = self.call.verb != Verb::Delete;
        if may_fail && self.config.on_daemon_failure == DaemonPolicy::Fail {
            let error = Error::new(format!("{why}; nothing was changed or started"))
                .hint("on_daemon_failure is \"fail\"; see: nri-runc nri check");
            let (question, _document) = self.unasked();
            refusal::write_record(self.config, self.call, &question, None, &error);
            return Err(error);
        }
        let (question, document) = self.unasked();
        if self.call.verb.creates() {
            let (config, call) = (self.config, self.call);
            protection::refuse_unless_exempt(config, call, &question, document.as_ref(), why)?;
            marked::remove_stale(config, call, &self.runtime);
        }
        self.host.point(Point::WrapperBypass)?;
        write_record(self.config, self.call, &self.runtime, &question, why, asks);
        self.host.point(Point::WrapperBypassed)?;
        self.exec_unchanged()
    }

    /// Builds the request that was not sent, and opens its document.
    fn unasked(&self) -> (WrapperRequest, Option<BundleDocument>) {
        // If the document cannot be opened, its pod is treated as not exempt.
        let document = if self.call.verb.creates() { self.document().or_absent() } else { None };
        let document = document.flatten();
        let name = document.as_ref().map(|document| document.name.clone()).unwrap_or_default();
        (request::build_question(self, &name, &[]), document)
    }
}

/// Writes a record of a command that bypassed the daemon, with the unsent request.
pub(super) fn write_record(
    config: &Config,
    call: &CommandLine,
    runtime: &Path,
    question: &WrapperRequest,
    why: &str,
    asks: Option<Vec<u8>>,
) {
    let dir = config.run_dir.join(BYPASSED_DIR);
    let at = clock::now();
    let lossy = |word: &Option<std::ffi::OsString>| {
        word.as_ref().map(|word| word.to_string_lossy().into_owned())
    };
    let mut note = WrapperNote {
        at,
        verb: call.verb.name().to_owned(),
        id: lossy(&call.id),
        why: why.to_owned(),
        question: NoteBytes(question.encode()),
        of_kind: Bypassed {
            root: lossy(&call.root),
            bundle: lossy(&call.bundle),
            runtime: runtime.to_string_lossy().into_owned(),
            resources: asks.map(NoteBytes),
        },
    };
    let mut text = json!(note).to_string();
    if text.len() > limits::NOTE {
        note.of_kind.resources = None;
        text = json!(note).to_string();
    }
    // A record that is still too long is not written, and counted with the removed ones.
    let fits = text.len() <= limits::NOTE;
    // The name begins with the time, because records are processed in name order.
    let name = format!("{:020}-{}.json", at, std::process::id());
    let written = files::make_private_dir(&dir).and_then(|()| {
        let removed = match fits {
            true => refusal::make_room(&dir, limits::BYPASS_NOTES, text.len()),
            false => 1,
        };
        count_dropped(&dir, removed);
        if fits { files::replace(&dir.join(name), text.as_bytes()) } else { Ok(()) }
    });
    if let Err(error) = written {
        // A missing record must not fail the container.
        let id = call.id.as_deref().unwrap_or_default().to_string_lossy();
        let unrecorded = format!("no record of it could be written: {}", error.why());
        let line = format!("{} {id} ran without plugins: {why}; {unrecorded}", call.verb.name());
        log::warn_system(&config.host(), &line);
    }
}

/// Adds to the number of removed records, for whose containers the next daemon searches. Concurrent
/// wrappers may count one too few.
fn count_dropped(dir: &Path, count: usize) {
    if count > 0 {
        let file = dir.join(DROPPED_NOTES);
        let count = files::read_count(&file).unwrap_or(0).saturating_add(count);
        let _best_effort = files::replace(&file, count.to_string().as_bytes());
    }
}
