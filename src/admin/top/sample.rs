// SPDX-License-Identifier: Apache-2.0
//! Builds one document from two moments of the daemon: the present state, and the changes between
//! them.

use std::time::Instant;

use serde_json::{Value, json};

use super::exposition::{Exposition, Observed, observed, since};

const CALLS: &str = "containerd_nri_plugin_invocations_total";
const LATENCY: &str = "containerd_nri_plugin_latency_seconds";
const QUEUE: &str = "nri_runc_plugin_queue_seconds";
const REQUESTS: &str = "nri_runc_requests_total";
const HELD_BACK: &str = "nri_runc_request_duration_seconds";

/// The daemon at one moment.
pub(super) struct Sample {
    at: Instant,
    status: Value,
    plugins: Value,
    pods: Value,
    metrics: Exposition,
}

impl Sample {
    /// Reads a sample from the daemon's response.
    pub(super) fn of(answer: &Value) -> Self {
        Self {
            at: Instant::now(),
            status: answer["status"].clone(),
            plugins: answer["plugins"].clone(),
            pods: answer["pods"].clone(),
            metrics: Exposition::read(answer["metrics"].as_str().unwrap_or_default()),
        }
    }

    /// The daemon's process.
    pub(super) fn pid(&self) -> Option<u64> {
        self.status["pid"].as_u64()
    }
}

/// Returns the document of `--json`, from which the page is made. Rates are those between the two
/// samples; one sample twice gives no rates. Latencies are those between the samples too, or since
/// the daemon's start where nothing was observed in between.
pub(super) fn document(first: &Sample, last: &Sample) -> Value {
    let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
    let nothing = Exposition::default();
    let before = if seconds > 0.0 { &first.metrics } else { &nothing };
    let span = Span { before, now: &last.metrics, seconds };
    let pods = last.pods.as_array().cloned().unwrap_or_default();
    let ready = pods.iter().filter(|pod| pod["state"] == "ready").count();
    json!({
        "version": last.status["version"],
        "pid": last.status["pid"],
        "uptime_seconds": last.status["uptime_seconds"],
        "interval_seconds": seconds,
        "pods": {"known": pods.len(), "ready": ready},
        "containers": containers(&last.metrics),
        "requests": requests(&span),
        "plugins": plugins(&span, &last.plugins),
        "pod_list": pods,
        "failures": last.status["failures"],
        "disabled_by": last.status["disabled_by"],
        "pass_through": last.status["pass_through"],
        "plugin_socket": last.status["plugin_socket"],
    })
}

/// The metrics of two moments.
struct Span<'a> {
    before: &'a Exposition,
    now: &'a Exposition,
    seconds: f64,
}

impl Span<'_> {
    fn per_second(&self, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let grown = since(self.now.sum(name, wanted), self.before.sum(name, wanted));
        (self.seconds > 0.0).then(|| grown / self.seconds)
    }

    /// The latencies between the two moments; where nothing was observed then, since the daemon's start.
    fn observed(&self, name: &str, wanted: &[(&str, &str)]) -> Observed {
        let between = observed(self.before, self.now, name, wanted);
        match between.count > 0.0 {
            true => between,
            false => observed(&Exposition::default(), self.now, name, wanted),
        }
    }
}

fn containers(metrics: &Exposition) -> Value {
    let name = "nri_runc_containers";
    let states = metrics.values_of(name, "state").into_iter();
    states.map(|state| (state.clone(), json!(metrics.sum(name, &[("state", &state)])))).collect()
}

/// Returns the runtime commands, by verb.
fn requests(span: &Span<'_>) -> Value {
    let rows = span.now.values_of(REQUESTS, "verb").into_iter().map(|verb| {
        let of = |outcome: &str| span.now.sum(REQUESTS, &[("verb", &verb), ("outcome", outcome)]);
        let held = span.observed(HELD_BACK, &[("verb", &verb)]);
        json!({
            "verb": verb,
            "per_second": span.per_second(REQUESTS, &[("verb", &verb)]),
            "mean_seconds": held.mean,
            "p99_seconds": held.p99,
            "proceeded": of("proceeded"),
            "refused": of("refused"),
            "bypassed": of("bypassed"),
        })
    });
    Value::Array(rows.collect())
}

/// Returns the rows of `plugins` with each one's metrics.
fn plugins(span: &Span<'_>, plugins: &Value) -> Value {
    let rows = plugins.as_array().into_iter().flatten().map(|plugin| {
        let of = |member: &str| plugin[member].as_str().unwrap_or_default();
        let id = format!("{}-{}", of("index"), of("name"));
        let its = [("plugin", id.as_str())];
        let latency = span.observed(LATENCY, &its);
        json!({
            "plugin": id,
            "state": plugin["state"],
            "pid": plugin["pid"],
            "per_second": span.per_second(CALLS, &its),
            "mean_seconds": latency.mean,
            "p99_seconds": latency.p99,
            "queue_mean_seconds": span.observed(QUEUE, &its).mean,
            "errors": span.now.sum(CALLS, &[("plugin", &id), ("status", "error")]),
            "skips": span.now.sum("nri_runc_plugin_skips_total", &its),
            "refusals": span.now.sum("nri_runc_plugin_refusals_total", &its),
        })
    });
    Value::Array(rows.collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: Instant, calls: u32) -> Sample {
        let metrics = format!(
            "{CALLS}{{plugin=\"10-a\",operation=\"CreateContainer\",status=\"success\",error=\"\"}} {calls}\n\
             {LATENCY}_sum{{plugin=\"10-a\"}} {calls}\n{LATENCY}_count{{plugin=\"10-a\"}} {calls}\n\
             {REQUESTS}{{verb=\"create\",outcome=\"proceeded\"}} {calls}\n\
             nri_runc_containers{{state=\"running\"}} 3\n"
        );
        let answer = json!({"status": {"pid": 7}, "plugins": [{"index": "10", "name": "a",
            "state": "synchronized"}], "pods": [{"state": "ready"}, {"state": "stopped"}],
            "metrics": metrics});
        Sample { at, ..Sample::of(&answer) }
    }

    #[test]
    fn rates_are_those_between_two_moments() {
        let begun = Instant::now();
        let first = sample(begun, 10);
        let last = sample(begun + Duration::from_secs(4), 30);
        let document = document(&first, &last);
        assert_eq!(document["plugins"][0]["per_second"], 5.0);
        assert_eq!(document["plugins"][0]["mean_seconds"], 1.0);
        assert_eq!(document["requests"][0]["per_second"], 5.0);
        assert_eq!(document["requests"][0]["proceeded"], 30.0);
        assert_eq!(document["containers"]["running"], 3.0);
        assert_eq!(document["pods"], json!({"known": 2, "ready": 1}));
    }

    #[test]
    fn an_idle_plugin_has_its_latencies_since_the_start() {
        let begun = Instant::now();
        let document = document(&sample(begun, 10), &sample(begun + Duration::from_secs(4), 10));
        assert_eq!(document["plugins"][0]["per_second"], 0.0);
        assert_eq!(document["plugins"][0]["mean_seconds"], 1.0);
    }

    #[test]
    fn one_moment_alone_has_latencies_and_no_rates() {
        let only = sample(Instant::now(), 10);
        let document = document(&only, &only);
        assert_eq!(document["plugins"][0]["per_second"], Value::Null);
        assert_eq!(document["plugins"][0]["mean_seconds"], 1.0);
    }
}
