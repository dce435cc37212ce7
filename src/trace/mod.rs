// SPDX-License-Identifier: Apache-2.0
//! Traces: which span a request to a plugin belongs to, so that a plugin's own spans can belong to
//! it too. A caller of the runtime that is traced says so by `TRACEPARENT` and `TRACESTATE`.
//!
//! Without the feature `otlp`, the context of such a caller goes to the plugins as it came, and
//! nothing is recorded. With it, and with `tracing.endpoint` set, each request of a wrapper and each
//! request to a plugin is a span that `export.rs` sends away. Nothing here can delay a request: spans
//! for which there is no room are dropped, and counted.

mod context;
#[cfg(feature = "otlp")]
mod export;

use crate::error::Result;
pub(crate) use context::TraceContext;

/// The variables of a traced caller.
pub(crate) const PARENT_VARIABLE: &str = "TRACEPARENT";
pub(crate) const STATE_VARIABLE: &str = "TRACESTATE";

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// The span that is being worked on, if there is one.
pub(crate) fn current() -> Option<TraceContext> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Begins to export spans to a collector's base address, such as `http://127.0.0.1:4318`; so many in
/// a million of the traces that begin here.
///
/// # Errors
/// Fails when the address cannot be one, or this build has no export.
pub(crate) fn start(endpoint: &str, per_million: u32) -> Result<()> {
    #[cfg(feature = "otlp")]
    return export::start(endpoint, per_million);
    #[cfg(not(feature = "otlp"))]
    {
        let _not_in_this_build = (endpoint, per_million);
        let hint = "build it with: cargo build --release --features otlp";
        Err(crate::error::Error::new("this build has no OTLP export").hint(hint))
    }
}

/// What a span is about, before it is known how it ends.
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "read by the export"))]
#[derive(Debug, Clone)]
pub(crate) struct SpanStart {
    /// One of a bounded number of names.
    pub(crate) name: &'static str,
    /// Whether it is a request to somebody else.
    pub(crate) is_call: bool,
    pub(crate) attributes: Vec<(&'static str, String)>,
}

/// Does `work` as a span below `parent`; `failure` says of its result why it failed, if it did. The
/// attributes are only asked for if the span is recorded.
pub(crate) async fn span<T>(
    parent: Option<TraceContext>,
    start: impl FnOnce() -> SpanStart,
    work: impl Future<Output = T>,
    failure: impl FnOnce(&T) -> Option<String>,
) -> T {
    #[cfg(feature = "otlp")]
    if let Some(recorder) = export::recorder() {
        let context = recorder.below(parent.as_ref());
        if !context.is_sampled {
            return CURRENT.scope(context, work).await;
        }
        let (start, begun) = (start(), std::time::SystemTime::now());
        let done = CURRENT.scope(context.clone(), work).await;
        recorder.record(export::EndedSpan {
            start,
            context,
            parent,
            begun,
            ended: std::time::SystemTime::now(),
            failure: failure(&done),
        });
        return done;
    }
    let _nothing_is_recorded = (start, failure);
    match parent {
        Some(parent) => CURRENT.scope(parent, work).await,
        None => work.await,
    }
}
