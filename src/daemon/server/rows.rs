// SPDX-License-Identifier: Apache-2.0
//! Builds fields of containers and pods that several admin answers have.

use crate::answers::{ContainerState, PromiseOutcome, PromiseResult, Times};
use crate::config::RuleMode;
use crate::daemon::shared::Daemon;
use crate::error::Error;
use crate::named::Named;
use crate::state::{Container, Pod, Process, Promise};
use crate::text::{first_of, rfc3339_nanos, short_id};

/// Returns the times of the container's creation, start, exit and refusal, in nanoseconds and as text.
pub(crate) fn times(container: &Container) -> Times {
    let Process { created_at, started_at, finished_at, .. } = container.process;
    let [created_at, started_at, finished_at, refused_at] =
        [created_at, started_at, finished_at, container.outcome.refused_at]
            .map(Option::unwrap_or_default);
    Times {
        created_at,
        created_time: rfc3339_nanos(created_at),
        started_at,
        started_time: rfc3339_nanos(started_at),
        finished_at,
        finished_time: rfc3339_nanos(finished_at),
        refused_at,
        refused_time: rfc3339_nanos(refused_at),
    }
}

/// Returns the container's state on record, or paused if the kernel has frozen its processes.
pub(crate) fn state(daemon: &Daemon, container: &Container) -> ContainerState {
    if daemon.is_paused(container) { ContainerState::Paused } else { container.state.into() }
}

/// Returns the pods that an operator's argument means: that of this ID, else those of this name or NAMESPACE/NAME, else
/// those whose IDs begin with it.
pub(crate) fn pods_meant<'p>(pods: impl Iterator<Item = &'p Pod>, wanted: &str) -> Vec<&'p Pod> {
    let rank = |pod: &Pod| match wanted {
        "" => None,
        id if pod.id == id => Some(0),
        name if pod.name == name || format!("{}/{}", pod.namespace, pod.name) == name => Some(1),
        prefix => pod.id.starts_with(prefix).then_some(2),
    };
    let ranked: Vec<_> = pods.filter_map(|pod| Some((rank(pod)?, pod))).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    ranked.into_iter().filter(|(rank, _)| Some(*rank) == best).map(|(_, pod)| pod).collect()
}

/// Returns the failure of a name or prefix that matches several pods, and names them.
pub(crate) fn ambiguous_pods(wanted: &str, pods: &[&Pod]) -> Error {
    let name = |pod: &&Pod| match (pod.namespace.as_str(), pod.name.as_str()) {
        (_, name) if name.is_empty() || name == pod.id => short_id(&pod.id).to_owned(),
        ("", name) => format!("{name} ({})", short_id(&pod.id)),
        (namespace, name) => format!("{namespace}/{name} ({})", short_id(&pod.id)),
    };
    let names: Vec<String> = pods.iter().map(name).collect();
    let (count, names) = (pods.len(), first_of(&names));
    Error::new(format!("\"{wanted}\" is ambiguous: {count} pods match: {names}"))
}

/// Returns the promises about a pod or a container; a pod's promises have no result.
pub(crate) fn promises(promises: &[Promise]) -> Vec<PromiseOutcome> {
    let rows = promises.iter().cloned().map(|promise| PromiseOutcome {
        promise: promise.promise,
        plugin: promise.plugin,
        why: promise.why,
        mode: RuleMode::of(promise.is_enforced),
        result: PromiseResult::named(&promise.result),
    });
    rows.collect()
}
