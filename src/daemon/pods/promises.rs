// SPDX-License-Identifier: Apache-2.0
//! Finds the promises (`[[require]]`) that apply to a container or a pod. It asks kubelet, whose answer is stored with
//! the pod, and looks up the host's device nodes, each only if a promise needs it. `required.rs` enforces the promises.

use crate::audit::{AuditAction, AuditEntry};
use crate::config::PromiseSection;
use crate::daemon::request::describe::Description;
use crate::daemon::request::record;
use crate::daemon::shared::{Daemon, events, messages};
use crate::engine::{Allocations, EngineKind};
use crate::plugin::{Event, api};
use crate::rules::{Fit, PromiseFacts, RuledPod, device_numbers, fit_pod, fit_promise};
use crate::sources::{self, KubeletPod};
use crate::state::{ContainerKey, Pod, Promise};

/// Returns the promises about a container that is being created.
pub(crate) async fn of_container(daemon: &Daemon, description: &Description) -> Vec<Promise> {
    let config = daemon.config();
    if config.promises.is_empty() || description.is_exempt {
        return Vec::new();
    }
    let pod = record::known_pod(&daemon.records, description);
    let ruled = RuledPod::of(&pod, description.engine.name(), description.is_doubtful);
    let sections = candidates(&config.promises, &ruled);
    if sections.is_empty() {
        return Vec::new();
    }
    let remembered = daemon.records.read().pod(&pod.id).and_then(|pod| pod.allocations.clone());
    let allocations = match remembered {
        Some(listed) => Allocations::Listed(listed),
        None => ask_kubelet(daemon, &sections, &pod, Some(description.engine.kind)).await,
    };
    let nodes = match sections.iter().any(|section| !section.devices.is_empty()) {
        true => nodes(daemon, &description.container).await,
        false => Ok(Vec::new()),
    };
    let nodes = nodes.as_deref().map_err(String::as_str);
    let facts = PromiseFacts {
        container: Some(&description.container),
        unread: description.unread.as_deref(),
        nodes,
        ..PromiseFacts::new(&ruled, &pod, &allocations)
    };
    about(&sections, &facts)
}

/// Adds kubelet's allocations and the promises about the whole pod to a pod's record, before RunPodSandbox.
pub(crate) async fn add_to_pod(daemon: &Daemon, pod: &mut Pod) {
    let config = daemon.config();
    pod.promises.clear();
    if config.promises.is_empty() || pod.is_exempt {
        return;
    }
    let (ruled, message) = (events::ruled_pod(pod), messages::pod(pod));
    let sections = candidates(&config.promises, &ruled);
    if sections.is_empty() {
        return;
    }
    let kind = pod.engine.kind();
    let allocations = ask_kubelet(daemon, &sections, &message, kind).await;
    pod.promises = about(&sections, &PromiseFacts::new(&ruled, &message, &allocations));
    if let Allocations::Listed(listed) = allocations {
        pod.allocations = Some(listed);
    }
}

/// Returns the sections that may apply to containers of this pod.
fn candidates<'c>(sections: &'c [PromiseSection], pod: &RuledPod) -> Vec<&'c PromiseSection> {
    sections.iter().filter(|section| fit_pod(&section.pods, pod).0 != Fit::No).collect()
}

fn about(sections: &[&PromiseSection], facts: &PromiseFacts<'_>) -> Vec<Promise> {
    let promises = sections.iter().filter_map(|section| {
        let (fit, why) = fit_promise(section, facts);
        (fit != Fit::No).then(|| Promise {
            promise: section.name.clone(),
            plugin: section.plugin.clone(),
            why: why.to_string(),
            is_enforced: section.refuses(),
            result: String::new(),
        })
    });
    promises.collect()
}

async fn ask_kubelet(
    daemon: &Daemon,
    sections: &[&PromiseSection],
    pod: &api::PodSandbox,
    kind: Option<EngineKind>,
) -> Allocations {
    let is_its = kind.is_some_and(|kind| kind.behaviour().has_pods);
    if !is_its || !sections.iter().any(|section| section.needs_kubelet()) {
        return Allocations::None;
    }
    let pod = KubeletPod { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
    sources::allocations(&daemon.host, &daemon.config().pod_resources, pod).await
}

/// Returns the host paths of the container's device nodes.
async fn nodes(daemon: &Daemon, container: &api::Container) -> Result<Vec<String>, String> {
    let numbers = device_numbers(container);
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let host = daemon.host.clone();
    let look = move || sources::device_paths(&host, &numbers);
    daemon.off_loop(sources::DEV, look).await.map_err(|error| error.why())
}

/// Counts, in the metrics, the results of the promises about a container that is being created. A
/// promise in audit mode that would refuse the container gets an entry in the audit log.
pub(crate) fn note(daemon: &Daemon, key: &ContainerKey, promises: &[Promise]) {
    for promise in promises {
        daemon.report.metrics.plugins().count_promise(&promise.promise, &promise.result);
        if promise.result != Promise::WOULD_REFUSE {
            continue;
        }
        daemon.audit(key, || {
            let entry = AuditEntry::new(AuditAction::WouldRefuse);
            let entry = entry.at_event(Event::CreateContainer.name()).by(&promise.plugin);
            AuditEntry { rule: promise.promise.clone(), ..entry.because(&promise.why) }
        });
    }
}
