// SPDX-License-Identifier: Apache-2.0
//! Collects the daemon's current numbers and problems for metrics, `/readyz` and `status`.

use crate::daemon::process::started_with::StartedWith;
use crate::daemon::shared::{Daemon, Records};
use crate::metrics::Holdings;
use crate::named::Named;
use crate::presence::{self, IfThere};
use crate::state::Lifecycle;

/// Returns all metrics as OpenMetrics text.
pub(super) fn metrics_text(daemon: &Daemon) -> String {
    daemon.forget_gone_plugins();
    daemon.report.metrics.text(&holdings(daemon))
}

/// Returns the reasons why this node is not ready for containers; empty if it is ready.
pub(super) fn unready(daemon: &Daemon) -> Vec<String> {
    let mut why = Vec::new();
    if daemon.process.is_ending.get() {
        why.push("the daemon is stopping".to_owned());
    }
    if !daemon.is_bystander() {
        why.extend(daemon.config().unreliable());
    }
    let missing = missing_plugins(daemon).into_iter();
    why.extend(missing.map(|name| format!("the required plugin {name} is not connected")));
    let unwritten = daemon.records.read().unwritten().len();
    if unwritten > 0 {
        why.push(format!("{unwritten} records could not be written to the run directory"));
    }
    if let Some((count, refusal)) = daemon.records.refusals() {
        why.push(format!(
            "{count} requests failed, as the run directory accepts no records: {refusal}"
        ));
    }
    why
}

/// Returns required plugins that are not connected; none while the engine's own NRI serves the plugins.
fn missing_plugins(daemon: &Daemon) -> Vec<String> {
    let mut names = required_plugins(daemon);
    names.retain(|name| !daemon.is_bystander() && !daemon.registry.is_present(name));
    names
}

/// Returns the plugins that every container requires.
pub(super) fn required_plugins(daemon: &Daemon) -> Vec<String> {
    let mut names: Vec<String> =
        daemon.config().required_plugins().map(ToOwned::to_owned).collect();
    let validator = daemon.registry.builtin();
    if validator.enable {
        names.extend(validator.required_plugins.iter().cloned());
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the setting that disables plugins for every container, if there is one.
pub(super) fn switched_off(daemon: &Daemon) -> Option<&'static str> {
    // Wrappers read the configuration file at every call, even if the daemon has not reloaded it.
    let on_disk = daemon.process.started_with.get().map(StartedWith::present);
    if on_disk.map_or_else(|| daemon.config().disable, |loaded| loaded.config.disable) {
        return Some("nri.disable in the configuration");
    }
    let file = presence::exists(&daemon.config().disabled_file());
    (file.or_absent() == Some(true)).then_some("nri-runc nri disable")
}

/// Returns the number of containers in each state, including the states without containers, so that
/// their metrics become zero.
pub(super) fn states(records: &Records) -> Vec<(&'static str, usize)> {
    let store = records.read();
    let count = |state: Lifecycle| {
        let members = store.containers().filter(|container| !container.is_sandbox);
        members.filter(|container| container.state == state).count()
    };
    Lifecycle::ALL.iter().map(|state| (state.name(), count(*state))).collect()
}

fn holdings(daemon: &Daemon) -> Holdings {
    let store = daemon.records.read();
    let refused = daemon.records.refusals().map_or(0, |(count, _)| count);
    Holdings {
        plugins: daemon.registry.synchronized().len(),
        missing_plugins: missing_plugins(daemon).len(),
        outdated_plugins: daemon.registry.roster.outdated().len(),
        absent_plugins: daemon.registry.absent().len(),
        pods: store.pods().count(),
        containers: states(&daemon.records),
        problems: vec![
            ("set_aside", store.set_aside().len()),
            ("unwritten", store.unwritten().len() + refused),
            ("found_again", store.containers().filter(|container| container.is_found).count()),
        ],
        audit_written: daemon.report.audit.counts().written(),
        audit_lost: daemon.report.audit.counts().lost(),
        log_lines_lost: crate::log::lost(),
        drifts: daemon.report.drifts.get().map_or_else(Vec::new, |(cgroup, process)| {
            vec![("cgroup", cgroup), ("process", process)]
        }),
        events_lost: daemon.stream.lost(),
        passes_through: daemon.is_bystander(),
        is_disabled: switched_off(daemon).is_some(),
    }
}
