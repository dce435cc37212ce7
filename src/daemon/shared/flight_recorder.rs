// SPDX-License-Identifier: Apache-2.0
//! The flight recorder keeps the last requests to plugins and their responses, as sent, for `sysdump`,
//! and the duration of each, for `explain`. It copies bytes up to a limit and decodes nothing. It
//! also reports every call to the metrics.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::now;
use crate::limits;
use crate::plugin::{CallCopies, CallMeter, CallSample};

/// A completed request to a plugin.
#[derive(Debug, Clone)]
pub(crate) struct RecordedCall {
    /// Unix time of the result, in nanoseconds.
    pub(crate) at: i64,
    pub(crate) plugin: String,
    pub(crate) operation: &'static str,
    /// The pod and container of the event; empty for other requests.
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) waited: Duration,
    pub(crate) took: Duration,
    pub(crate) error: Option<&'static str>,
    pub(crate) copies: CallCopies,
}

impl RecordedCall {
    /// Returns the memory that this call takes, in bytes.
    fn bytes(&self) -> usize {
        let CallCopies { request, answer, .. } = &self.copies;
        let texts = self.plugin.capacity() + self.pod.capacity() + self.container.capacity();
        size_of::<Self>() + texts + request.capacity() + answer.capacity()
    }
}

/// Counts calls, and keeps the latest ones.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    counts: Arc<dyn CallMeter>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    calls: VecDeque<RecordedCall>,
    bytes: usize,
}

impl FlightRecorder {
    pub(crate) fn new(counts: Arc<dyn CallMeter>) -> Arc<Self> {
        Arc::new(Self { counts, kept: Mutex::default() })
    }

    /// Returns the kept calls, the oldest first.
    pub(crate) fn calls(&self) -> Vec<RecordedCall> {
        self.kept().calls.iter().cloned().collect()
    }

    /// Returns the calls about a container (about the pod itself if `container` is empty), oldest
    /// first, each converted by `row`.
    pub(crate) fn calls_about<T>(
        &self,
        pod: &str,
        container: &str,
        row: impl Fn(&RecordedCall) -> T,
    ) -> Vec<T> {
        let kept = self.kept();
        let about = kept.calls.iter().filter(|call| call.pod == pod && call.container == container);
        about.map(row).collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallMeter for FlightRecorder {
    fn record_call(&self, sample: &CallSample<'_>) {
        self.counts.record_call(sample);
    }

    fn copies_up_to(&self) -> usize {
        limits::FLIGHT_MESSAGE
    }

    fn keep_copies(&self, sample: &CallSample<'_>, copies: CallCopies) {
        let CallSample { plugin, operation, subject, waited, took, error } = *sample;
        let (plugin, pod) = (plugin.to_owned(), subject.pod.to_owned());
        let container = subject.container.to_owned();
        let at = now();
        let call =
            RecordedCall { at, plugin, operation, pod, container, waited, took, error, copies };
        let mut kept = self.kept();
        kept.bytes += call.bytes();
        kept.calls.push_back(call);
        while kept.bytes > limits::FLIGHT {
            let Some(oldest) = kept.calls.pop_front() else { return };
            kept.bytes -= oldest.bytes();
        }
    }

    fn record_wishes(
        &self,
        plugin: &str,
        operation: &'static str,
        updates: usize,
        evictions: usize,
    ) {
        self.counts.record_wishes(plugin, operation, updates, evictions);
    }

    fn record_skip(&self, plugin: &str, operation: &'static str, reason: &'static str) {
        self.counts.record_skip(plugin, operation, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Holdings, Metrics};
    use crate::plugin::RequestSubject;

    fn keep(recorder: &FlightRecorder, operation: &'static str, container: &str, bytes: usize) {
        let (waited, took) = (Duration::ZERO, Duration::from_millis(2));
        let subject = RequestSubject { pod: "p", container };
        let sample = CallSample { plugin: "10-a", operation, subject, waited, took, error: None };
        recorder.record_call(&sample);
        let mut copies = CallCopies::up_to(recorder.copies_up_to());
        (copies.request, copies.request_bytes) = (vec![7; bytes], bytes);
        recorder.keep_copies(&sample, copies);
    }

    #[test]
    fn the_last_calls_are_kept_within_a_bound_and_all_are_counted() {
        let metrics = Metrics::default();
        let recorder = FlightRecorder::new(metrics.call_meter());
        for _call in 0..500 {
            keep(&recorder, "CreateContainer", "c", 10_000);
        }
        keep(&recorder, "StopContainer", "c", 10);
        let calls = recorder.calls();
        assert!((95..105).contains(&calls.len()), "{}", calls.len());
        assert_eq!(calls.last().unwrap().operation, "StopContainer");
        assert!(recorder.kept().bytes <= limits::FLIGHT);
        assert_eq!(recorder.kept().bytes, calls.iter().map(RecordedCall::bytes).sum::<usize>());
        keep(&recorder, "RunPodSandbox", "", 10);
        let about = |container| recorder.calls_about("p", container, |call| call.operation);
        assert_eq!(
            (about("").as_slice(), about("c").last()),
            (&["RunPodSandbox"][..], Some(&"StopContainer"))
        );
        assert!(about("d").is_empty() && recorder.calls_about("q", "c", |_call| ()).is_empty());
        let page = metrics.text(&Holdings::default());
        assert!(
            page.contains("operation=\"CreateContainer\",status=\"success\",error=\"\"} 500\n")
        );
    }
}
