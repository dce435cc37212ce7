// SPDX-License-Identifier: Apache-2.0
//! The daemon's metrics, and their form for Prometheus (OpenMetrics text).
//!
//! Four metrics have the same names, labels and buckets as those of containerd's NRI (2.3 and
//! later), so that one dashboard serves both; `nri_runc_*` are nri-runc's own. Label values are
//! bounded: never containers, pods or images, and a limited number of plugin names. This module
//! does no I/O and never fails.

#[cfg(test)]
mod mixin_tests;
mod plugins;
mod rows;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::answers::{Observations, RequestCounts};
use crate::plugin::CallMeter;

pub(crate) use plugins::PluginMetrics;
use rows::{AnyRows, Rows};

/// Upper bounds of the buckets in seconds: the defaults of Prometheus' Go client, which containerd
/// uses.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A histogram of durations whose values can be read, unlike the client library's. A clone shares
/// the values.
#[derive(Debug, Clone)]
struct Seconds(Arc<Mutex<Observations>>);

impl Default for Seconds {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Observations::within(&BUCKETS))))
    }
}

impl Seconds {
    fn values(&self) -> MutexGuard<'_, Observations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observe(&self, took: Duration) {
        self.values().add(took.as_secs_f64());
    }
}

impl TypedMetric for Seconds {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Seconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let values = self.values();
        encoder.encode_histogram::<Labels<0>>(values.sum, values.count(), &values.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

fn all<L>(rows: Vec<(L, Seconds)>) -> Observations {
    let none = Observations::within(&BUCKETS);
    rows.iter().fold(none, |sum, (_, row)| sum.and(&row.values()))
}

type Labels<const COUNT: usize> = [(&'static str, Cow<'static, str>); COUNT];

/// The daemon's state at the moment of a scrape.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holdings {
    /// Synchronized plugins.
    pub(crate) plugins: usize,
    /// Required plugins that are not synchronized.
    pub(crate) missing_plugins: usize,
    /// Launched plugins that run an older program or configuration than their files.
    pub(crate) outdated_plugins: usize,
    /// Plugins that were connected earlier, are expected again, and have not returned in time.
    pub(crate) absent_plugins: usize,
    /// Known pods.
    pub(crate) pods: usize,
    /// Known containers by state.
    pub(crate) containers: Vec<(&'static str, usize)>,
    /// The numbers of records with a problem, by problem.
    pub(crate) problems: Vec<(&'static str, usize)>,
    /// Lines of the audit log that were written.
    pub(crate) audit_written: u64,
    /// Lines of the audit log that were lost.
    pub(crate) audit_lost: u64,
    /// Lines of the log that were lost.
    pub(crate) log_lines_lost: u64,
    /// The numbers of drifted values, by place; empty before the first check.
    pub(crate) drifts: Vec<(&'static str, usize)>,
    /// Events that readers missed.
    pub(crate) events_lost: u64,
    /// Whether the engine's own NRI serves the plugins, so that the daemon asks none.
    pub(crate) passes_through: bool,
    /// Whether plugins are disabled, by `disable` or by the configuration.
    pub(crate) is_disabled: bool,
}

/// All metrics of the daemon.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    plugins: Arc<PluginMetrics>,
    requests: Rows<2, Counter>,
    durations: Rows<1, Seconds>,
    failures: Counter,
    reloads: Family<Labels<1>, Counter>,
    reexecs: Family<Labels<1>, Counter>,
    reexec_pause: Gauge<f64, AtomicU64>,
    // These families persist between scrapes, so that their rows keep their order.
    containers: Family<Labels<1>, Gauge>,
    problems: Family<Labels<1>, Gauge>,
    drifts: Family<Labels<1>, Gauge>,
    audit_lines: Family<Labels<1>, Counter>,
}

impl Metrics {
    /// Returns the meter of requests to plugins.
    pub(crate) fn call_meter(&self) -> Arc<dyn CallMeter> {
        Arc::clone(&self.plugins) as Arc<dyn CallMeter>
    }

    /// Returns the metrics of plugins.
    pub(crate) fn plugins(&self) -> &PluginMetrics {
        &self.plugins
    }

    /// Counts a runtime command: `outcome` is `proceeded`, `refused` or `bypassed`.
    pub(crate) fn count_request(&self, verb: &str, outcome: &'static str) {
        let verb = counted_verb(verb);
        self.requests.get_or_create(&[("verb", verb.into()), ("outcome", outcome.into())]).inc();
    }

    /// Records how long the daemon held a runtime command.
    pub(crate) fn observe_request(&self, verb: &str, took: Duration) {
        let verb = counted_verb(verb);
        self.durations.get_or_create(&[("verb", verb.into())]).observe(took);
    }

    /// Returns the counts of commands, by verb.
    pub(crate) fn requests(&self) -> Vec<RequestCounts> {
        let mut verbs = self.requests.with(["", ""]);
        verbs.dedup_by(|([verb, _], _), ([before, _], _)| verb == before);
        let counts = verbs.into_iter().map(|([(_, verb), _], _)| {
            let of = |outcome| self.requests.sum([&verb, outcome]);
            RequestCounts {
                proceeded: of("proceeded"),
                refused: of("refused"),
                bypassed: of("bypassed"),
                held: all(self.durations.with([&verb])),
                verb: verb.into_owned(),
            }
        });
        counts.collect()
    }

    /// Counts a failure that the log and `status` name.
    pub(crate) fn count_failure(&self) {
        self.failures.inc();
    }

    /// Counts a reload of the configuration: `outcome` is `applied`, `unchanged` or `refused`.
    pub(crate) fn count_reload(&self, outcome: &'static str) {
        self.reloads.get_or_create(&[("outcome", outcome.into())]).inc();
    }

    /// Counts a re-execution of the daemon: `outcome` is `done` or `failed`.
    pub(crate) fn count_reexec(&self, outcome: &'static str) {
        self.reexecs.get_or_create(&[("outcome", outcome.into())]).inc();
    }

    /// Counts a completed re-execution, and records how long requests were held.
    pub(crate) fn observe_reexec(&self, held: Duration) {
        self.count_reexec("done");
        self.reexec_pause.set(held.as_secs_f64());
    }

    /// Renders all metrics as OpenMetrics text, with the daemon's current state.
    pub(crate) fn text(&self, holdings: &Holdings) -> String {
        let mut registry = Registry::default();
        self.plugins.register(&mut registry);
        let active = gauge(holdings.plugins);
        registry.register("containerd_nri_active_plugins_total", "Synchronized plugins", active);
        let version = Family::<Labels<1>, Gauge>::default();
        set_each(&version, "version", &[(env!("CARGO_PKG_VERSION"), 1)]);
        registry.register("nri_runc_build_info", "Version of the daemon", version);
        let help = "Commands of the runtime, by what the daemon decided";
        self.requests.register(&mut registry, "nri_runc_requests", help);
        let help = "Time that the daemon held a command back, plugins included";
        self.durations.register(&mut registry, "nri_runc_request_duration_seconds", help);
        let help = "Failures that the log and `status` name";
        registry.register("nri_runc_failures", help, self.failures.clone());
        let help = "Reloads of the configuration, by outcome";
        registry.register("nri_runc_reloads", help, self.reloads.clone());
        let help = "Re-executions of the daemon in place, by outcome";
        registry.register("nri_runc_reexecs", help, self.reexecs.clone());
        let help = "Time that requests were held at the last re-execution";
        registry.register("nri_runc_reexec_pause_seconds", help, self.reexec_pause.clone());
        let help = "Required plugins that are absent";
        registry.register("nri_runc_missing_plugins", help, gauge(holdings.missing_plugins));
        let help = "Launched plugins that are older than their files";
        registry.register("nri_runc_outdated_plugins", help, gauge(holdings.outdated_plugins));
        let help = "Plugins that were connected earlier and have not reconnected";
        registry.register("nri_runc_absent_plugins", help, gauge(holdings.absent_plugins));
        registry.register("nri_runc_pods", "Known pods", gauge(holdings.pods));
        let help = "1 while an engine's own NRI serves the plugins";
        let passes_through = gauge(usize::from(holdings.passes_through));
        registry.register("nri_runc_passes_through", help, passes_through);
        let is_disabled = gauge(usize::from(holdings.is_disabled));
        registry.register("nri_runc_disabled", "1 while plugins are disabled", is_disabled);
        let help = "Known containers, without infrastructure containers";
        set_each(&self.containers, "state", &holdings.containers);
        registry.register("nri_runc_containers", help, self.containers.clone());
        let help = "Records that could not be read, written, or were found again";
        set_each(&self.problems, "problem", &holdings.problems);
        registry.register("nri_runc_records", help, self.problems.clone());
        let help = "Plugin-owned values that differed at the last comparison with the node";
        set_each(&self.drifts, "place", &holdings.drifts);
        registry.register("nri_runc_drift", help, self.drifts.clone());
        for (result, count) in [("written", holdings.audit_written), ("lost", holdings.audit_lost)]
        {
            let counter = self.audit_lines.get_or_create(&[("result", result.into())]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        registry.register(
            "nri_runc_audit_lines",
            "Lines of the audit log",
            self.audit_lines.clone(),
        );
        let help = "Lines of the log that nothing read, or that could not be written";
        let lost = ConstCounter::new(holdings.log_lines_lost);
        registry.register("nri_runc_log_lines_lost", help, lost);
        let help = "Events that readers of nri events missed because they were slow or late";
        let lost = ConstCounter::new(holdings.events_lost);
        registry.register("nri_runc_events_lost", help, lost);
        let mut page = String::new();
        // Writing to a String cannot fail.
        let _written = text::encode(&mut page, &registry);
        page
    }
}

/// Returns the label for a command; records on disk may contain any text, so unknown commands share
/// one.
fn counted_verb(verb: &str) -> &'static str {
    const VERBS: [&str; 9] =
        ["create", "run", "restore", "start", "update", "delete", "kill", "exec", "pod"];
    VERBS.into_iter().find(|known| *known == verb).unwrap_or("other")
}

fn gauge(count: usize) -> ConstGauge {
    ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
}

fn set_each(
    family: &Family<Labels<1>, Gauge>,
    label: &'static str,
    rows: &[(&'static str, usize)],
) {
    for (value, count) in rows {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        family.get_or_create(&[(label, (*value).into())]).set(count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::plugin::{CallSample, RequestSubject};

    fn called(metrics: &Metrics, plugin: &str, error: Option<&'static str>) {
        metrics.call_meter().record_call(&CallSample {
            plugin,
            operation: "CreateContainer",
            subject: RequestSubject::default(),
            waited: Duration::from_millis(1),
            took: Duration::from_millis(20),
            error,
        });
    }

    fn lines(metrics: &Metrics) -> Vec<String> {
        metrics.text(&Holdings::default()).lines().map(str::to_owned).collect()
    }

    fn has(lines: &[String], line: &str) -> bool {
        lines.iter().any(|other| other == line)
    }

    #[test]
    fn a_call_is_counted_under_containerds_names_and_labels() {
        let metrics = Metrics::default();
        called(&metrics, "10-a", None);
        called(&metrics, "10-a", Some("deadline_exceeded"));
        let lines = lines(&metrics);
        let name = "containerd_nri_plugin_invocations_total";
        let of = "plugin=\"10-a\",operation=\"CreateContainer\"";
        assert!(has(&lines, &format!("{name}{{{of},status=\"success\",error=\"\"}} 1")));
        let error = "status=\"error\",error=\"deadline_exceeded\"";
        assert!(has(&lines, &format!("{name}{{{of},{error}}} 1")));
        let bucket = "containerd_nri_plugin_latency_seconds_bucket";
        assert!(has(&lines, &format!("{bucket}{{le=\"0.01\",{of}}} 0")), "{lines:#?}");
        assert!(has(&lines, &format!("{bucket}{{le=\"0.025\",{of}}} 2")));
    }

    #[test]
    fn random_plugin_names_share_one_row() {
        let metrics = Metrics::default();
        for number in 0..5000 {
            called(&metrics, &format!("10-made-up-{number}"), None);
        }
        let lines = lines(&metrics);
        let rows =
            lines.iter().filter(|l| l.starts_with("containerd_nri_plugin_invocations_total"));
        assert!(rows.count() <= crate::limits::METRIC_NAMES + 1);
        assert!(lines.iter().any(|line| line.contains("plugin=\"other\"")));
    }

    #[test]
    fn rows_of_plugins_gone_for_an_hour_are_dropped() {
        let metrics = Metrics::default();
        let plugins = metrics.plugins();
        let page = || metrics.text(&Holdings::default());
        called(&metrics, "10-stays", None);
        for hour in 0..10 {
            for number in 0..1000 {
                let id = format!("10-made-up-{hour}-{number}");
                called(&metrics, &id, None);
                plugins.record_wishes(&id, "CreateContainer", 1, 1);
                plugins.record_skip(&id, "CreateContainer", "timeout");
                plugins.count_refusal(&id, "create");
                plugins.count_update(&id, "failed");
                plugins.count_eviction(&id, "failed");
                plugins.count_takeover(&id, "failed");
                plugins.count_connection(&id, "disconnected");
            }
            let full = page();
            for (name, ..) in plugins.of_plugins() {
                let is_its = |line: &str| line.starts_with(name) && line.contains("made-up");
                assert!(full.lines().any(is_its), "{name}");
            }
            let rows = full.lines().filter(|line| line.contains("result=\"disconnected\""));
            assert_eq!(rows.count(), crate::limits::METRIC_NAMES, "one of them is for all others");
            // A plugin that restarts continues its counters.
            plugins.forget_gone(|id| id == "10-stays", Instant::now());
            assert_eq!(page(), full);
            plugins.forget_gone(|id| id == "10-stays", Instant::now() + plugins::GONE_FOR);
            let left = page();
            assert!(!left.contains("made-up"), "{left}");
            for kept in ["plugin=\"10-stays\",operation", "plugin=\"other\",operation"] {
                assert!(left.contains(kept), "{left}");
            }
        }
    }

    #[test]
    fn lost_lines_of_the_log_are_counted_once() {
        let metrics = Metrics::default();
        assert!(has(&lines(&metrics), "nri_runc_log_lines_lost_total 0"));
        for lost in [3, 3, 5] {
            let page = metrics.text(&Holdings { log_lines_lost: lost, ..Holdings::default() });
            assert!(page.contains(&format!("nri_runc_log_lines_lost_total {lost}\n")), "{page}");
        }
    }

    #[test]
    fn equal_metrics_yield_equal_pages() {
        let metrics = Metrics::default();
        let rows: Vec<(&str, usize)> = vec![("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)];
        let holdings = Holdings { containers: rows.clone(), problems: rows, ..Holdings::default() };
        let page = metrics.text(&holdings);
        for _another in 0..20 {
            assert_eq!(metrics.text(&holdings), page);
        }
    }

    #[test]
    fn gauges_show_the_current_state() {
        let metrics = Metrics::default();
        let mut holdings =
            Holdings { pods: 3, containers: vec![("running", 5)], ..Holdings::default() };
        let page = metrics.text(&holdings);
        assert!(page.contains("nri_runc_pods 3\n"), "{page}");
        assert!(page.contains("nri_runc_containers{state=\"running\"} 5\n"));
        holdings.containers = vec![("running", 0)];
        assert!(metrics.text(&holdings).contains("nri_runc_containers{state=\"running\"} 0\n"));
        assert!(page.ends_with("# EOF\n"));
    }
}
