// SPDX-License-Identifier: Apache-2.0
//! Builds one document from two moments of the daemon: the present state, and the changes between
//! them.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::answers::{Failure, PluginRow, PluginState, PodRow, Status};

use super::exposition::{Exposition, Observed, observed, since};

const CALLS: &str = "containerd_nri_plugin_invocations_total";
const LATENCY: &str = "containerd_nri_plugin_latency_seconds";
const QUEUE: &str = "nri_runc_plugin_queue_seconds";
const REQUESTS: &str = "nri_runc_requests_total";
const HELD_BACK: &str = "nri_runc_request_duration_seconds";

/// The daemon's response to `top`: three answers and the text of its metrics. Histograms have no other form.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    status: Status,
    plugins: Vec<PluginRow>,
    pods: Vec<PodRow>,
    metrics: String,
}

/// The daemon at one moment.
pub(super) struct Sample {
    at: Instant,
    status: Status,
    plugins: Vec<PluginRow>,
    pods: Vec<PodRow>,
    metrics: Exposition,
}

impl Sample {
    pub(super) fn of(answer: Answer) -> Self {
        let Answer { status, plugins, pods, metrics } = answer;
        let (at, metrics) = (Instant::now(), Exposition::read(&metrics));
        Self { at, status, plugins, pods, metrics }
    }

    /// The daemon's process.
    pub(super) fn pid(&self) -> u32 {
        self.status.pid
    }
}

/// The document of `--json`, from which the page is made. Rates are those between two samples, and none
/// of one. Times are those between the samples too, or since the daemon's start where nothing was observed
/// in between.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub(super) struct Document {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uptime_seconds: u64,
    pub(super) interval_seconds: f64,
    pub(super) pods: PodCounts,
    /// By state.
    pub(super) containers: BTreeMap<String, f64>,
    pub(super) requests: Vec<RequestRates>,
    pub(super) plugins: Vec<PluginRates>,
    pub(super) pod_list: Vec<PodRow>,
    pub(super) failures: Vec<Failure>,
    pub(super) disabled_by: Option<String>,
    pub(super) pass_through: bool,
    pub(super) plugin_socket: String,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub(super) struct PodCounts {
    pub(super) known: usize,
    pub(super) ready: usize,
}

/// The runtime commands of one verb.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub(super) struct RequestRates {
    pub(super) verb: String,
    pub(super) per_second: Option<f64>,
    pub(super) mean_seconds: Option<f64>,
    pub(super) p99_seconds: Option<f64>,
    pub(super) proceeded: f64,
    pub(super) refused: f64,
    pub(super) bypassed: f64,
}

/// The requests to one plugin.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(Deserialize), serde(default))]
pub(super) struct PluginRates {
    pub(super) plugin: String,
    pub(super) state: PluginState,
    pub(super) pid: Option<i32>,
    pub(super) per_second: Option<f64>,
    pub(super) mean_seconds: Option<f64>,
    pub(super) p99_seconds: Option<f64>,
    pub(super) queue_mean_seconds: Option<f64>,
    pub(super) errors: f64,
    pub(super) skips: f64,
    pub(super) refusals: f64,
}

/// Returns the document of two samples, which may be the same.
pub(super) fn document(first: &Sample, last: &Sample) -> Document {
    let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
    let nothing = Exposition::default();
    let before = if seconds > 0.0 { &first.metrics } else { &nothing };
    let span = Span { before, now: &last.metrics, seconds };
    let (status, pods) = (last.status.clone(), last.pods.clone());
    let ready = pods.iter().filter(|pod| pod.state == "ready").count();
    Document {
        version: status.version,
        pid: status.pid,
        uptime_seconds: status.uptime_seconds,
        interval_seconds: seconds,
        pods: PodCounts { known: pods.len(), ready },
        containers: containers(&last.metrics),
        requests: requests(&span),
        plugins: last.plugins.iter().map(|plugin| plugin_rates(&span, plugin)).collect(),
        pod_list: pods,
        failures: status.failures,
        disabled_by: status.disabled_by,
        pass_through: status.pass_through,
        plugin_socket: status.plugin_socket,
    }
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

fn containers(metrics: &Exposition) -> BTreeMap<String, f64> {
    let name = "nri_runc_containers";
    let states = metrics.values_of(name, "state").into_iter();
    states.map(|state| (state.clone(), metrics.sum(name, &[("state", &state)]))).collect()
}

/// Returns the runtime commands, by verb.
fn requests(span: &Span<'_>) -> Vec<RequestRates> {
    let rows = span.now.values_of(REQUESTS, "verb").into_iter().map(|verb| {
        let of = |outcome: &str| span.now.sum(REQUESTS, &[("verb", &verb), ("outcome", outcome)]);
        let held = span.observed(HELD_BACK, &[("verb", &verb)]);
        RequestRates {
            per_second: span.per_second(REQUESTS, &[("verb", &verb)]),
            mean_seconds: held.mean,
            p99_seconds: held.p99,
            proceeded: of("proceeded"),
            refused: of("refused"),
            bypassed: of("bypassed"),
            verb,
        }
    });
    rows.collect()
}

fn plugin_rates(span: &Span<'_>, plugin: &PluginRow) -> PluginRates {
    let id = plugin.id();
    let its = [("plugin", id.as_str())];
    let latency = span.observed(LATENCY, &its);
    PluginRates {
        state: plugin.state,
        pid: plugin.pid,
        per_second: span.per_second(CALLS, &its),
        mean_seconds: latency.mean,
        p99_seconds: latency.p99,
        queue_mean_seconds: span.observed(QUEUE, &its).mean,
        errors: span.now.sum(CALLS, &[("plugin", &id), ("status", "error")]),
        skips: span.now.sum("nri_runc_plugin_skips_total", &its),
        refusals: span.now.sum("nri_runc_plugin_refusals_total", &its),
        plugin: id,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

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
        Sample { at, ..Sample::of(serde_json::from_value(answer).unwrap()) }
    }

    #[test]
    fn rates_are_those_between_two_moments() {
        let begun = Instant::now();
        let first = sample(begun, 10);
        let last = sample(begun + Duration::from_secs(4), 30);
        let document = document(&first, &last);
        assert_eq!(document.plugins[0].per_second, Some(5.0));
        assert_eq!(document.plugins[0].mean_seconds, Some(1.0));
        assert_eq!(document.requests[0].per_second, Some(5.0));
        assert_eq!(document.requests[0].proceeded, 30.0);
        assert_eq!(document.containers["running"], 3.0);
        assert_eq!(document.pods, PodCounts { known: 2, ready: 1 });
    }

    #[test]
    fn an_idle_plugin_has_its_latencies_since_the_start() {
        let begun = Instant::now();
        let document = document(&sample(begun, 10), &sample(begun + Duration::from_secs(4), 10));
        assert_eq!(document.plugins[0].per_second, Some(0.0));
        assert_eq!(document.plugins[0].mean_seconds, Some(1.0));
    }

    #[test]
    fn one_moment_alone_has_latencies_and_no_rates() {
        let only = sample(Instant::now(), 10);
        let document = document(&only, &only);
        assert_eq!(document.plugins[0].per_second, None);
        assert_eq!(document.plugins[0].mean_seconds, Some(1.0));
    }
}
