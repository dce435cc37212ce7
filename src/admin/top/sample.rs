// SPDX-License-Identifier: Apache-2.0
//! Builds one document from two samples of the daemon: the current state, and the changes in
//! between.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use crate::answers::{
    Failure, Observations, PluginCounts, PluginRow, PluginState, PodRow, RequestCounts,
    SandboxState, TopAnswer,
};

/// One sample of the daemon.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) answer: TopAnswer,
}

/// The document of `--json`, and the source of the page. Rates are those between two samples,
/// absent with one sample. Latencies are those between the samples, or since the daemon's start if
/// none was observed in between.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(in crate::admin) struct Document {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uptime_seconds: u64,
    pub(super) interval_seconds: f64,
    pub(super) pods: PodCounts,
    /// The number of containers in each state.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(in crate::admin) struct PodCounts {
    pub(super) known: usize,
    pub(super) ready: usize,
}

/// The runtime commands of one verb.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(in crate::admin) struct RequestRates {
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, derive(serde::Deserialize), serde(default))]
pub(in crate::admin) struct PluginRates {
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

/// Builds the document from two samples, which may be the same.
pub(super) fn document(first: &Sample, last: &Sample) -> Document {
    let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
    let TopAnswer { status, plugins, containers, requests, calls, pods } = last.answer.clone();
    let before = &first.answer;
    let requests = requests.into_iter().map(|now| {
        let before = before.requests.iter().find(|before| before.verb == now.verb);
        request_rates(now, &before.cloned().unwrap_or_default(), seconds)
    });
    let rates = plugins.iter().zip(&calls).map(|(plugin, now)| {
        let mut earlier = before.plugins.iter().zip(&before.calls);
        let before = earlier.find(|(other, _)| other.is_same(plugin)).map(|(_, counts)| counts);
        plugin_rates(plugin, now, before.unwrap_or(&PluginCounts::default()), seconds)
    });
    Document {
        version: status.version,
        pid: status.pid,
        uptime_seconds: status.uptime_seconds,
        interval_seconds: seconds,
        pods: PodCounts {
            known: pods.len(),
            ready: pods.iter().filter(|pod| pod.state == SandboxState::Ready).count(),
        },
        containers: containers.into_iter().map(|(state, count)| (state, count as f64)).collect(),
        requests: requests.collect(),
        plugins: rates.collect(),
        pod_list: pods,
        failures: status.failures,
        disabled_by: status.disabled_by,
        pass_through: status.pass_through,
        plugin_socket: status.plugin_socket,
    }
}

/// Returns the rate at which a counter grew from `before` to `now`, from 0 if it restarted; `None` if no time
/// passed.
fn per_second(now: u64, before: u64, seconds: f64) -> Option<f64> {
    let grown = now.checked_sub(before).unwrap_or(now);
    (seconds > 0.0).then(|| grown as f64 / seconds)
}

/// Returns the durations observed between two samples, else those since the daemon's start.
fn recent(now: &Observations, before: &Observations) -> Observations {
    let between = now.since(before);
    if between.count() > 0 { between } else { now.clone() }
}

fn request_rates(now: RequestCounts, before: &RequestCounts, seconds: f64) -> RequestRates {
    let all = |counts: &RequestCounts| counts.proceeded + counts.refused + counts.bypassed;
    let held = recent(&now.held, &before.held);
    RequestRates {
        per_second: per_second(all(&now), all(before), seconds),
        mean_seconds: held.mean(),
        p99_seconds: held.quantile(0.99),
        proceeded: now.proceeded as f64,
        refused: now.refused as f64,
        bypassed: now.bypassed as f64,
        verb: now.verb,
    }
}

fn plugin_rates(
    plugin: &PluginRow,
    now: &PluginCounts,
    before: &PluginCounts,
    seconds: f64,
) -> PluginRates {
    let latency = recent(&now.latency, &before.latency);
    PluginRates {
        plugin: plugin.id(),
        state: plugin.state,
        pid: plugin.pid,
        per_second: per_second(now.calls, before.calls, seconds),
        mean_seconds: latency.mean(),
        p99_seconds: latency.quantile(0.99),
        queue_mean_seconds: recent(&now.queue, &before.queue).mean(),
        errors: now.errors as f64,
        skips: now.skips as f64,
        refusals: now.refusals as f64,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn sample(at: Instant, calls: u32) -> Sample {
        let times = json!({"sum": calls, "buckets": [[5.0, calls], [f64::MAX, 0]]});
        let answer = json!({"status": {"pid": 7}, "containers": {"running": 3},
            "plugins": [{"index": "10", "name": "a", "state": "synchronized"}],
            "calls": [{"calls": calls, "latency": times}],
            "requests": [{"verb": "create", "proceeded": calls, "held": times}],
            "pods": [{"state": "ready"}, {"state": "stopped"}]});
        Sample { at, answer: serde_json::from_value(answer).unwrap() }
    }

    #[test]
    fn rates_are_computed_between_two_samples() {
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
    fn one_sample_alone_has_latencies_and_no_rates() {
        let only = sample(Instant::now(), 10);
        let document = document(&only, &only);
        assert_eq!(document.plugins[0].per_second, None);
        assert_eq!(document.plugins[0].mean_seconds, Some(1.0));
    }
}
