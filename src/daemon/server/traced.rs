// SPDX-License-Identifier: Apache-2.0
//! A verb as the span of a trace: its caller's, if that is traced, else a new one.

use std::rc::Rc;

use crate::daemon::request::VerbRequest;
use crate::daemon::shared::Daemon;
use crate::error::Result;
use crate::trace::{self, PARENT_VARIABLE, STATE_VARIABLE, SpanStart, TraceContext};

/// What a verb's span says of it.
pub(super) struct TracedVerb {
    verb: &'static str,
    id: String,
    parent: Option<TraceContext>,
}

impl TracedVerb {
    pub(super) fn of(call: &VerbRequest) -> Self {
        let variables = &call.question().variables;
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.and_then(|(_, value)| value.to_str()).unwrap_or_default()
        };
        let parent = TraceContext::read(value(PARENT_VARIABLE), value(STATE_VARIABLE));
        Self { verb: call.command_line.verb.name(), id: call.key.id.clone(), parent }
    }

    /// Decides the verb within its span.
    pub(super) async fn span<T>(self, decide: impl Future<Output = Result<T>>) -> Result<T> {
        let Self { verb, id, parent } = self;
        let start =
            || SpanStart { name: verb, is_call: false, attributes: vec![("container.id", id)] };
        let failure = |decided: &Result<T>| decided.as_ref().err().map(ToString::to_string);
        trace::span(parent, start, decide, failure).await
    }
}

/// Begins to export spans, where the configuration asks for it.
pub(crate) fn export(daemon: &Rc<Daemon>) {
    let config = daemon.config();
    let endpoint = &config.tracing_endpoint;
    if endpoint.is_empty() {
        return;
    }
    let started = trace::start(endpoint, config.tracing_sample_per_million);
    if let Err(error) = started {
        daemon.report.note_failure(&format!("spans are not exported: {error}"), "");
    }
}
