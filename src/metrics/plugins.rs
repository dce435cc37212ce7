// SPDX-License-Identifier: Apache-2.0
//! The metrics of plugins, rules, injections and promises. Plugins choose their names, so the number
//! of their rows is limited; further names share one row.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use crate::answers::PluginCounts;
use crate::limits;
use crate::plugin::{CallMeter, CallSample};

use super::rows::{AnyRows, Rows};
use super::{Labels, Seconds, all, counted_verb};

/// The label that further names share.
const OTHER: &str = "other";

/// Time for which a disconnected plugin keeps its rows after its last count. By then Prometheus has
/// scraped the counters; if the plugin returns, they start from zero, as after a restart.
pub(super) const GONE_FOR: Duration = Duration::from_secs(60 * 60);

/// The metrics of plugins, rules, injections and promises.
#[derive(Debug, Default)]
pub(crate) struct PluginMetrics {
    invocations: Rows<4, Counter>,
    latency: Rows<2, Seconds>,
    wishes: Rows<3, Counter>,
    waits: Rows<1, Seconds>,
    skips: Rows<3, Counter>,
    refusals: Rows<2, Counter>,
    updates: Rows<2, Counter>,
    evictions: Rows<2, Counter>,
    connections: Rows<2, Counter>,
    /// The operator names rules, injections and promises, so the number of their rows is not limited.
    rules: Rows<2, Counter>,
    injections: Rows<2, Counter>,
    promises: Rows<2, Counter>,
    takeovers: Rows<2, Counter>,
    /// The plugins with rows, each with the time of its last count.
    names: Mutex<HashMap<String, Instant>>,
}

impl PluginMetrics {
    /// Returns the name, help and rows of the metrics whose first label is a plugin.
    pub(super) fn of_plugins(&self) -> [(&'static str, &'static str, &dyn AnyRows); 10] {
        [
            (
                "containerd_nri_plugin_invocations",
                "Requests to plugins by result",
                &self.invocations,
            ),
            (
                "containerd_nri_plugin_latency_seconds",
                "Time that plugins took to answer",
                &self.latency,
            ),
            (
                "containerd_nri_plugin_adjustments",
                "Updates and evictions of other containers in plugins' answers",
                &self.wishes,
            ),
            (
                "nri_runc_plugin_queue_seconds",
                "Time that requests waited until earlier ones were answered",
                &self.waits,
            ),
            (
                "nri_runc_plugin_skips",
                "Requests that continued without the plugin's answer",
                &self.skips,
            ),
            (
                "nri_runc_plugin_refusals",
                "Commands that a plugin or its absence refused",
                &self.refusals,
            ),
            (
                "nri_runc_plugin_updates",
                "Updates of other containers that plugins asked for, by result",
                &self.updates,
            ),
            (
                "nri_runc_plugin_evictions",
                "Evictions that plugins asked for, by result",
                &self.evictions,
            ),
            (
                "nri_runc_plugin_connections",
                "Plugins that were synchronized, and that disconnected",
                &self.connections,
            ),
            (
                "nri_runc_plugin_takeovers",
                "Connections with the identity of a connected plugin, by outcome",
                &self.takeovers,
            ),
        ]
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        for (name, help, rows) in self.of_plugins() {
            rows.register(registry, name, help);
        }
        let help = "Requests that the operator's rules do not permit, by result";
        self.rules.register(registry, "nri_runc_rule_hits", help);
        let help = "Containers that injections selected, by result";
        self.injections.register(registry, "nri_runc_injections", help);
        let help = "Containers to which promises applied, by result";
        self.promises.register(registry, "nri_runc_promises", help);
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name under which a plugin is counted. A new plugin gets its own row unless the
    /// limit is reached.
    fn named(&self, plugin: &str) -> Cow<'static, str> {
        let mut names = self.names();
        if let Some(last) = names.get_mut(plugin) {
            *last = Instant::now();
        } else if names.len() >= limits::METRIC_NAMES {
            return OTHER.into();
        } else {
            names.insert(plugin.to_owned(), Instant::now());
        }
        plugin.to_owned().into()
    }

    /// Returns the name under which a plugin is counted, without giving it a new row: it was not
    /// synchronized.
    fn known(&self, plugin: &str) -> Cow<'static, str> {
        if self.names().contains_key(plugin) { plugin.to_owned().into() } else { OTHER.into() }
    }

    /// Reserves a row, even beyond the limit, for a plugin that the operator named or installed.
    pub(crate) fn reserve(&self, plugin: &str) {
        self.names().insert(plugin.to_owned(), Instant::now());
    }

    /// Drops the rows of disconnected plugins without a count for [`GONE_FOR`], so that new plugins
    /// can have rows.
    pub(crate) fn forget_gone(&self, is_connected: impl Fn(&str) -> bool, now: Instant) {
        let mut names = self.names();
        let before = names.len();
        names.retain(|name, last| {
            // The empty name has the refusals that no plugin caused.
            let is_recent = now.saturating_duration_since(*last) < GONE_FOR;
            is_recent || name.is_empty() || is_connected(name)
        });
        if names.len() == before {
            return;
        }
        let keeps = |name: &str| name == OTHER || names.contains_key(name);
        for (_, _, rows) in self.of_plugins() {
            rows.retain(&keeps);
        }
    }

    /// Returns the counts of a plugin.
    pub(crate) fn counts(&self, plugin: &str) -> PluginCounts {
        PluginCounts {
            calls: self.invocations.sum([plugin, "", "", ""]),
            errors: self.invocations.sum([plugin, "", "error", ""]),
            skips: self.skips.sum([plugin, "", ""]),
            refusals: self.refusals.sum([plugin, ""]),
            latency: all(self.latency.with([plugin, ""])),
            queue: all(self.waits.with([plugin])),
        }
    }

    fn result(&self, plugin: &str, result: &'static str) -> Labels<2> {
        [("plugin", self.named(plugin)), ("result", result.into())]
    }

    /// Counts a command that was refused because of this plugin; the name is empty if no plugin
    /// caused it.
    pub(crate) fn count_refusal(&self, plugin: &str, verb: &str) {
        let labels = [("plugin", self.named(plugin)), ("verb", counted_verb(verb).into())];
        self.refusals.get_or_create(&labels).inc();
    }

    /// Counts an update of another container: `applied`, `failed` or `ignored`.
    pub(crate) fn count_update(&self, plugin: &str, result: &'static str) {
        self.updates.get_or_create(&self.result(plugin, result)).inc();
    }

    /// Counts an eviction: `begun` or `failed`.
    pub(crate) fn count_eviction(&self, plugin: &str, result: &'static str) {
        self.evictions.get_or_create(&self.result(plugin, result)).inc();
    }

    /// Counts a request against a rule: `refused`, or `would_refuse` in audit mode.
    pub(crate) fn count_rule(&self, rule: &str, result: &'static str) {
        let labels = [("rule", rule.to_owned().into()), ("result", result.into())];
        self.rules.get_or_create(&labels).inc();
    }

    /// Counts an injection into a container: `applied`, or `would_inject` in audit mode; `gave_way`
    /// if the container or other owners had set all its values; `skipped` if the container was
    /// created without it; or `refused`.
    pub(crate) fn count_injection(&self, name: &str, result: &'static str) {
        let labels = [("injection", name.to_owned().into()), ("result", result.into())];
        self.injections.get_or_create(&labels).inc();
    }

    /// Counts a container to which a promise applies: `met`, `refused`, or `would_refuse` in audit
    /// mode.
    pub(crate) fn count_promise(&self, name: &str, result: &str) {
        let labels = [("promise", name.to_owned().into()), ("result", result.to_owned().into())];
        self.promises.get_or_create(&labels).inc();
    }

    /// Counts a takeover (a new connection with a connected plugin's identity): `completed`,
    /// `failed` or `refused`.
    pub(crate) fn count_takeover(&self, plugin: &str, result: &'static str) {
        self.takeovers.get_or_create(&self.result(plugin, result)).inc();
    }

    /// Counts a refused connection under `other`, because any process can claim a plugin's name.
    pub(crate) fn count_refused_connection(&self) {
        let labels = [("plugin", OTHER.into()), ("result", "refused".into())];
        self.connections.get_or_create(&labels).inc();
    }

    /// Counts a registered plugin that could not be synchronized.
    pub(crate) fn count_unsynchronized(&self, plugin: &str) {
        let labels = [("plugin", self.known(plugin)), ("result", "unsynchronized".into())];
        self.connections.get_or_create(&labels).inc();
    }

    /// Counts a plugin that was `synchronized` or `disconnected`.
    pub(crate) fn count_connection(&self, plugin: &str, result: &'static str) {
        self.connections.get_or_create(&self.result(plugin, result)).inc();
    }
}

impl CallMeter for PluginMetrics {
    fn record_call(&self, sample: &CallSample<'_>) {
        let plugin = || ("plugin", self.named(sample.plugin));
        let operation = || ("operation", sample.operation.into());
        let status = if sample.error.is_some() { "error" } else { "success" };
        let error = sample.error.unwrap_or_default();
        let labels = [plugin(), operation(), ("status", status.into()), ("error", error.into())];
        self.invocations.get_or_create(&labels).inc();
        let latency = self.latency.get_or_create(&[plugin(), operation()]);
        latency.observe(sample.took);
        self.waits.get_or_create(&[plugin()]).observe(sample.waited);
    }

    fn record_wishes(
        &self,
        plugin: &str,
        operation: &'static str,
        updates: usize,
        evictions: usize,
    ) {
        for (count, kind) in [(updates, "update"), (evictions, "evict")] {
            if count > 0 {
                let plugin = ("plugin", self.named(plugin));
                let labels = [plugin, ("operation", operation.into()), ("type", kind.into())];
                self.wishes.get_or_create(&labels).inc_by(count as u64);
            }
        }
    }

    fn record_skip(&self, plugin: &str, operation: &'static str, reason: &'static str) {
        let plugin = ("plugin", self.named(plugin));
        let labels = [plugin, ("operation", operation.into()), ("reason", reason.into())];
        self.skips.get_or_create(&labels).inc();
    }
}
