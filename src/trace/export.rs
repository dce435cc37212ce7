// SPDX-License-Identifier: Apache-2.0
//! Spans on their way to a collector: OTLP over HTTP, as protobuf, in batches. A collector that is
//! slow or away costs the spans, never a container.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanExporter as _, SpanLinks,
};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{SpanStart, TraceContext};
use crate::error::{Error, Result};

/// How many spans may wait for the collector; further ones are dropped.
const WAITING: usize = 4096;
/// How many go in one request at most.
const BATCH: usize = 512;
/// How long a span waits for others to go with it.
const DELAY: Duration = Duration::from_secs(2);
/// How long the collector may take.
const EXPORT_WAIT: Duration = Duration::from_secs(5);
/// What `tracing.sample_per_million` is a part of.
const MILLION: u32 = 1_000_000;

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Takes the spans of this process.
#[derive(Debug)]
pub(super) struct Recorder {
    spans: mpsc::Sender<EndedSpan>,
    per_million: u32,
    dropped: AtomicU64,
}

/// A span that is over.
#[derive(Debug)]
pub(super) struct EndedSpan {
    pub(super) start: SpanStart,
    pub(super) context: TraceContext,
    pub(super) parent: Option<TraceContext>,
    pub(super) begun: SystemTime,
    pub(super) ended: SystemTime,
    pub(super) failure: Option<String>,
}

/// The recorder of this process, once there is one.
pub(super) fn recorder() -> Option<&'static Recorder> {
    RECORDER.get()
}

impl Recorder {
    /// The context of a new span: in the parent's trace, as recorded as that, or in a new trace, of
    /// which so many in a million are recorded.
    pub(super) fn below(&self, parent: Option<&TraceContext>) -> TraceContext {
        let ids = RandomIdGenerator::default();
        let span = u64::from_be_bytes(ids.new_span_id().to_bytes());
        match parent {
            Some(parent) => TraceContext { span, ..parent.clone() },
            None => {
                let trace = u128::from_be_bytes(ids.new_trace_id().to_bytes());
                let is_sampled = trace % u128::from(MILLION) < u128::from(self.per_million);
                TraceContext { trace, span, is_sampled, state: String::new() }
            }
        }
    }

    pub(super) fn record(&self, span: EndedSpan) {
        if self.spans.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// See `trace::start`.
pub(super) fn start(endpoint: &str, per_million: u32) -> Result<()> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(EXPORT_WAIT)
        .build();
    let mut exporter = exporter.map_err(|error| Error::new(error.to_string()))?;
    let host = nix::unistd::gethostname().unwrap_or_default();
    exporter.set_resource(
        &Resource::builder_empty()
            .with_service_name("nri-runc")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("host.name", host.to_string_lossy().into_owned()))
            .build(),
    );
    let (spans, ended) = mpsc::channel(WAITING);
    let recorder =
        Recorder { spans, per_million: per_million.min(MILLION), dropped: AtomicU64::new(0) };
    if RECORDER.set(recorder).is_ok() {
        info!("spans are exported to {endpoint}");
        tokio::spawn(export(exporter, ended));
    }
    Ok(())
}

/// Sends what has ended, until the process ends.
async fn export(exporter: SpanExporter, mut ended: mpsc::Receiver<EndedSpan>) {
    let mut is_failing = false;
    let mut batch = Vec::new();
    while ended.recv_many(&mut batch, BATCH).await > 0 {
        tokio::time::sleep(DELAY).await;
        while batch.len() < BATCH
            && let Ok(span) = ended.try_recv()
        {
            batch.push(span);
        }
        let spans = batch.drain(..).map(span_data).collect();
        let sent = exporter.export(spans).await;
        let dropped = recorder().map_or(0, |recorder| recorder.dropped.swap(0, Ordering::Relaxed));
        if dropped > 0 {
            warn!("{dropped} spans were dropped: the collector is too slow");
        }
        match sent {
            Ok(()) => is_failing = false,
            // Once, until it works again: a collector may be away for days.
            Err(error) if !is_failing => {
                is_failing = true;
                warn!("spans cannot be exported: {}", crate::error::quoted(&error.to_string()));
            }
            Err(_) => {}
        }
    }
}

fn span_context(context: &TraceContext) -> SpanContext {
    let flags = if context.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    SpanContext::new(
        TraceId::from_bytes(context.trace.to_be_bytes()),
        SpanId::from_bytes(context.span.to_be_bytes()),
        flags,
        false,
        context.state.parse().unwrap_or(TraceState::NONE),
    )
}

fn span_data(span: EndedSpan) -> SpanData {
    let EndedSpan { start, context, parent, begun, ended, failure } = span;
    SpanData {
        span_context: span_context(&context),
        parent_span_id: parent
            .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span.to_be_bytes())),
        parent_span_is_remote: false,
        span_kind: if start.is_call { SpanKind::Client } else { SpanKind::Server },
        name: start.name.into(),
        start_time: begun,
        end_time: ended,
        attributes: start
            .attributes
            .into_iter()
            .map(|(key, value)| KeyValue::new(key, value))
            .collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: failure.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("nri-runc").build(),
    }
}
