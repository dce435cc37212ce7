// SPDX-License-Identifier: Apache-2.0
//! Builds notifications and synchronization snapshots from the records.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use crate::chain::Notification;
use crate::daemon::registry::connected::Subject;
use crate::daemon::shared::messages;
use crate::mark::ExecSubject;
use crate::plugin::{Event, api};
use crate::rules::{RuledPod, Rules};
use crate::state::{Container, ContainerKey, Lifecycle, Pod, PodState, Store};

/// Returns an event with the container in its recorded state; `None` if it is not on record.
pub(crate) fn of_container(
    store: &Store,
    event: Event,
    key: &ContainerKey,
) -> Option<Notification> {
    let container = store.container(key)?;
    let known = store.pod(&container.pod);
    let pod = known.map(|pod| messages::pod_as_sent_at(event, pod));
    let pod = pod.unwrap_or_else(|| messages::only_pod_id(&container.pod));
    let is_doubtful = known.is_none_or(|pod| pod.is_doubtful);
    let mut message = messages::container(container);
    messages::as_sent_at(event, container, &mut message);
    let notification = Notification::new(event, pod, Some(message.into())).below(&key.root);
    Some(notification.of_engine(container.engine.as_str(), is_doubtful))
}

/// Returns an event that only identifies a container and its pod.
pub(crate) fn only_named(store: &Store, event: Event, key: &ContainerKey) -> Option<Notification> {
    let container = store.container(key)?;
    let message = api::Container {
        id: key.id.clone(),
        pod_sandbox_id: container.pod.clone(),
        ..api::Container::default()
    };
    let pod = messages::only_pod_id(&container.pod);
    Some(Notification::new(event, pod, Some(message.into())).below(&key.root))
}

/// Returns an event about a pod.
pub(crate) fn of_pod(store: &Store, event: Event, id: &str) -> Option<Notification> {
    let pod = store.pod(id)?;
    let mut message = messages::pod(pod);
    messages::as_sent_at_the_end(event, pod, &mut message);
    Some(Notification::new(event, message, None).of_engine(pod.engine.as_str(), pod.is_doubtful))
}

/// Returns all pods and containers of a Synchronize, including those that rules hide. Engines' own NRI
/// omits exited containers; this snapshot includes them until they are removed.
pub(crate) fn snapshot(store: &Store) -> (Vec<api::PodSandbox>, Vec<Rc<Container>>) {
    let mut containers = store.all_shared();
    containers.retain(|container| is_shown(container));
    (pods_shown(store).map(|(_, pod)| messages::pod(pod)).collect(), containers)
}

/// The snapshot with which a plugin is synchronized.
pub(crate) struct Moment {
    pub(crate) pods: Vec<Rc<Pod>>,
    pub(crate) containers: Vec<Rc<Container>>,
    /// The pods and containers of the snapshot.
    pub(crate) about: BTreeSet<Subject>,
    /// The pods and containers that rules hide from the plugin, each with the rule.
    pub(crate) hidden: Vec<(Subject, String)>,
}

/// Returns a pod as rules match it.
pub(crate) fn ruled_pod(pod: &Pod) -> RuledPod {
    RuledPod::of(&messages::pod(pod), pod.engine.as_str(), pod.is_doubtful)
}

/// Returns the pod of a container as rules match it; built from the container if the pod has no record.
pub(crate) fn ruled_pod_of(store: &Store, container: &Container) -> RuledPod {
    store.pod(&container.pod).map_or_else(
        || RuledPod {
            namespace: container.pod_namespace.clone(),
            engine: container.engine.to_string(),
            lacks_labels: true,
            is_doubtful: true,
            ..RuledPod::default()
        },
        ruled_pod,
    )
}

/// Returns the facts about a container that a wrapper needs for `exec`.
pub(crate) fn exec_subject(store: &Store, container: &Container) -> ExecSubject {
    let pod = ruled_pod_of(store, container);
    let RuledPod { namespace, labels, lacks_labels, engine, handler, is_doubtful } = pod;
    let is_exempt = store.pod(&container.pod).is_some_and(|pod| pod.is_exempt);
    let bundle = container.folder().to_owned();
    ExecSubject { bundle, namespace, labels, lacks_labels, engine, handler, is_doubtful, is_exempt }
}

/// Whether the new rules show a plugin a pod that the old ones hid from it.
pub(crate) fn is_shown_more(store: &Store, before: &Rules, now: &Rules, plugin: &str) -> bool {
    before.hides_anything()
        && store.pods().filter(|pod| pod.state != PodState::Created).any(|pod| {
            let pod = ruled_pod(pod);
            before.hidden_by(plugin, &pod).is_some() && now.hidden_by(plugin, &pod).is_none()
        })
}

/// Returns the snapshot for a plugin. It shares the records instead of copying them, because encoding takes a while. It
/// omits what rules hide from the plugin, and `ending` subjects: the plugin would not receive their removal.
pub(crate) fn snapshot_shared(
    store: &Store,
    rules: &Rules,
    plugin: &str,
    ending: &HashSet<Subject>,
) -> Moment {
    let mut pods: Vec<(Subject, Rc<Pod>)> =
        pods_shown(store).map(|(id, pod)| (Subject::Pod(Rc::clone(id)), Rc::clone(pod))).collect();
    let containers = store.containers_shared().filter(|(_, container)| is_shown(container));
    let mut containers: Vec<(Subject, Rc<Container>)> = containers
        .map(|(key, container)| (Subject::Container(Rc::clone(key)), Rc::clone(container)))
        .collect();
    if !ending.is_empty() {
        pods.retain(|(subject, _)| !ending.contains(subject));
        containers.retain(|(subject, _)| !ending.contains(subject));
    }
    let mut hidden = Vec::new();
    if rules.hides_anything() {
        let rule = |pod: &RuledPod| Some(rules.hidden_by(plugin, pod)?.rule.clone());
        let of_pods =
            store.pods().filter_map(|pod| Some((pod.id.as_str(), rule(&ruled_pod(pod))?)));
        let hidden_pods: HashMap<&str, String> = of_pods.collect();
        containers.retain(|(subject, container)| {
            let rule = match store.pod(&container.pod) {
                Some(pod) => hidden_pods.get(pod.id.as_str()).cloned(),
                None => rule(&ruled_pod_of(store, container)),
            };
            let is_hidden = rule.is_some();
            hidden.extend(rule.map(|rule| (subject.clone(), rule)));
            !is_hidden
        });
        pods.retain(|(_, pod)| !hidden_pods.contains_key(pod.id.as_str()));
        let of_pods = hidden_pods.into_iter();
        hidden.extend(of_pods.map(|(id, rule)| (Subject::Pod(id.into()), rule)));
    }
    let (mut about, pods): (Vec<Subject>, Vec<Rc<Pod>>) = pods.into_iter().unzip();
    let (of_containers, containers): (Vec<Subject>, Vec<_>) = containers.into_iter().unzip();
    about.extend(of_containers);
    // The subjects are in order here, and a tree is built from them without inserting each.
    Moment { pods, containers, about: about.into_iter().collect(), hidden }
}

/// Returns the pods that were announced, or recorded as running without an announcement.
fn pods_shown(store: &Store) -> impl Iterator<Item = (&Rc<str>, &Rc<Pod>)> {
    store.pods_shared().filter(|(_, pod)| pod.state != PodState::Created)
}

fn is_shown(container: &Container) -> bool {
    // A container whose creation was refused never exists.
    let comes = container.state != Lifecycle::Creating || container.outcome.refused.is_empty();
    !container.is_sandbox && comes && container.state != Lifecycle::Removed
}
